"""The course of a search for a front, trial by trial, whoever keeps its study.

The fastest plan comes first, then the leanest; then the fastest within a memory limit, again and
again, each limit in the widest interval between two points that nobody has looked into yet. Every
plan that is built on the way counts. Nothing but the end of the time makes the course depend on
time, and then `hurried` says so.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from autoplan.search.exhaust import exhaust
from autoplan.search.experiment import Experiment
from autoplan.search.layout import Layout
from autoplan.search.objective import StepTime
from autoplan.search.pareto import Front, Searched, bands, open_limit
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Candidate, Scorer, refine
from autoplan.search.sweep import balanced_layouts

SEARCH_SHARE = 0.75
"""Share of the budget by which the search must have ended; the bounds of the points take the
rest."""
_POLISH_LIMIT = 300
"""Moves tried around the best plan within each limit."""
_FASTEST_SHARE = 2
"""One in so many trials looks for the fastest plan."""
_LIMITS = 12
"""Limits that the other trials are shared out to."""
_LEAST_BYTES = 1.0
"""A limit that no plan keeps, so that the plan that lacks the least is the leanest."""
_SWEEP_SHARE = 0.3
"""Share of the time that is left by which a sweep must have ended."""
_FASTEST_TIME_SHARE, _TIME_SHARE = 0.5, 0.25
"""Shares of the time that is left by which the last proposal for the fastest plan, and within each
other limit, must have been made."""
_MOST_FAST, _MOST_WITHIN = 512, 64
"""Balanced layouts that are looked at for the fastest plan, and within each other limit."""
_NEAR = 4
"""Points of the front that a search within a limit starts from, those next to it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoursePlan:
    """How a course spends its trials, and which part of the space is its own."""

    fastest_trials: int
    """To look for the fastest plan; 0 where an earlier run has done so, and for the leanest."""
    trials_each: int
    """Within each other limit."""
    exhaustive_plans: int
    """What to spend at most on looking at every plan of a small space."""
    number: int = 0
    """Of this course among those that are run side by side."""
    courses: int = 1


def course_plan(
    trials: int, known: int, exhaustive_plans: int, *, number: int = 0, courses: int = 1
) -> CoursePlan:
    """Shares trials out.

    Args:
        trials: of all courses, those of earlier runs included.
        known: those of earlier runs.
        exhaustive_plans: of the budget.
        number: of the course.
        courses: that are run side by side.
    """
    fastest = max(1, trials // _FASTEST_SHARE)
    left = math.ceil(fastest / courses) if known < fastest else 0
    return CoursePlan(
        fastest_trials=left,
        trials_each=max(1, (trials - fastest) // courses // _LIMITS),
        exhaustive_plans=exhaustive_plans,
        number=number,
        courses=courses,
    )


class Trials(Protocol):
    """Where a course's trials come from and go to."""

    @property
    def left(self) -> int:
        """How many may still be made."""

    def propose(self, scorer: Scorer, proposer: Proposer) -> Candidate | None:
        """Makes one of a proposal, refined; None where it has no usable figure."""

    def record(self, found: Candidate | None, name: str) -> None:
        """Makes one of a plan that no proposal led to."""


def proposer_within(experiment: Experiment, limit_bytes: float) -> Proposer:
    """What proposes plans for devices with so much memory, none of it kept free."""
    device = dataclasses.replace(experiment.cluster.device, memory_bytes=limit_bytes)
    cluster = dataclasses.replace(experiment.cluster, device=device)
    job = dataclasses.replace(experiment.job, memory_headroom=0.0)
    return Proposer(experiment.workload, cluster, job, experiment.space)


def bound_within(experiment: Experiment, peak_bytes: float, reached_s: float) -> float:
    """A step that no plan with so little memory is below, given the step that one of them takes."""
    return proposer_within(experiment, peak_bytes).predictor.bounds.certified_s(reached_s)


class FrontCourse:
    """The state of one course. Its parts are generators, which pause after each piece of work."""

    def __init__(
        self, experiment: Experiment, available_bytes: float, plan: CoursePlan, trials: Trials
    ) -> None:
        """Works out what the space leaves open; raises InputError where that is nothing."""
        self.experiment, self.plan, self._trials = experiment, plan, trials
        self.front = Front(available_bytes)
        self.searched: list[Searched] = []
        self.own_searched: list[Searched] = []
        """Those of them that this course has looked within."""
        self.proposer = proposer_within(experiment, available_bytes)
        self.deadline_s = math.inf
        """When the search is over, as a time.monotonic() value."""
        self.hurried = False
        """Whether the time has cut something short."""
        self._scorer = self.fastest = self._scorer_for(self.proposer)
        """What scores plans for all the memory there is."""
        self._num_fastest = plan.fastest_trials
        self._num_past = 0
        """Plans scored within limits that are done with."""

    @property
    def num_candidates(self) -> int:
        """Plans scored so far."""
        within = self._scorer.num_candidates if self._scorer is not self.fastest else 0
        return self.fastest.num_candidates + self._num_past + within

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self.deadline_s

    def end_at(self, deadline_s: float) -> None:
        """Sets when the search is over, as a time.monotonic() value."""
        self.deadline_s = self.fastest.deadline_s = self._scorer.deadline_s = deadline_s

    def learn(self, points: Iterable[Candidate], searched: Iterable[Searched]) -> None:
        """Takes in what others have found, and within which limits they have looked."""
        for point in points:
            self.front.add(point)
        known = set(self.searched)
        self.searched += [pair for pair in searched if pair not in known]

    def ends(self, first: Sequence[Layout], known: int = 0) -> Iterator[None]:
        """Looks for the fastest plan, among others near some layouts, and for the leanest.

        Of the trials for that, so many have been made already.
        """
        if self.plan.fastest_trials == 0:
            return
        self._num_fastest = max(1, self.plan.fastest_trials - known)
        yield from self._search(self.fastest, self.proposer, first, "fastest")
        yield from self.within(_LEAST_BYTES, "leanest")

    def limited(self, limit_bytes: float) -> Iterator[None]:
        """Looks for the fastest plan within a limit."""
        yield from self.within(limit_bytes, "limited")
        if self.late:
            return
        peaks = [point.score.peak_bytes for point in self.front.points]
        reached = max((peak for peak in peaks if peak <= limit_bytes), default=0.0)
        self.searched.append((reached, limit_bytes))
        self.own_searched.append((reached, limit_bytes))

    def next_limit(self) -> float | None:
        """A limit to look within next, in this course's own part if anything is left there."""
        points, number = self.front.points, self.plan.number
        if not points:
            return None
        parts = bands(points, self.plan.courses)
        for band in parts[number:] + parts[:number]:
            limit_bytes = open_limit(points, self.searched, band)
            if limit_bytes is not None:
                return limit_bytes
        return None

    def within(self, limit_bytes: float, name: str) -> Iterator[None]:
        """Looks for the best plan within a memory limit."""
        if self.late or self._trials.left == 0:
            return
        proposer = proposer_within(self.experiment, limit_bytes)
        self._num_past = self.num_candidates - self.fastest.num_candidates
        self._scorer = self._scorer_for(proposer)
        near = sorted(self.front.points, key=lambda p: abs(p.score.peak_bytes - limit_bytes))
        first = [point.layout for point in near[:_NEAR]]
        yield from self._search(self._scorer, proposer, first, name)

    def _search(
        self, scorer: Scorer, proposer: Proposer, first: Sequence[Layout], name: str
    ) -> Iterator[None]:
        """Sweeps, looks at every plan of a small space, proposes and polishes."""
        fastest = scorer is self.fastest
        share = _FASTEST_TIME_SHARE if fastest else _TIME_SHARE
        until_s = scorer.now_s() + share * (self.deadline_s - scorer.now_s())
        best: Candidate | None = None
        for found in self._swept(scorer, proposer, first, name):
            best = min((c for c in (best, found) if c), key=lambda c: c.rank)
            yield
        complete = False
        if name != "leanest":
            reached_s = best.value if best and best.score.feasible else math.inf
            every = exhaust(scorer, proposer, reached_s, self.plan.exhaustive_plans)
            if every is not None:
                best, complete = every.best or best, every.complete
            yield
        if not complete:
            trials = self._num_fastest if fastest else self.plan.trials_each
            for _ in range(min(trials, self._trials.left) - 1):
                if scorer.now_s() > until_s:
                    self.hurried = True
                    break
                proposed = self._trials.propose(scorer, proposer)
                best = min((c for c in (best, proposed) if c), key=lambda c: c.rank, default=None)
                yield
            best = refine(best, scorer, proposer, _POLISH_LIMIT) if best else None
        self.hurried = self.hurried or self.late
        if self._trials.left > 0:
            self._trials.record(best, name)
        yield

    def _swept(
        self, scorer: Scorer, proposer: Proposer, first: Sequence[Layout], name: str
    ) -> Iterator[Candidate]:
        """The first layouts, however long it takes, and the balanced ones, each with its best cuts.

        Courses that run side by side share out the balanced ones for the fastest plan and for the
        leanest, but look within other limits alone.
        """
        looked = [scorer.near(layout) for layout in first]
        yield from looked
        until_s = scorer.now_s() + _SWEEP_SHARE * (self.deadline_s - scorer.now_s())
        most = _MOST_FAST if scorer is self.fastest else _MOST_WITHIN
        layouts = balanced_layouts(scorer, proposer, most)
        if name != "limited":
            layouts = islice(layouts, self.plan.number, None, self.plan.courses)
        for n, layout in enumerate(layouts):
            if scorer.now_s() > until_s and (n or looked):
                self.hurried = True
                break
            yield scorer.near(layout)

    def _scorer_for(self, proposer: Proposer) -> Scorer:
        return Scorer(
            proposer.predictor,
            self.experiment.space,
            self.deadline_s,
            StepTime(proposer.predictor, "step_time_and_memory"),
            on_scored=self.front.add,
        )
