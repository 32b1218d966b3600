"""Compiling kernels to machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Compiles a kernel on its first call and keeps it on disk, where there is a place for it.

    Division by zero gives infinities as in numpy, without a test in every loop.
    """
    try:
        return cast(Kernel, numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:  # neither the installation nor the user's cache folder can be written
        return cast(Kernel, numba.njit(error_model="numpy")(function))
