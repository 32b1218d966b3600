"""Plans of layouts whose gradient groups do not fit in memory, against all plans of the layout."""

import dataclasses
import itertools
import math
import random

import pytest
from builders import cluster, layer, link, random_workload, workload

from autoplan import GradientGroup, Job, Plan
from autoplan.predict import Predictor
from autoplan.search import layout as layouts
from autoplan.search import stage_options
from autoplan.search.layout import Layout, assemble, is_settled
from autoplan.search.space import SearchSpace

SPACE = SearchSpace()
JOB = Job(global_batch=8, optimizer="sgd", memory_headroom=0.0)


def layout_of(bounds, replicas, **choices):
    usual = {
        "microbatches": 2,
        "schedule": "1f1b",
        "rank_order": "replica",
        "recompute": "where-needed",
        "policy": "exact",
        "cap_bytes": 1.0,
    }
    return Layout(bounds=bounds, replicas=replicas, **(usual | choices))


def random_tight(rng, recompute="where-needed"):
    """A random layout on devices that hold less than its fastest plan, more than its leanest."""
    model = random_workload(rng, max_layers=6)
    most_bytes = rng.choice([9, 60])
    more = (
        dataclasses.replace(each, stash_bytes_per_sample=rng.uniform(0, most_bytes))
        for each in model.layers
    )
    model = dataclasses.replace(model, layers=tuple(more))
    layers = len(model.layers)
    stages = min(layers, rng.choice([1, 2, 2, 3]))
    cuts = sorted(rng.sample(range(1, layers), stages - 1))
    layout = layout_of(
        (0, *cuts, layers),
        tuple(rng.choice([1, 2, 2, 4]) for _ in range(stages)),
        microbatches=rng.choice([1, 2]),
        schedule=rng.choice(["gpipe", "1f1b"]),
        recompute=recompute,
    )
    where = cluster(12, intra_node=link(rng.uniform(0, 2), rng.uniform(5, 90)))
    ample = Predictor(model, where, JOB)
    peak_bytes = ample.score(assemble(layout, ample, SPACE)).peak_bytes
    lean_bytes = min(
        ample.score(assemble(dataclasses.replace(layout, **way), ample, SPACE)).peak_bytes
        for way in ({"policy": "layerwise", "recompute": r} for r in ("never", "always"))
    )
    memory_bytes = lean_bytes + rng.uniform(-0.1, 1) * (peak_bytes - lean_bytes)
    device = dataclasses.replace(where.device, memory_bytes=memory_bytes)
    tight = dataclasses.replace(where, device=device)
    return Predictor(model, tight, JOB), layout


def groupings(first, end):
    """All contiguous groups of the layers, in backward order."""
    for inner in itertools.product([False, True], repeat=end - first - 1):
        ends = [end, *(n for n, cut in zip(range(end - 1, first, -1), inner, strict=True) if cut)]
        yield tuple(
            GradientGroup(layers=pair) for pair in zip([*ends[1:], first], ends, strict=True)
        )


def every_plan(plan, recompute):
    """All plans that differ in groups, and in what recomputes where that is open."""
    ways = {"where-needed": (False, True), "never": (False,), "always": (True,)}[recompute]
    options = [
        [
            dataclasses.replace(stage, groups=groups, recompute=again)
            for groups in groupings(*stage.layers)
            for again in ways
        ]
        for stage in plan.stages
    ]
    return (dataclasses.replace(plan, stages=stages) for stages in itertools.product(*options))


def least_step_s(predictor, plans):
    scores = map(predictor.score, plans)
    return min((score.step_s for score in scores if score.feasible), default=math.inf)


@pytest.mark.parametrize("recompute", ["where-needed", "never", "always"])
def test_no_groups_and_no_other_stages_that_recompute_make_a_faster_plan(recompute):
    rng = random.Random(41)
    outcomes = {"fits": 0, "does not fit": 0, "unsettled": 0}
    for _ in range(60):
        predictor, layout = random_tight(rng, recompute)
        plan = assemble(layout, predictor, SPACE)
        score = predictor.score(plan)
        step_s = score.step_s if score.feasible else math.inf
        best_s = least_step_s(predictor, every_plan(plan, recompute))
        assert step_s >= best_s * (1 - 1e-12)
        if not is_settled(layout, predictor, SPACE):
            outcomes["unsettled"] += 1
            continue
        assert step_s == pytest.approx(best_s, rel=1e-12)
        outcomes["fits" if score.feasible else "does not fit"] += 1
    assert outcomes["fits"] > 15
    assert outcomes["unsettled"] < 6


def without_limits(layout, predictor):
    """The plan with the same groups as on devices with ample memory, recomputing where needed."""
    device = dataclasses.replace(predictor.cluster.device, memory_bytes=1e15)
    where = dataclasses.replace(predictor.cluster, device=device)
    ample = Predictor(predictor.workload, where, predictor.job)
    keeps = assemble(dataclasses.replace(layout, recompute="never"), ample, SPACE)
    for again in itertools.product([False, True], repeat=len(keeps.stages)):
        pairs = zip(keeps.stages, again, strict=True)
        yield dataclasses.replace(
            keeps, stages=tuple(dataclasses.replace(stage, recompute=way) for stage, way in pairs)
        )


@pytest.mark.parametrize("changes", [{}, {"EXACT_LAYERS": 0}, {"MOST_UNDECIDED": 0}], ids=str)
def test_a_plan_that_groups_within_memory_is_as_fast_as_one_that_recomputes(monkeypatch, changes):
    for name, value in changes.items():
        monkeypatch.setattr(stage_options if name == "EXACT_LAYERS" else layouts, name, value)
    rng = random.Random(42)
    faster = newly = 0
    for _ in range(120):
        predictor, layout = random_tight(rng)
        score = predictor.score(assemble(layout, predictor, SPACE))
        before_s = least_step_s(predictor, without_limits(layout, predictor))
        if before_s == math.inf:
            newly += score.feasible
            continue
        assert score.feasible
        if "MOST_UNDECIDED" not in changes or len(layout.replicas) == 1:
            assert score.step_s <= before_s * (1 + 1e-12)
        faster += score.step_s < before_s * (1 - 1e-9)
    assert faster > 1
    assert newly > 1


def tight_stage(memory_bytes, forward_s=1.0):
    """Four replicated layers that keep 40 bytes and whose gradients fill 16 bytes each."""
    layers = [layer(forward_s, 0.1, 4, stash_bytes_per_sample=5.0) for _ in range(4)]
    where = cluster(2, memory_bytes=memory_bytes, intra_node=link(0.5, 100.0))
    job = Job(global_batch=4, optimizer="sgd", memory_headroom=0.0)
    return Predictor(workload(layers), where, job)


def test_a_stage_recomputes_only_where_smaller_buffers_cost_more_than_another_forward():
    layout = layout_of((0, 4), (2,), schedule="gpipe")
    ample = tight_stage(1e6)
    free = assemble(layout, ample, SPACE)
    needed_bytes = ample.score(free).peak_bytes
    for forward_s, recomputes in ((1.0, False), (0.01, True)):
        tight = tight_stage(needed_bytes - 1, forward_s)
        [stage] = assemble(layout, tight, SPACE).stages
        assert stage.recompute == recomputes
        assert (stage.groups == free.stages[0].groups) == recomputes


def test_other_policies_keep_within_memory_too():
    layout = layout_of((0, 4), (2,), policy="single", recompute="never")
    needed_bytes = tight_stage(1e6).score(assemble(layout, tight_stage(1e6), SPACE)).peak_bytes
    tight = tight_stage(needed_bytes - 1)
    plan = assemble(layout, tight, SPACE)
    assert isinstance(plan, Plan)
    assert len(plan.stages[0].groups) > 1
    assert tight.score(plan).feasible


def test_limits_of_the_space_hold_where_memory_is_short():
    rng = random.Random(43)
    space = dataclasses.replace(SPACE, max_groups=2)
    few = 0
    for _ in range(40):
        predictor, layout = random_tight(rng)
        for stage in assemble(layout, predictor, space).stages:
            assert len(stage.groups) <= 2
            few += len(stage.groups) == 2
    assert few > 0
