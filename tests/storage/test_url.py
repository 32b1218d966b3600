import pickle

import pytest

from autoplan.errors import InputError
from autoplan.storage.url import Storage, from_file, from_variable, given_storage, make_folder

PASSWORD = "s3same-open"
URLS = [
    f"postgresql+psycopg://me:{PASSWORD}@host:5432/db",
    f"postgresql+psycopg://me@host/db?password={PASSWORD}",
    f"postgresql+psycopg://me@host/db?sslpassword={PASSWORD}&sslmode=require",
    f"mysql+pymysql://me:{PASSWORD}@host/db",
]


@pytest.mark.parametrize("url", URLS)
def test_a_password_is_in_no_text_of_a_storage(url):
    storage = Storage.parse(url)
    assert storage.has_secret
    for text in (str(storage), repr(storage), f"{storage}", storage.shown):
        assert PASSWORD not in text
        assert "host" in text
    assert PASSWORD in storage.url.render_as_string(hide_password=False)


@pytest.mark.parametrize("url", URLS)
def test_a_storage_with_a_password_is_not_pickled(url):
    with pytest.raises(TypeError, match="AUTOPLAN_STORAGE") as error:
        pickle.dumps(Storage.parse(url))
    assert PASSWORD not in str(error.value)


@pytest.mark.parametrize("url", URLS)
def test_a_storage_of_the_environment_or_a_file_is_pickled_as_the_way_to_it(
    url, tmp_path, monkeypatch
):
    monkeypatch.setenv("AUTOPLAN_STORAGE", url)
    (tmp_path / "url").write_text(url + "\n")
    for storage in (from_variable("AUTOPLAN_STORAGE"), from_file(tmp_path / "url")):
        data = pickle.dumps(storage)
        assert PASSWORD.encode() not in data
        assert pickle.loads(data) == storage


def test_a_storage_without_a_password_is_pickled_as_it_is():
    storage = Storage.parse("sqlite:///some/where.db")
    assert pickle.loads(pickle.dumps(storage)) == storage


@pytest.mark.parametrize("name", ["study.db", "a/b.sqlite", "/x/y.SQLITE3"])
def test_a_path_is_a_sqlite_file(name):
    storage = Storage.parse(name)
    assert storage.is_sqlite
    assert str(storage.path) == name


@pytest.mark.parametrize(
    "url",
    [
        "", "nonsense", "://", f"nodb://me:{PASSWORD}@host/x", f"oracle://me:{PASSWORD}@host/x",
        "sqlite+aiosqlite:///x.db", "postgresql+asyncpg://me@host/x", f"me:{PASSWORD}@host:port://",
        f"me:{PASSWORD}@host/x",
        f"postgresql+psycopg://me:{PASSWORD}@host:port/x",
    ],
)  # fmt: skip
def test_what_is_no_usable_url_is_refused_without_showing_a_password(url):
    with pytest.raises(InputError) as error:
        Storage.parse(url)
    assert error.value.field == "storage"
    assert PASSWORD not in str(error.value)


def test_options_come_before_the_environment_and_urls_before_files(tmp_path):
    file = tmp_path / "url"
    file.write_text("sqlite:///file.db")
    environ = {"AUTOPLAN_STORAGE_FILE": str(file)}
    assert given_storage(environ={}) is None
    assert given_storage(environ=environ).shown == "sqlite:///file.db"
    assert given_storage("a.db", None, environ).shown == "sqlite:///a.db"
    assert given_storage(None, str(file), {}).shown == "sqlite:///file.db"


def test_the_variable_comes_before_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOPLAN_STORAGE", "sqlite:///variable.db")
    monkeypatch.setenv("AUTOPLAN_STORAGE_FILE", str(tmp_path / "absent"))
    assert given_storage().shown == "sqlite:///variable.db"


@pytest.mark.parametrize("url", URLS)
def test_a_password_on_the_command_line_is_refused_since_everybody_can_read_it(url):
    with pytest.raises(InputError, match="AUTOPLAN_STORAGE") as error:
        given_storage(url, None, {})
    assert PASSWORD not in str(error.value)


@pytest.mark.parametrize("content", ["", "\n\n", "sqlite:///a.db\nsqlite:///b.db", "nonsense"])
def test_a_file_without_exactly_one_url_is_refused_by_name(tmp_path, content):
    file = tmp_path / "url"
    file.write_text(content)
    with pytest.raises(InputError, match="url"):
        from_file(file)


def test_the_folder_of_a_sqlite_file_is_made(tmp_path):
    make_folder(Storage.parse(str(tmp_path / "a" / "b" / "x.db")))
    assert (tmp_path / "a" / "b").is_dir()
    make_folder(Storage.parse("postgresql+psycopg://host/db"))
    make_folder(Storage.parse("sqlite://"))


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="storage"):
        make_folder(Storage.parse(str(tmp_path / "file" / "x.db")))
