"""A rank's part in measuring links: one transfer or collective at a time, by what plans use."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from autoplan.documents import STRICT
from autoplan.execute.collectives import Collective
from autoplan.execute.transport import Message, PostOffice

OTHER_BYTES = 1 << 26
"""More than a core's own caches hold, and its share of those that it has in common with others."""

ProbedOperation = Literal["transfer", "all_reduce", "all_gather"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOrder:
    """What some ranks are to time."""

    __pydantic_config__ = STRICT

    operation: ProbedOperation
    ranks: tuple[int, ...]
    """Who takes part; of a transfer the sender and the receiver."""
    size_bytes: int
    """Of a transfer; of the buffer that is reduced, or gathered in all."""
    repeats: int
    cold: bool = False
    """Whether caches are left as cold as a stage's compute leaves them, and nobody meets before."""


class LinkProbe(Protocol):
    """The operations, on a host or a GPU; each returns when it is done."""

    def meet(self, members: tuple[int, ...]) -> None:
        """Waits for the other members."""

    def round_trip(self, members: tuple[int, ...], size_bytes: int) -> None:
        """Sends to the other rank, which sends as much back."""

    def all_reduce(self, members: tuple[int, ...], size_bytes: int) -> None:
        """Sums a buffer of so many bytes."""

    def all_gather(self, members: tuple[int, ...], size_bytes: int) -> None:
        """Gathers so many bytes in all."""


def timed(probe: LinkProbe, order: ProbeOrder) -> tuple[list[float], list[float]]:
    """Wall and CPU seconds of each repeat on this rank, of one way of a transfer.

    The first repeat is left out.
    """
    calls = {
        "transfer": probe.round_trip,
        "all_reduce": probe.all_reduce,
        "all_gather": probe.all_gather,
    }
    call = calls[order.operation]
    ways = 2 if order.operation == "transfer" else 1
    others = np.ones(OTHER_BYTES if order.cold else 0, np.uint8)
    wall_s, cpu_s = [], []
    for _ in range(order.repeats + 1):
        if order.cold:
            others += 1
        else:
            probe.meet(order.ranks)
        started_s = time.perf_counter(), time.process_time()
        call(order.ranks, order.size_bytes)
        wall_s.append((time.perf_counter() - started_s[0]) / ways)
        cpu_s.append((time.process_time() - started_s[1]) / ways)
    return wall_s[1:], cpu_s[1:]


class HostProbe:
    """By the ranks' own connections, and Gloo or a ring."""

    def __init__(self, post: PostOffice, collectives: dict[tuple[int, ...], Collective]) -> None:
        """Takes this rank's connections and the groups that it is a member of."""
        self._post, self._collectives = post, collectives

    def meet(self, members: tuple[int, ...]) -> None:
        """One small sum."""
        self._collectives[members].sum_in_place(np.zeros(len(members), np.float32))

    def round_trip(self, members: tuple[int, ...], size_bytes: int) -> None:
        """The second member echoes."""
        payload = Message(arrays=(np.zeros(size_bytes, np.uint8),))
        if self._post.rank == members[0]:
            self._post.send(members[1], "forward", payload)
            self._post.receive(members[1], "backward")
        else:
            self._post.receive(members[0], "forward")
            self._post.send(members[0], "backward", payload)

    def all_reduce(self, members: tuple[int, ...], size_bytes: int) -> None:
        """As dense groups do it."""
        self._collectives[members].sum_in_place(np.zeros(max(1, size_bytes // 4), np.float32))

    def all_gather(self, members: tuple[int, ...], size_bytes: int) -> None:
        """As sparse groups do it."""
        own = max(1, size_bytes // 4 // len(members))
        self._collectives[members].gather(np.zeros(own, np.float32))


class GpuProbe:
    """By Paddle's groups on the device."""

    def __init__(
        self,
        paddle: Any,
        rank: int,
        replicas: dict[tuple[int, ...], Any],
        pairs: dict[tuple[int, int], Any],
    ) -> None:
        """Takes the groups of `nccl.NcclGroups`."""
        self._paddle, self._rank = paddle, rank
        self._replicas, self._pairs = replicas, pairs

    def meet(self, members: tuple[int, ...]) -> None:
        """One small sum."""
        self.all_reduce(members, 4)

    def round_trip(self, members: tuple[int, ...], size_bytes: int) -> None:
        """The second member echoes."""
        first, second = members
        out, back = self._pairs[first, second], self._pairs[second, first]
        tensor = self._paddle.zeros([max(1, size_bytes // 4)])
        distributed = self._paddle.distributed
        if self._rank == first:
            distributed.isend(tensor, second, out).wait()
            distributed.irecv(tensor, second, back).wait()
        else:
            distributed.irecv(tensor, first, out).wait()
            distributed.isend(tensor, first, back).wait()
        float(tensor[0])  # the host waits for the device

    def all_reduce(self, members: tuple[int, ...], size_bytes: int) -> None:
        """As dense groups do it."""
        tensor = self._paddle.zeros([max(1, size_bytes // 4)])
        self._paddle.distributed.all_reduce(tensor, group=self._replicas[members])
        float(tensor[0])

    def all_gather(self, members: tuple[int, ...], size_bytes: int) -> None:
        """As sparse groups do it."""
        row = self._paddle.zeros([max(1, size_bytes // 4 // len(members))])
        rows: list[Any] = []
        self._paddle.distributed.all_gather(rows, row, group=self._replicas[members])
        float(rows[-1][0])
