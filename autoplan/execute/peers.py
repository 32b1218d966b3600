"""With whom a replica exchanges samples across the cuts before and after its stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoplan.cluster.placement import shared_samples
from autoplan.errors import InputError, words
from autoplan.execute.step_costs import StepCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A replica on the other side of a cut."""

    rank: int
    share: tuple[float, float]
    """Which part of one's own samples it has, as shares of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The replicas on both sides, in the order of their samples."""

    before: tuple[Peer, ...]
    after: tuple[Peer, ...]
    samples: int
    """One's own samples of a microbatch."""


def peers_of(costs: StepCosts, stage: int, replica: int) -> Peers:
    """With whom a replica of a stage shares samples."""
    ranks = [each.ranks for each in costs.stages]
    return Peers(
        before=_across(ranks[stage - 1], ranks[stage], replica, False) if stage > 0 else (),
        after=(
            _across(ranks[stage], ranks[stage + 1], replica, True) if stage + 1 < len(ranks) else ()
        ),
        samples=costs.stages[stage].samples,
    )


def part_of(tensor: Any, peer: Peer, peers: int, samples: int) -> Any:
    """The part of a tensor that goes to one of so many peers.

    Raises:
        InputError: there are several, and the tensor's leading axis does not count samples.
    """
    if peers == 1:
        return tensor
    if tensor.ndim == 0 or tensor.shape[0] != samples:
        found = words(f"a tensor of shape {list(tensor.shape)} for {samples} samples")
        allowed = "tensors whose leading axis counts samples, where replicas differ in number"
        raise InputError("output of a stage", found, allowed)
    low, high = (round(share * samples) for share in peer.share)
    return tensor[low:high]


def _across(
    upstream: tuple[int, ...], downstream: tuple[int, ...], replica: int, is_upstream: bool
) -> tuple[Peer, ...]:
    ranks = downstream if is_upstream else upstream
    replicas = len(upstream) if is_upstream else len(downstream)
    found = []
    done = 0.0
    for i, j, share in shared_samples(len(upstream), len(downstream)):
        own, other = (i, j) if is_upstream else (j, i)
        if own == replica:
            end = done + share * replicas
            found.append(Peer(rank=ranks[other], share=(done, end)))
            done = end
    return tuple(found)
