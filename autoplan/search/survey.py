"""What a search does once, wherever it is done: defaults, sweep, small spaces, bounds, polish.

Times are seconds from now, so that they can be sent to another machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autoplan.prediction import ROUNDING
from autoplan.search.bound_layouts import bound_layouts, lineup_layouts
from autoplan.search.exhaust import Exhausted, exhaust
from autoplan.search.experiment import Experiment
from autoplan.search.front_course import bound_within
from autoplan.search.heuristics import Baseline, baselines, starting_layouts
from autoplan.search.layout import Layout
from autoplan.search.objective import ObjectiveName, objective_named
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Candidate, Scorer, refine
from autoplan.search.seeds import first_proposals
from autoplan.search.session import BASELINES_SHARE, SWEEP_SHARE
from autoplan.search.sweep import sweep

_POLISH_LIMIT = 600
"""Moves tried around the best plan at the end."""
_BALANCED_LAYERS = 600
"""Layers up to which loads are balanced over all replicas in tenths of a second."""
_MOST_LINEUPS = 32
"""Ways to hand the devices out that are looked at after a certificate, the best first."""

Proposals = tuple[tuple[str, Mapping[str, Any]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Where a search starts: what people use today, and what no plan is below."""

    baselines: dict[str, Baseline | None]
    proposals: Proposals
    """Names and parameters of the first proposals."""
    quick_bound: float
    """Of the objective."""
    step_bound_s: float
    """Of the step."""
    certifies_quickly: bool
    """Whether the bound can be tightened at once."""
    balances_loads_quickly: bool
    """Whether the partitions behind the bound take tenths of a second for the step time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningPart:
    """A part that looks at what may be good from the first."""

    name: Literal["sweep", "near_bound"]
    share: float
    """Of the search's time, by which it must have ended."""

    @property
    def proposed_by(self) -> str:
        """What its plan is recorded as."""
        return {"sweep": "sweep", "near_bound": "bound"}[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A tightened bound."""

    bound: float
    better: Candidate | None
    """The best plan where better ones than the plan asked about can only be, if it is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """What one part of a survey gave."""

    value: Any
    candidates: int
    """Plans that were scored for it."""


def opening(
    objective: ObjectiveName,
    outline: Outline,
    has_plan: Callable[[], bool],
    proven: Callable[[], bool],
) -> Iterator[OpeningPart]:
    """What a new study begins with, in its order; what came before decides what follows.

    Args:
        objective: what is minimised.
        outline: of the survey.
        has_plan: whether a plan that fits is known.
        proven: whether nothing better than the best one exists.
    """
    if objective == "step_time":
        yield OpeningPart(name="sweep", share=SWEEP_SHARE)
        if outline.balances_loads_quickly or not has_plan():
            yield OpeningPart(name="near_bound", share=SWEEP_SHARE)
        return
    yield OpeningPart(name="near_bound", share=BASELINES_SHARE)
    if not proven():
        yield OpeningPart(name="sweep", share=SWEEP_SHARE)


class Surveyor:
    """Does the parts of a search that are not proposals."""

    def __init__(self, experiment: Experiment) -> None:
        """Works out what the space leaves open; raises InputError where that is nothing."""
        self.experiment = experiment
        self.proposer = Proposer(
            experiment.workload, experiment.cluster, experiment.job, experiment.space
        )
        self.predictor = self.proposer.predictor
        self.objective = objective_named(experiment.objective, self.predictor)
        self.scorer = Scorer(self.predictor, experiment.space, math.inf, self.objective)

    def answer(self, part: str, arguments: tuple[Any, ...]) -> Surveyed:
        """Does one of the parts below, by its name."""
        known = self.scorer.num_candidates
        value = getattr(self, part)(*arguments)
        return Surveyed(value=value, candidates=self.scorer.num_candidates - known)

    def outline(self, seconds: float) -> Outline:
        """The defaults at their best, as far as there is time, and the quick bounds."""
        until_s = time.monotonic() + seconds
        found = baselines(self.proposer, until_s, value=self.objective.value)
        return Outline(
            baselines=found,
            proposals=tuple(first_proposals(self.proposer, found)),
            quick_bound=self.objective.quick_bound(),
            step_bound_s=self.predictor.bounds.quick_s,
            certifies_quickly=self.predictor.bounds.certifies_quickly,
            balances_loads_quickly=self.proposer.num_layers <= _BALANCED_LAYERS,
        )

    def near_bound(self, seconds: float) -> Candidate | None:
        """The best of the partitions behind the bound; None where the objective has none."""
        return self._best(bound_layouts(self.objective, self.proposer), seconds)

    def sweep(self, found: Iterable[Baseline | None], seconds: float) -> Candidate | None:
        """The best of the defaults and of the balanced pipelines of every depth."""
        first = starting_layouts(found, self.experiment.space)
        return sweep(self.scorer, self.proposer, first, time.monotonic() + seconds)

    def exhaust(self, reached: float, effort: int) -> Exhausted | None:
        """Looks at every plan of a small space, where the objective is the step."""
        if self.objective.name != "step_time":
            return None
        return exhaust(self.scorer, self.proposer, reached, effort)

    def certificate(self, reached: Candidate, seconds: float) -> Certificate:
        """The tightest bound there is, given a plan, and a look where better ones can be.

        Only the look ends after so many seconds.
        """
        until_s = time.monotonic() + seconds
        bound = self.objective.certified_bound(reached.value)
        better: Candidate | None = None
        if self.objective.name == "step_time" and reached.value > bound * (1 + ROUNDING):
            lineups = self.predictor.bounds.certificate(reached.value).lineups
            layouts = lineup_layouts(lineups[:_MOST_LINEUPS], self.proposer)
            better = self._best(layouts, until_s - time.monotonic())
        if better is not None and not better.rank < reached.rank:
            better = None
        return Certificate(bound=bound, better=better)

    def bound_within(self, peak_bytes: float, reached_s: float) -> float:
        """A step that no plan with so little memory is below, given that of one of them."""
        return bound_within(self.experiment, peak_bytes, reached_s)

    def polished(self, best: Candidate) -> Candidate:
        """The best plan that many moves around a plan lead to."""
        return refine(best, self.scorer, self.proposer, _POLISH_LIMIT)

    def _best(self, layouts: Iterable[Layout], seconds: float) -> Candidate | None:
        """The best of some layouts, each with its best cuts, as far as there is time."""
        until_s = time.monotonic() + seconds
        best: Candidate | None = None
        for layout in layouts:
            if best is not None and time.monotonic() > until_s:
                break
            candidate = self.scorer.near(layout)
            if best is None or candidate.rank < best.rank:
                best = candidate
        return best
