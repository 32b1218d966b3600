"""Files of people and machines: bounded reads, strict parsing, canonical JSON, atomic writes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import stat
import tempfile
import tomllib
import types
import typing
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import pydantic_core

from autoplan.errors import InputError, words

T = TypeVar("T")

MAX_BYTES = 256 * 2**20
"""Largest file that is read; a profile of ten thousand layers takes a few megabytes."""

STRICT = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""What a dataclass sets as `__pydantic_config__` to be read from documents."""


def read_bytes(path: str | Path) -> bytes:
    """The content of a regular, non-empty file of at most MAX_BYTES.

    Raises:
        InputError: it is absent, not a file, empty, too large or unreadable.
    """
    source = str(path)
    try:
        status = os.stat(path)
        regular = stat.S_ISREG(status.st_mode)
        usable = regular and status.st_size <= MAX_BYTES
        data = Path(path).read_bytes() if usable else b""
    except FileNotFoundError:
        raise InputError("", words("no such file"), "an existing file", source=source) from None
    except (OSError, ValueError) as error:
        found = words(f"an unreadable file ({error})")
        raise InputError("", found, "a file", source=source) from None
    if not regular:
        found = words("something that is not a regular file")
        raise InputError("", found, "a file", source=source)
    if not usable:
        found = words(f"{status.st_size} bytes")
        raise InputError("", found, f"at most {MAX_BYTES} bytes", source=source)
    if not data.strip():
        raise InputError("", words("an empty file"), "a document", source=source)
    return data


def decode(data: bytes, source: str) -> str:
    """`data` as UTF-8 text.

    Raises:
        InputError: it is not text.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        found = words(f"byte 0x{data[error.start]:02x} at offset {error.start}")
        raise InputError("", found, "UTF-8 text", source=source) from None
    if "\0" in text:
        found = words(f"a NUL character at offset {text.index(chr(0))}")
        raise InputError("", found, "UTF-8 text", source=source)
    return text


def json_value(data: bytes, source: str) -> Any:
    """Parses JSON of any shape.

    Raises:
        InputError: it is not JSON.
    """
    try:
        return pydantic_core.from_json(decode(data, source), allow_inf_nan=False)
    except ValueError as error:
        raise InputError(
            "", words(f"broken JSON ({error})"), "a JSON document", source=source
        ) from None


def toml_value(path: str | Path) -> dict[str, Any]:
    """Parses a TOML file.

    Raises:
        InputError: it cannot be read or is not TOML.
    """
    text = decode(read_bytes(path), str(path))
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: broken, or too many digits
        found = words(f"broken TOML ({error})")
        raise InputError("", found, "a TOML document", source=str(path)) from None


def build(kind: type[T], value: object, source: str, prefix: str = "") -> T:
    """Builds the dataclass `kind` from a parsed document, strictly.

    Args:
        kind: a dataclass whose `__pydantic_config__` is STRICT.
        value: what a JSON or TOML parser returned.
        source: the file's name for messages.
        prefix: the path of `value` inside the file.

    Raises:
        InputError: a wrong type, a missing or unknown field, or a value that `kind` refuses.
    """
    return _validated(kind, json.dumps(value, default=str).encode(), source, prefix)


def build_json(kind: type[T], data: bytes, source: str) -> T:
    """Builds the dataclass `kind` from JSON text; raises InputError like `build`."""
    decode(data, source)
    return _validated(kind, data, source, "")


def _validated(kind: type[T], data: bytes, source: str, prefix: str) -> T:
    try:
        return typing.cast(T, _adapter(typing.cast(Hashable, kind)).validate_json(data))
    except pydantic.ValidationError as error:
        raise _first_complaint(kind, error).inside(source, prefix) from None


@functools.cache
def _adapter(kind: Hashable) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(typing.cast(Any, kind))


def _first_complaint(kind: type, error: pydantic.ValidationError) -> InputError:
    """Turns the first of pydantic's errors into one of ours."""
    detail = error.errors(include_url=False)[0]
    location, what = detail["loc"], detail["type"]
    if what in {"unexpected_keyword_argument", "extra_forbidden"}:
        owner = _type_at(kind, location[:-1])
        names = ", ".join(field.name for field in dataclasses.fields(owner)) if owner else "nothing"
        return InputError(_path(location), words("an unknown field"), names)
    if what in {"missing", "missing_argument", "missing_keyword_only_argument"}:
        return InputError(_path(location), words("nothing"), "this field is required")
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause.inside(prefix=_path(location))
    allowed = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    found = words("a broken document") if what == "json_invalid" else detail["input"]
    return InputError(_path(location), found, allowed[:1].lower() + allowed[1:])


def _path(location: tuple[int | str, ...]) -> str:
    """`("layers", 3, "name")` as `layers[3].name`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _type_at(kind: object, location: tuple[int | str, ...]) -> Any:
    """The dataclass that the fields of `location` lead to, or None."""
    for part in location:
        kind = _element(kind) if isinstance(part, int) else _member(kind, part)
    kind = _present(kind)
    return kind if dataclasses.is_dataclass(kind) else None


def _member(kind: Any, name: str) -> Any:
    """The type of a dataclass's field, or of a mapping's values."""
    kind = _present(kind)
    if dataclasses.is_dataclass(kind):
        return typing.get_type_hints(kind).get(name)
    return typing.get_args(kind)[-1] if typing.get_origin(kind) is dict else None


def _element(kind: Any) -> Any:
    """What a tuple or a list holds."""
    arguments = typing.get_args(_present(kind))
    return arguments[0] if arguments else None


def _present(kind: Any) -> Any:
    """The type of an optional that is there; other types as they are."""
    if typing.get_origin(kind) in {types.UnionType, typing.Union}:
        return next((arg for arg in typing.get_args(kind) if arg is not types.NoneType), None)
    return kind


def plain(value: Any) -> Any:
    """A dataclass tree as dicts, lists and scalars, in declaration order, None left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: plain(item) for name, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def canonical_json(value: object) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN, 2.0 and 2 alike."""
    same = _whole_as_int(plain(value))
    return json.dumps(same, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _whole_as_int(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole_as_int(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_as_int(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def identity(value: object) -> str:
    """The sha256, in hexadecimal, of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def pretty_json(value: object) -> str:
    """JSON for files that people read: indented, short lists of scalars on one line."""
    return _pretty(plain(value), "") + "\n"


def _pretty(value: Any, indent: str) -> str:
    deeper = indent + "  "
    flat = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or len(indent) + len(flat) <= 88:
        return flat
    if isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {_pretty(item, deeper)}" for key, item in value.items()]
    else:
        rows = [_pretty(item, deeper) for item in value]
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    body = f",\n{deeper}".join(rows)
    return f"{opening}\n{deeper}{body}\n{indent}{closing}"


def require_writable(path: str | Path, field: str) -> None:
    """Refuses a file that could not be written later; makes nothing.

    Args:
        path: the file.
        field: the option or field that names it.

    Raises:
        InputError: it is a folder, or its nearest folder that exists takes no files.
    """
    target = Path(path)
    allowed = "a place that can be written"
    if target.is_dir():
        raise InputError(field, words("a folder"), "a file", source=str(path))
    parent = target.absolute().parent
    while not os.path.lexists(parent):
        parent = parent.parent
    try:
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        found = words(f"no place to write ({error.strerror}: {parent})")
        raise InputError(field, found, allowed, source=str(path)) from None


def write_atomic(path: str | Path, text: str) -> None:
    """Writes a text file whole or not at all, making its folder where needed.

    Raises:
        InputError: the place cannot be written.
    """
    target = Path(path)
    temporary = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            # Lone surrogates (from file names) become the escapes that JSON reads back.
            stream.write(text.encode("utf-8", "backslashreplace"))
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except (OSError, ValueError) as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        found = words(f"a failure to write ({error})")
        raise InputError("", found, "a place that can be written", source=str(path)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
