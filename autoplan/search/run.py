"""The search itself: baselines, proposals, refinement, and the best plan with its bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from autoplan.errors import NothingFeasibleError
from autoplan.prediction import ROUNDING
from autoplan.search.conclusion import Conclusion, concluded
from autoplan.search.experiment import Budget, Experiment
from autoplan.search.front import FrontSearch
from autoplan.search.heuristics import Baseline
from autoplan.search.recording import Recording
from autoplan.search.result import Progress, SearchResult, Stop
from autoplan.search.session import (
    BASELINES_SHARE,
    CERTIFICATE_SHARE,
    EXTRA_TRIALS,
    FIRST_CERTIFICATE,
    FIRST_CERTIFICATE_SHARE,
    LATEST_SHARE,
    Session,
    why_nothing_fits,
)
from autoplan.search.survey import Outline, Surveyor, opening
from autoplan.storage.url import Storage


def search(
    experiment: Experiment,
    *,
    budget: Budget | None = None,
    storage: Storage | str | None = None,
    study: str | None = None,
    ray_address: str | None = None,
    recording: Recording | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """Searches an experiment's space for the plan that is best by the experiment's objective.

    The same budget in trials, seed and workers give the same plan, unless a worker is lost. A study
    that exists is carried on; one that is finished is only read.

    Args:
        experiment: what to plan.
        budget: in place of the experiment's own; more than one worker are actors of Ray.
        storage: database URL; by default a SQLite file in the experiment's output folder.
        study: name of the study; by default the experiment's.
        ray_address: of a running Ray cluster, such as "auto"; by default $RAY_ADDRESS, else Ray is
            started on this machine and stopped at the end.
        recording: is told every plan that gets a row, and how the search ended, and keeps other
            drivers out of the study meanwhile; without one nothing does.
        on_progress: called after every trial.

    Raises:
        InputError: the space leaves nothing open, the study belongs to another experiment, or there
            is no such cluster.
        NothingFeasibleError: no plan that was tried fits the devices.
        StudyBusyError: another driver searches the study (an InputError).
        TakenOverError: another driver took the study over while this one did not answer.
        StorageError: the database failed; the best plan is saved first.
    """
    chosen = budget or experiment.budget
    session = Session(experiment, chosen, on_progress, recording)
    two = experiment.objective == "step_time_and_memory"
    if chosen.workers == 1:
        alone = FrontSearch(session) if two else _Search(session)
        session.open(storage, study)
        return alone.run()
    from autoplan.search.archipelago import IslandSearch
    from autoplan.search.front_archipelago import FrontIslandSearch
    from autoplan.search.ray_crew import RayCrew

    islands = (FrontIslandSearch if two else IslandSearch)(
        session,
        lambda settings, interrupts: RayCrew(experiment, settings, ray_address, interrupts),
    )
    session.open(storage, study)
    return islands.run()


class _Search:
    """The state of a search for one figure in this process."""

    def __init__(self, session: Session) -> None:
        self.session, self.experiment = session, session.experiment
        self.surveyor = Surveyor(session.experiment)
        self.proposer, self.scorer = self.surveyor.proposer, self.surveyor.scorer
        self.scorer.deadline_s = session.deadline_s
        self.bound = self.surveyor.objective.quick_bound()
        quickly = self.proposer.predictor.bounds.certifies_quickly
        self.next_certificate = 0 if quickly else FIRST_CERTIFICATE
        self.certificate_took_s: float | None = None
        self.exhausted = False

    def run(self) -> SearchResult:
        """Searches, and saves the plan."""
        session, study = self.session, self.session.study
        outline = self.surveyor.outline(session.left_s(BASELINES_SHARE))
        session.recall(self.scorer)
        if (ended := session.ended) is not None:
            self.bound = max(self.bound, ended.lower_bound)
            self.exhausted = ended.exhaustive
            return self._result(outline.baselines, ended.stopped_by)
        session.add_baselines(outline.baselines)
        if study.num_earlier == 0:
            for name, parameters in outline.proposals:
                study.propose_first(parameters, name)
        with session.interrupts:
            stopped_by = session.run(lambda: self._loop(outline))
        if session.best is not None:
            self._certify_at_last(stopped_by)
        return self._result(outline.baselines, stopped_by)

    def _loop(self, outline: Outline) -> Stop:
        """Sweeps, proposes and polishes until the budget ends or the bound is reached."""
        session, study, surveyor = self.session, self.session.study, self.surveyor
        if study.num_trials == 0 and session.budget.trials > EXTRA_TRIALS:
            self._open(outline)
        if session.trials_left > 0:
            self._exhaust()
        session.report(self.scorer.num_candidates, self.bound)
        while session.trials_left > 0:
            if self._proven():
                return "optimal"
            if session.expired or self.scorer.expired:
                return "time"
            if session.trials_left == 1 and session.best is not None:
                session.record(surveyor.polished(session.best), "polish")
            else:
                session.propose(self.scorer, self.proposer)
            session.report(self.scorer.num_candidates, self.bound)
        return "trials"

    def _open(self, outline: Outline) -> None:
        """Looks at what may be good from the first."""
        session, surveyor = self.session, self.surveyor
        name = self.experiment.objective
        for part in opening(name, outline, lambda: session.best is not None, self._proven):
            left_s = session.left_s(part.share)
            if part.name == "sweep":
                found = surveyor.sweep(outline.baselines.values(), left_s)
            else:
                found = surveyor.near_bound(left_s)
            session.record(found, part.proposed_by)

    def _exhaust(self) -> None:
        """Looks at every plan of a small space."""
        session = self.session
        reached = session.best.value if session.best else math.inf
        found = self.surveyor.exhaust(reached, session.budget.exhaustive_plans)
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
        num_trials, now_s = session.study.num_trials, time.monotonic()
        late = now_s > session.at(FIRST_CERTIFICATE_SHARE) and self.certificate_took_s is None
        in_time = now_s < session.at(CERTIFICATE_SHARE)
        if late or (num_trials >= self.next_certificate and in_time):
            self.next_certificate = 2 * num_trials + FIRST_CERTIFICATE
            self._certify()
        return session.best.value <= self.bound * (1 + ROUNDING)

    def _certify(self) -> None:
        """Tightens the bound for the best plan, and keeps time to do so at the end."""
        session, started_s = self.session, time.monotonic()
        assert session.best is not None
        found = self.surveyor.certificate(session.best, session.left_s(1.0))
        self.bound = max(self.bound, found.bound)
        self.certificate_took_s = time.monotonic() - started_s
        self.scorer.deadline_s = session.deadline_s - self.certificate_took_s
        if found.better is not None and session.trials_left > 0:
            session.record(found.better, "certificate")
            self.next_certificate = session.study.num_trials

    def _certify_at_last(self, stopped_by: Stop) -> None:
        """Tightens the bound for the plan found, unless a bound is known and the time is over."""
        took_s = self.certificate_took_s
        over = took_s is not None and time.monotonic() + took_s > self.session.at(LATEST_SHARE)
        in_a_hurry = stopped_by == "interrupted" or (over and stopped_by == "time")
        best = self.session.best
        if stopped_by != "optimal" and not in_a_hurry and best is not None:
            bound = self.surveyor.objective.certified_bound(best.value)
            self.bound = max(self.bound, bound)

    def _result(self, heuristics: Mapping[str, Baseline | None], stopped_by: Stop) -> SearchResult:
        """Saves the best plan and describes it."""
        session = self.session
        if session.best is None and stopped_by == "interrupted":
            raise KeyboardInterrupt
        if session.best is None:
            raise NothingFeasibleError(
                why_nothing_fits(self.experiment, session.budget, self.scorer)
            )
        found = Conclusion(
            stopped_by=stopped_by,
            bound=self.bound,
            step_bound_s=self.proposer.predictor.bounds.quick_s,
            candidates=self.scorer.num_candidates,
            exhausted=self.exhausted,
            heuristics=heuristics,
        )
        return concluded(session, self.proposer, session.best, found)
