"""Where a stage's tensors are, and in which form they travel and are exchanged."""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import InputError, words
from autoplan.execute.gradient_groups import Gradients
from autoplan.execute.model_source import require_paddle
from autoplan.execute.paddle_device import Device

Floats = NDArray[np.float32]


class Tensors(Protocol):
    """What differs between a host and a GPU in a stage's compute."""

    device: Device
    holds_all_layers: bool
    """Whether layers of other stages are in the same memory."""
    dtypes: tuple[str, ...]
    """Types of parameters whose gradients can be exchanged."""

    def move_in(self, layer: Any) -> None:
        """Brings a layer to the device."""

    def move_out(self, layer: Any) -> None:
        """Takes it away again."""

    def pack(self, tensor: Any) -> Any:
        """A tensor in the form in which it is sent."""

    def unpack(self, received: Any) -> Any:
        """A tensor on the device from what was received."""

    def gradients(self, parameters: list[Any]) -> Gradients:
        """The gradients of some parameters as an exchange takes them."""


class HostTensors:
    """Tensors on the host, sent as arrays that share their memory."""

    holds_all_layers = True
    dtypes: tuple[str, ...] = ("float32",)

    def __init__(self, device: Device) -> None:
        """Counts memory on `device`."""
        self.device = device
        self._paddle = require_paddle()

    def move_in(self, layer: Any) -> None:
        """It is there."""

    def move_out(self, layer: Any) -> None:
        """It stays."""

    def pack(self, tensor: Any) -> Any:
        """The tensor as an array; raises InputError for a type that numpy does not have."""
        if dtype_name(tensor) == "bfloat16":
            allowed = "a type that numpy has: transfers between stages on CPUs are arrays"
            raise InputError("output of a stage", words("a bfloat16 tensor"), allowed)
        return np.from_dlpack(tensor.detach())

    def unpack(self, received: Any) -> Any:
        """A copy, so that the framework's allocator counts it."""
        return self._paddle.to_tensor(received)

    def gradients(self, parameters: list[Any]) -> Gradients:
        """Views of the gradients."""
        return HostGradients(parameters)


class HostGradients:
    """The gradients of a stage's parameters on the host, as arrays that share their memory."""

    def __init__(self, parameters: list[Any]) -> None:
        """Takes the parameters in backward order of their layers."""
        self._parameters = parameters
        self.sizes = tuple(int(parameter.size) for parameter in parameters)

    def read(self, number: int, into: Floats) -> None:
        """Copies the gradient out."""
        into[:] = self._view(number)

    def write(self, number: int, values: Floats) -> None:
        """Copies the sum of all replicas in."""
        self._view(number)[:] = values

    def _view(self, number: int) -> Floats:
        gradient = self._parameters[number].grad.detach()
        return cast(Floats, np.from_dlpack(gradient).reshape(-1))


def dtype_name(tensor: Any) -> str:
    """Such as "float32"."""
    return str(tensor.dtype).rpartition(".")[2]
