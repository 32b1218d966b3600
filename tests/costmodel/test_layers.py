from __future__ import annotations

import math
from collections import Counter

import pytest

from autoplan.costmodel import Roofline, read_program
from autoplan.costmodel.backward_map import forward_op_of
from autoplan.costmodel.costs import cost_ops
from autoplan.costmodel.layers import workload_of_program
from autoplan.costmodel.shapes import resolved
from autoplan.errors import InputError
from autoplan.workload import Provenance

RATES = Roofline(flop_per_s=25e9, bytes_per_s=10e9, call_overhead_s=5e-6)
NAMES = ["mlp", "gpt", "bert", "resnet", "lstm"]


def workload(graph, sizes=(2, 4, 8), **options):
    return workload_of_program(
        graph, RATES, sizes, name="net", provenance=Provenance(source="test"), **options
    )


@pytest.mark.parametrize("name", NAMES)
def test_layers_hold_all_seconds_and_all_parameters_once(training_program, name):
    graph = read_program(training_program(name)[0])
    made = workload(graph)
    sized = resolved(graph, 8)
    costed = zip(sized.ops, cost_ops(sized, RATES), strict=True)
    total = math.fsum(cost.seconds for op, cost in costed if op.role != "optimizer")
    layers = made.layers
    held = math.fsum(x.forward.seconds[-1] + x.backward.seconds[-1] for x in layers)
    assert held == pytest.approx(total, rel=1e-9)
    trained = sum(tensor.elements for tensor in sized.tensors if tensor.parameter)
    assert sum(layer.gradient_elements for layer in layers) == trained


def test_a_transformer_is_cut_between_the_halves_of_its_blocks(training_program):
    blocks, width = 3, 64
    made = workload(read_program(training_program("gpt", blocks=blocks, width=width)[0]))
    per_state = 64 * width * 4
    inside = made.cut_bytes_per_sample[1:-1]
    assert inside.count(per_state) >= 2 * blocks
    alike = Counter(round(layer.forward.seconds[-1], 9) for layer in made.layers)
    # The last half holds the final norm too.
    assert [count for _, count in alike.most_common(2)] == [blocks, blocks - 1]


def test_the_backward_of_a_resnets_layer_takes_about_twice_its_forward(training_program):
    made = workload(read_program(training_program("resnet")[0]))
    assert len(made.layers) >= 8
    for layer in made.layers[1:-1]:
        assert 1.2 < layer.backward.seconds[-1] / layer.forward.seconds[-1] < 3.5


def test_every_backward_operator_belongs_to_the_forward_one_it_differentiates(training_program):
    graph = read_program(training_program("gpt")[0])
    for op, owner in zip(graph.ops, forward_op_of(graph), strict=True):
        if op.role == "optimizer":
            assert owner is None
        elif op.type.endswith("_grad"):
            assert graph.ops[owner].type == op.type.removesuffix("_grad")


def test_a_fixed_batch_gives_one_point_and_refuses_another(training_program):
    graph = read_program(training_program("mlp", batch=4)[0])
    assert workload(graph, (4,)).layers[0].forward.samples == (4.0,)


def test_stash_of_the_layers_is_at_least_that_of_the_program(training_program):
    from autoplan.costmodel import estimate_memory

    graph = read_program(training_program("resnet")[0])
    made = workload(graph)
    stash = 8 * math.fsum(layer.stash_bytes_per_sample for layer in made.layers)
    assert stash == pytest.approx(estimate_memory(resolved(graph, 8)).stash_bytes, rel=0.2)


def test_more_crossing_tensors_allow_more_cuts(training_program):
    graph = read_program(training_program("resnet")[0])
    assert len(workload(graph, crossing=2).layers) > len(workload(graph).layers)


def test_batch_sizes_out_of_order_are_refused(training_program):
    graph = read_program(training_program("mlp")[0])
    with pytest.raises(InputError, match="batch_sizes"):
        workload(graph, (8, 4))
