"""A database's password is in nothing that a run prints, writes, sends or shows in ps."""

import contextlib
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from postgres_server import PASSWORD
from processes import ISLAND, descendants, named, searching, wait_until, working_islands
from scored_plans import batch
from search_invariants import CAPPED, files_with, num_acknowledged

from autoplan.errors import StorageError
from autoplan.results.recorder import SearchRecorder, SpooledError
from autoplan.storage.retry import RetryPolicy
from autoplan.storage.url import Storage


@pytest.fixture(params=["in the authority", "in the query"])
def secret_url(request, postgres_url):
    """The two places of a password in a URL."""
    if request.param == "in the authority":
        return postgres_url
    return in_query(postgres_url)


def in_query(url):
    """The same URL with its password elsewhere."""
    return url.replace(f":{PASSWORD}@", "@") + f"?password={PASSWORD}"


def command_lines():
    """What ps shows of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue  # it has ended
    return b"\n".join(found)


def watched(arguments, **options):
    """Runs a command and keeps all that it printed and all that ps showed meanwhile."""
    program = subprocess.Popen(
        [sys.executable, "-m", "autoplan", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )
    seen = b""
    while program.poll() is None:
        seen += command_lines()
        time.sleep(0.3)
    return program.returncode, program.communicate()[0] + seen


def written(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_commands_print_and_write_no_password(postgres_url, experiment_path, tmp_path):
    secret_url = in_query(postgres_url)
    environ = {**os.environ, "AUTOPLAN_STORAGE": secret_url}
    wrong = {**environ, "AUTOPLAN_STORAGE": secret_url.replace(PASSWORD, "not-it-2718")}
    search = ["search", experiment_path, "--trials", "5"]
    for arguments, env, code in (
        (search, environ, 0),
        (["results", "export", "--out", tmp_path / "out.csv"], environ, 0),
        (["--debug", "results", "list"], wrong, 1),
        (search, wrong, 5),
    ):
        returned, shown = watched(arguments, env=env, cwd=tmp_path)
        assert returned == code, shown[-2000:]
        for secret in (PASSWORD, "not-it-2718"):
            assert secret.encode() not in shown
            assert secret.encode() not in written(tmp_path)


SEARCH = """
import resource, sys
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
from autoplan.cli.main import main
sys.exit(main(["search", *sys.argv[1:]]))
"""


def test_a_crash_dumps_no_password(postgres_url, experiment_path, tmp_path):
    """The stacks of faulthandler are shown, and no core file is written."""
    experiment_path.write_text(experiment_path.read_text().replace('space = "default"', CAPPED))
    environ = {**os.environ, "AUTOPLAN_STORAGE": postgres_url, "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-c", SEARCH, experiment_path, "--trials", "100000"]
    crashed = subprocess.Popen(
        command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    wait_until(lambda: search_rows(postgres_url), 60, "trials are written")
    crashed.send_signal(signal.SIGABRT)
    shown = crashed.communicate(timeout=60)[0]
    assert crashed.returncode == -signal.SIGABRT
    assert b"Fatal Python error: Aborted" in shown
    assert PASSWORD.encode() not in shown
    assert files_with(tmp_path, PASSWORD) == []
    assert not list(tmp_path.glob("**/core*"))


@pytest.fixture
def ray_folder():
    """Where Ray keeps its logs; short, since sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_workers_and_their_logs_know_no_password(
    postgres_url, experiment_path, tmp_path, ray_folder
):
    """One of them crashes, so that Ray writes down what it knows of it."""
    experiment_path.write_text(experiment_path.read_text().replace('space = "default"', CAPPED))
    environ = {"AUTOPLAN_STORAGE": postgres_url, "RAY_TMPDIR": str(ray_folder)}
    options = ("--workers", 2, "--trials", 100_000)
    with searching(experiment_path, *options, environment=environ) as process:
        wait_until(lambda: search_rows(postgres_url), 120, "trials are written")
        workers = working_islands(process)
        started = descendants(process.pid)
        for number in started:
            with contextlib.suppress(FileNotFoundError):  # it has ended
                for kind in ("cmdline", "environ"):
                    shown = (Path("/proc") / str(number) / kind).read_bytes()
                    assert PASSWORD.encode() not in shown, started[number]
        assert PASSWORD.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        os.kill(workers[0], signal.SIGSEGV)
        wait_until(lambda: workers[0] not in named(process.pid, ISLAND), 30, "it is gone")
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert PASSWORD not in out + err
    assert any(b"*** SIGSEGV" in path.read_bytes() for path in ray_folder.rglob("*.err"))
    assert files_with(ray_folder, PASSWORD) == []
    assert files_with(tmp_path, PASSWORD) == []


def search_rows(url):
    """Trials in a database that may not have its tables yet."""
    try:
        return num_acknowledged(url)
    except (StorageError, KeyError):
        return 0


def test_errors_logs_spools_and_pickles_hold_no_password(
    secret_url, experiment, tmp_path, postgres, caplog
):
    storage = Storage.parse(secret_url)
    with SearchRecorder.open(
        storage, experiment, retry=RetryPolicy(budget_s=0.2), spool_folder=tmp_path
    ) as recorder:
        texts = [repr(recorder), repr(recorder.database), repr(storage)]
        caplog.set_level(logging.DEBUG)
        recorder.scores(batch(0))
        postgres.stop()
        try:
            with pytest.raises(SpooledError) as spooled:
                recorder.scores(batch(1))
            with pytest.raises(StorageError) as absent:
                SearchRecorder.open(storage, experiment)
        finally:
            postgres.start()
        for unsendable in (recorder, storage):
            with pytest.raises(TypeError) as refused:
                pickle.dumps(unsendable)
            texts.append(str(refused.value))
    texts += [str(spooled.value), repr(spooled.value), str(absent.value), caplog.text]
    assert PASSWORD not in "".join(texts)
    assert PASSWORD.encode() not in written(tmp_path)


def test_rows_hold_no_password(secret_url, experiment):
    import psycopg

    with SearchRecorder.open(secret_url, experiment) as recorder:
        recorder.scores(batch(0))
    plain = secret_url.replace("+psycopg", "")
    with psycopg.connect(plain) as connection:
        for (table,) in connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        ).fetchall():
            assert PASSWORD not in str(connection.execute(f"SELECT * FROM {table}").fetchall())
