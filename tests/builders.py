"""Small problems for tests. Random ones draw from the `random.Random` that they are given."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

from autoplan import Cluster, CostCurve, Device, GradientGroup, Job, Layer, Link, Plan, Stage
from autoplan import Workload as Model
from autoplan.bounds.plans import divisors
from autoplan.cluster import FusedCopy, MeasuredCollective, MessageHandling


def layer(forward_s=1.0, backward_s=2.0, gradient_elements=0, **fields):
    """A layer whose time is proportional to the samples."""
    return Layer(
        name=fields.pop("name", "layer"),
        forward=CostCurve.proportional(forward_s),
        backward=CostCurve.proportional(backward_s),
        gradient_elements=gradient_elements,
        **fields,
    )


def workload(layers, cut_bytes_per_sample=None):
    """A model of these layers; by default nothing crosses its cuts."""
    cuts = cut_bytes_per_sample or (0.0,) * (len(layers) + 1)
    return Model(name="model", layers=tuple(layers), cut_bytes_per_sample=tuple(cuts))


def link(alpha_s=0.0, bandwidth_bytes_per_s=1.0):
    return Link(name="link", alpha_s=alpha_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s)


def cluster(devices_per_node=1, nodes=1, memory_bytes=1e12, **fields):
    """Devices without known memory bandwidth; links of 1 byte/s without latency by default."""
    fields.setdefault("intra_node", link())
    if nodes > 1:
        fields.setdefault("inter_node", link())
    device = Device(name="device", memory_bytes=memory_bytes)
    return Cluster(
        name="cluster", nodes=nodes, devices_per_node=devices_per_node, device=device, **fields
    )


def stage(first, end, groups=None, **fields):
    """A stage with one gradient group unless `groups` names their ranges in backward order."""
    ranges = groups or [(first, end)]
    made = tuple(GradientGroup(layers=tuple(layers)) for layers in ranges)
    return Stage(layers=(first, end), groups=made, **fields)


def random_curve(rng):
    """One to three measured sizes; seconds need not rise."""
    samples = sorted(rng.sample([0.5, 1, 2, 3, 4, 8], rng.randint(1, 3)))
    seconds = [rng.choice([0.0, rng.uniform(0, 2), rng.uniform(0, 9)]) for _ in samples]
    overhead = rng.choice([0.0, rng.random() * seconds[0]])
    return CostCurve(samples=tuple(samples), seconds=tuple(seconds), overhead_s=overhead)


def random_workload(rng, max_layers=6):
    layers = [
        Layer(
            name=f"layer {i}",
            forward=random_curve(rng),
            backward=random_curve(rng),
            gradient_elements=rng.choice([0, rng.randint(1, 30)]),
            parameter_bytes=rng.choice([0.0, rng.uniform(0, 99)]),
            stash_bytes_per_sample=rng.uniform(0, 9),
            workspace_bytes_per_sample=rng.uniform(0, 9),
        )
        for i in range(rng.randint(1, max_layers))
    ]
    cuts = [rng.choice([0.0, rng.uniform(0, 20)]) for _ in range(len(layers) + 1)]
    return workload(layers, cuts)


def random_link(rng):
    return link(rng.choice([0.0, rng.uniform(0, 2)]), rng.uniform(0.5, 40))


def random_cluster(rng, max_nodes=3):
    return cluster(
        devices_per_node=rng.randint(1, 3),
        nodes=rng.randint(1, max_nodes),
        memory_bytes=rng.choice([1e12, rng.uniform(50, 900)]),
        intra_node=random_link(rng),
        inter_node=random_link(rng),
        nics_per_node=rng.randint(1, 3),
        all_reduce=rng.choice(["auto", "ring", "tree", "hierarchical"]),
    )


def random_measured(rng, where, *, exchange_handling=True):
    """The cluster with some of what is measured on one: tables, copies, and what takes compute."""
    device = where.device
    if rng.random() < 0.5:
        copy = FusedCopy(s_per_group=rng.random() / 9, s_per_element=rng.random() / 99)
        device = dataclasses.replace(device, fused_copy=copy)
    names = ["message_handling", "exchange_handling"] if exchange_handling else ["message_handling"]
    for name in names:
        if rng.random() < 0.5:
            cost = MessageHandling(s_per_message=rng.random() / 4, s_per_byte=rng.random() / 99)
            device = dataclasses.replace(device, **{name: cost})
    tables = []
    for devices in range(2, where.num_devices + 1):
        for nodes in range(1, min(devices, where.nodes) + 1):
            if rng.random() < 0.5:
                sizes = sorted(rng.sample(range(1, 200), rng.randint(1, 4)))
                tables.append(
                    MeasuredCollective(
                        collective="all_reduce",
                        devices=devices,
                        nodes=nodes,
                        size_bytes=tuple(map(float, sizes)),
                        seconds=tuple(sorted(rng.uniform(0.1, 9) for _ in sizes)),
                    )
                )
    return dataclasses.replace(where, device=device, measured=tuple(tables))


def random_job(rng):
    return Job(
        global_batch=rng.choice([1, 2, 4, 6, 12]),
        optimizer=rng.choice(["sgd", "momentum", "adam"]),
        precision=rng.choice(["float32", "bfloat16"]),
        memory_headroom=rng.choice([0, 0.1]),
        optimizer_s_per_element=rng.choice([None, 0.0, rng.uniform(0, 0.2)]),
    )


def random_plan(rng, num_layers, num_devices, global_batch):
    """Any valid plan: cuts, replicas, groups, recompute, microbatches, schedule, rank order."""
    microbatches = rng.choice(divisors(global_batch))
    samples = global_batch // microbatches
    num_stages = rng.randint(1, min(num_layers, num_devices))
    cuts = sorted(rng.sample(range(1, num_layers), num_stages - 1))
    bounds = [0, *cuts, num_layers]
    free = num_devices - num_stages
    stages = []
    for first, end in pairwise(bounds):
        replicas = rng.choice([r for r in divisors(samples) if r <= free + 1])
        free -= replicas - 1
        ends = sorted(rng.sample(range(first + 1, end), rng.randint(0, end - first - 1)))
        edges = [first, *ends, end]
        groups = list(pairwise(edges))[::-1]
        stages.append(
            stage(first, end, groups, replicas=replicas, recompute=rng.random() < 0.3),
        )
    return Plan(
        stages=tuple(stages),
        microbatches=microbatches,
        schedule=rng.choice(["1f1b", "gpipe"]),
        rank_order=rng.choice(["replica", "stage"]),
    )
