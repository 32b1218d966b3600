"""Sums and gathers over the replicas of a stage, on CPUs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoplan.execute.transport import Message, PostOffice

Floats = NDArray[np.float32]


class Collective(Protocol):
    """What a gradient exchange asks of the replicas' connection. Axis: D replicas, by rank."""

    name: str
    """Who does it."""
    members: tuple[int, ...]
    """Ranks of the replicas, rising."""

    def sum_in_place(self, buffer: Floats) -> None:
        """Adds up the buffers of all replicas, bit for bit the same on each."""

    def gather(self, row: NDArray[Any]) -> NDArray[Any]:
        """The rows of all replicas, (D, n)."""


class RingCollective:
    """Reduce-scatter and all-gather around a ring of the ranks' own connections.

    It needs no framework, and waits as long as it takes: Gloo gives up after 30 s
    (facts/realruns.md section 1).
    """

    name = "ring"

    def __init__(self, post: PostOffice, members: tuple[int, ...]) -> None:
        """Exchanges among `members`, of whom the caller is one."""
        self.members = members
        self._post = post
        self._place = members.index(post.rank)
        self._next = members[(self._place + 1) % len(members)]
        self._previous = members[self._place - 1]

    def sum_in_place(self, buffer: Floats) -> None:
        """Each part is added up in one order on its way around, then passed on as it is."""
        count = len(self.members)
        edges = np.linspace(0, len(buffer), count + 1).astype(int)
        parts = [buffer[edges[i] : edges[i + 1]] for i in range(count)]
        for turn in range(count - 1):
            # A part is copied out before it is sent: the next turns write to the buffer.
            self._pass_on(parts[(self._place - turn) % count].copy())
            parts[(self._place - turn - 1) % count] += self._take()
        for turn in range(count - 1):
            self._pass_on(parts[(self._place + 1 - turn) % count].copy())
            parts[(self._place - turn) % count][...] = self._take()

    def gather(self, row: NDArray[Any]) -> NDArray[Any]:
        """Every row travels once around."""
        count = len(self.members)
        rows = np.empty((count, *row.shape), dtype=row.dtype)
        rows[self._place] = row
        for turn in range(count - 1):
            self._pass_on(rows[(self._place - turn) % count])
            rows[(self._place - turn - 1) % count] = self._take()
        return rows

    def _pass_on(self, part: NDArray[Any]) -> None:
        self._post.send(self._next, "collective", Message(arrays=(part,)))

    def _take(self) -> NDArray[Any]:
        found = self._post.receive(self._previous, "collective").arrays[0]
        assert found is not None
        return found
