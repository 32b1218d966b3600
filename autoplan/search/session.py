"""One run of a search: its study, its clock, the best plan so far, what it reports and saves."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from autoplan.documents import canonical_json, require_writable
from autoplan.errors import InputError, StorageError
from autoplan.search.experiment import Budget, Experiment
from autoplan.search.heuristics import Baseline, lies_within
from autoplan.search.interrupts import Interrupts, SecondInterruptError
from autoplan.search.objective import value_of
from autoplan.search.proposal import Proposer
from autoplan.search.recording import (
    OUTSIDE,
    Found,
    Recording,
    RunEnd,
    StudyBusyError,
    TakenOverError,
)
from autoplan.search.refine import REFINE_LIMIT, Candidate, Scorer, refine
from autoplan.search.result import Progress, SearchResult, Stop
from autoplan.search.study import PROPOSED_BY, Ending, Guard, SearchStudy, ending_of
from autoplan.storage.url import Storage

FLUSH_S = 2.0
"""How often what is finished is written: at most so much is lost with the driver."""
EXTRA_TRIALS = 2
"""The sweep and the polish each make one trial."""
BASELINES_SHARE, SWEEP_SHARE = 0.25, 0.5
"""Shares of the budget by which the baselines and the sweep must have ended."""
LATEST_SHARE = 1.1
"""Share of the budget by which the last certificate must end, where there is an earlier one."""
CERTIFICATE_SHARE = 0.7
"""Share of the budget after which the bound is tightened only at the end."""
FIRST_CERTIFICATE, FIRST_CERTIFICATE_SHARE = 8, 0.3
"""Trials, and a share of the budget, of which the first to end lets the bound be tightened."""
_LASTING: tuple[Stop, ...] = ("optimal", "closed")
"""Ends of a search that no further trial could change."""


class Session:
    """What a search does whatever it looks for."""

    def __init__(
        self,
        experiment: Experiment,
        budget: Budget,
        on_progress: Callable[[Progress], None] | None = None,
        recording: Recording | None = None,
    ) -> None:
        """Starts the clock."""
        self.experiment, self.budget, self.on_progress = experiment, budget, on_progress
        self.started_s = self._flushed_s = time.monotonic()
        self.best: Candidate | None = None
        self.interrupts = Interrupts(raising=budget.workers == 1)
        self._recording = recording
        self._unrecorded: list[Found] = []
        self._outside: dict[str, Baseline] = {}
        """Defaults that the space excludes, which have no row yet."""

    def open(self, storage: Storage | str | None, study: str | None) -> None:
        """Opens the study; raises InputError and StorageError like `SearchStudy`."""
        require_writable(self.plan_path, "output")
        place = Storage.of(storage or self.experiment.default_storage)
        name = study or self.experiment.name
        guard = self._begin(place, name)
        self.study = SearchStudy(
            place,
            name,
            self.experiment.identities,
            self.budget.seed,
            self.experiment.objective,
            self.available_bytes,
            guard,
        )

    def _begin(self, storage: Storage, study: str) -> Guard | None:
        """Keeps other drivers out; a study that is finished is only read, whoever has it."""
        if self._recording is None:
            return None
        try:
            self._recording.begin()
        except StudyBusyError:
            ending = ending_of(storage, study)
            if ending is None or not self._is_over(ending, ending.trials):
                raise
            self._recording = None
            return None
        return self._recording.guard

    @property
    def plan_path(self) -> Path:
        """Where the best plan is saved."""
        return self.experiment.output / "best-plan.json"

    @property
    def available_bytes(self) -> float:
        """Memory that a plan may use on each device."""
        device, job = self.experiment.cluster.device, self.experiment.job
        return device.memory_bytes * (1 - job.memory_headroom)

    @property
    def deadline_s(self) -> float:
        """When the time is used up, as a time.monotonic() value."""
        return self.at(1.0)

    def at(self, share: float) -> float:
        """When a share of the time is used up, as a time.monotonic() value."""
        return self.started_s + share * self.budget.seconds

    def left_s(self, share: float) -> float:
        """Seconds until a share of the time is used up; 0 where it is."""
        return max(0.0, self.at(share) - time.monotonic())

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    @property
    def expired(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self.deadline_s

    @property
    def trials_left(self) -> int:
        """Trials until the budget is used up."""
        return self.budget.trials - self.study.num_trials

    @property
    def ended(self) -> Ending | None:
        """How an earlier run finished the study, so that nothing is left to do."""
        ending = self.study.ending
        over = ending is not None and self._is_over(ending, self.study.num_trials)
        return ending if over else None

    def _is_over(self, ending: Ending, num_trials: int) -> bool:
        """Whether so many trials leave this search nothing to do after an earlier one's end."""
        return ending.stopped_by in _LASTING or num_trials >= self.budget.trials

    def run(self, loop: Callable[[], Stop]) -> Stop:
        """Runs a search; whatever ends it, the trials are recorded and the best plan is saved."""
        try:
            try:
                stopped_by = loop()
            except SecondInterruptError:
                raise
            except KeyboardInterrupt:
                stopped_by = "interrupted"
            self.flush()
        except TakenOverError:  # the place of the plan may be the other search's by now
            raise
        except StorageError as error:
            raise StorageError(f"{error}{self._saved()}") from None
        except BaseException:
            self._saved()
            raise
        return stopped_by

    def _saved(self) -> str:
        """Saves the best plan of a search that failed, and tells where it is."""
        if self.best is None:
            return ""
        known = f"; the best plan so far takes {self.best.score.step_s:.6g} s and"
        try:
            self.best.plan.save(self.plan_path)
        except InputError:  # the same disk is full
            return f"{known} could not be saved; it is {canonical_json(self.best.plan)}"
        return f"{known} is saved as {self.plan_path}"

    def propose(self, scorer: Scorer, proposer: Proposer) -> Candidate | None:
        """One proposal, refined and recorded; None where it has no usable figure."""
        trial = self.study.ask()
        proposed = scorer.near(proposer.layout(trial))
        refined = refine(proposed, scorer, proposer, REFINE_LIMIT)
        if not math.isfinite(refined.value):
            self.study.drop(trial, f"a value of {refined.value} is not finite")
            return None
        self.keep(refined)
        self.study.tell(trial, refined)
        name = trial.user_attrs.get(PROPOSED_BY, "sampler")
        self.add_row(refined, name, trial_number=trial.number)
        return refined

    def record(self, found: Candidate | None, name: str, *, counted: bool = True) -> None:
        """Keeps a plan that no proposal led to, as a trial of its own or beside the trials."""
        if found is not None and math.isfinite(found.value):
            self.keep(found)
            self.study.record(found, name, counted=counted)
            self.add_row(found, name)

    def add_row(
        self,
        found: Candidate | Baseline,
        name: str,
        *,
        island: int | None = None,
        trial_number: int | None = None,
    ) -> None:
        """Hands a scored plan to the experiment database with the next flush."""
        if self._recording is None:
            return
        value = value_of(self.experiment.objective, found.score)
        row = Found(
            plan=found.plan,
            score=found.score,
            value=value,
            proposed_by=name,
            island=island,
            trial_number=trial_number,
        )
        self._unrecorded.append(row)

    def add_baselines(self, heuristics: Mapping[str, Baseline | None]) -> None:
        """Hands what people use today to the experiment database.

        What the space excludes comes last, lest it takes the row of an equal plan of the search.
        """
        for name, found in heuristics.items():
            if found is not None and lies_within(found, self.experiment.space):
                self.add_row(found, name)
            elif found is not None:
                self._outside[name + OUTSIDE] = found

    @property
    def flush_due(self) -> bool:
        """Whether what is finished should be written now."""
        return time.monotonic() - self._flushed_s > FLUSH_S

    def flush(self) -> None:
        """Writes what is finished.

        Raises:
            TakenOverError: another search has taken the study over.
            StorageError: it cannot be written.
        """
        self.study.flush()
        if self._recording is not None:
            self._recording.add(tuple(self._unrecorded))
            self._unrecorded.clear()
        self._flushed_s = time.monotonic()

    def require_ours(self) -> None:
        """To be called before plans are saved, whose place another search may use by now.

        Raises:
            TakenOverError: it has taken the study over.
        """
        if self._recording is not None:
            with contextlib.suppress(StorageError):  # which is told when the end is written
                self._recording.add(())

    def finish(self, result: SearchResult) -> None:
        """Writes how the search ended."""
        finished = result.stopped_by in _LASTING or result.stopped_by == "trials"
        if finished and self.ended is None:
            self.study.finish(
                Ending(
                    stopped_by=result.stopped_by,
                    trials=result.trials,
                    lower_bound=result.lower_bound,
                    exhaustive=result.exhaustive,
                )
            )
        for name, found in self._outside.items():
            self.add_row(found, name)
        self._outside.clear()
        if self._recording is not None:
            self._recording.add(tuple(self._unrecorded))
            self._unrecorded.clear()
            self._recording.finish(
                RunEnd(
                    stopped_by=result.stopped_by,
                    num_trials=result.trials,
                    num_candidates=result.candidates,
                    search_s=result.seconds,
                    lower_bound=result.lower_bound,
                )
            )

    def keep(self, candidate: Candidate) -> None:
        """Makes a candidate the best so far if it is."""
        best = self.best
        if candidate.score.feasible and (best is None or _is_before(candidate, best)):
            self.best = candidate

    def recall(self, scorer: Scorer) -> None:
        """Takes the best plan of earlier runs, all its equals considered."""
        for layout, plan in self.study.earlier():
            earlier = scorer.planned(layout, plan)
            self.keep(earlier)
            if self.best is not None and self.best.rank < earlier.rank:
                break

    def report(self, candidates: int, bound: float, front: Sequence[Candidate] = ()) -> None:
        """Writes what is finished now and then, and tells how far the search is.

        Raises:
            KeyboardInterrupt: the search was interrupted, and a library did not let us know.
        """
        if self.interrupts.raising and self.interrupts.requested:
            raise KeyboardInterrupt
        if self.flush_due:
            self.flush()
        if self.on_progress is not None:
            best = self.best
            self.on_progress(
                Progress(
                    trials=self.study.num_trials,
                    total_trials=self.budget.trials,
                    candidates=candidates,
                    elapsed_s=self.elapsed_s,
                    budget_s=self.budget.seconds,
                    best_s=best.value if best else None,
                    lower_bound_s=bound,
                    workers=self.budget.workers,
                    points=len(front),
                    least_bytes=front[-1].score.peak_bytes if front else None,
                )
            )


class Misses(Protocol):
    """What is known of plans that do not fit."""

    @property
    def num_candidates(self) -> int:
        """Plans scored."""

    @property
    def num_unlimited(self) -> int:
        """Layouts for which no grouping keeps the space's limits."""

    @property
    def least_missing_bytes(self) -> float:
        """What the nearest miss lacks."""


def why_nothing_fits(experiment: Experiment, budget: Budget, scorer: Misses) -> str:
    """The nearest miss among the plans that were tried."""
    name = experiment.name
    if scorer.num_candidates == scorer.num_unlimited == 0:
        return f"{name}: no plan was scored within {budget.seconds:g} s; give --seconds more"
    if scorer.num_candidates == 0:
        return (
            f"{name}: for none of {scorer.num_unlimited} layouts a grouping of the gradients "
            f"keeps the space's limits (group_max_bytes, group_min_elements, max_groups, "
            f"exchange_memory_bytes); loosen them"
        )
    least, device = scorer.least_missing_bytes, experiment.cluster.device
    return (
        f"{name}: none of {scorer.num_candidates} plans fits; the closest lacks "
        f"{least / 2**30:.3g} GiB on a {device.name} with "
        f"{device.memory_bytes / 2**30:.4g} GiB, {experiment.job.memory_headroom:.0%} of "
        f"it kept free; allow recompute or more stages in the space, loosen its limits on "
        f"gradient groups, or use more devices"
    )


def _is_before(one: Candidate, other: Candidate) -> bool:
    """Of equals that with less memory, then with the lesser hash, whichever was found first."""
    if one.rank != other.rank or one.plan == other.plan:
        return one.rank < other.rank
    if one.score.peak_bytes != other.score.peak_bytes:
        return one.score.peak_bytes < other.score.peak_bytes
    return one.plan.sha256 < other.plan.sha256
