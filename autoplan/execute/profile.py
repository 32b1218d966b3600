"""Measures a Paddle model layer by layer into a Workload."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from autoplan.errors import require
from autoplan.execute.host_memory import keep_freed_memory
from autoplan.execute.layer_steps import (
    Call,
    MemoryProbe,
    TimeProbe,
    as_tuple,
    layer_step,
    tensor_bytes,
    whole_step,
)
from autoplan.execute.model_source import TrainableModel, load_model, require_paddle
from autoplan.execute.paddle_device import Device, current_device
from autoplan.execute.readings import Readings, steady_readings
from autoplan.workload import BytesCurve, Layer, Provenance, Workload

MIN_SIZES = 3
"""Time is affine in the microbatch: two points make a line, a third shows whether it is one."""
MIN_REPEATS = 7
"""Fewer give no usable quartiles."""
_OWN_THREAD_SHARE = 0.9
"""From this share of the process's CPU time on, the measuring thread does the computing."""


def profile(
    source: str,
    *,
    microbatch_sizes: tuple[int, ...] | None = None,
    repeats: int = 7,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Workload:
    """Measures seconds, gradients and bytes of every layer of a Paddle model.

    Each round runs, for every microbatch size in random order, a training step in which every
    layer's forward and backward is timed in its place in the chain, so that its data and weights
    are as cold as in a stage of a pipeline. Memory that tensors give back stays with the process
    from now on (`host_memory`). Weight gradients are added up as over microbatches.
    Two rounds warm up, the second of which takes the memory figures, and `repeats` rounds follow;
    a figure is the median over them, of readings scaled to the machine's median speed
    (`readings.steady_readings`). The model and one batch of activations must fit the device.

    The clock: on a GPU the wall clock around a synchronised device. On a CPU with one compute
    thread, the CPU seconds of that thread: time that other processes take from it does not count,
    and on a quiet machine both clocks agree to 2 % (facts/realruns.md, 0 and 3f). With more
    threads the wall clock, as no sum of CPU seconds says how long the slowest thread took; then
    the machine must be quiet. The notes of the result say which clock it was and how far the
    other one is from it. On a shared host 7 repeats leave several per cent of noise, 40 one or two.

    Bytes kept per sample are those at the largest size divided by its samples: exact where memory
    is tightest. What backward needs for a moment is kept for every size, and as a line that is
    never below: new gradients of the parameters do not grow with the microbatch.

    Args:
        source: "MODULE:FUNCTION"; the function returns (layers in forward order, (inputs, labels),
            loss). A layer takes what the one before returns, a tuple as several arguments; the
            last one's output goes to `loss(output, labels)`, which counts as part of that layer.
        microbatch_sizes: at least three different ones, up to the samples in the batch; None
            takes a quarter, half and all of these.
        repeats: measured rounds, at least 7.
        seed: for Paddle's random numbers and the order of sizes.
        progress: is told in one line what was done.

    Raises:
        InputError: paddle, module or function is missing; the model has another form, or fails.
    """
    require(repeats >= MIN_REPEATS, "repeats", repeats, f"at least {MIN_REPEATS}")
    model = load_model(source, seed)
    sizes = _sizes(microbatch_sizes, model.num_samples)
    device = current_device()
    keep_freed_memory()  # as the ranks of real runs do
    tell = progress or (lambda line: None)
    readings, bytes_of = _measure(model, sizes, repeats, np.random.default_rng(seed), device, tell)
    parameters, shared = _own_parameters(model)
    layers = tuple(_layer(model, i, readings, bytes_of, own) for i, own in enumerate(parameters))
    for i, layer in enumerate(layers):
        per_sample_ms = [1e3 * c.seconds[-1] / sizes[-1] for c in (layer.forward, layer.backward)]
        tell(
            f"layer {i + 1} of {len(layers)}: {layer.name}: forward {per_sample_ms[0]:.3f} ms, "
            f"backward {per_sample_ms[1]:.3f} ms per sample"
        )
    return Workload(
        name=model.name,
        layers=layers,
        cut_bytes_per_sample=_cut_bytes_per_sample(model, sizes[-1]),
        provenance=Provenance(
            source=model.source,
            source_sha256=model.source_sha256,
            device=device.description,
            framework=f"paddlepaddle {require_paddle().__version__}",
            threads=device.threads,
            notes=(*_notes(readings, repeats), *_dtypes(model), *shared),
        ),
    )


def _sizes(asked: tuple[int, ...] | None, num_samples: int) -> tuple[int, ...]:
    """The microbatch sizes in rising order."""
    if asked is None:
        found = (num_samples // 4, num_samples // 2, num_samples)
        allowed = "a batch of at least 4 samples, to measure a quarter, half and all of it"
        require(num_samples >= 4, "sample", num_samples, allowed)
        return found
    sizes = tuple(sorted(set(asked)))
    sound = len(sizes) >= MIN_SIZES and sizes[0] >= 1 and sizes[-1] <= num_samples
    allowed = f"{MIN_SIZES} or more different sizes of 1 to {num_samples}, the samples in the batch"
    require(sound, "microbatch_sizes", asked, allowed)
    return sizes


def _measure(
    model: TrainableModel,
    sizes: tuple[int, ...],
    repeats: int,
    rng: np.random.Generator,
    device: Device,
    tell: Callable[[str], None],
) -> tuple[Readings, dict[int, dict[Call, int]]]:
    """Seconds of every call, its bytes at the least and most samples; no garbage collection."""
    batches = {n: model.batch(n) for n in sizes}
    for layer in model.layers:
        if hasattr(layer, "train"):
            layer.train()
    for n in sizes:
        layer_step(model, batches[n], TimeProbe(device))
        whole_step(model, batches[n])
    memory = {n: MemoryProbe(device) for n in sizes}
    probes = {n: TimeProbe(device) for n in sizes}
    wholes = {n: TimeProbe(device) for n in sizes}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for n, memory_probe in memory.items():
            layer_step(model, batches[n], memory_probe)
        thread_s, process_s = time.thread_time(), time.process_time()
        for repeat in range(repeats):
            for n in rng.permutation(sizes).tolist():
                layer_step(model, batches[n], probes[n])
                wholes[n].start()
                whole_step(model, batches[n])
                wholes[n].stop(("forward", 0), 0)
            gc.collect()
            tell(f"round {repeat + 1} of {repeats}")
        thread_s, process_s = time.thread_time() - thread_s, time.process_time() - process_s
    finally:
        if collecting:
            gc.enable()
    return steady_readings(
        {n: probe.readings for n, probe in probes.items()},
        {n: probe.readings["forward", 0] for n, probe in wholes.items()},
        cpu_clock=device.threads == 1 and thread_s >= _OWN_THREAD_SHARE * process_s,
    ), {n: memory_probe.bytes for n, memory_probe in memory.items()}


def _own_parameters(model: TrainableModel) -> tuple[list[list[Any]], tuple[str, ...]]:
    """Each layer's parameters, a shared one with its first layer only, and notes on these.

    The first layer is the last to add to the gradient, so that it is complete with its backward.
    """
    owner: dict[int, int] = {}
    own: list[list[Any]] = [[] for _ in model.layers]
    notes = []
    for i, layer in enumerate(model.layers):
        for parameter in layer.parameters() if hasattr(layer, "parameters") else ():
            first = owner.setdefault(id(parameter), i)
            if first == i:
                own[i].append(parameter)
                continue
            notes.append(
                f"a parameter of {int(parameter.size)} elements is shared by "
                f"{model.layer_names[first]} and {model.layer_names[i]}: counted once, in the first"
            )
    return own, tuple(notes)


def _layer(
    model: TrainableModel,
    i: int,
    readings: Readings,
    bytes_of: dict[int, dict[Call, int]],
    parameters: list[Any],
) -> Layer:
    few, many = readings.sizes[0], readings.sizes[-1]
    workspaces = [bytes_of[n]["backward", i] for n in readings.sizes]
    # The line through the smallest and the largest size, moved up to where it bounds all.
    slope = max(0.0, (workspaces[-1] - workspaces[0]) / (many - few))
    constant = max(0.0, *(b - slope * n for n, b in zip(readings.sizes, workspaces, strict=True)))
    return Layer(
        name=model.layer_names[i],
        forward=readings.curve(("forward", i)),
        backward=readings.curve(("backward", i)),
        gradient_elements=sum(int(p.size) for p in parameters if not p.stop_gradient),
        parameter_bytes=float(tensor_bytes(parameters)),
        stash_bytes_per_sample=bytes_of[many]["forward", i] / many,
        workspace_bytes_per_sample=slope,
        workspace_bytes=constant,
        workspace_curve=BytesCurve(
            samples=tuple(map(float, readings.sizes)), bytes=tuple(map(float, workspaces))
        ),
    )


def _cut_bytes_per_sample(model: TrainableModel, samples: int) -> tuple[float, ...]:
    """Bytes before each layer, and 0 at the end, where the loss leaves nothing to send."""
    tensors, _ = model.batch(samples)
    cuts = []
    with require_paddle().no_grad():
        for layer in model.layers:
            cuts.append(tensor_bytes(tensors) / samples)
            tensors = as_tuple(layer(*tensors))
    return (*cuts, 0.0)


def _notes(readings: Readings, repeats: int) -> tuple[str, ...]:
    """How the figures were taken, how noisy they are, and how well they add up."""
    clock = "CPU seconds of the computing thread" if readings.cpu_clock else "wall seconds"
    samples = readings.sizes[-1]
    return (
        f"median of {repeats} repeats per microbatch size after two warm-up rounds, each reading "
        f"divided by the speed of its round and step; {clock}; wall over thread CPU seconds "
        f"{readings.wall_per_thread_s:.3f}",
        f"half interquartile range over median, the median over layers and sizes: "
        f"{readings.noise(steady=True):.2%} ({readings.noise(steady=False):.2%} as read); "
        f"of the machine's speed between rounds: {readings.wander:.2%}",
        f"forward and backward of the uncut model at {samples} samples "
        f"{readings.whole_s[samples]:.6g} s; the sum of its layers differs by "
        f"{readings.excess_over_whole():+.2%}, without the {1e6 * readings.seam_s:.3g} us that "
        "starting each layer's backward alone costs",
        "the loss is part of the last layer; the model's input gets no gradient",
        f"stash: at {samples} samples, divided by them; workspace: at every size, and "
        "a line that is never below",
    )


def _dtypes(model: TrainableModel) -> tuple[str, ...]:
    names = {
        str(parameter.dtype).rpartition(".")[2]
        for layer in model.layers
        if hasattr(layer, "parameters")
        for parameter in layer.parameters()
    }
    return (f"parameters are {', '.join(sorted(names))}",) if names else ()
