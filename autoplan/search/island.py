"""A worker's part of a search: a study of its own in memory, on its share of the space and seed.

An island proposes, refines and scores with the same code as a search without workers. It goes on
in steps that the driver asks for, each a few trials long and bounded in time; what a step does
depends only on the experiment, the island's seed, and what it was told so far, so that a lost
island is made again from its history.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState

from autoplan.search.experiment import Experiment
from autoplan.search.front_course import CoursePlan
from autoplan.search.layout import Layout
from autoplan.search.objective import objective_named
from autoplan.search.pareto import Searched
from autoplan.search.proposal import Proposer
from autoplan.search.refine import REFINE_LIMIT, Candidate, Scorer, refine
from autoplan.search.study import violations_of

_STARTUP_TRIALS, _LEAST_STARTUP_TRIALS = 20, 6
"""Trials before the sampler learns, shared out to the islands, and the least of each."""
_MOST_REMEMBERED = 1000
"""Trials beyond which an island keeps only its best: the sampler takes longer with each."""
_KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A proposal of an island, refined: its parameters and the plan they led to."""

    island: int
    number: int
    """Among the island's trials."""
    proposed_by: str
    parameters: Mapping[str, Any]
    distributions: Mapping[str, BaseDistribution]
    candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What an island is told in a search for a front."""

    number: int
    """Of the step, among all that the island was asked for."""
    round: int
    """Which one to work on: the first looks for the ends of the front, each other one within a
    limit."""
    first: tuple[Layout, ...] = ()
    """To look at before all others, in the first step."""
    points: tuple[Candidate, ...] = ()
    """Of the fronts of other islands."""
    searched: tuple[Searched, ...] = ()
    """Limits within which they have looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an island tells in a search for a front."""

    number: int
    """Of the step."""
    round: int
    round_over: bool
    empty: bool
    """Whether nothing was left to look within."""
    hurried: bool
    """Whether the time has cut something short."""
    points: tuple[Candidate, ...]
    """Of the island's front, those that it has not told before."""
    searched: tuple[Searched, ...]
    """Limits within which it has looked since the step before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What an island is asked to do."""

    first: int
    """Trials that the driver knows of; the next one has this number."""
    trials: int
    """How many to do at most."""
    seconds: float
    """After which no further trial starts."""
    seconds_left: float
    """Of the whole search; moves around a proposal end then."""
    keep: int
    """How many of the trials to send, the best ones; all are counted."""
    proposals: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """To queue ahead of the sampler's own."""
    immigrants: tuple[Tried, ...] = ()
    """Good trials of other islands."""
    history: tuple[Tried, ...] = ()
    """Earlier trials of this island, for one that has just started."""
    news: News | None = None
    """Of a search for a front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What an island did; `island` and `first` identify it."""

    island: int
    first: int
    done: int
    """Trials, failed ones included."""
    failed: int
    """Trials without a usable figure."""
    tried: tuple[Tried, ...]
    """The best of them, in their order."""
    candidates: int
    """Plans scored since the step before."""
    num_unlimited: int
    """Layouts so far for which no grouping keeps the space's limits."""
    least_missing_bytes: float
    """What the nearest miss so far lacks."""
    busy_s: float
    """Wall seconds of the step."""
    cpu_s: float
    outcome: Outcome | None = None
    """Of a search for a front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandSetting:
    """Which island of how many."""

    number: int
    islands: int
    seed: int
    generation: int
    """Trials after which the sampler is seeded anew."""
    earlier: tuple[optuna.trial.FrozenTrial, ...] = field(default=())
    """Trials of earlier runs to learn from."""
    course: CoursePlan | None = None
    """How to spend the trials, in a search for a front."""


class Island:
    """The state of one island."""

    _directions: tuple[StudyDirection, ...] = (StudyDirection.MINIMIZE,)

    def __init__(self, experiment: Experiment, setting: IslandSetting) -> None:
        """Works out what the space leaves open; raises InputError where that is nothing."""
        logging.getLogger("optuna").setLevel(logging.ERROR)
        self._setting = setting
        self._proposer = Proposer(
            experiment.workload, experiment.cluster, experiment.job, experiment.space
        )
        predictor = self._proposer.predictor
        objective = objective_named(experiment.objective, predictor)
        self._scorer = Scorer(predictor, experiment.space, math.inf, objective)
        device = experiment.cluster.device
        self._available_bytes = device.memory_bytes * (1 - experiment.job.memory_headroom)
        share = math.ceil(_STARTUP_TRIALS / setting.islands)
        self._startup_trials = max(_LEAST_STARTUP_TRIALS, share)
        self._study = optuna.create_study(directions=self._directions, sampler=self._sampler(0))
        self._study.add_trials(setting.earlier)
        self._seeded_at = -1
        self._candidates_told = 0

    def step(self, step: Step) -> Stepped:
        """Does some trials; what it is asked for decides which, so that it can be asked again."""
        started_s, started_cpu_s = time.monotonic(), time.process_time()
        self._scorer.deadline_s = started_s + step.seconds_left
        self._learn(step)
        tried, done = [], 0
        while done < step.trials and (done == 0 or time.monotonic() < started_s + step.seconds):
            found = self._trial(step.first + done, self._scorer, self._proposer)
            done += 1
            if found is not None:
                tried.append(found)
        best = sorted(tried, key=lambda each: (each.candidate.rank, each.number))[: step.keep]
        candidates = self._scorer.num_candidates - self._candidates_told
        self._candidates_told += candidates
        return Stepped(
            island=self._setting.number,
            first=step.first,
            done=done,
            failed=done - len(tried),
            tried=tuple(sorted(best, key=lambda each: each.number)),
            candidates=candidates,
            num_unlimited=self._scorer.num_unlimited,
            least_missing_bytes=self._scorer.least_missing_bytes,
            busy_s=time.monotonic() - started_s,
            cpu_s=time.process_time() - started_cpu_s,
        )

    def _learn(self, step: Step) -> None:
        """Takes in what the driver sends."""
        if step.history:
            self._study.add_trials([self._frozen(tried) for tried in step.history])
        if step.first == 0:
            self._enqueue(step.proposals)
        if step.immigrants:
            self._study.add_trials([self._frozen(tried) for tried in step.immigrants])

    def _enqueue(self, proposals: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Queues proposals, and then the island's share, ahead of the sampler's own."""
        for name, parameters in proposals:
            self._study.enqueue_trial(dict(parameters), user_attrs={"proposed_by": name})
        for parameters in self._share():
            self._study.enqueue_trial(parameters, user_attrs={"proposed_by": "share"})

    def _trial(self, number: int, scorer: Scorer, proposer: Proposer) -> Tried | None:
        """One proposal, refined; None where it has no usable figure."""
        self._seed(number)
        trial = self._study.ask()
        refined = refine(scorer.near(proposer.layout(trial)), scorer, proposer, REFINE_LIMIT)
        if not math.isfinite(refined.value):
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        for name, violation in violations_of(refined, self._available_bytes).items():
            trial.set_constraint(name, violation)
        self._study.tell(trial, self._values(refined))
        return Tried(
            island=self._setting.number,
            number=number,
            proposed_by=trial.user_attrs.get("proposed_by", "sampler"),
            parameters=dict(trial.params),
            distributions=dict(trial.distributions),
            candidate=refined,
        )

    def _seed(self, number: int) -> None:
        """A sampler of its own for each generation, and a smaller study where it has grown."""
        generation = number // self._setting.generation
        if generation == self._seeded_at:
            return
        self._seeded_at = generation
        trials = self._study.get_trials(deepcopy=False)
        finished = [trial for trial in trials if trial.state is TrialState.COMPLETE]
        if len(finished) > _MOST_REMEMBERED:
            waiting = [trial for trial in trials if trial.state is TrialState.WAITING]
            best = sorted(finished, key=_rank)[:_KEPT]
            self._study = optuna.create_study(directions=self._directions)
            self._study.add_trials(best + waiting)
        self._study.sampler = self._sampler(number)

    def _values(self, candidate: Candidate) -> list[float]:
        """What the sampler minimises."""
        return [candidate.value]

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """Seeded by the search's seed, the island and the number of the trial."""
        sequence = np.random.SeedSequence(
            self._setting.seed, spawn_key=(self._setting.number, number)
        )
        seed = int(sequence.generate_state(1)[0])
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=self._startup_trials)

    def _share(self) -> list[dict[str, int]]:
        """The island's share of the space: numbers of stages and of microbatches to try first.

        All pairs are shuffled and dealt out to the islands like cards.
        """
        stages, splits = len(self._proposer.stages), len(self._proposer.domain.microbatches)
        shuffled = np.random.default_rng(self._setting.seed).permutation(stages * splits)
        dealt = shuffled[self._setting.number % len(shuffled) :: self._setting.islands]
        return [
            {"stages_index": int(card) // splits, "microbatches_index": int(card) % splits}
            for card in dealt[: self._startup_trials]
        ]

    def _frozen(self, tried: Tried) -> optuna.trial.FrozenTrial:
        """What the sampler learns of a trial that was made elsewhere."""
        return optuna.trial.create_trial(
            params=dict(tried.parameters),
            distributions=dict(tried.distributions),
            values=self._values(tried.candidate),
            constraints=violations_of(tried.candidate, self._available_bytes),
        )


def shares(items: Sequence[Any], number: int, islands: int) -> tuple[Any, ...]:
    """Every so many of the items, beginning with another one for each island."""
    return tuple(items[number::islands])


def _rank(trial: optuna.trial.FrozenTrial) -> tuple[bool, float]:
    return (any(value > 0 for value in trial.constraints.values()), trial.values[0])
