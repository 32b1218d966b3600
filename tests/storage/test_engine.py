"""Damaged files: one clear line and exit code 5, and the file stays as it was."""

import random
import sqlite3

import pytest

from autoplan.errors import StorageError
from autoplan.storage.engine import open_engine, require_sound, require_space
from autoplan.storage.failures import OutageError, lost_race, passes, storage_errors
from autoplan.storage.retry import RetryPolicy
from autoplan.storage.url import Storage

SHORT = RetryPolicy(budget_s=0.2)


def make_file(path, rows=400):
    with sqlite3.connect(path) as connection:
        connection.execute("create table numbers (id integer primary key, word text unique)")
        words = [(f"word {i} " + "x" * 50,) for i in range(rows)]
        connection.executemany("insert into numbers (word) values (?)", words)
    connection.close()
    return path


def complaint(path):
    """What is said of a file, or None where it is sound."""
    try:
        require_sound(Storage.parse(str(path)))
    except StorageError as error:
        return str(error)
    return None


def test_sound_empty_and_absent_files_pass(tmp_path):
    require_sound(Storage.parse(str(make_file(tmp_path / "sound.db"))))
    (tmp_path / "empty.db").write_bytes(b"")
    require_sound(Storage.parse(str(tmp_path / "empty.db")))
    require_sound(Storage.parse(str(tmp_path / "absent.db")))
    assert not (tmp_path / "absent.db").exists()


def test_files_truncated_anywhere_are_refused_and_left_alone(tmp_path):
    whole = make_file(tmp_path / "whole.db").read_bytes()
    damaged = tmp_path / "damaged.db"
    for i in range(20):
        data = whole[: max(50, i * len(whole) // 20)]
        damaged.write_bytes(data)
        with pytest.raises(StorageError, match=r"damaged\.db: .*left as it was") as error:
            require_sound(Storage.parse(str(damaged)))
        assert error.value.exit_code == 5
        assert len(str(error.value).splitlines()) == 1
        assert damaged.read_bytes() == data


def test_flipped_bytes_are_refused_or_harmless_to_the_structure(tmp_path):
    whole = make_file(tmp_path / "whole.db").read_bytes()
    damaged, rng, refused = tmp_path / "damaged.db", random.Random(3), 0
    for _ in range(200):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        damaged.write_bytes(data)
        line = complaint(damaged)
        refused += line is not None
        assert line is None or len(line.splitlines()) == 1
        assert damaged.read_bytes() == data
    assert refused > 5


def test_something_else_than_a_database_is_refused(tmp_path):
    (tmp_path / "text.db").write_text("hello " * 1000)
    with pytest.raises(StorageError, match="not a database"):
        require_sound(Storage.parse(str(tmp_path / "text.db")))
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(StorageError, match="not a file"):
        require_sound(Storage.parse(str(tmp_path / "folder.db")))


def test_a_journal_that_a_killed_writer_left_is_rolled_back(tmp_path):
    path = make_file(tmp_path / "hot.db")
    copy = tmp_path / "copy.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma cache_size=1")
    connection.execute("begin immediate")
    connection.execute("update numbers set word = word || 'y'")  # spills into the file
    copy.write_bytes(path.read_bytes())
    (tmp_path / "copy.db-journal").write_bytes((tmp_path / "hot.db-journal").read_bytes())
    connection.close()
    require_sound(Storage.parse(str(copy)))
    with sqlite3.connect(copy) as again:
        assert again.execute("select count(*) from numbers where word like '%y'").fetchone() == (0,)


def test_a_file_that_stays_locked_is_an_outage(tmp_path, monkeypatch):
    monkeypatch.setattr("autoplan.storage.engine._LOCK_WAIT_S", 0.05)
    path = make_file(tmp_path / "locked.db")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin exclusive")
    try:
        with pytest.raises(OutageError, match="another program kept it locked"):
            require_sound(Storage.parse(str(path)), SHORT)
    finally:
        holder.close()


def test_a_disk_that_is_nearly_full_is_refused_for_files_only(tmp_path, monkeypatch):
    storage = Storage.parse(str(tmp_path / "not" / "yet" / "x.db"))
    require_space(storage)
    monkeypatch.setattr("autoplan.storage.engine._LEAST_FREE_BYTES", 2**62)
    with pytest.raises(StorageError, match=r"MiB are free there; free at least"):
        require_space(storage)
    require_space(Storage.parse("postgresql+psycopg://host/db"))


def failure(storage, statement):
    engine = open_engine(storage)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
    except Exception as error:
        return error
    finally:
        engine.dispose()


def test_mistakes_do_not_pass_and_are_told_in_one_line(tmp_path):
    storage = Storage.parse(str(make_file(tmp_path / "x.db")))
    for statement in ("select * from nowhere", "selec 1", "create table numbers (id integer)"):
        error = failure(storage, statement)
        assert not passes(error)
        with pytest.raises(StorageError) as told, storage_errors(storage):
            raise error
        assert not isinstance(told.value, OutageError)
        assert len(str(told.value).splitlines()) == 1


def test_a_lost_race_is_told_from_other_failures(tmp_path):
    storage = Storage.parse(str(make_file(tmp_path / "x.db")))
    assert lost_race(failure(storage, "create table numbers (id integer)"))
    assert lost_race(failure(storage, "insert into numbers values (1, 'again')"))
    assert not lost_race(failure(storage, "select * from nowhere"))
    assert not lost_race(ValueError("already exists"))


def test_a_server_that_is_not_there_passes_and_a_refused_password_does_not(postgres_url):
    away = Storage.parse("postgresql+psycopg://me@127.0.0.1:1/db")
    assert passes(failure(away, "select 1"))
    wrong = Storage.parse(postgres_url.replace("open-sesame", "wrong-sesame"))
    assert not passes(failure(wrong, "select 1"))
    absent = Storage.parse(postgres_url.rsplit("/", 1)[0] + "/absent")
    assert not passes(failure(absent, "select 1"))


def test_other_errors_go_through_unchanged():
    with pytest.raises(ZeroDivisionError), storage_errors(Storage.parse("x.db")):
        raise ZeroDivisionError


def test_a_lock_on_a_server_is_not_waited_for_for_ever(postgres_url, monkeypatch):
    monkeypatch.setattr("autoplan.storage.engine._LOCK_WAIT_S", 0.2)
    storage = Storage.parse(postgres_url)
    holder = open_engine(storage)
    with holder.connect() as connection:
        connection.exec_driver_sql("create table numbers (id integer)")
        connection.commit()
        connection.exec_driver_sql("lock table numbers")
        error = failure(storage, "insert into numbers values (1)")
        assert "lock timeout" in str(error)
        assert passes(error)
    holder.dispose()
