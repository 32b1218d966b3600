"""The survey of a search with several workers, part by part, as its driver has it done."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from typing import Any

from autoplan.errors import AutoplanError
from autoplan.prediction import ROUNDING
from autoplan.search.crew import SURVEYOR, Answer, Call, Crew, Lost
from autoplan.search.refine import Candidate
from autoplan.search.session import (
    BASELINES_SHARE,
    CERTIFICATE_SHARE,
    FIRST_CERTIFICATE,
    FIRST_CERTIFICATE_SHARE,
    Session,
)
from autoplan.search.survey import Outline, Proposals, opening

_GRACE_S = 600.0
"""How long a part may take beyond the search's end: certificates have no limit of theirs."""
_MOST_TRIES = 3
"""Of one part, each by another worker."""

_Parts = Generator[Call | None, Any, None]
"""Parts to be done, or None where there is none for now; each is sent its answer, or None."""


class Surveying:
    """What is known of the space, and what is being found out."""

    def __init__(self, session: Session) -> None:
        """Begins with the outline."""
        self.session = session
        self.outline: Outline | None = None
        self.proposals: Proposals = ()
        """To try first, in a new study."""
        self.bound, self.exhausted = 0.0, False
        self.swept = self.settled = False
        """Whether the defaults were looked at, so that no result is worse, and the whole space
        where it is small. The end of the time waits for the first, that of the trials for both."""
        self.certificate_took_s: float | None = None
        self.num_candidates = self.num_lost = 0
        self._tries, self._asked = 0, False
        self._parts = self._course()
        self._part = next(self._parts)

    def dispatch(self, crew: Crew) -> None:
        """Has the next part done, if there is one and the surveyor is idle."""
        if self._asked:
            return
        if self._part is None:
            self._part = next(self._parts)
        if self._part is not None:
            crew.submit(SURVEYOR, self._part)
            self._asked = True

    def hear(self, event: Answer | Lost) -> None:
        """Goes on to the next part; one whose worker was lost is done again, but not for ever."""
        self._asked = False
        if isinstance(event, Lost):
            self.num_lost += 1
            self._tries += 1
            if self._tries < _MOST_TRIES:
                return
            value = None
        else:
            value = event.value.value
            self.num_candidates += event.value.candidates
        self._tries = 0
        self._part = self._parts.send(value)

    def end(self, crew: Crew, *, polish: bool, certify: bool) -> None:
        """Turns to what is done at the end; what is being done now is given up."""
        if self._asked:
            crew.dismiss(SURVEYOR)
            self._asked = False
        self._parts = self._last(polish, certify)
        self._part = next(self._parts)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do for now."""
        return self._part is None

    def _course(self) -> _Parts:
        """All parts in their order."""
        session = self.session
        outline = yield from self._outlined()
        if session.study.num_earlier == 0:
            self.proposals = outline.proposals
            yield from self._open(outline)
        self.swept = True
        yield from self._small_space()
        self.settled = True
        yield from self._certificates(0 if outline.certifies_quickly else FIRST_CERTIFICATE)

    def _outlined(self) -> Generator[Call | None, Any, Outline]:
        """The outline, which nothing can go on without."""
        found = yield self._call("outline", self.session.left_s(BASELINES_SHARE))
        if not isinstance(found, Outline):
            raise AutoplanError("the worker that surveys the space was lost again and again")
        self.outline, self.bound = found, found.quick_bound
        self.session.add_baselines(found.baselines)
        return found

    def _open(self, outline: Outline) -> _Parts:
        """Looks at what may be good from the first."""
        session, defaults = self.session, tuple(outline.baselines.values())
        name = session.experiment.objective
        for part in opening(name, outline, lambda: session.best is not None, self._proven):
            first = (defaults,) if part.name == "sweep" else ()
            found = yield self._call(part.name, *first, session.left_s(part.share))
            self._found(found, part.proposed_by)

    def _proven(self) -> bool:
        """Whether the best plan reaches the bound."""
        best = self.session.best
        return best is not None and best.value <= self.bound * (1 + ROUNDING)

    def _small_space(self) -> _Parts:
        """Looks at every plan of a small space."""
        session = self.session
        reached = session.best.value if session.best else math.inf
        found = yield self._call("exhaust", reached, session.budget.exhaustive_plans)
        if found is None:
            return
        self._found(found.best, "exhaustive")
        if session.best is not None:
            self.bound = max(self.bound, found.bound_s)
            self.exhausted = found.complete

    def _certificates(self, next_at: int) -> _Parts:
        """Tightens the bound now and then."""
        session = self.session
        while True:
            num_trials = session.study.num_trials
            late = session.left_s(FIRST_CERTIFICATE_SHARE) == 0 and self.certificate_took_s is None
            due = num_trials >= next_at and session.left_s(CERTIFICATE_SHARE) > 0
            if session.best is not None and (late or due):
                next_at = 2 * num_trials + FIRST_CERTIFICATE
                yield from self._certify(session.best)
            else:
                yield None

    def _last(self, polish: bool, certify: bool) -> _Parts:
        """The polish and the certificate of the plan found."""
        if polish and self.session.best is not None:
            self._found((yield self._call("polished", self.session.best)), "polish")
        if certify and self.session.best is not None:
            yield from self._certify(self.session.best)
        while True:
            yield None

    def _certify(self, best: Candidate) -> _Parts:
        """Tightens the bound for a plan."""
        started_s = time.monotonic()
        found = yield self._call("certificate", best, self.session.left_s(1.0))
        self.certificate_took_s = time.monotonic() - started_s
        if found is not None:
            self.bound = max(self.bound, found.bound)
            self._found(found.better, "certificate")

    def _call(self, part: str, *arguments: Any) -> Call:
        limit_s = self.session.left_s(1.0) + _GRACE_S
        return Call(method="answer", arguments=(part, arguments), limit_s=limit_s)

    def _found(self, candidate: Candidate | None, name: str) -> None:
        """Keeps what the surveyor found, beside the trials of the islands."""
        self.session.record(candidate, name, counted=False)


class FrontSurveying(Surveying):
    """The survey of a search for a front: the defaults first, and bounds at the end."""

    def __init__(self, session: Session) -> None:
        """Begins with the outline."""
        super().__init__(session)
        self.bounds: list[float] = []
        """Of the points that `bound_points` was called for."""

    def bound_points(self, points: Sequence[Candidate]) -> None:
        """Turns to a bound for each point, as far as there is time; see `bounds_of`."""
        self._parts = self._bounded(points)
        self._part = next(self._parts)

    def _course(self) -> _Parts:
        outline = yield from self._outlined()
        if self.session.study.num_earlier == 0:
            self.proposals = outline.proposals
        self.swept = self.settled = True
        while True:
            yield None

    def _bounded(self, points: Sequence[Candidate]) -> _Parts:
        bound_s = self.bound
        for point in points:
            if not self.session.expired:
                score = point.score
                found = yield self._call("bound_within", score.peak_bytes, score.step_s)
                bound_s = max(bound_s, found or 0.0)
            self.bounds.append(bound_s)
        while True:
            yield None
