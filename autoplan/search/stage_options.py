"""How one stage of a layout may keep within memory: by smaller fused buffers, or by recomputing.

Where gradient groups need no more memory than there is, nothing is given up. Where they do, a stage
may keep its stash and group within what is left, which lets its gradients arrive later; or it may
recompute, which takes one more forward for every microbatch.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

from autoplan.cluster.collectives import GroupShape
from autoplan.gradsync import GroupLimits, LimitsError
from autoplan.plan import GradientGroup, Stage
from autoplan.search.space import Recompute
from autoplan.stage_costs import GroupingRule, StageCosts

EXACT_LAYERS = 32
"""Layers of a stage up to which the best groups within memory are found, in milliseconds."""
_MOST_LIMITS = 3
"""Groupings tried, each with more memory left for layers that are sent alone."""
_NO_LAYERS_MESSAGES = 1e-3
"""Messages that a group saves whose layers but one hold no gradients: next to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The stages to choose from at one place."""

    stages: tuple[Stage, ...]
    """One, or two where it depends on the others which is better; the faster alone first."""
    settled: bool
    """Whether any other groups or choice to recompute are known to make no faster plan."""


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

    def of(self, layers: tuple[int, int], replicas: int, recompute: Recompute) -> Choice:
        """What to choose from; where nothing fits, what was asked for, recomputing if it may."""
        groups = self.costs.grouped(layers, self.samples, self.shape, self.rule)
        stage = Stage(
            layers=layers, replicas=replicas, recompute=recompute == "always", groups=groups
        )
        optimal = self.costs.earliest_is_best or replicas == 1
        if self._fits(stage):
            return Choice(stages=(stage,), settled=optimal)
        kept, settled = self._within_memory(stage)
        settled &= optimal
        if recompute != "where-needed":
            return Choice(stages=(kept or stage,), settled=settled)
        asked = dataclasses.replace(stage, recompute=True)
        again: Stage | None = asked
        if not self._fits(asked):
            again, sure = self._within_memory(asked)
            settled &= sure
        if kept is None or again is None:
            return Choice(stages=(kept or again or asked,), settled=settled)
        stages: tuple[Stage, ...] = (kept, again)
        if self._as_good(kept, again):
            stages = (kept,)
        elif self._alone_s(again) < self._alone_s(kept):
            stages = (again, kept)
        return Choice(stages=stages, settled=settled)

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

    def _within_memory(self, stage: Stage) -> tuple[Stage | None, bool]:
        """The stage with groups that fit beside the rest, and whether none that fit end earlier.

        None where none do, or none is known.
        """
        memory = self.costs.memory(stage, self.samples, self.held)
        exchange_bytes = memory.buffer_bytes + memory.scratch_bytes + memory.residual_bytes
        room_bytes = memory.available_bytes - (memory.total_bytes - exchange_bytes)
        element_bytes = self.costs.job.gradient_bytes_per_element
        largest = float(self.costs.elements_L[slice(*stage.layers)].max()) * element_bytes
        if stage.replicas == 1 or room_bytes < largest:
            return None, True  # every gradient is in some buffer
        short = stage.layers[1] - stage.layers[0] <= EXACT_LAYERS
        if self.rule.densities == (1.0,) and self.rule.limits == GroupLimits():
            split = self._split(stage, room_bytes - largest)
            as_early = self._fits(split) and self._finish_s(split) <= self._finish_s(stage)
            if as_early or not short:
                return (split if self._fits(split) else None), as_early
        return self._limited(stage, room_bytes, largest) if short else (None, False)

    def _limited(
        self, stage: Stage, room_bytes: float, largest_bytes: float
    ) -> tuple[Stage | None, bool]:
        """The same by the policy's own limit, which leaves out the buffer of layers sent alone."""
        used_bytes = floor_s = 0.0
        for _ in range(_MOST_LIMITS):
            limited = self._under(stage, room_bytes - used_bytes)
            if limited is None:
                return None, used_bytes == 0
            if used_bytes == 0:
                floor_s = self._finish_s(limited)
            if self._fits(limited):
                return limited, self._finish_s(limited) <= floor_s
            scratch_bytes = self.costs.memory(limited, self.samples, self.held).scratch_bytes
            used_bytes = scratch_bytes if used_bytes == 0 else largest_bytes
        return None, False

    def _under(self, stage: Stage, most_bytes: float) -> Stage | None:
        """The stage with groups whose buffers and residuals need no more, if there are any."""
        most_bytes = min(most_bytes, self.rule.limits.max_memory_bytes)
        if most_bytes < 0:
            return None
        limits = dataclasses.replace(self.rule.limits, max_memory_bytes=most_bytes)
        rule = dataclasses.replace(self.rule, limits=limits)
        try:
            groups = self.costs.grouped(stage.layers, self.samples, self.shape, rule)
        except LimitsError:
            return None
        return dataclasses.replace(stage, groups=groups)

    def _split(self, stage: Stage, room_bytes: float) -> Stage:
        """Sends layers of groups one by one, first of those with most bytes per message saved."""
        elements_L = self.costs.elements_L
        fused: dict[GradientGroup, tuple[float, float]] = {}
        for group in stage.groups:
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
        parts = (_layerwise(each) if each in apart else [each] for each in stage.groups)
        return dataclasses.replace(stage, groups=tuple(itertools.chain.from_iterable(parts)))


def _layerwise(group: GradientGroup) -> list[GradientGroup]:
    """Every layer of a group alone, in backward order."""
    low, high = group.layers
    return [dataclasses.replace(group, layers=(n, n + 1)) for n in range(high - 1, low - 1, -1)]
