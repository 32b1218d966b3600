"""A chain of uneven layers and a cluster, of any size, for benchmarks of scale."""

from __future__ import annotations

import numpy as np

from autoplan import Cluster, CostCurve, Device, Job, Layer, Link, Workload

TOKENS, WIDTH = 1024, 1024
"""Tokens of a sample, and numbers of each token between layers."""
ELEMENTS = 6e6
"""Mean elements of a layer."""
FLOP_PER_S = 4e14
"""What a device reaches."""
OVERHEAD_S = 4e-6
"""Seconds of a call however small it is."""
UNEVENNESS = 0.4
"""Standard deviation of the logarithm of layers' sizes."""
SAMPLES = 8


def chain(num_layers: int, seed: int = 0, unevenness: float = UNEVENNESS) -> Workload:
    """A model whose layers take 2 FLOP per element and token forwards, and twice that backwards.

    Sizes are drawn from a lognormal distribution; every layer keeps its output, in 16 bits.
    """
    rng = np.random.default_rng(seed)
    elements_L = (ELEMENTS * rng.lognormal(-(unevenness**2) / 2, unevenness, num_layers)).round()
    output_bytes = 2.0 * TOKENS * WIDTH
    layers = []
    for i, elements in enumerate(elements_L.tolist()):
        forward_s = 2 * elements * TOKENS / FLOP_PER_S
        curves = [
            CostCurve(
                samples=(1.0, float(SAMPLES)),
                seconds=(OVERHEAD_S + work_s, OVERHEAD_S + SAMPLES * work_s),
                overhead_s=OVERHEAD_S,
            )
            for work_s in (forward_s, 2 * forward_s)
        ]
        layers.append(
            Layer(
                name=f"layer {i}",
                forward=curves[0],
                backward=curves[1],
                gradient_elements=int(elements),
                parameter_bytes=2.0 * elements,
                stash_bytes_per_sample=output_bytes,
            )
        )
    cuts = (0.0, *[output_bytes] * (num_layers - 1), 0.0)
    return Workload(name=f"chain of {num_layers}", layers=tuple(layers), cut_bytes_per_sample=cuts)


def nodes_of_eight(num_devices: int) -> Cluster:
    """Nodes of eight 80 GB devices, a port of 400 Gb/s for each device."""
    return Cluster(
        name=f"{num_devices} devices",
        nodes=max(1, num_devices // 8),
        devices_per_node=min(8, num_devices),
        device=Device(name="80 GB", memory_bytes=80e9, memory_bandwidth_bytes_per_s=3.35e12),
        intra_node=Link(name="inside", alpha_s=2e-6, bandwidth_bytes_per_s=4.5e11),
        inter_node=Link(name="port", alpha_s=5e-6, bandwidth_bytes_per_s=5e10),
        nics_per_node=8,
    )


def training(global_batch: int) -> Job:
    """Mixed precision with Adam."""
    return Job(global_batch=global_batch, optimizer="adamw", precision="bfloat16")
