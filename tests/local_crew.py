"""A crew in this process: real islands and surveyors, whose answers come in any order or not."""

from __future__ import annotations

import random

from autoplan.search.crew import SURVEYOR, Answer, Lost
from autoplan.search.front_island import make_island
from autoplan.search.survey import Surveyor


class LocalCrew:
    """Does one pending call per `wait`, chosen at random."""

    def __init__(self, experiment, settings, *, seed=0, loses=lambda worker, number: None):
        """`loses` tells of a worker's call, counted over all workers, how it is lost.

        "unheard": the worker dies before it begins; "unsaid": when it is done, and before it tells;
        "repeated": it is not lost but answers twice.
        """
        self.experiment, self.settings = experiment, settings
        self._random, self._loses = random.Random(seed), loses
        self._workers, self._pending, self._again = {}, {}, []
        self.calls = 0
        self.closed = False

    def submit(self, worker, call):
        assert worker not in self._pending, "a worker is asked for one thing at a time"
        assert call.limit_s > 0
        self._pending[worker] = call

    def wait(self, seconds):
        if self._again:
            return [self._again.pop()]
        if not self._pending:
            return []
        worker = self._random.choice(sorted(self._pending))
        call = self._pending.pop(worker)
        self.calls += 1
        how = self._loses(worker, self.calls)
        value = None
        if how != "unheard":
            value = getattr(self._worker(worker), call.method)(*call.arguments)
        if how in ("unheard", "unsaid"):
            self._workers.pop(worker, None)
            return [Lost(worker=worker, reason="killed by a test", died=True)]
        if how == "repeated":
            self._again.append(Answer(worker=worker, value=value))
        return [Answer(worker=worker, value=value)]

    def dismiss(self, worker):
        self._workers.pop(worker, None)
        self._pending.pop(worker, None)

    def close(self):
        self.closed = True

    def _worker(self, worker):
        if worker not in self._workers:
            self._workers[worker] = (
                Surveyor(self.experiment)
                if worker == SURVEYOR
                else make_island(self.experiment, self.settings[worker])
            )
        return self._workers[worker]
