"""The islands of a search as its driver knows them: their shares, their steps, and their losses."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from autoplan.search.crew import Call, Crew, Lost
from autoplan.search.island import Step, Stepped, Tried, shares
from autoplan.search.migration import Migration
from autoplan.search.session import Session
from autoplan.search.survey import Proposals

_GENERATION, _MANY = 4, 1000
"""Trials of an island between migrations: at least; and for so many islands, as many."""
_LONG_GENERATION, _GENERATIONS = 16, 8
"""In a search of many trials: as many, since each costs a call; but at least so many generations.
"""
_STEP_S, _STEPS_PER_S = 0.75, 80
"""Seconds of an island's step, and longer where more than so many would end in one second."""
_ROWS = 64
"""Trials that all islands send at each of their steps, the best ones of each."""
_START_S, _GRACE_S = 90.0, 30.0
"""How long a worker may take to start, and to answer beyond the time that it was given."""
_FIRST_WORD_S = 20.0
"""How long the others wait for an island that has not been heard of yet."""
_MOST_DEATHS = 3
"""Deaths in a row, without a trial between, after which an island is given up."""
_PATIENCE_S = 10.0
"""How long the others, when they are done, wait for a lost island before they take its trials."""
_HISTORY = 200
"""Trials that an island is made again from."""


@dataclass(slots=True)
class Slot:
    """What the driver knows of an island."""

    number: int
    quota: int = 0
    done: int = 0
    busy: bool = False
    fresh: bool = True
    """Whether it knows nothing yet."""
    asked_at_s: float = math.inf
    """When it was asked for its first step."""
    lost_at_s: float | None = None
    """Since when nothing is heard of it."""
    deaths: int = 0
    retired: bool = False
    num_unlimited: int = 0
    least_missing_bytes: float = math.inf
    history: list[Tried] = field(default_factory=list)
    steps: int = 0
    """That it was asked for."""
    rounds: int = 0
    """That are over, in a search for a front."""
    empty_since: int | None = None
    """Since which of them nothing was left to look within; None where there was in the last."""

    @property
    def finished(self) -> bool:
        """Whether it has done its share."""
        return self.done >= self.quota

    @property
    def waited_for(self) -> bool:
        """Whether the others may not run far ahead of it."""
        mute = self.fresh and time.monotonic() - self.asked_at_s > _FIRST_WORD_S
        return not (self.retired or self.finished or mute or self.lost_at_s is not None)


class Fleet:
    """All islands."""

    def __init__(self, session: Session) -> None:
        """Deals the trials that are left out to the islands."""
        workers = session.budget.workers
        self.session = session
        self.generation = generation_of(workers, session.budget.trials)
        self.step_s = max(_STEP_S, workers / _STEPS_PER_S)
        self.num_candidates = self.num_lost = 0
        self.last_loss = ""
        """Why the last one was lost."""
        self.busy_s = self.cpu_s = 0.0
        """What the islands have spent, all together."""
        self._keep = max(1, min(self.generation, _ROWS // workers))
        self._migration = Migration(self.generation)
        self._slots = [Slot(number) for number in range(workers)]
        self._deal_out(session.trials_left)

    @property
    def num_unlimited(self) -> int:
        """Layouts for which no grouping keeps the space's limits."""
        return sum(slot.num_unlimited for slot in self._slots)

    @property
    def least_missing_bytes(self) -> float:
        """What the nearest miss lacks."""
        return min(slot.least_missing_bytes for slot in self._slots)

    @property
    def busy(self) -> bool:
        """Whether the answer of an island is to be expected soon."""
        return any(slot.busy and slot.lost_at_s is None for slot in self._slots)

    @property
    def all_retired(self) -> bool:
        """Whether no island is left."""
        return all(slot.retired for slot in self._slots)

    def dispatch(self, crew: Crew, proposals: Proposals) -> None:
        """Gives every island that is idle its next step, unless it must wait for others."""
        behind = min((self._reached(s) for s in self._slots if s.waited_for), default=math.inf)
        for slot in self._slots:
            idle = not (slot.busy or slot.retired or slot.finished)
            if idle and self._may_begin(slot, behind):
                self._send(crew, slot, self._step(slot, proposals))
        if behind == math.inf:
            self._inherit(crew)

    def take(self, stepped: Stepped) -> bool:
        """Acknowledges what an island did; False for what was acknowledged before."""
        slot = self._slots[stepped.island]
        if not self._is_awaited(slot, stepped):
            return False
        slot.busy = slot.fresh = False
        slot.lost_at_s, slot.deaths = None, 0
        slot.done += stepped.done
        slot.history = (slot.history + list(stepped.tried))[-_HISTORY:]
        slot.num_unlimited = stepped.num_unlimited
        if stepped.candidates:
            slot.least_missing_bytes = stepped.least_missing_bytes
        self.num_candidates += stepped.candidates
        self.busy_s += stepped.busy_s
        self.cpu_s += stepped.cpu_s
        self._pass_on(slot, stepped)
        return True

    def lose(self, crew: Crew, lost: Lost) -> None:
        """An island is gone: another one takes its place, from what it had told."""
        slot = self._slots[lost.worker]
        slot.busy, slot.fresh = False, True
        self.num_lost += 1
        self.last_loss = lost.reason
        if slot.lost_at_s is None:
            slot.lost_at_s = time.monotonic()
        slot.deaths += lost.died
        self._forget(slot)
        if slot.deaths >= _MOST_DEATHS:
            self._retire(crew, slot)

    def _reached(self, slot: Slot) -> int:
        """How far an island is."""
        return slot.done

    def _may_begin(self, slot: Slot, behind: float) -> bool:
        """Whether the others are far enough for an island's next step."""
        return behind >= self._migration.needs(slot.done)

    def _is_awaited(self, slot: Slot, stepped: Stepped) -> bool:
        """Whether an answer is the one to the last step."""
        return slot.done == stepped.first and not slot.retired

    def _pass_on(self, slot: Slot, stepped: Stepped) -> None:
        """Keeps what an island told for the others."""
        self._migration.add(stepped.tried)

    def _forget(self, slot: Slot) -> None:
        """An island starts anew."""
        self._migration.forget(slot.number)

    def _step(self, slot: Slot, proposals: Proposals) -> Step:
        """An island's next step."""
        left_s = self.session.left_s(1.0)
        generation_ends = (slot.done // self.generation + 1) * self.generation
        return Step(
            first=slot.done,
            trials=min(generation_ends, slot.quota) - slot.done,
            seconds=min(self.step_s, left_s),
            seconds_left=left_s,
            keep=self._keep,
            proposals=shares(proposals, slot.number, len(self._slots)) if slot.done == 0 else (),
            immigrants=self._migration.immigrants(slot.number, slot.done),
            history=tuple(slot.history) if slot.fresh else (),
        )

    def _send(self, crew: Crew, slot: Slot, step: Step) -> None:
        """Asks an island for a step."""
        limit_s = self.step_s + _GRACE_S
        if slot.fresh:
            limit_s += _START_S
            slot.asked_at_s = min(slot.asked_at_s, time.monotonic())
        crew.submit(slot.number, Call(method="step", arguments=(step,), limit_s=limit_s))
        slot.busy = True
        slot.steps += 1

    def _inherit(self, crew: Crew) -> None:
        """The islands that are done take the trials of those that do not come back."""
        now_s = time.monotonic()
        for slot in self._slots:
            gone = slot.lost_at_s is not None and now_s - slot.lost_at_s > _PATIENCE_S
            mute = slot.fresh and now_s - slot.asked_at_s > _START_S
            heirs = any(s.lost_at_s is None and not (s.retired or s.fresh) for s in self._slots)
            if (gone or mute) and not (slot.retired or slot.finished) and heirs:
                self._retire(crew, slot)

    def _retire(self, crew: Crew, slot: Slot) -> None:
        """Gives an island up; its trials go to the others."""
        crew.dismiss(slot.number)
        slot.retired, slot.busy = True, False
        left, slot.quota = slot.quota - slot.done, slot.done
        self._deal_out(left)

    def _deal_out(self, trials: int) -> None:
        """Shares trials out to the islands that are there, or else to all that may come back."""
        alive = [slot for slot in self._slots if not slot.retired]
        heirs = [slot for slot in alive if slot.lost_at_s is None] or alive
        for i, slot in enumerate(heirs):
            slot.quota += max(0, trials) // len(heirs) + (i < max(0, trials) % len(heirs))


def generation_of(workers: int, trials: int) -> int:
    """Trials of an island between migrations: more where more islands talk to one driver."""
    long = min(_LONG_GENERATION, trials // (workers * _GENERATIONS))
    return max(_GENERATION, long, workers**2 // _MANY)
