from __future__ import annotations

import pytest

from autoplan.cluster import Device
from autoplan.costmodel.costs import (
    Given,
    Measured,
    Roofline,
    cost_ops,
    costs_for,
    require_known,
    unknown_types,
)
from autoplan.costmodel.graph import Op, OpGraph, TensorInfo
from autoplan.costmodel.measurements import Measurement, Measurements
from autoplan.costmodel.signature import signature
from autoplan.errors import InputError

RATES = Roofline(flop_per_s=1e3, bytes_per_s=1e2, call_overhead_s=0.25, vector_share=0.5)


def op(kind="relu", **fields):
    fields = {"inputs": (0,), "outputs": (1,), "input_slots": ("x",), **fields}
    return Op(type=kind, output_slots=("out",), **fields)


def graph(*ops):
    tensors = tuple(TensorInfo(name=n, shape=(50,), dtype="float32") for n in "xy")
    return OpGraph(tensors=tensors, ops=ops)


def measured(*ops, seconds=7.0):
    given = graph(*ops)
    keys = {signature(each, given.tensors): Measurement(seconds=seconds) for each in ops}
    return Measurements(device="d", framework="f", ops=keys)


def of(given, costs):
    return [(cost.seconds, cost.source) for cost in cost_ops(given, costs)]


def test_the_roofline_takes_the_longer_of_arithmetic_and_memory_and_the_overhead():
    # 50 elements: 400 bytes at 100 bytes/s are 4 s; 50 operations at 500 per second 0.1 s.
    assert of(graph(op()), RATES) == [(4.25, "analytic")]
    slow = Roofline(flop_per_s=10, bytes_per_s=1e9, vector_share=0.5)
    assert of(graph(op()), slow) == [(10.0, "analytic")]


def test_modes_take_measurements_formulas_or_the_first_that_knows():
    known, other = op(), op("tanh")
    base = measured(known)
    both = graph(known, other)
    benchmarking = of(both, costs_for("benchmarking", base, None))
    assert benchmarking == [(7.0, "measured"), (0.0, "unknown")]
    assert [source for _, source in of(both, costs_for("analysis", None, RATES))] == [
        "analytic",
        "analytic",
    ]
    assert [source for _, source in of(both, costs_for("mixed", base, RATES))] == [
        "measured",
        "analytic",
    ]


@pytest.mark.parametrize(
    ("mode", "allowed"),
    [("benchmarking", "measurements"), ("analysis", "a roofline"), ("guessing", "benchmarking or")],
)
def test_a_mode_without_what_it_needs_is_refused(mode, allowed):
    with pytest.raises(InputError, match=allowed):
        costs_for(mode, None, None)


def test_unknown_operators_are_counted_by_name_and_refused_when_strict():
    given = graph(op("odd"), op(), op("odd"), op("odder"))
    costed = cost_ops(given, RATES)
    unknown = unknown_types(given, costed, RATES)
    assert unknown == ("odd x2", "odder x1")
    with pytest.raises(InputError, match="no cost of odd x2, odder x1"):
        require_known(unknown)
    require_known(())


def test_a_loop_costs_its_body_times_its_trips_and_a_condition_its_longest_branch():
    body, long = (op(),), (op(), op())
    loop = Op(type="while", blocks=(body,), trips=3)
    branch = Op(type="if", blocks=(body, long))
    assert of(graph(loop, branch), RATES) == [(3 * 4.25, "blocks"), (2 * 4.25, "blocks")]


def test_what_nothing_knows_inside_a_loop_is_named_too():
    given = graph(Op(type="while", blocks=((op(), op("odd")),), trips=2))
    assert unknown_types(given, cost_ops(given, RATES), RATES) == ("odd x1",)


def test_given_seconds_go_by_operator_number():
    costs = Given(seconds_by_id={4: 2.0}, call_overhead_s=0.5)
    assert of(graph(op(id=4), op(id=5)), costs) == [(2.5, "given"), (0.0, "unknown")]
    with pytest.raises(InputError, match="cost of op 4"):
        cost_ops(graph(op(id=4)), Given(seconds_by_id={4: float("nan")}))


def test_only_what_runs_nothing_is_free():
    assert of(graph(op("c_sync_calc_stream")), Measured(measurements=measured())) == [(0.0, "free")]


def test_a_catalog_device_gives_rates_and_one_without_peaks_is_refused():
    fast = Device(
        name="d", memory_bytes=1, peak_flop_per_s=100.0, memory_bandwidth_bytes_per_s=10.0
    )
    rates = Roofline.of_device(fast, flop_efficiency=0.5, memory_efficiency=0.5)
    assert (rates.flop_per_s, rates.bytes_per_s) == (50.0, 5.0)
    with pytest.raises(InputError, match="without peaks"):
        Roofline.of_device(Device(name="d", memory_bytes=1))
