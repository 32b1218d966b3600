"""A search with several workers: islands propose and score, a surveyor bounds, the driver listens.

Only the driver writes to the databases. It holds every trial that was acknowledged, so that a lost
island is made again from what it had told; what it had not told was never counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from autoplan.errors import AutoplanError, NothingFeasibleError
from autoplan.prediction import ROUNDING
from autoplan.search.conclusion import Conclusion, concluded
from autoplan.search.crew import SURVEYOR, Crew, Lost
from autoplan.search.fleet import Fleet, generation_of
from autoplan.search.interrupts import Interrupts
from autoplan.search.island import IslandSetting, Stepped, Tried
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Scorer
from autoplan.search.result import SearchResult, Stop
from autoplan.search.session import BASELINES_SHARE, LATEST_SHARE, Session, why_nothing_fits
from autoplan.search.survey import Outline, Surveyor
from autoplan.search.surveying import Surveying

_MOST_ROWS_PER_FLUSH = 4
"""Trials that get a row in the study at each flush, the best ones; the others are counted."""
_EARLIER = 64
"""Trials of earlier runs that each island learns from."""
_TICK_S = 0.25
_DRAIN_S = 10.0
"""How much longer than a step the driver waits at the end for islands that are busy."""

MakeCrew = Callable[[Sequence[IslandSetting], Interrupts], Crew]


class IslandSearch:
    """The driver of a search for one figure by several workers."""

    def __init__(self, session: Session, make_crew: MakeCrew) -> None:
        """Checks that the space leaves something open; starts nothing."""
        experiment = session.experiment
        self.session, self._make_crew = session, make_crew
        self.proposer = Proposer(
            experiment.workload, experiment.cluster, experiment.job, experiment.space
        )
        self._unwritten: list[Tried] = []
        self._written: set[str] = set()

    def run(self) -> SearchResult:
        """Searches, and saves the plan.

        Raises:
            AutoplanError: all workers were lost.
            KeyboardInterrupt: there was no plan yet when the search was interrupted.
        """
        session = self.session
        self._recall()
        self._begin()
        if (ended := session.ended) is not None:
            outline = Surveyor(session.experiment).outline(session.left_s(BASELINES_SHARE))
            self.surveying.bound = max(ended.lower_bound, outline.quick_bound)
            self.surveying.exhausted = ended.exhaustive
            return self._result(outline, ended.stopped_by)
        with session.interrupts as interrupts:
            crew = self._make_crew(self._settings(), interrupts)
            try:
                stopped_by = session.run(lambda: self._loop(crew, interrupts))
            finally:
                crew.close()
        return self._result(self.surveying.outline, stopped_by)

    def _recall(self) -> None:
        """Takes the best plan of earlier runs."""
        session = self.session
        session.recall(Scorer(self.proposer.predictor, session.experiment.space, math.inf))

    def _begin(self) -> None:
        """Knows nothing yet of the islands and the space."""
        self.surveying, self.fleet = Surveying(self.session), Fleet(self.session)

    def _settings(self) -> list[IslandSetting]:
        """What makes each island itself."""
        study, budget = self.session.study, self.session.budget
        earlier = sorted(study.proposals, key=lambda trial: trial.values)[:_EARLIER]
        return [
            IslandSetting(
                number=number,
                islands=budget.workers,
                seed=(budget.seed + study.num_trials) % 2**32,
                generation=generation_of(budget.workers, budget.trials),
                earlier=tuple(earlier),
            )
            for number in range(budget.workers)
        ]

    def _loop(self, crew: Crew, interrupts: Interrupts) -> Stop:
        """Listens until the budget ends, the bound is reached, or somebody interrupts."""
        stopped_by: Stop | None = None
        while stopped_by is None:
            self.surveying.dispatch(crew)
            self._dispatch(crew)
            self._listen(crew)
            stopped_by = "interrupted" if interrupts.requested else self._stop()
        self._wind_up(crew, interrupts, stopped_by)
        return stopped_by

    def _dispatch(self, crew: Crew) -> None:
        """Lets the islands go on; in new studies they begin with the first proposals."""
        if self.surveying.outline is not None or self.session.study.num_earlier > 0:
            self.fleet.dispatch(crew, self.surveying.proposals)

    def _wind_up(self, crew: Crew, interrupts: Interrupts, stopped_by: Stop) -> None:
        """Waits for what is being done, and has done what belongs to the end."""
        if stopped_by != "optimal":
            self._drain(crew)
        if stopped_by in ("trials", "time"):
            self._end_survey(crew, interrupts, stopped_by)
        self._choose_rows()

    def _stop(self) -> Stop | None:
        """Why the search is over, if it is."""
        session, surveying = self.session, self.surveying
        best = session.best
        if best and (surveying.exhausted or best.value <= surveying.bound * (1 + ROUNDING)):
            return "optimal"
        if session.trials_left <= 0 and surveying.settled:
            return "trials"
        if session.left_s(1.0) <= (surveying.certificate_took_s or 0.0) and surveying.swept:
            return "time"
        if self.fleet.all_retired:
            raise AutoplanError(
                f"every worker was lost ({self.fleet.last_loss}); the same command carries the "
                f"search on"
            )
        return None

    def _listen(self, crew: Crew) -> None:
        """Takes in what the workers tell, writes now and then, and reports."""
        for event in crew.wait(_TICK_S):
            if event.worker == SURVEYOR:
                self.surveying.hear(event)
            elif isinstance(event, Lost):
                self.fleet.lose(crew, event)
            elif self.fleet.take(event.value):
                self._take(event.value)
        if self.session.flush_due:
            self._choose_rows()
        self._report()

    def _report(self) -> None:
        self.session.report(self._num_candidates, self.surveying.bound)

    def _take(self, stepped: Stepped) -> None:
        """Counts an island's trials and keeps those that it sent."""
        self.session.study.count(stepped.done)
        for each in stepped.tried:
            self.session.keep(each.candidate)
            self.session.add_row(
                each.candidate, each.proposed_by, island=each.island, trial_number=each.number
            )
        self._unwritten += stepped.tried

    def _drain(self, crew: Crew) -> None:
        """Waits for the steps that are being done."""
        until_s = time.monotonic() + self.fleet.step_s + _DRAIN_S
        while self.fleet.busy and time.monotonic() < until_s:
            self._listen(crew)

    def _end_survey(self, crew: Crew, interrupts: Interrupts, stopped_by: Stop) -> None:
        """The polish, and the last certificate unless a bound is known and the time is over."""
        took_s = self.surveying.certificate_took_s
        over = took_s is not None and time.monotonic() + took_s > self.session.at(LATEST_SHARE)
        in_a_hurry = stopped_by == "time" and over
        self.surveying.end(crew, polish=stopped_by == "trials", certify=not in_a_hurry)
        while not (self.surveying.idle or interrupts.requested):
            self.surveying.dispatch(crew)
            self._listen(crew)

    def _choose_rows(self) -> None:
        """Gives the best of the new trials a row in the study; the others stay counted."""
        incumbent = self.session.best

        def order(tried: Tried) -> tuple[tuple[bool, float, float], bool]:
            return tried.candidate.rank, incumbent is None or tried.candidate is not incumbent

        best: dict[str, Tried] = {}
        for tried in sorted(self._unwritten, key=order):
            sha256 = tried.candidate.plan.sha256
            if sha256 not in self._written:
                best.setdefault(sha256, tried)
            if len(best) == _MOST_ROWS_PER_FLUSH:
                break
        self._written.update(best)
        self._unwritten.clear()
        for tried in best.values():
            self._write(tried)

    def _write(self, tried: Tried) -> None:
        """Gives a trial that was counted a row."""
        study = self.session.study
        study.count(-1)
        study.record(
            tried.candidate,
            tried.proposed_by,
            island=tried.island,
            parameters=tried.parameters,
            distributions=tried.distributions,
        )

    @property
    def _num_candidates(self) -> int:
        return self.fleet.num_candidates + self.surveying.num_candidates

    def _result(self, outline: Outline | None, stopped_by: Stop) -> SearchResult:
        """Saves the best plan and describes it."""
        session, surveying = self.session, self.surveying
        if session.best is None and stopped_by == "interrupted":
            raise KeyboardInterrupt
        if session.best is None:
            budget = session.budget
            raise NothingFeasibleError(why_nothing_fits(session.experiment, budget, self.fleet))
        found = Conclusion(
            stopped_by=stopped_by,
            bound=surveying.bound,
            step_bound_s=outline.step_bound_s if outline else 0.0,
            candidates=self._num_candidates,
            exhausted=surveying.exhausted,
            heuristics=outline.baselines if outline else {},
            workers_lost=self.fleet.num_lost + surveying.num_lost,
        )
        return concluded(session, self.proposer, session.best, found)
