"""What makes a policy's groups keep the limits of the problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import require
from autoplan.gradsync.problem import GroupingProblem, GroupLimits, Groups, LimitsError

Floats = NDArray[np.float64]

_TRIALS = 24
"""Bisections of the price of memory, from 1e-6 to 1e6 changed cuts for the excess."""


def keep_limits(problem: GroupingProblem, groups: Groups, *, kinds_apart: bool = False) -> Groups:
    """The groups themselves if they keep the problem's limits, else the nearest that do.

    Nearest: the fewest cuts added or taken away, and of those the most even groups (least sum of
    squared elements). A last group below `min_elements` is left only where no other grouping with
    whole layers is within the limits. Under `max_memory_bytes` the price of memory in changed cuts
    is bisected, so there the result is near, not always nearest; every group counts with the
    cheapest of the problem's costs. It is deterministic.

    Groups are contiguous in backward order whatever the kinds of their layers, or, as frameworks
    make them, contiguous among the layers of their kind. The latter stay within it, those that
    change are sent in the order in which they are complete, and the last group of each kind may
    fall below `min_elements`.

    Args:
        problem: gradients, costs and limits.
        groups: every layer once.
        kinds_apart: whether gradients of several kinds never share a group.

    Raises:
        InputError: no grouping keeps the limits; the field is the first of `min_elements`,
            `max_groups` and `max_memory_bytes` that cannot be kept with those before it.
    """
    if _keeps(problem, groups):
        return groups
    spans = _Spans.of(problem, groups, kinds_apart)
    return spans.groups(_nearest_ends(problem.limits, spans))


def _keeps(problem: GroupingProblem, groups: Groups) -> bool:
    """Whether nothing needs to change; a last group that is too small always needs a look."""
    limits = problem.limits
    if limits == GroupLimits():
        return True
    if limits.max_groups is not None and len(groups) > limits.max_groups:
        return False
    memory_bytes = 0.0
    for group in groups:
        elements = problem.group_elements(group)
        oversized = elements > limits.max_elements and len(group) > 1
        if oversized or elements < limits.min_elements:
            return False
        choices = range(len(problem.costs))
        memory_bytes += min(problem.memory_bytes(group, choice) for choice in choices)
    return memory_bytes <= limits.max_memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """Every group that could be, as [s, e): the layers order[s:e]. Axes S and E: 0..L."""

    order: Sequence[int]
    """Layers in backward order, those of each kind together where kinds are kept apart."""
    allowed_SE: NDArray[np.bool_]
    """Groups within the limits on elements, and within one section."""
    distance_SE: Floats
    """Cuts that the group adds or takes away, then evenness as a fraction of one."""
    memory_bytes_SE: Floats
    """Bytes that the group keeps with the cheapest cost."""

    @staticmethod
    def of(problem: GroupingProblem, groups: Groups, kinds_apart: bool) -> _Spans:
        """Spans over the layers of a problem, with the distance from these groups."""
        order, sections = _sections(problem, kinds_apart)
        _require_contiguous(order, sections, groups)
        length = len(order)
        total = np.concatenate(([0.0], np.cumsum([problem.elements[layer] for layer in order])))
        elements_SE = total[None, :] - total[:, None]
        place = np.arange(length + 1)
        count_SE = place[None, :] - place[:, None]

        section = np.array([*sections, -1])
        last_E = np.concatenate(([False], section[:-1] != section[1:]))
        small_SE = elements_SE < problem.limits.min_elements
        before = np.maximum(place - 1, 0)
        allowed_SE = (count_SE >= 1) & (section[:, None] == section[before][None, :])
        allowed_SE &= (elements_SE <= problem.limits.max_elements) | (count_SE == 1)
        allowed_SE &= ~small_SE | last_E[None, :]

        position = {layer: i for i, layer in enumerate(order)}
        cut = np.zeros(length + 1)
        cut[[1 + max(position[layer] for layer in group) for group in groups]] = 1
        cuts = np.cumsum(cut)
        distance_SE = (1 - cut)[None, :] + cuts[before][None, :] - cuts[:, None]
        distance_SE += 0.5 * (elements_SE / max(total[-1], 1.0)) ** 2 + small_SE * (length + 1)
        copies_SE = (count_SE > 1) + float(all(cost.density < 1 for cost in problem.costs))
        return _Spans(
            order=order,
            allowed_SE=allowed_SE,
            distance_SE=distance_SE,
            memory_bytes_SE=copies_SE * elements_SE * problem.bytes_per_element,
        )

    def groups(self, ends: Sequence[int]) -> Groups:
        """The groups with these ends, in the order in which backward completes them."""
        edges = [0, *ends]
        spans = [self.order[s:e] for s, e in zip(edges, ends, strict=False)]
        return tuple(sorted((tuple(span) for span in spans), key=lambda span: -span[-1]))

    def memory_bytes(self, ends: Sequence[int]) -> float:
        """Bytes of the groups with these ends."""
        spans = zip([0, *ends], ends, strict=False)
        return float(sum(self.memory_bytes_SE[s, e] for s, e in spans))


def _sections(problem: GroupingProblem, kinds_apart: bool) -> tuple[list[int], list[int]]:
    """Layers so that groups are contiguous, and the section of each that none may cross."""
    backward = list(range(problem.num_layers - 1, -1, -1))
    kinds = problem.kinds
    if kinds is None or not kinds_apart:
        return backward, [0] * len(backward)
    # A layer without gradients belongs to the kind of the gradient that backward produces next.
    following = next((kinds[i] for i in backward[::-1] if problem.elements[i] > 0), "")
    kind_of: dict[int, str] = {}
    for layer in backward[::-1]:
        following = kinds[layer] if problem.elements[layer] > 0 else following
        kind_of[layer] = following
    number = {kind: i for i, kind in enumerate(dict.fromkeys(kind_of[layer] for layer in backward))}
    order = sorted(backward, key=lambda layer: number[kind_of[layer]])
    return order, [number[kind_of[layer]] for layer in order]


def _require_contiguous(order: Sequence[int], sections: Sequence[int], groups: Groups) -> None:
    """Refuses groups that are not contiguous within a section, or not of every layer once."""
    position = {layer: i for i, layer in enumerate(order)}
    sound = sorted(layer for group in groups for layer in group) == sorted(order)
    for group in groups if sound else ():
        places = [position[layer] for layer in group]
        sound &= bool(places) and places == list(range(places[0], places[0] + len(places)))
        sound &= len({sections[place] for place in places}) == 1
    require(sound, "groups", groups, "every layer once, contiguous in backward order or its kind")


def _nearest_ends(limits: GroupLimits, spans: _Spans) -> list[int]:
    """Ends of the nearest groups within the limits, or the limit that cannot be kept."""
    fewest = _cheapest_ends(spans, np.ones_like(spans.distance_SE), None)
    if fewest is None:
        allowed = f"what whole layers make up in groups of at most {limits.max_elements:g} elements"
        raise LimitsError("min_elements", limits.min_elements, allowed)
    most = limits.max_groups
    sound = most is None or len(fewest) <= most
    if not sound:
        allowed = f"at least {len(fewest)}, under the limits on elements"
        raise LimitsError("max_groups", most, allowed)
    nearest = _cheapest_ends(spans, spans.distance_SE, most)
    lightest = _cheapest_ends(spans, spans.memory_bytes_SE, most)
    assert nearest is not None
    assert lightest is not None
    if spans.memory_bytes(nearest) <= limits.max_memory_bytes:
        return nearest
    needed = spans.memory_bytes(lightest)
    sound = needed <= limits.max_memory_bytes
    allowed = f"at least {needed:g} bytes, under the other limits"
    if not sound:
        raise LimitsError("max_memory_bytes", limits.max_memory_bytes, allowed)
    excess = spans.memory_bytes(nearest) - needed
    low, high, best = 1e-6, 1e6, lightest
    for _ in range(_TRIALS):
        price = (low * high) ** 0.5
        priced_SE = spans.distance_SE + price * spans.memory_bytes_SE / excess
        ends = _cheapest_ends(spans, priced_SE, most)
        if ends is not None and spans.memory_bytes(ends) <= limits.max_memory_bytes:
            high, best = price, ends
        else:
            low = price
    return best


def _cheapest_ends(spans: _Spans, cost_SE: Floats, max_groups: int | None) -> list[int] | None:
    """Ends of the allowed groups of least cost in all; None where there are none."""
    cost_SE = np.where(spans.allowed_SE, cost_SE, np.inf)
    length = len(spans.order)
    least = np.full(length + 1, np.inf)
    least[0] = 0.0
    start = np.zeros(length + 1, dtype=np.int64)
    for end in range(1, length + 1):
        each = least[:end] + cost_SE[:end, end]
        start[end] = int(each.argmin())
        least[end] = each[start[end]]
    if not np.isfinite(least[length]):
        return None
    ends = _traced([start] * (length + 1), length)
    if max_groups is None or len(ends) <= max_groups:
        return ends
    return _cheapest_ends_of_few(cost_SE, max_groups)


def _cheapest_ends_of_few(cost_SE: Floats, max_groups: int) -> list[int] | None:
    """The same with at most so many groups: a layer of states for each count of groups."""
    length = len(cost_SE) - 1
    least = np.full(length + 1, np.inf)
    least[0] = 0.0
    starts: list[NDArray[np.int64]] = []
    best, best_starts = np.inf, 0
    for _ in range(max_groups):
        each_SE = least[:, None] + cost_SE
        starts.append(each_SE.argmin(axis=0))
        least = each_SE.min(axis=0)
        if least[length] < best:
            best, best_starts = float(least[length]), len(starts)
    return _traced(starts[:best_starts], length) if best_starts else None


def _traced(starts: Sequence[NDArray[np.int64]], end: int) -> list[int]:
    """Ends of the groups, followed back from the last; starts has a layer for each group."""
    ends: list[int] = []
    for start in reversed(starts):
        if end == 0:
            break
        ends.append(end)
        end = int(start[end])
    return ends[::-1]
