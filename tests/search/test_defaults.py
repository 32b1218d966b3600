"""What people use today beside a search whose space excludes it: compared, never its best plan."""

import dataclasses

import pytest

from autoplan.pipeline.partition import uniform_bounds
from autoplan.results.database import Database
from autoplan.results.queries import leaders, list_experiments
from autoplan.results.search_recording import open_recording
from autoplan.search.heuristics import baselines, lies_within, starting_layouts
from autoplan.search.proposal import Proposer
from autoplan.search.run import search
from autoplan.search.space import SearchSpace
from autoplan.search.study_plans import best_plans
from autoplan.storage.url import Storage


def spaced(experiment, **space):
    """Another space."""
    return dataclasses.replace(experiment, space=SearchSpace(**space))


def recorded(experiment):
    """A search's result, and what the database lists and shows of it."""
    storage = Storage.parse(experiment.default_storage)
    with open_recording(storage, experiment, None, 0) as recording:
        result = search(experiment, recording=recording)
    with Database.open(storage) as database:
        (summary,) = list_experiments(database)
        return result, summary, leaders(database, "small")


def found(experiment):
    proposer = Proposer(experiment.workload, experiment.cluster, experiment.job, experiment.space)
    return [each for each in baselines(proposer).values() if each]


def test_a_default_that_the_space_excludes_is_compared_and_not_the_best(experiment):
    """All stages recompute, as no default does, which makes each of them slower."""
    slow = spaced(experiment, recompute=("always",))
    result, summary, rows = recorded(slow)
    default_s = min(each.step_s for each in result.baselines.values() if each)
    assert default_s < result.prediction.step_s
    assert all(stage.recompute for stage in result.plan.stages)
    assert summary.best_value_s == summary.best_predicted_step_s == result.value
    assert summary.gap == pytest.approx(result.gap)
    outside = [row for row in rows if row["proposed_by"].endswith("(outside the space)")]
    assert min(row["objective_value_s"] for row in outside) == default_s
    for plan in best_plans(slow, 3).values():
        assert all(stage.recompute for stage in plan.stages)


def test_a_default_of_the_space_keeps_its_name(experiment):
    _, summary, rows = recorded(experiment)
    names = {row["proposed_by"] for row in rows}
    assert "data-parallel" in names
    assert not any(name.endswith("(outside the space)") for name in names)
    assert summary.best_value_s == rows[0]["objective_value_s"]


def test_a_space_of_uniform_cuts_starts_from_no_other_cuts(experiment):
    uniform = spaced(experiment, stages=(4,), cuts="uniform")
    starts = starting_layouts(found(uniform), uniform.space)
    assert [layout.bounds for layout in starts] == [
        uniform_bounds(len(uniform.workload.layers), len(layout.replicas)) for layout in starts
    ]
    result, *_ = recorded(uniform)
    bounds = [stage.layers[0] for stage in result.plan.stages]
    layers, stages = len(uniform.workload.layers), len(result.plan.stages)
    assert bounds == list(uniform_bounds(layers, stages))[:-1]
    balanced_s = result.baselines["balanced-compute"].step_s
    assert balanced_s < result.baselines["uniform-layers"].step_s


@pytest.mark.parametrize(
    ("space", "within"),
    [
        ({}, True),
        ({"schedules": ("gpipe",)}, False),
        ({"recompute": ("always",)}, False),
        ({"recompute": ("where-needed",)}, True),
        ({"grouping": ("threshold",)}, True),
        ({"grouping": ("layerwise",)}, False),
        ({"grouping": ("threshold",), "cap_bytes": (1e6,)}, False),
        ({"densities": (0.01,)}, False),
        ({"max_groups": 1}, False),
        ({"cuts": "uniform"}, False),
        ({"cuts": "balanced"}, True),
    ],
)
def test_what_lies_within_a_space(experiment, space, within):
    chosen = spaced(experiment, **space)
    defaults = {each.name: each for each in found(chosen)}
    pipeline = defaults["balanced-compute"]
    assert len(pipeline.layout.replicas) > 1
    assert lies_within(pipeline, chosen.space) is within
