"""One rank's part of a step: the schedule's order of work, and the transfers around it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoplan.execute.clocks import StepClock
from autoplan.execute.gradient_groups import Exchange
from autoplan.execute.peers import Peers, part_of
from autoplan.execute.stage_work import StageWork
from autoplan.execute.transport import Channel, Message, PostOffice
from autoplan.pipeline.schedule import stage_order
from autoplan.plan import Plan

Array = NDArray[Any]


class Neighbours(Protocol):
    """How a stage's tensors reach the stages beside it."""

    def begin(self, clock: StepClock) -> None:
        """A step starts."""

    def receive(self, way: int) -> Message | None:
        """What the stage before (way 0) or after (way 1) sent next; None where there is none."""

    def send(self, way: int, message: Message | None) -> None:
        """Sends to the stage after (way 0) or before (way 1), if there is one."""


class StageRunner:
    """Runs steps of one plan on one rank."""

    def __init__(
        self, plan: Plan, stage: int, work: StageWork, exchange: Exchange, neighbours: Neighbours
    ) -> None:
        """Puts the parts together."""
        self._order = stage_order(plan.schedule, stage, len(plan.stages), plan.microbatches)
        self._last_backward = ~(plan.microbatches - 1)
        self._work, self._exchange, self._neighbours = work, exchange, neighbours

    def step(self, clock: StepClock) -> float | None:
        """All microbatches forward and backward, the exchange of gradients, the update."""
        work = self._work
        work.begin(clock)
        self._exchange.begin(clock)
        self._neighbours.begin(clock)
        for piece in self._order:
            if piece >= 0:
                output = work.forward(piece, self._neighbours.receive(0))
                self._neighbours.send(0, output)
                continue
            final = piece == self._last_backward
            received = self._neighbours.receive(1)
            ready = self._exchange.mark_ready if final else None
            self._neighbours.send(1, work.backward(~piece, received, ready))
        self._exchange.finish()
        return work.update()


class SocketNeighbours:
    """Transfers by the ranks' own connections; replicas exchange the samples that they share."""

    def __init__(
        self, peers: Peers, send_s: tuple[float, float], post: PostOffice, *, emulated_link: bool
    ) -> None:
        """Takes with whom this replica shares samples.

        Args:
            peers: the replicas on both sides.
            send_s: seconds of a microbatch's way to the stage after and to the one before.
            post: this rank's connections.
            emulated_link: whether these seconds are slept.
        """
        self._peers, self._send_s = peers, send_s
        self._post, self._emulated = post, emulated_link
        self._clock: StepClock
        self._link_virtual_s = [0.0, 0.0]

    def begin(self, clock: StepClock) -> None:
        """A step starts with idle links."""
        self._clock = clock
        self._link_virtual_s = [0.0, 0.0]

    def receive(self, way: int) -> Message | None:
        """Joins what the replicas on that side sent, in the order of their samples."""
        peers = self._peers.after if way else self._peers.before
        if not peers:
            return None
        parts = [self._post.receive(peer.rank, _CHANNELS[way]) for peer in peers]
        self._clock.wait_virtually(max(part.arrival_s for part in parts))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def send(self, way: int, message: Message | None) -> None:
        """Splits the samples among the replicas on the other side."""
        peers = self._peers.before if way else self._peers.after
        if not peers or message is None:
            return
        send_s = self._send_s[way]
        leave_s = max(self._link_virtual_s[way], self._clock.virtual_s())
        self._link_virtual_s[way] = leave_s + send_s
        for peer in peers:
            part = Message(
                arrays=tuple(
                    None if a is None else part_of(a, peer, len(peers), self._peers.samples)
                    for a in message.arrays
                ),
                needs_gradient=message.needs_gradient,
                arrival_s=leave_s + send_s,
            )
            hold_s = send_s if self._emulated else 0.0
            self._post.send(peer.rank, _CHANNELS[way], part, hold_s)


_CHANNELS: tuple[Channel, Channel] = ("forward", "backward")


def _joined(parts: list[Message]) -> Message:
    arrays: list[Array | None] = []
    for column in zip(*(part.arrays for part in parts), strict=True):
        there = [array for array in column if array is not None]
        arrays.append(np.concatenate(there) if len(there) == len(column) else None)
    flags = zip(*(part.needs_gradient for part in parts), strict=True)
    return Message(arrays=tuple(arrays), needs_gradient=tuple(any(column) for column in flags))
