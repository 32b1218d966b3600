"""How fast programs are costed: beside Paddle's own cost model, and as they grow.

- beside Paddle: the same old-IR programs (linear layers with ReLU and Adam) and the same costs by
  operator number go to Paddle's `estimate_cost` and to autoplan's drop-in, which reads the program,
  costs it and follows its memory. "estimate" is autoplan without the reading, as when a program is
  costed again on another cluster or batch. Both give the same runtime, which is checked.
- growth: programs of up to 50,000 operators with collectives on a second stream, as operator
  graphs; seconds per operator should stay the same.

CPU seconds, the least of some repeats. Needs Paddle. Run from the repository's root:

    python experiments/bench/bench_costmodel.py [--layers 10 60 97] [--repeats 25] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable

os.environ.setdefault("GLOG_minloglevel", "2")

import paddle
from paddle.distributed.auto_parallel.static.cost_model import estimate_cost as paddles

from autoplan.cluster import Cluster, Device, Link
from autoplan.costmodel import Given, Op, OpGraph, TensorInfo, estimate, estimate_cost
from autoplan.costmodel.estimate import estimate_graphs
from autoplan.costmodel.graph import Collective
from autoplan.costmodel.paddle_program import read_program

WIDTH = 64
BATCH = 32
GROWTH = (1_000, 5_000, 10_000, 50_000)


def program_of(layers: int):
    """A training program of the old IR, and a cost for each operator."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        x = paddle.static.data("x", [BATCH, WIDTH], "float32")
        for _ in range(layers):
            x = paddle.nn.functional.relu(paddle.nn.Linear(WIDTH, WIDTH)(x))
        paddle.optimizer.Adam(1e-3).minimize((x * x).mean())
    ids = [op.desc.id() for op in program.global_block().ops]
    return program, {number: 1e-6 * (1 + number % 7) for number in ids}


def least_s(run: Callable[[], object], repeats: int) -> float:
    """CPU seconds of the fastest of some runs."""
    seconds = []
    for _ in range(repeats):
        start_s = time.process_time()
        run()
        seconds.append(time.process_time() - start_s)
    return min(seconds)


def beside_paddle(layers: int, repeats: int) -> dict[str, float]:
    """Seconds of both on one program."""
    with paddle.pir_utils.OldIrGuard():
        program, costs = program_of(layers)
        graph = read_program(program, costs_only=True)
        ours = estimate_cost([program], None, None, [costs], BATCH).runtime
        theirs = paddles([program], None, None, [costs], BATCH).runtime
        if not math.isclose(ours, theirs, rel_tol=1e-9):
            raise SystemExit(f"the runtimes differ: {ours} and {theirs}")
        paddle_s = least_s(lambda: paddles([program], None, None, [costs], BATCH), min(3, repeats))
        whole_s = least_s(lambda: estimate_cost([program], None, None, [costs], BATCH), repeats)
        given = [Given(seconds_by_id=costs)]
        estimate_s = least_s(lambda: estimate_graphs([graph], None, given), repeats)
    return {
        "operators": len(graph.ops),
        "paddle_s": paddle_s,
        "autoplan_s": whole_s,
        "estimate_s": estimate_s,
        "times_faster": paddle_s / whole_s,
        "estimate_times_faster": paddle_s / estimate_s,
    }


def grown_graph(operators: int) -> OpGraph:
    """Layers of four operators, each gradient exchanged while the next ones are computed."""
    layers = operators // 4
    tensors = [TensorInfo(name="x", shape=(8, 16), dtype="float32")]
    forward, backward, updates = [], [], []
    for layer in range(layers):
        state, gradient, parameter = (len(tensors) + i for i in range(3))
        for name in ("state", "gradient"):
            tensors.append(TensorInfo(name=f"{name}{layer}", shape=(8, 16), dtype="float32"))
        tensors.append(
            TensorInfo(
                name=f"w{layer}", shape=(16,), dtype="float32", persistable=True, parameter=True
            )
        )
        before = max(0, state - 3)
        forward.append(Op(type="relu", inputs=(before, parameter), outputs=(state,), id=0))
        backward.append(
            Op(type="relu_grad", inputs=(state,), outputs=(gradient,), role="backward", id=1)
        )
        backward.append(
            Op(
                type="all_reduce",
                inputs=(gradient,),
                outputs=(gradient,),
                role="backward",
                collective=Collective(kind="all_reduce"),
            )
        )
        update = Op(
            type="sgd", inputs=(parameter, gradient), outputs=(parameter,), role="optimizer", id=2
        )
        updates.append(update)
    return OpGraph(tensors=tuple(tensors), ops=(*forward, *backward, *updates), feeds=(0,))


def growth(repeats: int) -> dict[str, float]:
    """Seconds per operator by operators, of two ranks."""
    link = Link(name="link", alpha_s=1e-6, bandwidth_bytes_per_s=1e9)
    device = Device(name="device", memory_bytes=1e12)
    cluster = Cluster(name="two", devices_per_node=2, device=device, intra_node=link)
    costs = Given(seconds_by_id={0: 1e-6, 1: 2e-6, 2: 5e-7})
    found = {}
    for operators in GROWTH:
        graphs = [grown_graph(operators)] * 2

        def run(graphs=graphs):
            return estimate(graphs, cluster, batch_size=8, costs=costs)

        found[str(operators)] = least_s(run, min(3, repeats)) / (2 * operators)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[10, 60, 97])
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--json", action="store_true", help="print the figures as one document")
    arguments = parser.parse_args()
    paddle.enable_static()
    rows = []
    for layers in arguments.layers:
        rows.append(beside_paddle(layers, arguments.repeats))
        if not arguments.json:
            row = rows[-1]
            print(
                f"{row['operators']} operators: Paddle {1e3 * row['paddle_s']:.1f} ms, autoplan "
                f"{1e3 * row['autoplan_s']:.1f} ms ({row['times_faster']:.0f} times faster), "
                f"without reading {1e3 * row['estimate_s']:.1f} ms "
                f"({row['estimate_times_faster']:.0f} times)",
                flush=True,
            )
    per_operator_s = growth(arguments.repeats)
    if arguments.json:
        print(json.dumps({"beside_paddle": rows, "seconds_per_operator": per_operator_s}))
        return
    for operators, seconds in per_operator_s.items():
        print(f"{operators} operators: {1e6 * seconds:.1f} us per operator")


if __name__ == "__main__":
    main()
