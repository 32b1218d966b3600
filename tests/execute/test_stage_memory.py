"""The peak of a stage's real work beside the one that is predicted from the model's profile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("paddle")

from autoplan import Cluster, Device, Job, Link, Plan, Stage
from autoplan.execute.clocks import StepClock
from autoplan.execute.paddle_device import CpuDevice, current_device
from autoplan.execute.paddle_work import PaddleWork
from autoplan.execute.profile import profile
from autoplan.execute.rank_model import RankModel
from autoplan.execute.tensors import HostTensors
from autoplan.execute.transport import Message
from autoplan.plan import GradientGroup
from autoplan.predict import Predictor

MODELS = Path(__file__).resolve().parents[2] / "experiments" / "models" / "validation_models.py"
SAMPLES = 8


def peak_bytes(held, plan, job, received):
    """Of one step of the plan's only or first stage."""
    device = current_device()
    assert isinstance(device, CpuDevice)
    work = PaddleWork(held, plan, (0, 0), job, HostTensors(device))
    for _ in range(2):
        work.begin(StepClock("real"))
        work.forward(0, None)
        work.backward(0, received, None)
        work.update()
    return work.close()["peak_bytes"]


@pytest.mark.parametrize("name", ["conv", "mlp"])
@pytest.mark.parametrize("samples", [4, SAMPLES])
@pytest.mark.parametrize("layers", [1, 2, 3, 5, None])
def test_the_peak_of_a_stage_is_the_predicted_one(profiled, name, layers, samples):
    workload, held = profiled(name, samples)
    count = len(workload.layers)
    ends = [layers, count] if layers else [count]
    stages = tuple(
        Stage(layers=span, replicas=1, groups=(GradientGroup(layers=span),))
        for span in zip([0, *ends], ends, strict=False)
    )
    plan = Plan(stages=stages, microbatches=1)
    job = Job(global_batch=samples, optimizer="sgd")
    device = Device(name="core", memory_bytes=1e9)
    link = Link(name="loop", alpha_s=0.0, bandwidth_bytes_per_s=1e9)
    cluster = Cluster(name="two", devices_per_node=2, device=device, intra_node=link)
    predicted = Predictor(workload, cluster, job).predict(plan, lower_bound_s=0.0)
    received = None
    if layers:
        leaving = held.inputs(slice(0, samples))
        for layer in held.model.layers[:layers]:
            leaving = (layer(*leaving),)
        received = Message(arrays=(np.ones(leaving[0].shape, np.float32),))
        del leaving
    measured = peak_bytes(held, plan, job, received)
    assert measured == pytest.approx(predicted.stages[0].memory.expected_bytes, rel=0.03)


@pytest.fixture(scope="module")
def profiled():
    """Profiles and models by name, each made once."""
    known = {}

    def of(name, samples):
        source = f"{MODELS}:{name}"
        if name not in known:
            known[name] = profile(source, microbatch_sizes=(2, 4, SAMPLES))
        if (name, samples) not in known:
            known[name, samples] = RankModel(source, 0, samples)
        return known[name], known[name, samples]

    return of
