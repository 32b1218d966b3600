"""Prints the allocator's peak in bytes while a training program runs in a process of its own."""

import gc
import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import paddle

from autoplan.costmodel.paddle_program import read_program
from autoplan.costmodel.shapes import resolved

MODELS = Path(__file__).resolve().parents[2] / "experiments" / "models" / "training_programs.py"


def measured(name, batch, sizes):
    """The peak of one step after the first.

    Tensors are freed by a thread of its own: on one core, and before this one, it is never late.
    """
    spec = importlib.util.spec_from_file_location("training_programs", MODELS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    core = paddle.base.core
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    paddle.set_flags({"FLAGS_new_executor_serial_run": True})
    program, startup = getattr(module, name)(-1, **sizes)
    given = resolved(read_program(program), batch)
    rng = np.random.default_rng(0)
    feed = {}
    for tensor in (given.tensors[index] for index in given.feeds):
        whole = tensor.dtype == "int64"
        content = rng.integers(0, 10, tensor.shape) if whole else rng.normal(size=tensor.shape)
        feed[tensor.name] = content.astype(tensor.dtype)
    gc.collect()
    scope, executor = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
    idle = core.host_memory_stat_current_value("Allocated", 0)
    executor.run(startup, scope=scope)
    executor.run(program, feed=feed, scope=scope)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    core.host_memory_stat_reset_peak_value("Allocated", 0)
    executor.run(program, feed=feed, scope=scope)
    return core.host_memory_stat_peak_value("Allocated", 0) - idle


if __name__ == "__main__":
    paddle.enable_static()
    print(measured(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
