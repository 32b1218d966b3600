"""The exchange of a stage's gradients between its replicas, group by group, while backward runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.execute.clocks import StepClock
from autoplan.execute.collectives import Collective
from autoplan.execute.gradient_groups import Gradients, GroupOrder, PlannedGroup
from autoplan.execute.priorities import communicate_first
from autoplan.execute.top_k import top_k
from autoplan.gradsync.costs import kept

Floats = NDArray[np.float32]
Indices = NDArray[np.int32]

_MOMENT_FLOATS = 4
"""A moment is two doubles, each as the float32 nearest to it and the float32 of the rest."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A group that may be exchanged, since when by both clocks, and what it sends if sparse."""

    group: int
    wall_s: float
    virtual_s: float
    sparse: tuple[Floats, Indices] | None


class ThreadedExchange:
    """Groups in the planned order, by a thread of their own, overlapping with backward.

    A sparse group sends the k largest elements of its gradient plus what it did not send before
    (error feedback). That residual lies in one buffer for the whole stage, addressed by parameter,
    so that another grouping of the same parameters finds all of it.

    Every buffer ends in a tail through which the replicas tell each other when they were ready, so
    that an exchange starts when the last of them is.
    """

    def __init__(
        self,
        gradients: Gradients,
        groups: tuple[PlannedGroup, ...],
        collective: Collective,
        *,
        rank: int,
        emulated_compute: bool,
        emulated_link: bool,
    ) -> None:
        """Makes the buffers and starts the thread."""
        self._gradients, self._collective = gradients, collective
        self._groups = tuple(group for group in groups if group.parameters[0] < group.parameters[1])
        self._emulated_compute, self._emulated_link = emulated_compute, emulated_link
        self._own_place = collective.members.index(rank)
        self._offsets = np.concatenate([[0], np.cumsum(gradients.sizes, dtype=np.int64)])
        self._scratch, self._buffers = self._made_buffers(_MOMENT_FLOATS * len(collective.members))
        sparse = any(group.density < 1 for group in self._groups)
        self._residual = np.zeros(int(self._offsets[-1]) if sparse else 0, np.float32)
        self._order = GroupOrder(self._groups)
        self._link_wall_s = self._link_virtual_s = 0.0
        self._clock: StepClock
        self._work: queue.Queue[_Ready | None] = queue.Queue()
        self._done: queue.Queue[Exception | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def begin(self, clock: StepClock) -> None:
        """A step starts; no group is ready."""
        self._clock = clock
        self._order.restart()
        self._link_wall_s = self._link_virtual_s = 0.0

    def mark_ready(self, parameter: int) -> None:
        """Hands over every group that this completes, in the planned order."""
        for number in self._order.due_after(parameter):
            self._hand_over(number)

    def finish(self) -> None:
        """Hands over the rest, whose parameters the loss does not depend on, and waits."""
        for number in self._order.rest():
            self._hand_over(number)
        for _ in self._groups:
            error = self._done.get()
            if error is not None:
                raise error
        self._clock.wait_virtually(self._link_virtual_s)

    def held_bytes(self) -> int:
        """Group buffers, and residuals of sparse groups."""
        own = sum(buffer.nbytes for buffer in self._buffers if buffer.base is None)
        return own + self._scratch.nbytes + self._residual.nbytes

    def close(self) -> None:
        """Ends the thread."""
        self._work.put(None)
        self._thread.join()

    def _made_buffers(self, tail: int) -> tuple[Floats, list[Floats]]:
        """A shared one, in which dense groups of one layer take turns, and one per group."""
        sizes = [self._elements(group) + tail for group in self._groups]
        shares = [group.layers == 1 and group.density == 1 for group in self._groups]
        most = max((n for n, shared in zip(sizes, shares, strict=True) if shared), default=0)
        scratch = np.zeros(most, np.float32)
        return scratch, [
            scratch[:size] if shared else np.zeros(size, np.float32)
            for size, shared in zip(sizes, shares, strict=True)
        ]

    def _hand_over(self, number: int) -> None:
        group, clock = self._groups[number], self._clock
        sparse = self._selected(number) if group.density < 1 else None
        self._work.put(_Ready(number, clock.wall_s(), clock.virtual_s(), sparse))
        if self._emulated_compute:
            clock.spend(group.handling_s)

    def _selected(self, number: int) -> tuple[Floats, Indices]:
        """The elements that a sparse group sends; the rest stays behind as its residual."""
        group = self._groups[number]
        k = int(kept(np.array(float(self._elements(group))), group.density))
        if self._emulated_compute:
            self._clock.spend(group.sparsify_s)
            return np.zeros(k, np.float32), np.arange(k, dtype=np.int32)
        residual = self._residual[self._span(group)]
        # The group's buffer is idle until it is handed over; a new array's pages would cost more
        # than the selection itself.
        gradient = self._buffers[number][: self._elements(group)]
        self._read(group, gradient)
        residual += gradient
        indices = top_k(residual, k)
        values = residual[indices]
        residual[indices] = 0.0
        return values, indices

    def _run(self) -> None:
        """The thread: one exchange after the other; a failure is told to whoever waits."""
        communicate_first()
        while (ready := self._work.get()) is not None:
            try:
                self._exchange(ready)
                self._done.put(None)
            except Exception as error:
                self._done.put(error)

    def _exchange(self, ready: _Ready) -> None:
        group = self._groups[ready.group]
        members = len(self._collective.members)
        buffer = self._buffers[ready.group]
        body, tail = buffer[: self._elements(group)], buffer[self._elements(group) :]
        if ready.sparse is None:
            self._read(group, body)
            tail[:] = 0.0
            _put_moment(tail, self._own_place, ready)
            self._collective.sum_in_place(buffer)
            moments = tail.reshape(members, _MOMENT_FLOATS)
        else:
            values, indices = ready.sparse
            row = np.zeros(len(values) + _MOMENT_FLOATS, np.float32)
            row[: len(values)] = values
            _put_moment(row[len(values) :], 0, ready)
            values_DK = self._collective.gather(row)
            indices_DK = self._collective.gather(indices)
            moments = values_DK[:, len(values) :]
            body[:] = 0.0
            for values_K, indices_K in zip(values_DK[:, : len(values)], indices_DK, strict=True):
                body[indices_K] += values_K  # a replica names no index twice
        self._write(group, body)
        self._end_at(group, moments.astype(np.float64))

    def _end_at(self, group: PlannedGroup, moments: NDArray[np.float64]) -> None:
        """Holds the link for as long as the model says from when all replicas were ready."""
        wall_s = float((moments[:, 0] + moments[:, 1]).max())
        virtual_s = float((moments[:, 2] + moments[:, 3]).max())
        self._link_virtual_s = max(self._link_virtual_s, virtual_s) + group.exchange_s
        if self._emulated_link:
            due_s = max(self._link_wall_s, wall_s) + group.exchange_s
            self._clock.sleep_until(due_s)
            self._link_wall_s = max(due_s, self._clock.wall_s())

    def _elements(self, group: PlannedGroup) -> int:
        first, end = group.parameters
        return int(self._offsets[end] - self._offsets[first])

    def _span(self, group: PlannedGroup) -> slice:
        first, end = group.parameters
        return slice(int(self._offsets[first]), int(self._offsets[end]))

    def _each(self, group: PlannedGroup, body: Floats, do: Callable[[int, Floats], None]) -> None:
        start = self._offsets[group.parameters[0]]
        for number in range(*group.parameters):
            low, high = self._offsets[number] - start, self._offsets[number + 1] - start
            do(number, body[low:high])

    def _read(self, group: PlannedGroup, body: Floats) -> None:
        self._each(group, body, self._gradients.read)

    def _write(self, group: PlannedGroup, body: Floats) -> None:
        self._each(group, body, self._gradients.write)


def _put_moment(tail: Floats, place: int, ready: _Ready) -> None:
    """Writes when a replica was ready into its part of a tail."""
    for i, seconds in enumerate((ready.wall_s, ready.virtual_s)):
        nearest = np.float32(seconds)
        at = place * _MOMENT_FLOATS + 2 * i
        tail[at] = nearest
        tail[at + 1] = np.float32(seconds - float(nearest))
