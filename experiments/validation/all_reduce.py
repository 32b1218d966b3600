"""Iteration times of data-parallel training: the product's recurrence, calibrated once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from validation.ddl_benchmarks import (
    FORCED_ELEMENTS,
    GREEDY_LINK,
    MODELS,
    Gradients,
    Row,
)

from autoplan.gradsync import GroupCost, GroupingProblem, GroupLimits, policy_named, time_groups
from autoplan.gradsync.costs import Affine
from autoplan.gradsync.problem import Groups

BYTES = 4.0
"""Of a gradient element; the benchmark sends float32."""
BACKWARD_SHARE = 2 / 3
"""Of forward and backward: two matrix products against one. The benchmark gives no split."""
MEMORY_BYTES_PER_S = 0.8 * 900e9
"""What element-wise kernels reach of a V100's HBM2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What the one-group rows (BSP) say."""

    s_per_byte: dict[tuple[str, int], float]
    """By network and number of GPUs."""
    host_s_per_tensor: float
    """Added to an AdamW step for each tensor once there are several GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """The two fitted constants, the same for every network, number of GPUs and method."""

    message_s_per_gpu: float
    """Start-up of a message for each GPU in the ring: negotiation and 2 (P - 1) hops."""
    slowdown: float
    """Seconds that a second of communication during backward adds to backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted iteration."""

    iteration_s: float
    num_groups: int


class Predictor:
    """Predicts rows; the groups, which no fit changes, are planned once."""

    def __init__(self, gradients: dict[str, Gradients], rows: Sequence[Row]) -> None:
        """Plans the groups of every row.

        Args:
            gradients: of each model.
            rows: that may be predicted.
        """
        self._single_s = {row.model: row.single_gpu_s for row in rows}
        self._problems = {
            name: _problem(name, gradients[name], step_s) for name, step_s in self._single_s.items()
        }
        self._groups = {_key(row): self._planned(row) for row in rows}

    def _planned(self, row: Row) -> Groups:
        """The groups that the benchmark's code makes."""
        problem = self._problems[row.model]
        if row.method != "MG-WFBP":
            return policy_named("single" if row.method == "BSP" else "layerwise").groups(problem)
        # The 100 Gb/s runs, on Ethernet too, pass --rdma and so plan with the 56 Gb/s constants.
        link = GREEDY_LINK["10GbE" if row.network == "10GbE" else "56Gb"]
        alpha_s, s_per_byte = link[row.gpus]
        cost = GroupCost(communicate=Affine(alpha_s, BYTES * s_per_byte))
        limits = GroupLimits(min_elements=FORCED_ELEMENTS)
        return policy_named("mg-wfbp").groups(replace(problem, costs=(cost,), limits=limits))

    def calibrated(self, rows: Sequence[Row]) -> Link:
        """Least squares of the relative errors of rows that send everything after backward.

        measured - single GPU = bytes * s_per_byte[network, GPUs] + AdamW tensors * host_s.
        """
        settings = sorted({(row.network, row.gpus) for row in rows})
        left = np.zeros((len(rows), len(settings) + 1))
        right = np.zeros(len(rows))
        for i, row in enumerate(rows):
            problem = self._problems[row.model]
            size = BYTES * sum(problem.elements)
            left[i, settings.index((row.network, row.gpus))] = size / row.measured_s
            if MODELS[row.model].adam:
                left[i, -1] = problem.num_layers / row.measured_s
            right[i] = 1 - row.single_gpu_s / row.measured_s
        # Columns of like size, lest the bytes hide the tensors from the solver.
        scale = np.abs(left).max(axis=0)
        solved = np.linalg.lstsq(left / scale, right, rcond=None)[0] / scale
        return Link(
            s_per_byte=dict(zip(settings, solved[:-1].tolist(), strict=True)),
            host_s_per_tensor=float(solved[-1]),
        )

    def predict(self, row: Row, link: Link, overheads: Overheads) -> Prediction:
        """The iteration time of a row, from the single-GPU step of its model alone."""
        problem, groups = self._problems[row.model], self._groups[_key(row)]
        alpha_s = overheads.message_s_per_gpu * row.gpus
        beta_s = BYTES * link.s_per_byte[row.network, row.gpus]
        problem = replace(problem, costs=(GroupCost(communicate=Affine(alpha_s, beta_s)),))
        plain = time_groups(problem, groups)
        backward_s = plain.compute_s
        overlapped_s = sum(max(0.0, min(end, backward_s) - start) for start, end in plain.spans)
        stretch = 1 + overheads.slowdown * overlapped_s / backward_s
        slowed = [seconds * stretch for seconds in problem.backward_s]
        finish_s = time_groups(replace(problem, backward_s=slowed), groups).finish_s
        host_s = link.host_s_per_tensor * problem.num_layers if MODELS[row.model].adam else 0.0
        return Prediction(
            iteration_s=row.single_gpu_s - backward_s + finish_s + host_s,
            num_groups=len(groups),
        )

    def fitted(self, rows: Sequence[Row], link: Link) -> Overheads:
        """The overheads with the least mean relative error over rows, by a pattern search."""

        def loss(point: tuple[float, float]) -> float:
            overheads = _overheads(point)
            ratios = [
                self.predict(row, link, overheads).iteration_s / row.measured_s for row in rows
            ]
            return math.fsum(abs(ratio - 1) for ratio in ratios) / len(rows)

        return _overheads(_least(loss, (20.0, 10.0), step=8.0, until=0.5))


def _problem(name: str, gradients: Gradients, step_s: float) -> GroupingProblem:
    """Backward of a model whose step takes so long on one GPU, in forward order."""
    model = MODELS[name]
    optimiser_s = model.passes * BYTES * sum(gradients.elements) / MEMORY_BYTES_PER_S
    backward_s = (step_s - optimiser_s) * BACKWARD_SHARE
    head_s = model.head_share * backward_s
    unit_s = (backward_s - head_s) / sum(gradients.gaps)
    each_s = [gap * unit_s for gap in gradients.gaps]
    each_s[0] += head_s
    return GroupingProblem(
        backward_s=each_s[::-1],
        elements=gradients.elements[::-1],
        costs=(GroupCost(communicate=Affine(0.0, 0.0)),),
        bytes_per_element=BYTES,
    )


def _key(row: Row) -> tuple[str, str, int, str]:
    """What tells rows apart."""
    return row.model, row.network, row.gpus, row.method


def _overheads(point: tuple[float, float]) -> Overheads:
    """From microseconds and percent, which the search moves in."""
    return Overheads(message_s_per_gpu=point[0] * 1e-6, slowdown=point[1] / 100)


def _least(
    loss: Callable[[tuple[float, float]], float],
    point: tuple[float, float],
    *,
    step: float,
    until: float,
) -> tuple[float, float]:
    """The lowest point that steps along the axes find, none below 0, halved down to `until`."""
    best = loss(point)
    while step >= until:
        x, y = point
        near = [(x + step, y), (max(0.0, x - step), y), (x, y + step), (x, max(0.0, y - step))]
        found, where = min((loss(other), other) for other in near)
        if found < best:
            best, point = found, where
        else:
            step /= 2
    return point
