"""The driver of a search for a front with several workers, with real islands in this process."""

import dataclasses
import random

import pytest
from local_crew import LocalCrew
from search_invariants import num_acknowledged, stored_trials
from small_instances import SPACE, every_front, front_of, random_experiment

from autoplan.errors import AutoplanError
from autoplan.plan import load_plan
from autoplan.prediction import ROUNDING
from autoplan.results.search_recording import open_recording
from autoplan.search.crew import SURVEYOR
from autoplan.search.experiment import Budget
from autoplan.search.front_archipelago import FrontIslandSearch
from autoplan.search.run import search
from autoplan.search.session import Session
from autoplan.storage.url import Storage


@pytest.fixture
def two(experiment):
    """Two objectives; the budget is that of all workers together."""
    budget = dataclasses.replace(experiment.budget, trials=48, seconds=300.0)
    return dataclasses.replace(experiment, objective="step_time_and_memory", budget=budget)


def searched(experiment, folder, *, workers=2, on_progress=None, crew=LocalCrew, **options):
    """The result of a search by islands in this process, its storage and its crews."""
    experiment = dataclasses.replace(experiment, output=folder)
    budget = dataclasses.replace(experiment.budget, workers=workers)
    storage = Storage.parse(experiment.default_storage)
    crews = []

    def make_crew(settings, interrupts):
        crews.append(crew(experiment, settings, **options))
        return crews[-1]

    with open_recording(storage, experiment, None, budget.seed) as recording:
        session = Session(experiment, budget, on_progress, recording)
        islands = FrontIslandSearch(session, make_crew)
        session.open(storage, None)
        result = islands.run()
    assert all(each.closed for each in crews)
    return result, storage, crews


def figures(result):
    return [(p.prediction.step_s, p.prediction.peak_bytes) for p in result.front]


def plans(result):
    return [point.plan.sha256 for point in result.front]


def least_step_s(points, peak_bytes):
    """The shortest step of a front within so much memory."""
    fitting = [step_s for step_s, peak in points if peak <= peak_bytes * (1 + ROUNDING)]
    return min(fitting, default=float("inf"))


def covers(points, others):
    """Whether for each of the others a point is as good in both, to rounding."""
    return all(
        least_step_s(points, peak_bytes) <= step_s * (1 + ROUNDING) for step_s, peak_bytes in others
    )


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_small_front_equals_that_of_all_plans(seed, workers, tmp_path):
    experiment = random_experiment(random.Random(seed), tmp_path, objective="step_time_and_memory")
    experiment = dataclasses.replace(
        experiment,
        budget=Budget(trials=100 * workers, seconds=300.0),
        space=dataclasses.replace(SPACE, recompute=("never",)),
    )
    wanted = every_front(experiment)
    result, *_ = searched(experiment, tmp_path, workers=workers)
    assert figures(result) == [pytest.approx(point, rel=1e-8) for point in wanted]
    assert result.stopped_by == "closed"
    assert result.workers == workers


def test_two_workers_find_all_that_one_finds_with_as_many_trials_each(two, tmp_path):
    result, *_ = searched(two, tmp_path / "islands")
    half = dataclasses.replace(two.budget, trials=two.budget.trials // 2)
    alone = search(dataclasses.replace(two, output=tmp_path / "alone"), budget=half)
    assert covers(figures(result), figures(alone))
    assert front_of(figures(result)) == figures(result)
    assert result.baselines.keys() == alone.baselines.keys()
    assert load_plan(result.plan_path) == result.plan == result.front[0].plan
    for point in result.front:
        assert load_plan(point.plan_path) == point.plan
        assert point.lower_bound_s <= point.prediction.step_s * (1 + ROUNDING)


def test_the_order_of_answers_changes_nothing(two, tmp_path):
    results = [searched(two, tmp_path / str(seed), workers=3, seed=seed)[0] for seed in range(2)]
    assert plans(results[0]) == plans(results[1])
    assert len({result.trials for result in results}) == 1


def test_islands_take_in_points_and_limits_that_others_have_found(two, tmp_path):
    got = {0: [], 1: []}

    class Listening(LocalCrew):
        def submit(self, worker, call):
            if worker != SURVEYOR:
                got[worker].append(call.arguments[0].news)
            super().submit(worker, call)

    searched(two, tmp_path, crew=Listening)
    for news in got.values():
        assert any(each.points for each in news)
        assert any(each.searched for each in news)
        assert all(not each.points for each in news if each.round == 0)


@pytest.mark.parametrize("how", ["unheard", "unsaid", "repeated"])
def test_lost_and_repeated_answers_lose_and_double_no_trial(two, tmp_path, how):
    def loses(worker, number):
        return how if worker != SURVEYOR and number % 6 == 0 else None

    result, storage, _ = searched(two, tmp_path / "lost", loses=loses)
    assert result.trials == num_acknowledged(storage)
    assert result.trials <= two.budget.trials
    assert (result.workers_lost > 0) == (how != "repeated")
    whole, *_ = searched(two, tmp_path / "whole")
    assert covers(figures(result), figures(whole)[:1])
    rows = [trial.user_attrs["row"] for trial in stored_trials(storage).get_trials()]
    assert len(rows) == len(set(rows))


def test_an_island_that_always_dies_is_given_up(two, tmp_path):
    def loses(worker, number):
        return "unheard" if worker == 1 else None

    result, storage, _ = searched(two, tmp_path, loses=loses)
    assert result.workers_lost == 3
    assert result.trials == num_acknowledged(storage)
    assert len(result.front) >= 3


def test_the_loss_of_all_workers_ends_the_search_in_one_line(two, tmp_path):
    def loses(worker, number):
        return "unheard" if worker != SURVEYOR else None

    with pytest.raises(AutoplanError, match="every worker was lost"):
        searched(two, tmp_path, loses=loses)


def test_the_front_is_in_the_database_and_a_finished_study_is_only_read(two, tmp_path):
    result, storage, _ = searched(two, tmp_path)
    stored = stored_trials(storage).get_trials()
    pairs = {tuple(trial.values) for trial in stored}
    assert {(p.prediction.step_s, p.prediction.peak_bytes) for p in result.front} <= pairs
    again, _, crews = searched(two, tmp_path)
    assert crews == []
    assert plans(again) == plans(result)
    assert (again.trials, again.stopped_by) == (result.trials, result.stopped_by)
    assert len(stored_trials(storage).get_trials()) == len(stored)


def test_interrupting_keeps_the_front_and_the_same_command_goes_on(two, tmp_path):
    def interrupt(progress):
        if progress.points >= 3:
            raise KeyboardInterrupt

    first, storage, _ = searched(two, tmp_path, on_progress=interrupt)
    assert first.stopped_by == "interrupted"
    assert first.trials == num_acknowledged(storage) < two.budget.trials
    again, _, crews = searched(two, tmp_path)
    assert len(crews) == 1
    assert again.trials > first.trials
    assert covers(figures(again), figures(first))
    saved = sorted((tmp_path / "front").iterdir())
    assert saved == [point.plan_path for point in again.front]


def test_one_worker_carries_a_study_of_islands_on(two, tmp_path):
    few = dataclasses.replace(two, budget=dataclasses.replace(two.budget, trials=20))
    first, *_ = searched(few, tmp_path)
    more = dataclasses.replace(two.budget, trials=40)
    result = search(dataclasses.replace(two, output=tmp_path), budget=more)
    assert covers(figures(result), figures(first))


def test_progress_tells_the_size_of_the_front_and_the_least_memory(two, tmp_path):
    seen = []
    result, *_ = searched(two, tmp_path, on_progress=seen.append)
    last = seen[-1]
    assert last.workers == 2
    assert last.points >= len(result.front)
    assert last.best_s == result.prediction.step_s
    assert last.least_bytes == result.front[-1].prediction.peak_bytes


def test_defaults_are_looked_at_however_short_the_time(two, tmp_path):
    hasty = dataclasses.replace(two, budget=dataclasses.replace(two.budget, seconds=1e-6))
    result, *_ = searched(hasty, tmp_path)
    assert result.stopped_by == "time"
    for name, prediction in result.baselines.items():
        assert prediction is None or result.prediction.step_s <= prediction.step_s, name


def test_a_search_that_trials_end_does_not_depend_on_its_time(two, tmp_path):
    fronts = []
    for seconds in (300.0, 3000.0):
        budget = dataclasses.replace(two.budget, trials=24, seconds=seconds)
        timed = dataclasses.replace(two, output=tmp_path / f"{seconds:g}", budget=budget)
        result = search(timed)
        assert result.stopped_by == "trials"
        fronts.append(plans(result))
    assert fronts[0] == fronts[1]


def test_a_finished_front_of_one_worker_is_only_read(two, tmp_path):
    few = dataclasses.replace(two.budget, trials=24)
    two = dataclasses.replace(two, output=tmp_path, budget=few)
    result = search(two)
    again = search(two)
    assert plans(again) == plans(result)
    assert again.stopped_by == result.stopped_by
