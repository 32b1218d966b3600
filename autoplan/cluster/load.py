"""Cluster files: TOML that may name devices and links of the catalog."""

from __future__ import annotations

import difflib
import functools
from importlib import resources
from pathlib import Path
from typing import Any

from autoplan.cluster.model import Cluster
from autoplan.documents import build, decode, toml_value
from autoplan.errors import InputError

_CATALOG_FIELDS = {"device": "devices", "intra_node": "links", "inter_node": "links"}


def load_cluster(path: str | Path) -> Cluster:
    """Reads a cluster file.

    Raises:
        InputError: it cannot be read, names something the catalog lacks, or is not a valid cluster.
    """
    return resolve_cluster(toml_value(path), str(path))


def resolve_cluster(document: dict[str, Any], source: str, prefix: str = "") -> Cluster:
    """Builds a cluster from a parsed table, names of the catalog replaced by their entries.

    Raises:
        InputError: it names something the catalog lacks, or is not a valid cluster.
    """
    resolved = dict(document)
    for field, kind in _CATALOG_FIELDS.items():
        name = document.get(field)
        if isinstance(name, str):
            resolved[field] = _entry(kind, name, source, f"{prefix}.{field}" if prefix else field)
    return build(Cluster, resolved, source, prefix)


def _entry(kind: str, name: str, source: str, field: str) -> dict[str, Any]:
    known = catalog(kind)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        allowed = f"a table, or one of {', '.join(sorted(known))}{hint}"
        raise InputError(field, name, allowed, source=source)
    return known[name]


@functools.cache
def catalog(kind: str) -> dict[str, dict[str, Any]]:
    """Entries of the shipped catalog: kind is "devices" or "links"."""
    import tomllib

    source = resources.files("autoplan.cluster") / "catalog" / f"{kind}.toml"
    return tomllib.loads(decode(source.read_bytes(), str(source)))
