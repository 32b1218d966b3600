"""Every operation of a search's recording fails once: what was acknowledged is there, once."""

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from scored_plans import batch

from autoplan.errors import StorageError
from autoplan.results import schema
from autoplan.results.database import Database
from autoplan.results.queries import leaders, list_experiments
from autoplan.results.recorder import Outcome, SearchRecorder, SpooledError
from autoplan.storage.retry import RetryPolicy

TESTS = Path(__file__).resolve().parents[1]
ONE_TRY = RetryPolicy(budget_s=0)
QUICK = RetryPolicy(budget_s=20, first_wait_s=0.001, longest_wait_s=0.01)


class FailingOperation:
    """Raises an error in place of the k-th statement or commit of any engine."""

    def __init__(self, k, error):
        self.k, self.error, self.count = k, error, 0

    def __call__(self, *_):
        self.count += 1
        if self.count == self.k:
            raise self.error

    @contextlib.contextmanager
    def injected(self):
        names = ("before_cursor_execute", "commit")
        for name in names:
            sa.event.listen(sa.Engine, name, self)
        try:
            yield self
        finally:
            for name in names:
                sa.event.remove(sa.Engine, name, self)


def record(storage, experiment, retry, acknowledged):
    """Two batches; `acknowledged` hears of each that is safe."""
    with SearchRecorder.open(storage, experiment, retry=retry) as recorder:
        for number in range(2):
            recorder.scores(batch(number))
            acknowledged.add(number)
        recorder.finish(Outcome(stopped_by="trials", num_trials=14))


def stored(storage):
    """The numbers of the batches in a database, which must be whole."""
    with Database.open(storage) as database:
        hashes = [
            row["plan_sha256"]
            for summary in list_experiments(database)
            for row in leaders(database, summary.name)
        ]
    assert len(hashes) == len(set(hashes))
    found = set()
    for number in range(3):
        there = {each.plan.sha256 for each in batch(number)} & set(hashes)
        assert len(there) in (0, 7), f"part of batch {number}"
        found |= {number} if there else set()
    return found


def full():
    cause = sqlite3.OperationalError("database or disk is full")
    return sa.exc.OperationalError("insert", {}, cause)


def locked():
    return sa.exc.OperationalError("begin", {}, sqlite3.OperationalError("database is locked"))


@pytest.mark.parametrize("make_error", [full, KeyboardInterrupt], ids=["full", "interrupted"])
def test_whatever_operation_fails_for_good_no_acknowledged_batch_is_lost_or_doubled(
    tmp_path, experiment, make_error
):
    k = 0
    while True:
        k += 1
        storage = f"sqlite:///{tmp_path / f'{k}.db'}"
        acknowledged = set()
        fault = FailingOperation(k, make_error())
        with contextlib.suppress(StorageError, KeyboardInterrupt), fault.injected():
            record(storage, experiment, QUICK, acknowledged)
        assert acknowledged <= stored(storage)
        record(storage, experiment, QUICK, set())
        assert stored(storage) == {0, 1}
        if fault.count < k:
            break
    assert k > 20


def test_whatever_operation_fails_in_passing_the_recording_succeeds(tmp_path, experiment):
    k = 0
    while True:
        k += 1
        storage = f"sqlite:///{tmp_path / f'{k}.db'}"
        with FailingOperation(k, locked()).injected() as fault:
            record(storage, experiment, QUICK, set())
        assert stored(storage) == {0, 1}
        Path(storage.removeprefix("sqlite:///")).unlink()
        if fault.count < k:
            break


@contextlib.contextmanager
def held(path, seconds=None):
    """Somebody else's write lock, for so long or until the end."""
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("begin immediate")
    timer = threading.Timer(seconds, holder.rollback) if seconds else None
    if timer:
        timer.start()
    try:
        yield
    finally:
        if timer:
            timer.join()
        holder.close()


def test_a_lock_of_five_seconds_is_waited_for(tmp_path, experiment):
    path = tmp_path / "results.db"
    with SearchRecorder.open(str(path), experiment) as recorder:
        started_s = time.monotonic()
        with held(path, 5.0):
            recorder.scores(batch(0))
        assert 4.5 < time.monotonic() - started_s < 30
        assert recorder.num_scored == 7


def test_a_lock_beyond_the_budget_spools_and_says_where_and_merges_later(
    tmp_path, experiment, monkeypatch
):
    monkeypatch.setattr("autoplan.storage.engine._LOCK_WAIT_S", 0.1)
    path = tmp_path / "results.db"
    with SearchRecorder.open(str(path), experiment, retry=RetryPolicy(budget_s=0.3)) as recorder:
        recorder.scores(batch(0))
        with held(path):
            for number in (1, 2):
                with pytest.raises(SpooledError, match="another program kept it locked") as error:
                    recorder.scores(batch(number))
                assert error.value.exit_code == 5
                assert error.value.path.exists()
                assert len(str(error.value).splitlines()) == 1
            assert recorder.num_scored == 7
    assert stored(str(path)) == {0}
    with SearchRecorder.open(str(path), experiment) as recorder:
        assert recorder.num_scored == 21
    assert not error.value.path.exists()


def test_the_spool_is_merged_before_the_next_batch_of_the_same_search(
    tmp_path, experiment, monkeypatch
):
    monkeypatch.setattr("autoplan.storage.engine._LOCK_WAIT_S", 0.1)
    path = tmp_path / "results.db"
    with SearchRecorder.open(str(path), experiment, retry=RetryPolicy(budget_s=0.2)) as recorder:
        with held(path), pytest.raises(SpooledError) as error:
            recorder.scores(batch(0))
        recorder.scores(batch(1))
        assert recorder.num_scored == 14
        assert not error.value.path.exists()


@pytest.mark.slow
def test_a_lock_of_two_minutes_ends_in_one_line_after_the_default_budget(tmp_path, experiment):
    path = tmp_path / "results.db"
    with SearchRecorder.open(str(path), experiment) as recorder:
        started_s = time.monotonic()
        with held(path, 120.0):
            with pytest.raises(SpooledError):
                recorder.scores(batch(0))
            assert 55 < time.monotonic() - started_s < 80
        recorder.scores(batch(1))
        assert recorder.num_scored == 14


FILL = """
import resource, signal, sys
sys.path.insert(0, sys.argv[3])
import scored_plans
from autoplan.errors import AutoplanError
from autoplan.results.recorder import SearchRecorder
from autoplan.search.experiment import load_experiment
experiment = load_experiment(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with SearchRecorder.open(sys.argv[1], experiment) as recorder:
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    try:
        for number in range(10**6):
            recorder.scores(scored_plans.batch(number, 100))
            print(number, flush=True)
    except AutoplanError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
"""


def test_a_full_disk_ends_in_one_line_and_keeps_all_that_was_acknowledged(
    tmp_path, experiment_path
):
    """The limit on the size of files stands for the disk's end: writes fail in the same calls."""
    path = tmp_path / "results.db"
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(path), experiment_path, TESTS],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "free some space" in done.stderr
    acknowledged = len(done.stdout.split())
    assert acknowledged >= 2
    with Database.open(str(path)) as database:
        (summary,) = list_experiments(database)
    assert summary.num_plans in (100 * acknowledged, 100 * (acknowledged + 1))


KILLED = """
import sys
sys.path.insert(0, sys.argv[3])
import scored_plans
from autoplan.results.recorder import SearchRecorder
from autoplan.search.experiment import load_experiment
experiment = load_experiment(sys.argv[2])
with SearchRecorder.open(sys.argv[1], experiment) as recorder:
    for number in range(int(sys.argv[4]), 10**6):
        recorder.scores(scored_plans.batch(number, 100))
        print(number, flush=True)
"""


def killed_after(seconds, *arguments):
    """Runs the writer, SIGKILLs it; the numbers of the batches that it acknowledged."""
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    try:
        first = program.stdout.readline()
        time.sleep(seconds)
    finally:
        program.send_signal(signal.SIGKILL)
        rest = program.communicate()[0]
    return [int(line) for line in (first + rest).split("\n")[:-1]]


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_writer_killed_at_any_moment_loses_no_acknowledged_batch(storage, experiment_path, kills):
    rng, start, acknowledged = random.Random(5), 0, []
    for _ in range(kills):
        acknowledged += killed_after(rng.uniform(0, 0.3), storage, experiment_path, TESTS, start)
        start = acknowledged[-1]  # sent again: it is there already
    with Database.open(storage) as database:
        hashes = [row["plan_sha256"] for row in leaders(database, "small")]
    assert len(hashes) == len(set(hashes))
    assert len(hashes) % 100 == 0
    expected = {each.plan.sha256 for number in acknowledged for each in batch(number, 100)}
    assert expected <= set(hashes)


def test_a_server_restarted_at_once_between_batches_is_not_noticed(
    postgres, postgres_url, experiment
):
    with SearchRecorder.open(postgres_url, experiment) as recorder:
        for number in range(3):
            recorder.scores(batch(number))
            postgres.restart_at_once()
        assert recorder.num_scored == 21


def test_a_server_restarted_inside_a_transaction_has_the_batch_once(
    postgres, postgres_url, experiment
):
    restarts = []

    def restart(connection, cursor, statement, *_):
        if statement.startswith("INSERT INTO scores") and len(restarts) < 2:
            restarts.append(statement)
            postgres.restart_at_once()

    with SearchRecorder.open(postgres_url, experiment) as recorder:
        sa.event.listen(sa.Engine, "after_cursor_execute", restart)
        try:
            recorder.scores(batch(0))
        finally:
            sa.event.remove(sa.Engine, "after_cursor_execute", restart)
        assert len(restarts) == 2
        assert recorder.num_scored == 7


@pytest.mark.parametrize("seconds", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_server_stopped_for_a_while_is_waited_for(postgres, postgres_url, experiment, seconds):
    with SearchRecorder.open(postgres_url, experiment) as recorder:
        recorder.scores(batch(0))
        postgres.stop()
        timer = threading.Timer(seconds, postgres.start)
        timer.start()
        try:
            recorder.scores(batch(1))
        finally:
            timer.join()
        assert recorder.num_scored == 14


def test_a_server_that_stays_away_spools_and_an_absent_one_is_told_at_once(
    postgres, postgres_url, experiment, tmp_path
):
    retry = RetryPolicy(budget_s=0.5)
    with SearchRecorder.open(
        postgres_url, experiment, retry=retry, spool_folder=tmp_path
    ) as recorder:
        postgres.stop()
        try:
            with pytest.raises(SpooledError) as error:
                recorder.scores(batch(0))
            started_s = time.monotonic()
            with pytest.raises(StorageError, match="refused"):
                SearchRecorder.open(postgres_url, experiment)
            assert time.monotonic() - started_s < 5
        finally:
            postgres.start()
    assert error.value.path.parent == tmp_path
    with SearchRecorder.open(postgres_url, experiment, spool_folder=tmp_path) as recorder:
        assert recorder.num_scored == 7


def test_a_table_that_is_gone_is_told_and_not_waited_for(storage, experiment):
    with SearchRecorder.open(storage, experiment) as recorder:
        recorder.database.write(lambda c: c.execute(sa.text("drop view leaderboard")))
        recorder.database.write(lambda c: schema.scores.drop(c))
        started_s = time.monotonic()
        with pytest.raises(StorageError, match="scores"):
            recorder.scores(batch(0))
        assert time.monotonic() - started_s < 5
