"""What a reader of measured figures must know beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoplan.execute.verification import VerifiedPlan

_SAME_LOSS = 1e-4
"""Relative difference up to which two sums of many numbers count as the same."""


def run_notes(plans: Sequence[VerifiedPlan]) -> list[str]:
    """Conditions of the machine, and whether training went as it must."""
    return [*_machine(plans), *_training(plans)]


def _machine(plans: Sequence[VerifiedPlan]) -> list[str]:
    notes = []
    runs = [each.run for each in plans]
    known = next((run.environment for run in runs if run.environment is not None), None)
    if known is not None and known.ranks > known.cores and runs[0].modes.compute == "real":
        notes.append(
            f"{known.ranks} ranks shared {known.cores} cores: only the virtual clock can tell "
            f"what each would take on a core of its own"
        )
    if known is not None and known.drift is not None:
        notes.append(
            f"layers by themselves took {known.profile_ratio_before:.3f} of the workload's seconds "
            f"in the ranks before the runs, {known.profile_ratio_after:.3f} after: drift "
            f"{100 * known.drift:+.1f} %"
        )
    loads = [load for run in runs for load in run.foreign_load]
    if loads:
        notes.append(f"foreign load during the steps: up to {100 * max(loads):.0f} % of all cores")
    return notes


def _training(plans: Sequence[VerifiedPlan]) -> list[str]:
    """Losses and parameters that are not what a sound run gives."""
    learned = [each for each in plans if each.run.losses]
    found = {
        "the loss did not stay finite": [
            each.name for each in learned if not all(map(math.isfinite, each.run.losses))
        ],
        "the loss did not fall": [
            each.name
            for each in learned
            if len(each.run.losses) > 1 and each.run.losses[-1] >= each.run.losses[0]
        ],
        "replicas ended with different parameters": [
            each.name for each in plans if each.run.replicas_agree is False
        ],
    }
    notes = [f"warning: {what}: {', '.join(names)}" for what, names in found.items() if names]
    last = {each.name: each.run.losses[-1] for each in learned if _is_dense(each)}
    if last and max(last.values()) - min(last.values()) > _SAME_LOSS * abs(min(last.values())):
        listed = ", ".join(f"{name} {loss:.6g}" for name, loss in last.items())
        notes.append(
            f"the same steps led to different losses ({listed}): layers that depend on the "
            f"microbatch, such as dropout or batch normalisation, do that; nothing else should"
        )
    return notes


def _is_dense(each: VerifiedPlan) -> bool:
    return all(group.density == 1 for stage in each.plan.stages for group in stage.groups)
