"""Workers as Ray actors: the same trials as in this process, and what happens when they die."""

import dataclasses
import os
import signal
import time

import pytest
from local_crew import LocalCrew
from processes import ISLAND, SURVEYOR, named, searched, wait_until
from search_invariants import check, num_acknowledged

from autoplan.results.search_recording import open_recording
from autoplan.search import crew, run
from autoplan.search.archipelago import IslandSearch
from autoplan.search.front_archipelago import FrontIslandSearch
from autoplan.search.interrupts import Interrupts
from autoplan.search.island import IslandSetting, Step
from autoplan.search.ray_crew import RayCrew
from autoplan.search.session import Session
from autoplan.storage.url import Storage


@pytest.fixture
def unproven(experiment):
    """Where a cap closes the groups no plan reaches the bound, so that trials end the search."""
    space = dataclasses.replace(experiment.space, grouping=("threshold",))
    return dataclasses.replace(experiment, space=space)


@pytest.fixture
def two_objectives(experiment):
    """Step time and memory, with time enough for trials to end the search."""
    budget = dataclasses.replace(experiment.budget, seconds=300.0)
    return dataclasses.replace(experiment, objective="step_time_and_memory", budget=budget)


@pytest.fixture
def two_workers(ray_cluster, unproven):
    """A crew of two islands."""
    settings = [IslandSetting(number=i, islands=2, seed=0, generation=4) for i in range(2)]
    workers = RayCrew(unproven, settings, None, Interrupts())
    yield workers
    workers.close()


def step(first=0, **changes):
    return dataclasses.replace(
        Step(first=first, trials=2, seconds=60, seconds_left=60, keep=2), **changes
    )


def call(arguments, limit_s=60.0):
    return crew.Call(method="step", arguments=arguments, limit_s=limit_s)


def next_event(workers, seconds=90):
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if events := workers.wait(0.2):
            return events[0]
    raise AssertionError("nothing has happened")


def searched_here(experiment, folder, workers=2, trials=24, on_progress=None):
    """A search by Ray actors: the result and its storage."""
    moved = dataclasses.replace(experiment, output=folder)
    budget = dataclasses.replace(moved.budget, trials=trials, workers=workers)
    storage = Storage.parse(moved.default_storage)
    with open_recording(storage, moved, None, budget.seed) as recording:
        result = run.search(moved, budget=budget, recording=recording, on_progress=on_progress)
    return result, storage


def test_actors_find_what_the_same_islands_find_in_this_process(ray_cluster, unproven, tmp_path):
    result, storage = searched_here(unproven, tmp_path / "ray")
    moved = dataclasses.replace(unproven, output=tmp_path / "here")
    session = Session(moved, dataclasses.replace(moved.budget, trials=24, workers=2))
    islands = IslandSearch(session, lambda settings, _: LocalCrew(moved, settings))
    session.open(None, None)
    here = islands.run()
    assert (result.trials, result.stopped_by) == (here.trials, here.stopped_by) == (24, "trials")
    assert result.plan == here.plan
    assert result.lower_bound == here.lower_bound
    assert num_acknowledged(storage) == 24
    check(storage, unproven)
    ended = lambda: not named(os.getpid(), ISLAND) + named(os.getpid(), SURVEYOR)  # noqa: E731
    wait_until(ended, 20, "the end of all actors, which Ray ends in its own time")


def test_a_worker_killed_in_mid_step_is_replaced_and_no_trial_is_lost(
    ray_cluster, unproven, tmp_path
):
    killed = []

    def kill(progress):
        working = named(os.getpid(), f"{ISLAND}.step")
        if working and progress.trials >= 4 and len(killed) < 2:
            killed.append(working[0])
            os.kill(working[0], signal.SIGKILL)

    result, storage = searched_here(unproven, tmp_path, trials=150, on_progress=kill)
    assert len(killed) == 2
    assert result.workers_lost == 2
    assert result.trials == num_acknowledged(storage) == 150
    check(storage, unproven)


def test_actors_find_the_front_that_the_same_islands_find_in_this_process(
    ray_cluster, two_objectives, tmp_path
):
    result, storage = searched_here(two_objectives, tmp_path / "ray")
    moved = dataclasses.replace(two_objectives, output=tmp_path / "here")
    session = Session(moved, dataclasses.replace(moved.budget, trials=24, workers=2))
    islands = FrontIslandSearch(session, lambda settings, _: LocalCrew(moved, settings))
    session.open(None, None)
    here = islands.run()
    assert (result.trials, result.stopped_by) == (here.trials, here.stopped_by) == (24, "trials")
    assert [point.plan for point in result.front] == [point.plan for point in here.front]
    assert num_acknowledged(storage) == 24


def test_a_worker_killed_in_a_search_for_a_front_is_replaced(ray_cluster, two_objectives, tmp_path):
    killed = []

    def kill(progress):
        working = named(os.getpid(), f"{ISLAND}.step")
        if working and progress.trials >= 2 and not killed:
            killed.append(working[0])
            os.kill(working[0], signal.SIGKILL)

    result, storage = searched_here(two_objectives, tmp_path, trials=40, on_progress=kill)
    assert len(killed) == result.workers_lost == 1
    assert result.trials == num_acknowledged(storage) == 40
    assert len(result.front) >= 3


def test_a_call_that_is_not_answered_in_time_is_a_loss_and_the_worker_is_replaced(two_workers):
    two_workers.submit(0, call((step(),)))
    assert next_event(two_workers).value.done == 2
    stopped = named(os.getpid(), ISLAND)
    for number in stopped:
        os.kill(number, signal.SIGSTOP)
    two_workers.submit(0, call((step(first=2),), limit_s=0.5))
    lost = next_event(two_workers)
    assert lost == crew.Lost(worker=0, reason="it did not answer in time", died=False)
    for number in stopped:
        os.kill(number, signal.SIGCONT)
    two_workers.submit(0, call((step(first=2),)))
    assert next_event(two_workers).value.first == 2


def test_a_call_for_which_there_is_no_place_is_a_loss_after_its_time(ray_cluster, unproven):
    settings = [IslandSetting(number=i, islands=3, seed=0, generation=4) for i in range(3)]
    workers = RayCrew(unproven, settings, None, Interrupts())
    try:
        for number in range(3):
            workers.submit(number, call((step(),), limit_s=120.0 if number < 2 else 5.0))
        events = [next_event(workers) for _ in range(3)]
    finally:
        workers.close()
    lost = [event for event in events if isinstance(event, crew.Lost)]
    assert [(event.worker, event.died) for event in lost] == [(2, False)]


def test_what_a_worker_raises_is_raised_here(two_workers):
    two_workers.submit(1, call(("no step",)))
    with pytest.raises(AttributeError):
        next_event(two_workers)


def test_workers_see_no_gpu_and_no_database(ray_cluster, monkeypatch, two_workers):
    two_workers.submit(0, call((step(),)))
    next_event(two_workers)
    (number,) = named(os.getpid(), ISLAND)
    # What a process has set itself is not in /proc: the actor's own view is asked for.
    actor = two_workers._actors[0]
    import ray

    seen = ray.get(actor.__ray_call__.remote(lambda _: os.environ.get("CUDA_VISIBLE_DEVICES")))
    assert seen == ""
    assert number


def test_an_address_without_a_cluster_is_one_line(experiment_path):
    code, out, err = searched(experiment_path, "--workers", 2, "--ray-address", "127.0.0.1:1")
    assert (code, out) == (2, "")
    line = err.strip().splitlines()[-1]
    assert line.startswith("autoplan: --ray-address: found 127.0.0.1:1; allowed: the address of")
    assert "Traceback" not in err
