"""A worker's part of a search for a front: a course of its own, on its share of the limits.

Like other islands it goes on in steps that the driver asks for. Its course comes in rounds: in the
first one it looks for the ends of the front, in each other one within a limit. A step ends with its
round, its trials or its time, whichever comes first, and the next one goes on where it ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from optuna.study import StudyDirection

from autoplan.plan import Plan
from autoplan.search.experiment import Experiment
from autoplan.search.front_course import FrontCourse
from autoplan.search.island import Island, IslandSetting, Outcome, Step, Stepped, Tried
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Candidate, Scorer


class FrontIsland(Island):
    """The state of one island, which is also where the trials of its course come from."""

    _directions = (StudyDirection.MINIMIZE, StudyDirection.MINIMIZE)

    def __init__(self, experiment: Experiment, setting: IslandSetting) -> None:
        """Works out what the space leaves open; raises InputError where that is nothing."""
        super().__init__(experiment, setting)
        assert setting.course is not None
        self._course = FrontCourse(experiment, self._available_bytes, setting.course, self)
        self._round, self._empty = -1, False
        self._work: Iterator[None] = iter(())
        self._first = self._trials = self._done = 0
        """Number of the step's first trial; how many it may make; how many it has made."""
        self._tried: list[Tried] = []
        self._told: set[Plan] = set()
        self._begun = False

    @property
    def left(self) -> int:
        """Trials that the step may still make."""
        return self._trials - self._done

    def propose(self, scorer: Scorer, proposer: Proposer) -> Candidate | None:
        """Makes a trial of a proposal."""
        tried = self._trial(self._first + self._done, scorer, proposer)
        self._done += 1
        if tried is None:
            return None
        self._tried.append(tried)
        return tried.candidate

    def record(self, found: Candidate | None, name: str) -> None:
        """Makes a trial of a plan that no proposal led to."""
        if found is not None:
            self._tried.append(
                Tried(
                    island=self._setting.number,
                    number=self._first + self._done,
                    proposed_by=name,
                    parameters={},
                    distributions={},
                    candidate=found,
                )
            )
        self._done += 1

    def step(self, step: Step) -> Stepped:
        """Goes on with a round; what it is asked for decides how, so that it can be asked again."""
        assert step.news is not None
        started_s, started_cpu_s = time.monotonic(), time.process_time()
        self._course.end_at(started_s + step.seconds_left)
        self._first, self._trials, self._done = step.first, step.trials, 0
        self._tried = []
        self._learn(step)
        if self._round != step.news.round:
            self._round = step.news.round
            self._work = self._begin(step)
        round_over = False
        while not round_over:
            round_over = next(self._work, self) is self
            if self.left <= 0 or time.monotonic() >= started_s + step.seconds:
                break
        return self._stepped(
            step, round_over, time.monotonic() - started_s, time.process_time() - started_cpu_s
        )

    def _begin(self, step: Step) -> Iterator[None]:
        """The work of a round."""
        assert step.news is not None
        self._empty = False
        if step.news.round == 0:
            return self._course.ends(step.news.first, step.first)
        limit_bytes = self._course.next_limit()
        if limit_bytes is None:
            self._empty = True
            return iter(())
        return self._course.limited(limit_bytes)

    def _stepped(self, step: Step, round_over: bool, busy_s: float, cpu_s: float) -> Stepped:
        """What to tell."""
        course, scorer = self._course, self._course.fastest
        assert step.news is not None
        points = [point for point in course.front.points if point.plan not in self._told]
        self._told.update(point.plan for point in points)
        searched, course.own_searched = tuple(course.own_searched), []
        on_front = {point.plan for point in course.front.points}
        best = sorted(
            self._tried,
            key=lambda each: (
                each.candidate.plan not in on_front,
                each.candidate.rank,
                each.number,
            ),
        )[: step.keep]
        candidates = course.num_candidates - self._candidates_told
        self._candidates_told += candidates
        return Stepped(
            island=self._setting.number,
            first=step.first,
            done=self._done,
            failed=self._done - len(self._tried),
            tried=tuple(sorted(best, key=lambda each: each.number)),
            candidates=candidates,
            num_unlimited=scorer.num_unlimited,
            least_missing_bytes=scorer.least_missing_bytes,
            busy_s=busy_s,
            cpu_s=cpu_s,
            outcome=Outcome(
                number=step.news.number,
                round=step.news.round,
                round_over=round_over,
                empty=self._empty,
                hurried=course.hurried,
                points=tuple(points),
                searched=searched,
            ),
        )

    def _learn(self, step: Step) -> None:
        """Takes in what the driver sends."""
        assert step.news is not None
        self._told.update(point.plan for point in step.news.points)
        self._course.learn(step.news.points, step.news.searched)
        self._course.learn((tried.candidate for tried in step.history), ())
        proposed = [self._frozen(tried) for tried in step.history if tried.parameters]
        self._study.add_trials(proposed)
        if not self._begun and step.first == 0:
            self._enqueue(step.proposals)
        self._begun = True

    def _values(self, candidate: Candidate) -> list[float]:
        return [candidate.score.step_s, candidate.score.peak_bytes]


def make_island(experiment: Experiment, setting: IslandSetting) -> Island:
    """The island that suits an experiment's objective."""
    kind = Island if setting.course is None else FrontIsland
    return kind(experiment, setting)
