from __future__ import annotations

import math
import random

import pytest

from autoplan.costmodel.dag import Dag, build_dag, dependencies, simulated_s
from autoplan.costmodel.graph import Collective, Op
from autoplan.costmodel.merging import merged, merged_s
from autoplan.errors import InputError


def dag(seconds, streams, waits_for):
    return Dag(seconds=tuple(seconds), streams=tuple(streams), waits_for=tuple(waits_for))


def random_dag(rng):
    count, streams, reach = rng.randint(1, 30), rng.randint(1, 4), rng.choice([2, 5, 30])
    waits = [
        tuple(sorted({rng.randrange(max(0, i - reach), i) for _ in range(rng.randint(0, 3))}))
        if i
        else ()
        for i in range(count)
    ]
    seconds = [rng.choice([0.0, rng.random(), float(rng.randint(1, 4))]) for _ in range(count)]
    return dag(seconds, [rng.randrange(streams) for _ in range(count)], waits)


def test_the_merged_graph_takes_as_long_as_the_run_of_the_unmerged_one():
    for seed in range(3000):
        graph = random_dag(random.Random(seed))
        assert math.isclose(merged_s(graph), simulated_s(graph), rel_tol=1e-12), seed


def test_merging_keeps_every_piece_and_all_seconds():
    for seed in range(300):
        graph = random_dag(random.Random(seed))
        segments = merged(graph)
        assert sum(segment.pieces for segment in segments) == len(graph.seconds)
        kept = math.fsum(s for segment in segments for s in segment.dag.seconds)
        assert math.isclose(kept, math.fsum(graph.seconds), rel_tol=1e-12)


def test_a_chain_on_one_stream_becomes_one_piece_of_its_sum():
    chain = dag([1.0, 2.0, 3.0], [0, 0, 0], [(), (0,), (1,)])
    (segment,) = merged(chain)
    assert segment.dag.seconds == (6.0,)


def test_branches_on_one_stream_are_summed_and_on_two_streams_the_longer_counts():
    waits = [(), (0,), (0,), (1, 2)]
    assert merged_s(dag([1.0, 4.0, 3.0, 1.0], [0, 0, 0, 0], waits)) == 9.0
    assert merged_s(dag([1.0, 4.0, 3.0, 1.0], [0, 0, 1, 0], waits)) == 6.0


def test_a_chain_does_not_grow_past_what_another_stream_waits_for():
    graph = dag([1.0, 1.0, 5.0], [0, 0, 1], [(), (0,), (0,)])
    assert merged_s(graph) == simulated_s(graph) == 6.0


def relu(inputs, outputs):
    return Op(type="relu", inputs=inputs, outputs=outputs)


def test_an_update_in_place_waits_for_readers_of_what_it_overwrites():
    ops = [relu((0,), (1,)), relu((0,), (2,)), Op(type="sgd", inputs=(0, 2), outputs=(0,))]
    assert dependencies([*ops, relu((0,), (3,))]) == ((), (), (0, 1), (2,))


def test_a_tensor_read_twice_gives_one_wait():
    ops = [relu((), (0,)), Op(type="add", inputs=(0, 0), outputs=(1,))]
    assert dependencies(ops)[1] == (0,)


def test_exchanges_run_beside_compute_unless_told_not_to():
    exchange = Op(type="all_reduce", inputs=(0,), outputs=(0,), collective=Collective(kind="send"))
    held = Op(
        type="all_reduce",
        inputs=(0,),
        outputs=(0,),
        collective=Collective(kind="send"),
        attributes={"use_calc_stream": True},
    )
    other = relu((1,), (2,))
    assert merged_s(build_dag([exchange, other], [2.0, 3.0])) == 3.0
    assert merged_s(build_dag([held, other], [2.0, 3.0])) == 5.0


def test_several_compute_streams_run_branches_side_by_side():
    ops = [relu((), (0,)), relu((0,), (1,)), relu((0,), (2,)), relu((0,), (3,))]
    seconds = [1.0, 2.0, 2.0, 2.0]
    assert [
        merged_s(build_dag(ops, seconds, compute_streams=streams)) for streams in (1, 2, 3)
    ] == [7.0, 5.0, 3.0]


def test_waits_for_later_pieces_are_refused():
    with pytest.raises(InputError, match="waits_for"):
        dag([1.0, 1.0], [0, 0], [(1,), ()])
