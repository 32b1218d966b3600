from __future__ import annotations

import random

import pytest

from autoplan.pipeline.kernels import last_backward_start_s
from autoplan.pipeline.simulator import simulate


def seconds(rng, count):
    """Round numbers that tie, zeros, and numbers that round."""
    return [rng.choice([0.0, 1.0, 2.0, rng.uniform(0, 3)]) for _ in range(count)]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_kernel_equals_the_simulator_to_the_last_bit(schedule):
    rng = random.Random(3)
    for _ in range(500):
        stages, microbatches = rng.randint(1, 9), rng.randint(1, 24)
        forward, backward = seconds(rng, stages), seconds(rng, stages)
        send = seconds(rng, stages - 1)
        timeline = simulate(
            forward, backward, microbatches, schedule, send, send, exclusive_links=True
        )
        kernel = last_backward_start_s(forward, backward, send, microbatches, schedule)
        assert kernel.tolist() == timeline.last_backward_start_s_S.tolist()


def test_kernel_equals_the_simulator_beyond_1024_microbatches():
    rng = random.Random(4)
    forward, backward, send = seconds(rng, 5), seconds(rng, 5), seconds(rng, 4)
    timeline = simulate(forward, backward, 3000, "1f1b", send, send, exclusive_links=True)
    kernel = last_backward_start_s(forward, backward, send, 3000, "1f1b")
    assert kernel.tolist() == timeline.last_backward_start_s_S.tolist()


def test_kernel_refuses_unknown_schedules():
    with pytest.raises(ValueError, match="schedule"):
        last_backward_start_s([1.0], [1.0], [], 1, "zb-h1")
