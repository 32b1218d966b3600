from __future__ import annotations

import itertools
from collections import Counter

import pytest

from autoplan.costmodel.paddle_program import read_program
from autoplan.costmodel.shapes import resolved
from autoplan.errors import InputError

NAMES = ["mlp", "gpt", "bert", "resnet", "lstm"]


@pytest.mark.parametrize("name", ["mlp", "gpt", "bert", "resnet"])
def test_an_open_program_resolves_to_the_shapes_of_one_built_for_that_batch(training_program, name):
    opened = resolved(read_program(training_program(name)[0]), 6)
    fixed = resolved(read_program(training_program(name, batch=6)[0]), 6)
    for left, right in zip(opened.ops, fixed.ops, strict=True):
        assert left.type == right.type
        for i, j in zip(left.outputs, right.outputs, strict=True):
            assert opened.tensors[i].shape == fixed.tensors[j].shape, left


@pytest.mark.parametrize("name", NAMES)
def test_roles_follow_each_other_and_every_parameter_is_updated_once(training_program, name):
    graph = read_program(training_program(name)[0])
    phases = [role for role, _ in itertools.groupby(op.role for op in graph.ops)]
    assert phases == ["forward", "backward", "optimizer"]
    assert not any(op.type.endswith("_grad") for op in graph.ops if op.role != "backward")
    updated = Counter(
        op.input("param") for op in graph.ops if op.type in {"adam", "adamw", "momentum"}
    )
    trained = {i for i, tensor in enumerate(graph.tensors) if tensor.parameter}
    assert set(updated) == trained
    assert set(updated.values()) == {1}


def test_an_update_writes_the_tensors_that_it_reads(training_program):
    graph = read_program(training_program("mlp")[0])
    update = next(op for op in graph.ops if op.type == "adam")
    assert update.output("param_out") == update.input("param")
    assert update.output("moment1_out") == update.input("moment1")


@pytest.mark.parametrize("name", ["mlp", "resnet", "lstm"])
def test_both_irs_tell_the_same_program(training_program, name):
    constants = {
        "full",
        "full_int_array",
        "full_like",
        "coalesce_tensor",
        "stack",
        "full_with_tensor",
    }
    counts = []
    for old_ir in (False, True):
        graph = resolved(read_program(training_program(name, old_ir=old_ir)[0]), 4)
        work = Counter(
            (op.role, op.type, max((graph.tensors[i].elements for i in op.outputs), default=0))
            for op in graph.ops
            if op.type not in constants
        )
        counts.append(work)
    assert counts[0] == counts[1]


def build(paddle, forward, old_ir=False):
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        forward()
    return program


def looped(paddle):
    def forward():
        x = paddle.static.data("x", [-1, 8], "float32")
        i, n = paddle.full([1], 0, "int64"), paddle.full([1], 5, "int64")
        i, x = paddle.static.nn.while_loop(
            lambda i, x: i < n, lambda i, x: [i + 1, paddle.nn.functional.relu(x)], [i, x]
        )
        paddle.static.nn.cond(n < i, lambda: x * 2, lambda: paddle.matmul(x, x, False, True))

    return forward


def test_loops_and_branches_are_read_with_their_bodies(static_paddle):
    graph = read_program(build(static_paddle, looped(static_paddle)), loop_trips=[5])
    (loop,) = [op for op in graph.ops if op.type == "while"]
    (branch,) = [op for op in graph.ops if op.type == "if"]
    assert loop.trips == 5
    assert "relu" in [op.type for op in loop.blocks[0]]
    assert [
        {op.type for op in block} >= {kind}
        for block, kind in zip(branch.blocks, ("scale", "matmul"), strict=True)
    ] == [True, True]


def test_loops_and_branches_of_the_old_ir_are_read_with_their_bodies(static_paddle):
    paddle = static_paddle
    with paddle.pir_utils.OldIrGuard():
        program = paddle.static.Program()
        block = program.global_block()

        def variable(name, dtype="float32"):
            return block.create_var(name=name, shape=[-1, 4], dtype=dtype)

        x, y, flag = variable("x"), variable("y"), variable("flag", "bool")
        for kind in ("while", "conditional_block"):
            body = program._create_block()
            body.append_op(type="relu", inputs={"X": x}, outputs={"Out": y})
            program._rollback()
            slots = {"while": ("Condition", "X", "StepScopes")}.get(
                kind, ("Cond", "Input", "Scope")
            )
            block.append_op(
                type=kind,
                inputs={slots[0]: flag, slots[1]: x},
                outputs={"Out": y, slots[2]: variable(f"scope of {kind}")},
                attrs={"sub_block": body, "is_test": False},
            )
        graph = read_program(program, loop_trips=[5])
    loop, branch = graph.ops
    assert (loop.type, loop.trips, branch.type, branch.trips) == ("while", 5, "if", None)
    assert [op.type for each in (loop, branch) for op in each.blocks[0]] == ["relu", "relu"]


def test_a_loop_of_unknown_length_is_refused_unless_a_default_is_stated(static_paddle):
    program = build(static_paddle, looped(static_paddle))
    with pytest.raises(InputError, match="loop_trips or default_trips"):
        read_program(program)
    graph = read_program(program, default_trips=7)
    assert next(op for op in graph.ops if op.type == "while").trips == 7


def test_collectives_of_the_old_ir_have_ring_and_peer(static_paddle):
    paddle = static_paddle
    with paddle.pir_utils.OldIrGuard():
        program = paddle.static.Program()
        block = program.global_block()
        x = block.create_var(name="x", shape=[4, 2], dtype="float32")
        block.append_op(
            type="all_reduce",
            inputs={"x": x},
            outputs={"out": x},
            attrs={"ring_id": 3, "reduce_type": 0},
        )
        block.append_op(
            type="send_v2", inputs={"X": x}, attrs={"ring_id": 1, "peer": 2, "op_role": 1}
        )
        graph = read_program(program)
        fast = read_program(program, costs_only=True)
    reduce, send = (op.collective for op in graph.ops)
    assert (reduce.kind, reduce.ring) == ("all_reduce", 3)
    assert (send.kind, send.ring, send.peer) == ("send", 1, 2)
    assert [op.collective for op in fast.ops] == [reduce, send]
    assert graph.ops[1].role == "backward"


def test_what_is_no_program_is_refused():
    pytest.importorskip("paddle")
    with pytest.raises(InputError, match=r"paddle\.static\.Program"):
        read_program("program")


@pytest.mark.parametrize("stem", ["x", "x" * 300, "größe", "x@GRAD"])
def test_variables_of_the_old_ir_keep_their_own_format_whatever_their_names(static_paddle, stem):
    formats = [([4, 2], "float32", False), ([2, 4], "float32", True), ([4, 2], "int64", False)]
    names = [f"{stem}{number}" for number in range(len(formats))]
    with static_paddle.pir_utils.OldIrGuard():
        program = static_paddle.static.Program()
        for name, (shape, dtype, lasting) in zip(names, formats, strict=True):
            program.global_block().create_var(
                name=name, shape=shape, dtype=dtype, persistable=lasting
            )
        tensors = read_program(program).tensors
    found = [(list(each.shape), each.dtype, each.persistable) for each in tensors]
    assert [each.name for each in tensors] == names
    assert found == formats
