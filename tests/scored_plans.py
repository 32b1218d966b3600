"""Scored plans for tests of the experiment database."""

from __future__ import annotations

from autoplan.plan import GradientGroup, Plan, Stage
from autoplan.results.rows import ScoredPlan

NUM_LAYERS = 8


def plan(cut: int = 4, microbatches: int = 4) -> Plan:
    """Two stages of the small experiment's layers; each cut and number makes another plan."""
    stages = tuple(
        Stage(layers=layers, groups=(GradientGroup(layers=layers),))
        for layers in ((0, cut), (cut, NUM_LAYERS))
    )
    return Plan(stages=stages, microbatches=microbatches)


def scored(cut: int = 4, microbatches: int = 4, **fields) -> ScoredPlan:
    fields.setdefault("step_s", cut + microbatches / 1000)
    return ScoredPlan(plan=plan(cut, microbatches), **fields)


def batch(number: int, size: int = 7) -> list[ScoredPlan]:
    """Distinct plans, other ones for each number."""
    return [scored(1 + i % 7, 1 + number * 16 + i // 7) for i in range(size)]
