"""One training step of a model, layer by layer, with a probe around every call."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from autoplan.errors import InputError, words
from autoplan.execute.model_source import TrainableModel, complaint, require_paddle
from autoplan.execute.paddle_device import Device

Direction = Literal["forward", "backward"]
Call = tuple[Direction, int]
"""The forward or the backward of the layer with that number."""


class Probe(Protocol):
    """Measures one call of a layer at a time."""

    def start(self) -> None:
        """The call comes next."""

    def stop(self, call: Call, passed_on_bytes: int) -> None:
        """The call is over; it left `passed_on_bytes` of gradients for the layer before."""


class TimeProbe:
    """Keeps (wall seconds, CPU seconds of this thread) of every call."""

    def __init__(self, device: Device) -> None:
        """Measures calls whose work is on `device`."""
        self.readings: dict[Call, list[tuple[float, float]]] = defaultdict(list)
        self._device = device
        self._started = (0.0, 0.0)

    def start(self) -> None:
        """Reads both clocks, with no earlier work under way."""
        self._device.synchronize()
        self._started = (time.perf_counter(), time.thread_time())

    def stop(self, call: Call, passed_on_bytes: int) -> None:
        """Reads both clocks once the work is done."""
        self._device.synchronize()
        wall_s, thread_s = time.perf_counter(), time.thread_time()
        self.readings[call].append((wall_s - self._started[0], thread_s - self._started[1]))


class MemoryProbe:
    """Keeps the bytes that a forward leaves behind and that a backward needs for a moment."""

    def __init__(self, device: Device) -> None:
        """Measures calls whose tensors are on `device`."""
        self.bytes: dict[Call, int] = {}
        self._device = device
        self._before_bytes = 0

    def start(self) -> None:
        """Notes the level before the call."""
        self._device.synchronize()
        self._before_bytes = self._device.allocated_bytes()
        self._device.peak_bytes(reset=True)

    def stop(self, call: Call, passed_on_bytes: int) -> None:
        """Forward: what stays allocated. Backward: the peak above level and gradients."""
        self._device.synchronize()
        forward = call[0] == "forward"
        level = self._device.allocated_bytes() if forward else self._device.peak_bytes()
        self.bytes[call] = max(0, level - self._before_bytes - passed_on_bytes)


def layer_step(model: TrainableModel, batch: tuple[tuple[Any, ...], Any], probe: Probe) -> None:
    """Forward through all layers, then backward, as the stages of a pipeline would do it.

    Every layer takes a detached copy (sharing storage) of what the one before returned, so that
    each backward runs alone and hands its input's gradient on. Weight gradients are added to
    those of the steps before, as in a step of several microbatches.

    Raises:
        InputError: a layer or the loss fails, or the loss is not a scalar.
    """
    entries, exits = _forward(model, batch, probe)
    _backward(model, entries, exits, probe)


def whole_step(model: TrainableModel, batch: tuple[tuple[Any, ...], Any]) -> None:
    """Forward and backward of the model in one piece, without cuts between layers."""
    tensors, labels = batch
    output: Any = None
    for layer in model.layers:
        output = layer(*tensors)
        tensors = as_tuple(output)
    model.loss(output, labels).backward()


def as_tuple(output: Any) -> tuple[Any, ...]:
    """What a layer returned, as the tensors that the next one takes."""
    return tuple(output) if isinstance(output, (tuple, list)) else (output,)


def tensor_bytes(tensors: Sequence[Any]) -> int:
    """Bytes of the elements of some tensors, None among them left out."""
    return sum(int(t.size) * int(t.element_size()) for t in tensors if t is not None)


def _forward(
    model: TrainableModel, batch: tuple[tuple[Any, ...], Any], probe: Probe
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The tensors that enter and leave each layer; the loss alone leaves the last one."""
    tensors, labels = batch
    entries: list[tuple[Any, ...]] = []
    exits: list[tuple[Any, ...]] = []
    for i, layer in enumerate(model.layers):
        entry = tuple(_detached(tensor) for tensor in tensors)
        last = i + 1 == len(model.layers)
        field = f"layers[{i}] ({model.layer_names[i]})"
        probe.start()
        try:
            output = layer(*entry)
            if last:
                field = "loss"
                output = model.loss(output, labels)
        except Exception as error:
            found, allowed = words(complaint(error)), "a call that succeeds"
            field = f"forward of {field}"
            raise InputError(field, found, allowed, source=model.source) from None
        probe.stop(("forward", i), 0)
        tensors = as_tuple(output)
        _check_output(model, field, tensors, is_loss=last)
        entries.append(entry)
        exits.append(tensors)
    return entries, exits


def _detached(tensor: Any) -> Any:
    """The same storage as a leaf, which gets a gradient if the original would have."""
    leaf = tensor.detach()
    leaf.stop_gradient = tensor.stop_gradient
    return leaf


def _check_output(
    model: TrainableModel, field: str, tensors: tuple[Any, ...], *, is_loss: bool
) -> None:
    kind = require_paddle().Tensor
    strange = next((t for t in tensors if not isinstance(t, kind)), None)
    if strange is not None or not tensors:
        found = words(f"type {type(strange).__name__}" if tensors else "an empty tuple")
        raise InputError(field, found, "a tensor or a tuple of tensors", source=model.source)
    if not is_loss:
        return
    if len(tensors) > 1 or tensors[0].size != 1:
        found = words(f"a result of shape {[list(t.shape) for t in tensors]}")
        raise InputError(field, found, "one scalar", source=model.source)
    if tensors[0].stop_gradient:
        found = words("a loss without gradient")
        raise InputError(field, found, "a loss of trainable parameters", source=model.source)


def _backward(
    model: TrainableModel,
    entries: list[tuple[Any, ...]],
    exits: list[tuple[Any, ...]],
    probe: Probe,
) -> None:
    """Last layer first; what a layer kept is freed as soon as it is done."""
    run = require_paddle().autograd.backward
    gradients: tuple[Any, ...] = (None,)
    for i in reversed(range(len(model.layers))):
        leaving = exits.pop()
        loss = i + 1 == len(model.layers)
        # An output that the next layer does not use, and one without gradient, starts nothing.
        pairs = [
            (tensor, gradient)
            for tensor, gradient in zip(leaving, gradients, strict=True)
            if loss or not (tensor.stop_gradient or gradient is None)
        ]
        del leaving
        probe.start()
        try:
            if pairs:
                run([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
            gradients = tuple(tensor.grad for tensor in entries[-1])
        except Exception as error:
            field = f"backward of layers[{i}] ({model.layer_names[i]})"
            found, allowed = words(complaint(error)), "a call that succeeds"
            raise InputError(field, found, allowed, source=model.source) from None
        probe.stop(("backward", i), tensor_bytes(gradients))
        entries.pop()
