"""The search itself: baselines, proposals, refinement, and the best plan with its bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autoplan.documents import require_writable
from autoplan.errors import NothingFeasibleError, StorageError
from autoplan.plan import Plan
from autoplan.prediction import ROUNDING, Prediction
from autoplan.search.experiment import Budget, Experiment
from autoplan.search.heuristics import Baseline, baselines, conforming
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Candidate, Scorer, refine
from autoplan.search.seeds import first_proposals
from autoplan.search.study import SearchStudy
from autoplan.search.sweep import sweep

_REFINE_LIMIT = 24
"""Moves tried around one proposal, each followed by the best cuts near it."""
_POLISH_LIMIT = 600
"""Moves tried around the best plan at the end."""
_EXTRA_TRIALS = 2
"""The sweep and the polish each make one trial."""
_BASELINES_SHARE, _SWEEP_SHARE = 0.25, 0.5
"""Shares of the budget by which the baselines and the sweep must have ended."""
_CERTIFICATE_SHARE = 0.7
"""Share of the budget after which the bound is tightened only at the end."""
_FIRST_CERTIFICATE = 8
"""Trials after which the bound is tightened first."""
_FLUSH_S = 2.0

Stop = Literal["trials", "time", "optimal", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a search is."""

    trials: int
    total_trials: int
    candidates: int
    elapsed_s: float
    budget_s: float
    best_s: float | None
    lower_bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    study: str
    storage: str
    trials: int
    candidates: int
    seconds: float
    stopped_by: Stop
    plan: Plan
    plan_path: Path
    prediction: Prediction
    baselines: dict[str, Prediction | None] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """How far the plan can be from the best in the space."""
        return self.prediction.gap

    def to_document(self) -> dict[str, Any]:
        """The result as the command line's JSON (DESIGN section 6)."""
        return {
            "study": self.study,
            "storage": self.storage,
            "trials": self.trials,
            "candidates": self.candidates,
            "seconds": round(self.seconds, 3),
            "stopped_by": self.stopped_by,
            "best": {
                "plan": self.plan,
                "plan_path": str(self.plan_path),
                "prediction": self.prediction.to_document(),
            },
            "baselines": {
                name: None if prediction is None else prediction.step_s
                for name, prediction in self.baselines.items()
            },
        }


def search(
    experiment: Experiment,
    *,
    budget: Budget | None = None,
    storage: str | None = None,
    study: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """Searches an experiment's space for the plan with the shortest step.

    The same budget in trials and the same seed give the same plan. A study that exists is carried
    on; one that has all its trials is only read.

    Args:
        experiment: what to plan.
        budget: in place of the experiment's own.
        storage: database URL; by default a SQLite file in the experiment's output folder.
        study: name of the study; by default the experiment's.
        on_progress: called after every trial.

    Raises:
        InputError: the space leaves nothing open, or the study belongs to another experiment.
        NothingFeasibleError: no plan that was tried fits the devices.
        StorageError: the database failed; the best plan is saved first.
    """
    return _Search(experiment, budget or experiment.budget, on_progress).run(storage, study)


class _Search:
    """The state of one search."""

    def __init__(
        self,
        experiment: Experiment,
        budget: Budget,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.experiment, self.budget, self.on_progress = experiment, budget, on_progress
        self.started_s = time.monotonic()
        self.proposer = Proposer(
            experiment.workload, experiment.cluster, experiment.job, experiment.space
        )
        self.predictor = self.proposer.predictor
        self.scorer = Scorer(self.predictor, experiment.space, self.started_s + budget.seconds)
        self.best: Candidate | None = None
        self.bound_s = self.predictor.bounds.quick_s
        self.next_certificate = _FIRST_CERTIFICATE

    def run(self, storage: str | None, study_name: str | None) -> SearchResult:
        """Opens the study, searches, saves the plan."""
        require_writable(self._plan_path, "output")
        default = f"sqlite:///{(self.experiment.output / 'study.db').as_posix()}"
        study = SearchStudy(
            storage or default,
            study_name or self.experiment.name,
            self.experiment.identities,
            self.budget.seed,
        )
        heuristics = baselines(self.proposer, self._at(_BASELINES_SHARE))
        for layout in study.earlier_layouts()[:1]:
            self._keep(self.scorer.candidate(layout))
        if study.num_earlier == 0:
            for name, parameters in first_proposals(self.proposer, heuristics):
                study.propose_first(parameters, name)
        try:
            stopped_by = self._loop(study, heuristics)
        except StorageError as error:
            raise StorageError(f"{error}{self._saved()}") from None
        except BaseException:
            self._saved()
            raise
        return self._result(study, heuristics, stopped_by)

    def _saved(self) -> str:
        """Saves the best plan of a search that failed, and tells where it is."""
        if self.best is None:
            return ""
        self.best.plan.save(self._plan_path)
        step_s = self.best.score.step_s
        return f"; the best plan so far takes {step_s:.6g} s and is saved as {self._plan_path}"

    @property
    def _plan_path(self) -> Path:
        return self.experiment.output / "best-plan.json"

    def _at(self, share: float) -> float:
        """When a share of the budget is used up, as a time.monotonic() value."""
        return self.started_s + share * self.budget.seconds

    def _loop(self, study: SearchStudy, heuristics: Mapping[str, Baseline | None]) -> Stop:
        """Sweeps, proposes and polishes until the budget ends or the bound is reached."""
        stopped_by: Stop = "trials"
        flushed_s = time.monotonic()
        try:
            if study.num_trials == 0 and self.budget.trials > _EXTRA_TRIALS:
                space = self.experiment.space
                first = [conforming(found, space) for found in heuristics.values() if found]
                swept = sweep(self.scorer, self.proposer, first, self._at(_SWEEP_SHARE))
                self._record(study, swept, "sweep")
            while study.num_trials < self.budget.trials:
                if self._proven(study.num_trials):
                    stopped_by = "optimal"
                    break
                if self.scorer.expired:
                    stopped_by = "time"
                    break
                if study.num_trials == self.budget.trials - 1 and self.best is not None:
                    polished = refine(self.best, self.scorer, self.proposer, _POLISH_LIMIT)
                    self._record(study, polished, "polish")
                else:
                    self._trial(study)
                if time.monotonic() - flushed_s > _FLUSH_S:
                    study.flush()
                    flushed_s = time.monotonic()
                self._report(study)
        except KeyboardInterrupt:
            stopped_by = "interrupted"
        study.flush()
        return stopped_by

    def _record(self, study: SearchStudy, found: Candidate | None, name: str) -> None:
        """Keeps a plan that no proposal led to, as a trial of its own."""
        if found is not None and math.isfinite(found.score.step_s):
            self._keep(found)
            study.record(found, name)

    def _trial(self, study: SearchStudy) -> None:
        """One proposal, refined."""
        trial = study.ask()
        proposed = self.scorer.near(self.proposer.layout(trial))
        refined = refine(proposed, self.scorer, self.proposer, _REFINE_LIMIT)
        score = refined.score
        if not math.isfinite(score.step_s):
            study.drop(trial, f"step time {score.step_s} s is not finite")
            return
        self._keep(refined)
        study.tell(trial, refined)

    def _keep(self, candidate: Candidate) -> None:
        """Makes a candidate the best so far if it is."""
        if candidate.score.feasible and (self.best is None or candidate.rank < self.best.rank):
            self.best = candidate

    def _proven(self, num_trials: int) -> bool:
        """Whether the best plan reaches the bound, so that nothing better exists.

        The bound is tightened now and then, since that takes as long as many trials.
        """
        if self.best is None:
            return False
        step_s = self.best.score.step_s
        in_time = time.monotonic() < self._at(_CERTIFICATE_SHARE)
        if num_trials >= self.next_certificate and in_time:
            self.next_certificate = 2 * num_trials + _FIRST_CERTIFICATE
            self.bound_s = max(self.bound_s, self.predictor.bounds.certified_s(step_s))
        return step_s <= self.bound_s * (1 + ROUNDING)

    def _report(self, study: SearchStudy) -> None:
        if self.on_progress is not None:
            self.on_progress(
                Progress(
                    trials=study.num_trials,
                    total_trials=self.budget.trials,
                    candidates=self.scorer.num_candidates,
                    elapsed_s=time.monotonic() - self.started_s,
                    budget_s=self.budget.seconds,
                    best_s=self.best.score.step_s if self.best else None,
                    lower_bound_s=self.bound_s,
                )
            )

    def _result(
        self, study: SearchStudy, heuristics: dict[str, Baseline | None], stopped_by: Stop
    ) -> SearchResult:
        """Saves the best plan and describes it."""
        if self.best is None:
            raise NothingFeasibleError(self._why_nothing_fits())
        plan = self.best.plan
        plan.save(self._plan_path)
        return SearchResult(
            study=study.name,
            storage=study.shown_storage,
            trials=study.num_trials,
            candidates=self.scorer.num_candidates,
            seconds=time.monotonic() - self.started_s,
            stopped_by=stopped_by,
            plan=plan,
            plan_path=self._plan_path,
            prediction=self.predictor.predict(plan),
            baselines={
                name: None if found is None else self.predictor.predict(found.plan)
                for name, found in heuristics.items()
            },
        )

    def _why_nothing_fits(self) -> str:
        """The nearest miss among the plans that were tried."""
        scorer, name = self.scorer, self.experiment.name
        if scorer.num_candidates == scorer.num_unlimited == 0:
            return (
                f"{name}: no plan was scored within {self.budget.seconds:g} s; give --seconds more"
            )
        if scorer.num_candidates == 0:
            return (
                f"{name}: for none of {scorer.num_unlimited} layouts a grouping of the gradients "
                f"keeps the space's limits (group_max_bytes, group_min_elements, max_groups, "
                f"exchange_memory_bytes); loosen them"
            )
        least, device = scorer.least_missing_bytes, self.experiment.cluster.device
        return (
            f"{name}: none of {scorer.num_candidates} plans fits; the closest lacks "
            f"{least / 2**30:.3g} GiB on a {device.name} with "
            f"{device.memory_bytes / 2**30:.4g} GiB, {self.experiment.job.memory_headroom:.0%} of "
            f"it kept free; allow recompute or more stages in the space, loosen its limits on "
            f"gradient groups, or use more devices"
        )
