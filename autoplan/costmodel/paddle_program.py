"""Paddle's static programs, of the old IR and of PIR, into operator graphs."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

from autoplan.costmodel.graph import OpGraph
from autoplan.costmodel.old_ir_reader import OldIrReader
from autoplan.costmodel.pir_reader import PirReader
from autoplan.costmodel.reading import ReadRules
from autoplan.errors import InputError, words


def read_program(
    program: Any,
    *,
    name: str = "program",
    loop_trips: Sequence[int] = (),
    default_trips: int | None = None,
    costs_only: bool = False,
) -> OpGraph:
    """The operator graph of a static program.

    Args:
        program: a `paddle.static.Program`, of PIR (Paddle 3's default) or of the old IR.
        name: what to call it.
        loop_trips: iterations of each `while_loop`, in program order.
        default_trips: iterations of loops that `loop_trips` does not reach; None refuses them.
        costs_only: leave out attributes, which only measurements and formulas ask for (of the old
            IR, where reading them takes most of the time).

    Raises:
        InputError: it is no program, paddle is missing, or a loop's length is not given.
    """
    paddle = _paddle()
    rules = ReadRules(loop_trips=loop_trips, default_trips=default_trips)
    if isinstance(program, paddle.base.framework.Program):
        return OldIrReader(program, rules, costs_only=costs_only).read(name)
    pir = paddle.base.libpaddle.pir
    if isinstance(program, pir.Program):
        return PirReader(program, pir.get_op_inplace_info, rules).read(name)
    found = words(f"a value of type {type(program).__name__}")
    raise InputError("program", found, "a paddle.static.Program")


def _paddle() -> Any:
    """The paddle module; raises InputError where it is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on compilers, which nobody needs here
            return importlib.import_module("paddle")
    except ImportError as error:
        found = words(f"no usable paddle ({error})")
        allowed = "an installed framework: pip install 'autoplan[paddle]'"
        raise InputError("framework", found, allowed) from None
