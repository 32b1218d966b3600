"""A search for a front with several workers: each keeps one, the driver what all have found.

Islands look within limits of their own part of the memory between the ends of the front; what they
find and where they have looked travels between them through the driver, which alone writes.
"""

from __future__ import annotations

import dataclasses
import math

from autoplan.documents import require_writable
from autoplan.errors import AutoplanError
from autoplan.search.archipelago import IslandSearch, MakeCrew
from autoplan.search.crew import Crew
from autoplan.search.front_conclusion import (
    FrontConclusion,
    FrontRows,
    bounds_of,
    concluded_front,
    front_path,
    result_points,
)
from autoplan.search.front_course import SEARCH_SHARE, course_plan
from autoplan.search.front_fleet import FrontFleet
from autoplan.search.heuristics import starting_layouts
from autoplan.search.interrupts import Interrupts
from autoplan.search.island import IslandSetting, Stepped, Tried
from autoplan.search.pareto import Front
from autoplan.search.refine import Candidate, Scorer
from autoplan.search.result import SearchResult, Stop
from autoplan.search.session import Session
from autoplan.search.survey import Outline
from autoplan.search.surveying import FrontSurveying

_MOST_ROWS_PER_FLUSH = 4
"""Trials of the front that get a row in the study at each flush; the others are counted."""


class FrontIslandSearch(IslandSearch):
    """The driver of a search for a front by several workers."""

    surveying: FrontSurveying
    fleet: FrontFleet

    def __init__(self, session: Session, make_crew: MakeCrew) -> None:
        """Checks that the space leaves something open; starts nothing."""
        super().__init__(session, make_crew)
        self.front = Front(session.available_bytes, in_any_order=True)
        self.rows = FrontRows(session, self.front)

    def _recall(self) -> None:
        """Takes the points of earlier runs."""
        session = self.session
        require_writable(front_path(session.experiment, 1), "output")
        scorer = Scorer(self.proposer.predictor, session.experiment.space, math.inf)
        for layout, plan in session.study.earlier():
            self._found(scorer.planned(layout, plan))
            self.rows.know(plan.sha256)

    def _begin(self) -> None:
        earlier = Front(self.session.available_bytes)
        earlier.points = list(self.front.points)
        self.surveying = FrontSurveying(self.session)
        self.fleet = FrontFleet(self.session, earlier)

    def _settings(self) -> list[IslandSetting]:
        """What makes each island itself."""
        budget, known = self.session.budget, self.session.study.num_trials
        return [
            dataclasses.replace(
                setting,
                course=course_plan(
                    budget.trials,
                    known,
                    budget.exhaustive_plans,
                    number=setting.number,
                    courses=budget.workers,
                ),
            )
            for setting in super()._settings()
        ]

    def _dispatch(self, crew: Crew) -> None:
        """Lets the islands go on once the defaults are known, which they start from."""
        outline = self.surveying.outline
        if outline is None:
            return
        space = self.session.experiment.space
        self.fleet.first = tuple(starting_layouts(outline.baselines.values(), space))
        self.fleet.dispatch(crew, self.surveying.proposals)

    def _stop(self) -> Stop | None:
        """Why the search is over, if it is."""
        session, fleet = self.session, self.fleet
        if session.trials_left <= 0 or fleet.closed:
            if fleet.hurried:
                return "time"
            return "trials" if session.trials_left <= 0 else "closed"
        started = self.surveying.outline is not None and fleet.heard
        if started and session.left_s(SEARCH_SHARE) == 0:
            return "time"
        if fleet.all_retired:
            raise AutoplanError(
                f"every worker was lost ({fleet.last_loss}); the same command carries the search on"
            )
        return None

    def _take(self, stepped: Stepped) -> None:
        """Counts an island's trials and keeps those that it sent, and its points."""
        super()._take(stepped)
        assert stepped.outcome is not None
        for point in stepped.outcome.points:
            self._found(point)
        for tried in stepped.tried:
            self.front.add(tried.candidate)

    def _found(self, point: Candidate) -> None:
        self.session.keep(point)
        self.front.add(point)

    def _wind_up(self, crew: Crew, interrupts: Interrupts, stopped_by: Stop) -> None:
        """Waits for what is being done, writes the front, and has its points bounded."""
        self._drain(crew)
        self._choose_rows()
        self.rows.write()
        if stopped_by == "interrupted" or not self.front.points:
            return
        self.surveying.bound_points(result_points(self.session, self.front, self.fleet, stopped_by))
        while not (self.surveying.idle or interrupts.requested):
            self.surveying.dispatch(crew)
            self._listen(crew)

    def _choose_rows(self) -> None:
        """Gives trials of the front a row in the study; the others stay counted."""
        on_front = {point.plan for point in self.front.points}
        chosen: dict[str, Tried] = {}
        for tried in self._unwritten:
            sha256 = tried.candidate.plan.sha256
            if tried.candidate.plan in on_front and not self.rows.knows(sha256):
                chosen.setdefault(sha256, tried)
        self._unwritten.clear()
        for sha256, tried in list(chosen.items())[:_MOST_ROWS_PER_FLUSH]:
            self.rows.know(sha256)
            self._write(tried)
        self.rows.write_some()

    def _report(self) -> None:
        self.session.report(self._num_candidates, self.surveying.bound, self.front.points)

    def _result(self, outline: Outline | None, stopped_by: Stop) -> SearchResult:
        """Saves the plans and describes them."""
        session, surveying = self.session, self.surveying
        points = result_points(session, self.front, self.fleet, stopped_by)
        if surveying.outline is None and stopped_by != "interrupted":
            surveying.bounds = list(bounds_of(session, points, surveying.bound))
        least_s = max(surveying.bounds, default=surveying.bound)
        bounds = surveying.bounds + [least_s] * (len(points) - len(surveying.bounds))
        found = FrontConclusion(
            stopped_by=stopped_by,
            points=points,
            bounds=bounds,
            candidates=self._num_candidates,
            heuristics=outline.baselines if outline else {},
            workers_lost=self.fleet.num_lost + surveying.num_lost,
        )
        return concluded_front(session, self.proposer.predictor, found)
