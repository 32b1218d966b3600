"""What a search does once: the order of what a new study begins with."""

import dataclasses

import pytest
from builders import workload
from local_crew import LocalCrew

from autoplan.search.archipelago import IslandSearch
from autoplan.search.crew import SURVEYOR
from autoplan.search.experiment import Budget
from autoplan.search.session import Session
from autoplan.search.space import SearchSpace
from autoplan.search.survey import Outline, opening


def outline(*, quickly=True):
    return Outline(
        baselines={},
        proposals=(),
        quick_bound=1.0,
        step_bound_s=1.0,
        certifies_quickly=True,
        balances_loads_quickly=quickly,
    )


def opened(objective, *, quickly=True, plan=True, proven=False):
    parts = opening(objective, outline(quickly=quickly), lambda: plan, lambda: proven)
    return [part.proposed_by for part in parts]


def test_the_step_is_swept_first_and_loads_are_balanced_where_that_is_quick_or_needed():
    assert opened("step_time") == ["sweep", "bound"]
    assert opened("step_time", quickly=False) == ["sweep"]
    assert opened("step_time", quickly=False, plan=False) == ["sweep", "bound"]


@pytest.mark.parametrize("objective", ["max_stage_load", "throughput_per_device"])
def test_other_figures_begin_near_their_bound_and_sweep_unless_it_is_reached(objective):
    assert opened(objective, quickly=False) == ["bound", "sweep"]
    assert opened(objective, proven=True) == ["bound"]


@pytest.mark.parametrize(("copies", "parts"), [(1, ["sweep", "near_bound"]), (80, ["sweep"])])
def test_islands_balance_the_loads_of_many_layers_only_where_nothing_fits(
    experiment, copies, parts, tmp_path
):
    asked = []

    class Listening(LocalCrew):
        def submit(self, worker, call):
            if worker == SURVEYOR:
                asked.append(call.arguments[0])
            super().submit(worker, call)

    # Smaller layers where there are more, so that as many fit.
    layers = [
        dataclasses.replace(
            layer,
            gradient_elements=layer.gradient_elements // copies,
            parameter_bytes=layer.parameter_bytes / copies,
            stash_bytes_per_sample=layer.stash_bytes_per_sample / copies,
        )
        for layer in experiment.workload.layers * copies
    ]
    experiment = dataclasses.replace(
        experiment,
        workload=workload(layers, [0.0, *[4e5] * (len(layers) - 1), 0.0]),
        space=SearchSpace(stages=(2,), grouping=("threshold",)),
        budget=Budget(trials=4, seconds=120.0, workers=2, exhaustive_plans=0),
        output=tmp_path,
    )
    session = Session(experiment, experiment.budget)
    islands = IslandSearch(session, lambda settings, _: Listening(experiment, settings))
    session.open(None, None)
    islands.run()
    assert session.best is not None
    assert [part for part in asked if part in ("sweep", "near_bound")] == parts
