"""Local moves that turn a proposal into the best plan near it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.batch_scores import BatchScorer
from autoplan.gradsync import GroupLimits, LimitsError
from autoplan.plan import Plan
from autoplan.predict import Predictor, Score
from autoplan.search.climb import climb_cuts
from autoplan.search.layout import Layout, assemble
from autoplan.search.proposal import Proposer
from autoplan.search.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout, the plan it makes, and how it scores."""

    layout: Layout
    plan: Plan
    score: Score

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Less is better: plans that fit by step time, the others by the bytes they lack."""
        score = self.score
        return (not score.feasible, 0.0 if score.feasible else score.missing_bytes, score.step_s)


class Scorer:
    """Scores layouts until a deadline, equal plans once.

    Batches score what they are given: that costs less than looking it up.
    """

    def __init__(self, predictor: Predictor, space: SearchSpace, deadline_s: float) -> None:
        """`deadline_s` is a time.monotonic() value."""
        self.predictor, self.space = predictor, space
        self.deadline_s = deadline_s
        self._scores: dict[Plan, Score] = {}
        self._batch = BatchScorer(predictor)
        self._climbed: dict[Layout, Layout] = {}
        self._num_in_batches = 0
        self.num_unlimited = 0
        """Layouts for which no grouping keeps the space's limits."""
        self._without_limits = dataclasses.replace(
            space,
            group_max_bytes=None,
            group_min_elements=0.0,
            max_groups=None,
            exchange_memory_bytes=None,
        )

    @property
    def num_candidates(self) -> int:
        """Plans scored so far, those in batches included."""
        return len(self._scores) + self._num_in_batches

    @property
    def moves_cuts(self) -> bool:
        """Whether cuts can be moved in batches: the space leaves them open, groups are plain."""
        space = self.space
        plain = space.densities == (1.0,) and space.limits(1.0) == GroupLimits()
        return space.cuts == "open" and plain and self._batch.supported

    @property
    def least_missing_bytes(self) -> float:
        """Bytes that the nearest miss lacks, or 0 where a plan fits."""
        return min((score.missing_bytes for score in self._scores.values()), default=0.0)

    @staticmethod
    def now_s() -> float:
        """The clock of deadlines."""
        return time.monotonic()

    @property
    def expired(self) -> bool:
        """Whether the time is used up."""
        return self.now_s() >= self.deadline_s

    def near(self, layout: Layout) -> Candidate:
        """The best plan that moving a layout's cuts leads to, where they can be moved."""
        if not self.moves_cuts or layout.policy != "exact" or len(layout.replicas) == 1:
            return self.candidate(layout)
        climbed = self._climbed.get(layout)
        if climbed is None:
            found = climb_cuts(layout, self._batch)
            self._num_in_batches += found.num_scored
            climbed = self._climbed[layout] = found.layout
        return self.candidate(climbed)

    def candidate(self, layout: Layout) -> Candidate:
        """The layout's plan with its score, computed at most once for each distinct plan.

        Where no grouping keeps the space's limits, the plan is the one without them, and not
        feasible.
        """
        try:
            plan = assemble(layout, self.predictor, self.space)
        except LimitsError:
            plan = assemble(layout, self.predictor, self._without_limits)
            self.num_unlimited += 1
            broken = dataclasses.replace(self.predictor.score(plan), keeps_limits=False)
            return Candidate(layout=layout, plan=plan, score=broken)
        known = self._scores.get(plan)
        if known is None:
            known = self._scores[plan] = self.predictor.score(plan)
        return Candidate(layout=layout, plan=plan, score=known)


def refine(start: Candidate, scorer: Scorer, proposer: Proposer, limit: int) -> Candidate:
    """Hill-climbs from a candidate, taking each improving move, for at most `limit` moves.

    Where cuts can be moved in batches, every other move is followed by the best cuts near it.
    """
    best = start
    improved = True
    while improved and limit > 0:
        improved = False
        for layout in neighbours(best.layout, proposer, cuts=not scorer.moves_cuts):
            if limit == 0 or scorer.expired:
                return best
            limit -= 1
            candidate = scorer.near(layout)
            if candidate.rank < best.rank:
                best, improved = candidate, True
                break
    return best


def neighbours(layout: Layout, proposer: Proposer, *, cuts: bool = True) -> Iterator[Layout]:
    """Layouts one move away that the space allows, small moves first; moved cuts if asked."""
    space = proposer.space
    if cuts and space.cuts == "open":
        yield from _moved_cuts(layout)
    for schedule in space.schedules:
        if schedule != layout.schedule:
            yield dataclasses.replace(layout, schedule=schedule)
    for rank_order in space.rank_orders:
        if rank_order != layout.rank_order:
            yield dataclasses.replace(layout, rank_order=rank_order)
    yield from _other_microbatches(layout, proposer)
    if not space.equal_replicas:
        yield from _other_replicas(layout, proposer)
        if space.cuts == "open":
            yield from _merged_and_split(layout, proposer)


def _moved_cuts(layout: Layout) -> Iterator[Layout]:
    bounds = layout.bounds
    for k in range(1, len(bounds) - 1):
        for step in (1, -1):
            if bounds[k - 1] < bounds[k] + step < bounds[k + 1]:
                moved = (*bounds[:k], bounds[k] + step, *bounds[k + 1 :])
                yield dataclasses.replace(layout, bounds=moved)


def _other_replicas(layout: Layout, proposer: Proposer) -> Iterator[Layout]:
    samples = proposer.predictor.job.global_batch // layout.microbatches
    choices = proposer.domain.replicas_for(samples)
    replicas = layout.replicas
    for s, count in enumerate(replicas):
        home = choices.index(count)
        for index in (home + 1, home - 1):
            if 0 <= index < len(choices):
                changed = (*replicas[:s], choices[index], *replicas[s + 1 :])
                if sum(changed) <= proposer.num_devices:
                    yield dataclasses.replace(layout, replicas=changed)


def _merged_and_split(layout: Layout, proposer: Proposer) -> Iterator[Layout]:
    """Two neighbours become one stage with the devices of both, or one becomes two."""
    samples = proposer.predictor.job.global_batch // layout.microbatches
    choices = proposer.domain.replicas_for(samples)
    bounds, replicas = layout.bounds, layout.replicas
    stages = len(replicas)
    if stages - 1 in proposer.domain.stages:
        for s in range(stages - 1):
            fitting = [r for r in choices if r <= replicas[s] + replicas[s + 1]]
            merged = (*replicas[:s], fitting[-1], *replicas[s + 2 :])
            yield dataclasses.replace(
                layout, bounds=(*bounds[: s + 1], *bounds[s + 2 :]), replicas=merged
            )
    if stages + 1 in proposer.domain.stages:
        for s in range(stages):
            middle = (bounds[s] + bounds[s + 1]) // 2
            halves = [r for r in choices if 2 * r <= replicas[s]]
            if halves and middle > bounds[s]:
                split = (*replicas[:s], halves[-1], halves[-1], *replicas[s + 1 :])
                cuts = (*bounds[: s + 1], middle, *bounds[s + 1 :])
                yield dataclasses.replace(layout, bounds=cuts, replicas=split)


def _other_microbatches(layout: Layout, proposer: Proposer) -> Iterator[Layout]:
    splits = proposer.domain.microbatches
    home = splits.index(layout.microbatches)
    for index in (home + 1, home - 1):
        if 0 <= index < len(splits):
            choices = proposer.domain.replicas_for(
                proposer.predictor.job.global_batch // splits[index]
            )
            if set(layout.replicas) <= set(choices):
                yield dataclasses.replace(layout, microbatches=splits[index])
