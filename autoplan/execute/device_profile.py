"""What a device needs beside its layers: update, fused copies, messages, top-k of gradients."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoplan.cluster import Device
from autoplan.cluster.model import FusedCopy, MessageHandling, TopK, Update
from autoplan.errors import InputError, require, words
from autoplan.execute.fits import Fit, fit_affine
from autoplan.execute.host_memory import keep_freed_memory
from autoplan.execute.layer_steps import whole_step
from autoplan.execute.link_probe import OTHER_BYTES
from autoplan.execute.links import profile_exchange_handling
from autoplan.execute.message_profile import profile_messages
from autoplan.execute.model_source import TrainableModel, load_model, require_paddle
from autoplan.execute.paddle_device import current_device, set_threads
from autoplan.execute.paddle_work import make_optimizer
from autoplan.execute.tensors import HostGradients
from autoplan.execute.top_k import top_k
from autoplan.gradsync.costs import kept

_ACCUMULATED = 3
"""Backward passes whose gradients are added up before they are looked at."""
_SMALLEST = 1024
_STEPS = 12
"""Sizes of groups that are measured, evenly on a logarithmic scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """Measured costs of a device, and how well they are known."""

    update: Update
    top_k: TopK
    fused_copy: FusedCopy
    copy_fit: Fit
    message_handling: MessageHandling
    message_fit: Fit
    exchange_handling: MessageHandling
    exchange_fit: Fit
    elements: int
    """Gradient elements of the model."""
    source: str
    """MODULE:FUNCTION of the model."""

    @property
    def line(self) -> str:
        """All that was found, in words."""
        top, copy, fit = self.top_k, self.fused_copy, self.copy_fit
        return (
            f"gradients of {self.source}, {self.elements} elements: update "
            f"({self.update.optimizer}) {1e9 * self.update.s_per_element:.3g} ns per element; "
            f"top-k {1e9 * top.seconds[-1] / top.elements[-1]:.3g} ns per element at the most; "
            f"copies of a group {1e6 * copy.s_per_group:.3g} us + "
            f"{1e9 * copy.s_per_element:.3g} ns per element (residuals: median "
            f"{100 * fit.median_residual:.0f} %, largest {100 * fit.largest_residual:.0f} %); "
            f"either end of a message {_handling(self.message_handling, self.message_fit)}; "
            f"an all-reduce beside compute {_handling(self.exchange_handling, self.exchange_fit)}"
        )

    def on(self, device: Device) -> Device:
        """The device with these costs in place of what it stated."""
        others = tuple(u for u in device.updates if u.optimizer != self.update.optimizer)
        return dataclasses.replace(
            device,
            updates=(*others, self.update),
            top_k=self.top_k,
            fused_copy=self.fused_copy,
            message_handling=self.message_handling,
            exchange_handling=self.exchange_handling,
        )


def _handling(handling: MessageHandling, fit: Fit) -> str:
    return (
        f"{1e6 * handling.s_per_message:.3g} us + {1e9 * handling.s_per_byte:.3g} ns per byte "
        f"(residuals: median {100 * fit.median_residual:.0f} %, largest "
        f"{100 * fit.largest_residual:.0f} %)"
    )


def profile_device(
    source: str,
    *,
    optimizer: str = "adamw",
    density: float = 0.01,
    repeats: int = 7,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> DeviceProfile:
    """Measures the update, copies of gradient groups, top-k on the model's gradients, messages.

    Selection time depends on how the values are spread: on random numbers it is off by a factor of
    two (facts/realruns.md section 3a). Figures are medians of CPU seconds of this thread, so that
    time which others take does not count.

    Args:
        source: "MODULE:FUNCTION", as for `profile`.
        optimizer: which update, as a job calls it.
        density: share of the elements that top-k keeps.
        repeats: measured rounds.
        seed: for Paddle's random numbers.
        progress: is told in one line what was done.

    Raises:
        InputError: the model is not usable, has no gradients, or Paddle's device is a GPU.
        RunFailedError: two ranks could not exchange anything.
    """
    require(repeats >= 3, "repeats", repeats, "at least 3")
    require(0 < density <= 1, "density", density, "above 0, at most 1")
    tell = progress or (lambda line: None)
    model, parameters = _trained(source, seed)
    gradients = HostGradients(parameters)
    elements = sum(gradients.sizes)
    tell(f"{elements} gradient elements of {len(parameters)} parameters")
    top = _top_k(model, gradients, density, repeats)
    tell(f"top-k: {1e9 * top.seconds[-1] / top.elements[-1]:.2f} ns per element")
    copy, fit = _copies(gradients, repeats)
    tell(f"fused copy: {1e6 * copy.s_per_group:.1f} us, {1e9 * copy.s_per_element:.3f} ns/element")
    messages, message_fit = profile_messages(repeats, lambda: whole_step(model, model.batch(1)))
    tell(f"message: {_handling(messages, message_fit)}")
    exchanges, exchange_fit = profile_exchange_handling()
    tell(f"all-reduce: {_handling(exchanges, exchange_fit)}")
    update_s = _update_s(require_paddle(), optimizer, parameters, repeats)
    tell(f"update ({optimizer}): {1e9 * update_s / elements:.3f} ns per element")
    return DeviceProfile(
        update=Update(optimizer=optimizer, s_per_element=update_s / elements),
        top_k=top,
        fused_copy=copy,
        copy_fit=fit,
        message_handling=messages,
        message_fit=message_fit,
        exchange_handling=exchanges,
        exchange_fit=exchange_fit,
        elements=elements,
        source=model.source,
    )


def _trained(source: str, seed: int) -> tuple[TrainableModel, list[Any]]:
    """The model and its parameters, whose gradients are those of a few steps, added up."""
    device = current_device()
    found = words(f"{device.description}, a GPU")
    require(device.threads is not None, "device", found, "a CPU: copies on GPUs overlap with both")
    set_threads(1)
    keep_freed_memory()  # as the ranks of real runs do
    model = load_model(source, seed)
    parameters = _parameters(model)
    found = words("a model that trains no parameter")
    require(bool(parameters), "layers", found, "layers with parameters")
    for _ in range(_ACCUMULATED):
        whole_step(model, model.batch(model.num_samples))
    return model, parameters


def _parameters(model: TrainableModel) -> list[Any]:
    """Trained parameters in backward order of their layers, each once, all with gradients."""
    paddle = require_paddle()
    layers = [layer for layer in model.layers if hasattr(layer, "parameters")]
    unique = {id(p): p for layer in layers for p in layer.parameters() if not p.stop_gradient}
    parameters = list(reversed(unique.values()))
    narrow = next((p for p in parameters if p.dtype != paddle.float32), None)
    if narrow is not None:
        raise InputError("layers", words(f"a parameter of {narrow.dtype}"), "float32 parameters")
    for parameter in parameters:
        parameter.grad = paddle.zeros_like(parameter)
    return parameters


def _top_k(model: TrainableModel, gradients: HostGradients, density: float, repeats: int) -> TopK:
    """Selections among the first so many parameters, as a sparse group makes them.

    A backward goes before each round, as it does before an exchange, and other work before each
    selection, so that caches are as cold.
    """
    offsets = np.concatenate([[0], np.cumsum(gradients.sizes)])
    counts = sorted({int(np.searchsorted(offsets, size)) for size in _sizes(int(offsets[-1]))})
    residual, scratch = (np.zeros(int(offsets[-1]), np.float32) for _ in range(2))
    seconds_SR, scatter_SR = (np.zeros((len(counts), repeats)) for _ in range(2))
    rng = np.random.default_rng(0)
    others = np.ones(OTHER_BYTES, np.uint8)
    for repeat in range(-1, repeats):  # the first round compiles
        whole_step(model, model.batch(1))
        for s in rng.permutation(len(counts)).tolist():
            size = int(offsets[counts[s]])
            k = int(kept(np.array(float(size)), density))
            others += 1
            began_s = time.thread_time()
            for number in range(counts[s]):
                gradients.read(number, scratch[offsets[number] : offsets[number + 1]])
            part = residual[:size]
            part += scratch[:size]
            indices = top_k(part, k)
            values = part[indices]
            part[indices] = 0.0
            selected_s = time.thread_time()
            scratch[indices] += values
            if repeat >= 0:
                seconds_SR[s, repeat] = selected_s - began_s
                scatter_SR[s, repeat] = (time.thread_time() - selected_s) / k
    return TopK(
        elements=tuple(float(offsets[count]) for count in counts),
        seconds=tuple(float(s) for s in np.median(seconds_SR, axis=1)),
        scatter_add_s_per_element=float(np.median(scatter_SR[-1])),
    )


def _copies(gradients: HostGradients, repeats: int) -> tuple[FusedCopy, Fit]:
    """Runs of consecutive parameters, copied to one buffer and back, with caches cold before."""
    ends = np.cumsum(gradients.sizes)
    groups = sorted({(0, int(np.searchsorted(ends, n)) + 1) for n in _sizes(int(ends[-1]))})
    seconds_G = np.array([_copy_s(gradients, group, repeats) for group in groups])
    elements_G = np.array([float(sum(gradients.sizes[slice(*group)])) for group in groups])
    fit = fit_affine(elements_G.tolist(), seconds_G.tolist())
    return FusedCopy(s_per_group=fit.coefficients[0], s_per_element=fit.coefficients[1]), fit


def _copy_s(gradients: HostGradients, group: tuple[int, int], repeats: int) -> float:
    sizes = gradients.sizes[slice(*group)]
    buffer = np.zeros(sum(sizes), np.float32)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    others = np.ones(OTHER_BYTES, np.uint8)
    found = []
    for _ in range(repeats):
        others += 1
        began_s = time.thread_time()
        for do in (gradients.read, gradients.write):
            for i, number in enumerate(range(*group)):
                do(number, buffer[edges[i] : edges[i + 1]])
        found.append(time.thread_time() - began_s)
    return float(np.median(found))


def _update_s(paddle: Any, kind: str, parameters: Sequence[Any], repeats: int) -> float:
    """One step of the optimizer and setting the gradients to zero, on all parameters."""
    optimizer = make_optimizer(paddle, kind, list(parameters))
    found = []
    for repeat in range(-1, repeats):  # the first step makes the optimizer's state
        began_s = time.thread_time()
        optimizer.step()
        optimizer.clear_grad()
        if repeat >= 0:
            found.append(time.thread_time() - began_s)
    return float(np.median(found))


def _sizes(most: int) -> list[int]:
    least = min(_SMALLEST, most)
    return sorted({round(x) for x in np.geomspace(least, most, _STEPS)})
