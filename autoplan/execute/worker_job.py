"""What the ranks of a launch are to do, as the message that they get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.documents import STRICT
from autoplan.execute.real_run import Modes
from autoplan.execute.step_costs import StepCosts
from autoplan.job import Job
from autoplan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One plan of a launch."""

    __pydantic_config__ = STRICT

    plan: Plan
    costs: StepCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJob:
    """What all ranks of a launch are to do."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-worker/1"] = "autoplan-worker/1"
    runs: tuple[PlannedRun, ...]
    job: Job
    modes: Modes
    source: str | None = None
    """MODULE:FUNCTION of the model; None where compute is emulated."""
    seed: int
    framework_groups: bool
    """Whether ranks join the framework's own groups (Gloo, NCCL)."""
    devices: tuple[int, ...] = ()
    """The number of each rank's GPU; empty on CPUs."""
    cores: tuple[int, ...] = ()
    """The core that each rank keeps to, shared where there are fewer; empty leaves that open."""
    probed_groups: tuple[tuple[int, ...], ...] = ()
    """Ranks whose links are measured, beside the groups of the plans."""

    def members(self) -> set[tuple[int, ...]]:
        """The ranks of every stage of every plan that exchange gradients, and probed groups."""
        stages = (stage for run in self.runs for stage in run.costs.stages)
        return {stage.ranks for stage in stages if len(stage.ranks) > 1} | {*self.probed_groups}
