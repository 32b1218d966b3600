"""One run of a search: its study, its clock, the best plan so far, what it reports and saves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from autoplan.documents import require_writable
from autoplan.errors import StorageError
from autoplan.search.experiment import Budget, Experiment
from autoplan.search.objective import Objective
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Candidate, Scorer, refine
from autoplan.search.result import Progress, Stop
from autoplan.search.study import SearchStudy
from autoplan.storage.url import Storage

REFINE_LIMIT = 24
"""Moves tried around one proposal, each followed by the best cuts near it."""
_FLUSH_S = 2.0


class Session:
    """What a search does whatever it looks for."""

    def __init__(
        self,
        experiment: Experiment,
        budget: Budget,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        """Starts the clock."""
        self.experiment, self.budget, self.on_progress = experiment, budget, on_progress
        self.started_s = self._flushed_s = time.monotonic()
        self.best: Candidate | None = None

    def open(self, storage: Storage | str | None, study: str | None) -> None:
        """Opens the study; raises InputError and StorageError like `SearchStudy`."""
        require_writable(self.plan_path, "output")
        default = f"sqlite:///{(self.experiment.output / 'study.db').as_posix()}"
        self.study = SearchStudy(
            storage or default,
            study or self.experiment.name,
            self.experiment.identities,
            self.budget.seed,
            self.experiment.objective,
            self.available_bytes,
        )

    @property
    def plan_path(self) -> Path:
        """Where the best plan is saved."""
        return self.experiment.output / "best-plan.json"

    @property
    def available_bytes(self) -> float:
        """Memory that a plan may use on each device."""
        device, job = self.experiment.cluster.device, self.experiment.job
        return device.memory_bytes * (1 - job.memory_headroom)

    @property
    def deadline_s(self) -> float:
        """When the time is used up, as a time.monotonic() value."""
        return self.at(1.0)

    def at(self, share: float) -> float:
        """When a share of the time is used up, as a time.monotonic() value."""
        return self.started_s + share * self.budget.seconds

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    @property
    def expired(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self.deadline_s

    @property
    def trials_left(self) -> int:
        """Trials until the budget is used up."""
        return self.budget.trials - self.study.num_trials

    def run(self, loop: Callable[[], Stop]) -> Stop:
        """Runs a search; whatever ends it, the trials are recorded and the best plan is saved."""
        try:
            try:
                stopped_by = loop()
            except KeyboardInterrupt:
                stopped_by = "interrupted"
            self.study.flush()
        except StorageError as error:
            raise StorageError(f"{error}{self._saved()}") from None
        except BaseException:
            self._saved()
            raise
        return stopped_by

    def _saved(self) -> str:
        """Saves the best plan of a search that failed, and tells where it is."""
        if self.best is None:
            return ""
        self.best.plan.save(self.plan_path)
        step_s = self.best.score.step_s
        return f"; the best plan so far takes {step_s:.6g} s and is saved as {self.plan_path}"

    def propose(self, scorer: Scorer, proposer: Proposer) -> Candidate | None:
        """One proposal, refined and recorded; None where it has no usable figure."""
        trial = self.study.ask()
        proposed = scorer.near(proposer.layout(trial))
        refined = refine(proposed, scorer, proposer, REFINE_LIMIT)
        if not math.isfinite(refined.value):
            self.study.drop(trial, f"a value of {refined.value} is not finite")
            return None
        self.keep(refined)
        self.study.tell(trial, refined)
        return refined

    def record(self, found: Candidate | None, name: str) -> None:
        """Keeps a plan that no proposal led to, as a trial of its own."""
        if found is not None and math.isfinite(found.value):
            self.keep(found)
            self.study.record(found, name)

    def keep(self, candidate: Candidate) -> None:
        """Makes a candidate the best so far if it is."""
        if candidate.score.feasible and (self.best is None or candidate.rank < self.best.rank):
            self.best = candidate

    def report(self, objective: Objective, candidates: int, bound: float, points: int = 0) -> None:
        """Writes what is finished now and then, and tells how far the search is."""
        if time.monotonic() - self._flushed_s > _FLUSH_S:
            self.study.flush()
            self._flushed_s = time.monotonic()
        if self.on_progress is not None:
            best = self.best
            self.on_progress(
                Progress(
                    trials=self.study.num_trials,
                    total_trials=self.budget.trials,
                    candidates=candidates,
                    elapsed_s=self.elapsed_s,
                    budget_s=self.budget.seconds,
                    best_s=objective.value(best.score) if best else None,
                    lower_bound_s=bound,
                    points=points,
                )
            )


def why_nothing_fits(experiment: Experiment, budget: Budget, scorer: Scorer) -> str:
    """The nearest miss among the plans that were tried."""
    name = experiment.name
    if scorer.num_candidates == scorer.num_unlimited == 0:
        return f"{name}: no plan was scored within {budget.seconds:g} s; give --seconds more"
    if scorer.num_candidates == 0:
        return (
            f"{name}: for none of {scorer.num_unlimited} layouts a grouping of the gradients "
            f"keeps the space's limits (group_max_bytes, group_min_elements, max_groups, "
            f"exchange_memory_bytes); loosen them"
        )
    least, device = scorer.least_missing_bytes, experiment.cluster.device
    return (
        f"{name}: none of {scorer.num_candidates} plans fits; the closest lacks "
        f"{least / 2**30:.3g} GiB on a {device.name} with "
        f"{device.memory_bytes / 2**30:.4g} GiB, {experiment.job.memory_headroom:.0%} of "
        f"it kept free; allow recompute or more stages in the space, loosen its limits on "
        f"gradient groups, or use more devices"
    )
