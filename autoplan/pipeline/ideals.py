"""The ideals of a directed acyclic graph: the sets that hold, with a unit, all that it waits for.

The stages of a pipeline over a graph are the differences of a chain of ideals (facts/planners.md
1.2 and 1.3), so the ideals of a graph are to it what the cuts are to a linear order, of which there
are L + 1. A graph with branches has far more, up to 2^N for N units that wait for nothing.

Axes: I ideals, N units, W words of 64 bits (unit n is bit n % 64 of word n // 64), E single steps
from an ideal to one with a unit more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.errors import InputError, require, words

Words = NDArray[np.uint64]
Ints = NDArray[np.int64]
Edge = tuple[int, int]

MOST_IDEALS = 60_000
"""As many as dnn-partitioning works on; chains through more are not searched."""
_BITS = 64
_FEW = 256
"""Ideals that there is room for at first; a power of two."""


class Ideals(NamedTuple):
    """All ideals by size, from the empty one to the whole; a kernel can take it apart."""

    members_IW: Words
    """The units of each."""
    begin_I: Ints
    """Where the steps from each begin in `target_E`; one more than the ideals."""
    target_E: Ints
    """The ideal that a step leads to."""

    def member_table(self, num_units: int) -> NDArray[np.bool_]:
        """Whether each ideal [I] has each unit [N]."""
        shifts = np.arange(_BITS, dtype=np.uint64)
        bits_IWB = (self.members_IW[:, :, None] >> shifts) & np.uint64(1)
        table = bits_IWB.astype(np.bool_).reshape(len(self.members_IW), -1)
        return table[:, :num_units]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precedence:
    """Which units wait for which; the edges have no cycle."""

    num_units: int
    edges: tuple[Edge, ...]
    """(before, after) by number, 0 to N - 1."""

    def __post_init__(self) -> None:
        """Refuses edges between units that are not there, and cycles."""
        require(self.num_units >= 1, "units", self.num_units, "at least 1")
        for edge in self.edges:
            inside = all(0 <= unit < self.num_units for unit in edge)
            require(inside, "edges", edge, f"units 0 to {self.num_units - 1}")
        if len(self.order(depth_first=False)) < self.num_units:
            raise InputError("edges", words("a cycle"), "edges without cycles")

    def order(self, *, depth_first: bool) -> tuple[int, ...]:
        """An order that every edge follows.

        Of the units that can come next it takes the one that can since last (depth first), or the
        one that can since longest.
        """
        waiting = [0] * self.num_units
        after: list[list[int]] = [[] for _ in range(self.num_units)]
        for source, target in self.edges:
            waiting[target] += 1
            after[source].append(target)
        ready = [unit for unit, left in enumerate(waiting) if not left]
        placed: list[int] = []
        while ready:
            placed.append(ready.pop(-1 if depth_first else 0))
            for target in after[placed[-1]]:
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
        return tuple(placed)

    def in_line(self, order: Sequence[int]) -> Precedence:
        """One unit after the other, as an order says."""
        steps = tuple(pairwise(order))
        return Precedence(num_units=self.num_units, edges=steps)


def masks(sets: Sequence[Sequence[int]], num_units: int) -> Words:
    """Sets of units as words of bits."""
    table = np.zeros((len(sets), -(-num_units // _BITS)), dtype=np.uint64)
    for row, units in enumerate(sets):
        for unit in units:
            table[row, unit // _BITS] |= np.uint64(1 << (unit % _BITS))
    return table


def ideals_of(precedence: Precedence, most: int = MOST_IDEALS) -> Ideals | None:
    """All ideals, or None where there are more than `most`.

    By size: every ideal grows by each unit that has all it waits for. O(I N W) time.
    """
    before: list[list[int]] = [[] for _ in range(precedence.num_units)]
    for source, target in precedence.edges:
        before[target].append(source)
    members, begin, targets = _grow(masks(before, precedence.num_units), most)
    return Ideals(members, begin, targets) if len(members) else None


def ideals_plain(precedence: Precedence) -> set[frozenset[int]]:
    """All ideals by the definition, for tests: the subsets that lack nothing they wait for."""
    units = range(precedence.num_units)
    subsets = (
        frozenset(unit for unit in units if number >> unit & 1)
        for number in range(1 << precedence.num_units)
    )
    return {
        subset
        for subset in subsets
        if all(source in subset for source, target in precedence.edges if target in subset)
    }


@compiled
def _grow(before_NW: Words, most: int) -> tuple[Words, Ints, Ints]:  # pragma: no cover
    """The ideals and their steps (see Ideals), all empty where there are more than `most`."""
    num_units, num_words = before_NW.shape
    members = np.zeros((_FEW, num_words), dtype=np.uint64)
    begin = np.zeros(_FEW + 1, dtype=np.int64)
    targets = np.empty(_FEW, dtype=np.int64)
    slots = np.full(4 * _FEW, -1, dtype=np.int64)
    slots[_hash(members[0]) & (len(slots) - 1)] = 0
    found, steps, current = 1, 0, 0
    candidate = np.empty(num_words, dtype=np.uint64)
    while current < found:
        if found + num_units > len(members):
            members, begin, slots = _more_room(members, begin, found, num_units)
        if steps + num_units > len(targets):
            longer = np.empty(2 * (steps + num_units), dtype=np.int64)
            longer[:steps] = targets[:steps]
            targets = longer
        for unit in range(num_units):
            if not _can_follow(members[current], before_NW[unit], unit):
                continue
            candidate[:] = members[current]
            candidate[unit >> 6] |= np.uint64(1) << np.uint64(unit & 63)
            slot = _slot_of(candidate, members, slots)
            if slots[slot] < 0:
                if found >= most:
                    return members[:0], begin[:0], targets[:0]
                members[found] = candidate
                slots[slot] = found
                found += 1
            targets[steps] = slots[slot]
            steps += 1
        current += 1
        begin[current] = steps
    return members[:found].copy(), begin[: found + 1].copy(), targets[:steps].copy()


@compiled
def _more_room(
    members_IW: Words, begin_I: Ints, found: int, num_units: int
) -> tuple[Words, Ints, Ints]:  # pragma: no cover
    """Arrays with room for at least as many ideals again, and their hash table."""
    room = 2 * (found + num_units)
    members = np.zeros((room, members_IW.shape[1]), dtype=np.uint64)
    members[:found] = members_IW[:found]
    begin = np.zeros(room + 1, dtype=np.int64)
    begin[: found + 1] = begin_I[: found + 1]
    size = _FEW
    while size < 2 * room:
        size *= 2
    slots = np.full(size, -1, dtype=np.int64)
    for number in range(found):
        slots[_slot_of(members[number], members, slots)] = number
    return members, begin, slots


@compiled
def _can_follow(ideal_W: Words, before_W: Words, unit: int) -> bool:  # pragma: no cover
    """Whether a unit is not in an ideal, and all that it waits for is."""
    if (ideal_W[unit >> 6] >> np.uint64(unit & 63)) & np.uint64(1):
        return False
    lacks = False
    for word in range(len(ideal_W)):
        lacks |= (before_W[word] & ~ideal_W[word]) != 0
    return not lacks


@compiled
def _hash(ideal_W: Words) -> np.int64:  # pragma: no cover
    """A number of at least 0 that mixes all words."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for word in ideal_W:
        mixed = (mixed ^ word) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed >> np.uint64(1))


@compiled
def _slot_of(ideal_W: Words, members_IW: Words, slots: Ints) -> int:  # pragma: no cover
    """The place in the hash table where an ideal is, or belongs."""
    last = len(slots) - 1
    slot = _hash(ideal_W) & last
    while slots[slot] >= 0:
        known = members_IW[slots[slot]]
        same = True
        for word in range(len(ideal_W)):
            if known[word] != ideal_W[word]:
                same = False
                break
        if same:
            break
        slot = (slot + 1) & last
    return int(slot)
