from __future__ import annotations

import csv
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan import pipeline
from autoplan.errors import InputError
from autoplan.pipeline import in_flight, simulate, stage_order

seconds = st.one_of(st.just(0.0), st.floats(0, 10, allow_subnormal=False))


@st.composite
def pipelines(draw, max_stages=4, max_microbatches=6):
    """Arguments of `simulate`, transfers and updates included."""
    stages = draw(st.integers(1, max_stages))

    def durations(count):
        return draw(st.lists(seconds, min_size=count, max_size=count))

    return {
        "forward_s": durations(stages),
        "backward_s": durations(stages),
        "microbatches": draw(st.integers(1, max_microbatches)),
        "schedule": draw(st.sampled_from(["1f1b", "gpipe"])),
        "send_forward_s": durations(stages - 1),
        "send_backward_s": durations(stages - 1),
        "optimizer_s": durations(stages),
        "exclusive_links": draw(st.booleans()),
    }


def order_in_words(schedule, s, stages, microbatches):
    """("f" or "b", microbatch) in the words of DESIGN 3.1."""
    warm = min(stages - s, microbatches) if schedule == "1f1b" else microbatches
    forwards = [("f", m) for m in range(microbatches)]
    backwards = [("b", m) for m in range(microbatches)]
    order, forwards = forwards[:warm], forwards[warm:]
    while forwards:
        order += [backwards.pop(0), forwards.pop(0)]
    return order + backwards


def starts_by_relaxation(case):
    """Starts of all pieces as the least solution of "after all that it needs", by iteration.

    A piece is ("f" or "b", stage, microbatch); its transfer to the next or previous stage is the
    same with a "send" before it.
    """
    stages, microbatches = len(case["forward_s"]), case["microbatches"]
    lasts, needs = {}, {}
    for s in range(stages):
        order = order_in_words(case["schedule"], s, stages, microbatches)
        pieces = [(way, s, m) for way, m in order]
        for way, _, m in pieces:
            lasts[way, s, m] = case["forward_s" if way == "f" else "backward_s"][s]
            needs[way, s, m] = []
        for before, after in pairwise(pieces):
            needs[after].append(before)
    for cut in range(stages - 1):
        for way, name in (("f", "send_forward_s"), ("b", "send_backward_s")):
            source, target = (cut, cut + 1) if way == "f" else (cut + 1, cut)
            for m in range(microbatches):
                transfer = ("send", way, source, m)
                lasts[transfer] = case[name][cut]
                needs[transfer] = [(way, source, m)]
                needs[way, target, m].append(transfer)
                if case["exclusive_links"] and m > 0:
                    needs[transfer].append(("send", way, source, m - 1))
    for m in range(microbatches):
        needs["b", stages - 1, m].append(("f", stages - 1, m))
    start = dict.fromkeys(needs, 0.0)
    settled = False
    while not settled:
        settled = True
        for piece, before in needs.items():
            earliest = max((start[each] + lasts[each] for each in before), default=0.0)
            if earliest > start[piece]:
                start[piece], settled = earliest, False
    return start


@given(pipelines())
def test_equals_an_independent_relaxation_with_and_without_exclusive_links(case):
    timeline = simulate(**case)
    start = starts_by_relaxation(case)
    shape = range(len(case["forward_s"])), range(case["microbatches"])
    forward = [[start["f", s, m] for m in shape[1]] for s in shape[0]]
    backward = [[start["b", s, m] for m in shape[1]] for s in shape[0]]
    np.testing.assert_allclose(timeline.forward_start_s_SM, forward, rtol=1e-12)
    np.testing.assert_allclose(timeline.backward_start_s_SM, backward, rtol=1e-12)
    ends = [max(backward[s]) + case["backward_s"][s] + case["optimizer_s"][s] for s in shape[0]]
    assert timeline.step_s == pytest.approx(max(ends), rel=1e-12)


def test_equals_paddles_pipeline_simulation_on_400_random_instances():
    pytest.importorskip("paddle", reason="paddle is not installed")
    from paddle.distributed.auto_parallel.static.cost_model import CostModel

    rng = random.Random(2)
    for case in range(400):
        stages, microbatches = rng.randint(1, 8), rng.randint(1, 32)
        model = CostModel(pipeline_config=[[s] for s in range(stages)], microbatch_num=microbatches)
        model.fwd_time = [rng.choice([1.0, rng.uniform(0, 9)]) for _ in range(stages)]
        model.bwd_time = [rng.choice([2.0, rng.uniform(0, 9)]) for _ in range(stages)]
        model.optim_time = [rng.uniform(0, 9) * (case % 2) for _ in range(stages)]
        ours = simulate(model.fwd_time, model.bwd_time, microbatches, optimizer_s=model.optim_time)
        assert ours.step_s == pytest.approx(model.get_pipeline_time(), rel=1e-9)


@pytest.mark.parametrize("microbatches", [1025, 3000])
@pytest.mark.parametrize("exclusive_links", [False, True])
def test_more_than_1024_microbatches_work(microbatches, exclusive_links):
    step_s = simulate([1.0] * 4, [2.0] * 4, microbatches, exclusive_links=exclusive_links).step_s
    assert step_s == (microbatches + 3) * 3.0


@given(pipelines())
def test_step_is_at_least_the_busy_time_and_the_critical_path(case):
    timeline = simulate(**case)
    step_s = timeline.step_s * (1 + 1e-12)
    busy = timeline.busy_s_S + np.array(case["optimizer_s"])
    assert (busy <= step_s).all()
    there_and_back = sum(case["forward_s"]) + sum(case["backward_s"])
    there_and_back += sum(case["send_forward_s"]) + sum(case["send_backward_s"])
    assert there_and_back + case["optimizer_s"][0] <= step_s
    assert timeline.step_s == timeline.stage_end_s_S.max()


@given(pipelines(), st.randoms(use_true_random=False), seconds)
def test_no_duration_shortens_the_step_by_growing(case, rng, more):
    durations = [value for value in case.values() if isinstance(value, list) and value]
    before = simulate(**case)
    grown = rng.choice(durations)
    grown[rng.randrange(len(grown))] += more
    after = simulate(**case)
    assert after.step_s >= before.step_s
    assert (after.backward_start_s_SM >= before.backward_start_s_SM).all()


@given(pipelines(max_stages=5, max_microbatches=9))
def test_each_link_carries_every_transfer_in_turn(case):
    case["exclusive_links"] = True
    step_s = simulate(**case).step_s * (1 + 1e-12)
    transfers = case["send_forward_s"] + case["send_backward_s"]
    assert case["microbatches"] * max(transfers, default=0.0) <= step_s


def test_exclusive_link_sets_the_pace_where_it_is_slowest():
    steps = [
        simulate([1.0, 1.0], [1.0, 1.0], m, send_forward_s=[10.0], exclusive_links=True).step_s
        for m in (20, 21)
    ]
    assert steps[1] - steps[0] == 10.0
    delays = simulate([1.0, 1.0], [1.0, 1.0], 20, "gpipe", send_forward_s=[10.0]).step_s
    assert delays < 20 * 10.0


@given(st.integers(1, 8), st.integers(1, 20), seconds, seconds)
def test_gpipe_of_equal_stages_has_its_closed_form(stages, microbatches, forward_s, backward_s):
    step_s = simulate([forward_s] * stages, [backward_s] * stages, microbatches, "gpipe").step_s
    expected = (microbatches + stages - 1) * (forward_s + backward_s)
    assert step_s == pytest.approx(expected, rel=1e-12)


def rows_of(file):
    with open(file, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_1f1b_bubble_rates_equal_those_published_for_zero_bubble(shared_facts):
    rows = rows_of(shared_facts / "measured" / "meas_zerobubble_profile.csv")
    assert len(rows) == 6
    for row in rows:
        stages, microbatches = int(row["p"]), int(row["m"])
        forward, backward, weight, send = (
            float(row[f"T_{part}_ms"]) for part in ("F", "B", "W", "comm")
        )
        sends = [send] * (stages - 1)
        step = simulate(
            [forward] * stages,
            [backward + weight] * stages,
            microbatches,
            send_forward_s=sends,
            send_backward_s=sends,
        ).step_s
        bubble = 1 - microbatches * (forward + backward + weight) / step
        # Four digits are published, from times of three decimals of a millisecond.
        assert bubble == pytest.approx(float(row["bubble_1F1B"]), abs=1e-4)


def test_1f1b_makespans_equal_those_of_the_published_scheduler(shared_facts):
    rows = rows_of(shared_facts / "reference" / "ref_schedules.csv")
    rows = [row for row in rows if row["schedule"] == "1F1B"]
    assert len(rows) == 48
    for row in rows:
        stages, microbatches = int(row["S"]), int(row["m"])
        forward, backward, weight, send = (float(row[key]) for key in ("f", "b", "w", "comm"))
        sends = [send] * (stages - 1)
        step = simulate(
            [forward] * stages,
            [backward + weight] * stages,
            microbatches,
            send_forward_s=sends,
            send_backward_s=sends,
        ).step_s
        assert step == float(row["makespan"])


@given(st.sampled_from(["1f1b", "gpipe"]), st.integers(1, 9), st.integers(1, 20), st.data())
def test_order_and_stash_of_a_stage(schedule, stages, microbatches, data):
    s = data.draw(st.integers(0, stages - 1))
    order = stage_order(schedule, s, stages, microbatches)
    words = [("f", piece) if piece >= 0 else ("b", ~piece) for piece in order]
    assert words == order_in_words(schedule, s, stages, microbatches)
    held = np.cumsum([1 if piece >= 0 else -1 for piece in order])
    assert held.max() == in_flight(schedule, s, stages, microbatches)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"forward_s": []}, "forward_s"),
        ({"backward_s": [1.0]}, "backward_s"),
        ({"send_forward_s": [1.0, 1.0]}, "send_forward_s"),
        ({"send_backward_s": []}, "send_backward_s"),
        ({"optimizer_s": [1.0]}, "optimizer_s"),
        ({"forward_s": [1.0, -1.0]}, "forward_s"),
        ({"backward_s": [1.0, float("nan")]}, "backward_s"),
        ({"send_forward_s": [float("inf")]}, "send_forward_s"),
        ({"microbatches": 0}, "microbatches"),
        ({"schedule": "zb-h1"}, "schedule"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, field):
    sound = {"forward_s": [1.0, 1.0], "backward_s": [1.0, 1.0], "microbatches": 2}
    with pytest.raises(InputError, match=f"^{field}: found"):
        pipeline.simulate(**(sound | arguments))
