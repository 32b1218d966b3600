"""Layers without gradients, which no framework sees and every workload has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoplan.gradsync.problem import GroupingProblem, Groups


def layers_with_gradients(problem: GroupingProblem) -> list[int]:
    """The layers that have something to exchange, in backward order."""
    return [layer for layer in range(problem.num_layers - 1, -1, -1) if problem.elements[layer] > 0]


def backward_between_s(problem: GroupingProblem, layers: Sequence[int]) -> list[float]:
    """Seconds of backward from the gradient before to each of these, in backward order."""
    edges = [problem.num_layers, *layers]
    return [
        sum(problem.backward_s[layer] for layer in range(edge - 1, after - 1, -1))
        for edge, after in zip(edges, layers, strict=False)
    ]


def with_empty_layers(problem: GroupingProblem, groups: Iterable[Sequence[int]]) -> Groups:
    """Adds the layers without gradients to groups that hold all the others.

    Each goes with the gradient that backward produces next, so that no group waits for it; those
    after the last gradient make a group of their own, which is never sent.
    """
    filled = [list(group) for group in groups]
    home = {layer: group for group in filled for layer in group}
    waiting: list[int] = []
    for layer in range(problem.num_layers - 1, -1, -1):
        if layer not in home:
            waiting.append(layer)
            continue
        home[layer].extend(waiting)
        waiting = []
    if waiting:
        filled.append(waiting)
    return tuple(tuple(sorted(group, reverse=True)) for group in filled)
