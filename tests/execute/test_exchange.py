from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest

from autoplan.execute.clocks import StepClock
from autoplan.execute.exchange import ThreadedExchange
from autoplan.execute.gradient_groups import GroupOrder, PlannedGroup
from autoplan.execute.stage_work import EmulatedGradients

SIZES = (5, 3, 7, 1)
TOTAL = sum(SIZES)


def group(first, end, density=1.0, exchange_s=0.0):
    return PlannedGroup(
        layers=1,
        parameters=(first, end),
        density=density,
        sparsify_s=0.0,
        handling_s=0.0,
        exchange_s=exchange_s,
    )


class Held:
    """Gradients that a test can set and look at."""

    sizes = SIZES

    def __init__(self, values):
        edges = np.cumsum((0, *SIZES))
        self.parts = [values[a:b].copy() for a, b in pairwise(edges)]

    def read(self, number, into):
        into[:] = self.parts[number]

    def write(self, number, values):
        self.parts[number][:] = values

    @property
    def values(self):
        return np.concatenate(self.parts)


class Meeting:
    """Two replicas in two threads of one process."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=10)
        self.slots = [None, None]

    def member(self, rank):
        return Member(self, rank)

    def swap(self, rank, array):
        self.slots[rank] = array.copy()
        self.barrier.wait()
        both = np.stack(self.slots)
        self.barrier.wait()
        return both


class Member:
    name = "meeting"
    members = (0, 1)

    def __init__(self, meeting, rank):
        self.meeting, self.rank = meeting, rank

    def sum_in_place(self, buffer):
        buffer[:] = self.meeting.swap(self.rank, buffer).sum(axis=0)

    def gather(self, row):
        return self.meeting.swap(self.rank, row)


def exchanges(gradients, groups, **options):
    meeting = Meeting()
    options = {"emulated_compute": False, "emulated_link": False} | options
    return [
        ThreadedExchange(held, groups, meeting.member(rank), rank=rank, **options)
        for rank, held in enumerate(gradients)
    ]


def step(parts, order, clocks=None):
    """One step of both replicas, parameters ready in this order; their clocks."""
    clocks = clocks or [StepClock("emulated") for _ in parts]
    threads = []
    for part, clock in zip(parts, clocks, strict=True):

        def run(part=part, clock=clock):
            part.begin(clock)
            for number in order:
                part.mark_ready(number)
            part.finish()

        threads.append(threading.Thread(target=run))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return clocks


def test_groups_go_in_the_planned_order_whatever_is_ready_first():
    order = GroupOrder((group(0, 2), group(2, 3), group(3, 4)))
    assert list(order.due_after(2)) == []
    assert list(order.due_after(0)) == []
    assert list(order.due_after(1)) == [0, 1]
    assert list(order.rest()) == [2]
    assert list(order.rest()) == []
    order.restart()
    assert list(order.rest()) == [0, 1, 2]


@pytest.mark.parametrize("groups", [[(0, 4)], [(0, 1), (1, 4)], [(0, 1), (1, 2), (2, 3), (3, 4)]])
@pytest.mark.parametrize("ready", [[0, 1, 2, 3], [3, 2], []])
def test_dense_groups_leave_the_sum_on_both(groups, ready):
    values = np.random.default_rng(1).standard_normal((2, TOTAL)).astype(np.float32)
    gradients = [Held(row) for row in values]
    parts = exchanges(gradients, tuple(group(*each) for each in groups))
    step(parts, ready)
    for held in gradients:
        np.testing.assert_array_equal(held.values, values.sum(axis=0))
    for part in parts:
        part.close()


def test_error_feedback_sends_everything_in_the_end():
    values = np.random.default_rng(2).standard_normal((2, TOTAL)).astype(np.float32)
    gradients = [Held(row) for row in values]
    parts = exchanges(gradients, (group(0, 1, 0.2), group(1, 4, 0.25)))
    sent = np.zeros(TOTAL, np.float64)
    for number in range(12):
        step(parts, [0, 1, 2, 3])
        assert gradients[0].values.tobytes() == gradients[1].values.tobytes()
        sent += gradients[0].values
        if number == 0:
            assert np.count_nonzero(gradients[0].values) <= 2 * (1 + 2)
        for held in gradients:
            for part in held.parts:
                part[:] = 0.0
    np.testing.assert_allclose(sent, values.sum(axis=0), rtol=1e-5, atol=1e-6)
    assert parts[0].held_bytes() > 4 * TOTAL


def test_an_exchange_starts_when_the_last_replica_is_ready_by_both_clocks():
    gradients = [EmulatedGradients(SIZES) for _ in range(2)]
    groups = (group(0, 2, exchange_s=0.02), group(2, 4, exchange_s=0.03))
    parts = exchanges(gradients, groups, emulated_compute=True, emulated_link=True)
    clocks = [StepClock("emulated") for _ in range(2)]
    for clock, busy_s in zip(clocks, (0.1, 0.01), strict=True):
        clock.begin_work()
        clock.spend(busy_s)
    step(parts, [0, 1, 2, 3], clocks)
    for clock in clocks:
        assert clock.virtual_s() == pytest.approx(0.1 + 0.02 + 0.03, abs=1e-9)
        assert clock.wall_s() >= 0.15


def test_a_failure_of_the_thread_reaches_whoever_waits():
    class Broken(Member):
        def sum_in_place(self, buffer):
            raise RuntimeError("the cable was cut")

    part = ThreadedExchange(
        EmulatedGradients(SIZES),
        (group(0, 4),),
        Broken(Meeting(), 0),
        rank=0,
        emulated_compute=False,
        emulated_link=False,
    )
    part.begin(StepClock("emulated"))
    with pytest.raises(RuntimeError, match="cable"):
        part.finish()
    part.close()
