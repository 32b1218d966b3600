"""Opening: fresh, old, newer, damaged, and by several programs at once."""

import contextlib
import random
import shutil
import sqlite3
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from scored_plans import batch
from starting_line import WAIT_FOR_START, run_at_once

from autoplan.errors import InputError, StorageError
from autoplan.results import migrations, schema
from autoplan.results.comparison import compare
from autoplan.results.database import Database
from autoplan.results.export import export
from autoplan.results.queries import find_plan, leaders, list_experiments
from autoplan.results.recorder import SearchRecorder
from autoplan.storage.studies import study_storage
from autoplan.storage.url import Storage

OLD = Path(__file__).resolve().parents[1] / "data" / "results"


def old_file(version, folder):
    path = folder / "old.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript((OLD / f"version_{version}.sql").read_text())
    return path


def dump(path):
    """All that a file holds, as SQL."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        return "\n".join(database.iterdump())


def shape(database):
    """Columns and types of all tables of ours, and the view's definition."""

    def work(connection):
        inspector = sa.inspect(connection)
        tables = {
            name: [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)]
            for name in schema.METADATA.tables
        }
        return tables, inspector.get_view_definition(schema.LEADERBOARD)

    return database.read(work)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_old_file_becomes_like_a_fresh_one(tmp_path, version):
    path = old_file(version, tmp_path)
    with Database.open(str(path)) as old, Database.open(str(tmp_path / "fresh.db")) as fresh:
        assert shape(old) == shape(fresh)
        assert old.read(migrations.version_of) == migrations.STEPS[-1].version


def test_the_plans_of_an_old_study_are_taken_over(tmp_path):
    path = old_file(0, tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        query = "select min(value), count(*) from trial_values"
        least_s, num_trials = database.execute(query).fetchone()
    with Database.open(str(path)) as database:
        (summary,) = list_experiments(database)
        rows = leaders(database, "small")
    assert (summary.name, summary.best_predicted_step_s) == ("small", least_s)
    assert summary.num_plans == len({row["plan_sha256"] for row in rows}) <= num_trials
    assert {row["trial_number"] for row in rows} <= set(range(num_trials))
    assert all(row["feasible"] for row in rows)


def test_an_old_experiment_keeps_its_plans_and_is_carried_on(tmp_path, experiment):
    path = old_file(1, tmp_path)
    with Database.open(str(path)) as database:
        before = leaders(database, "small")
        identities = database.read(
            lambda c: c.scalar(sa.select(schema.experiments.c.identities_json))
        )
    assert [row["feasible"] for row in before] == [True, False]
    assert before[0]["objective_lower_bound_s"] == 2.5
    if any(sha not in identities for sha in experiment.identities.values()):
        with pytest.raises(InputError, match="changed"):
            SearchRecorder.open(str(path), experiment)
        return
    with SearchRecorder.open(str(path), experiment) as recorder:
        recorder.scores(batch(0))
        assert recorder.num_scored == 9


def test_an_old_file_is_copied_before_its_tables_change_and_copies_stay(tmp_path):
    path = old_file(1, tmp_path)
    content = dump(path)
    for suffix in ("v1-backup", "v1-backup-2"):
        Database.open(str(path)).close()
        copy = Path(f"{path}.{suffix}")
        assert dump(copy) == content
        path.unlink()
        old_file(1, tmp_path)
    Database.open(str(path)).close()
    Database.open(str(path)).close()
    assert len(list(tmp_path.glob("*-backup*"))) == 3


def test_a_step_that_fails_leaves_the_old_version_whole(tmp_path):
    def fail(connection):
        connection.execute(sa.text("drop table scores"))
        raise sa.exc.ProgrammingError("x", None, Exception("no such idea"))

    path = old_file(1, tmp_path)
    before = dump(path)
    steps = (*migrations.STEPS, migrations.Step(version=4, what="a mistake", apply=fail))
    with pytest.raises(StorageError, match="no such idea"):
        Database.open(str(path), steps=steps)
    assert dump(path) == before
    Database.open(str(path)).close()


def test_steps_are_taken_in_order_and_once(storage):
    taken = []
    later = [
        migrations.Step(version=n, what="later", apply=lambda c, n=n: taken.append(n))
        for n in (4, 5)
    ]
    Database.open(storage).close()
    for steps, expected in (
        ((*migrations.STEPS, later[0]), [4]),
        ((*migrations.STEPS, *later), [4, 5]),
        ((*migrations.STEPS, *later), [4, 5]),
    ):
        Database.open(storage, steps=steps).close()
        assert taken == expected


def test_steps_cut_short_are_taken_again(storage):
    """As on MySQL, where each change of a table stays although a later one fails."""
    with Database.open(storage) as database:
        database.write(lambda c: c.execute(sa.text("drop view leaderboard")))
        database.write(lambda c: c.execute(sa.update(schema.schema_version).values(version=1)))
    with Database.open(storage) as database, database:
        assert list_experiments(database) == []
        assert database.read(migrations.version_of) == migrations.STEPS[-1].version


def test_a_database_of_a_later_version_is_refused_and_left_alone(storage):
    with Database.open(storage) as database:
        database.write(lambda c: c.execute(sa.update(schema.schema_version).values(version=99)))
    with pytest.raises(StorageError, match=r"version 99.*up to 3; install the autoplan that"):
        Database.open(storage)


def test_a_fresh_file_is_made_with_its_folder_only_where_asked(tmp_path):
    path = tmp_path / "a" / "x.db"
    with pytest.raises(InputError, match="no file"):
        Database.open(str(path), create=False)
    assert not path.parent.exists()
    Database.open(str(path)).close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("pragma journal_mode").fetchone() == ("wal",)


def test_a_file_that_may_not_be_written_can_be_read(tmp_path, experiment):
    path = tmp_path / "x.db"
    with SearchRecorder.open(str(path), experiment) as recorder:
        recorder.scores(batch(0))
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("pragma journal_mode=delete")
    url = f"sqlite:///file:{path}?mode=ro&uri=true"
    with Database.open(url, create=False) as database:
        assert len(leaders(database, "small")) == 7
        with pytest.raises(StorageError, match="readonly"):
            database.write(lambda c: c.execute(sa.delete(schema.scores)))


def test_the_view_is_all_an_analyst_needs(storage, experiment):
    with SearchRecorder.open(storage, experiment) as recorder:
        recorder.scores(batch(0))
        rows = recorder.database.read(
            lambda c: c.execute(sa.text("SELECT * FROM leaderboard")).mappings().all()
        )
    assert len(rows) == 7
    assert set(rows[0]) == {column.name for column in schema.leaderboard.c}
    for name in rows[0]:
        if name.endswith(("step_s", "bytes", "share", "_utc", "_s")):
            assert " " not in name
    assert {"predicted_step_s", "measured_step_s", "predicted_peak_memory_bytes"} <= set(rows[0])


PROGRAM = f"""
import sys
sys.path.insert(0, sys.argv[3])
import optuna
import scored_plans
from autoplan.results.recorder import SearchRecorder
from autoplan.search.experiment import load_experiment
from autoplan.storage.studies import study_storage
from autoplan.storage.url import Storage
optuna.logging.disable_default_handler()
experiment = load_experiment(sys.argv[2])
number = int(sys.argv[4])
{WAIT_FOR_START}
storage = Storage.parse(sys.argv[1])
with SearchRecorder.open(storage, experiment) as recorder:
    recorder.scores(scored_plans.batch(number) + scored_plans.batch(9))
optuna.create_study(storage=study_storage(storage), study_name=f"study{{number}}")
"""


def test_four_programs_open_a_fresh_database_at_once_and_write(storage, experiment_path):
    tests = Path(__file__).resolve().parents[1]
    run_at_once(PROGRAM, [(storage, experiment_path, tests, number) for number in range(4)])
    with Database.open(storage) as database:
        (summary,) = list_experiments(database)
    assert summary.num_plans == 7 * 5
    names = optuna.study.get_all_study_names(study_storage(Storage.parse(storage)))
    assert sorted(names) == ["study0", "study1", "study2", "study3"]


def used_wholly(path, folder):
    """Opens a file and asks for all that it holds."""
    with Database.open(str(path), create=False) as database:
        for summary in list_experiments(database):
            for row in leaders(database, summary.name):
                plan = find_plan(database, row["plan_sha256"])
                assert plan.sha256 == row["plan_sha256"]
            compare(database, summary.name)
        export(database, None, "csv", folder / "out.csv")


def outcome(path, folder):
    """What a damaged file led to: nothing, or one line of the documented error."""
    try:
        used_wholly(path, folder)
    except (StorageError, InputError) as error:
        return str(error)
    return ""


@pytest.fixture
def whole(tmp_path, experiment):
    path = tmp_path / "whole.db"
    with SearchRecorder.open(str(path), experiment) as recorder:
        recorder.scores([each for number in range(3) for each in batch(number)])
    return path


def test_a_file_truncated_anywhere_is_refused_in_one_line_and_left_alone(whole, tmp_path):
    data, damaged = whole.read_bytes(), tmp_path / "damaged.db"
    for i in range(20):
        cut = data[: max(2, i * len(data) // 20)]
        damaged.write_bytes(cut)
        with pytest.raises(StorageError, match=r"damaged\.db.*left as it was") as error:
            used_wholly(damaged, tmp_path)
        assert len(str(error.value).splitlines()) == 1
        assert damaged.read_bytes() == cut


def test_200_flipped_bytes_never_end_in_a_traceback(whole, tmp_path):
    data, rng = whole.read_bytes(), random.Random(11)
    damaged, told = tmp_path / "damaged.db", []
    for _ in range(200):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        damaged.write_bytes(changed)
        told.append(outcome(damaged, tmp_path))
        for leftover in tmp_path.glob("damaged.db-*"):
            leftover.unlink()
    assert all(len(line.splitlines()) <= 1 for line in told)
    assert sum(bool(line) for line in told) > 10


def test_a_swapped_file_is_told(whole, tmp_path):
    shutil.copy(Path(__file__), tmp_path / "program.db")
    assert "not a database" in outcome(tmp_path / "program.db", tmp_path)
