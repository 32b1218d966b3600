"""Workers that answer as recorded ones did, when they would have: what they cost is the driver's.

Answers are pickled beforehand and unpickled as they come, and every call is pickled, as Ray does.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import pickle
import random
import time
from collections.abc import Sequence

from autoplan.search.crew import SURVEYOR, Answer, Call
from autoplan.search.island import Stepped
from autoplan.search.survey import Outline, Surveyed

_TOGETHER_S = 0.03


class SimulatedCrew:
    """Any number of workers, in real time."""

    def __init__(self, recorded: Sequence[Stepped], outline: Outline, seed: int) -> None:
        """Takes whole steps with at least one trial each."""
        self._outline = outline
        self._random = random.Random(seed)
        self._answers = [(each.busy_s / each.done, pickle.dumps(each)) for each in recorded]
        self._due: list[tuple[float, int, bytes, Call]] = []
        self.calls = self.waits = self.call_bytes = 0

    def submit(self, worker: int, call: Call) -> None:
        """The answer is due after as long as the recorded worker took for so many trials."""
        self.calls += 1
        self.call_bytes += len(pickle.dumps(call.arguments))
        trial_s, answer = self._random.choice(self._answers)
        step_s = 0.0
        if worker != SURVEYOR:
            step = call.arguments[0]
            step_s = min(step.trials * trial_s, max(step.seconds, trial_s))
        heapq.heappush(self._due, (time.monotonic() + step_s, worker, answer, call))

    def wait(self, seconds: float) -> list[Answer]:
        """What falls due first within so many seconds, and in the moment after."""
        self.waits += 1
        first_s = self._due[0][0] if self._due else math.inf
        time.sleep(min(seconds, max(0.0, first_s - time.monotonic()) + _TOGETHER_S))
        now_s, events = time.monotonic(), []
        while self._due and self._due[0][0] <= now_s:
            _, worker, answer, call = heapq.heappop(self._due)
            events.append(Answer(worker=worker, value=self._value(worker, answer, call)))
        return events

    def dismiss(self, worker: int) -> None:
        """Nothing is left of the worker's call."""
        self._due = [due for due in self._due if due[1] != worker]
        heapq.heapify(self._due)

    def close(self) -> None:
        """Nothing runs."""

    def _value(self, worker: int, answer: bytes, call: Call) -> Stepped | Surveyed:
        if worker == SURVEYOR:
            value = self._outline if call.arguments[0] == "outline" else None
            return Surveyed(value=value, candidates=0)
        step, stepped = call.arguments[0], pickle.loads(answer)
        done = max(1, min(step.trials, round(step.seconds * stepped.done / stepped.busy_s)))
        tried = tuple(
            dataclasses.replace(each, island=worker, number=step.first + min(i, done - 1))
            for i, each in enumerate(stepped.tried[: step.keep])
        )
        return dataclasses.replace(stepped, island=worker, first=step.first, done=done, tried=tried)
