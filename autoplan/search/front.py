"""Two objectives, step time and memory: the plans that no other beats in both, by one process."""

from __future__ import annotations

import math

from autoplan.documents import require_writable
from autoplan.search.front_conclusion import (
    FrontConclusion,
    FrontRows,
    bounds_of,
    concluded_front,
    front_path,
    result_points,
)
from autoplan.search.front_course import SEARCH_SHARE, FrontCourse, course_plan
from autoplan.search.heuristics import Baseline, baselines, starting_layouts
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Candidate, Scorer
from autoplan.search.result import SearchResult, Stop
from autoplan.search.seeds import first_proposals
from autoplan.search.session import Session

_BASELINES_SHARE = 0.1
"""Share of the budget by which the baselines must have ended."""


class _StudyTrials:
    """The trials of a session's own study."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.rows: FrontRows | None = None

    @property
    def left(self) -> int:
        return max(0, self.session.trials_left)

    def propose(self, scorer: Scorer, proposer: Proposer) -> Candidate | None:
        return self._known(self.session.propose(scorer, proposer))

    def record(self, found: Candidate | None, name: str) -> None:
        self.session.record(self._known(found), name)

    def _known(self, found: Candidate | None) -> Candidate | None:
        if found is not None and self.rows is not None and math.isfinite(found.value):
            self.rows.know(found.plan.sha256)
        return found


class FrontSearch:
    """The state of a search for a front in this process."""

    def __init__(self, session: Session) -> None:
        """Works out what the space leaves open; raises InputError where that is nothing."""
        self.session = session
        self._trials = _StudyTrials(session)
        plan = course_plan(session.budget.trials, 0, session.budget.exhaustive_plans)
        self.course = FrontCourse(session.experiment, session.available_bytes, plan, self._trials)
        self.course.end_at(session.at(SEARCH_SHARE))
        self.predictor = self.course.proposer.predictor
        self.rows = self._trials.rows = FrontRows(session, self.course.front)

    def run(self) -> SearchResult:
        """Searches, and saves the plans of the front."""
        session, study, course = self.session, self.session.study, self.course
        require_writable(front_path(session.experiment, 1), "output")
        heuristics = baselines(course.proposer, session.at(_BASELINES_SHARE))
        for layout, plan in study.earlier():
            session.keep(course.fastest.planned(layout, plan))
            self.rows.know(plan.sha256)
        if study.num_earlier == 0:
            for name, parameters in first_proposals(course.proposer, heuristics):
                study.propose_first(parameters, name)
        if (ended := session.ended) is not None:
            return self._result(heuristics, ended.stopped_by)
        session.add_baselines(heuristics)
        with session.interrupts:
            stopped_by = session.run(lambda: self._loop(heuristics))
            session.run(lambda: self._written(stopped_by))
        return self._result(heuristics, stopped_by)

    def _loop(self, heuristics: dict[str, Baseline | None]) -> Stop:
        """Looks for the fastest plan, the leanest, and those between."""
        session, course = self.session, self.course
        if session.study.num_earlier < course.plan.fastest_trials:
            first = starting_layouts(heuristics.values(), session.experiment.space)
            for _ in course.ends(first):
                self._report()
        while session.trials_left > 0 and course.front.points:
            if course.late:
                return "time"
            limit_bytes = course.next_limit()
            if limit_bytes is None:
                return "time" if course.hurried else "closed"
            for _ in course.limited(limit_bytes):
                self._report()
        return "time" if course.late or course.hurried else "trials"

    def _written(self, stopped_by: Stop) -> Stop:
        self.rows.write()
        return stopped_by

    def _report(self) -> None:
        self.rows.write_some()
        course = self.course
        self.session.report(
            course.num_candidates, self.predictor.bounds.quick_s, course.front.points
        )

    def _result(self, heuristics: dict[str, Baseline | None], stopped_by: Stop) -> SearchResult:
        """Saves the plans and describes them."""
        session, course = self.session, self.course
        points = result_points(session, course.front, course.fastest, stopped_by)
        quick_s = self.predictor.bounds.quick_s
        bounds = [quick_s] * len(points)
        if stopped_by != "interrupted":
            bounds = list(bounds_of(session, points, quick_s))
        found = FrontConclusion(
            stopped_by=stopped_by,
            points=points,
            bounds=bounds,
            candidates=course.num_candidates,
            heuristics=heuristics,
        )
        return concluded_front(session, self.predictor, found)
