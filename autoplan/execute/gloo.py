"""Collectives by Paddle's Gloo, for the groups that it connects reliably."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.execute.collectives import Collective, RingCollective
from autoplan.execute.model_source import require_paddle
from autoplan.execute.transport import PostOffice

Floats = NDArray[np.float32]

MOST_RANKS_OF_A_PART = 2
"""Larger groups that are not the whole world are refused connections now and then."""


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


def group_environment(rank: int, endpoints: tuple[str, ...], backend: str) -> dict[str, str]:
    """The variables by which Paddle finds the other ranks."""
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(len(endpoints)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_MASTER": endpoints[0],
        "PADDLE_DISTRI_BACKEND": backend,
    }


def served_by_gloo(members: tuple[int, ...], world: int) -> bool:
    """Whether Gloo connects a group of these ranks reliably."""
    return len(members) > 1 and len(members) in {MOST_RANKS_OF_A_PART, world}


def gloo_collectives(
    groups: Iterable[tuple[int, ...]], post: PostOffice, environment: Mapping[str, str]
) -> dict[tuple[int, ...], Collective]:
    """A collective for each group that holds this rank: Gloo where it serves, else a ring.

    All ranks must call it with the same groups in the same order, as Paddle counts groups.
    """
    wanted = sorted(set(groups))
    world = int(environment["PADDLE_TRAINERS_NUM"])
    os.environ.update(environment)
    distributed = require_paddle().distributed
    distributed.init_parallel_env()
    found: dict[tuple[int, ...], Collective] = {}
    for members in wanted:
        if not served_by_gloo(members, world):
            continue
        group = None if len(members) == world else distributed.new_group(list(members))
        if post.rank in members:
            found[members] = GlooCollective(group, members)
    return {
        members: found.get(members) or RingCollective(post, members)
        for members in wanted
        if post.rank in members
    }
