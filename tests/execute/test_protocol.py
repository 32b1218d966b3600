from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from autoplan.errors import InputError
from autoplan.execute.clocks import LoadMeter, StepClock
from autoplan.execute.protocol import (
    Settings,
    by_clock,
    choose_clock,
    noise_floor,
    ties_with_best,
    visiting_order,
)
from autoplan.execute.real_run import Environment, Modes, RealRun

ENVIRONMENT = Environment(
    framework="none", device="cpu", threads=1, ranks=2, cores=2, pinned=False, collectives="ring"
)


def run(wall_s, virtual_s=None, load=0.0, environment=ENVIRONMENT, **fields):
    return RealRun(
        plan_sha256="0",
        status="ok",
        modes=fields.pop("modes", Modes()),
        wall_s=tuple(wall_s),
        virtual_s=tuple(virtual_s or wall_s),
        foreign_load=(load,) * len(wall_s),
        environment=environment,
        **fields,
    )


FAILED = RealRun(plan_sha256="1", status="failed", reason="it broke", modes=Modes())


def test_orders_are_permutations_that_the_seed_decides():
    orders = visiting_order(6, 5, seed=3)
    assert orders == visiting_order(6, 5, seed=3)
    assert orders != visiting_order(6, 5, seed=4)
    assert len(set(orders)) > 1
    assert all(sorted(order) == list(range(6)) for order in orders)


@pytest.mark.parametrize(
    ("modes", "runs", "expected"),
    [
        (Modes(), [run([1.0]), FAILED], "wall"),
        (Modes(), [run([1.0]), run([1.0], load=0.06)], "virtual"),
        (Modes(), [FAILED], "wall"),
        (Modes(compute="emulated"), [run([1.0], load=0.9)], "wall"),
        (Modes(device="gpu"), [run([1.0], load=0.9)], "wall"),
    ],
)
def test_the_clock_follows_the_foreign_load(modes, runs, expected):
    assert choose_clock("auto", modes, runs) == expected
    assert choose_clock("virtual", modes, runs) == "virtual"


def test_ranks_that_share_cores_are_read_on_the_virtual_clock():
    crowded = dataclasses.replace(ENVIRONMENT, ranks=3)
    assert choose_clock("auto", Modes(), [run([1.0], environment=crowded)]) == "virtual"


def test_figures_come_from_one_clock_only():
    one, failed = by_clock("virtual", [run([9.0, 8.0, 10.0], [2.0, 1.0, 4.0]), FAILED])
    assert one.step_s == (2.0, 1.0, 4.0)
    assert one.median_s == 2.0
    assert one.spread == 1.5
    assert failed.median_s is None
    assert one.to_document()["median_s"] == 2.0


def test_the_noise_floor_is_the_mean_difference_of_the_halves():
    assert noise_floor([FAILED]) is None
    assert noise_floor([run([1.0])]) is None
    assert noise_floor([run([1.0, 2.0, 1.0])]) == pytest.approx(0.5)
    # A drift that all plans share does not count.
    drifting = [run([s * (1 + 0.1 * (i % 2)) for i in range(4)]) for s in (1, 2, 3)]
    assert noise_floor(drifting) == pytest.approx(0.0)


def test_plans_within_the_noise_floor_of_the_best_are_ties():
    runs = [run([1.0, 1.1, 1.0]), run([1.02, 1.02, 1.02]), FAILED, run([2.0, 2.0, 2.0])]
    assert ties_with_best(runs) == (True, True, False, False)


@pytest.mark.parametrize("bad", [{"rounds": 0}, {"warmup_steps": 0}, {"step_limit_s": 0.0}])
def test_settings_refuse_what_cannot_be_run(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Settings(**bad)


def test_a_run_without_measurement_must_be_explained():
    with pytest.raises(InputError, match="reason"):
        RealRun(plan_sha256="0", status="timeout", modes=Modes())
    with pytest.raises(InputError, match="wall_s"):
        RealRun(plan_sha256="0", status="ok", modes=Modes())


def test_emulation_on_a_gpu_is_refused():
    with pytest.raises(InputError, match="device"):
        Modes(compute="emulated", device="gpu")


def test_the_virtual_clock_counts_cpu_time_and_messages_but_not_waiting():
    def work():
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass

    clock = StepClock("real")
    started_s = time.process_time()
    work()
    other = threading.Thread(target=work)  # as one that communicates: they share a core
    other.start()
    other.join()
    time.sleep(0.1)
    assert clock.virtual_s() >= 0.1
    assert clock.virtual_s() == pytest.approx(time.process_time() - started_s, abs=5e-3)
    assert clock.wall_s() >= 0.1
    clock.wait_virtually(7.0)
    clock.wait_virtually(5.0)
    assert clock.virtual_s() == pytest.approx(7.0, abs=5e-3)


def test_emulated_work_ends_at_points_in_time():
    clock = StepClock("emulated")
    clock.begin_work()
    for _ in range(20):
        clock.spend(0.005)
    assert clock.virtual_s() == pytest.approx(0.1)
    assert 0.1 <= clock.wall_s() < 0.2


def test_a_step_starts_at_the_moment_that_was_agreed_on():
    start_at_s = time.monotonic() + 0.05
    clock = StepClock("real", start_at_s)
    assert time.monotonic() >= start_at_s
    assert clock.wall_s() < 0.05


def test_ones_own_load_is_not_foreign():
    meter = LoadMeter()
    meter.restart()
    cpu_s = time.process_time()
    until_s = time.monotonic() + 0.3
    while time.monotonic() < until_s:
        pass
    cpu_s = time.process_time() - cpu_s
    with_own, without = meter.foreign_share(cpu_s), meter.foreign_share(0.0)
    assert 0.0 <= with_own <= without <= 1.0
    assert without - with_own > 0.05
