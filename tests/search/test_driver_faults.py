"""The driver is killed, interrupted and started several times; nothing acknowledged is lost."""

import json
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import alive, descendants, searched, searching, wait_until, working_islands
from search_invariants import acknowledged, check, num_acknowledged

from autoplan.search.experiment import load_experiment

_LEFTOVERS_S = 20


def kill_and_resume(path, num_kills, options, seed, longest_s=7.0):
    """Kills searches at random moments, then lets one end; returns its document."""
    experiment = load_experiment(path)
    storage, rng = experiment.default_storage, random.Random(seed)
    known = 0
    for _ in range(num_kills):
        with searching(path, *options) as process:
            time.sleep(rng.uniform(1.5, longest_s))
            started = descendants(process.pid)
            process.kill()
            process.wait()
            wait_until(lambda left=started: not alive(left), _LEFTOVERS_S, "nothing is left")
        found = acknowledged(storage)
        assert found >= known, "an acknowledged trial was lost"
        known = found
    code, out, err = searched(path, *options)
    assert code == 0, err
    document = json.loads(out)
    assert document["trials"] == num_acknowledged(storage) >= known
    check(storage, experiment)
    return document


def test_a_driver_killed_at_random_moments_is_resumed(unproven_path):
    document = kill_and_resume(unproven_path, 3, ("--trials", 60), seed=20, longest_s=5.0)
    assert document["trials"] == 60
    again = searched(unproven_path, "--trials", 60)
    assert again[0] == 0
    assert json.loads(again[1])["best"]["plan"] == document["best"]["plan"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_driver_killed_at_twenty_moments_is_resumed(unproven_path, workers):
    options = ("--trials", 600, "--workers", workers, "--seconds", 300)
    longest_s = 7.0 if workers == 1 else 22.0  # Ray takes ten seconds to start
    document = kill_and_resume(unproven_path, 20, options, workers, longest_s)
    assert document["trials"] == 600


def test_one_interrupt_drains_prints_the_best_plan_and_leaves_no_process(unproven_path, tmp_path):
    """Ray's processes do not inherit the database's URL either."""
    experiment = load_experiment(unproven_path)
    storage = f"sqlite:///{(tmp_path / 'chosen.db').as_posix()}"
    options = ("--workers", 2, "--trials", 100_000)
    with searching(unproven_path, *options, environment={"AUTOPLAN_STORAGE": storage}) as process:
        wait_until(lambda: acknowledged(storage) > 0, 90, "trials are acknowledged")
        working_islands(process)
        started = descendants(process.pid)
        for number in alive(started):
            environment = Path(f"/proc/{number}/environ").read_bytes()
            assert b"chosen.db" not in environment
            if "ray::" in started[number]:  # by which it is found when the driver was killed
                assert b"AUTOPLAN_RAY_OF=" in environment, started[number]
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    document = json.loads(out)
    assert document["stopped_by"] == "interrupted"
    assert document["trials"] == num_acknowledged(storage)
    assert Path(document["best"]["plan_path"]).exists()
    wait_until(lambda: not alive(started), _LEFTOVERS_S, "nothing is left")
    check(storage, experiment)


@pytest.mark.slow
def test_a_second_interrupt_stops_at_once_and_leaves_no_process(unproven_path):
    storage = load_experiment(unproven_path).default_storage
    with searching(unproven_path, "--workers", 2, "--trials", 100_000) as process:
        wait_until(lambda: acknowledged(storage) > 0, 90, "trials are acknowledged")
        workers = working_islands(process)
        started = descendants(process.pid)
        for number in workers:
            os.kill(number, signal.SIGSTOP)  # so that there is something to wait for
        process.send_signal(signal.SIGINT)
        time.sleep(2)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    wait_until(lambda: not alive(started), _LEFTOVERS_S, "nothing is left")
    check(storage, load_experiment(unproven_path))


def four_at_once(path, storage):
    """Four searches of the same experiment by other names; returns their documents."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                searching(
                    path, "--trials", 12, "--study", f"s{i}", "--output", path.parent / f"o{i}",
                    environment={"AUTOPLAN_STORAGE": storage},
                )
            )
            for i in range(4)
        ]  # fmt: skip
        ends = [process.communicate(timeout=180) for process in running]
        for process, (_, err) in zip(running, ends, strict=True):
            assert process.returncode == 0, err
    return [json.loads(out) for out, _ in ends]


def test_four_searches_started_at_once_on_one_fresh_database(unproven_path, tmp_path):
    storage = f"sqlite:///{(tmp_path / 'shared.db').as_posix()}"
    for i, document in enumerate(four_at_once(unproven_path, storage)):
        assert document["trials"] == num_acknowledged(storage, f"s{i}") == 12
        check(storage, load_experiment(unproven_path), f"s{i}")


@pytest.mark.slow
def test_four_searches_started_at_once_on_one_fresh_server(unproven_path, postgres_url):
    for i, document in enumerate(four_at_once(unproven_path, postgres_url)):
        assert document["trials"] == num_acknowledged(postgres_url, f"s{i}") == 12
        check(postgres_url, load_experiment(unproven_path), f"s{i}")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_restarted_and_stopped_in_mid_search_loses_nothing(
    unproven_path, postgres, postgres_url, workers
):
    from postgres_server import PASSWORD
    from search_invariants import files_with

    options = ("--workers", workers, "--trials", 100_000, "--seconds", 60)
    environment = {"AUTOPLAN_STORAGE": postgres_url}
    with searching(unproven_path, *options, environment=environment) as process:
        time.sleep(20)
        before = num_acknowledged(postgres_url)
        postgres.restart_at_once()
        time.sleep(5)
        postgres.stop()
        time.sleep(10)
        postgres.start()
        out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert before <= document["trials"] == num_acknowledged(postgres_url)
    check(postgres_url, load_experiment(unproven_path))
    assert PASSWORD not in out + err
    assert files_with(unproven_path.parent, PASSWORD) == []
