"""Plans for the models in execute/models, and what these must learn."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import builders

from autoplan import GradientGroup, Job, Plan, Stage
from autoplan.cluster.model import TopK
from autoplan.execute.model_source import load_model, require_paddle
from autoplan.execute.paddle_work import make_optimizer
from autoplan.predict import Predictor

MODEL = Path(__file__).with_name("execute") / "models" / "tiny_chain.py"
SAMPLES = 16
LAYERS = 6


def predictor(num_layers=LAYERS, devices=4, layer_s=1e-4, optimizer="adam", **link):
    layers = [
        builders.layer(layer_s * (1 + i % 3), 2 * layer_s, 1000 + 100 * i)
        for i in range(num_layers)
    ]
    cuts = [0.0, *[2000.0] * (num_layers - 1), 0.0]
    cluster = builders.cluster(devices, intra_node=builders.link(**{"alpha_s": 1e-4, **link}))
    top_k = TopK(elements=(1000.0,), seconds=(1e-4,))
    cluster = dataclasses.replace(cluster, device=dataclasses.replace(cluster.device, top_k=top_k))
    job = Job(global_batch=SAMPLES, optimizer=optimizer, optimizer_s_per_element=1e-8)
    return Predictor(builders.workload(layers, cuts), cluster, job)


def sparse(first, end, ranges, density):
    groups = tuple(GradientGroup(layers=layers, density=density) for layers in ranges)
    return Stage(layers=(first, end), replicas=2, groups=groups)


def pipeline(*stages, microbatches=4, schedule="1f1b", **fields):
    return Plan(stages=stages, microbatches=microbatches, schedule=schedule, **fields)


def reference_losses(steps):
    """Losses of one process that takes the whole batch at once."""
    model = load_model(f"{MODEL}:build")
    parameters = [parameter for layer in model.layers for parameter in layer.parameters()]
    optimizer = make_optimizer(require_paddle(), "adam", parameters)
    losses = []
    for _ in range(steps):
        tensors = model.inputs
        for layer in model.layers:
            output = layer(*tensors)
            tensors = output if isinstance(output, tuple) else (output,)
        loss = model.loss(output, model.labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses
