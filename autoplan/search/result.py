"""What a search tells: how far it is, and what it found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autoplan.plan import Plan
from autoplan.prediction import ROUNDING, Prediction
from autoplan.search.objective import ObjectiveName

Stop = Literal["trials", "time", "optimal", "closed", "interrupted"]


def gap_of(value: float, lower_bound: float) -> float:
    """How far a value can be from the best one: value / bound - 1; 0 is proven optimal."""
    if lower_bound <= 0:
        return math.inf if value > 0 else 0.0
    gap = value / lower_bound - 1
    return 0.0 if abs(gap) < ROUNDING else gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a search is."""

    trials: int
    total_trials: int
    candidates: int
    elapsed_s: float
    budget_s: float
    best_s: float | None
    """The objective's value of the best plan; the fastest step of a front."""
    lower_bound_s: float
    """What no plan of the space is below."""
    workers: int = 1
    """Processes that propose and score."""
    points: int = 0
    """Points of the front so far; 0 where there is one objective."""
    least_bytes: float | None = None
    """What the leanest of them needs on its fullest device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A plan that no other found plan beats in step time and in memory."""

    plan: Plan
    plan_path: Path
    prediction: Prediction
    lower_bound_s: float
    """No plan of the space that needs no more memory is faster."""

    @property
    def gap(self) -> float:
        """How far its step can be from the best within its memory."""
        return gap_of(self.prediction.step_s, self.lower_bound_s)

    def to_document(self) -> dict[str, Any]:
        """The point as JSON-ready values."""
        return {
            "step_s": self.prediction.step_s,
            "peak_bytes": self.prediction.peak_bytes,
            "lower_bound_s": self.lower_bound_s,
            "gap": self.gap if math.isfinite(self.gap) else None,
            "plan": self.plan,
            "plan_path": str(self.plan_path),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    study: str
    storage: str
    trials: int
    candidates: int
    seconds: float
    stopped_by: Stop
    objective: ObjectiveName = "step_time"
    value: float
    """The objective's value of the plan, in seconds or device-seconds; less is better."""
    lower_bound: float
    """No plan in the searched space has a smaller value, under the model."""
    plan: Plan
    """The best plan; of a front the fastest."""
    plan_path: Path
    prediction: Prediction
    exhaustive: bool = False
    """Whether every plan of the space that might be better was looked at."""
    workers: int = 1
    """Processes that proposed and scored."""
    workers_lost: int = 0
    """Those of them that were lost on the way; they were replaced, or their share was passed on."""
    baselines: dict[str, Prediction | None] = field(default_factory=dict)
    front: tuple[FrontPoint, ...] = ()
    """Where step time and memory are traded: the fastest first, the leanest last."""

    @property
    def gap(self) -> float:
        """How far the plan's value can be from the best in the space."""
        return gap_of(self.value, self.lower_bound)

    def to_document(self) -> dict[str, Any]:
        """The result as the command line's JSON (DESIGN section 6)."""
        document = {
            "study": self.study,
            "storage": self.storage,
            "trials": self.trials,
            "candidates": self.candidates,
            "seconds": round(self.seconds, 3),
            "stopped_by": self.stopped_by,
            "exhaustive": self.exhaustive,
            "workers": self.workers,
            "workers_lost": self.workers_lost,
            "objective": {
                "name": self.objective,
                "value": self.value,
                "lower_bound": self.lower_bound,
                "gap": self.gap if math.isfinite(self.gap) else None,
            },
            "best": {
                "plan": self.plan,
                "plan_path": str(self.plan_path),
                "prediction": self.prediction.to_document(),
            },
            "baselines": {
                name: None if prediction is None else prediction.step_s
                for name, prediction in self.baselines.items()
            },
        }
        if self.front:
            document["front"] = [point.to_document() for point in self.front]
        return document
