"""Runs plans for real: one launch for all of them, and another one after each that breaks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any

from autoplan.errors import require, words
from autoplan.execute.clocks import LoadMeter
from autoplan.execute.launch import Launch, RunFailedError
from autoplan.execute.protocol import (
    QUIET_LOAD,
    Settings,
    by_clock,
    choose_clock,
    visiting_order,
)
from autoplan.execute.real_run import Environment, Modes, RealRun, Status
from autoplan.execute.spawn import LocalStarter, Starter
from autoplan.execute.step_costs import step_costs
from autoplan.execute.worker_job import PlannedRun, WorkerJob
from autoplan.plan import Plan
from autoplan.predict import Predictor

Progress = Callable[[str], None]

_START_TRIES = 3
"""Ports can be taken between their choice and their use."""
_QUIET_PROBE_S = 0.3
_LONGEST_GLOO_STEP_S = 6.0
"""Gloo gives up after 30 s of waiting for another rank, whatever it is told (facts/realruns.md
section 1); a rank on a busy machine can be several times as slow as another."""
_SLACK_S = 60.0
_SLACK_FACTOR = 30.0
"""A step counts as hung at a minute plus so many times its prediction."""


@dataclass(slots=True)
class _Readings:
    """What is known of one plan so far."""

    wall_s: list[float] = field(default_factory=list)
    virtual_s: list[float] = field(default_factory=list)
    foreign_load: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_bytes: list[float] = field(default_factory=list)
    replicas_agree: bool | None = None
    failure: tuple[Status, str] | None = None


def run_plans(
    predictor: Predictor,
    plans: Sequence[Plan],
    *,
    source: str | None = None,
    modes: Modes | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    starter: Starter | None = None,
) -> tuple[RealRun, ...]:
    """Runs every plan in a warm-up round and in measured rounds, and tells what came of each.

    All plans share the processes of one launch, each of which starts a plan's stage from the
    model's initial parameters. A plan that crashes, hangs or runs out of memory ends its launch,
    is told so in its run, and the others go on in another launch. Nothing is left running.

    Args:
        predictor: of the workload, the cluster and the job that the plans are for; costs that are
            emulated and transfers on the virtual clock are its own.
        plans: what to run.
        source: "MODULE:FUNCTION" of the model; needed for real compute.
        modes: what is real; everything, on the CPU, by default.
        settings: rounds, clock, limits.
        progress: is told in one line what was done.
        starter: where the ranks run; on this machine by default.

    Returns:
        One run per plan, in the same order, all with the same clock.

    Raises:
        InputError: a plan does not fit the model, the cluster or the job, or the model is not
            usable.
    """
    require(bool(plans), "plans", plans, "at least one plan")
    modes = modes or Modes()
    needed = "MODULE:FUNCTION, since compute is real"
    settings = settings or Settings()
    has_clock = settings.clock != "virtual" or modes.device == "cpu"
    require(has_clock, "clock", settings.clock, "auto or wall: GPUs have no virtual clock")
    require(source is not None or modes.compute == "emulated", "model", words("none"), needed)
    sweep = _Sweep(
        predictor,
        tuple(plans),
        source=source,
        modes=modes,
        settings=settings,
        tell=progress or (lambda line: None),
        starter=starter or LocalStarter(),
    )
    return sweep.run()


class _Sweep:
    """The state of one call."""

    def __init__(
        self,
        predictor: Predictor,
        plans: tuple[Plan, ...],
        *,
        source: str | None,
        modes: Modes,
        settings: Settings,
        tell: Progress,
        starter: Starter,
    ) -> None:
        self.predictor, self.plans, self.source = predictor, plans, source
        self.modes, self.settings = modes, settings
        self.tell, self.starter = tell, starter
        self.costs = [step_costs(predictor, plan) for plan in plans]
        self.predicted_s = [predictor.score(plan).step_s for plan in plans]
        self.ranks = max(plan.num_devices for plan in plans)
        self.cores = sorted(os.sched_getaffinity(0))
        self.readings = [_Readings() for _ in plans]
        self.environment: Environment | None = None
        self.current: int | None = None
        self.meter = LoadMeter()

    def run(self) -> tuple[RealRun, ...]:
        """Launches until every plan is measured or has failed."""
        failed_starts = 0
        while pending := [i for i, each in enumerate(self.readings) if self._lacks_rounds(each)]:
            self.current = None
            try:
                self._launch(pending)
            except RunFailedError as error:
                if self.current is None:
                    failed_starts += 1
                    self.tell(f"the ranks did not start: {error.reason}")
                    if failed_starts < _START_TRIES:
                        continue
                blamed = pending if self.current is None else [self.current]
                for i in blamed:
                    self.readings[i].failure = (error.status, error.reason)
                    self.tell(f"plan {self._name(i)}: {error.status}: {error.reason}")
        runs = [self._result(i) for i in range(len(self.plans))]
        return by_clock(choose_clock(self.settings.clock, self.modes, runs), runs)

    def _lacks_rounds(self, readings: _Readings) -> bool:
        return readings.failure is None and len(readings.wall_s) < self.settings.rounds

    def _launch(self, pending: list[int]) -> None:
        """One launch: a warm-up round over the pending plans, then what is left of the rounds."""
        job, pinned = self._job()
        self.tell(f"starting {self.ranks} ranks for {len(pending)} plans")
        with Launch(job, self.ranks, self.starter) as launch:
            launch.prepare(self.settings.start_limit_s)
            self._note(launch, pinned)
            for i in pending:
                if launch.refusals[i] is not None:
                    self.readings[i].failure = ("failed", str(launch.refusals[i]))
                else:
                    self._warm_up(launch, i)
            before = self._profile_ratio(launch)
            orders = visiting_order(len(self.plans), self.settings.rounds, self.settings.seed)
            for number, order in enumerate(orders):
                for i in order:
                    if self.readings[i].failure is None and len(self.readings[i].wall_s) <= number:
                        self._measure(launch, i)
                self.tell(f"round {number + 1} of {self.settings.rounds}")
            after = self._profile_ratio(launch)
            assert self.environment is not None
            self.environment = replace(
                self.environment, profile_ratio_before=before, profile_ratio_after=after
            )

    def _warm_up(self, launch: Launch, i: int) -> None:
        """The first steps of a plan, which also tell losses, memory and whether replicas agree."""
        self.current = i
        ranks, limit_s = self._ranks(i), self._limit_s(i)
        readings = self.readings[i]
        readings.losses.clear()
        launch.enter(ranks, i, self.settings.start_limit_s)
        for _ in range(self.settings.warmup_steps):
            answers = launch.step(ranks, limit_s)
            losses = [a["loss"] for a in answers.values() if a["loss"] is not None]
            readings.losses.extend([sum(losses) / len(losses)] if losses else [])
        left = launch.leave(ranks, self.settings.start_limit_s)
        if self.modes.compute == "real":
            stages = [[left[rank] for rank in stage.ranks] for stage in self.costs[i].stages]
            readings.peak_bytes = [max(each["peak_bytes"] for each in stage) for stage in stages]
            readings.replicas_agree = all(
                len({each["checksum"] for each in stage}) == 1 for stage in stages
            )
        self.tell(f"plan {self._name(i)}: warmed up")
        self.current = None

    def _measure(self, launch: Launch, i: int) -> None:
        """One step of a plan."""
        self.current = i
        ranks, readings = self._ranks(i), self.readings[i]
        launch.enter(ranks, i, self.settings.start_limit_s)
        own_s = time.process_time()
        self.meter.restart()
        answers = launch.step(ranks, self._limit_s(i)).values()
        own_s = time.process_time() - own_s + sum(answer["cpu_s"] for answer in answers)
        if self.starter.host is None:  # else the load of this machine says nothing
            readings.foreign_load.append(self.meter.foreign_share(own_s))
        readings.wall_s.append(max(answer["wall_s"] for answer in answers))
        readings.virtual_s.append(max(answer["virtual_s"] for answer in answers))
        launch.leave(ranks, self.settings.start_limit_s)
        self.current = None

    def _job(self) -> tuple[WorkerJob, bool]:
        """What the ranks are to do, and whether each keeps to one core."""
        on_gpu = self.modes.device == "gpu"
        groups = {s.ranks for costs in self.costs for s in costs.stages}
        gloo = (
            self.modes.needs_framework
            and any(len(group) > 1 for group in groups)
            and max(self.predicted_s) * self._crowding < _LONGEST_GLOO_STEP_S
        )
        framework_groups = self.ranks > 1 if on_gpu else gloo
        computes_here = self.modes.compute == "real" and self.starter.host is None and not on_gpu
        pinned = computes_here and self._is_quiet()
        job = WorkerJob(
            runs=tuple(
                PlannedRun(plan=plan, costs=costs)
                for plan, costs in zip(self.plans, self.costs, strict=True)
            ),
            job=self.predictor.job,
            modes=self.modes,
            source=self.source,
            seed=self.settings.seed,
            framework_groups=framework_groups,
            devices=tuple(map(self.starter.device, range(self.ranks))) if on_gpu else (),
            cores=tuple(islice(cycle(self.cores), self.ranks)) if pinned else (),
        )
        return job, pinned

    def _is_quiet(self) -> bool:
        """Whether others leave the cores alone; pinning beside busy neighbours does harm."""
        self.meter.restart()
        own_s = time.process_time()
        time.sleep(_QUIET_PROBE_S)
        return self.meter.foreign_share(time.process_time() - own_s) < QUIET_LOAD

    def _profile_ratio(self, launch: Launch) -> float | None:
        """What all layers take in the ranks now, over what the workload says.

        Only microbatches of a plan that has run are tried: others may break the model.
        """
        sizes = [
            {stage.samples for stage in costs.stages}
            for costs, readings in zip(self.costs, self.readings, strict=True)
            if readings.failure is None
        ]
        samples = min((min(each) for each in sizes if len(each) == 1), default=None)
        if samples is None:
            return None
        found = launch.layers_s(samples, self.settings.start_limit_s)
        if found is None:
            return None
        seconds = self.predictor.costs.layer_seconds(found[0])
        expected_s = float(seconds.forward_s_L.sum() + seconds.backward_s_L.sum())
        return found[1] / expected_s if expected_s > 0 else None

    def _note(self, launch: Launch, pinned: bool) -> None:
        told: dict[str, Any] = launch.environment
        self.environment = Environment(
            framework=told["framework"],
            device=told["device"],
            threads=1,
            ranks=self.ranks,
            cores=len(self.cores),
            pinned=pinned,
            collectives=told["collectives"],
        )

    def _ranks(self, i: int) -> list[int]:
        return sorted(rank for stage in self.costs[i].stages for rank in stage.ranks)

    def _limit_s(self, i: int) -> float:
        if self.settings.step_limit_s is not None:
            return self.settings.step_limit_s
        return _SLACK_S + _SLACK_FACTOR * self._crowding * self.predicted_s[i]

    @property
    def _crowding(self) -> float:
        """Ranks per core, at least 1."""
        return max(1.0, self.ranks / len(self.cores))

    def _name(self, i: int) -> str:
        return f"{i + 1} of {len(self.plans)}"

    def _result(self, i: int) -> RealRun:
        readings = self.readings[i]
        status, reason = readings.failure or ("ok", None)
        return RealRun(
            plan_sha256=self.plans[i].sha256,
            status=status,
            reason=reason,
            modes=self.modes,
            wall_s=tuple(readings.wall_s),
            virtual_s=() if self.modes.device == "gpu" else tuple(readings.virtual_s),
            foreign_load=tuple(readings.foreign_load),
            losses=tuple(readings.losses),
            replicas_agree=readings.replicas_agree,
            peak_memory_bytes=tuple(readings.peak_bytes),
            environment=self.environment,
        )
