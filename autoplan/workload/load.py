"""Reading a workload from a file of any known format."""

from __future__ import annotations

from pathlib import Path

from autoplan import documents
from autoplan.errors import InputError, words
from autoplan.workload.model import Workload
from autoplan.workload.readers import READERS, Document, ReadOptions

__all__ = ["ReadOptions", "load_workload"]


def load_workload(path: str | Path, options: ReadOptions | None = None) -> Workload:
    """Reads a model's costs, telling the format from the content.

    Args:
        path: a file of one of the formats of `readers.READERS`.
        options: what the file does not say of itself.

    Returns:
        The model as a chain; its provenance has the file's hash and notes on every assumption,
        those that begin with "warning:" being doubts about the file.

    Raises:
        InputError: the file cannot be read, is of no known format, or is wrong somewhere.
    """
    document = Document(source=str(path), data=documents.read_bytes(path))
    for reader in READERS:
        if reader.matches(document):
            try:
                return reader.read(document, options or ReadOptions())
            except InputError as error:
                raise error.inside(document.source) from None
    known = "; ".join(reader.format for reader in READERS)
    found = words("a file of an unknown format")
    raise InputError("", found, f"one of: {known}", source=document.source)
