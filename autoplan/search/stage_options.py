"""How one stage of a layout may keep within memory: by smaller fused buffers, or by recomputing.

Where gradient groups need no more memory than there is, nothing is given up. Where they do, a stage
may keep its stash and group within what is left, which lets its gradients arrive later; or it may
recompute, which takes one more forward for every microbatch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.cluster.collectives import GroupShape
from autoplan.gradsync import GroupLimits, LimitsError
from autoplan.plan import GradientGroup, Stage
from autoplan.search.space import Recompute
from autoplan.stage_costs import GroupingRule, StageCosts

EXACT_LAYERS = 32
"""Layers of a stage up to which the best groups within memory are found, in milliseconds."""
_NO_LAYERS_MESSAGES = 1e-3
"""Messages that a group saves whose layers but one hold no gradients: next to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """The stages that one place in a layout may take."""

    costs: StageCosts
    rule: GroupingRule
    shape: GroupShape
    """Of the stage's gradient collective."""
    samples: float
    """Of a microbatch on one replica."""
    held: int
    """Microbatches in flight."""
    microbatches: int

    def of(self, layers: tuple[int, int], replicas: int, recompute: Recompute) -> tuple[Stage, ...]:
        """One stage, or two where it depends on the others which is better; the faster alone first.

        Where nothing fits, the one that was asked for, recomputing if it may.
        """
        groups = self.costs.grouped(layers, self.samples, self.shape, self.rule)
        stage = Stage(
            layers=layers, replicas=replicas, recompute=recompute == "always", groups=groups
        )
        if self._fits(stage):
            return (stage,)
        kept = self._within_memory(stage)
        if recompute != "where-needed":
            return (kept or stage,)
        asked = dataclasses.replace(stage, recompute=True)
        again = asked if self._fits(asked) else self._within_memory(asked)
        if kept is None or again is None:
            return (kept or again or asked,)
        if self._as_good(kept, again):
            return (kept,)
        both = (kept, again)
        return both if self._alone_s(kept) <= self._alone_s(again) else both[::-1]

    def _fits(self, stage: Stage) -> bool:
        return self.costs.memory(stage, self.samples, self.held).missing_bytes == 0

    def _as_good(self, kept: Stage, again: Stage) -> bool:
        """Whether recomputing gains nothing, whatever the other stages are."""
        forward, _ = self.costs.compute_s(kept.layers, self.samples, recompute=False)
        more_s = self._link_s(kept) - self._link_s(again)
        in_time = self._finish_s(kept) <= self._finish_s(again)
        return in_time and more_s <= self.microbatches * forward

    def _link_s(self, stage: Stage) -> float:
        """Seconds that the link is busy with gradients."""
        spans = self.costs.exchanges(stage, self.samples, self.shape).spans
        return sum(end - start for start, end, _ in spans)

    def _finish_s(self, stage: Stage) -> float:
        """Seconds from the start of the last backward to the end of the last exchange."""
        return self.costs.exchanges(stage, self.samples, self.shape).finish_s

    def _alone_s(self, stage: Stage) -> float:
        """Seconds of a step in which the stage never waits."""
        forward, backward = self.costs.compute_s(stage.layers, self.samples, stage.recompute)
        before = self.microbatches * forward + (self.microbatches - 1) * backward
        return before + self._finish_s(stage)

    def _within_memory(self, stage: Stage) -> Stage | None:
        """The stage with groups that fit beside the rest; None where none do, or none is known."""
        memory = self.costs.memory(stage, self.samples, self.held)
        exchange = memory.buffer_bytes + memory.residual_bytes
        room_bytes = memory.available_bytes - (memory.total_bytes - exchange)
        if room_bytes < 0:
            return None
        groups = self._groups_within(stage, room_bytes)
        if groups is None:
            return None
        limited = dataclasses.replace(stage, groups=groups)
        return limited if self._fits(limited) else None

    def _groups_within(self, stage: Stage, room_bytes: float) -> tuple[GradientGroup, ...] | None:
        """Groups whose buffers and residuals need no more; the best of a short stage."""
        rule, (first, end) = self.rule, stage.layers
        if end - first > EXACT_LAYERS:
            plain = rule.densities == (1.0,) and rule.limits == GroupLimits()
            return self._split(stage.groups, room_bytes) if plain else None
        most_bytes = min(room_bytes, rule.limits.max_memory_bytes)
        limits = dataclasses.replace(rule.limits, max_memory_bytes=most_bytes)
        within = dataclasses.replace(rule, limits=limits)
        try:
            return self.costs.grouped(stage.layers, self.samples, self.shape, within)
        except LimitsError:
            return None

    def _split(
        self, groups: Sequence[GradientGroup], room_bytes: float
    ) -> tuple[GradientGroup, ...]:
        """Sends layers of groups one by one, first of those with most bytes per message saved."""
        elements_L = self.costs.elements_L
        fused: dict[GradientGroup, tuple[float, float]] = {}
        for group in groups:
            elements = elements_L[slice(*group.layers)]
            if len(elements) > 1:
                saved = max(float((elements > 0).sum()) - 1, _NO_LAYERS_MESSAGES)
                size = float(elements.sum()) * self.costs.job.gradient_bytes_per_element
                fused[group] = (size, size / saved)
        held_bytes = sum(size for size, _ in fused.values())
        apart = set()
        for group in sorted(fused, key=lambda each: -fused[each][1]):
            if held_bytes <= room_bytes:
                break
            held_bytes -= fused[group][0]
            apart.add(group)
        return tuple(
            part for group in groups for part in (_layerwise(group) if group in apart else (group,))
        )


def _layerwise(group: GradientGroup) -> list[GradientGroup]:
    """Every layer of a group alone, in backward order."""
    low, high = group.layers
    return [dataclasses.replace(group, layers=(n, n + 1)) for n in range(high - 1, low - 1, -1)]
