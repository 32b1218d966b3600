"""What `pipeline.lineups` needs of a workload, a cluster and a job."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster.collectives import GroupShape
from autoplan.cluster.placement import Placement, place
from autoplan.gradsync.costs import ElementCost, lines_of
from autoplan.gradsync.interval_table import finish_table
from autoplan.gradsync.problem import Cost
from autoplan.pipeline.bounds import prefix
from autoplan.pipeline.certificate import REPLICA, CertificateSpace
from autoplan.pipeline.lineups import (
    BACKWARD,
    CHOICE,
    SHAPE,
    TABLE,
    Exchanges,
    Lineups,
    Model,
    Split,
)
from autoplan.stage_costs import StageCosts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SLOPE_MARGIN = 1e-6
"""Rounding k down to whole elements lets a slope be this little lower."""
_NONE = np.zeros((1, 2))
"""The line of an exchange that takes no time."""


class LineupTerms:
    """Terms of all lineups of one workload, cluster and job; those that are costly once."""

    def __init__(
        self,
        costs: StageCosts,
        space: CertificateSpace,
        replicas: Sequence[int],
        densities: tuple[float, ...],
    ) -> None:
        """`replicas` are the numbers that a stage may have, `densities` those of a group."""
        self.costs, self.space, self.densities = costs, space, densities
        self.replicas = tuple(replicas)
        self.split = functools.lru_cache(maxsize=64)(self._split)
        self._shapes: dict[GroupShape, int] = {}
        self._placed: dict[tuple[int, tuple[int, ...]], Placement] = {}
        self.visited: set[tuple[int, tuple[int, ...]]] = set()
        """Lineups that were placed since this was last emptied."""
        self._exchanges = functools.lru_cache(maxsize=4)(self._stacked)
        self._lines = functools.lru_cache(maxsize=None)(self._lines_of_shape)
        self._last_s_L = functools.lru_cache(maxsize=None)(self._last_s_of_shape)

    @property
    def num_lineups(self) -> int:
        """Ways to hand the devices to stages, whatever the microbatches."""
        ways_D = [1] + [0] * self.space.devices
        total = 0
        for stages in range(1, max(self.space.stages) + 1):
            longer_D = [0] * len(ways_D)
            for used, ways in enumerate(ways_D):
                for r in self.replicas:
                    if used + r < len(ways_D):
                        longer_D[used + r] += ways
            ways_D = longer_D
            total += sum(ways_D) if stages in self.space.stages else 0
        return total

    @functools.cached_property
    def model(self) -> Model:
        """What does not depend on the microbatches."""
        costs, space = self.costs, self.space
        return Model(
            sums_3C=prefix(np.stack([costs.elements_L, costs.static_bytes_L, costs.stash_bytes_L])),
            received_bytes_C=costs.cut_bytes_C,
            working_bytes_L=costs.working_bytes_L,
            update_s_per_element=costs.optimizer_s_per_element,
            available_bytes=space.available_bytes,
            may_keep=space.may_keep,
            may_recompute=space.may_recompute,
        )

    def _split(self, microbatches: int, replicas: tuple[int, ...]) -> Split:
        """Costs with so many microbatches, of stages with one of these numbers of replicas."""
        samples = self.costs.job.global_batch // microbatches
        seconds = [self.costs.layer_seconds(samples / r) for r in replicas]
        forward_s_RL = np.stack([choice.forward_s_L for choice in seconds])
        backward_s_RL = np.stack([choice.backward_s_L for choice in seconds])
        least_s_RL = np.minimum.accumulate(forward_s_RL + backward_s_RL)
        return Split(
            microbatches=microbatches,
            samples_R=samples / np.array(replicas),
            seconds_3RC=prefix(np.stack([forward_s_RL, backward_s_RL, least_s_RL])),
            size_bytes_C=self.costs.cut_bytes_C * samples,
        )

    @functools.cached_property
    def _counts_NS(self) -> Ints:
        """The replicas of all lineups, 0 beyond the last stage."""
        every = list(_compositions(self.space.devices, self.replicas, self.space.stages))
        counts_NS = np.zeros((len(every), max(self.space.stages)), dtype=np.int64)
        for n, counts in enumerate(every):
            counts_NS[n, : len(counts)] = counts
        return counts_NS

    def unplaced(self, replicas: tuple[int, ...]) -> Lineups:
        """All lineups whose stages have one of these numbers of replicas, without their places."""
        choice_of = np.full(self.space.devices + 1, -1)
        choice_of[list(replicas)] = range(len(replicas))
        choice_of[0] = 0
        choice_NS = choice_of[self._counts_NS]
        rows = np.flatnonzero((choice_NS >= 0).all(axis=1))
        return Lineups(
            stages_N=(self._counts_NS[rows] > 0).sum(axis=1),
            indices_N3S=choice_NS[rows][:, None],
            transfers_N2S=np.zeros((0, 2, 0)),
        )

    def placed(self, lineups: Lineups, replicas: tuple[int, ...], order: int) -> Lineups:
        """The same in their places, without those that the first rank order places alike."""
        first = self.space.rank_orders[0]
        rows, places = [], []
        for n, stages in enumerate(lineups.stages_N):
            counts = tuple(replicas[r] for r in lineups.indices_N3S[n, CHOICE, :stages])
            self.visited.add((order, counts))
            where = self._place(counts, order)
            if order == first or not _alike(where, self._place(counts, first)):
                rows.append(n)
                places.append(where)
        found = Lineups(
            stages_N=lineups.stages_N[rows],
            indices_N3S=np.repeat(lineups.indices_N3S[rows, :1], 3, axis=1),
            transfers_N2S=np.zeros((len(rows), 2, lineups.indices_N3S.shape[2])),
        )
        found.indices_N3S[:, TABLE] = -1
        for n, where in enumerate(places):
            for s, transfer in enumerate(where.transfers):
                found.transfers_N2S[n, :, s + 1] = transfer.alpha_s, transfer.s_per_byte
            for s, group in enumerate(where.groups):
                shape = self._shapes.setdefault(group, len(self._shapes))
                found.indices_N3S[n, SHAPE, s] = shape
        return found

    def _place(self, counts: tuple[int, ...], order: int) -> Placement:
        found = self._placed.get((order, counts))
        if found is None:
            found = place(self.costs.cluster, counts, "replica" if order == REPLICA else "stage")
            self._placed[order, counts] = found
        return found

    @property
    def exchanges(self) -> Exchanges:
        """Least seconds of the exchanges over collectives of every shape of lineups placed."""
        return self._exchanges(tuple(self._shapes))

    def _stacked(self, shapes: tuple[GroupShape, ...]) -> Exchanges:
        """Lines and times of every shape."""
        lines_G = [self._lines(shape) for shape in shapes]
        most = max(len(lines) for lines in lines_G)
        return Exchanges(
            lines_GP2=np.stack([np.resize(lines, (most, 2)) for lines in lines_G]),
            last_s_GL=np.stack([self._last_s_L(shape) for shape in shapes]),
            finish_s_TCC=np.zeros((0, 1, 1)),
        )

    def exact_tables(
        self, split: Split, lineup: Lineups, most_steps: int
    ) -> tuple[Exchanges, Lineups] | None:
        """The same with the best exchanges of one lineup, or None if unknown or too much.

        They are exact unless a measured table applies, under which they are those of its floor.
        """
        shapes = list(self._shapes)
        layers = self.costs.elements_L.size
        stages = int(lineup.stages_N[0])
        keys = list(zip(*lineup.indices_N3S[0, [CHOICE, SHAPE], :stages].tolist(), strict=True))
        distinct = sorted(set(keys))
        if self.densities != (1.0,) or len(distinct) * layers**3 > most_steps:
            return None
        tables = []
        for r, shape in distinct:
            elements_L = self.costs.elements_L if shapes[shape].devices > 1 else np.zeros(layers)
            backward_s_L = np.diff(split.seconds_3RC[BACKWARD, r])
            tables.append(finish_table(backward_s_L, elements_L, self._lines(shapes[shape])))
        with_tables = chosen(lineup, np.array([0]))
        with_tables.indices_N3S[0, TABLE, :stages] = [distinct.index(key) for key in keys]
        return self.exchanges._replace(finish_s_TCC=np.stack(tables)), with_tables

    def _lines_of_shape(self, shape: GroupShape) -> Floats:
        """Lines (seconds, seconds per element), the least of which no grouping beats."""
        if shape.devices == 1:
            return _NONE
        every = [self.costs.least_group_cost(shape, density) for density in self.densities]
        costs = [cost.communicate for cost in every]
        if self.densities == (1.0,):
            return lines_of(costs[0])
        # Mixed groups: each element costs at least the least slope over all ways to send it.
        large = np.array([2.0**40, 2.0**41])
        slopes = [float(np.diff(_many(cost, large))[0]) / 2.0**40 for cost in costs]
        return np.array([[0.0, min(slopes) * (1 - _SLOPE_MARGIN)]])

    def _last_s_of_shape(self, shape: GroupShape) -> Floats:
        """Least seconds from the end of backward to the end of a group that was ready last.

        It holds at least one layer, whose exchange alone takes no longer.
        """
        elements_L = self.costs.elements_L
        if shape.devices == 1:
            return np.zeros_like(elements_L)
        every = []
        for density in self.densities:
            cost = self.costs.least_group_cost(shape, density)
            seconds = _many(cost.communicate, elements_L)
            if cost.sparsify is not None:
                seconds = seconds + _many(cost.sparsify, elements_L)
            every.append(seconds)
        least: Floats = np.minimum.reduce(every)
        return least


def chosen(lineups: Lineups, rows: Ints) -> Lineups:
    """Copies of some of them, by index."""
    placed = len(lineups.transfers_N2S) > 0
    return Lineups(
        stages_N=lineups.stages_N[rows],
        indices_N3S=lineups.indices_N3S[rows],
        transfers_N2S=lineups.transfers_N2S[rows] if placed else lineups.transfers_N2S,
    )


def _alike(one: Placement, other: Placement) -> bool:
    """Whether two placements cost the same."""
    return one.transfers == other.transfers and one.groups == other.groups


def _compositions(
    devices: int, replicas: tuple[int, ...], stages: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Replicas of stages, on as many devices or fewer."""
    found: list[tuple[int, ...]] = [()]
    for count in range(1, max(stages) + 1):
        found = [(*some, r) for some in found for r in replicas if sum(some) + r <= devices]
        if count in stages:
            yield from found


def _many(cost: Cost, elements: Floats) -> Floats:
    """A cost for every element of an array; nothing for no elements."""
    every = cast(ElementCost, cost).many(elements)
    return np.where(elements > 0, every, 0.0)
