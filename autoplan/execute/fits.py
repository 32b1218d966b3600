"""Straight lines through measured points, robust against points that were disturbed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDS = 50
_HUBER = 0.05
"""Relative residual from which on a point weighs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Coefficients of at least 0, and how far they are from the points."""

    coefficients: tuple[float, ...]
    residuals: tuple[float, ...]
    """Predicted over measured less 1, per point."""

    @property
    def median_residual(self) -> float:
        """The median of their sizes."""
        return float(np.median(np.abs(self.residuals)))

    @property
    def largest_residual(self) -> float:
        """The largest of their sizes."""
        return float(np.max(np.abs(self.residuals)))


def fit_line(columns_PK: Floats, values_P: Floats) -> Fit:
    """Coefficients such that columns @ coefficients are close to the values, as shares of these.

    Least squares of relative residuals, reweighted so that points beyond a few per cent count by
    their distance and not by its square (Huber); coefficients that would be negative are 0.

    Args:
        columns_PK: P points by K terms, such as ones and bytes.
        values_P: what was measured, above 0.
    """
    relative_PK = columns_PK / values_P[:, None]
    weights_P = np.ones(len(values_P))
    found_K = np.zeros(columns_PK.shape[1])
    for _ in range(_ROUNDS):
        before_K = found_K
        found_K = _not_negative(relative_PK * weights_P[:, None], weights_P)
        sizes_P = np.abs(relative_PK @ found_K - 1)
        weights_P = np.sqrt(_HUBER / np.maximum(sizes_P, _HUBER))
        if np.allclose(found_K, before_K, rtol=1e-9, atol=0.0):
            break
    residuals_P = relative_PK @ found_K - 1
    return Fit(
        coefficients=tuple(found_K.tolist()),
        residuals=tuple(float(r) for r in residuals_P),
    )


def fit_affine(sizes_P: Sequence[float], values_P: Sequence[float]) -> Fit:
    """Coefficients of a constant and of the size; like `fit_line`."""
    columns = np.stack([np.ones(len(sizes_P)), np.array(sizes_P, dtype=float)], axis=1)
    return fit_line(columns, np.array(values_P, dtype=float))


def _not_negative(columns_PK: Floats, values_P: Floats) -> Floats:
    """Least squares with coefficients of at least 0; few terms, so that every subset is tried."""
    terms = columns_PK.shape[1]
    best_K, least = np.zeros(terms), math.inf
    for mask in range(1, 2**terms):
        chosen = [k for k in range(terms) if mask >> k & 1]
        part, *_ = np.linalg.lstsq(columns_PK[:, chosen], values_P, rcond=None)
        error = float(np.sum((columns_PK[:, chosen] @ part - values_P) ** 2))
        if (part >= 0).all() and error < least:
            best_K = np.zeros(terms)
            best_K[chosen] = part
            least = error
    return best_K
