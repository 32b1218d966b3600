"""Which good trials travel between islands, and when: the same ones however long each island takes.

An island that begins generation g learns from the generations up to g - LAG of all islands, so it
waits only for islands that are further behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from autoplan.search.island import Tried

LAG = 4
"""Generations by which an island may be ahead of the slowest."""
_KEPT, _SENT = 8, 2
"""Trials in the pool, and those that an island gets of it at once."""


class Migration:
    """The best trials of all islands by generation."""

    def __init__(self, generation: int) -> None:
        """`generation` is how many trials of an island are one."""
        self.generation = generation
        self._of_generation: dict[int, list[Tried]] = defaultdict(list)
        self._pools: dict[int, list[Tried]] = {-1: []}
        self._had: dict[int, set[tuple[int, int]]] = defaultdict(set)

    def add(self, tried: Iterable[Tried]) -> None:
        """Takes in what an island has done."""
        first_open = max(self._pools) + 1
        for each in tried:
            # What a lost island's successor brings late counts for the next pool.
            generation = max(each.number // self.generation, first_open)
            self._of_generation[generation].append(each)

    def needs(self, first: int) -> int:
        """Trials that every island must have done before one begins its trial `first`."""
        return max(0, (first // self.generation - LAG + 1) * self.generation)

    def immigrants(self, island: int, first: int) -> tuple[Tried, ...]:
        """The best trials of others that an island beginning its trial `first` has not had yet."""
        until = first // self.generation - LAG
        if first % self.generation or until < 0:
            return ()
        had = self._had[island]
        strangers = [t for t in self._pool(until) if t.island != island and _key(t) not in had]
        sent = tuple(strangers[:_SENT])
        had.update(map(_key, sent))
        return sent

    def forget(self, island: int) -> None:
        """The island starts anew: it has had nothing."""
        self._had.pop(island, None)

    def _pool(self, until: int) -> list[Tried]:
        """The best distinct plans of the generations up to one."""
        start = max((g for g in self._pools if g <= until), default=min(self._pools))
        for g in range(start + 1, until + 1):
            best: dict[str, Tried] = {}
            for tried in sorted(self._pools[g - 1] + self._of_generation.pop(g, []), key=_order):
                best.setdefault(tried.candidate.plan.sha256, tried)
                if len(best) == _KEPT:
                    break
            self._pools[g] = list(best.values())
            self._pools.pop(g - 2 * LAG, None)
        return self._pools[until] if until in self._pools else self._pools[start]


def _key(tried: Tried) -> tuple[int, int]:
    return tried.island, tried.number


def _order(tried: Tried) -> tuple[tuple[bool, float, float], int, int]:
    return tried.candidate.rank, tried.island, tried.number
