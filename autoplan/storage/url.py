"""Database URLs: where they come from, and how they are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.engine import make_url

from autoplan.documents import decode, read_bytes
from autoplan.errors import InputError, words
from autoplan.redaction import HIDDEN, SECRET_KEYS, hide

URL_VARIABLE = "AUTOPLAN_STORAGE"
FILE_VARIABLE = "AUTOPLAN_STORAGE_FILE"

_ALLOWED = "a database URL such as sqlite:///study.db or postgresql+psycopg://user@host/name"
_BACKENDS = ("sqlite", "postgresql", "mysql", "mariadb")
_FILE_ENDINGS = (".db", ".sqlite", ".sqlite3")


@dataclass(frozen=True, slots=True, repr=False)
class Storage:
    """A database by its URL. Its text, repr and pickle hold no password."""

    url: sqlalchemy.URL
    """Password included: for engines only."""
    _again: tuple[Callable[[str], Storage], str] | None = field(default=None, compare=False)
    """How another process finds the same URL: a function of this module and its argument."""

    @classmethod
    def parse(cls, text: str, source: str = "") -> Storage:
        """The storage of a SQLAlchemy URL, or of the path of a SQLite file (*.db, *.sqlite).

        Args:
            text: the URL.
            source: the file that it stands in, for messages.

        Raises:
            InputError: it is not a URL of SQLite, PostgreSQL or MySQL; the message shows no
                password.
        """
        if "://" not in text and text.lower().endswith(_FILE_ENDINGS):
            return cls(sqlalchemy.URL.create("sqlite", database=text))
        try:
            url = make_url(text)
            _announce(url)
            asynchronous = url.get_dialect().is_async
        except (sqlalchemy.exc.ArgumentError, ValueError, ImportError):
            raise InputError("storage", _harmless(text), _ALLOWED, source=source) from None
        if asynchronous or url.get_backend_name() not in _BACKENDS:
            allowed = f"{_ALLOWED}; SQLite, PostgreSQL or MySQL with a driver that is not async"
            raise InputError("storage", words(url.drivername), allowed, source=source)
        return cls(url)

    @classmethod
    def of(cls, storage: Storage | str) -> Storage:
        """A storage as it is, or parsed; raises InputError like `parse`."""
        return storage if isinstance(storage, Storage) else cls.parse(storage)

    @property
    def shown(self) -> str:
        """The URL without secrets."""
        query = {
            key: HIDDEN if key.lower() in SECRET_KEYS else value
            for key, value in self.url.query.items()
        }
        text = self.url.set(query={}).render_as_string(hide_password=True)
        if not query:
            return text
        return text + "?" + "&".join(f"{key}={value}" for key, value in query.items())

    @property
    def has_secret(self) -> bool:
        """Whether the URL itself holds a password."""
        named = any(key.lower() in SECRET_KEYS for key in self.url.query)
        return self.url.password is not None or named

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite database."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def path(self) -> Path | None:
        """The SQLite file, or None where the database is no file."""
        name = self.url.database
        in_file = self.is_sqlite and name and name != ":memory:" and not name.startswith("file:")
        return Path(name) if in_file and name else None

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"Storage({self.shown!r})"

    def __reduce__(self) -> tuple[Callable[[str], Storage], tuple[str]]:
        """Pickles the way to the URL where that holds a password, never the password."""
        if self._again is not None:
            function, argument = self._again
            return function, (argument,)
        if self.has_secret:
            raise TypeError(
                f"{self.shown}: a URL with a password is not sent to other processes; give it by "
                f"${URL_VARIABLE} or a file (${FILE_VARIABLE}, --storage-file)"
            )
        return Storage.parse, (self.url.render_as_string(hide_password=False),)


def from_file(path: str | Path) -> Storage:
    """The storage whose URL is the only line of a file; raises InputError where it is not."""
    text = decode(read_bytes(path), str(path)).strip()
    if len(text.splitlines()) != 1:
        raise InputError("storage", words("several lines"), _ALLOWED, source=str(path))
    parsed = Storage.parse(text, source=str(path))
    return Storage(parsed.url, (from_file, str(Path(path).absolute())))


def from_variable(name: str) -> Storage:
    """The storage whose URL is in an environment variable; raises InputError where it is not."""
    parsed = Storage.parse(os.environ.get(name, ""), source=f"${name}")
    return Storage(parsed.url, (from_variable, name))


def given_storage(
    url: str | None = None,
    file: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Storage | None:
    """The storage that the user chose: options first, then the environment; None without any.

    Args:
        url: of `--storage`.
        file: of `--storage-file`.
        environ: where $AUTOPLAN_STORAGE and $AUTOPLAN_STORAGE_FILE are looked for.

    Raises:
        InputError: the choice is not a usable URL, or a command line shows its password to
            everybody on the machine.
    """
    if url is not None:
        storage = Storage.parse(url)
        if storage.has_secret:
            allowed = (
                f"a URL without a password, since command lines can be read by everybody on the "
                f"machine; give this one by ${URL_VARIABLE}, or in a file named by --storage-file "
                f"or ${FILE_VARIABLE}"
            )
            raise InputError("--storage", words(storage.shown), allowed)
        return storage
    if file is not None:
        return from_file(file)
    if environ.get(URL_VARIABLE):
        return from_variable(URL_VARIABLE)
    if environ.get(FILE_VARIABLE):
        return from_file(environ[FILE_VARIABLE])
    return None


def make_folder(storage: Storage) -> None:
    """Makes the folder of a SQLite file; raises InputError where that cannot be."""
    path = storage.path
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = "a database in a folder that exists or can be made"
        raise InputError("storage", words(f"{path} ({error.strerror})"), allowed) from None


def _harmless(text: str) -> str:
    """What can be shown of a text that is no URL but may hold a password all the same."""
    scheme = re.match(r"[A-Za-z][\w+.-]*://", text)
    if scheme:
        return scheme[0] + "..."
    return words("something that is no URL") if re.search(r"[@=:]", text) else text


def _announce(url: sqlalchemy.URL) -> None:
    """Tells the redaction every secret of a URL."""
    secrets: list[Any] = [url.password]
    secrets += [value for key, value in url.query.items() if key.lower() in SECRET_KEYS]
    for secret in secrets:
        for text in secret if isinstance(secret, tuple) else (secret,):
            if text:
                hide(str(text))
