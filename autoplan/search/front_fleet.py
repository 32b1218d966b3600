"""The islands of a search for a front as its driver knows them: their rounds instead of trials."""

from __future__ import annotations

from autoplan.search.fleet import Fleet, Slot
from autoplan.search.front_course import SEARCH_SHARE
from autoplan.search.island import News, Step, Stepped, shares
from autoplan.search.layout import Layout
from autoplan.search.migration import FrontMigration
from autoplan.search.pareto import Front
from autoplan.search.session import Session
from autoplan.search.survey import Proposals

_ROWS = 64
"""Trials that all islands send at each of their steps."""
_ENOUGH_EMPTY = 2
"""Empty rounds in a row after which an island knows all that the others knew before them."""


class FrontFleet(Fleet):
    """All islands."""

    def __init__(self, session: Session, earlier: Front) -> None:
        """Deals out the trials that are left; `earlier` are the points of earlier runs."""
        super().__init__(session)
        self.first: tuple[Layout, ...] = ()
        """To look at before all others, shared out to the islands."""
        self.hurried = False
        """Whether the time has cut something short."""
        self._rounds = FrontMigration(earlier)

    @property
    def closed(self) -> bool:
        """Whether nothing is left to look within, as far as all islands know.

        That is, whether two rounds in a row were empty on all of them.
        """
        active = [slot for slot in self._slots if not (slot.retired or slot.finished)]
        since = [slot.empty_since for slot in active if slot.empty_since is not None]
        if not active or len(since) < len(active):
            return False
        return max(since) + _ENOUGH_EMPTY <= min(slot.rounds for slot in active)

    @property
    def heard(self) -> bool:
        """Whether every island that is there has done something."""
        return not any(s.fresh and s.lost_at_s is None and not s.retired for s in self._slots)

    def _reached(self, slot: Slot) -> int:
        return slot.rounds

    def _may_begin(self, slot: Slot, behind: float) -> bool:
        """An island that has nothing left to do waits for those too that are being replaced."""
        if slot.empty_since is not None and slot.rounds - slot.empty_since >= _ENOUGH_EMPTY:
            all_behind = min(s.rounds for s in self._slots if not (s.retired or s.finished))
            behind = min(behind, all_behind)
        return behind >= self._rounds.needs(slot.rounds)

    def _is_awaited(self, slot: Slot, stepped: Stepped) -> bool:
        assert stepped.outcome is not None
        return super()._is_awaited(slot, stepped) and stepped.outcome.number == slot.steps

    def _pass_on(self, slot: Slot, stepped: Stepped) -> None:
        outcome = stepped.outcome
        assert outcome is not None
        self._rounds.add(stepped)
        self.hurried = self.hurried or outcome.hurried
        if not outcome.round_over:
            return
        slot.rounds += 1
        if not outcome.empty:
            slot.empty_since = None
        elif slot.empty_since is None:
            slot.empty_since = outcome.round

    def _forget(self, slot: Slot) -> None:
        self._rounds.forget(slot.number)

    def _step(self, slot: Slot, proposals: Proposals) -> Step:
        left_s = self.session.left_s(SEARCH_SHARE)
        beginning = slot.fresh and slot.done == 0
        count = len(self._slots)
        points, searched = self._rounds.news(slot.number, slot.rounds)
        return Step(
            first=slot.done,
            trials=slot.quota - slot.done,
            seconds=min(self.step_s, left_s),
            seconds_left=left_s,
            keep=max(1, _ROWS // count),
            proposals=shares(proposals, slot.number, count) if beginning else (),
            history=tuple(slot.history) if slot.fresh else (),
            news=News(
                number=slot.steps + 1,
                round=slot.rounds,
                first=shares(self.first, slot.number, count) if beginning else (),
                points=tuple(points),
                searched=tuple(searched),
            ),
        )
