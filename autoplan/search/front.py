"""Two objectives, step time and memory: the plans that no other beats in both.

The fastest plan comes first, then the leanest; then the fastest within a memory limit, again and
again, each limit in the widest interval between two points that nobody has looked into yet. Every
plan that is built on the way counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from autoplan.documents import require_writable
from autoplan.errors import NothingFeasibleError
from autoplan.search.exhaust import exhaust
from autoplan.search.heuristics import Baseline, baselines, conforming
from autoplan.search.layout import Layout
from autoplan.search.objective import StepTime
from autoplan.search.pareto import Front, open_limit, thinned
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Candidate, Scorer, refine
from autoplan.search.result import FrontPoint, SearchResult, Stop
from autoplan.search.seeds import first_proposals
from autoplan.search.session import Session, why_nothing_fits
from autoplan.search.sweep import sweep

_POLISH_LIMIT = 300
"""Moves tried around the best plan within each limit."""
_FASTEST_SHARE = 2
"""One in so many trials looks for the fastest plan."""
_LIMITS = 12
"""Limits that the other trials are shared out to."""
_LEAST_BYTES = 1.0
"""A limit that no plan keeps, so that the plan that lacks the least is the leanest."""
_BASELINES_SHARE, _SWEEP_SHARE, _SEARCH_SHARE = 0.1, 0.3, 0.75
"""Shares of the budget by which the baselines, each sweep and the search must have ended; the
bounds of the points take the rest."""
_MOST_POINTS = 24
"""Points of the result; of more, those that matter least are left out."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """A search for the fastest plan within a memory limit."""

    proposer: Proposer
    scorer: Scorer
    trials: int


class FrontSearch:
    """The state of a search for a front."""

    def __init__(self, session: Session) -> None:
        """Works out what the space leaves open; raises InputError where that is nothing."""
        self.session, self.experiment = session, session.experiment
        first = self._proposer(session.available_bytes)
        self.predictor = first.predictor
        self.objective = StepTime(self.predictor, "step_time_and_memory")
        self.front = Front(session.available_bytes)
        budget = session.budget.trials
        self.fastest = self._phase(first, max(1, budget // _FASTEST_SHARE))
        self.trials_each = max(1, (budget - self.fastest.trials) // _LIMITS)
        self.num_candidates = 0
        self.scorers = [self.fastest.scorer]

    def run(self) -> SearchResult:
        """Searches, and saves the plans of the front."""
        session, study = self.session, self.session.study
        require_writable(self._path(1), "output")
        heuristics = baselines(self.fastest.proposer, session.at(_BASELINES_SHARE))
        for layout, plan in study.earlier():
            session.keep(self.fastest.scorer.planned(layout, plan))
        if study.num_earlier == 0:
            for name, parameters in first_proposals(self.fastest.proposer, heuristics):
                study.propose_first(parameters, name)
        if (ended := session.ended) is not None:
            return self._result(heuristics, ended.stopped_by)
        session.add_baselines(heuristics)
        with session.interrupts:
            stopped_by = session.run(lambda: self._loop(heuristics))
        return self._result(heuristics, stopped_by)

    def _loop(self, heuristics: dict[str, Baseline | None]) -> Stop:
        """Looks for the fastest plan, the leanest, and those between."""
        session, space = self.session, self.experiment.space
        if session.study.num_earlier < self.fastest.trials:
            first = [conforming(found, space) for found in heuristics.values() if found]
            self._search(self.fastest, first, "fastest")
            self._within(_LEAST_BYTES, "leanest")
        searched: list[tuple[float, float]] = []
        while session.trials_left > 0 and self.front.points:
            if self._late:
                return "time"
            limit_bytes = open_limit(self.front.points, searched)
            if limit_bytes is None:
                return "closed"
            self._within(limit_bytes, "limited")
            peaks = [point.score.peak_bytes for point in self.front.points]
            reached = max((peak for peak in peaks if peak <= limit_bytes), default=0.0)
            searched.append((reached, limit_bytes))
        return "time" if self._late else "trials"

    @property
    def _late(self) -> bool:
        return self.fastest.scorer.now_s() >= self.session.at(_SEARCH_SHARE)

    def _within(self, limit_bytes: float, name: str) -> None:
        """Looks for the best plan within a memory limit."""
        if self._late or self.session.trials_left == 0:
            return
        phase = self._phase(self._proposer(limit_bytes), self.trials_each)
        self.scorers.append(phase.scorer)
        near = sorted(self.front.points, key=lambda p: abs(p.score.peak_bytes - limit_bytes))
        self._search(phase, [point.layout for point in near[:4]], name)

    def _search(self, phase: _Phase, first: list[Layout], name: str) -> None:
        """Sweeps, looks at every plan of a small space, proposes and polishes."""
        session, scorer, proposer = self.session, phase.scorer, phase.proposer
        share = _SWEEP_SHARE * (session.at(_SEARCH_SHARE) - scorer.now_s())
        best = sweep(scorer, proposer, first, scorer.now_s() + share)
        complete = False
        if name != "leanest":
            reached_s = best.value if best and best.score.feasible else math.inf
            every = exhaust(scorer, proposer, reached_s, session.budget.exhaustive_plans)
            if every is not None:
                best, complete = every.best or best, every.complete
        if not complete:
            for _ in range(min(phase.trials, session.trials_left) - 1):
                if self._late:
                    break
                proposed = session.propose(scorer, proposer)
                best = min((c for c in (best, proposed) if c), key=lambda c: c.rank, default=None)
                self._report()
            best = refine(best, scorer, proposer, _POLISH_LIMIT) if best else None
        if session.trials_left > 0:
            session.record(best, name)
        self._report()

    def _proposer(self, limit_bytes: float) -> Proposer:
        """What proposes plans for devices with so much memory, none of it kept free."""
        experiment = self.experiment
        device = dataclasses.replace(experiment.cluster.device, memory_bytes=limit_bytes)
        cluster = dataclasses.replace(experiment.cluster, device=device)
        job = dataclasses.replace(experiment.job, memory_headroom=0.0)
        return Proposer(experiment.workload, cluster, job, experiment.space)

    def _phase(self, proposer: Proposer, trials: int) -> _Phase:
        scorer = Scorer(
            proposer.predictor,
            self.experiment.space,
            self.session.at(_SEARCH_SHARE),
            StepTime(proposer.predictor, "step_time_and_memory"),
            on_scored=self.front.add,
        )
        return _Phase(proposer=proposer, scorer=scorer, trials=trials)

    def _report(self) -> None:
        self.session.report(
            sum(scorer.num_candidates for scorer in self.scorers),
            self.predictor.bounds.quick_s,
            len(self.front.points),
        )

    def _result(self, heuristics: dict[str, Baseline | None], stopped_by: Stop) -> SearchResult:
        """Saves the plans and describes them."""
        session = self.session
        points = thinned(self.front.points, _MOST_POINTS)
        if not points:
            raise NothingFeasibleError(
                why_nothing_fits(self.experiment, session.budget, self.fastest.scorer)
            )
        front = self._saved(points)
        fastest = front[0]
        fastest.plan.save(session.plan_path)
        result = SearchResult(
            study=session.study.name,
            storage=session.study.shown_storage,
            trials=session.study.num_trials,
            candidates=sum(scorer.num_candidates for scorer in self.scorers),
            seconds=session.elapsed_s,
            stopped_by=stopped_by,
            objective=self.objective.name,
            value=fastest.prediction.step_s,
            lower_bound=fastest.lower_bound_s,
            plan=fastest.plan,
            plan_path=session.plan_path,
            prediction=fastest.prediction,
            baselines={
                name: (self.predictor.predict(found.plan, fastest.lower_bound_s) if found else None)
                for name, found in heuristics.items()
            },
            front=front,
        )
        session.finish(result)
        return result

    def _saved(self, points: list[Candidate]) -> tuple[FrontPoint, ...]:
        """Saves the plans, in place of those of an earlier run."""
        for old in self._path(1).parent.glob("plan-[0-9][0-9].json"):
            old.unlink()
        front = []
        for number, (point, bound_s) in enumerate(
            zip(points, self._bounds(points), strict=True), 1
        ):
            path = self._path(number)
            point.plan.save(path)
            front.append(
                FrontPoint(
                    plan=point.plan,
                    plan_path=path,
                    prediction=self.predictor.predict(point.plan, bound_s),
                    lower_bound_s=bound_s,
                )
            )
        return tuple(front)

    def _path(self, number: int) -> Path:
        return self.experiment.output / "front" / f"plan-{number:02}.json"

    def _bounds(self, points: list[Candidate]) -> Iterator[float]:
        """A bound for each point: no plan that needs no more memory is faster.

        What holds within more memory holds within less, so that points whose bound the time does
        not suffice for have that of the point before.
        """
        bound_s = self.predictor.bounds.quick_s
        for point in points:
            if not self.session.expired:
                bounds = self._proposer(point.score.peak_bytes).predictor.bounds
                bound_s = max(bound_s, bounds.certified_s(point.score.step_s))
            yield bound_s
