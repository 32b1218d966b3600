"""The dynamic program over chains of ideals, compiled; `ideal_stages` says what it computes.

Axes: I ideals, E steps, N units, W words, T tensors, R numbers of replicas, H hosts used and S
devices used (both from 0 to all), Y numbers of held microbatches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.pipeline.ideals import Ideals, Ints, Words

Floats = NDArray[np.float64]
ROUNDING = 1e-12
"""Relative difference below which times and sizes are equal."""


class Sums(NamedTuple):
    """What all units of each ideal need together."""

    compute_s_I: Floats
    host_s_I: Floats
    parameter_bytes_I: Floats
    fixed_bytes_I: Floats
    held_bytes_I: Floats
    rest_s_I: Floats
    """Compute time that is still to be placed behind it."""
    crossing_s_I: Floats
    """Time of what crosses its border, where that overlaps with computing."""


class Tensors(NamedTuple):
    """What is sent in line with computing: a stage pays for each that it shares with others."""

    members_TW: Words
    first_word_T: Ints
    end_word_T: Ints
    seconds_T: Floats


class Limits(NamedTuple):
    """What a stage may be."""

    replicas_R: Ints
    gradient_s_per_byte_R: Floats
    first_gradient_s_per_byte_R: Floats
    held_SR: Ints
    limit_bytes: float
    devices_per_host: float
    """Most compute seconds that a host can take over per second of its own."""
    fewer_is_better: bool
    """Whether no stage can need more for fewer devices having been used before it."""


class Savings(NamedTuple):
    """Recomputation: what each unit takes and saves, and the units by price for each Y."""

    seconds_N: Floats
    fixed_bytes_N: Floats
    held_bytes_N: Floats
    order_YN: Ints


class Table(NamedTuple):
    """The best chain from the first ideal to each, by hosts and devices used [I, H, S]."""

    load_s_IHS: Floats
    """Its largest load."""
    came_IHS: Ints
    """The ideal that its last stage starts from."""
    used_IHS: Ints
    """The replicas of that stage, 0 on a host."""


@compiled
def search(
    ideals: Ideals,
    sums: Sums,
    tensors: Tensors,
    limits: Limits,
    savings: Savings,
    time_II: Floats,
    start: int,
    hosts: int,
    bound: float,
) -> Table:  # pragma: no cover - runs compiled
    """The chains from ideal `start` with the least largest loads.

    Loads of `bound` or more are left out; if it is finite, so is what cannot lead to the whole
    below it. `time_II`, where it is not empty, replaces the differences of the compute sums.
    """
    num_ideals = len(ideals.members_IW)
    shape = (num_ideals, hosts + 1, len(limits.held_SR))
    best, never = np.full(shape, np.inf), np.full(shape, -1, dtype=np.int64)
    table = Table(best, never, np.zeros(shape, dtype=np.int64))
    best[start, 0, 0] = 0.0
    cut_s_I = np.full(num_ideals, np.nan)
    stamps, queue = np.full(num_ideals, -1, dtype=np.int64), np.empty(num_ideals, dtype=np.int64)
    border = np.empty(len(tensors.seconds_T), dtype=np.int64)
    to_whole, per_host = bound < np.inf, limits.devices_per_host
    # What is left by rounding of sums is nothing.
    rest_s_I = sums.rest_s_I - ROUNDING * sums.compute_s_I[-1]
    for a in range(start, num_ideals):
        left = _places_left(best[a], rest_s_I[a], per_host, bound)
        if left < 0:
            continue
        left -= min(1.0, per_host) if hosts else 1.0
        reach_s = bound * max(float(limits.replicas_R.max()), per_host if hosts else 0.0)
        count = _larger(ideals, a, sums.compute_s_I, reach_s, stamps, queue)
        num_border = _border(tensors, ideals.members_IW[a], border)
        for b in queue[:count]:
            if to_whole and rest_s_I[b] > 0 and rest_s_I[b] >= bound * left:
                continue
            if hosts:
                _place_on_host(table, a, b, sums.host_s_I[b] - sums.host_s_I[a], bound)
            time_s = sums.compute_s_I[b] - sums.compute_s_I[a]
            if len(time_II):
                time_s = time_II[a, b]
            if not _may_improve(best, a, b, time_s, rest_s_I[b], limits, bound):
                continue
            time_s += _sent_seconds(ideals, tensors, cut_s_I, border[:num_border], a, b)
            _place(table, a, b, time_s, ideals, sums, limits, savings, start, bound)
            if to_whole and b == num_ideals - 1:
                bound = min(bound, best[b].min())
    return table


@compiled
def _places_left(
    best_HS: Floats, rest_s: float, devices_per_host: float, bound: float
) -> float:  # pragma: no cover
    """Most devices that some state leaves over for the rest, hosts counted as devices.

    Below 0 where the devices left over could never do the rest in less than the bound.
    """
    num_hosts, num_states = best_HS.shape
    most = -1.0
    for h in range(num_hosts):
        for s in range(num_states):
            left = num_states - 1 - s + (num_hosts - 1 - h) * devices_per_host
            if best_HS[h, s] < bound and (rest_s <= 0 or rest_s < bound * left):
                most = max(most, left)
    return most


@compiled
def _larger(
    ideals: Ideals, a: int, compute_s_I: Floats, reach_s: float, stamps: Ints, queue: Ints
) -> int:  # pragma: no cover
    """Puts the ideals around one that need less than `reach_s` more into the queue."""
    count, taken, current = 0, 0, a
    while True:
        for step in range(ideals.begin_I[current], ideals.begin_I[current + 1]):
            b = ideals.target_E[step]
            if stamps[b] != a and compute_s_I[b] - compute_s_I[a] < reach_s:
                stamps[b] = a
                queue[count] = b
                count += 1
        if taken == count:
            return count
        current = queue[taken]
        taken += 1


@compiled
def _border(tensors: Tensors, ideal_W: Words, border: Ints) -> int:  # pragma: no cover
    """Lists the tensors that are partly in an ideal and partly outside."""
    count = 0
    for t in range(len(tensors.seconds_T)):
        inside, outside = False, False
        for word in range(tensors.first_word_T[t], tensors.end_word_T[t]):
            inside |= (tensors.members_TW[t, word] & ideal_W[word]) != 0
            outside |= (tensors.members_TW[t, word] & ~ideal_W[word]) != 0
        if inside and outside:
            border[count] = t
            count += 1
    return count


@compiled
def _sent_seconds(
    ideals: Ideals, tensors: Tensors, cut_s_I: Floats, border: Ints, a: int, b: int
) -> float:  # pragma: no cover
    """Seconds of the tensors that the stage from a to b shares with others.

    All of b's border, whose sum is kept, and what a's border changes.
    """
    if not len(tensors.seconds_T):
        return 0.0
    if np.isnan(cut_s_I[b]):
        outer_border = np.empty(len(tensors.seconds_T), dtype=np.int64)
        count = _border(tensors, ideals.members_IW[b], outer_border)
        cut_s_I[b] = tensors.seconds_T[outer_border[:count]].sum()
    changed_s = _border_seconds(tensors, border, ideals.members_IW[a], ideals.members_IW[b])
    return float(cut_s_I[b] + changed_s)


@compiled
def _border_seconds(
    tensors: Tensors, border: Ints, inner_W: Words, outer_W: Words
) -> float:  # pragma: no cover
    """What the inner ideal's border adds to the outer one's for the stage between them.

    A tensor of the inner border that a unit of the stage shares is added; one that also crosses
    the outer border is in that sum already, with or without a share in the stage.
    """
    seconds = 0.0
    for t in border:
        between, behind = False, False
        for word in range(tensors.first_word_T[t], tensors.end_word_T[t]):
            rest = tensors.members_TW[t, word] & ~inner_W[word]
            between |= (rest & outer_W[word]) != 0
            behind |= (rest & ~outer_W[word]) != 0
        if between:
            seconds += tensors.seconds_T[t]
        if behind:
            seconds -= tensors.seconds_T[t]
    return seconds


@compiled
def _may_improve(
    best: Floats, a: int, b: int, time_s: float, rest_s: float, limits: Limits, bound: float
) -> bool:  # pragma: no cover
    """Whether computing alone leaves room for a better load of b; True at once for replicas."""
    if len(limits.replicas_R) > 1:
        return True
    each = limits.replicas_R[0]
    time_s /= each
    num_hosts, num_states = best.shape[1:]
    for h in range(num_hosts):
        for s in range(num_states - each):
            worst = max(best[a, h, s], time_s)
            if worst < bound and worst < best[b, h, s + each]:
                left = num_states - 1 - s - each
                left += (num_hosts - 1 - h) * limits.devices_per_host
                if rest_s <= 0 or rest_s < bound * left:
                    return True
    return False


@compiled
def _place_on_host(
    table: Table, a: int, b: int, host_s: float, bound: float
) -> None:  # pragma: no cover
    """Tries the stage from a to b on one host more."""
    best = table.load_s_IHS
    for h in range(best.shape[1] - 1):
        for s in range(best.shape[2]):
            worst = max(best[a, h, s], host_s)
            if worst < bound and worst < best[b, h + 1, s]:
                best[b, h + 1, s] = worst
                table.came_IHS[b, h + 1, s] = a
                table.used_IHS[b, h + 1, s] = 0


@compiled
def _place(
    table: Table,
    a: int,
    b: int,
    time_s: float,
    ideals: Ideals,
    sums: Sums,
    limits: Limits,
    savings: Savings,
    start: int,
    bound: float,
) -> None:  # pragma: no cover
    """Tries the stage from a to b on all numbers of devices, from all states of a."""
    best = table.load_s_IHS
    crossing_s = max(sums.crossing_s_I[a], sums.crossing_s_I[b]) if a > start else 0.0
    gradient_R = limits.first_gradient_s_per_byte_R if a == start else limits.gradient_s_per_byte_R
    parameter_bytes = sums.parameter_bytes_I[b] - sums.parameter_bytes_I[a]
    fixed_bytes = sums.fixed_bytes_I[b] - sums.fixed_bytes_I[a]
    held_bytes = sums.held_bytes_I[b] - sums.held_bytes_I[a]
    most_bytes = limits.limit_bytes * (1 + ROUNDING)
    extra_s_Y = np.full(len(savings.order_YN), np.nan)
    for h in range(best.shape[1]):
        least = np.inf
        for s in range(best.shape[2]):
            before = best[a, h, s]
            if before >= bound or (limits.fewer_is_better and before >= least):
                continue
            least = min(least, before)
            for r, each in enumerate(limits.replicas_R):
                after = s + each
                if after >= best.shape[2]:
                    break
                load = time_s / each + parameter_bytes * gradient_R[r]
                load = max(before, max(load, crossing_s / each))
                if load >= bound or load >= best[b, h, after]:
                    continue
                held = limits.held_SR[after, r]
                excess = fixed_bytes + held * held_bytes - most_bytes
                if excess > 0:
                    if np.isnan(extra_s_Y[held]):
                        inner, outer = ideals.members_IW[a], ideals.members_IW[b]
                        extra_s_Y[held] = _recompute_seconds(savings, inner, outer, held, excess)
                    slower = (time_s + extra_s_Y[held]) / each + parameter_bytes * gradient_R[r]
                    load = max(load, slower)
                if load < bound and load < best[b, h, after]:
                    best[b, h, after] = load
                    table.came_IHS[b, h, after] = a
                    table.used_IHS[b, h, after] = each


@compiled
def _recompute_seconds(
    savings: Savings, inner_W: Words, outer_W: Words, held: int, excess: float
) -> float:  # pragma: no cover
    """Seconds of recomputing units of a stage that save so many bytes; infinite if none do.

    Cheapest first per byte; for the unit that covers the rest, the cheapest that does.
    """
    seconds, last_s = 0.0, np.inf
    for unit in savings.order_YN[held]:
        word, bit = unit >> 6, np.uint64(unit & 63)
        if not ((outer_W[word] & ~inner_W[word]) >> bit) & np.uint64(1):
            continue
        saved = savings.fixed_bytes_N[unit] + held * savings.held_bytes_N[unit]
        if saved <= 0:
            continue
        if saved >= excess:
            last_s = min(last_s, savings.seconds_N[unit])
        elif last_s == np.inf:
            seconds += savings.seconds_N[unit]
            excess -= saved
    return seconds + last_s
