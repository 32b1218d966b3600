from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from autoplan.costmodel import Measured, read_program
from autoplan.costmodel.costs import cost_ops, unknown_types
from autoplan.errors import InputError
from autoplan.execute.op_timing import measure_program

paddle = pytest.importorskip("paddle")

FEED = {"x": np.ones([4, 16], "float32"), "label": np.zeros([4, 1], "int64")}


def trained(width=16):
    """A classifier with an optional large layer, in static mode."""
    paddle.enable_static()
    try:
        program, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(program, startup):
            x = paddle.static.data("x", [4, 16], "float32")
            label = paddle.static.data("label", [4, 1], "int64")
            hidden = paddle.nn.Linear(width, 3)(paddle.nn.Linear(16, width)(x))
            loss = paddle.nn.functional.cross_entropy(hidden, label)
            paddle.optimizer.Adam(1e-3).minimize(loss)
    finally:
        paddle.disable_static()
    return program, startup


@pytest.fixture(scope="module")
def measured():
    program, startup = trained()
    return program, startup, measure_program(program, startup, FEED, repeats=5)


def test_every_operator_of_the_program_gets_a_cost(measured):
    program, _, found = measured
    graph = read_program(program)
    costs = Measured(measurements=found)
    costed = cost_ops(graph, costs)
    assert unknown_types(graph, costed, costs) == ()
    assert all(value.seconds > 0 and value.samples == 5 for value in found.ops.values())
    assert found.step_overhead_s > 0
    assert found.threads == 1


def test_known_operators_are_not_measured_again(measured):
    program, startup, found = measured
    lines = []
    again = measure_program(program, startup, FEED, known=found, repeats=5, progress=lines.append)
    assert again.ops == found.ops
    assert lines[0] == f"0 operators to measure, {len(found.ops)} known"


def test_a_larger_product_takes_longer(measured):
    program, startup = trained(width=65536)
    large = measure_program(program, startup, FEED, repeats=5)

    def longest(found):
        return max(v.seconds for key, v in found.ops.items() if key.startswith("matmul_grad"))

    assert longest(large) > 1.3 * longest(measured[2])


def test_measurements_of_another_device_are_refused(measured):
    program, startup, found = measured
    other = dataclasses.replace(found, device="another")
    with pytest.raises(InputError, match="device"):
        measure_program(program, startup, FEED, known=other, repeats=5)


def test_a_program_that_does_not_run_says_why(measured):
    program, startup, _ = measured
    with pytest.raises(InputError, match="runs with this feed"):
        measure_program(program, startup, {"x": FEED["x"]}, repeats=5)
    with pytest.raises(InputError, match="repeats"):
        measure_program(program, startup, FEED, repeats=2)
    assert paddle.in_dynamic_mode()
