from __future__ import annotations

import pytest

from autoplan.costmodel.op_names import FREE, canonical_type, collective_kind


@pytest.mark.parametrize(
    ("name", "old_ir", "expected"),
    [
        ("pd_op.adam_", False, "adam"),
        ("pd_op.matmul_grad", False, "matmul_grad"),
        ("pd_op.sum", False, "sum"),
        ("cf.yield", False, "yield"),
        ("matmul_v2", True, "matmul"),
        ("elementwise_add_grad", True, "add_grad"),
        ("sum", True, "add_n"),
        ("reduce_sum", True, "sum"),
        ("reduce_sum_grad", True, "sum_grad"),
        ("softmax_with_cross_entropy_grad", True, "cross_entropy_with_softmax_grad"),
        ("matmul_v2_grad_grad", True, "matmul_grad_grad"),
        ("lookup_table_v2", True, "embedding"),
    ],
)
def test_both_irs_get_one_name(name, old_ir, expected):
    assert canonical_type(name, old_ir=old_ir) == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("c_allreduce_sum", "all_reduce"),
        ("c_allreduce_max", "all_reduce"),
        ("c_allreduce_min", "all_reduce"),
        ("c_allreduce_prod", "all_reduce"),
        ("c_allreduce_avg", "all_reduce"),
        ("all_reduce", "all_reduce"),
        ("allreduce", "all_reduce"),
        ("mp_allreduce_sum", "all_reduce"),
        ("c_allgather", "all_gather"),
        ("all_gather", "all_gather"),
        ("c_concat", "all_gather"),
        ("partial_allgather", "all_gather"),
        ("c_reducescatter", "reduce_scatter"),
        ("reduce_scatter", "reduce_scatter"),
        ("c_broadcast", "broadcast"),
        ("broadcast", "broadcast"),
        ("c_reduce_sum", "reduce"),
        ("reduce", "reduce"),
        ("c_scatter", "scatter"),
        ("alltoall", "all_to_all"),
        ("all_to_all", "all_to_all"),
        ("global_scatter", "all_to_all"),
        ("global_gather", "all_to_all"),
        ("send_v2", "send"),
        ("recv_v2", "recv"),
        ("p_send", "send"),
        ("p_recv", "recv"),
        ("p2p_send", "send"),
        ("p2p_recv", "recv"),
        ("partial_send", "send"),
        ("partial_recv", "recv"),
        ("barrier", "barrier"),
        ("broadcast_tensors", None),
        ("gather", None),
        ("scatter", None),
        ("reduce_as", None),
        ("send_u_recv", None),
        ("c_embedding", None),
        ("c_split", None),
        ("c_softmax_with_cross_entropy", None),
    ],
)
def test_exchanges_are_told_from_what_only_sounds_like_one(name, kind):
    assert collective_kind(canonical_type(name, old_ir=True)) == kind
    assert collective_kind(canonical_type(f"pd_op.{name}", old_ir=False)) == kind


def test_waits_and_identities_are_free_by_name_and_exchanges_are_not():
    assert {"c_sync_calc_stream", "c_sync_comm_stream", "c_identity", "fetch"} <= FREE
    assert not any(collective_kind(name) for name in FREE)
