"""The user's model: found by MODULE:FUNCTION, built, and checked before anything is measured."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from autoplan.errors import InputError, require, words

_RESULT = "(layers, (inputs, labels), loss)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableModel:
    """A chain of layers with one batch to train it on."""

    name: str
    """What the model is called: the module's own name."""
    source: str
    """MODULE:FUNCTION, without the folders of this machine."""
    source_sha256: str | None
    """Hash of the module's file, where it has one."""
    layers: tuple[Callable[..., Any], ...]
    """In forward order; each takes the tensors that the one before returns."""
    layer_names: tuple[str, ...]
    """A name for each layer: its class or function, and its number."""
    inputs: tuple[Any, ...]
    """Tensors that the first layer takes; the leading axis counts samples."""
    labels: Any
    """A tensor, or a tuple of tensors, that the loss takes beside the last layer's output."""
    loss: Callable[[Any, Any], Any]
    """(output, labels) -> scalar."""

    @property
    def num_samples(self) -> int:
        """Samples in the batch: the largest microbatch that can be measured."""
        return int(self.inputs[0].shape[0])

    def batch(self, samples: int) -> tuple[tuple[Any, ...], Any]:
        """The first `samples` samples, copied out: (inputs, labels)."""
        inputs = tuple(tensor[:samples].clone() for tensor in self.inputs)
        if isinstance(self.labels, tuple):
            return inputs, tuple(tensor[:samples].clone() for tensor in self.labels)
        return inputs, self.labels[:samples].clone()


class Built(NamedTuple):
    """What a user's function returned, and where it came from."""

    value: Any
    name: str
    """The module's own name."""
    source: str
    """MODULE:FUNCTION, without the folders of this machine."""
    source_sha256: str | None
    """Hash of the module's file, where it has one."""


def require_paddle() -> Any:
    """The paddle module.

    Raises:
        InputError: it is not installed, or does not start.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # advice on compiling extensions, which nobody does here
            return importlib.import_module("paddle")
    except ImportError as error:
        found = words(f"no usable paddle ({complaint(error)})")
        allowed = "an installed framework: pip install 'autoplan[paddle]'"
        raise InputError("framework", found, allowed) from None


def complaint(error: BaseException) -> str:
    """An exception as part of one line: its type, and the line of its text that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    # Long reports of Paddle put C++ frames first and the reason under this heading.
    heading = "Error Message Summary:"
    if heading in lines[:-1]:
        lines = lines[lines.index(heading) + 1 :]
    said = re.sub(r"^\(\w+\) ", "", lines[0]) if lines else ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def load_model(source: str, seed: int = 0) -> TrainableModel:
    """Imports the module, calls the function, and checks what it returns.

    Args:
        source: "MODULE:FUNCTION"; MODULE is a dotted name that can be imported from the current
            folder or the environment, or the path of a .py file.
        seed: for Paddle's random numbers before the function is called.

    Raises:
        InputError: paddle, the module or the function is missing or fails, or the function
            returns something other than (layers, (inputs, labels), loss).
    """
    built = build_source(source, seed, _RESULT)
    layers, inputs, labels, loss = _parts(require_paddle(), built.value, source)
    return TrainableModel(
        name=built.name,
        source=built.source,
        source_sha256=built.source_sha256,
        layers=layers,
        layer_names=tuple(f"{_called(layer)}.{i}" for i, layer in enumerate(layers)),
        inputs=inputs,
        labels=labels,
        loss=loss,
    )


def build_source(source: str, seed: int, result: str) -> Built:
    """Imports the module and calls the function.

    Args:
        source: "MODULE:FUNCTION".
        seed: for Paddle's random numbers before the function is called.
        result: what it should return, for messages.

    Raises:
        InputError: paddle, the module or the function is missing, or the call fails.
    """
    module_name, colon, function_name = source.rpartition(":")
    sound = bool(colon and module_name and function_name)
    require(sound, "source", source, "MODULE:FUNCTION, such as models/gpt.py:build")
    paddle = require_paddle()
    module = _imported(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        found = words(f"no function {function_name!r} in {module_name}")
        raise InputError("source", found, "a function of the module", source=source)
    paddle.seed(seed)
    try:
        value = function()
    except (Exception, SystemExit) as error:
        found, allowed = words(complaint(error)), f"a call that returns {result}"
        raise InputError(f"{function_name}()", found, allowed, source=source) from None
    return Built(
        value=value,
        name=Path(module_name).stem if _is_path(module_name) else module_name.rpartition(".")[2],
        source=f"{_without_machine(module_name)}:{function_name}",
        source_sha256=_file_sha256(module),
    )


def _is_path(module_name: str) -> bool:
    return module_name.endswith(".py") or os.sep in module_name


def _imported(module_name: str) -> ModuleType:
    """The module, whose imports may lie in the current folder or, for a file, beside it."""
    path = Path(module_name)
    if _is_path(module_name) and not (path.suffix == ".py" and path.is_file()):
        found = words(f"no .py file {module_name}")
        raise InputError("source", found, "the path of an existing .py file")
    folder = str(path.resolve().parent) if _is_path(module_name) else os.getcwd()
    if folder not in sys.path:
        # Last, so that a file called like a module of the standard library hides nothing.
        sys.path.append(folder)
    try:
        if _is_path(module_name):
            return _executed(path)
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        found = words(complaint(error))
        allowed = "a module that can be imported"
        raise InputError("import", found, allowed, source=module_name) from None


def _executed(path: Path) -> ModuleType:
    """The module that a .py file makes, under a name of its own."""
    name = f"_autoplan_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _parts(paddle: Any, built: Any, source: str) -> tuple[Any, tuple[Any, ...], Any, Any]:
    """(layers, inputs, labels, loss) of what the function returned."""

    def check(condition: bool, field: str, found: object, allowed: str) -> None:
        if not condition:
            raise InputError(field, found, allowed, source=source)

    what = words(f"a value of type {type(built).__name__}")
    check(isinstance(built, Sequence) and len(built) == 3, "result", what, _RESULT)
    layers, sample, loss = built
    what = words(f"a value of type {type(layers).__name__}")
    listed = isinstance(layers, (Sequence, paddle.nn.LayerList, paddle.nn.Sequential))
    check(listed, "layers", what, "a sequence of layers")
    layers = tuple(layers)
    check(bool(layers), "layers", layers, "at least one layer")
    for i, layer in enumerate(layers):
        check(callable(layer), f"layers[{i}]", layer, "a paddle.nn.Layer or another callable")
    check(callable(loss), "loss", loss, "a callable (output, labels) -> scalar")
    what = words(f"a value of type {type(sample).__name__}")
    paired = isinstance(sample, Sequence) and len(sample) == 2
    check(paired, "sample", what, "(inputs, labels)")
    inputs, labels = (_tensors(paddle, part) for part in sample)
    check(bool(inputs), "sample", words("inputs without a tensor"), "at least one input tensor")
    sizes = [tensor.shape[0] if tensor.shape else 0 for tensor in (*inputs, *labels)]
    alike = sizes[0] > 0 and len(set(sizes)) == 1
    check(alike, "sample", sizes, "the same number of samples on every tensor's leading axis")
    several = isinstance(sample[1], (tuple, list))
    return layers, inputs, labels if several else labels[0], loss


def _tensors(paddle: Any, value: Any) -> tuple[Any, ...]:
    """One tensor or array, or a tuple of them, as a tuple of tensors."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(
        part if isinstance(part, paddle.Tensor) else paddle.to_tensor(part) for part in parts
    )


def _called(layer: Any) -> str:
    """A function's own name, or the class of an object."""
    return str(getattr(layer, "__name__", type(layer).__name__))


def _without_machine(module_name: str) -> str:
    """A path relative to the current folder if it lies in there, or its last part."""
    if not _is_path(module_name):
        return module_name
    path = Path(module_name).resolve()
    here = Path.cwd().resolve()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name


def _file_sha256(module: ModuleType) -> str | None:
    path = getattr(module, "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else None
