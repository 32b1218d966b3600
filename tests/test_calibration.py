from __future__ import annotations

import dataclasses

import pytest
from builders import cluster, layer, link, stage, workload

from autoplan import Job, Plan
from autoplan.calibration import Calibration, calibrated, load_calibration, scaled_devices
from autoplan.cluster.model import FusedCopy, MessageHandling, TopK, Update
from autoplan.errors import InputError
from autoplan.predict import Predictor

PLAN = Plan(stages=(stage(0, 1), stage(1, 3)), microbatches=2)
REPLICATED = Plan(stages=(stage(0, 3, [(1, 3), (0, 1)], replicas=2),), microbatches=2)


def problem(**link_fields):
    layers = [layer(1.0 + i, 2.0, gradient_elements=100) for i in range(3)]
    made = cluster(2, intra_node=link(**link_fields))
    device = dataclasses.replace(
        made.device,
        memory_bandwidth_bytes_per_s=100.0,
        top_k=TopK(elements=(1.0, 10.0), seconds=(1.0, 2.0), scatter_add_s_per_element=0.5),
        fused_copy=FusedCopy(s_per_group=0.25, s_per_element=0.125),
        message_handling=MessageHandling(s_per_message=0.25, s_per_byte=0.5),
        exchange_handling=MessageHandling(s_per_message=0.5, s_per_byte=0.25),
        updates=(Update(optimizer="sgd", s_per_element=0.01),),
    )
    job = Job(global_batch=4, optimizer="sgd")
    return workload(layers, [0, 8, 8, 0]), dataclasses.replace(made, device=device), job


def calibration(**fields):
    given = {
        "device_factor": 1.5,
        "clock": "virtual",
        "plans_sha256": ("a", "b"),
        "errors_before": (-0.3, -0.31),
        "errors_after": (0.01, -0.02),
        "workload": "model",
        "device": "device",
    }
    return Calibration(**given | fields)


def step_s(parts, plan):
    return Predictor(*parts).score(plan).step_s


@pytest.mark.parametrize("plan", [PLAN, REPLICATED], ids=["pipeline", "replicas"])
def test_everything_that_a_device_does_takes_the_factor(plan):
    free = problem(bandwidth_bytes_per_s=1e12)
    scaled = scaled_devices(*free, 1.5)
    assert step_s(scaled, plan) == pytest.approx(1.5 * step_s(free, plan), rel=1e-9)


def test_links_keep_their_seconds():
    slow = problem(alpha_s=1000.0, bandwidth_bytes_per_s=1e12)
    plain_s, scaled_s = step_s(slow, PLAN), step_s(scaled_devices(*slow, 1.5), PLAN)
    device_s = step_s(problem(bandwidth_bytes_per_s=1e12), PLAN)
    assert plain_s < scaled_s < plain_s + 0.5 * device_s + 1e-6


def test_a_calibrated_prediction_says_so():
    made = Predictor(*calibrated(*problem(), calibration()))
    notes = made.predict(PLAN, lower_bound_s=0.0).notes
    assert [note for note in notes if note.startswith("calibrated: device seconds times 1.5")]
    assert "2 real runs of model on device (virtual clock), which it predicts to 1.5 %" in notes[0]


def test_a_calibration_file_is_read_back(tmp_path):
    calibration().save(tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json") == calibration()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"device_factor": 0.0}, "device_factor"),
        ({"plans_sha256": (), "errors_before": (), "errors_after": ()}, "plans_sha256"),
        ({"errors_after": (0.1,)}, "errors_after"),
    ],
)
def test_calibrations_without_sense_are_refused(fields, field):
    with pytest.raises(InputError, match=f"^{field}: found"):
        calibration(**fields)
