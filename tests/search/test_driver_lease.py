"""Commands that search one study at the same time: one is let in, nothing is lost or doubled."""

import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa
from processes import alive, descendants, searched, searching, wait_until
from search_invariants import check, num_acknowledged, stored_trials

from autoplan.cli.main import main
from autoplan.errors import StorageError
from autoplan.results import lease, schema
from autoplan.results.database import Database
from autoplan.search.experiment import load_experiment
from autoplan.storage.retry import RetryPolicy
from autoplan.storage.url import Storage

LEASES = schema.search_leases
WATCH_S = lease.LOOKS * lease.LOOK_S
TRIALS = 1500
"""So many that the second command starts before they are done."""


@pytest.fixture
def storage(unproven_path):
    return load_experiment(unproven_path).default_storage


def holders(storage):
    """Process numbers in the leases of a database."""
    if (path := Storage.of(storage).path) and not path.exists():
        return []
    with Database.open(storage) as database:
        return database.read(lambda c: c.scalars(sa.select(LEASES.c.pid)).all())


def under_way(storage):
    """Waits until a search has written something."""

    def begun():
        try:
            return holders(storage) and num_acknowledged(storage)
        except (KeyError, StorageError):  # being made
            return False

    wait_until(begun, 90, "trials are acknowledged")


def test_of_two_commands_one_is_refused_and_the_other_finds_all(unproven_path, storage, capsys):
    with searching(unproven_path, "--trials", TRIALS) as first:
        under_way(storage)
        assert holders(storage) == [first.pid]
        before = num_acknowledged(storage)
        code, out, err = searched(unproven_path, "--trials", TRIALS)
        assert first.poll() is None, "the first one ended too early for this test"
        assert main(["results", "list", "--storage", storage]) == 0
        first_out, first_err = first.communicate(timeout=120)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1, err
    assert f"process {first.pid} on " in err
    assert first.returncode == 0, first_err
    assert json.loads(first_out)["trials"] == num_acknowledged(storage) == TRIALS > before
    runs = {t.user_attrs["row"].partition("-")[0] for t in stored_trials(storage).get_trials()}
    assert len(runs) == 1, "the refused command wrote something"
    check(storage, load_experiment(unproven_path))
    assert holders(storage) == []


def test_of_four_started_at_once_one_is_let_in_and_a_finished_study_lets_all_read(
    unproven_path, tmp_path
):
    storage = f"sqlite:///{(tmp_path / 'shared.db').as_posix()}"
    environment = {"AUTOPLAN_STORAGE": storage}

    def start(stack, number, trials):
        return [
            stack.enter_context(
                searching(unproven_path, "--trials", trials, environment=environment)
            )
            for _ in range(number)
        ]

    with ExitStack() as stack:
        four = start(stack, 4, 100_000)
        wait_until(lambda: sum(p.poll() is None for p in four) == 1, 120, "three have ended")
        (left,) = [process for process in four if process.poll() is None]
        for process in four:
            if process is not left:
                _, err = process.communicate()
                assert process.returncode == 2, err
                assert f"process {left.pid} on " in err
        under_way(storage)
        left.send_signal(signal.SIGINT)
        _, err = left.communicate(timeout=60)
        assert left.returncode == 130, err
    known = num_acknowledged(storage)
    assert searched(unproven_path, "--trials", known, environment=environment)[0] == 0
    with ExitStack() as stack:
        for process in start(stack, 2, known):
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            assert json.loads(out)["trials"] == known
    assert num_acknowledged(storage) == known
    check(storage, load_experiment(unproven_path))


def test_a_killed_search_is_carried_on_without_a_wait(unproven_path, storage):
    with searching(unproven_path, "--trials", 100_000) as first:
        under_way(storage)
        first.kill()
        first.wait()
    known = num_acknowledged(storage)
    assert holders(storage) == [first.pid]
    code, out, err = searched(unproven_path, "--trials", known + 5)
    assert code == 0, err
    assert "looking" not in err
    assert json.loads(out)["trials"] == num_acknowledged(storage) == known + 5
    check(storage, load_experiment(unproven_path))


def test_an_interrupted_search_gives_its_study_back(unproven_path, storage):
    with searching(unproven_path, "--trials", 100_000) as process:
        under_way(storage)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert holders(storage) == []


def suspended_outside_writes(process, storage):
    """Suspends a search at a moment at which it does not lock the file."""

    def stopped():
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with Database.open(storage, retry=RetryPolicy(budget_s=0.0)) as database:
                database.write(lambda c: c.execute(sa.update(LEASES).values(pid=LEASES.c.pid)))
        except StorageError:
            os.kill(process.pid, signal.SIGCONT)
            return False
        return True

    wait_until(stopped, 60, "it is suspended and writes nothing")


def suspended_and_followed(path, storage, *options):
    """Suspends a search, lets another end its study, wakes the first."""
    environment = {"AUTOPLAN_STORAGE": storage}
    with searching(path, *options, "--trials", 100_000, environment=environment) as first:
        under_way(storage)
        suspended_outside_writes(first, storage)
        known = num_acknowledged(storage)
        started_s = time.monotonic()
        code, out, err = searched(path, "--trials", known + 40, environment=environment)
        assert time.monotonic() - started_s > WATCH_S
        assert code == 0, err
        assert f"taken over from process {first.pid}" in err
        assert json.loads(out)["trials"] == num_acknowledged(storage) == known + 40
        before = [t.user_attrs["row"] for t in stored_trials(storage).get_trials()]
        plan = Path(json.loads(out)["best"]["plan_path"])
        saved = plan.read_bytes()
        started = descendants(first.pid)
        os.kill(first.pid, signal.SIGCONT)
        _, err = first.communicate(timeout=60)
        wait_until(lambda: not alive(started), 20, "nothing is left")
    assert first.returncode == 6, err
    (line,) = [line for line in err.splitlines() if line.startswith("autoplan: ")]
    assert "taken over by another search" in line
    assert "Traceback" not in err
    after = [t.user_attrs["row"] for t in stored_trials(storage).get_trials()]
    assert before == after
    assert plan.read_bytes() == saved
    check(storage, load_experiment(path))


@pytest.mark.slow
def test_a_suspended_search_that_was_followed_ends_and_writes_nothing(unproven_path, storage):
    suspended_and_followed(unproven_path, storage)


@pytest.mark.slow
def test_a_suspended_search_on_a_server_ends_and_writes_nothing(unproven_path, postgres_url):
    suspended_and_followed(unproven_path, postgres_url)


@pytest.mark.slow
def test_a_suspended_search_with_workers_ends_with_them(unproven_path, storage):
    suspended_and_followed(unproven_path, storage, "--workers", 2)


@pytest.mark.slow
def test_a_search_with_workers_keeps_others_out(unproven_path, storage):
    with searching(unproven_path, "--workers", 2, "--trials", 100_000, "--seconds", 40) as first:
        under_way(storage)
        for workers in (1, 2):
            code, _, err = searched(unproven_path, "--workers", workers)
            assert code == 2, err
            assert f"process {first.pid} on " in err
        out, err = first.communicate(timeout=120)
    assert first.returncode == 0, err
    assert json.loads(out)["trials"] == num_acknowledged(storage)
    check(storage, load_experiment(unproven_path))
