import random

import pytest

from autoplan.search.layout import assemble
from autoplan.search.proposal import Proposer
from autoplan.search.refine import neighbours
from autoplan.search.space import SearchSpace


class RandomTrial:
    """Draws every parameter at random, as a sampler without memory would."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.parameters = {}

    def suggest_int(self, name, low, high):
        return self.parameters.setdefault(name, self.random.randint(low, high))

    def suggest_categorical(self, name, choices):
        return self.parameters.setdefault(name, self.random.choice(choices))


SPACES = {
    "open": SearchSpace(),
    "equal": SearchSpace(equal_replicas=True, schedules=("1f1b",)),
    "fixed": SearchSpace(stages=(4,), replicas=(1,), microbatches=(8,), rank_orders=("stage",)),
    "balanced": SearchSpace(cuts="balanced", grouping=("threshold",), cap_bytes=(1e5, 1e7)),
    "uniform": SearchSpace(cuts="uniform", recompute=("always",)),
    "no-single-replica": SearchSpace(replicas=(2, 4)),
}


def proposer_of(experiment, space):
    return Proposer(experiment.workload, experiment.cluster, experiment.job, space)


@pytest.mark.parametrize("name", SPACES)
def test_every_combination_of_parameters_is_a_valid_plan_of_the_space(experiment, name):
    space = SPACES[name]
    proposer = proposer_of(experiment, space)
    predictor = proposer.predictor
    for seed in range(150):
        layout = proposer.layout(RandomTrial(seed))
        for candidate in (layout, *neighbours(layout, proposer)):
            plan = assemble(candidate, predictor, space)
            plan.require_fits(8, 4, 16)
            assert not space.stages or len(plan.stages) in space.stages
            assert not space.microbatches or plan.microbatches in space.microbatches
            assert not space.replicas or {s.replicas for s in plan.stages} <= set(space.replicas)
            assert plan.schedule in space.schedules
            assert plan.rank_order in space.rank_orders
            if space.equal_replicas:
                assert len({s.replicas for s in plan.stages}) == 1
            if space.recompute == ("always",):
                assert all(stage.recompute for stage in plan.stages)


def test_equal_parameters_give_equal_plans(experiment):
    proposer = proposer_of(experiment, SearchSpace())
    predictor = proposer.predictor
    first = assemble(proposer.layout(RandomTrial(7)), predictor, SearchSpace())
    again = assemble(proposer.layout(RandomTrial(7)), predictor, SearchSpace())
    assert first.sha256 == again.sha256


def test_moves_never_repeat_the_layout_they_start_from(experiment):
    proposer = proposer_of(experiment, SearchSpace())
    for seed in range(50):
        layout = proposer.layout(RandomTrial(seed))
        moves = list(neighbours(layout, proposer))
        assert layout not in moves
        assert len(set(moves)) == len(moves)


def test_recompute_where_needed_touches_only_stages_that_do_not_fit(experiment):
    import dataclasses

    device = dataclasses.replace(experiment.cluster.device, memory_bytes=7.5e7)
    cluster = dataclasses.replace(experiment.cluster, device=device)
    space = SearchSpace(recompute=("where-needed",), stages=(4,))
    proposer = Proposer(experiment.workload, cluster, experiment.job, space)
    predictor = proposer.predictor
    seen = set()
    for seed in range(60):
        plan = assemble(proposer.layout(RandomTrial(seed)), predictor, proposer.space)
        plain = tuple(dataclasses.replace(stage, recompute=False) for stage in plan.stages)
        without = predictor.predict(dataclasses.replace(plan, stages=plain))
        for stage, before in zip(plan.stages, without.stages, strict=True):
            assert stage.recompute == (before.memory.missing_bytes > 0)
            seen.add(stage.recompute)
    assert seen == {False, True}
