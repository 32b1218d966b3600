"""One name for each operator, whichever IR it comes from, and what kinds of operators there are."""

from __future__ import annotations

from autoplan.costmodel.graph import CollectiveKind

_OLD_TO_NEW = {
    "elementwise_add": "add",
    "elementwise_sub": "subtract",
    "elementwise_mul": "multiply",
    "elementwise_div": "divide",
    "elementwise_max": "maximum",
    "elementwise_min": "minimum",
    "matmul_v2": "matmul",
    "mul": "matmul",
    "reshape2": "reshape",
    "transpose2": "transpose",
    "squeeze2": "squeeze",
    "unsqueeze2": "unsqueeze",
    "flatten2": "flatten",
    "flatten_contiguous_range": "flatten",
    "expand_v2": "expand",
    "softmax_with_cross_entropy": "cross_entropy_with_softmax",
    "lookup_table": "embedding",
    "lookup_table_v2": "embedding",
    "fill_constant": "full",
    "fill_any_like": "full_like",
    "reduce_mean": "mean",
    "reduce_sum": "sum",
    "sum": "add_n",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "arg_max": "argmax",
    "arg_min": "argmin",
    "range": "arange",
    "top_k_v2": "topk",
    "top_k": "topk",
    "one_hot_v2": "one_hot",
    "uniform_random": "uniform",
    "gaussian_random": "gaussian",
    "size": "numel",
    "conditional_block": "if",
    "conditional_block_grad": "if_grad",
    "fill_zeros_like": "full_like",
    "tril_triu": "triu",
}


def canonical_type(name: str, *, old_ir: bool) -> str:
    """The operator's name in the new IR, without "pd_op." and the underscore of in-place forms.

    In the old IR "sum" adds tensors and "reduce_sum" reduces one, which the new IR calls "add_n"
    and "sum".
    """
    bare = name.rpartition(".")[2]
    if not bare.endswith("__"):
        bare = bare.removesuffix("_")
    if not old_ir:
        return "shape" if bare == "shape64" else bare
    stem = bare
    grads = 0
    while stem.endswith("_grad") and stem not in _OLD_TO_NEW:
        stem = stem.removesuffix("_grad")
        grads += 1
    return _OLD_TO_NEW.get(stem, stem) + "_grad" * grads


FREE = frozenset(
    {
        # Names of inputs and outputs, and the bookkeeping of control flow: nothing runs.
        *("data", "feed", "fetch", "parameter", "set_parameter", "constant", "shadow_output"),
        *("yield", "tuple_push", "tuple_pop", "stack_create", "shadow_feed", "nop", "depend"),
        # Waits of one stream for another: the order of operators says it already.
        *("sync_calc_stream", "sync_comm_stream", "c_sync_calc_stream", "c_sync_comm_stream"),
        *("c_wait_compute", "c_wait_comm", "wait_compute", "wait_comm"),
        # Set-up of communicators, done once.
        *("c_comm_init", "c_comm_init_all", "c_gen_nccl_id", "comm_init_all"),
        # Its forward is the identity; the all-reduce is an operator of its own.
        *("c_identity", "mp_allreduce_sum_grad"),
    }
)
"""Operators that run nothing on the device; costs of 0 that are meant."""

_EXACT: dict[str, CollectiveKind] = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "mp_allreduce_sum": "all_reduce",
    "all_gather": "all_gather",
    "c_allgather": "all_gather",
    "c_concat": "all_gather",
    "partial_allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "c_reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "c_broadcast": "broadcast",
    "reduce": "reduce",
    "dist_reduce": "reduce",
    "c_scatter": "scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "c_alltoall": "all_to_all",
    "global_scatter": "all_to_all",
    "global_gather": "all_to_all",
    "global_scatter_grad": "all_to_all",
    "global_gather_grad": "all_to_all",
    "send": "send",
    "send_v2": "send",
    "p_send": "send",
    "p2p_send": "send",
    "p_send_array": "send",
    "partial_send": "send",
    "recv": "recv",
    "recv_v2": "recv",
    "p_recv": "recv",
    "p2p_recv": "recv",
    "p_recv_array": "recv",
    "partial_recv": "recv",
    "barrier": "barrier",
}
_BY_OPERATION: dict[str, CollectiveKind] = {"c_allreduce_": "all_reduce", "c_reduce_": "reduce"}
"""Names that go on with sum, max, min, prod or avg."""


def collective_kind(canonical: str) -> CollectiveKind | None:
    """What an operator exchanges, or None for one that computes.

    Args:
        canonical: what `canonical_type` returns.
    """
    exact = _EXACT.get(canonical)
    if exact is not None or not canonical.startswith("c_"):
        return exact
    kinds = (kind for start, kind in _BY_OPERATION.items() if canonical.startswith(start))
    return next(kinds, None)
