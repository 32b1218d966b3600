"""The user's static training program: found by MODULE:FUNCTION, built in static mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoplan.costmodel.graph import OpGraph
from autoplan.errors import InputError, words
from autoplan.execute.model_source import build_source, require_paddle

_RESULT = "a training program, (program, startup) or (program, startup, feed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSource:
    """A training program and what is needed to run it."""

    name: str
    """The function's own name."""
    source: str
    """MODULE:FUNCTION, without the folders of this machine."""
    source_sha256: str | None
    """Hash of the module's file, where it has one."""
    program: Any
    startup: Any
    """The startup program, or None where the function returns none."""
    feed: Mapping[str, Any] | None
    """One batch by name, or None where the function returns none."""


def load_program(source: str, seed: int = 0) -> ProgramSource:
    """Imports the module, calls the function in static mode, and checks what it returns.

    Raises:
        InputError: paddle, the module or the function is missing or fails, or the function
            returns something else than a program.
    """
    paddle = require_paddle()
    with static_mode():
        built = build_source(source, seed, _RESULT)
    parts = built.value if isinstance(built.value, tuple) else (built.value,)
    kinds = (paddle.base.libpaddle.pir.Program, paddle.base.framework.Program)
    sound = 1 <= len(parts) <= 3 and all(isinstance(part, kinds) for part in parts[:2])
    if not sound or (len(parts) == 3 and not isinstance(parts[2], Mapping)):
        found = words(f"a value of type {type(built.value).__name__}")
        raise InputError("result", found, _RESULT, source=source)
    program, startup, feed = (*parts, None, None)[:3]
    return ProgramSource(
        name=source.rpartition(":")[2],
        source=built.source,
        source_sha256=built.source_sha256,
        program=program,
        startup=startup,
        feed=feed,
    )


@contextlib.contextmanager
def static_mode() -> Iterator[None]:
    """Paddle in static mode meanwhile, and as it was afterwards."""
    paddle = require_paddle()
    dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    try:
        yield
    finally:
        if dynamic:
            paddle.disable_static()


def random_feed(graph: OpGraph, seed: int = 0) -> dict[str, Any]:
    """One batch of random content for a graph with resolved shapes.

    Integers are 0 or 1, which are labels and indices of any model; a model whose time depends on
    them should return a feed of its own.
    """
    rng = np.random.default_rng(seed)
    feed = {}
    for index in graph.feeds:
        tensor = graph.tensors[index]
        if "int" in tensor.dtype or tensor.dtype == "bool":
            feed[tensor.name] = rng.integers(0, 2, tensor.shape).astype(tensor.dtype)
        else:
            feed[tensor.name] = rng.normal(size=tensor.shape).astype(tensor.dtype)
    return feed
