"""The driver of a search with several workers, with real islands in this process."""

import dataclasses

import pytest
from local_crew import LocalCrew
from search_invariants import check, num_acknowledged, stored_trials

from autoplan.errors import AutoplanError
from autoplan.plan import load_plan
from autoplan.results.database import Database
from autoplan.results.queries import leaders
from autoplan.results.search_recording import open_recording
from autoplan.search.archipelago import IslandSearch
from autoplan.search.crew import SURVEYOR
from autoplan.search.run import search
from autoplan.search.session import Session
from autoplan.storage.url import Storage


@pytest.fixture
def unproven(experiment):
    """Where a cap closes the groups no plan reaches the bound, so that trials end the search."""
    space = dataclasses.replace(experiment.space, grouping=("threshold",))
    return dataclasses.replace(experiment, space=space)


def searched(experiment, folder, *, trials=40, workers=3, on_progress=None, **options):
    """The result of a search by islands in this process, and its storage."""
    experiment = dataclasses.replace(experiment, output=folder)
    budget = dataclasses.replace(experiment.budget, trials=trials, workers=workers)
    storage = Storage.parse(experiment.default_storage)
    crews = []

    def make_crew(settings, interrupts):
        crews.append(LocalCrew(experiment, settings, **options))
        return crews[-1]

    with open_recording(storage, experiment, None, budget.seed) as recording:
        session = Session(experiment, budget, on_progress, recording)
        islands = IslandSearch(session, make_crew)
        session.open(storage, None)
        result = islands.run()
    assert all(crew.closed for crew in crews)
    return result, storage, crews


def plans(storage):
    """All plans that have a row, with their values."""
    with Database.open(storage) as database:
        rows = leaders(database, "small", limit=10_000)
    return sorted((row["plan_sha256"], row["objective_value_s"]) for row in rows)


def island_rows(storage):
    """What islands have told: island, number of the trial, plan and value."""
    with Database.open(storage) as database:
        rows = leaders(database, "small", limit=10_000)
    return sorted(
        (row["island"], row["trial_number"], row["plan_sha256"], row["objective_value_s"])
        for row in rows
        if row["island"] is not None
    )


def test_islands_do_exactly_the_trials_of_the_budget_and_find_what_one_worker_finds(
    unproven, tmp_path
):
    result, storage, _ = searched(unproven, tmp_path / "islands")
    alone = search(dataclasses.replace(unproven, output=tmp_path / "alone"))
    assert (result.trials, result.stopped_by) == (40, "trials")
    assert num_acknowledged(storage) == 40
    assert result.prediction.step_s <= alone.prediction.step_s * (1 + 1e-9)
    assert load_plan(result.plan_path) == result.plan
    assert result.baselines.keys() == alone.baselines.keys()
    ending = check(storage, unproven)
    assert ending["stopped_by"] == "trials"


def test_the_order_of_answers_changes_nothing(unproven, tmp_path):
    found = []
    for seed in range(3):
        result, storage, _ = searched(unproven, tmp_path / str(seed), seed=seed)
        found.append((result.plan.sha256, plans(storage)))
    assert found[0] == found[1] == found[2]


def test_another_seed_and_another_number_of_workers_propose_something_else(unproven, tmp_path):
    other = dataclasses.replace(unproven, budget=dataclasses.replace(unproven.budget, seed=1))
    rows = [
        island_rows(searched(unproven, tmp_path / "a")[1]),
        island_rows(searched(other, tmp_path / "b")[1]),
        island_rows(searched(unproven, tmp_path / "c", workers=2)[1]),
    ]
    assert rows[0] != rows[1]
    assert rows[0] != rows[2]


def test_islands_take_in_what_others_have_found(unproven, tmp_path):
    got = []

    class Listening(LocalCrew):
        def submit(self, worker, call):
            if worker != SURVEYOR:
                got.extend((worker, tried.island) for tried in call.arguments[0].immigrants)
            super().submit(worker, call)

    experiment = dataclasses.replace(unproven, output=tmp_path)
    budget = dataclasses.replace(unproven.budget, trials=90, workers=3)
    session = Session(experiment, budget)
    islands = IslandSearch(session, lambda settings, _: Listening(experiment, settings))
    session.open(None, None)
    islands.run()
    assert {to for to, _ in got} == {0, 1, 2}
    assert all(to != origin for to, origin in got)


@pytest.mark.parametrize("how", ["unheard", "unsaid", "repeated"])
def test_lost_and_repeated_answers_lose_and_double_no_trial(unproven, tmp_path, how):
    def loses(worker, number):
        return how if worker != SURVEYOR and number % 5 == 0 else None

    result, storage, _ = searched(unproven, tmp_path, loses=loses)
    assert result.trials == num_acknowledged(storage) == 40
    assert (result.workers_lost > 0) == (how != "repeated")
    rows = island_rows(storage)
    assert len({(island, number) for island, number, *_ in rows}) == len(rows)
    check(storage, unproven)


def test_an_island_that_always_dies_is_given_up_and_the_others_do_its_trials(unproven, tmp_path):
    def loses(worker, number):
        return "unheard" if worker == 1 else None

    result, storage, _ = searched(unproven, tmp_path, loses=loses)
    assert result.trials == num_acknowledged(storage) == 40
    assert result.workers_lost == 3
    assert {island for island, *_ in island_rows(storage)} == {0, 2}


def test_a_lost_surveyor_is_replaced(unproven, tmp_path):
    lost = []

    def loses(worker, number):
        if worker == SURVEYOR and len(lost) < 4 and len(lost) % 2 == 0:
            lost.append(number)
            return "unsaid"
        lost.append(number) if worker == SURVEYOR else None
        return None

    result, _, _ = searched(unproven, tmp_path, loses=loses)
    assert result.trials == 40
    assert all(found is not None for found in result.baselines.values())


def test_the_loss_of_all_workers_ends_the_search_in_one_line(unproven, tmp_path):
    def loses(worker, number):
        return "unheard" if worker != SURVEYOR else None

    with pytest.raises(AutoplanError, match="every worker was lost"):
        searched(unproven, tmp_path, loses=loses)


def test_a_study_of_islands_is_carried_on_and_then_only_read(unproven, tmp_path):
    first, storage, _ = searched(unproven, tmp_path, trials=12)
    second, _, _ = searched(unproven, tmp_path, trials=30)
    assert (first.trials, second.trials) == (12, 30)
    assert second.prediction.step_s <= first.prediction.step_s
    rows = len(stored_trials(storage).get_trials())
    third, _, crews = searched(unproven, tmp_path, trials=30)
    assert (third.trials, third.stopped_by, crews) == (30, "trials", [])
    assert third.plan == second.plan
    assert third.lower_bound == second.lower_bound
    assert len(stored_trials(storage).get_trials()) == rows
    check(storage, unproven)


def test_one_worker_carries_a_study_of_islands_on(unproven, tmp_path):
    searched(unproven, tmp_path, trials=12)
    experiment = dataclasses.replace(unproven, output=tmp_path)
    budget = dataclasses.replace(unproven.budget, trials=20)
    assert search(experiment, budget=budget).trials == 20


def test_interrupting_drains_and_keeps_what_was_told(unproven, tmp_path):
    def interrupt(progress):
        if progress.trials >= 9:
            raise KeyboardInterrupt

    result, storage, _ = searched(unproven, tmp_path, on_progress=interrupt)
    assert result.stopped_by == "interrupted"
    assert 9 <= result.trials == num_acknowledged(storage) < 40
    check(storage, unproven)


def test_defaults_are_looked_at_however_short_the_time(unproven, tmp_path):
    hasty = dataclasses.replace(unproven, budget=dataclasses.replace(unproven.budget, seconds=1e-6))
    result, _, _ = searched(hasty, tmp_path)
    assert result.stopped_by == "time"
    for name, prediction in result.baselines.items():
        assert prediction is None or result.prediction.step_s <= prediction.step_s, name


def test_an_optimal_plan_ends_the_search(experiment, tmp_path):
    exact = dataclasses.replace(
        experiment, budget=dataclasses.replace(experiment.budget, exhaustive_plans=1_500_000)
    )
    result, _, _ = searched(exact, tmp_path, trials=10_000)
    assert (result.stopped_by, result.gap) == ("optimal", 0)
    again, _, crews = searched(exact, tmp_path, trials=10_000)
    assert (again.stopped_by, again.plan, crews) == ("optimal", result.plan, [])
