from __future__ import annotations

import random

import pytest

from autoplan.costmodel import estimate_cost
from autoplan.errors import InputError


@pytest.fixture
def theirs(static_paddle):
    from paddle.distributed.auto_parallel.static.cost_model import estimate_cost as paddles

    return paddles


def chain(paddle, width, layers, seed=0):
    """A training program of the old IR, and random costs of its operators."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        x = paddle.static.data("x", [4, width], "float32")
        for _ in range(layers):
            x = paddle.nn.functional.relu(paddle.nn.Linear(width, width)(x))
        paddle.optimizer.Adam(1e-3).minimize((x * x).mean())
    rng = random.Random(seed)
    return program, {op.desc.id(): rng.random() for op in program.global_block().ops}


@pytest.mark.parametrize("layers", [1, 3, 12])
def test_one_device_agrees_with_paddles_own(static_paddle, theirs, layers):
    with static_paddle.pir_utils.OldIrGuard():
        program, costs = chain(static_paddle, 8, layers)
        ours = estimate_cost([program], None, None, [costs], 4)
        expected = theirs([program], None, None, [costs], 4)
    assert ours.runtime == pytest.approx(expected.runtime, rel=1e-9)
    assert ours.unknown == ()


def test_a_pipeline_of_one_rank_per_stage_agrees_with_paddles_own(static_paddle, theirs):
    with static_paddle.pir_utils.OldIrGuard():
        made = [chain(static_paddle, 8, layers, seed=layers) for layers in (1, 4, 2)]
        programs, costs = [p for p, _ in made], [c for _, c in made]
        # Only the last stage of a pipeline has a loss, whose gradient's seed is its own; Paddle
        # counts the seed as forward, so that in the other programs it must not take time.
        for program, seconds in made[:-1]:
            seeds = (op for op in program.global_block().ops if op.attr("op_role") == 257)
            seconds.update({op.desc.id(): 0.0 for op in seeds})
        stages = [[0], [1], [2]]
        ours = estimate_cost(programs, None, stages, costs, 4)
        expected = theirs(programs, None, stages, costs, 4)
    assert ours.runtime == pytest.approx(expected.runtime, rel=1e-9)


def test_the_slowest_rank_of_a_stage_decides_by_rank_not_by_stage(static_paddle):
    with static_paddle.pir_utils.OldIrGuard():
        small, large = chain(static_paddle, 8, 1)[0], chain(static_paddle, 8, 9)[0]
        costs = {op.desc.id(): 1.0 for p in (small, large) for op in p.global_block().ops}
        both = estimate_cost([small, large], None, [[0, 1]], [costs], 4)
        alone = estimate_cost([large], None, [[0]], [costs], 4)
    assert both.runtime == alone.runtime


def test_microbatches_beyond_paddles_queue_do_not_hang(static_paddle):
    with static_paddle.pir_utils.OldIrGuard():
        program, costs = chain(static_paddle, 8, 1)
        few = estimate_cost([program] * 2, None, [[0], [1]], [costs] * 2, 4, microbatches=2000)
    assert few.runtime > 1000


def test_memory_is_in_bytes_and_counts_parameters_and_activations(static_paddle):
    with static_paddle.pir_utils.OldIrGuard():
        program, costs = chain(static_paddle, 64, 2)
        cost = estimate_cost([program], None, None, [costs], 4)
    parameters = 2 * (64 * 64 + 64) * 4
    assert cost.static_mem[0] == pytest.approx(4 * parameters, rel=0.01)
    assert cost.peak_mem[0] > cost.static_mem[0]


def test_operators_without_a_cost_are_named_and_refused_when_strict(static_paddle):
    with static_paddle.pir_utils.OldIrGuard():
        program, costs = chain(static_paddle, 8, 1)
        adam = {op.desc.id() for op in program.global_block().ops if op.type == "adam"}
        left = {number: cost for number, cost in costs.items() if number not in adam}
        assert estimate_cost([program], None, None, [left], 4).unknown == ("adam x2",)
        with pytest.raises(InputError, match="adam x2"):
            estimate_cost([program], None, None, [left], 4, strict=True)
        with pytest.raises(InputError, match="one per stage"):
            estimate_cost([program], None, [[0]], [], 4)


def test_programs_of_the_new_ir_work_too(static_paddle, training_program):
    program = training_program("mlp")[0]
    costs = {op.id(): 1.0 for op in program.global_block().ops}
    cost = estimate_cost([program], None, None, [costs], 16)
    assert cost.unknown == ()
    assert cost.runtime > 40


def test_an_open_batch_costs_the_memory_of_the_stated_one(static_paddle, training_program):
    programs = [training_program("mlp", batch=batch, old_ir=True)[0] for batch in (-1, 16)]
    costs = [
        {op.desc.id(): 1.0 for op in program.global_block().ops if op.type != "adam"}
        for program in programs
    ]
    opened, fixed = (
        estimate_cost([program], None, None, [seconds], 16)
        for program, seconds in zip(programs, costs, strict=True)
    )
    assert opened.static_mem == fixed.static_mem
    assert opened.peak_mem[0] <= fixed.peak_mem[0] <= 1.2 * opened.peak_mem[0]
