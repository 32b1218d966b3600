"""What travels between islands, and when: the same however long each island takes.

An island that begins generation g learns from the generations up to g less a lag of all islands, so
it waits only for islands that are further behind. The lag grows with g: islands whose trials take
longer than those of others fall back by more and more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from autoplan.search.island import Stepped, Tried
from autoplan.search.pareto import Front, Searched
from autoplan.search.refine import Candidate

LAG, LAG_SHARE = 4, 3
"""Generations by which an island may be ahead of the slowest: at least, and as a part of its own.
"""
ROUNDS_LAG = 2
"""Rounds by which an island may be ahead of the slowest, in a search for a front."""
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
        return max(0, (_known_until(first // self.generation) + 1) * self.generation)

    def immigrants(self, island: int, first: int) -> tuple[Tried, ...]:
        """The best trials of others that an island beginning its trial `first` has not had yet."""
        until = _known_until(first // self.generation)
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
        # No island is further behind than the newest pool, nor asks for older ones than it may.
        for g in [g for g in self._pools if g < _known_until(max(self._pools))]:
            del self._pools[g]
        return self._pools[until] if until in self._pools else self._pools[start]


def _known_until(generation: int) -> int:
    """The last generation of others that an island knows when it begins one."""
    return generation - max(LAG, generation // LAG_SHARE)


def _key(tried: Tried) -> tuple[int, int]:
    return tried.island, tried.number


def _order(tried: Tried) -> tuple[tuple[bool, float, float], int, int]:
    return tried.candidate.rank, tried.island, tried.number


class FrontMigration:
    """The points of all islands' fronts by round, and the limits within which islands have looked.

    An island that begins round r knows the rounds up to r - ROUNDS_LAG of all islands, and at the
    latest from its second round on, the first one of all.
    """

    def __init__(self, known: Front) -> None:
        """`known` are the points of earlier runs, and then those that every island may know of."""
        self._known = known
        self._searched: list[Searched] = []
        self._of_round: dict[int, list[Stepped]] = defaultdict(list)
        self._closed: list[tuple[list[tuple[int, Candidate]], list[Searched]]] = []
        self._next_for: dict[int, int] = {}
        """Of each island that knows something, the first round of which it was not told."""

    def add(self, stepped: Stepped) -> None:
        """Takes in what an island has told."""
        assert stepped.outcome is not None
        # What a lost island's successor brings late counts for the next round.
        self._of_round[max(stepped.outcome.round, len(self._closed))].append(stepped)

    def needs(self, begun: int) -> int:
        """Rounds that must be over on every island before one begins a round."""
        return max(begun - ROUNDS_LAG, min(begun, 1) - 1) + 1

    def news(self, island: int, begun: int) -> tuple[list[Candidate], list[Searched]]:
        """What an island that begins a round has not been told yet."""
        until = self.needs(begun)
        while len(self._closed) < until:
            self._close(len(self._closed))
        if island not in self._next_for:
            self._next_for[island] = len(self._closed)
            return list(self._known.points), list(self._searched)
        points, searched = [], []
        for number in range(self._next_for[island], until):
            found, looked = self._closed[number]
            points += [point for origin, point in found if origin != island]
            searched += looked
        self._next_for[island] = max(until, self._next_for[island])
        return points, searched

    def forget(self, island: int) -> None:
        """The island starts anew: it knows nothing."""
        self._next_for.pop(island, None)

    def _close(self, number: int) -> None:
        """All islands have done a round."""
        told: list[tuple[int, Candidate]] = []
        searched: list[Searched] = []
        for stepped in sorted(self._of_round.pop(number, []), key=lambda each: each.island):
            assert stepped.outcome is not None
            told += [(stepped.island, point) for point in stepped.outcome.points]
            searched += stepped.outcome.searched
        for _, point in told:
            self._known.add(point)
        on_front = set(map(id, self._known.points))
        self._closed.append(([each for each in told if id(each[1]) in on_front], searched))
        self._searched += searched
