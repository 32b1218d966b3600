"""Predicted step time and memory of training programs against really running them.

Four programs (experiments/models/training_programs.py) on this machine's CPU with one thread:

- benchmarking: every operator is measured on its own, and the predicted step is the sum over the
  program, overheads included. Rounds over the operators alternate with real steps, so that both see
  the same machine; medians of the process's CPU seconds are compared, as wall time on a shared
  machine says little;
- analysis: the roofline, calibrated with two numbers (operations per second of one matrix product,
  bytes per second of one addition, both measured in the same run), no operator of the four
  programs among them;
- memory: the predicted peak against the allocator's.

Needs Paddle. Run from the repository's root:

    python experiments/validate_costmodel.py [--rounds 20] [--models mlp gpt] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path

# Read by Paddle when it is imported: one compute thread, operators in program order.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["FLAGS_new_executor_serial_run"] = "1"  # noqa: SIM112 - what Paddle calls it
os.environ.setdefault("GLOG_minloglevel", "2")

import numpy as np
import paddle

from autoplan.costmodel import Measured, Measurements, OpGraph, Roofline, estimate_memory
from autoplan.costmodel.costs import Costs, cost_ops, require_known, unknown_types
from autoplan.costmodel.paddle_program import read_program
from autoplan.costmodel.shapes import resolved
from autoplan.costmodel.work import work_of
from autoplan.execute.op_timing import measure_program
from autoplan.execute.paddle_device import current_device

sys.path.append(str(Path(__file__).resolve().parent / "models"))
import training_programs

MODELS = {"mlp": (64, 10), "gpt": (8, 1000), "resnet": (8, 10), "lstm": (16, 10)}
"""Batch size and number of classes (of the integers that are fed) of each program."""
PROBE_SIDE = 768
PROBE_ELEMENTS = 4 * 2**20


class Step:
    """A training program that can really be run."""

    def __init__(self, name: str, batch: int, classes: int) -> None:
        """Builds the program, starts it, and takes the peak of a step."""
        with paddle.utils.unique_name.guard():
            self.program, self.startup = getattr(training_programs, name)()
        self.graph = resolved(read_program(self.program, name=name), batch)
        self.feed = feed_of(self.graph, classes)
        self.seconds: list[float] = []
        self._scope = paddle.static.Scope()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        device = current_device()
        gc.collect()
        before = device.allocated_bytes()
        self._executor.run(self.startup, scope=self._scope)
        self.run()
        peaks = []
        # Tensors are freed by a thread of its own, which a busy machine delays: the least counts.
        for _ in range(5):
            device.peak_bytes(reset=True)
            self.run()
            peaks.append(device.peak_bytes() - before)
        self.peak_bytes = min(peaks)
        self.seconds.clear()

    def run(self) -> None:
        """One step; keeps its CPU seconds."""
        start_s = time.process_time()
        self._executor.run(self.program, feed=self.feed, scope=self._scope)
        self.seconds.append(time.process_time() - start_s)


def feed_of(graph: OpGraph, classes: int) -> dict[str, np.ndarray]:
    """Random inputs and labels."""
    rng = np.random.default_rng(0)
    feed = {}
    for tensor in (graph.tensors[index] for index in graph.feeds):
        whole = tensor.dtype.startswith("int")
        content = rng.integers(0, classes, tensor.shape) if whole else rng.normal(size=tensor.shape)
        feed[tensor.name] = content.astype(tensor.dtype)
    return feed


def step_s(graph: OpGraph, costs: Costs, overhead_s: float) -> float:
    """Predicted seconds of one call of a program on one stream."""
    costed = cost_ops(graph, costs)
    require_known(unknown_types(graph, costed, costs))
    return overhead_s + sum(cost.seconds for cost in costed)


def calibrated(rounds: int) -> Roofline:
    """A roofline from two measured operators: a square product and a large addition."""
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        square = paddle.static.data("square", [PROBE_SIDE, PROBE_SIDE], "float32")
        long = paddle.static.data("long", [PROBE_ELEMENTS], "float32")
        paddle.matmul(square, square)
        paddle.add(long, long)
    graph = read_program(program)
    found = Measured(
        measurements=measure_program(program, startup, feed_of(graph, 2), repeats=rounds)
    )
    rates = {}
    for op in graph.ops:
        work, cost = work_of(op, graph.tensors), found.of(op, graph.tensors)
        rates[op.type] = (work.matrix_flops / cost.seconds, work.bytes / cost.seconds)
    return Roofline(
        flop_per_s=rates["matmul"][0], bytes_per_s=rates["add"][1], call_overhead_s=5e-6
    )


def validate(name: str, rounds: int, roofline: Roofline) -> dict[str, object]:
    """The figures of one program."""
    step = Step(name, *MODELS[name])
    found: Measurements = measure_program(
        step.program, step.startup, step.feed, repeats=rounds, each_round=step.run
    )
    measured_s = statistics.median(step.seconds)
    benchmarking_s = step_s(step.graph, Measured(measurements=found), found.step_overhead_s)
    analysis_s = step_s(step.graph, roofline, 0.0)
    peak_bytes = estimate_memory(step.graph).peak_bytes
    return {
        "operators": len(step.graph.ops),
        "measured_operators": len(found.ops),
        "measured_s": measured_s,
        "measured_least_s": min(step.seconds),
        "benchmarking_s": benchmarking_s,
        "benchmarking_error": benchmarking_s / measured_s - 1,
        "analysis_s": analysis_s,
        "analysis_error": analysis_s / measured_s - 1,
        "measured_peak_bytes": step.peak_bytes,
        "predicted_peak_bytes": peak_bytes,
        "peak_error": peak_bytes / step.peak_bytes - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--json", action="store_true", help="print the figures as one document")
    arguments = parser.parse_args()
    paddle.enable_static()
    roofline = calibrated(arguments.rounds)
    figures = {}
    for name in arguments.models:
        figures[name] = found = validate(name, arguments.rounds, roofline)
        if not arguments.json:
            print(
                f"{name}: measured {1e3 * found['measured_s']:.2f} ms, benchmarking "
                f"{found['benchmarking_error']:+.1%}, analysis {found['analysis_error']:+.1%}; "
                f"peak {found['measured_peak_bytes'] / 2**20:.1f} MiB, predicted "
                f"{found['peak_error']:+.2%}",
                flush=True,
            )
    order = [sorted(figures, key=lambda n: figures[n][key]) for key in ("measured_s", "analysis_s")]
    summary = {
        "rounds": arguments.rounds,
        "flop_per_s": roofline.flop_per_s,
        "bytes_per_s": roofline.bytes_per_s,
        "analysis_order_right": order[0] == order[1],
        "models": figures,
    }
    if arguments.json:
        print(json.dumps(summary))
    else:
        print(
            f"calibrated: {roofline.flop_per_s / 1e9:.1f} GFLOP/s, "
            f"{roofline.bytes_per_s / 1e9:.1f} GB/s; order of the programs by analysis "
            f"{'right' if summary['analysis_order_right'] else 'wrong'}"
        )


if __name__ == "__main__":
    main()
