"""A disk is really full: one line, the documented exit code, nothing half written, then resumed."""

import contextlib
import itertools
import json
import shutil
import sqlite3
import time

import pytest
import small_disk
from processes import wait_until
from scored_plans import batch
from search_invariants import acknowledged, check, num_acknowledged

from autoplan.plan import load_plan
from autoplan.results.recorder import SearchRecorder
from autoplan.search.experiment import load_experiment

DISK_BYTES = 24 * 2**20
"""A little more than a search wants to find free."""
WAL = ("-wal", "-shm")


@pytest.fixture
def disk(tmp_path):
    if reason := small_disk.absent():
        pytest.skip(reason)
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = small_disk.SmallDisk(folder, DISK_BYTES)
    yield mounted
    mounted.close()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def copied(disk, folder):
    """The URL of a copy of the search's database: SQLite itself cannot follow `seen`."""
    folder.mkdir(exist_ok=True)
    for path in disk.seen.glob("study.db*"):
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            shutil.copy(path, folder)
    return f"sqlite:///{folder / 'study.db'}"


def require_one_line(err):
    lines = [line for line in err.splitlines() if line.startswith("autoplan: ")]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


def test_a_search_whose_disk_fills_up_ends_and_goes_on_when_there_is_room(
    disk, unproven_path, tmp_path
):
    search = ("-m", "autoplan", "search", unproven_path, "--output", disk.folder, "--json")
    running = disk.start(*search, "--trials", 100_000, "--seconds", 100)
    looks = itertools.count()
    known = wait_until(
        lambda: acknowledged(copied(disk, tmp_path / f"look{next(looks)}")), 60, "trials are there"
    )
    disk.fill()
    out, err = running.communicate(timeout=100)
    assert (running.returncode, out) == (5, ""), err
    line = require_one_line(err)
    assert "free some space" in line
    _, _, plan = line.partition("could not be saved; it is ")
    assert json.loads(plan)["schema"] == "autoplan-plan/1"
    assert {name.removeprefix("study.db") for name in names(disk.seen)} <= {"ballast", "", *WAL}
    storage = copied(disk, tmp_path / "full")
    with contextlib.closing(sqlite3.connect(tmp_path / "full" / "study.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert known <= num_acknowledged(storage)

    code, out, err = disk.run(*search)
    assert (code, out) == (5, "")
    assert "MiB are free there" in require_one_line(err)

    disk.free()
    trials = num_acknowledged(storage) + 20
    code, out, err = disk.run(*search, "--trials", trials)
    assert code == 0, err
    storage = copied(disk, tmp_path / "resumed")
    assert json.loads(out)["trials"] == trials == num_acknowledged(storage)
    check(storage, load_experiment(unproven_path))
    load_plan(disk.seen / "best-plan.json")


SPOOL = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import scored_plans
from autoplan.errors import StorageError
from autoplan.results.spool import Spool
from autoplan.storage.url import Storage
spool = Spool(Path(sys.argv[2]), Storage.parse("postgresql+psycopg://me@host/db"), "small")
identities = {"workload": "a"}
first, last, size = map(int, sys.argv[3:])
try:
    for number in range(first, last):
        spool.append(identities, [p.storable() for p in scored_plans.batch(number, size)])
except StorageError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
finally:
    for kept in spool.batches(identities):
        print(len(kept), kept[0].plan.microbatches)
"""


def test_a_spool_whose_disk_is_full_keeps_whole_batches_and_takes_more_later(disk, tmp_path):
    tests = small_disk.__file__.rpartition("/")[0]
    spool = ("-c", SPOOL, tests, disk.folder)
    assert disk.run(*spool, 0, 2, 7) == (0, "7 1\n7 17\n", "")
    disk.fill()
    code, out, err = disk.run(*spool, 2, 5, 400)
    assert code == 5
    assert "could not be kept here" in err
    assert "No space left" in err
    assert len(err.splitlines()) == 1
    assert out == "7 1\n7 17\n"
    disk.free()
    assert disk.run(*spool, 5, 6, 7) == (0, "7 1\n7 17\n7 81\n", "")


ALL = """
import contextlib, io, json, sys
from autoplan.cli.main import main
ends = {}
for name, command in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stderr(io.StringIO()) as err:
        ends[name] = [main(command), err.getvalue()]
print(json.dumps(ends))
"""


def test_files_for_a_full_disk_are_written_whole_or_not_at_all(disk, experiment_path, experiment):
    database = experiment_path.parent / "results.db"
    with SearchRecorder.open(str(database), experiment) as recorder:
        recorder.scores(batch(0, 300))
    plan = experiment_path.parent / "plan.json"
    batch(0)[0].plan.save(plan)
    workload = experiment_path.parent / "workload.json"
    commands = {
        "w.json": ("workload", "convert", workload, "--out"),
        "t.json": ("predict", experiment_path, "--plan", plan, "--trace"),
        "r.csv": ("results", "export", "--storage", database, "--out"),
        "r.json": ("results", "export", "--format", "json", "--storage", database, "--out"),
    }
    whole = {name: [*map(str, c), str(disk.folder / name)] for name, c in commands.items()}
    (disk.seen / "r.csv").write_text("earlier")
    disk.fill()
    _, out, _ = disk.run("-c", ALL, json.dumps(whole))
    for name, (code, err) in json.loads(out.splitlines()[-1]).items():
        assert code == 2, (name, err)
        assert name in require_one_line(err)
    assert names(disk.seen) == ["ballast", "r.csv"]
    assert (disk.seen / "r.csv").read_text() == "earlier"
    disk.free()
    _, out, _ = disk.run("-c", ALL, json.dumps(whole))
    assert [code for code, _ in json.loads(out.splitlines()[-1]).values()] == [0] * 4
    assert names(disk.seen) == sorted(commands)
    assert len((disk.seen / "r.csv").read_text().splitlines()) == 301


def test_a_search_whose_output_is_full_loses_no_trial(disk, unproven_path, tmp_path):
    """The database is elsewhere."""
    storage = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    search = ("-m", "autoplan", "search", unproven_path, "--output", disk.folder,
              "--storage", storage, "--trials", 10, "--json")  # fmt: skip
    disk.fill()
    started_s = time.monotonic()
    code, out, err = disk.run(*search)
    assert (code, out) == (2, ""), err
    assert "No space left" in require_one_line(err)
    assert time.monotonic() - started_s < 60
    assert names(disk.seen) == ["ballast"]
    disk.free()
    code, out, err = disk.run(*search)
    assert code == 0, err
    assert json.loads(out)["trials"] == 10 == num_acknowledged(storage)
    check(storage, load_experiment(unproven_path))
    load_plan(disk.seen / "best-plan.json")
