"""What running plans showed: predicted and measured side by side, and which plan to use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from autoplan.documents import plain
from autoplan.execute.real_run import Clock, RealRun
from autoplan.plan import Plan
from autoplan.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPlan:
    """One plan, predicted and measured."""

    name: str
    plan: Plan
    prediction: Prediction
    run: RealRun
    tied: bool
    """Whether it is as fast as the fastest, as far as the noise lets tell."""

    @property
    def error(self) -> float | None:
        """How far the prediction is from the measured median, as a share of that."""
        median_s = self.run.median_s
        return None if not median_s else self.prediction.step_s / median_s - 1

    @property
    def predicted_bytes(self) -> tuple[float, ...]:
        """Expected peak of memory per stage."""
        return tuple(stage.memory.expected_bytes for stage in self.prediction.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What running the plans showed."""

    experiment: str
    plans: tuple[VerifiedPlan, ...]
    """The default plan is the last one, unless it is among the others."""
    default: str | None
    """Name of the default plan; None where no default plan fits the devices."""
    clock: Clock
    """The clock of all measured figures."""
    noise_floor: float | None
    """Share by which medians differ by chance; plans closer than this are ties."""
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[VerifiedPlan, ...]:
        """The plans that ran, fastest first."""
        ran = [each for each in self.plans if each.run.median_s is not None]
        return tuple(sorted(ran, key=lambda each: each.run.median_s or 0.0))

    @property
    def best(self) -> VerifiedPlan | None:
        """The plan to use: of those tied for the fastest, the one that is predicted fastest."""
        tied = [each for each in self.plans if each.tied]
        return min(tied, key=lambda each: each.prediction.step_s) if tied else None

    @property
    def summary(self) -> str:
        """One line: which plan to use, and why."""
        best = self.best
        if best is None:
            return "no plan ran: " + "; ".join(f"{p.name}: {p.run.reason}" for p in self.plans)
        line = f"use plan {best.name}: measured {best.run.median_s:.3g} s"
        comparison = self._against_default(best)
        return f"{line}, {comparison}, predicted {best.prediction.step_s:.3g} s"

    def ran(self, names: Collection[str]) -> bool:
        """Whether all plans of these names were measured."""
        return all(each.run.status == "ok" for each in self.plans if each.name in names)

    def rank(self, plan: VerifiedPlan, *, predicted: bool) -> int | None:
        """1 for the fastest of the plans that ran; None for one that did not."""
        ran = self.measured
        if plan not in ran:
            return None
        if predicted:
            return 1 + sum(each.prediction.step_s < plan.prediction.step_s for each in ran)
        return 1 + ran.index(plan)

    def to_document(self) -> dict[str, Any]:
        """All of it as JSON-ready values."""
        best = self.best
        return {
            "experiment": self.experiment,
            "summary": self.summary,
            "best": best.name if best else None,
            "default": self.default,
            "clock": self.clock,
            "noise_floor": self.noise_floor,
            "notes": list(self.notes),
            "plans": [self._row(each) for each in self.plans],
        }

    def _row(self, each: VerifiedPlan) -> dict[str, Any]:
        return {
            "name": each.name,
            "plan": plain(each.plan),
            "predicted_s": each.prediction.step_s,
            "predicted_peak_bytes": list(each.predicted_bytes),
            "error": each.error,
            "rank_predicted": self.rank(each, predicted=True),
            "rank_measured": self.rank(each, predicted=False),
            "tied_for_fastest": each.tied,
            "run": each.run.to_document(),
        }

    def _against_default(self, best: VerifiedPlan) -> str:
        """How the best plan compares with the default one, measured."""
        if self.default is None:
            return "no default plan fits the devices"
        default = next(each for each in self.plans if each.name == self.default)
        if default is best:
            return "which is the default"
        default_s, best_s = default.run.median_s, best.run.median_s
        if default_s is None or not best_s:
            return f"the default did not run ({default.run.status})"
        if default.tied:
            return "as fast as the default to within the noise"
        return f"{100 * (default_s / best_s - 1):.1f} % faster than the default"
