from __future__ import annotations

import numpy as np
import pytest

from autoplan.pipeline.kernels import last_backward_start_s
from autoplan.pipeline.lanes import LANES, last_backward_starts, step_s
from autoplan.pipeline.simulator import simulate


def seconds(rng, rows, candidates):
    """Round numbers that tie, zeros, and numbers that round."""
    shape = (rows, candidates)
    kinds = rng.integers(0, 4, shape)
    return np.choose(kinds, [np.zeros(shape), np.ones(shape), 2.0, rng.uniform(0, 3, shape)])


def batch(rng, stages, candidates, *, last=True, send=True):
    """Arguments that have the axes S x K."""
    arrays = {
        "forward_s_SK": seconds(rng, stages, candidates),
        "backward_s_SK": seconds(rng, stages, candidates),
    }
    if last:
        arrays["last_backward_s_SK"] = seconds(rng, stages, candidates)
    if send:
        arrays["send_s_SK"] = seconds(rng, stages - 1, candidates)
    return arrays


def one_at_a_time(arrays, microbatches, schedule, columns):
    """The same of some columns, by the kernel for one candidate."""
    stages = len(arrays["forward_s_SK"])
    found = []
    for k in columns:
        own = {name: values[:, k].tolist() for name, values in arrays.items()}
        send = own.get("send_s_SK", [0.0] * (stages - 1))
        forward, backward = own["forward_s_SK"], own["backward_s_SK"]
        last = own.get("last_backward_s_SK")
        found.append(last_backward_start_s(forward, backward, send, microbatches, schedule, last))
    return np.array(found).T


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("send", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_equals_the_kernel_for_one_candidate_to_the_last_bit(schedule, send, last):
    rng = np.random.default_rng(5)
    for _ in range(100):
        stages, microbatches = int(rng.integers(1, 11)), int(rng.integers(1, 41))
        candidates = int(rng.integers(1, 201))
        arrays = batch(rng, stages, candidates, last=last, send=send)
        found = last_backward_starts(**arrays, microbatches=microbatches, schedule=schedule)
        # Some candidates of each block, the first and the last among them.
        columns = sorted({*range(0, candidates, 37), candidates - 1})
        expected = one_at_a_time(arrays, microbatches, schedule, columns)
        assert found.shape == (stages, candidates)
        assert found[:, columns].tolist() == expected.tolist()


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("send", [False, True])
def test_equals_it_for_every_small_shape(schedule, send):
    rng = np.random.default_rng(6)
    for stages in range(1, 8):
        for microbatches in range(1, 10):
            arrays = batch(rng, stages, 5, send=send)
            found = last_backward_starts(**arrays, microbatches=microbatches, schedule=schedule)
            expected = one_at_a_time(arrays, microbatches, schedule, range(5))
            assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("candidates", [1, LANES - 1, LANES, LANES + 1, 2 * LANES, 3 * LANES + 7])
def test_every_candidate_of_whole_and_broken_blocks_is_right(candidates):
    arrays = batch(np.random.default_rng(candidates), 4, candidates)
    found = last_backward_starts(**arrays, microbatches=7, schedule="1f1b")
    assert found.tolist() == one_at_a_time(arrays, 7, "1f1b", range(candidates)).tolist()


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("send", [False, True])
def test_equals_it_with_3000_microbatches(schedule, send):
    arrays = batch(np.random.default_rng(7), 5, 70, send=send)
    found = last_backward_starts(**arrays, microbatches=3000, schedule=schedule)
    columns = [0, 63, 64, 69]
    expected = one_at_a_time(arrays, 3000, schedule, columns)
    assert found[:, columns].tolist() == expected.tolist()


def test_no_candidates_give_an_empty_result():
    arrays = batch(np.random.default_rng(8), 3, 0)
    assert last_backward_starts(**arrays, microbatches=4, schedule="1f1b").shape == (3, 0)
    assert step_s(**arrays, microbatches=4, schedule="1f1b").shape == (0,)


@pytest.mark.parametrize("send", [False, True])
def test_a_candidate_does_not_influence_the_others(send):
    rng = np.random.default_rng(9)
    arrays = batch(rng, 6, 130, send=send)
    before = last_backward_starts(**arrays, microbatches=11, schedule="1f1b")
    for changed in (0, 63, 64, 129):
        others = np.arange(130) != changed
        worse = {name: np.where(others, values, 1e6) for name, values in arrays.items()}
        after = last_backward_starts(**worse, microbatches=11, schedule="1f1b")
        assert after[:, others].tolist() == before[:, others].tolist()
        assert (after[:, changed] > before[:, changed]).all()
    order = rng.permutation(130)
    shuffled = {name: values[:, order] for name, values in arrays.items()}
    after = last_backward_starts(**shuffled, microbatches=11, schedule="1f1b")
    assert after.tolist() == before[:, order].tolist()


def test_arguments_are_left_as_they_were_and_may_lie_in_memory_in_any_way():
    arrays = batch(np.random.default_rng(10), 4, 90)
    expected = last_backward_starts(**arrays, microbatches=6, schedule="1f1b")
    kept = {name: values.copy() for name, values in arrays.items()}
    step_s(**arrays, microbatches=6, schedule="1f1b")
    assert all((arrays[name] == kept[name]).all() for name in arrays)
    turned = {name: np.asfortranarray(values) for name, values in arrays.items()}
    found = last_backward_starts(**turned, microbatches=6, schedule="1f1b")
    assert found.tolist() == expected.tolist()


def test_a_row_of_sends_for_the_last_stage_is_not_read():
    arrays = batch(np.random.default_rng(11), 4, 20)
    expected = last_backward_starts(**arrays, microbatches=6, schedule="1f1b")
    arrays["send_s_SK"] = np.vstack([arrays["send_s_SK"], np.full(20, 50.0)])
    found = last_backward_starts(**arrays, microbatches=6, schedule="1f1b")
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("optional", [False, True])
def test_step_equals_the_simulators_to_the_last_bit(schedule, optional):
    rng = np.random.default_rng(12)
    for _ in range(40):
        stages, microbatches = int(rng.integers(1, 9)), int(rng.integers(1, 25))
        arrays = batch(rng, stages, 3, last=optional, send=optional)
        if optional:
            arrays["optimizer_s_SK"] = seconds(rng, stages, 3)
        found = step_s(**arrays, microbatches=microbatches, schedule=schedule)
        for k in range(3):
            own = {name.removesuffix("_SK"): values[:, k] for name, values in arrays.items()}
            send = own.pop("send_s", None)
            own |= {"send_forward_s": send, "send_backward_s": send}
            own |= {"microbatches": microbatches, "schedule": schedule, "exclusive_links": True}
            assert found[k] == simulate(**own).step_s


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"forward_s_SK": np.ones(3)}, "forward_s_SK"),
        ({"forward_s_SK": np.ones((0, 3))}, "forward_s_SK"),
        ({"backward_s_SK": np.ones((2, 4))}, "backward_s_SK"),
        ({"last_backward_s_SK": np.ones((3, 3))}, "last_backward_s_SK"),
        ({"send_s_SK": np.ones((3, 3))}, "send_s_SK"),
        ({"send_s_SK": np.ones((1, 2))}, "send_s_SK"),
        ({"optimizer_s_SK": np.ones((1, 3))}, "optimizer_s_SK"),
        ({"microbatches": 0}, "microbatches"),
        ({"microbatches": 2.0}, "microbatches"),
        ({"schedule": "zb-h1"}, "schedule"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(change, field):
    sound = {"forward_s_SK": np.ones((2, 3)), "backward_s_SK": np.ones((2, 3))}
    sound |= {"microbatches": 2, "schedule": "1f1b"}
    step_s(**sound)
    with pytest.raises(ValueError, match=f"^{field}: found"):
        step_s(**(sound | change))
