"""Our answer to another planner's problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoplan.pipeline.ideal_stages import ChainOfStages


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """Our chain for a peer's problem, with the peer's ids of what is in the stages."""

    chain: ChainOfStages
    stage_ids: tuple[tuple[str, ...], ...]


def solved_with(chain: ChainOfStages, ids: Sequence[Any]) -> Solved:
    """Adds the peer's ids, of a node or of all nodes in a unit."""
    named = []
    for stage in chain.stages:
        groups = [ids[unit] if isinstance(ids[unit], list) else [ids[unit]] for unit in stage.units]
        named.append(tuple(str(name) for group in groups for name in group))
    return Solved(chain=chain, stage_ids=tuple(named))
