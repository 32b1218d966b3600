"""The user's model as one rank holds it: parameters by layer, their initial values, the batch."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import InputError, words
from autoplan.execute.layer_steps import TimeProbe, whole_step
from autoplan.execute.model_source import load_model, require_paddle
from autoplan.execute.paddle_device import Device
from autoplan.plan import Plan

Array = NDArray[Any]

_SPEED_WARMUP, _SPEED_STEPS = 3, 5
"""Steps of a short profile; the allocator has its pages from the third one on."""


class RankModel:
    """All layers, built once per process, so that each plan's stage starts from the same values.

    A parameter that several layers share belongs to the first of them, as in a profile: that layer
    is the last one to add to its gradient.
    """

    def __init__(self, source: str, seed: int, global_batch: int) -> None:
        """Builds the model and keeps its initial values.

        Raises:
            InputError: like `load_model`.
        """
        self._paddle = require_paddle()
        self.model = load_model(source, seed)
        self.layer_parameters = self._owned()
        self._initial = {
            id(t): _copied(t) for i in range(len(self.model.layers)) for t in self._tensors(i)
        }
        self._listeners: dict[int, Callable[[], None]] = {}
        self._hooked: set[int] = set()
        labels = self.model.labels
        self._labels_are_several = isinstance(labels, tuple)
        self._inputs = [_repeated(tensor, global_batch) for tensor in self.model.inputs]
        every_label = labels if isinstance(labels, tuple) else (labels,)
        self._labels = [_repeated(tensor, global_batch) for tensor in every_label]

    def require_cuts(self, plan: Plan) -> None:
        """Refuses plans that put layers which share a parameter on different stages.

        Raises:
            InputError: naming the two layers.
        """
        stage_of = {i: s for s, stage in enumerate(plan.stages) for i in range(*stage.layers)}
        first: dict[int, int] = {}
        for i, layer in enumerate(self.model.layers):
            for parameter in _parameters(layer):
                owner = first.setdefault(id(parameter), i)
                if stage_of[owner] != stage_of[i]:
                    names = self.model.layer_names
                    found = words(
                        f"{names[owner]} on stage {stage_of[owner]} and {names[i]} on stage "
                        f"{stage_of[i]}, which share a parameter"
                    )
                    allowed = "layers that share parameters on one stage"
                    raise InputError("stages", found, allowed, source=self.model.source)

    def restore(self, layers: tuple[int, int]) -> None:
        """Sets the parameters and buffers of some layers back to their initial values."""
        for i in range(*layers):
            for tensor in self._tensors(i):
                tensor.set_value(self._initial[id(tensor)])

    def drop_gradients(self, layers: tuple[int, int]) -> None:
        """Frees the gradients of some layers' parameters."""
        for own in self.layer_parameters[slice(*layers)]:
            for parameter in own:
                parameter.clear_gradient(False)

    def inputs(self, samples: slice) -> tuple[Any, ...]:
        """Some samples of the global batch, as the first layer takes them."""
        return tuple(self._paddle.to_tensor(array[samples]) for array in self._inputs)

    def labels(self, samples: slice) -> Any:
        """Some samples of the global batch, as the loss takes them."""
        found = tuple(self._paddle.to_tensor(array[samples]) for array in self._labels)
        return found if self._labels_are_several else found[0]

    def listen(self, parameter: Any, listener: Callable[[], None] | None) -> None:
        """Has `listener` called whenever the parameter's gradient has been added to.

        Paddle offers no way to take such a hook back, so that each parameter gets one for good.
        """
        key = id(parameter)
        if listener is None:
            self._listeners.pop(key, None)
            return
        self._listeners[key] = listener
        if key not in self._hooked:
            self._hooked.add(key)
            parameter._register_backward_hook(lambda *_: self._tell(key))

    def layers_s(self, samples: int, device: Device) -> tuple[int, float]:
        """CPU seconds of the uncut model's forward and backward: (samples, seconds).

        Parameters and buffers are those of whatever ran before, and gradients are dropped.
        """
        samples = min(samples, self.model.num_samples)
        probe = TimeProbe(device)
        state = self._paddle.get_rng_state()
        for _ in range(_SPEED_WARMUP + _SPEED_STEPS):
            probe.start()
            whole_step(self.model, self.model.batch(samples))
            probe.stop(("forward", 0), 0)
        self._paddle.set_rng_state(state)
        self.drop_gradients((0, len(self.model.layers)))
        read = probe.readings["forward", 0][_SPEED_WARMUP:]
        return samples, statistics.median(thread_s for _, thread_s in read)

    def _tell(self, key: int) -> None:
        listener = self._listeners.get(key)
        if listener is not None:
            listener()

    def _owned(self) -> list[list[Any]]:
        seen: set[int] = set()
        owned: list[list[Any]] = []
        for layer in self.model.layers:
            new = [p for p in _parameters(layer) if id(p) not in seen and not p.stop_gradient]
            seen.update(id(p) for p in new)
            owned.append(new)
        return owned

    def _tensors(self, i: int) -> list[Any]:
        """The parameters and buffers of a layer."""
        layer = self.model.layers[i]
        return [*_parameters(layer), *(layer.buffers() if hasattr(layer, "buffers") else ())]


def _parameters(layer: Any) -> list[Any]:
    return list(layer.parameters()) if hasattr(layer, "parameters") else []


def _copied(tensor: Any) -> Array:
    found: Array = np.array(tensor.numpy())
    return found


def _repeated(tensor: Any, count: int) -> Array:
    """`count` samples: those of the model's own batch, over and over."""
    array = _copied(tensor)
    return array[np.arange(count) % len(array)]
