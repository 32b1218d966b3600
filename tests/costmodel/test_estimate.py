from __future__ import annotations

import dataclasses

import pytest
from builders import cluster, link

from autoplan.costmodel import CostSources, Given, Op, OpGraph, Roofline, TensorInfo, estimate
from autoplan.costmodel.graph import Collective
from autoplan.costmodel.measurements import Measurement, Measurements
from autoplan.costmodel.signature import signature
from autoplan.errors import InputError
from autoplan.pipeline import simulate

FORWARD, BACKWARD, UPDATE = 0, 1, 2


def op(kind, role, number, **fields):
    fields = {"inputs": (0,), "outputs": (1,), **fields}
    return Op(type=kind, role=role, id=number, **fields)


def stage(*, sends=()):
    """A forward, a backward and an update, and sends of 100 bytes to (peer, role)."""
    tensors = (
        TensorInfo(name="x", shape=(-1, 25), dtype="float32"),
        TensorInfo(name="y", shape=(-1, 25), dtype="float32"),
        TensorInfo(name="w", shape=(10,), dtype="float32", persistable=True, parameter=True),
    )
    exchanges = {
        role: tuple(
            op(
                "send_v2",
                role,
                9,
                inputs=(1,),
                outputs=(),
                collective=Collective(kind="send", peer=peer),
            )
            for peer, sent in sends
            if sent == role
        )
        for role in ("forward", "backward")
    }
    ops = (
        op("relu", "forward", FORWARD),
        *exchanges["forward"],
        op("relu_grad", "backward", BACKWARD),
        *exchanges["backward"],
        op("sgd", "optimizer", UPDATE, inputs=(2,), outputs=(2,)),
    )
    return OpGraph(tensors=tensors, ops=ops, feeds=(0,))


SECONDS = Given(seconds_by_id={FORWARD: 1.0, BACKWARD: 2.0, UPDATE: 0.5})


def predicted(graphs, **options):
    options = {"costs": SECONDS, "batch_size": 1, "cluster": cluster(devices_per_node=8), **options}
    return estimate(graphs, options.pop("cluster"), **options)


def test_phases_of_a_rank_are_told_apart_and_add_up_to_the_step():
    found = predicted(stage())
    rank = found.ranks[0]
    assert (rank.forward_s, rank.backward_s, rank.optimizer_s) == (1.0, 2.0, 0.5)
    assert found.step_s == 3.5
    assert rank.seconds_by_source == {"given": 3.5}


def test_microbatches_repeat_forward_and_backward_and_update_once():
    assert predicted(stage(), microbatches=4).step_s == 4 * 3.0 + 0.5


def test_a_pipeline_is_the_simulators_with_transfers_taken_out_of_the_ranks():
    graphs = [
        stage(sends=[(1, "forward")]),
        stage(sends=[(2, "forward"), (0, "backward")]),
        stage(sends=[(1, "backward")]),
    ]
    where = cluster(devices_per_node=8, intra_node=link(0.05, 1000.0))
    found = predicted(graphs, cluster=where, stage_ranks=[[0], [1], [2]], microbatches=5)
    transfer_s = 0.05 + 100 / 1000
    assert found.send_forward_s == pytest.approx((transfer_s, transfer_s))
    assert found.send_backward_s == pytest.approx((transfer_s, transfer_s))
    assert [rank.forward_s for rank in found.ranks] == [1.0, 1.0, 1.0]
    sends = [transfer_s] * 2
    expected = simulate([1.0] * 3, [2.0] * 3, 5, "1f1b", sends, sends, [0.5] * 3)
    assert found.step_s == pytest.approx(expected.step_s, rel=1e-12)


def test_the_slowest_rank_of_a_stage_decides():
    slow = dataclasses.replace(stage(), ops=(*stage().ops[:1] * 3, *stage().ops[1:]))
    assert predicted([stage(), slow], stage_ranks=[[0, 1]]).step_s == 3.0 + 2.0 + 0.5


def test_an_exchange_hides_behind_what_does_not_wait_for_it():
    exchange = op(
        "all_reduce",
        "backward",
        7,
        inputs=(2,),
        outputs=(2,),
        collective=Collective(kind="all_reduce"),
    )
    one = stage()
    beside = dataclasses.replace(one, ops=(one.ops[0], exchange, *one.ops[1:]))
    where = cluster(devices_per_node=8, intra_node=link(0.0, 40.0), all_reduce="ring")
    # 40 bytes on two ranks at 40 bytes/s: one second, within the two of backward.
    found = predicted([beside] * 2, cluster=where)
    assert found.step_s == 3.5
    slower = cluster(devices_per_node=8, intra_node=link(0.0, 10.0), all_reduce="ring")
    assert predicted([beside] * 2, cluster=slower).step_s == pytest.approx(4.0 + 0.5)


def test_two_compute_streams_shorten_what_is_independent():
    one = stage()
    twice = dataclasses.replace(
        one, ops=(one.ops[0], op("tanh", "forward", FORWARD, outputs=(2,)), *one.ops[1:])
    )
    assert predicted(twice).ranks[0].forward_s == 2.0
    assert predicted(twice, compute_streams=2).ranks[0].forward_s == 1.0


def test_earlier_stages_hold_more_microbatches():
    graphs = [stage(), stage()]
    found = predicted(graphs, stage_ranks=[[0], [1]], microbatches=4)
    stash = found.ranks[0].memory.stash_bytes
    assert stash == 100
    assert found.peak_bytes[0] - found.peak_bytes[1] == stash


def test_modes_mix_measurements_and_the_devices_peaks():
    one = stage()
    sized = dataclasses.replace(
        one,
        tensors=tuple(dataclasses.replace(t, shape=(3, 25)) for t in one.tensors[:2])
        + one.tensors[2:],
    )
    known = Measurements(
        device="d",
        framework="f",
        step_overhead_s=0.25,
        ops={signature(sized.ops[0], sized.tensors): Measurement(seconds=2.0)},
    )
    rates = Roofline(flop_per_s=1e9, bytes_per_s=1e9)
    sources = CostSources(measurements=known, roofline=rates)
    found = predicted(one, costs=sources, mode="mixed", batch_size=3)
    assert [cost.source for cost in found.ranks[0].op_costs] == ["measured", "analytic", "analytic"]
    assert set(found.ranks[0].seconds_by_source) == {"measured", "analytic"}
    assert found.ranks[0].overhead_s == 0.25
    assert found.step_s > 2.25
    only = predicted(one, costs=sources, mode="benchmarking", batch_size=3)
    assert only.unknown == ("relu_grad x1", "sgd x1")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"stage_ranks": [[0], [0]]}, "stage_ranks"),
        ({"stage_ranks": [[0, 1], []]}, "stage_ranks"),
        ({"cluster": cluster(devices_per_node=1)}, "programs"),
        ({"costs": Given(seconds_by_id={}), "strict": True}, "no cost of"),
        ({"costs": CostSources(), "mode": "analysis"}, "peak"),
        ({"costs": CostSources(), "mode": "benchmarking"}, "measurements"),
        ({"microbatches": 0}, "microbatches"),
    ],
)
def test_what_does_not_fit_together_is_refused(options, field):
    with pytest.raises(InputError, match=field):
        predicted([stage(), stage()], **options)


def test_paddle_programs_are_read_with_the_batch_and_the_loops_stated(training_program):
    pytest.importorskip("paddle")
    program = training_program("mlp")[0]
    sources = CostSources(roofline=Roofline(flop_per_s=25e9, bytes_per_s=10e9))
    small, large = (
        predicted(program, costs=sources, mode="analysis", batch_size=batch) for batch in (64, 1024)
    )
    assert small.unknown == ()
    assert small.static_bytes == large.static_bytes
    assert 4 < large.ranks[0].forward_s / small.ranks[0].forward_s < 16
    assert large.peak_bytes > small.peak_bytes
