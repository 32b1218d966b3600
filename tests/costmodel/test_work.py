from __future__ import annotations

import pytest

from autoplan.costmodel.graph import Op, OpGraph, TensorInfo
from autoplan.costmodel.paddle_program import read_program
from autoplan.costmodel.shapes import resolved
from autoplan.costmodel.work import work_of


def work(kind, inputs, outputs, **attributes):
    """Work of an operator whose operands and results are (slot, shape)."""
    shapes = [*inputs, *outputs]
    tensors = tuple(
        TensorInfo(name=slot, shape=tuple(shape), dtype="float32") for slot, shape in shapes
    )
    op = Op(
        type=kind,
        inputs=tuple(range(len(inputs))),
        outputs=tuple(range(len(inputs), len(shapes))),
        input_slots=tuple(slot for slot, _ in inputs),
        output_slots=tuple(slot for slot, _ in outputs),
        attributes=attributes,
    )
    return work_of(op, OpGraph(tensors=tensors, ops=(op,)).tensors)


def narrow(side):
    return 1 + 12 / side


def test_a_product_is_two_operations_per_multiply_and_add():
    found = work("matmul", [("x", (30, 40)), ("y", (40, 50))], [("out", (30, 50))])
    assert found.matrix_flops == pytest.approx(2 * 30 * 40 * 50 * narrow(30))
    assert found.bytes == 4 * (30 * 40 + 40 * 50 + 30 * 50)


def test_transposed_factors_leave_the_operations_as_they_are():
    plain = work("matmul", [("x", (30, 40)), ("y", (40, 50))], [("out", (30, 50))])
    turned = work(
        "matmul",
        [("x", (40, 30)), ("y", (50, 40))],
        [("out", (30, 50))],
        transpose_x=True,
        transpose_y=True,
    )
    assert turned.matrix_flops == plain.matrix_flops


def test_a_batched_product_counts_every_sample_and_is_as_narrow_as_one_of_them():
    found = work("matmul", [("x", (8, 2, 6, 5)), ("y", (8, 2, 5, 7))], [("out", (8, 2, 6, 7))])
    assert found.matrix_flops == pytest.approx(2 * 8 * 2 * 6 * 5 * 7 * narrow(5))


def test_the_backward_of_a_product_is_a_product_for_each_wanted_gradient():
    given = [("x", (30, 40)), ("y", (40, 50)), ("out_grad", (30, 50))]
    once = work("matmul_grad", given, [("y_grad", (40, 50))])
    twice = work("matmul_grad", given, [("x_grad", (30, 40)), ("y_grad", (40, 50))])
    assert twice.matrix_flops == 2 * once.matrix_flops > 0


def test_a_convolution_counts_its_window_and_channels():
    found = work(
        "conv2d", [("input", (2, 3, 8, 8)), ("filter", (16, 3, 3, 3))], [("out", (2, 16, 6, 6))]
    )
    assert found.matrix_flops == pytest.approx(2 * (2 * 16 * 6 * 6) * (3 * 3 * 3) * narrow(16))


def test_an_embedding_reads_the_rows_it_takes_not_the_table():
    found = work("embedding", [("x", (4,)), ("weight", (10_000, 8))], [("out", (4, 8))])
    assert found.bytes == 2 * 4 * 8 * 4


def test_an_update_reads_and_writes_its_state():
    state = [("param", (10,)), ("grad", (10,)), ("moment1", (10,)), ("moment2", (10,))]
    results = [("param_out", (10,)), ("moment1_out", (10,)), ("moment2_out", (10,))]
    found = work("adam", state, results)
    assert found.bytes == 7 * 40
    assert found.vector_flops > 0


def test_names_and_packing_do_no_work_and_unknown_operators_have_none():
    assert work("fetch", [("x", (4,))], []).bytes == 0
    assert work("frobnicate", [("x", (4,))], [("out", (4,))]) is None


@pytest.mark.parametrize("name", ["mlp", "gpt", "bert", "resnet", "lstm"])
def test_every_operator_of_the_training_programs_has_a_formula(training_program, name):
    graph = resolved(read_program(training_program(name)[0]), 4)
    unknown = {op.type for op in graph.ops if work_of(op, graph.tensors) is None}
    assert unknown == set()


def test_a_transformers_products_add_up_to_six_per_parameter_and_token(training_program):
    graph = resolved(read_program(training_program("gpt", blocks=2, width=256)[0]), 4)
    tokens = 4 * 64
    matrices = sum(
        tensor.elements for tensor in graph.tensors if tensor.parameter and len(tensor.shape) == 2
    )
    matrices -= (1000 + 64) * 256  # the embeddings are looked up, not multiplied
    attention = 2 * 12 * tokens * 64 * 256  # queries by keys, weights by values, and backward
    found = sum(work_of(op, graph.tensors).matrix_flops for op in graph.ops)
    assert found / (6 * matrices * tokens + attention) == pytest.approx(1.0, abs=0.12)
