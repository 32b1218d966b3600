"""The end of a search for one figure: the best plan saved, described, and told to the databases."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from autoplan.search.heuristics import Baseline
from autoplan.search.objective import value_of
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Candidate
from autoplan.search.result import SearchResult, Stop
from autoplan.search.session import Session


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a search knows at its end."""

    stopped_by: Stop
    bound: float
    """No plan of the space has a smaller value."""
    step_bound_s: float
    """No plan of the space has a shorter step."""
    candidates: int
    exhausted: bool
    """Whether every plan of the space that might be better was looked at."""
    heuristics: Mapping[str, Baseline | None]
    workers_lost: int = 0
    """Workers that were lost on the way."""


def concluded(
    session: Session, proposer: Proposer, best: Candidate, found: Conclusion
) -> SearchResult:
    """Saves the best plan and describes it.

    Raises:
        TakenOverError: another search has taken the study over.
        StorageError: the database cannot be written.
    """
    experiment, predictor = session.experiment, proposer.predictor
    session.require_ours()
    best.plan.save(session.plan_path)
    step_bound_s = found.bound if experiment.objective == "step_time" else found.step_bound_s
    prediction = predictor.predict(best.plan, step_bound_s)
    prediction = dataclasses.replace(prediction, notes=prediction.notes + proposer.notes)
    result = SearchResult(
        study=session.study.name,
        storage=session.study.shown_storage,
        trials=session.study.num_trials,
        candidates=found.candidates,
        seconds=session.elapsed_s,
        stopped_by=found.stopped_by,
        objective=experiment.objective,
        value=value_of(experiment.objective, prediction),
        lower_bound=found.bound,
        plan=best.plan,
        plan_path=session.plan_path,
        prediction=prediction,
        exhaustive=found.exhausted,
        workers=session.budget.workers,
        workers_lost=found.workers_lost,
        baselines={
            name: None if each is None else predictor.predict(each.plan, step_bound_s)
            for name, each in found.heuristics.items()
        },
    )
    session.finish(result)
    return result
