from __future__ import annotations

import pytest

from autoplan.costmodel.graph import Op, OpGraph, TensorInfo
from autoplan.costmodel.shapes import has_open_batch, resolved
from autoplan.errors import InputError


def graph(shapes, ops, feeds=(0,), dtypes=None):
    tensors = tuple(
        TensorInfo(name=f"t{i}", shape=tuple(shape), dtype=(dtypes or {}).get(i, "float32"))
        for i, shape in enumerate(shapes)
    )
    return OpGraph(tensors=tensors, ops=tuple(ops), feeds=feeds)


def op(kind, inputs, outputs, slots=(), results=("out",), **attributes):
    return Op(
        type=kind,
        inputs=inputs,
        outputs=outputs,
        input_slots=slots,
        output_slots=results,
        attributes=attributes,
    )


def shape_of_last(given, batch=8):
    return resolved(given, batch).tensors[-1].shape


def test_a_fed_dimension_is_the_batch():
    assert shape_of_last(graph([[-1, 3]], [])) == (8, 3)


def test_a_reshape_keeps_elements_so_that_its_open_dimension_is_batch_times_tokens():
    assert shape_of_last(graph([[-1, 16, 4], [-1, 4]], [op("reshape", (0,), (1,))])) == (128, 4)


def test_an_elementwise_result_follows_the_operand_of_its_own_shape():
    shapes = [[-1, 16, 4], [-1, 4], [4], [-1, 4]]
    ops = [op("reshape", (0,), (1,)), op("add", (1, 2), (3,), ("x", "y"))]
    assert shape_of_last(graph(shapes, ops)) == (128, 4)


@pytest.mark.parametrize(
    ("left", "right", "result", "flags", "expected"),
    [
        ([-1, 4], [4, 5], [-1, 5], {}, (8, 5)),
        ([-1, 4], [-1, 4], [-1, -1], {"transpose_y": True}, (8, 8)),
        ([4, -1], [4, 5], [-1, 5], {"transpose_x": True}, (8, 5)),
        ([-1, 2, 6, 4], [-1, 2, 4, 6], [-1, 2, 6, 6], {}, (8, 2, 6, 6)),
    ],
)
def test_a_product_takes_rows_and_columns_from_its_factors(left, right, result, flags, expected):
    given = graph(
        [left, right, result],
        [op("matmul", (0, 1), (2,), ("x", "y"), **flags)],
        feeds=(0, 1),
    )
    assert shape_of_last(given) == expected


def test_a_transpose_permutes():
    given = graph([[-1, 3, 5], [3, -1, 5]], [op("transpose", (0,), (1,), ("x",), perm=(1, 0, 2))])
    assert shape_of_last(given) == (3, 8, 5)


def test_a_gradient_has_the_shape_of_what_it_is_of():
    shapes = [[-1, 16], [-1], [-1, 16]]
    ops = [
        op("reshape", (0,), (1,), ("x",)),
        op("odd_grad", (0, 1), (2,), ("x", "out_grad"), ("x_grad",)),
    ]
    assert shape_of_last(graph(shapes, ops)) == (8, 16)


def test_shapes_that_the_program_computes_are_followed():
    ints = {1: "int64", 2: "int64", 3: "int64", 4: "int64", 5: "int64", 6: "int64"}
    shapes = [[-1, 7], [2], [1], [1], [], [], [2], [-1, 3]]
    ops = [
        op("shape", (0,), (1,), ("input",)),
        op("full_int_array", (), (2,), value=(0,)),
        op("full_int_array", (), (3,), value=(1,)),
        op("slice", (1, 2, 3), (4,), ("input", "starts", "ends")),
        op("full", (), (5,), shape=(), value=3.0),
        op("stack", (4, 5), (6,), ("x", "x")),
        op("full_with_tensor", (6,), (7,), ("shape",)),
    ]
    assert shape_of_last(graph(shapes, ops, dtypes=ints)) == (8, 3)


def test_results_of_branches_and_loops_take_the_shape_made_inside():
    body = (op("relu", (0,), (1,), ("x",)),)
    given = graph([[-1, 3], [-1, 3], [-1, 3]], [Op(type="if", outputs=(2,), blocks=(body, body))])
    assert shape_of_last(given) == (8, 3)


def test_a_dimension_that_follows_from_nothing_names_the_operator():
    given = graph([[4], [-1]], [op("nonzero", (0,), (1,), ("x",))], feeds=(0,))
    with pytest.raises(InputError, match=r"shape \[-1\] of t1, made by nonzero"):
        resolved(given, 8)


def test_what_a_recurrent_net_keeps_for_backward_has_a_size():
    given = graph(
        [[10, -1, 6], [0]],
        [
            op(
                "rnn",
                (0,),
                (1,),
                ("x",),
                ("reserve",),
                mode="LSTM",
                num_layers=2,
                hidden_size=5,
                is_bidirec=True,
            )
        ],
    )
    assert shape_of_last(given) == ((4 + 2) * 2 + 1, 10, 8, 10)


def test_a_batch_below_one_sample_is_refused():
    with pytest.raises(InputError, match="batch_size"):
        resolved(graph([[-1]], []), 0)


def test_open_batches_are_told_from_fixed_ones():
    assert has_open_batch(graph([[-1, 2]], []))
    assert not has_open_batch(graph([[3, 2]], []))
