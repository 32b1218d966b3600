"""Cluster files as TOML, for people to read and change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autoplan.cluster.model import Cluster
from autoplan.documents import plain, write_atomic


def save_cluster(cluster: Cluster, path: str | Path, comments: Sequence[str] = ()) -> None:
    """Writes a file that `load_cluster` reads; raises InputError where it cannot.

    Args:
        cluster: what to write.
        path: where to.
        comments: lines for the head of the file.
    """
    head = [f"# {' '.join(line.split())}" for line in comments]
    write_atomic(path, "\n".join([*head, *_table(plain(cluster), "")]) + "\n")


def _table(values: dict[str, Any], name: str) -> Iterator[str]:
    """A table's own values first, then the tables in it."""
    inner = {key: value for key, value in values.items() if _has_tables(value)}
    for key, value in values.items():
        if key not in inner and value != []:
            yield f"{key} = {_text(value)}"
    for key, value in inner.items():
        path = f"{name}.{key}" if name else key
        for each in [value] if isinstance(value, dict) else value:
            yield ""
            yield f"[{path}]" if isinstance(value, dict) else f"[[{path}]]"
            yield from _table(each, path)


def _has_tables(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )


def _text(value: Any) -> str:
    """A scalar or a list of them; JSON and TOML write these alike."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False).replace("\x7f", "\\u007f")
