"""Least costs of a workload's layers, in the words of the bound for very large problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from autoplan.gradsync import GroupCost
from autoplan.gradsync.costs import ElementCost
from autoplan.pipeline.bounds import prefix
from autoplan.pipeline.large_bounds import LargeProblem
from autoplan.pipeline.large_memory import StageMemory
from autoplan.prediction import ROUNDING
from autoplan.stage_costs import StageCosts

Floats = NDArray[np.float64]

_FEW, _MANY = 2.0**-40, np.array([2.0**40, 2.0**41])
"""Elements at which an exchange shows its latency alone, and at which its slope."""
_SLOPE_MARGIN = 1e-6
"""Rounding k down to whole elements lets a slope be this little lower."""


def large_problem(
    costs: StageCosts,
    replicas: Sequence[int],
    receive_s_RC: Floats,
    exchanges: Callable[[int], list[GroupCost]],
    *,
    microbatches: int,
    devices: int,
    may_recompute: bool,
    may_alternate: bool,
) -> LargeProblem:
    """The least costs for one number of microbatches.

    Args:
        costs: of the workload on its cluster.
        replicas: what stages may have, rising; each divides the microbatch's samples, or is 1.
        receive_s_RC: least seconds for so many replicas to receive a microbatch over each cut.
        exchanges: what a group can cost with so many replicas, in any place; nothing: unknown.
        microbatches: per step.
        devices: that all stages share.
        may_recompute: whether stages may recompute their forward.
        may_alternate: whether a schedule may do backwards before all forwards are done.
    """
    samples_R = costs.job.global_batch // microbatches / np.array(replicas)
    seconds = [costs.layer_seconds(float(samples)) for samples in samples_R]
    return LargeProblem(
        replicas_R=np.array(replicas, dtype=np.int64),
        forward_s_RL=np.stack([choice.forward_s_L for choice in seconds]),
        backward_s_RL=np.stack([choice.backward_s_L for choice in seconds]),
        receive_s_RC=receive_s_RC,
        elements_L=costs.elements_L,
        exchange_R2=np.array([_line_below(exchanges(r)) for r in replicas]),
        optimizer_s_per_element=costs.optimizer_s_per_element,
        memory=StageMemory(
            static_bytes_C=prefix(costs.static_bytes_L),
            stash_bytes_RC=prefix(costs.stash_bytes_L) * samples_R[:, None],
            received_bytes_RC=costs.cut_bytes_C * samples_R[:, None],
            available_bytes=costs.available_bytes * (1 + ROUNDING),
            may_recompute=may_recompute,
            may_alternate=may_alternate,
            microbatches=microbatches,
        ),
        microbatches=microbatches,
        devices=devices,
    )


def _line_below(exchanges: list[GroupCost]) -> tuple[float, float]:
    """Seconds, and seconds per element, that no grouping of a stage's gradients goes below.

    Costs are the cheapest of straight lines, so each is at least its latency plus its last slope.
    """
    if not exchanges:
        return 0.0, 0.0
    many = [cast(ElementCost, exchange.communicate).many for exchange in exchanges]
    slope = min(float(np.diff(at(_MANY))[0]) / float(np.diff(_MANY)[0]) for at in many)
    dense = all(exchange.density == 1 for exchange in exchanges)
    latency = min(float(at(np.array([_FEW]))[0]) for at in many) - slope * _FEW if dense else 0.0
    return max(latency, 0.0), slope * (1 - _SLOPE_MARGIN)
