"""The few kinds of failure that a caller would tell apart."""

from __future__ import annotations

_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """A value as a message shows it: its repr on one line, cut where it is long."""
    text = value if isinstance(value, _Verbatim) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


class _Verbatim(str):
    """Words about a value ("nothing", "12 bytes") that are shown without quotes."""

    __slots__ = ()


def words(text: str) -> str:
    """Marks ``text`` as a description of what was found, so that it is not quoted."""
    return _Verbatim(text)


class AutoplanError(Exception):
    """Base of every error that autoplan raises on purpose; `exit_code` is the command's."""

    exit_code = 1


class InputError(AutoplanError, ValueError):
    """Something a user gave is wrong: which file, which field, what was found, what is allowed."""

    exit_code = 2

    def __init__(self, field: str, found: object, allowed: str, *, source: str = "") -> None:
        """Keeps the four parts, so that a reader can add the file and the path of the field."""
        self.field = field
        self.found = found
        self.allowed = allowed
        self.source = source
        super().__init__(field, found, allowed)

    def __str__(self) -> str:
        """The one line that a user sees."""
        what = f"found {shown(self.found)}; allowed: {self.allowed}"
        line = ": ".join(part for part in (self.source, self.field, what) if part)
        return " ".join(line.splitlines())

    def inside(self, source: str = "", prefix: str = "") -> InputError:
        """The same complaint, seen from the file and the enclosing field that hold it."""
        joint = "." if prefix and self.field and not self.field.startswith("[") else ""
        return type(self)(
            f"{prefix}{joint}{self.field}",
            self.found,
            self.allowed,
            source=self.source or source,
        )


class NothingFeasibleError(AutoplanError):
    """The search ran as asked, and no plan in its space fits the devices."""

    exit_code = 1


class StorageError(AutoplanError, OSError):
    """The experiment database could not be read or written."""

    exit_code = 5


def require(condition: bool, field: str, found: object, allowed: str) -> None:
    """Raises InputError unless `condition` holds."""
    if not condition:
        raise InputError(field, found, allowed)
