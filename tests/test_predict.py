from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
from builders import (
    cluster,
    layer,
    link,
    random_cluster,
    random_job,
    random_plan,
    random_workload,
    stage,
    workload,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan import CostCurve, Job, Layer, Plan, predict
from autoplan.bounds.plans import PlanDomain, divisors
from autoplan.cluster import MessageHandling, TopK
from autoplan.errors import InputError
from autoplan.predict import Predictor

randoms = st.randoms(use_true_random=False)
HANDLING = ("message_handling", "exchange_handling")


def handling(where, message_s, byte_s, *names):
    """The cluster with devices that handle messages, exchanges, or both themselves."""
    cost = MessageHandling(s_per_message=message_s, s_per_byte=byte_s)
    device = dataclasses.replace(where.device, **dict.fromkeys(names, cost))
    return dataclasses.replace(where, device=device)


def problem(rng):
    """A random predictor and a plan for it."""
    model, where, job = random_workload(rng), random_cluster(rng), random_job(rng)
    names = [name for name in HANDLING if rng.random() < 0.3]
    where = handling(where, rng.uniform(0, 2), rng.uniform(0, 0.1), *names)
    plan = random_plan(rng, len(model.layers), where.num_devices, job.global_batch)
    return Predictor(model, where, job), plan


TWO = workload(
    [
        layer(1.0, 2.0, gradient_elements=10, parameter_bytes=100.0),
        layer(3.0, 4.0, gradient_elements=20, parameter_bytes=200.0),
    ],
    (13.0, 10.0, 19.0),
)
TWO_STAGES = Plan(stages=(stage(0, 1), stage(1, 2)), microbatches=2)


@pytest.mark.parametrize(
    ("schedule", "alpha_s", "step_s"),
    [
        # Transfers of .5 + 10/20 = 1 s. Stage 0 forwards 0-1, 1-2; they arrive at 2 and 3.
        # Stage 1: F 2-5, B 5-9, F 9-12, B 12-16; gradients arrive at 10 and 17.
        # Stage 0: B 10-12, B 17-19, update of 10 elements 1 s.
        ("1f1b", 0.5, 20.0),
        # Transfers of 3.5 + .5 = 4 s on a link that carries one at a time: arrivals 5 and 9.
        # Stage 1: F 5-8, B 8-12, F 12-15, B 15-19; arrivals 16 and 23.
        # Stage 0: B 16-18, B 23-25, update 1 s.
        ("1f1b", 3.5, 26.0),
        # Stage 1: F 5-8, F 9-12, B 12-16, B 16-20; arrivals 20 and 24.
        # Stage 0: B 20-22, B 24-26, update 1 s.
        ("gpipe", 3.5, 27.0),
    ],
)
def test_two_stages_by_hand(schedule, alpha_s, step_s):
    where = cluster(2, intra_node=link(alpha_s, 20.0))
    job = Job(global_batch=2, optimizer="sgd", optimizer_s_per_element=0.1)
    plan = dataclasses.replace(TWO_STAGES, schedule=schedule)
    found = predict(TWO, where, job, plan)
    assert found.step_s == pytest.approx(step_s, rel=1e-12)
    assert found.samples_per_s == pytest.approx(2 / step_s, rel=1e-12)
    first, last = found.stages
    assert (first.compute_s, last.compute_s) == (6.0, 14.0)
    assert (first.optimizer_s, last.optimizer_s) == (1.0, 2.0)
    assert first.bubble_s == pytest.approx(step_s - 6 - 1, rel=1e-12)
    assert last.bubble_s == pytest.approx(step_s - 14 - 2, rel=1e-12)
    assert first.send_forward_s == pytest.approx(alpha_s + 0.5, rel=1e-12)
    assert last.send_forward_s == 0.0
    assert (first.devices, last.devices) == ((0,), (1,))


@pytest.mark.parametrize(
    ("groups", "recompute", "step_s", "exposed_s"),
    [
        # 2 replicas: a ring of 2 steps of .5 s that moves all bytes once, 1 + 4x/20 s.
        # Forward 0-4, backward 4-10. Layer 1 is ready at 8: 80 bytes, 5 s, to 13. Layer 0 is
        # ready at 10, waits until 13, takes 3 s, to 16. Update of 30 elements 3 s.
        ([(1, 2), (0, 1)], False, 19.0, 6.0),
        # Both ready at 10: 120 bytes, 7 s, to 17.
        ([(0, 2)], False, 20.0, 7.0),
        # Recomputation delays all by the forward of 4 s.
        ([(1, 2), (0, 1)], True, 23.0, 6.0),
    ],
)
def test_data_parallel_with_exposed_communication_by_hand(groups, recompute, step_s, exposed_s):
    where = cluster(2, intra_node=link(0.5, 20.0), all_reduce="ring")
    job = Job(global_batch=2, optimizer_s_per_element=0.1)
    plan = Plan(stages=(stage(0, 2, groups, replicas=2, recompute=recompute),), microbatches=1)
    found = predict(TWO, where, job, plan)
    assert found.step_s == pytest.approx(step_s, rel=1e-12)
    assert found.stages[0].exposed_communication_s == pytest.approx(exposed_s, rel=1e-12)
    assert found.stages[0].bubble_s == pytest.approx(0.0, abs=1e-12)


def test_gradients_are_exchanged_after_the_last_microbatch_only():
    where = cluster(2, intra_node=link(0.5, 20.0), all_reduce="ring")
    plan = Plan(stages=(stage(0, 2, [(0, 2)], replicas=2),), microbatches=3)
    found = predict(TWO, where, Job(global_batch=6, optimizer_s_per_element=0.1), plan)
    assert found.step_s == pytest.approx(3 * 10 + 7 + 3, rel=1e-12)


def test_replicas_share_each_microbatch():
    plan = Plan(stages=(stage(0, 2, replicas=4),), microbatches=2)
    where = cluster(4, intra_node=link(0.0, 1e30))
    found = predict(TWO, where, Job(global_batch=16), plan)
    # 8 samples per microbatch, 2 on each replica.
    assert (found.stages[0].forward_s, found.stages[0].backward_s) == (8.0, 12.0)
    assert found.step_s == pytest.approx(2 * 20.0)


THREE = workload(
    [
        layer(
            gradient_elements=10,
            parameter_bytes=100.0,
            stash_bytes_per_sample=7.0,
            workspace_bytes_per_sample=3.0,
        ),
        layer(
            gradient_elements=20,
            parameter_bytes=200.0,
            stash_bytes_per_sample=11.0,
            workspace_bytes_per_sample=5.0,
        ),
        layer(gradient_elements=40, parameter_bytes=400.0, stash_bytes_per_sample=1.0),
    ],
    (13.0, 17.0, 19.0, 23.0),
)


@pytest.mark.parametrize(
    ("schedule", "recompute", "stash", "working"),
    [
        # 8 samples in 4 microbatches, 2 samples on the first stage's device each.
        # 1F1B: 2 microbatches in flight, each keeps the input (13) and the stashes (7 + 11).
        # Working: the larger of 3 + 13 + 17 and 5 + 17 + 19.
        ("1f1b", False, 2 * 2 * 31.0, 2 * 41.0),
        # All 4 microbatches.
        ("gpipe", False, 4 * 2 * 31.0, 2 * 41.0),
        # Only inputs are kept; one microbatch's stashes come back in backward.
        ("1f1b", True, 2 * 2 * 13.0, 2 * (41.0 + 18.0)),
        ("gpipe", True, 4 * 2 * 13.0, 2 * (41.0 + 18.0)),
    ],
)
def test_memory_by_hand(schedule, recompute, stash, working):
    job = Job(global_batch=8, optimizer="adamw", memory_headroom=0.25)
    plan = Plan(
        stages=(stage(0, 2, recompute=recompute), stage(2, 3, replicas=2)),
        microbatches=4,
        schedule=schedule,
    )
    found = predict(THREE, cluster(3, memory_bytes=4000.0), job, plan)
    first, last = (each.memory for each in found.stages)
    assert first.parameter_bytes == 300.0
    assert first.gradient_bytes == 30 * 4
    assert first.optimizer_bytes == 30 * 8
    assert first.buffer_bytes == 0.0
    assert first.stash_bytes == stash
    assert first.working_bytes == working
    assert first.available_bytes == 3000.0
    assert first.total_bytes == 300 + 120 + 240 + stash + working
    # The last stage: one microbatch in flight under 1F1B, one sample on each replica.
    held = 1 if schedule == "1f1b" else 4
    assert last.stash_bytes == held * (19.0 + 1.0)
    assert last.working_bytes == 19.0 + 23.0
    assert last.buffer_bytes == 0.0


@pytest.mark.parametrize(
    ("groups", "buffer", "scratch"),
    [([(0, 3)], 70, 0), ([(1, 3), (0, 1)], 60, 10), ([(2, 3), (1, 2), (0, 1)], 0, 40)],
)
def test_groups_of_several_layers_need_a_fused_buffer_where_there_are_replicas(
    groups, buffer, scratch
):
    job = Job(global_batch=2, precision="bfloat16", optimizer="sgd")
    plan = Plan(stages=(stage(0, 3, groups, replicas=2),), microbatches=1)
    memory = predict(THREE, cluster(2), job, plan).stages[0].memory
    assert memory.buffer_bytes == buffer * 2
    assert memory.scratch_bytes == scratch * 2
    assert memory.gradient_bytes == 70 * 2
    # The float32 master copy.
    assert memory.optimizer_bytes == 70 * 4
    alone = Plan(stages=(stage(0, 3, groups),), microbatches=1)
    assert predict(THREE, cluster(2), job, alone).stages[0].memory.buffer_bytes == 0


def test_plan_that_does_not_fit_is_predicted_and_says_how_many_bytes_it_lacks():
    job = Job(global_batch=8, memory_headroom=0.5)
    plan = Plan(stages=(stage(0, 2), stage(2, 3)), microbatches=4)
    needed = predict(THREE, cluster(2), job, plan).stages[1].memory.total_bytes
    predictor = Predictor(THREE, cluster(2, memory_bytes=2 * (needed - 24.0)), job)
    found = predictor.predict(plan)
    assert not found.feasible
    assert found.missing_bytes == 24.0
    assert [each.memory.missing_bytes for each in found.stages] == [0.0, 24.0]
    assert math.isfinite(found.step_s)
    assert (predictor.score(plan).feasible, predictor.score(plan).missing_bytes) == (False, 24.0)
    document = found.to_document()
    assert document["feasible"] is False
    assert document["stages"][1]["memory"]["missing_bytes"] == 24.0
    just_enough = Predictor(THREE, cluster(2, memory_bytes=2 * needed), job)
    assert just_enough.predict(plan).feasible


@settings(deadline=None)  # the first bound compiles
@given(randoms)
def test_score_timeline_and_prediction_agree_to_the_last_bit(rng):
    predictor, plan = problem(rng)
    found, score = predictor.predict(plan), predictor.score(plan)
    assert (score.step_s, score.missing_bytes) == (found.step_s, found.missing_bytes)
    assert score.feasible == found.feasible
    fresh = predict(predictor.workload, predictor.cluster, predictor.job, plan)
    assert fresh == found
    timeline, exchanges = predictor.timeline(plan)
    updates = np.array([each.optimizer_s for each in found.stages])
    finish = np.array([each.finish_s for each in exchanges])
    assert (timeline.last_backward_start_s_S + finish + updates).max() == found.step_s


@given(randoms)
def test_breakdown_of_every_stage_adds_up_to_the_step(rng):
    predictor, plan = problem(rng)
    found = predictor.predict(plan)
    for each in found.stages:
        parts = each.compute_s + each.bubble_s + each.exposed_communication_s + each.optimizer_s
        assert parts == pytest.approx(found.step_s, rel=1e-9, abs=1e-12)
    assert found.lower_bound_s <= found.step_s * (1 + 1e-12)


@given(randoms, st.floats(1, 100))
def test_more_bandwidth_never_slows_a_plan(rng, factor):
    predictor, plan = problem(rng)
    where = predictor.cluster
    before = predictor.score(plan).step_s
    for name in ("intra_node", "inter_node"):
        slow = getattr(where, name)
        if slow is not None:
            bandwidth = slow.bandwidth_bytes_per_s * factor
            fast = dataclasses.replace(slow, bandwidth_bytes_per_s=bandwidth)
            faster = dataclasses.replace(where, **{name: fast})
            after = Predictor(predictor.workload, faster, predictor.job).score(plan).step_s
            assert after <= before * (1 + 1e-12)
    ports = dataclasses.replace(where, nics_per_node=where.nics_per_node + 1)
    after = Predictor(predictor.workload, ports, predictor.job).score(plan).step_s
    assert after <= before * (1 + 1e-12)


@given(randoms, st.floats(1, 10), st.sampled_from(["forward", "backward"]))
def test_longer_layers_never_speed_a_plan_up(rng, factor, way):
    predictor, plan = problem(rng)
    model = predictor.workload
    i = rng.randrange(len(model.layers))
    curve = getattr(model.layers[i], way)
    longer = dataclasses.replace(
        curve,
        seconds=tuple(seconds * factor for seconds in curve.seconds),
        overhead_s=min(curve.overhead_s * factor, curve.seconds[0] * factor),
    )
    slow = dataclasses.replace(model.layers[i], **{way: longer})
    layers = (*model.layers[:i], slow, *model.layers[i + 1 :])
    slower = Predictor(dataclasses.replace(model, layers=layers), predictor.cluster, predictor.job)
    before, after = predictor.score(plan).step_s, slower.score(plan).step_s
    assert after >= before * (1 - 1e-12)
    assert slower.bounds.quick_s >= predictor.bounds.quick_s * (1 - 1e-12)


def test_notes_say_which_sizes_were_extrapolated_and_that_the_update_is_free():
    measured = CostCurve(samples=(2.0, 4.0), seconds=(1.0, 2.0))
    layers = [Layer(name=name, forward=measured, backward=measured) for name in "ab"]
    one = Layer(name="c", forward=CostCurve.proportional(1.0), backward=measured)
    model = workload([*layers, one])
    plan = Plan(stages=(stage(0, 3),), microbatches=1)
    job = Job(global_batch=4, optimizer_s_per_element=0.0)
    (note,) = predict(model, cluster(), job, plan).notes
    assert note == "extrapolated: 1 of 3 layers were not measured at 4 samples per call"
    (note,) = predict(model, cluster(), dataclasses.replace(job, global_batch=5), plan).notes
    assert note.startswith("extrapolated: 3 of 3 layers")
    plain = workload(layers)
    plan = Plan(stages=(stage(0, 2),), microbatches=1)
    assert predict(plain, cluster(), job, plan).notes == ()
    (note,) = predict(plain, cluster(), Job(global_batch=4), plan).notes
    assert note.startswith("the optimizer's update counts as 0 s")


def test_update_is_bound_by_memory_bandwidth_unless_measured():
    where = cluster()
    device = dataclasses.replace(where.device, memory_bandwidth_bytes_per_s=14.0)
    where = dataclasses.replace(where, device=device)
    plan = Plan(stages=(stage(0, 2),), microbatches=1)
    # AdamW in float32 reads and writes 28 bytes per element.
    found = predict(TWO, where, Job(global_batch=1), plan)
    assert found.stages[0].optimizer_s == pytest.approx(30 * 28 / 14)
    found = predict(TWO, where, Job(global_batch=1, optimizer_s_per_element=0.5), plan)
    assert found.stages[0].optimizer_s == 15.0


@pytest.mark.parametrize(
    ("fields", "job", "field"),
    [
        ({"stages": (stage(0, 1),)}, 4, "stages: layers covered"),
        ({"stages": (stage(0, 2, replicas=4),)}, 4, "stages: devices"),
        ({"microbatches": 3}, 4, "microbatches"),
        ({"stages": (stage(0, 2, replicas=2),), "microbatches": 4}, 4, "stages[0].replicas"),
    ],
)
def test_plan_for_something_else_is_refused_by_every_entry(fields, job, field):
    plan = dataclasses.replace(TWO_STAGES, **fields)
    predictor = Predictor(TWO, cluster(3), Job(global_batch=job))
    for entry in (predictor.predict, predictor.score, predictor.timeline):
        with pytest.raises(InputError) as caught:
            entry(plan)
        assert str(caught.value).startswith(f"{field}: found ")


def sparse(made, density):
    groups = tuple(dataclasses.replace(group, density=density) for group in made.groups)
    return dataclasses.replace(made, groups=groups)


def test_sparse_groups_are_refused_where_the_device_states_no_cost_of_top_k():
    plan = Plan(stages=(sparse(stage(0, 2, replicas=2), 0.01),), microbatches=1)
    with pytest.raises(InputError, match=r"device\.top_k: found nothing"):
        predict(TWO, cluster(2), Job(global_batch=2), plan)


def with_top_k(where):
    """Top-k of 1 s whatever the size, and 0.25 s for each element that arrives."""
    top_k = TopK(elements=(1e6,), seconds=(1.0,), scatter_add_s_per_element=0.25)
    return dataclasses.replace(where, device=dataclasses.replace(where.device, top_k=top_k))


def test_a_sparse_stage_ends_with_its_last_group_by_hand():
    model = workload([layer(1.0, 2.0, gradient_elements=40), layer(1.0, 3.0, gradient_elements=20)])
    where = with_top_k(cluster(2, intra_node=link(0.5, 16.0)))
    one = sparse(stage(0, 2, groups=[(1, 2), (0, 1)], replicas=2), 0.1)
    job = Job(global_batch=2, optimizer_s_per_element=0.0)
    found = predict(model, where, job, Plan(stages=(one,), microbatches=1))
    # Forward 2 s. Layer 1: backward ends at 3, top-k at 4. k = 2, so 2 x 2 entries of 4 bytes are
    # gathered, twice (values, indices): a ring step of 0.5 s and half of 16 bytes over 16 bytes/s
    # each, 2 x 1 s; adding 4 elements takes 1 s: 4 to 7. Layer 0: backward ends at 6, top-k at 7.
    # k = 4: 2 x (0.5 + 16 / 16) + 8 x 0.25 = 5 s: 7 to 12.
    assert found.step_s == pytest.approx(2 + 12)
    (only,) = found.stages
    assert only.sparsification_s == pytest.approx(2.0)
    assert only.exposed_communication_s == pytest.approx(5.0)
    assert only.memory.residual_bytes == 60 * 4
    assert only.memory.buffer_bytes == 0


def test_sparsification_delays_the_gradient_sent_upstream_in_the_last_microbatch_only():
    model = workload([layer(1.0, 2.0), layer(1.0, 2.0, gradient_elements=10)])
    free = cluster(3, intra_node=link(0.0, 1e30))
    last = stage(1, 2, replicas=2)
    job = Job(global_batch=8, optimizer_s_per_element=0.0)
    plan = Plan(stages=(stage(0, 1), last), microbatches=4)
    dense = predict(model, free, job, plan)
    thin = dataclasses.replace(plan, stages=(plan.stages[0], sparse(last, 0.5)))
    slow = predict(model, with_top_k(free), job, thin)
    # Stage 0 (2 samples: 2 + 4 s a microbatch) waits for the last gradient one second longer.
    assert slow.stages[1].sparsification_s == 1.0
    starts = [
        Predictor(model, where, job).timeline(found)[0].last_backward_start_s_S
        for where, found in ((free, plan), (with_top_k(free), thin))
    ]
    assert starts[1][1] == starts[0][1]
    assert 0 <= starts[1][0] - starts[0][0] <= 1.0
    assert slow.step_s >= dense.step_s


def test_domain_narrows_the_bound():
    job = Job(global_batch=4, optimizer_s_per_element=0.0)
    where = cluster(4, intra_node=link(0.0, 1e30))
    plan = Plan(stages=(stage(0, 2),), microbatches=4)
    alone = Predictor(TWO, where, job, PlanDomain(microbatches=(4,), replicas=(1,), stages=(1, 2)))
    everything = Predictor(TWO, where, job)
    assert everything.bounds.quick_s < alone.bounds.quick_s <= alone.predict(plan).step_s
    assert everything.domain.microbatches == (1, 2, 4)
    assert everything.domain.replicas == (1, 2, 3, 4)


def test_divisors():
    rng = random.Random(8)
    for number in [1, 2, 36, 97, *(rng.randint(1, 5000) for _ in range(50))]:
        assert divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)


def test_messages_take_their_ends_own_time():
    job = Job(global_batch=2)
    bare = predict(TWO, cluster(2), job, TWO_STAGES)
    handled = predict(TWO, handling(cluster(2), 0.5, 0.025, "message_handling"), job, TWO_STAGES)
    for before, after in zip(bare.stages, handled.stages, strict=True):
        # One message of 10 bytes in or out, forward and backward.
        assert after.forward_s == before.forward_s + 0.75
        assert after.backward_s == before.backward_s + 0.75
    # A forward, two messages on the slow link, forward, backward, a message, and a backward.
    assert handled.step_s == bare.step_s + 4 * 0.75
    alone = Plan(stages=(stage(0, 2),), microbatches=2)
    where = handling(cluster(2), 0.5, 0.025, "message_handling")
    assert predict(TWO, where, job, alone).step_s == predict(TWO, cluster(2), job, alone).step_s


def test_an_exchange_takes_its_own_time_from_the_backward_beside_it():
    job = Job(global_batch=2)
    groups = [(1, 2), (0, 1)]
    plan = Plan(stages=(stage(0, 2, groups, replicas=2),), microbatches=1)
    where = handling(cluster(2), 0.5, 0.025, "exchange_handling")
    predictor = Predictor(TWO, where, job)
    (bare,), (found,) = (
        each.timeline(plan)[1] for each in (Predictor(TWO, cluster(2), job), predictor)
    )
    # The first group's 20 gradients of 4 bytes; beside the last group nothing is computed.
    assert found.handling_s == found.taken_s == 0.5 + 80 * 0.025
    assert found.compute_s == bare.compute_s + 2.5
    assert found.spans[0] == bare.spans[0]
    (timed,) = predictor.predict(plan).stages
    assert timed.sparsification_s == 0
    one = Plan(stages=(stage(0, 2, replicas=2),), microbatches=1)
    assert predictor.score(one).step_s == Predictor(TWO, cluster(2), job).score(one).step_s


def test_gap_is_infinite_where_the_bound_is_zero_and_json_leaves_it_out():
    found = predict(
        workload([layer(0.0, 0.0)]),
        cluster(),
        Job(global_batch=1),
        Plan(stages=(stage(0, 1),), microbatches=1),
    )
    assert found.step_s == 0
    assert found.gap == math.inf
    assert found.to_document()["gap"] is None


def memory_of(*layers, samples=1):
    job = Job(global_batch=samples, optimizer="sgd")
    plan = Plan(stages=(stage(0, len(layers)),), microbatches=1)
    return predict(workload(layers), cluster(1), job, plan).stages[0].memory


def test_a_peak_is_expected_without_the_stash_that_backward_has_released():
    # The first layer's backward runs when the second one's stash is gone.
    memory = memory_of(
        layer(stash_bytes_per_sample=10.0, workspace_bytes_per_sample=50.0),
        layer(stash_bytes_per_sample=20.0, workspace_bytes_per_sample=5.0),
    )
    assert (memory.total_bytes, memory.expected_bytes) == (80.0, 60.0)
    last = memory_of(
        layer(stash_bytes_per_sample=10.0, workspace_bytes_per_sample=5.0),
        layer(stash_bytes_per_sample=20.0, workspace_bytes_per_sample=50.0),
    )
    assert last.expected_bytes == last.total_bytes == 80.0


def test_inside_a_stage_a_layers_output_and_its_gradient_go_once_they_are_used():
    cuts = (1.0, 40.0, 10.0)
    layers = [layer(stash_bytes_per_sample=50.0, workspace_bytes_per_sample=200.0), layer()]
    job = Job(global_batch=1, optimizer="sgd")
    plan = Plan(stages=(stage(0, 2),), microbatches=1)
    given = workload(layers, cut_bytes_per_sample=cuts)
    memory = predict(given, cluster(1), job, plan).stages[0].memory
    # Input 1, stash 50, and of the first layer 200 + 1 + 40 - 2 * 40, of the end 2 * 10.
    assert memory.expected_bytes == 1 + 50 + 161 + 20
    assert memory.total_bytes == 1 + 50 + 241


@pytest.mark.parametrize(("samples", "working"), [(1, 32.0), (4, 38.0)])
def test_a_constant_workspace_does_not_grow_with_the_samples(samples, working):
    only = layer(workspace_bytes=30.0, workspace_bytes_per_sample=2.0)
    assert memory_of(only, samples=samples).working_bytes == working
