"""Arithmetic and memory traffic of operators, from their shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoplan.costmodel.graph import Op, TensorInfo
from autoplan.costmodel.op_names import FREE

Tensors = Sequence[TensorInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an operator does on the device."""

    matrix_flops: float = 0.0
    """Operations of matrix products and convolutions; a multiply and an add are two.

    Narrow products count more, as `_narrow` says.
    """
    vector_flops: float = 0.0
    """Other arithmetic, which runs outside the matrix units; an exponential is _EXP."""
    bytes: float = 0.0
    """Bytes read from and written to memory."""


_EXP = 4.0
"""Operations of one exponential or error function in a vectorised kernel."""

# Operations per element of the result, or of the first operand where the result is a reduction.
_PER_ELEMENT = {
    **dict.fromkeys(("add", "subtract", "multiply", "maximum", "minimum", "scale"), 1.0),
    **dict.fromkeys(("relu", "abs", "clip", "square", "where", "increment", "add_n"), 1.0),
    **dict.fromkeys(("floor", "ceil", "round", "sign", "relu6", "leaky_relu", "masked_fill"), 1.0),
    **dict.fromkeys(("equal", "not_equal", "less_than", "less_equal", "greater_than"), 1.0),
    **dict.fromkeys(("greater_equal", "logical_and", "logical_or", "logical_not"), 1.0),
    **dict.fromkeys(("logical_xor", "bitwise_and", "bitwise_or", "bitwise_not", "isfinite"), 1.0),
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "any", "all", "squared_l2_norm"), 1.0),
    **dict.fromkeys(("divide", "sqrt", "rsqrt", "reciprocal", "remainder", "floor_divide"), 4.0),
    **dict.fromkeys(("p_norm", "frobenius_norm", "hardswish", "hardsigmoid", "cumsum"), 2.0),
    **dict.fromkeys(("exp", "log", "erf", "sin", "cos", "log1p", "expm1"), _EXP),
    **dict.fromkeys(("tanh", "sigmoid", "silu", "swish", "elu", "softplus", "mish"), _EXP + 2),
    **dict.fromkeys(("pow", "elementwise_pow"), 2 * _EXP),
    **dict.fromkeys(("gelu",), 2 * _EXP),
    **dict.fromkeys(("softmax", "log_softmax"), _EXP + 4),
    **dict.fromkeys(("cross_entropy_with_softmax",), _EXP + 5),
    **dict.fromkeys(("bce_loss", "sigmoid_cross_entropy_with_logits"), 2 * _EXP),
    **dict.fromkeys(("layer_norm", "group_norm", "instance_norm", "rms_norm"), 8.0),
    **dict.fromkeys(("batch_norm", "sync_batch_norm"), 5.0),
    **dict.fromkeys(("dropout", "uniform", "gaussian", "bernoulli", "randint"), 16.0),
}
# Operations per element of what flows back, where it differs from once or twice the forward.
_PER_ELEMENT_BACK = {
    **dict.fromkeys(("add", "subtract", "scale", "sum", "mean", "add_n", "relu"), 1.0),
    **dict.fromkeys(("softmax", "cross_entropy_with_softmax", "log_softmax"), 4.0),
    **dict.fromkeys(("tanh", "sigmoid", "multiply", "dropout", "max", "min"), 2.0),
    **dict.fromkeys(("gelu",), 3 * _EXP),
    **dict.fromkeys(("layer_norm", "group_norm", "instance_norm", "rms_norm"), 20.0),
    **dict.fromkeys(("batch_norm", "sync_batch_norm"), 11.0),
}
_HALF_RATE_SIDE = 12.0
"""The shortest side of a product that runs at half the rate of a large one."""
_BROADCAST = 4.0
"""More operations per element to sum a gradient over the dimensions that were broadcast."""
_UPDATES = {
    "sgd": 2.0,
    "momentum": 3.0,
    "merged_momentum": 3.0,
    "lars_momentum": 10.0,
    "adagrad": 10.0,
    "rmsprop": 14.0,
    "adam": 10.0,
    "adamw": 12.0,
    "merged_adam": 10.0,
    "adamax": 14.0,
    "adadelta": 18.0,
    "lamb": 30.0,
}
"""Operations per parameter element of an update, as vectorised kernels run them."""
_MOVES = frozenset(
    {
        *("transpose", "concat", "split", "split_with_num", "stack", "unstack", "unbind", "cast"),
        *("assign", "assign_value", "full", "full_int_array", "full_like", "full_with_tensor"),
        *("full_batch_size_like", "arange", "expand", "expand_as", "tile", "pad", "pad3d"),
        *("slice", "strided_slice", "set_value", "gather", "gather_nd", "scatter", "index_select"),
        *("triu", "tril", "roll", "flip", "one_hot", "topk", "argmax", "argmin", "argsort"),
        *("coalesce_tensor", "shape", "numel", "memcpy", "memcpy_h2d", "memcpy_d2h"),
        *("embedding", "reshape", "flatten", "squeeze", "unsqueeze", "c_split", "c_embedding"),
        *("share_data", "print", "nonzero", "index_sample", "take_along_axis", "meshgrid"),
    }
)
"""Operators that move bytes and compute nothing."""
_READS_WHAT_IT_WRITES = frozenset(
    {"slice", "strided_slice", "gather", "gather_nd", "index_select", "embedding", "c_embedding"}
)
"""Operators that read as many bytes of their source as they write, not the whole source."""
_VIEWS = frozenset({"reshape", "flatten", "squeeze", "unsqueeze"})


def work_of(op: Op, tensors: Tensors) -> Work | None:
    """Operations and bytes of one call, or None where no formula is known.

    Control flow has no work of its own.

    Args:
        op: the operator.
        tensors: those of its graph, with resolved shapes.
    """
    if op.type in FREE or op.blocks:
        return Work()
    base, backward = op.type.removesuffix("_grad"), op.type.endswith("_grad")
    product = _PRODUCTS.get(base)
    if product is not None:
        forward = product(op, tensors, backward)
        # The gradients of both factors are a product each, of as many operations.
        flops = forward * _large_gradients(op) if backward else forward
        return Work(matrix_flops=flops, bytes=bytes_of(op, tensors))
    vector = _vector_flops(op, tensors)
    return None if vector is None else Work(vector_flops=vector, bytes=bytes_of(op, tensors))


def _vector_flops(op: Op, tensors: Tensors) -> float | None:
    """Operations of one call of what is no product, or None."""
    base, backward = op.type.removesuffix("_grad"), op.type.endswith("_grad")
    if op.type in _UPDATES:
        parameter = op.input("param")
        counted = op.inputs[:1] if parameter is None else (parameter,)
        return _UPDATES[op.type] * sum(tensors[index].elements for index in counted)
    if base in _MOVES:
        return float(_largest(op.outputs, tensors)) if backward else 0.0
    if base == "pool2d":
        return _pooling(op, tensors, backward)
    if base not in _PER_ELEMENT:
        return None
    elements = max(_largest(op.inputs, tensors), _largest(op.outputs, tensors))
    if base == "add_n":
        elements *= max(1, len(op.inputs) - 1)
    forward = _PER_ELEMENT[base]
    sizes = {tensors[index].elements for index in op.outputs}
    summed = _BROADCAST if len(sizes) > 1 else 0.0
    if not backward:
        return elements * forward
    return elements * (_PER_ELEMENT_BACK.get(base, 2 * forward) + summed)


def bytes_of(op: Op, tensors: Tensors) -> float:
    """Bytes moved by one call: operands read once, results written once, copies as they are."""
    base = op.type.removesuffix("_grad")
    written = float(sum(tensors[index].size_bytes for index in op.outputs))
    if op.type in _READS_WHAT_IT_WRITES or op.type == "coalesce_tensor":
        return 2 * written
    if base in _VIEWS and op.reuses:
        return 0.0
    if base in {"embedding", "slice", "gather", "strided_slice"}:
        passed = op.input("out_grad")
        return written + (2.0 * tensors[passed].size_bytes if passed is not None else written)
    read = float(
        sum(
            tensors[index].size_bytes
            for place, index in enumerate(op.inputs)
            if place not in op.shape_only
        )
    )
    return read + written + _per_sample(op, tensors)


def _per_sample(op: Op, tensors: Tensors) -> float:
    """Bytes that a convolution moves again for each sample, as it goes through them one by one.

    The weights are read once more for each sample, and with a window above 1 x 1 its columns are
    written and read (im2col). The backward does both twice, and adds up the weights' gradient.
    """
    if op.type.removesuffix("_grad") not in _CONVOLUTIONS:
        return 0.0
    backward = op.type.endswith("_grad")
    kernel = _shape(op, tensors, "filter")
    result = _shape(op, tensors, *_RESULTS[backward])
    if kernel is None or result is None:
        return 0.0
    weights = (result[0] - 1) * math.prod(kernel)
    columns = result[0] * math.prod(result[2:]) * math.prod(kernel[1:])
    moved = (4 if backward else 1) * weights
    if math.prod(kernel[2:]) > 1:
        moved += (4 if backward else 2) * columns
    return 4.0 * moved


def _large_gradients(op: Op) -> int:
    """Products in the backward: one per gradient of a factor that is wanted."""
    if op.type == "rnn_grad":
        return 2
    factors = ("x_grad", "y_grad", "input_grad", "filter_grad")
    return max(1, sum(slot in factors for slot in op.output_slots))


def _shape(op: Op, tensors: Tensors, *slots: str) -> tuple[int, ...] | None:
    """The shape of the first of `slots` that the operator has."""
    for slot in slots:
        index = op.input(slot)
        if index is None:
            index = op.output(slot)
        if index is not None:
            return tensors[index].shape
    return None


def _largest(indices: Sequence[int], tensors: Tensors) -> int:
    return max((tensors[index].elements for index in indices), default=0)


def _narrow(*sides: int) -> float:
    """How much longer a product takes than its operations say, for its shortest side.

    Kernels compute tiles of fixed size and fill them partly: convolutions of ResNet-18 run at 0.88,
    0.55 and 0.19 of a large product's rate where the shortest side is 64, 16 and 4.
    """
    return 1.0 + _HALF_RATE_SIDE / max(1, min(sides))


def _matmul(op: Op, tensors: Tensors, backward: bool) -> float:
    """2 m n k, times the batch: from the result's elements and the length of the inner product."""
    left = _shape(op, tensors, "x")
    result = _shape(op, tensors, "out_grad" if backward else "out")
    if left is None or result is None or not left:
        return 0.0
    turned = op.attributes.get("transpose_x", op.attributes.get("trans_x", False))
    inner = left[-2] if turned and len(left) > 1 else left[-1]
    right = _shape(op, tensors, "y") or ()
    rows = math.prod(result[:-1]) if len(right) <= 2 else result[-2]
    return 2.0 * math.prod(result) * inner * _narrow(rows, result[-1], inner)


def _convolution(op: Op, tensors: Tensors, backward: bool) -> float:
    """2 multiplied by results and by the weights that each is made with."""
    kernel = _shape(op, tensors, "filter")
    result = _shape(op, tensors, *_RESULTS[backward])
    if kernel is None or result is None:
        return 0.0
    window, places = math.prod(kernel[1:]), math.prod(result[2:])
    return 2.0 * math.prod(result) * window * _narrow(places, kernel[0], window)


def _recurrent(op: Op, tensors: Tensors, backward: bool) -> float:
    """Two operations per weight, sample and step; the gates are few beside them."""
    source = _shape(op, tensors, "x", "input")
    if source is None or len(source) < 2:
        return 0.0
    slots = zip(op.inputs, op.input_slots, strict=False)
    listed = [tensors[i].elements for i, slot in slots if slot in {"weight_list", "weightlist"}]
    # Inputs are multiplied for all steps at once, states for one step's samples at a time.
    wide = 0.5 + 0.5 * _narrow(source[1])
    return 2.0 * sum(listed) * source[0] * source[1] * wide


def _pooling(op: Op, tensors: Tensors, backward: bool) -> float:
    """One operation per element of each window."""
    source = _shape(op, tensors, "x")
    result = _shape(op, tensors, "out_grad" if backward else "out")
    if source is None or result is None:
        return 0.0
    window = op.attributes.get("ksize", op.attributes.get("kernel_size", ()))
    whole = op.attributes.get("global_pooling") or op.attributes.get("adaptive")
    size = math.prod(int(s) for s in window) if isinstance(window, tuple) and window else 9
    return float(math.prod(source) if whole else math.prod(result) * size)


_CONVOLUTIONS = ("conv2d", "depthwise_conv2d", "conv3d", "conv2d_transpose")
_RESULTS = {False: ("out", "output"), True: ("out_grad", "output_grad")}
"""Where the result of a convolution is found, by whether the operator is its backward."""
_PRODUCTS: dict[str, Callable[[Op, Tensors, bool], float]] = {
    **dict.fromkeys(("matmul", "bmm", "mv"), _matmul),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    "rnn": _recurrent,
}
