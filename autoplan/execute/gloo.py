"""Collectives by Paddle's Gloo."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.execute.collectives import Collective
from autoplan.execute.model_source import require_paddle
from autoplan.execute.sockets import free_port
from autoplan.execute.transport import Message, PostOffice

Floats = NDArray[np.float32]

_STORE_S = 60
"""How long members may keep each other waiting at the store through which they meet."""
_ALONE = 1
"""Members for whom a store waits before it serves: nobody calls before it does, since those who
call too early sleep for seconds."""


class GlooCollective:
    """One process group of Gloo; arrays and tensors share their memory."""

    name = "gloo"

    def __init__(self, group: Any, members: tuple[int, ...]) -> None:
        """Exchanges over a Paddle group of these ranks."""
        self._paddle = require_paddle()
        self._group = group
        self.members = members

    def sum_in_place(self, buffer: Floats) -> None:
        """One all-reduce."""
        tensor = self._paddle.from_dlpack(buffer)
        self._paddle.distributed.all_reduce(tensor, group=self._group)

    def gather(self, row: NDArray[Any]) -> NDArray[Any]:
        """One all-gather."""
        found: list[Any] = []
        tensor = self._paddle.from_dlpack(np.ascontiguousarray(row))
        self._paddle.distributed.all_gather(found, tensor, group=self._group)
        return np.stack([np.from_dlpack(each) for each in found])


def gloo_collectives(
    groups: Iterable[tuple[int, ...]], post: PostOffice, endpoints: tuple[str, ...]
) -> dict[tuple[int, ...], Collective]:
    """A collective for each group that holds this rank.

    Each group has a store of its own. Paddle keeps what members tell each other in one store, by
    their places in the group alone: a group that starts while that of another is still there finds
    addresses at which nobody listens any more (facts/realruns.md section 1).

    All ranks must call it with the same groups, which are connected in their order.

    Args:
        groups: of ranks, each rising.
        post: this rank's connections.
        endpoints: of each rank, "host:port"; only the hosts count.
    """
    os.environ["PADDLE_TRAINER_ID"] = str(post.rank)  # asked for, whatever comes of it
    return {
        members: GlooCollective(_connected(number, members, post, endpoints), members)
        for number, members in enumerate(sorted(set(groups)), start=1)
        if post.rank in members
    }


def _connected(
    number: int, members: tuple[int, ...], post: PostOffice, endpoints: tuple[str, ...]
) -> Any:
    """A Paddle group of these ranks, the first of whom serves the store."""
    core = require_paddle().base.core
    leader, *others = members
    host, place = endpoints[leader].rpartition(":")[0], members.index(post.rank)
    if post.rank == leader:
        port = free_port()
        store = core.TCPStore(host, port, True, _ALONE, _STORE_S)
        for rank in others:
            post.send(rank, "collective", Message(arrays=(np.array([port]),)))
    else:
        told = post.receive(leader, "collective").arrays[0]
        assert told is not None
        store = core.TCPStore(host, int(told[0]), False, _ALONE, _STORE_S)
    joined = core.ProcessGroupGloo.create(store, place, len(members), number)
    group = require_paddle().distributed.communication.group.Group
    return group(place, number, list(members), pg=joined, name=f"replicas {number}")
