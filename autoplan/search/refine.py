"""Local moves that turn a proposal into the best plan near it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autoplan.batch_scores import BatchScorer, BatchShape, Floats, Ints
from autoplan.gradsync import GroupLimits, LimitsError
from autoplan.plan import Plan
from autoplan.predict import Predictor, Score
from autoplan.prediction import ROUNDING
from autoplan.search.climb import climb_cuts
from autoplan.search.layout import Layout, assemble
from autoplan.search.load_cuts import LoadCuts
from autoplan.search.objective import MaxStageLoad, Objective, StepTime
from autoplan.search.proposal import Proposer
from autoplan.search.space import SearchSpace

REFINE_LIMIT = 24
"""Moves tried around one proposal, each followed by the best cuts near it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout, the plan it makes, and how it scores."""

    layout: Layout
    plan: Plan
    score: Score
    value: float
    """What the objective makes of the score; less is better."""

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Less is better: plans that fit by their value, the others by the bytes they lack."""
        score = self.score
        return (not score.feasible, 0.0 if score.feasible else score.missing_bytes, self.value)


class Scorer:
    """Scores layouts until a deadline, equal plans once.

    Batches score what they are given: that costs less than looking it up.
    """

    def __init__(
        self,
        predictor: Predictor,
        space: SearchSpace,
        deadline_s: float,
        objective: Objective | None = None,
        on_scored: Callable[[Candidate], None] | None = None,
    ) -> None:
        """Starts with nothing scored.

        Args:
            predictor: knows what plans take.
            space: gives what holds for all groupings.
            deadline_s: a time.monotonic() value.
            objective: what plans are ranked by; by default their step.
            on_scored: is shown every plan that is built, better or worse.
        """
        self.predictor, self.space = predictor, space
        self.deadline_s = deadline_s
        self.objective = objective or StepTime(predictor)
        self._on_scored = on_scored
        self._load_cuts = LoadCuts(predictor) if isinstance(self.objective, MaxStageLoad) else None
        self._scores: dict[Plan, Score] = {}
        self._batch = BatchScorer(predictor)
        self._climbed: dict[Layout, tuple[Layout, ...]] = {}
        self._num_in_batches = 0
        self.num_unlimited: int = 0
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
        supported = self._load_cuts is None or self._load_cuts.supported
        return space.cuts == "open" and plain and supported

    @property
    def moves_cuts_exactly(self) -> bool:
        """Whether no cut that a batch has moved is worth moving alone."""
        return self.moves_cuts and (self._load_cuts is not None or self._batch.exact)

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
        if not self.moves_cuts or not self._is_exact(layout) or len(layout.replicas) == 1:
            return self.candidate(layout)
        climbed = self._climbed.get(layout)
        if climbed is None:
            climbed = self._climbed[layout] = self._with_best_cuts(layout)
        return min(map(self.candidate, climbed), key=lambda candidate: candidate.rank)

    def least(self, bounds_KB: Ints, shape: BatchShape) -> tuple[Floats, Floats]:
        """Least step seconds and missing bytes of partitions with any groups, where cuts move."""
        self._num_in_batches += len(bounds_KB)
        return self._batch.score(bounds_KB, shape, buffers=False)

    def _with_best_cuts(self, layout: Layout) -> tuple[Layout, ...]:
        """The layout with the best cuts for its other choices, or the best ones near its own.

        Two where gradient groups might just fit or not: those that fit if all need buffers, and if
        none does.
        """
        if self._load_cuts is not None:
            self._num_in_batches += 1
            return (self._load_cuts.moved(layout),)
        lean = climb_cuts(layout, self._batch, buffers=False)
        self._num_in_batches += lean.num_scored
        score = self.candidate(lean.layout).score
        if score.feasible and score.step_s <= lean.step_s * (1 + ROUNDING):
            return (lean.layout,)
        safe = climb_cuts(layout, self._batch)
        self._num_in_batches += safe.num_scored
        return (lean.layout, safe.layout)

    def candidate(self, layout: Layout) -> Candidate:
        """The layout's plan with its score, computed at most once for each distinct plan.

        Where no grouping keeps the space's limits, the plan is the one without them, and not
        feasible. The exact grouping is the one that ends first; where only the work of the link
        counts, that is the fewest groups, which may need more memory.
        """
        if self._load_cuts is None or not self._is_exact(layout):
            return self._as_grouped(layout)
        both = [dataclasses.replace(layout, policy=name) for name in ("single", "exact")]
        return min(map(self._as_grouped, both), key=lambda candidate: candidate.rank)

    def planned(self, layout: Layout, plan: Plan) -> Candidate:
        """A plan that was once made from a layout, scored here."""
        return self._scored(layout, plan, self.predictor.score(plan))

    def _is_exact(self, layout: Layout) -> bool:
        """Whether the layout asks for the groups that suit the objective best."""
        fewest = self._load_cuts is not None and layout.policy == "single"
        return layout.policy == "exact" or (fewest and "exact" in self.space.grouping)

    def _as_grouped(self, layout: Layout) -> Candidate:
        """The plan that the layout's own policy makes."""
        try:
            plan = assemble(layout, self.predictor, self.space, self.objective.value)
        except LimitsError:
            plan = assemble(layout, self.predictor, self._without_limits, self.objective.value)
            self.num_unlimited += 1
            broken = dataclasses.replace(self.predictor.score(plan), keeps_limits=False)
            return self._scored(layout, plan, broken)
        known = self._scores.get(plan)
        if known is None:
            known = self._scores[plan] = self.predictor.score(plan)
        return self._scored(layout, plan, known)

    def _scored(self, layout: Layout, plan: Plan, score: Score) -> Candidate:
        """The candidate with its value, shown to whoever wants to see it."""
        value = self.objective.value(score)
        found = Candidate(layout=layout, plan=plan, score=score, value=value)
        if self._on_scored is not None:
            self._on_scored(found)
        return found


def refine(start: Candidate, scorer: Scorer, proposer: Proposer, limit: int) -> Candidate:
    """Hill-climbs from a candidate, taking each improving move, for at most `limit` moves.

    Where cuts can be moved in batches, every move is followed by the best cuts near it; where these
    are not exact, cuts are also moved one by one in the end.
    """
    best = start
    improved = True
    while improved and limit > 0:
        improved = False
        for layout, scored in _moves(best.layout, scorer, proposer):
            if limit == 0 or scorer.expired:
                return best
            limit -= 1
            candidate = scored(layout)
            if candidate.rank < best.rank:
                best, improved = candidate, True
                break
    return best


def _moves(
    layout: Layout, scorer: Scorer, proposer: Proposer
) -> Iterator[tuple[Layout, Callable[[Layout], Candidate]]]:
    """Layouts one move away, with what each of them is scored by."""
    for other in neighbours(layout, proposer, cuts=not scorer.moves_cuts):
        yield other, scorer.near
    if scorer.moves_cuts and not scorer.moves_cuts_exactly:
        for other in _moved_cuts(layout):
            yield other, scorer.candidate


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
    """Two neighbours become one stage with the devices of both; one becomes two.

    The two share its devices, or one of them takes devices that are free.
    """
    samples = proposer.predictor.job.global_batch // layout.microbatches
    choices = proposer.domain.replicas_for(samples)
    bounds, replicas = layout.bounds, layout.replicas
    stages, free = len(replicas), proposer.num_devices - sum(replicas)
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
            if middle == bounds[s]:
                continue
            cuts = (*bounds[: s + 1], middle, *bounds[s + 1 :])
            halves = [(r, r) for r in choices if 2 * r <= replicas[s]][-1:]
            extra = [r for r in choices if r <= free][-1:]
            taken = [pair for r in extra for pair in ((r, replicas[s]), (replicas[s], r))]
            for pair in dict.fromkeys(halves + taken):
                split = (*replicas[:s], *pair, *replicas[s + 1 :])
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
