from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autoplan.costmodel.graph import Op, OpGraph, TensorInfo
from autoplan.costmodel.memory import estimate_memory
from autoplan.costmodel.paddle_program import read_program
from autoplan.costmodel.shapes import resolved

KIB = 1024
MEASURED_PEAK = Path(__file__).with_name("measured_peak.py")


def graph(ops, count, *, dtype="float32", persistable=(), parameters=(), feeds=(0,)):
    """Tensors of one KiB each."""
    size = KIB // {"float32": 4, "float16": 2}[dtype]
    tensors = tuple(
        TensorInfo(
            name=f"t{i}",
            shape=(size,),
            dtype=dtype,
            persistable=i in persistable,
            parameter=i in parameters,
        )
        for i in range(count)
    )
    return OpGraph(tensors=tensors, ops=tuple(ops), feeds=feeds)


def op(inputs, outputs, **fields):
    return Op(type=fields.pop("type", "relu"), inputs=inputs, outputs=outputs, **fields)


def peak(*arguments, **options):
    return estimate_memory(graph(*arguments, **options)).peak_bytes / KIB


CHAIN = [op((i,), (i + 1,)) for i in range(10)]


def test_a_chain_holds_its_input_and_two_links_however_long_it_is():
    assert peak(CHAIN, 11) == 3


def test_an_operator_that_works_in_place_adds_nothing():
    in_place = [op((i,), (i + 1,), reuses=((0, 0),)) for i in range(10)]
    assert peak(in_place, 11) == 2  # the fed tensor is not overwritten


def test_memory_is_not_taken_over_from_what_is_read_later():
    ops = [op((0,), (1,)), op((1,), (2,), reuses=((0, 0),)), op((1, 2), (3,))]
    assert peak(ops, 4) == 4


def test_a_read_of_the_shape_alone_keeps_nothing_alive():
    kept = [*CHAIN[:3], op((1, 3), (4,))]
    free = [*CHAIN[:3], op((1, 3), (4,), shape_only=(0,))]
    assert (peak(kept, 5), peak(free, 5)) == (4, 3)


def test_persistable_tensors_and_feeds_count_throughout():
    found = estimate_memory(
        graph(
            [op((0, 1), (2,)), op((1, 2, 3), (1, 3), type="sgd", role="optimizer")],
            4,
            persistable=(1, 3),
            parameters=(1,),
        )
    )
    assert found.parameter_bytes == found.state_bytes == found.feed_bytes == KIB
    assert found.peak_bytes == 4 * KIB


def test_bytes_are_those_of_the_number_format():
    found = estimate_memory(graph(CHAIN, 11, dtype="float16"))
    assert found.peak_bytes == 3 * KIB
    assert found.bytes_by_dtype == {"float16": 3 * KIB}


def test_a_result_that_nobody_reads_is_freed_after_its_operator():
    assert peak([op((0,), (1,)), op((0,), (2,))], 3) == 2


def test_gradients_are_what_the_update_reads_as_such():
    update = Op(type="sgd", inputs=(0, 1), input_slots=("param", "grad"), role="optimizer")
    found = estimate_memory(graph([op((), (1,)), update], 2, persistable=(0,), parameters=(0,)))
    assert found.gradient_bytes == KIB
    assert found.static_bytes == 2 * KIB


def test_the_inside_of_a_loop_counts_while_it_runs():
    body = tuple(op((i,), (i + 1,)) for i in range(1, 4))
    loop = Op(type="while", inputs=(1,), outputs=(5,), blocks=(body,), trips=9)
    assert peak([op((0,), (1,)), loop], 6) == 5  # feed, entry, result, and two inside


def test_what_forward_leaves_for_backward_is_the_stash():
    ops = [op((0,), (1,)), op((1,), (2,)), op((2,), (3,)), op((1, 3), (4,), role="backward")]
    assert estimate_memory(graph(ops, 5)).stash_bytes == 2 * KIB


@pytest.mark.timeout(1200)  # it lets all other work on the machine go first
@pytest.mark.parametrize(
    ("name", "batch", "sizes"),
    [
        ("mlp", 16, {}),
        ("gpt", 2, {"blocks": 2}),
        ("resnet", 2, {"pixels": 32}),
        ("lstm", 4, {"width": 64}),
    ],
)
def test_the_peak_is_the_allocators(training_program, name, batch, sizes):
    program, _ = training_program(name, **sizes)
    estimated = estimate_memory(resolved(read_program(program), batch)).peak_bytes
    # What other programs left behind in this process would be counted with the peak.
    command = [sys.executable, str(MEASURED_PEAK), name, str(batch), json.dumps(sizes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert estimated == pytest.approx(json.loads(done.stdout), rel=0.02)
