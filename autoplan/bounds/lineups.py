"""A lower bound that tries every way to hand the devices out, where these are few.

With the replicas of all stages and their order known, so are the seats, the transfers and the
collectives; `pipeline.lineups` then tells whether any cuts stay within a step time.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.bounds.lineup_terms import LineupTerms, chosen
from autoplan.pipeline.certificate import GPIPE, NEGLIGIBLE, PROOF, REPLICA
from autoplan.pipeline.lineup_walk import within
from autoplan.pipeline.lineups import CHOICE, Exchanges, Lineups, Split, possible
from autoplan.plan import RankOrder, Schedule

_MOST_LINEUPS = 1 << 16
"""Ways to hand the devices out in one order, about as many as 16 devices have; 8 have 255."""
_PLACE_EFFORT = 6000
"""Effort of finding a lineup's places, in stages looked at."""
_EFFORT = 250_000_000
"""Stages that may be looked at: two or three seconds."""
_MOST_TABLE_STEPS = 100_000_000
"""Steps that the tables of one lineup's exact exchanges may take: a few tenths of a second."""
_MOST_TABLES = 12
"""Lineups for which such tables are made: those that may beat what was reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSplit:
    """A number of microbatches with which some plan may beat what was reached."""

    microbatches: int
    replicas: tuple[int, ...]
    """Numbers of replicas that stages may have then."""
    low_s: float
    """A bound that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLineup:
    """A way to hand the devices out that may hold a plan better than what was reached."""

    microbatches: int
    replicas: tuple[int, ...]
    schedule: Schedule
    rank_order: RankOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A lower bound on all plans, and where better plans can only be."""

    bound_s: float
    lineups: tuple[OpenLineup, ...] = ()
    """The most promising first; none where the bound does not tell."""


@dataclass(slots=True, kw_only=True)
class _Case:
    """A lineup that may stay within a step time, under one schedule."""

    named: OpenLineup
    exchanges: Exchanges
    split: Split
    lineup: Lineups
    gpipe: bool
    high_s: float


class LineupBounds:
    """Bounds over all lineups."""

    def __init__(self, terms: LineupTerms) -> None:
        """Takes what the lineups cost."""
        self.terms = terms
        self._left = 0

    def certify(
        self, splits: Sequence[OpenSplit], reached_s: float, precision: float
    ) -> Certificate | None:
        """A lower bound on all plans; None where there are too many lineups, or too much to do.

        Args:
            splits: numbers of microbatches; no plan with any other beats `reached_s`.
            reached_s: a step time in seconds.
            precision: relative width at which to stop.
        """
        if self.terms.num_lineups > _MOST_LINEUPS:
            return None
        self._left = _EFFORT
        self.terms.visited.clear()
        almost_s = reached_s * (1 - PROOF)
        cases: list[_Case] = []
        heap: list[tuple[float, int]] = []
        for split in splits:
            for case in self._open(split, almost_s):
                heap.append((min(split.low_s, almost_s), len(cases)))
                cases.append(case)
            if self._left < 0:
                return None
        left = self._refined(cases, heap)
        bound_s = self._tightened(left, cases, almost_s, precision)
        return Certificate(bound_s=bound_s, lineups=tuple(cases[n].named for _, n in sorted(left)))

    def _open(self, split: OpenSplit, step_s: float) -> Iterator[_Case]:
        """The lineups that may stay within a step time; all that are left if the effort ends."""
        terms = self.terms
        costs = terms.split(split.microbatches, split.replicas)
        everywhere = terms.unplaced(split.replicas)
        for schedule in terms.space.schedules:
            gpipe = schedule == GPIPE
            self._left -= len(everywhere.stages_N) * terms.model.working_bytes_L.size
            if self._left < 0:
                return
            may_N = possible(terms.model, costs, everywhere, gpipe, step_s)
            if gpipe and len(terms.space.schedules) > 1:
                # One stage or one microbatch: the schedules are the same.
                may_N &= (everywhere.stages_N > 1) & (split.microbatches > 1)
            unplaced = chosen(everywhere, np.flatnonzero(may_N))
            for order in terms.space.rank_orders:
                if len(unplaced.stages_N) * _PLACE_EFFORT > self._left:
                    self._left = -1
                    return
                known = len(terms.visited)
                lineups = terms.placed(unplaced, split.replicas, order)
                self._left -= (len(terms.visited) - known) * _PLACE_EFFORT
                if len(lineups.stages_N) == 0:
                    continue
                case = _Case(
                    named=OpenLineup(
                        microbatches=split.microbatches,
                        replicas=(),
                        schedule="gpipe" if gpipe else "1f1b",
                        rank_order="replica" if order == REPLICA else "stage",
                    ),
                    exchanges=terms.exchanges,
                    split=costs,
                    lineup=lineups,
                    gpipe=gpipe,
                    high_s=step_s,
                )
                for n in np.flatnonzero(self._within(case, step_s)):
                    alone = chosen(lineups, np.array([n]))
                    choices = alone.indices_N3S[0, CHOICE, : alone.stages_N[0]]
                    replicas = tuple(split.replicas[r] for r in choices)
                    named = dataclasses.replace(case.named, replicas=replicas)
                    yield dataclasses.replace(case, named=named, lineup=alone)

    def _within(self, case: _Case, step_s: float) -> NDArray[np.bool_]:
        """Which lineups of a case may stay within a step time; all if the effort is used up."""
        may_N, looked_at = within(
            self.terms.model,
            case.exchanges,
            case.split,
            case.lineup,
            case.gpipe,
            step_s,
            self._left,
        )
        self._left -= looked_at
        return may_N

    def _refined(
        self, cases: list[_Case], heap: list[tuple[float, int]]
    ) -> list[tuple[float, int]]:
        """Looks again with exact exchanges, where these can be had; the cases that are left."""
        if len(cases) > _MOST_TABLES:
            return heap
        left = []
        for low_s, n in heap:
            case = cases[n]
            exact = self.terms.exact_tables(case.split, case.lineup, _MOST_TABLE_STEPS)
            if exact is not None:
                case.exchanges, case.lineup = exact
            if exact is None or self._within(case, case.high_s)[0]:
                left.append((low_s, n))
        return left

    def _tightened(
        self, heap: list[tuple[float, int]], cases: list[_Case], almost_s: float, precision: float
    ) -> float:
        """Raises the least bound of all cases, halving its distance to what may be reached."""
        heapq.heapify(heap)
        while heap and self._left > 0:
            low_s, n = heap[0]
            case = cases[n]
            if case.high_s - low_s <= max(low_s * precision, almost_s * NEGLIGIBLE):
                break
            middle_s = (low_s + case.high_s) / 2
            if self._within(case, middle_s)[0]:
                case.high_s = middle_s
            elif self._left > 0:
                heapq.heapreplace(heap, (middle_s, n))
        return heap[0][0] if heap else almost_s
