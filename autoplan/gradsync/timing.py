"""When the gradients of a backward pass have been exchanged: the MGS recurrence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.errors import require
from autoplan.gradsync.problem import Cost, GroupingProblem, Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A grouping in time, in seconds after the start of backward."""

    finish_s: float
    """End of the last exchange, or of compute if later."""
    compute_s: float
    """End of compute: backward, every sparsification, and what exchanges took from it."""
    sparsify_s: float
    """Seconds of compute that went into sparsification."""
    handling_s: float
    """Seconds of compute that exchanges took from the backward beside them."""
    communicate_s: float
    """Seconds of the link."""
    spans: tuple[tuple[float, float], ...]
    """Start and end on the link of each group; groups without elements take no time."""

    @property
    def exposed_s(self) -> float:
        """Communication that compute does not hide."""
        return self.finish_s - self.compute_s


def time_groups(
    problem: GroupingProblem, groups: Groups, choices: Sequence[int] | None = None
) -> Timing:
    """Runs the recurrence of DESIGN 3.2 (facts/mgs.md section 1.1) over any grouping.

    A group is ready when the last of its layers is; its sparsification runs on the compute stream
    and delays what follows; then its exchange queues, in the groups' order, on one FIFO link, and
    what it takes from compute delays what follows, too.

    Args:
        problem: gradients and costs.
        groups: every layer once; contiguous or not.
        choices: for each group, which of the problem's costs it takes; the first by default.

    Raises:
        InputError: a layer is missing or doubled, or a cost is not a number of seconds.
    """
    expected = list(range(problem.num_layers))
    found = sorted(layer for group in groups for layer in group)
    require(found == expected, "groups", found, f"every layer once, {expected}")
    chosen = list(choices) if choices is not None else [0] * len(groups)
    closing = {min(group): g for g, group in enumerate(groups) if group}
    sizes = [problem.group_elements(group) for group in groups]
    ready = [0.0] * len(groups)
    compute = sparsified = handled = 0.0
    for layer in range(problem.num_layers - 1, -1, -1):
        compute += problem.backward_s[layer]
        g = closing.get(layer)
        if g is None:
            continue
        cost = problem.costs[chosen[g]]
        sparsify = cost.sparsify
        if sparsify is not None and sizes[g] > 0:
            work = priced("sparsify", sparsify, sizes[g])
            sparsified += work
            compute += work
        ready[g] = compute
        if cost.handling is not None and g + 1 < len(groups):
            work = priced("handling", cost.handling, sizes[g])
            handled += work
            compute += work
    link = busy = 0.0
    spans = []
    for g, size in enumerate(sizes):
        start = max(link, ready[g]) if size > 0 else link
        seconds = priced("communicate", problem.costs[chosen[g]].communicate, size)
        busy += seconds
        link = start + seconds
        spans.append((start, link))
    return Timing(
        finish_s=max(compute, link),
        compute_s=compute,
        sparsify_s=sparsified,
        handling_s=handled,
        communicate_s=busy,
        spans=tuple(spans),
    )


def priced(name: str, cost: Cost, elements: float) -> float:
    """A cost that is a number of seconds (NaN would vanish in a maximum); 0 for no elements."""
    if elements <= 0:
        return 0.0
    seconds = cost(elements)
    sound = math.isfinite(seconds) and seconds >= 0
    require(sound, f"{name}({elements:g})", seconds, "a finite number of seconds, at least 0")
    return seconds
