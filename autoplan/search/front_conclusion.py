"""The end of a search for a front: its points kept, saved, bounded and described."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autoplan.errors import NothingFeasibleError
from autoplan.predict import Predictor
from autoplan.search.experiment import Experiment
from autoplan.search.front_course import bound_within
from autoplan.search.heuristics import Baseline
from autoplan.search.pareto import Front, thinned
from autoplan.search.refine import Candidate
from autoplan.search.result import FrontPoint, SearchResult, Stop
from autoplan.search.session import Misses, Session, why_nothing_fits

MOST_POINTS = 24
"""Points of the result; of more, those that matter least are left out."""
_MOST_ROWS = 200
"""Points that get a row in the database."""
_MOST_ROWS_PER_FLUSH = 4


class FrontRows:
    """The points of a front in the database, where those that no trial led to have rows too."""

    def __init__(self, session: Session, front: Front) -> None:
        """`front` is filled by whoever searches."""
        self.session, self._front = session, front
        self._known: set[str] = set()

    def know(self, plan_sha256: str) -> None:
        """A plan has a row."""
        self._known.add(plan_sha256)

    def knows(self, plan_sha256: str) -> bool:
        """Whether a plan has a row."""
        return plan_sha256 in self._known

    def write_some(self) -> None:
        """Hands a few of the points over, if something is written now."""
        if self.session.flush_due:
            self._record(MOST_POINTS, _MOST_ROWS_PER_FLUSH)

    def write(self) -> None:
        """Writes all points; raises StorageError where that cannot be."""
        self._record(_MOST_ROWS, _MOST_ROWS)
        self.session.flush()

    def _record(self, most_points: int, most: int) -> None:
        points = thinned(self._front.points, most_points)
        new = [point for point in points if point.plan.sha256 not in self._known]
        for point in new[:most]:
            self.know(point.plan.sha256)
            self.session.record(point, "front", counted=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrontConclusion:
    """What a search for a front knows at its end."""

    stopped_by: Stop
    points: Sequence[Candidate]
    """What `result_points` gives."""
    bounds: Sequence[float]
    """Of each point: no plan that needs no more memory is faster."""
    candidates: int
    heuristics: Mapping[str, Baseline | None]
    workers_lost: int = 0


def result_points(
    session: Session, front: Front, misses: Misses, stopped_by: Stop
) -> list[Candidate]:
    """The points of a result, the fastest first.

    Raises:
        KeyboardInterrupt: there was none yet when the search was interrupted.
        NothingFeasibleError: none of the plans fits.
    """
    points = thinned(front.points, MOST_POINTS)
    if not points and stopped_by == "interrupted":
        raise KeyboardInterrupt
    if not points:
        raise NothingFeasibleError(why_nothing_fits(session.experiment, session.budget, misses))
    return points


def bounds_of(session: Session, points: Sequence[Candidate], least_s: float) -> Iterator[float]:
    """A bound for each point, from one for all plans.

    What holds within more memory holds within less, so that points whose bound the time does
    not suffice for have that of the point before.
    """
    bound_s = least_s
    for point in points:
        if not session.expired:
            score = point.score
            found_s = bound_within(session.experiment, score.peak_bytes, score.step_s)
            bound_s = max(bound_s, found_s)
        yield bound_s


def concluded_front(session: Session, predictor: Predictor, found: FrontConclusion) -> SearchResult:
    """Saves the plans and describes them.

    Raises:
        TakenOverError: another search has taken the study over.
        StorageError: the database cannot be written.
    """
    session.require_ours()
    front = _saved(session.experiment, predictor, found)
    fastest = front[0]
    fastest.plan.save(session.plan_path)
    result = SearchResult(
        study=session.study.name,
        storage=session.study.shown_storage,
        trials=session.study.num_trials,
        candidates=found.candidates,
        seconds=session.elapsed_s,
        stopped_by=found.stopped_by,
        objective="step_time_and_memory",
        value=fastest.prediction.step_s,
        lower_bound=fastest.lower_bound_s,
        plan=fastest.plan,
        plan_path=session.plan_path,
        prediction=fastest.prediction,
        workers=session.budget.workers,
        workers_lost=found.workers_lost,
        baselines={
            name: predictor.predict(each.plan, fastest.lower_bound_s) if each else None
            for name, each in found.heuristics.items()
        },
        front=front,
    )
    session.finish(result)
    return result


def front_path(experiment: Experiment, number: int) -> Path:
    """Where a point's plan is saved; they are numbered from 1, the fastest first."""
    return experiment.output / "front" / f"plan-{number:02}.json"


def _saved(
    experiment: Experiment, predictor: Predictor, found: FrontConclusion
) -> tuple[FrontPoint, ...]:
    """Saves the plans, in place of those of an earlier run."""
    for old in front_path(experiment, 1).parent.glob("plan-[0-9][0-9].json"):
        old.unlink()
    front = []
    for number, (point, bound_s) in enumerate(zip(found.points, found.bounds, strict=True), 1):
        path = front_path(experiment, number)
        point.plan.save(path)
        front.append(
            FrontPoint(
                plan=point.plan,
                plan_path=path,
                prediction=predictor.predict(point.plan, bound_s),
                lower_bound_s=bound_s,
            )
        )
    return tuple(front)
