"""The search itself: baselines, proposals, refinement, and the best plan with its bound."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from itertools import islice

from autoplan.errors import NothingFeasibleError
from autoplan.prediction import ROUNDING
from autoplan.search.bound_layouts import bound_layouts, lineup_layouts
from autoplan.search.exhaust import exhaust
from autoplan.search.experiment import Budget, Experiment
from autoplan.search.front import FrontSearch
from autoplan.search.heuristics import Baseline, baselines, conforming
from autoplan.search.objective import objective_named
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Candidate, Scorer, refine
from autoplan.search.result import Progress, SearchResult, Stop
from autoplan.search.seeds import first_proposals
from autoplan.search.session import Session, why_nothing_fits
from autoplan.search.sweep import sweep
from autoplan.storage.url import Storage

_POLISH_LIMIT = 600
"""Moves tried around the best plan at the end."""
_EXTRA_TRIALS = 2
"""The sweep and the polish each make one trial."""
_BASELINES_SHARE, _SWEEP_SHARE = 0.25, 0.5
"""Shares of the budget by which the baselines and the sweep must have ended."""
_LATEST_SHARE = 1.1
"""Share of the budget by which the last certificate must end, where there is an earlier one."""
_CERTIFICATE_SHARE = 0.7
"""Share of the budget after which the bound is tightened only at the end."""
_MOST_LINEUPS = 32
"""Ways to hand the devices out that are looked at after a certificate, the best first."""
_FIRST_CERTIFICATE, _FIRST_CERTIFICATE_SHARE = 8, 0.3
"""Trials, and a share of the budget, of which the first to end lets the bound be tightened."""


def search(
    experiment: Experiment,
    *,
    budget: Budget | None = None,
    storage: Storage | str | None = None,
    study: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """Searches an experiment's space for the plan that is best by the experiment's objective.

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
    session = Session(experiment, budget or experiment.budget, on_progress)
    kind = FrontSearch if experiment.objective == "step_time_and_memory" else _Search
    searching = kind(session)
    session.open(storage, study)
    return searching.run()


class _Search:
    """The state of a search for one figure."""

    def __init__(self, session: Session) -> None:
        self.session, self.experiment = session, session.experiment
        experiment = session.experiment
        self.proposer = Proposer(
            experiment.workload, experiment.cluster, experiment.job, experiment.space
        )
        self.predictor = self.proposer.predictor
        self.objective = objective_named(experiment.objective, self.predictor)
        self.scorer = Scorer(self.predictor, experiment.space, session.deadline_s, self.objective)
        self.bound = self.objective.quick_bound()
        quickly = self.predictor.bounds.certifies_quickly
        self.next_certificate = 0 if quickly else _FIRST_CERTIFICATE
        self.certificate_took_s: float | None = None
        self.exhausted = False

    def run(self) -> SearchResult:
        """Searches, and saves the plan."""
        session, study = self.session, self.session.study
        heuristics = baselines(
            self.proposer, session.at(_BASELINES_SHARE), value=self.objective.value
        )
        for layout, _ in islice(study.earlier(), 1):
            session.keep(self.scorer.candidate(layout))
        if study.num_earlier == 0:
            for name, parameters in first_proposals(self.proposer, heuristics):
                study.propose_first(parameters, name)
        stopped_by = session.run(lambda: self._loop(heuristics))
        return self._result(heuristics, stopped_by)

    def _loop(self, heuristics: dict[str, Baseline | None]) -> Stop:
        """Sweeps, proposes and polishes until the budget ends or the bound is reached."""
        session, study = self.session, self.session.study
        if study.num_trials == 0 and session.budget.trials > _EXTRA_TRIALS:
            space = self.experiment.space
            first = [conforming(found, space) for found in heuristics.values() if found]
            session.record(self._best_near_bound(), "bound")
            if self.objective.name == "step_time" or not self._proven():
                until_s = session.at(_SWEEP_SHARE)
                session.record(sweep(self.scorer, self.proposer, first, until_s), "sweep")
        if session.trials_left > 0 and self.objective.name == "step_time":
            self._exhaust()
        session.report(self.objective, self.scorer.num_candidates, self.bound)
        while session.trials_left > 0:
            if self._proven():
                return "optimal"
            if session.expired or self.scorer.expired:
                return "time"
            if session.trials_left == 1 and session.best is not None:
                polished = refine(session.best, self.scorer, self.proposer, _POLISH_LIMIT)
                session.record(polished, "polish")
            else:
                session.propose(self.scorer, self.proposer)
            session.report(self.objective, self.scorer.num_candidates, self.bound)
        return "trials"

    def _best_near_bound(self) -> Candidate | None:
        """The best of the partitions behind the bound; None where the objective has none."""
        best: Candidate | None = None
        for layout in bound_layouts(self.objective, self.proposer):
            candidate = self.scorer.near(layout)
            if best is None or candidate.rank < best.rank:
                best = candidate
            if self.scorer.now_s() > self.session.at(_BASELINES_SHARE):
                break
        return best

    def _exhaust(self) -> None:
        """Looks at every plan of a small space."""
        session = self.session
        reached_s = session.best.value if session.best else math.inf
        effort = session.budget.exhaustive_plans
        found = exhaust(self.scorer, self.proposer, reached_s, effort)
        if found is None:
            return
        session.record(found.best, "exhaustive")
        if session.best is not None:
            self.bound = max(self.bound, found.bound_s)
            self.exhausted = found.complete

    def _proven(self) -> bool:
        """Whether the best plan reaches the bound, so that nothing better exists.

        The bound is tightened now and then, since that takes as long as many trials.
        """
        session = self.session
        if session.best is None:
            return False
        if self.exhausted:
            return True
        value, num_trials, now_s = session.best.value, session.study.num_trials, time.monotonic()
        late = now_s > session.at(_FIRST_CERTIFICATE_SHARE) and self.certificate_took_s is None
        in_time = now_s < session.at(_CERTIFICATE_SHARE)
        if late or (num_trials >= self.next_certificate and in_time):
            self.next_certificate = 2 * num_trials + _FIRST_CERTIFICATE
            self._certify(value)
            self._visit_open_lineups(value)
        return session.best.value <= self.bound * (1 + ROUNDING)

    def _visit_open_lineups(self, value: float) -> None:
        """Looks where the certificate says that better plans can only be."""
        session = self.session
        if self.objective.name != "step_time" or value <= self.bound * (1 + ROUNDING):
            return
        lineups = self.predictor.bounds.certificate(value).lineups
        best: Candidate | None = None
        for layout in lineup_layouts(lineups[:_MOST_LINEUPS], self.proposer):
            if self.scorer.expired:
                break
            candidate = self.scorer.near(layout)
            if best is None or candidate.rank < best.rank:
                best = candidate
        if best is not None and session.best is not None and best.rank < session.best.rank:
            session.record(best, "certificate")
            self.next_certificate = session.study.num_trials

    def _certify(self, value: float) -> None:
        """Tightens the bound for a plan with this value, and keeps time to do so at the end."""
        started_s = time.monotonic()
        self.bound = max(self.bound, self.objective.certified_bound(value))
        self.certificate_took_s = time.monotonic() - started_s
        self.scorer.deadline_s = self.session.deadline_s - self.certificate_took_s

    def _certify_at_last(self, value: float, stopped_by: Stop) -> None:
        """Tightens the bound for the plan found, unless a bound is known and the time is over."""
        took_s = self.certificate_took_s
        over = took_s is not None and time.monotonic() + took_s > self.session.at(_LATEST_SHARE)
        if stopped_by != "optimal" and not (over and stopped_by == "time"):
            self._certify(value)

    def _result(self, heuristics: dict[str, Baseline | None], stopped_by: Stop) -> SearchResult:
        """Saves the best plan and describes it."""
        session = self.session
        if session.best is None:
            raise NothingFeasibleError(
                why_nothing_fits(self.experiment, session.budget, self.scorer)
            )
        plan = session.best.plan
        plan.save(session.plan_path)
        self._certify_at_last(session.best.value, stopped_by)
        is_step = self.objective.name == "step_time"
        step_bound_s = self.bound if is_step else self.predictor.bounds.quick_s
        prediction = self.predictor.predict(plan, step_bound_s)
        prediction = dataclasses.replace(prediction, notes=prediction.notes + self.proposer.notes)
        return SearchResult(
            study=session.study.name,
            storage=session.study.shown_storage,
            trials=session.study.num_trials,
            candidates=self.scorer.num_candidates,
            seconds=session.elapsed_s,
            stopped_by=stopped_by,
            objective=self.objective.name,
            value=self.objective.value(prediction),
            lower_bound=self.bound,
            plan=plan,
            plan_path=session.plan_path,
            prediction=prediction,
            exhaustive=self.exhausted,
            baselines={
                name: None if found is None else self.predictor.predict(found.plan, step_bound_s)
                for name, found in heuristics.items()
            },
        )
