"""The partition of a graph into stages whose largest load is least, over all chains of ideals.

`minmax.min_max_partition` cuts one linear order. Here a stage is the difference of two ideals, so
that branches can be ordered in any way: the search space of PipeDream, dnn-partitioning and Piper
(facts/planners.md 1.1-1.3). What a stage of the units S on d devices is charged with, the terms
that a planner leaves out being 0:

    ( compute_s(S) + recompute_s(S) + seconds of the tensors that S shares with other stages ) / d
      + parameter_bytes(S) * gradient_s_per_byte[d]
    or, if it is more, what crosses its border in or out / d, where sending overlaps with computing
    and the stage is not the first;

and it must have fixed_bytes(S) + held * held_bytes(S) within the limit, for the number of
microbatches that it holds; recomputing some units may save what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import require
from autoplan.pipeline.ideal_kernels import (
    ROUNDING,
    Limits,
    Savings,
    Sums,
    Table,
    Tensors,
    search,
)
from autoplan.pipeline.ideals import MOST_IDEALS, Ideals, Ints, Precedence, ideals_of, masks
from autoplan.pipeline.unit_floor import UnitFloor, alone_s
from autoplan.workload.stage_loads import Transfer

Floats = NDArray[np.float64]
Crossing = Callable[[Ideals], Floats]
"""Seconds for what crosses the border of each ideal."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """What is placed: N units, each with what it takes and needs. Absent arrays are zeros."""

    precedence: Precedence
    compute_s_N: Floats
    tensors: tuple[Transfer, ...] = ()
    """Sent in line with computing; a stage pays for each that it shares with another."""
    host_s_N: Floats | None = None
    """Compute time on a host, which pays for no transfers and has no limit."""
    parameter_bytes_N: Floats | None = None
    fixed_bytes_N: Floats | None = None
    held_bytes_N: Floats | None = None
    """For each held microbatch."""
    recompute_s_N: Floats | None = None
    """What recomputing takes."""
    saved_fixed_bytes_N: Floats | None = None
    """What it saves once, negative where it costs."""
    saved_held_bytes_N: Floats | None = None
    """What it saves for each held microbatch."""

    def __post_init__(self) -> None:
        """Refuses arrays of another length, and times and sizes that are negative or not finite."""
        for name in ("compute_s_N", "host_s_N", "parameter_bytes_N", "fixed_bytes_N"):
            self._check(name, least=0.0)
        for name in ("held_bytes_N", "recompute_s_N"):
            self._check(name, least=0.0)
        for name in ("saved_fixed_bytes_N", "saved_held_bytes_N"):
            self._check(name, least=-math.inf)

    def _check(self, name: str, *, least: float) -> None:
        values = getattr(self, name)
        if values is None:
            return
        num_units = self.precedence.num_units
        require(values.shape == (num_units,), name, values.shape, f"{num_units} numbers")
        sound = bool(np.isfinite(values).all() and (values >= least).all())
        require(sound, name, float(values.min()), f"finite numbers, at least {least:g}")

    def array(self, name: str) -> Floats:
        """An array by its name, zeros where it is absent."""
        values: Floats | None = getattr(self, name)
        if values is None:
            return np.zeros(self.precedence.num_units)
        return np.ascontiguousarray(values, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageRules:
    """On what units may be placed, and what replicas cost."""

    devices: int
    """At most; some may be left idle."""
    hosts: int = 0
    """Further places for a stage each, with `host_s_N`."""
    replicas: tuple[int, ...] = (1,)
    """Numbers of devices that a stage may have, ascending."""
    gradient_s_per_byte: tuple[float, ...] = (0.0,)
    """For each of them, the time of exchanging gradients per byte of parameters."""
    first_gradient_s_per_byte: tuple[float, ...] | None = None
    """The same for the first stage, where that differs."""
    limit_bytes: float = math.inf
    held: Callable[[int, int], int] | None = None
    """Microbatches that a stage holds, by the devices used up to and with it and its replicas; 0
    where memory does not depend on them."""

    def __post_init__(self) -> None:
        """Refuses what no stage can have."""
        require(self.devices >= 1, "devices", self.devices, "at least 1")
        require(self.hosts >= 0, "hosts", self.hosts, "at least 0")
        ascending = all(few < many for few, many in pairwise((0, *self.replicas)))
        require(ascending and bool(self.replicas), "replicas", self.replicas, "ascending from 1")
        count = len(self.replicas)
        for times in (self.gradient_s_per_byte, self.first_gradient_s_per_byte or (0.0,) * count):
            require(len(times) == count, "gradient times", times, "one for each replica number")

    def held_table(self) -> Ints:
        """Microbatches held, by devices used [S] and index of the replicas [R]."""
        table = np.zeros((self.devices + 1, len(self.replicas)), dtype=np.int64)
        if self.held is not None:
            for used in range(1, self.devices + 1):
                table[used] = [self.held(used, each) for each in self.replicas]
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOfUnits:
    """A stage and where it runs."""

    units: tuple[int, ...]
    replicas: int
    """Devices, 0 for a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOfStages:
    """A partition, in the order of the stages; none and an infinite load where nothing fits."""

    load_s: float
    stages: tuple[StageOfUnits, ...]
    proven: bool
    """Whether no chain of ideals has a smaller load (with recomputation, near it: which units to
    recompute is a knapsack that is filled greedily)."""


def best_stages(
    units: Units,
    rules: StageRules,
    *,
    crossing: Crossing | None = None,
    most_ideals: int = MOST_IDEALS,
) -> ChainOfStages:
    """The chain of stages with the least largest load.

    Two linear orders first, whose ideals are few; the better one's load is where the search over
    all ideals stops looking. That search is left out where the load is a floor that nothing can
    beat (the largest unit, or everything spread evenly), and where there are too many ideals.

    Args:
        units: what is placed.
        rules: on what.
        crossing: what crosses the borders of ideals, overlapping with computing.
        most_ideals: more are not searched, and the result is not proven.
    """
    problem = _Problem(units, rules, crossing)
    orders = {units.precedence.order(depth_first=depth_first) for depth_first in (False, True)}
    best = ChainOfStages(load_s=math.inf, stages=(), proven=False)
    for order in sorted(orders):
        line = ideals_of(units.precedence.in_line(order))
        best = _better(best, problem, line) if best.stages else _first(problem, line)
    if best.load_s <= problem.floor_s(best.load_s) * (1 + ROUNDING):
        return ChainOfStages(load_s=best.load_s, stages=best.stages, proven=True)
    ideals = ideals_of(units.precedence, most_ideals)
    best = _better(best, problem, ideals)
    return ChainOfStages(load_s=best.load_s, stages=best.stages, proven=ideals is not None)


def best_grouped_stages(
    units: Units,
    inside: StageRules,
    between: StageRules,
    *,
    crossing_inside: Crossing | None = None,
    crossing_between: Crossing | None = None,
    most_ideals: int = MOST_IDEALS,
) -> ChainOfStages:
    """The same on groups of devices: each stage of groups is a chain of stages inside one.

    The computing time of a stage of groups is the least largest load that one group reaches for
    it, as in PipeDream's hierarchical optimizer.

    Args:
        units: what is placed.
        inside: on what within a group.
        between: on what, a group being the device.
        crossing_inside: what crosses borders between the devices of a group.
        crossing_between: what crosses borders between groups.
        most_ideals: more are not searched, and nothing is found.
    """
    nothing = ChainOfStages(load_s=math.inf, stages=(), proven=False)
    ideals = ideals_of(units.precedence, most_ideals)
    if ideals is None:
        return nothing
    group = _Problem(units, inside, crossing_inside)
    sums = group.sums(ideals, math.inf)
    count = len(ideals.members_IW)
    found = [group.search(ideals, sums, math.inf, start=a) for a in range(count)]
    time_s_II = np.array([chains.load_s_IHS.min(axis=(1, 2)) for chains in found])
    whole = _Problem(units, between, crossing_between)
    best = _better(nothing, whole, ideals, time_s_II)
    return ChainOfStages(load_s=best.load_s, stages=best.stages, proven=True)


class _Problem:
    """Units and rules as the kernel takes them."""

    def __init__(self, units: Units, rules: StageRules, crossing: Crossing | None) -> None:
        self.units, self.rules, self.crossing = units, rules, crossing
        compute_s_N, host_s_N = units.compute_s_N, units.array("host_s_N")
        speeds = compute_s_N[compute_s_N > 0] / np.maximum(host_s_N[compute_s_N > 0], 1e-300)
        per_host = float(speeds.max(initial=0.0)) if rules.hosts else 0.0
        held_SR = rules.held_table()
        own = rules.gradient_s_per_byte
        self.limits = Limits(
            np.array(rules.replicas, dtype=np.int64),
            np.array(own),
            np.array(rules.first_gradient_s_per_byte or own),
            held_SR,
            rules.limit_bytes,
            per_host,
            bool((np.diff(held_SR, axis=0) >= 0).all()),
        )
        self.tensors = self._tensors()
        self.savings = self._savings(int(held_SR.max()))

    def guess_s(self) -> float:
        """A load that partitions often reach."""
        compute_s_N = self.units.compute_s_N
        even_s = float(compute_s_N.sum()) / self.rules.devices
        return 1.25 * max(even_s, float(compute_s_N.max()) / max(self.rules.replicas))

    def floor_s(self, load_s: float) -> float:
        """What no partition can beat, as far as it may be as much as a load that was reached.

        Everything spread evenly; and for each unit the least load of any stage with it, on the
        most devices that a stage can have, or on a host.
        """
        units, hosts = self.units, self.rules.hosts
        each = max(self.rules.replicas)
        places = self.rules.devices + hosts * self.limits.devices_per_host
        even_s = float(units.compute_s_N.sum()) / places
        if even_s >= load_s or math.isinf(load_s):
            return even_s
        host_s_N = units.array("host_s_N") if hosts else np.full(len(units.compute_s_N), np.inf)
        enough = load_s * (1 - ROUNDING)
        alone_s_N = np.minimum(alone_s(units.compute_s_N, units.tensors) / each, host_s_N)
        promising = np.flatnonzero(alone_s_N >= enough)
        if not len(promising):
            return even_s
        largest_s, floors = even_s, UnitFloor(units.compute_s_N, units.tensors)
        for unit in promising[np.argsort(-units.compute_s_N[promising])].tolist():
            largest_s = max(largest_s, min(floors.least_s(unit) / each, host_s_N[unit]))
            if largest_s >= enough:
                break
        return largest_s

    def _tensors(self) -> Tensors:
        num_units = self.units.precedence.num_units
        joined: dict[tuple[int, ...], float] = {}
        for tensor in self.units.tensors:
            ends = tuple(sorted({tensor.producer, *tensor.consumers}))
            if len(ends) > 1 and tensor.seconds > 0:
                joined[ends] = joined.get(ends, 0.0) + tensor.seconds
        first = [ends[0] // 64 for ends in joined]
        last = [ends[-1] // 64 + 1 for ends in joined]
        return Tensors(
            masks(list(joined), num_units),
            np.array(first, dtype=np.int64),
            np.array(last, dtype=np.int64),
            np.array(list(joined.values()), dtype=np.float64),
        )

    def _savings(self, most_held: int) -> Savings:
        array = self.units.array
        seconds_N, fixed_N = array("recompute_s_N"), array("saved_fixed_bytes_N")
        held_N = array("saved_held_bytes_N")
        held_Y = np.arange(most_held + 1)[:, None]
        saved_YN = np.maximum(fixed_N + held_Y * held_N, 1e-300)
        order_YN = np.argsort(seconds_N / saved_YN, axis=1, kind="stable")
        return Savings(seconds_N, fixed_N, held_N, order_YN)

    def sums(self, ideals: Ideals, bound: float) -> Sums:
        """The sums over each ideal; without a bound, nothing is to be placed behind it."""
        table = ideals.member_table(self.units.precedence.num_units).astype(np.float64)
        compute_s_I = table @ self.units.compute_s_N
        rest_s_I = np.zeros(len(table)) if math.isinf(bound) else compute_s_I[-1] - compute_s_I
        crossing_s_I = np.zeros(len(table)) if self.crossing is None else self.crossing(ideals)
        array = self.units.array
        return Sums(
            compute_s_I=compute_s_I,
            host_s_I=table @ array("host_s_N"),
            parameter_bytes_I=table @ array("parameter_bytes_N"),
            fixed_bytes_I=table @ array("fixed_bytes_N"),
            held_bytes_I=table @ array("held_bytes_N"),
            rest_s_I=rest_s_I,
            crossing_s_I=crossing_s_I,
        )

    def search(
        self,
        ideals: Ideals,
        sums: Sums,
        bound: float,
        *,
        start: int = 0,
        time_s_II: Floats | None = None,
    ) -> Table:
        """Runs the kernel."""
        times = np.zeros((0, 0)) if time_s_II is None else time_s_II
        hosts = self.rules.hosts
        return search(
            ideals, sums, self.tensors, self.limits, self.savings, times, start, hosts, bound
        )


def _first(problem: _Problem, ideals: Ideals | None) -> ChainOfStages:
    """The best chain, below guesses that double until there is one: that is quicker than none."""
    guess_s, most_s = problem.guess_s(), float(problem.units.compute_s_N.sum())
    best = ChainOfStages(load_s=math.inf, stages=(), proven=False)
    while not best.stages and 0 < guess_s < math.inf:
        best = _better(best, problem, ideals, below_s=guess_s)
        guess_s = 2 * guess_s if guess_s <= most_s else math.inf
    return best if best.stages else _better(best, problem, ideals)


def _better(
    best: ChainOfStages,
    problem: _Problem,
    ideals: Ideals | None,
    time_s_II: Floats | None = None,
    below_s: float = math.inf,
) -> ChainOfStages:
    """The best chain through some ideals, if it is better than the one that is known."""
    if ideals is None:
        return best
    bound = min(best.load_s * (1 - ROUNDING), below_s)
    sums = problem.sums(ideals, bound)
    chains = problem.search(ideals, sums, bound, time_s_II=time_s_II)
    finish = chains.load_s_IHS[-1]
    load_s = float(finish.min())
    if not load_s < bound:
        return best
    h, s = (int(axis) for axis in np.unravel_index(int(finish.argmin()), finish.shape))
    table = ideals.member_table(problem.units.precedence.num_units)
    stages, b = [], len(table) - 1
    while b > 0:
        a, each = int(chains.came_IHS[b, h, s]), int(chains.used_IHS[b, h, s])
        members = np.flatnonzero(table[b] & ~table[a]).tolist()
        stages.append(StageOfUnits(units=tuple(members), replicas=each))
        b, h, s = a, h - (each == 0), s - each
    return ChainOfStages(load_s=load_s, stages=tuple(reversed(stages)), proven=False)
