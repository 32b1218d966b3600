"""A local file that keeps scored plans while the database is away.

One JSON line per batch, appended and forced to disk, so that a batch is there whole or not at all:
a last line without its end, from a program that was killed, was never acknowledged.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autoplan.documents import STRICT, build_json, canonical_json, identity
from autoplan.errors import InputError, StorageError
from autoplan.results.rows import ScoredPlan
from autoplan.storage.url import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One line."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-spool/1"] = "autoplan-spool/1"
    identities: dict[str, str]
    """sha256 of the parts of the experiment that the plans were scored for."""
    scores: tuple[ScoredPlan, ...]
    sha256: str
    """Of the scores, since no database looks after these lines."""


class Spool:
    """The waiting batches of one experiment and one database."""

    def __init__(self, folder: Path, storage: Storage, experiment: str) -> None:
        """Makes nothing; the file's name holds no secret."""
        self.storage = storage
        key = hashlib.sha256(storage.shown.encode()).hexdigest()[:8]
        name = re.sub(r"[^\w.-]", "_", experiment)
        self.path = folder / f"{name}.{key}.spool.jsonl"

    def append(self, identities: Mapping[str, str], scores: Sequence[ScoredPlan]) -> None:
        """Adds a batch of plans that are `storable`.

        Raises:
            StorageError: this place cannot be written either.
        """
        kept = tuple(scores)
        batch = _Batch(identities=dict(identities), scores=kept, sha256=identity(kept))
        line = canonical_json(batch) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                self._cut_torn_line()
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self.path}: scored plans could not be kept here until the database is back "
                f"({error.strerror})"
            ) from None

    def batches(self, identities: Mapping[str, str]) -> Iterator[tuple[ScoredPlan, ...]]:
        """The waiting batches of this experiment, oldest first.

        Raises:
            StorageError: a line is damaged, or of another experiment; the file is left as it is.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}") from None
        lines = data.split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):
            yield self._read(line, number, identities)

    def discard(self) -> None:
        """Ends the wait: all batches are in the database."""
        self.path.unlink(missing_ok=True)

    def _read(
        self, line: bytes, number: int, identities: Mapping[str, str]
    ) -> tuple[ScoredPlan, ...]:
        source = f"{self.path}: line {number}"
        try:
            batch = build_json(_Batch, line, source)
        except InputError as error:
            raise StorageError(f"{error}; move the file away to go on without it") from None
        if identity(batch.scores) != batch.sha256:
            raise StorageError(f"{source}: it is damaged; move the file away to go on without it")
        if batch.identities != dict(identities):
            raise StorageError(
                f"{source}: it holds plans of another experiment of the same name; move the file "
                f"away to go on without it"
            )
        return batch.scores

    def _cut_torn_line(self) -> None:
        """Removes a last line without its end."""
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            os.truncate(self.path, data.rfind(b"\n") + 1)
