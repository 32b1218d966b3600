"""A stage's real compute with Paddle: the user's layers, their backward, and the optimizer."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np

from autoplan.errors import InputError, words
from autoplan.execute.clocks import StepClock
from autoplan.execute.gradient_groups import Gradients
from autoplan.execute.layer_steps import as_tuple, tensor_bytes
from autoplan.execute.model_source import complaint, require_paddle
from autoplan.execute.rank_model import RankModel
from autoplan.execute.stage_work import Ready
from autoplan.execute.tensors import Tensors, dtype_name
from autoplan.execute.transport import Message
from autoplan.job import Job
from autoplan.plan import Plan

LEARNING_RATES = {"sgd": 0.01, "momentum": 0.01, "adam": 0.001, "adamw": 0.001}
"""Of the runs that are measured; small enough for any sound model's loss to fall."""


def make_optimizer(paddle: Any, kind: str, parameters: list[Any]) -> Any:
    """The job's optimizer over some parameters, with Paddle's own defaults but for the rate.

    Parameters of 16 bits get a copy of 32 bits, as the planner assumes.
    """
    classes = {"sgd": "SGD", "momentum": "Momentum", "adam": "Adam", "adamw": "AdamW"}
    made = getattr(paddle.optimizer, classes[kind])
    narrow = any(dtype_name(parameter) != "float32" for parameter in parameters)
    rate = LEARNING_RATES[kind]
    return made(learning_rate=rate, parameters=parameters, multi_precision=narrow)


class PaddleWork:
    """One stage of one plan on one rank."""

    def __init__(
        self,
        held: RankModel,
        plan: Plan,
        place: tuple[int, int],
        job: Job,
        tensors: Tensors,
    ) -> None:
        """Sets the model back to its initial values and prepares gradients and optimizer.

        Args:
            held: the rank's model.
            plan: what is run.
            place: the stage, and the replica of it.
            job: the batch and the optimizer.
            tensors: where they are, and how they travel.

        Raises:
            InputError: a parameter's type cannot be exchanged on this device.
        """
        self._paddle = require_paddle()
        self._held, self._plan, self._tensors = held, plan, tensors
        device = self._device = tensors.device
        self._stage_index, self._replica = place
        self._stage = plan.stages[self._stage_index]
        self._layers = held.model.layers[slice(*self._stage.layers)]
        self._last = self._stage_index + 1 == len(plan.stages)
        self._optimizer_kind = job.optimizer
        self._per_microbatch = job.global_batch // plan.microbatches
        self._share = 1.0 / (plan.microbatches * plan.stages[-1].replicas)
        self._stash: dict[int, tuple[Any, ...]] = {}
        self._losses: list[Any] = []
        self._take_layers()
        device.peak_bytes(reset=True)

    def _take_layers(self) -> None:
        """Brings the layers in, with their initial values, gradients of zero and an optimizer."""
        held, tensors = self._held, self._tensors
        level = self._device.allocated_bytes()
        for layer in self._layers:
            tensors.move_in(layer)
        held.restore(self._stage.layers)
        owned = held.layer_parameters[slice(*self._stage.layers)]
        self._parameters = [p for own in reversed(owned) for p in own]
        self._require_dtypes()
        # On a host the model's other layers stay in memory too, and are no part of the stage.
        own_bytes = tensor_bytes(self._all_parameters()) if tensors.holds_all_layers else 0
        self._foreign_bytes = level - own_bytes
        for parameter in self._parameters:
            # From the first microbatch on gradients are added up, as in every later step.
            parameter.grad = self._paddle.zeros_like(parameter)
        self.gradients: Gradients = tensors.gradients(self._parameters)
        self._optimizer = (
            make_optimizer(self._paddle, self._optimizer_kind, self._parameters)
            if self._parameters
            else None
        )
        for layer in self._layers:
            if hasattr(layer, "train"):
                layer.train()

    def begin(self, clock: StepClock) -> None:
        """A step starts with gradients of zero."""
        self._losses.clear()

    def forward(self, microbatch: int, received: Message | None) -> Message | None:
        """Runs the layers, and the loss after the last of them."""
        entry = self._entry(microbatch, received)
        if not self._stage.recompute:
            leaving = self._run(entry, microbatch)
            self._stash[microbatch] = (entry, leaving)
        else:
            state = self._paddle.get_rng_state()
            with self._paddle.no_grad():
                leaving = self._run(entry, microbatch)
            self._stash[microbatch] = (entry, state)
        if self._last:
            # Reading the value now would make the host wait for the device.
            self._losses.append(leaving[0].detach())
            return None
        return Message(
            arrays=tuple(self._tensors.pack(tensor) for tensor in leaving),
            needs_gradient=tuple(self._wants_gradient(tensor) for tensor in leaving),
        )

    def backward(self, microbatch: int, received: Message | None, ready: Ready | None) -> Message:
        """Runs the backward of the whole stage in one piece."""
        entry, leaving = self._stash.pop(microbatch)
        if self._stage.recompute:
            now = self._paddle.get_rng_state()
            self._paddle.set_rng_state(leaving)
            leaving = self._run(entry, microbatch)
            self._paddle.set_rng_state(now)
        pairs = self._pairs(leaving, received)
        del leaving
        if ready is not None:
            for number, parameter in enumerate(self._parameters):
                self._held.listen(parameter, partial(ready, number))
        try:
            if pairs:
                self._paddle.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        except InputError:
            raise
        except Exception as error:
            raise self._refused("backward", error) from None
        finally:
            for parameter in self._parameters if ready is not None else ():
                self._held.listen(parameter, None)
        gradients = (None if tensor.stop_gradient else tensor.grad for tensor in entry)
        arrays = (None if g is None else self._tensors.pack(g) for g in gradients)
        return Message(arrays=tuple(arrays))

    def update(self) -> float | None:
        """Runs the optimizer and sets the gradients to zero."""
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.clear_grad()
        if not self._last:
            return None
        return sum(float(loss) for loss in self._losses) / self._plan.microbatches

    def close(self) -> dict[str, object]:
        """The peak of memory, and a checksum of the parameters; frees what the plan needed."""
        peak = self._device.peak_bytes() - self._foreign_bytes
        digest = hashlib.sha256()
        for parameter in self._parameters:
            digest.update(np.ascontiguousarray(parameter.numpy()).data)
        self._optimizer = None
        self._stash.clear()
        self._held.drop_gradients(self._stage.layers)
        for layer in self._layers:
            self._tensors.move_out(layer)
        return {"peak_bytes": peak, "checksum": digest.hexdigest()}

    def _all_parameters(self) -> list[Any]:
        """The parameters that the stage's layers use, frozen ones included, each once."""
        layers = (layer for layer in self._layers if hasattr(layer, "parameters"))
        return list({id(p): p for layer in layers for p in layer.parameters()}.values())

    def _require_dtypes(self) -> None:
        for parameter in self._parameters:
            kind = dtype_name(parameter)
            if kind not in self._tensors.dtypes:
                found, allowed = words(f"a parameter of {kind}"), ", ".join(self._tensors.dtypes)
                raise InputError("layers", found, allowed, source=self._held.model.source)

    def _samples(self, microbatch: int) -> slice:
        """Which samples of the global batch this replica takes of a microbatch."""
        share = self._per_microbatch // self._stage.replicas
        start = microbatch * self._per_microbatch + self._replica * share
        return slice(start, start + share)

    def _entry(self, microbatch: int, received: Message | None) -> tuple[Any, ...]:
        """The tensors that enter the stage, as leaves."""
        if received is None:
            return self._held.inputs(self._samples(microbatch))
        entry = []
        for array, needs_gradient in zip(received.arrays, received.needs_gradient, strict=True):
            tensor = self._tensors.unpack(array)
            tensor.stop_gradient = not needs_gradient
            entry.append(tensor)
        return tuple(entry)

    def _run(self, entry: tuple[Any, ...], microbatch: int) -> tuple[Any, ...]:
        """The layers on some tensors; the loss alone leaves the last stage."""
        tensors = entry
        output: Any = None
        try:
            for layer in self._layers:
                output = layer(*tensors)
                tensors = as_tuple(output)
            if self._last:
                return (
                    self._held.model.loss(output, self._held.labels(self._samples(microbatch))),
                )
        except Exception as error:
            raise self._refused("forward", error) from None
        return tensors

    def _wants_gradient(self, tensor: Any) -> bool:
        """Whether the next stage is to send a gradient back; recomputed outputs do not tell."""
        if self._stage.recompute:
            return bool(self._paddle.is_floating_point(tensor))
        return not tensor.stop_gradient

    def _pairs(self, leaving: tuple[Any, ...], received: Message | None) -> list[tuple[Any, Any]]:
        """The tensors to start backward from, each with its gradient."""
        if received is None:
            return [(leaving[0], self._paddle.full_like(leaving[0], self._share))]
        return [
            (tensor, self._tensors.unpack(array))
            for tensor, array in zip(leaving, received.arrays, strict=True)
            if array is not None and not tensor.stop_gradient
        ]

    def _refused(self, what: str, error: Exception) -> Exception:
        """A failure of the user's layers in one line; running out of memory stays what it is."""
        if isinstance(error, MemoryError) or "ResourceExhausted" in str(error):
            return MemoryError(complaint(error))
        first, end = self._stage.layers
        found, allowed = words(complaint(error)), "a call that succeeds"
        field = f"{what} of layers {first} to {end - 1}"
        return InputError(field, found, allowed, source=self._held.model.source)
