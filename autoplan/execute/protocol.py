"""How a sweep is measured, and what may be concluded from it: rounds, clocks, noise, ties."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from autoplan.documents import STRICT
from autoplan.errors import require
from autoplan.execute.real_run import Clock, Modes, RealRun

ClockChoice = Literal["auto", "wall", "virtual"]

QUIET_LOAD = 0.05
"""Share of foreign load from which on a wall clock of real compute is not to be trusted."""
MIN_ROUNDS = 5
"""Fewer leave nothing to tell noise from difference by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How often, in which order and within which time plans are run."""

    __pydantic_config__ = STRICT

    rounds: int = 5
    """Measured rounds; each runs every plan once, in an order of its own."""
    warmup_steps: int = 3
    """Steps of every plan in the warm-up round, whose losses are kept."""
    seed: int = 0
    """Of the model's initial parameters and of the orders."""
    clock: ClockChoice = "auto"
    """Which clock the figures come from; "auto" decides by the foreign load."""
    step_limit_s: float | None = None
    """Seconds after which a step counts as hung; by default far above the prediction."""
    start_limit_s: float = 300.0
    """Seconds that starting processes and building the model may take."""

    def __post_init__(self) -> None:
        """Refuses sweeps without rounds or warm-up, and limits that are not positive."""
        require(self.rounds >= 1, "rounds", self.rounds, "at least 1")
        require(self.warmup_steps >= 1, "warmup_steps", self.warmup_steps, "at least 1")
        require(0 <= self.seed < 2**32, "seed", self.seed, "0 to 4294967295")
        known = self.clock in {"auto", "wall", "virtual"}
        require(known, "clock", self.clock, "auto, wall or virtual")
        for name in ("step_limit_s", "start_limit_s"):
            value = getattr(self, name)
            sound = value is None or (math.isfinite(value) and value > 0)
            require(sound, name, value, "a finite number of seconds above 0")


def visiting_order(plans: int, rounds: int, seed: int) -> list[tuple[int, ...]]:
    """Per round, the order in which plans are run, so that drift hits all of them alike."""
    rng = np.random.default_rng(seed)
    return [tuple(rng.permutation(plans).tolist()) for _ in range(rounds)]


def choose_clock(choice: ClockChoice, modes: Modes, runs: Sequence[RealRun]) -> Clock:
    """The one clock of a sweep.

    Emulated compute and GPUs have the wall clock only. Real compute on a CPU has it where others
    left every plan's steps alone and each rank had a core of its own.
    """
    if choice != "auto":
        return choice
    if modes.compute == "emulated" or modes.device == "gpu":
        return "wall"
    measured = [run for run in runs if run.status == "ok"]
    # A load that nobody could read, as of other machines, may be any.
    loads = [statistics.median(run.foreign_load or (1.0,)) for run in measured]
    crowded = any(run.environment and run.environment.ranks > run.environment.cores for run in runs)
    return "virtual" if crowded or any(load >= QUIET_LOAD for load in loads) else "wall"


def by_clock(clock: Clock, runs: Sequence[RealRun]) -> tuple[RealRun, ...]:
    """The same runs, all figures from one clock."""
    return tuple(replace(run, clock=clock) for run in runs)


def noise_floor(runs: Sequence[RealRun]) -> float | None:
    """How far the medians of every other round are from those of the rest, the mean over plans.

    What all plans have in common, such as a machine that got slower, does not count. None where
    no plan has two rounds.
    """
    ratios = []
    for run in runs:
        if run.status == "ok" and len(run.step_s) > 1:
            even_s, odd_s = (statistics.median(run.step_s[start::2]) for start in (0, 1))
            ratios.append(even_s / odd_s if odd_s > 0 else 1.0)
    if not ratios:
        return None
    common = statistics.median(ratios) if len(ratios) > 2 else 1.0
    return statistics.fmean(abs(ratio / common - 1) for ratio in ratios)


def ties_with_best(runs: Sequence[RealRun]) -> tuple[bool, ...]:
    """Per run, whether its median is within the noise floor of the least one."""
    medians = [run.median_s for run in runs]
    known = [median for median in medians if median is not None]
    floor = noise_floor(runs) or 0.0
    return tuple(m is not None and m <= min(known) * (1 + floor) for m in medians)
