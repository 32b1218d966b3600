"""Policies that decide which gradients are exchanged together."""

from __future__ import annotations

from typing import Literal, get_args

from autoplan.errors import InputError, require
from autoplan.gradsync.policies.base import Policy
from autoplan.gradsync.policies.exact import Exact
from autoplan.gradsync.policies.limits import keep_limits
from autoplan.gradsync.policies.mg_wfbp import MgWfbp
from autoplan.gradsync.policies.mgs import Mgs, MgsCorrected
from autoplan.gradsync.policies.simple import Layerwise, Single
from autoplan.gradsync.policies.thresholds import (
    DDP_CAP_BYTES,
    SMALL_CAP_BYTES,
    DistributedDataParallel,
    Horovod,
    HorovodFusion,
    PaddleDataParallel,
)

PolicyName = Literal[
    "layerwise",
    "single",
    "threshold",
    "horovod",
    "paddle",
    "mg-wfbp",
    "mgs",
    "mgs-corrected",
    "exact",
]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
"""Names that `policy_named` knows."""

__all__ = [
    "DDP_CAP_BYTES",
    "POLICIES",
    "DistributedDataParallel",
    "Exact",
    "Horovod",
    "HorovodFusion",
    "Layerwise",
    "MgWfbp",
    "Mgs",
    "MgsCorrected",
    "PaddleDataParallel",
    "Policy",
    "PolicyName",
    "Single",
    "keep_limits",
    "policy_named",
]


def policy_named(
    name: str, *, cap_bytes: float = DDP_CAP_BYTES, bytes_per_element: float = 4.0
) -> Policy:
    """The policy of that name.

    Args:
        name: one of POLICIES.
        cap_bytes: cap of "threshold" (PyTorch DDP), "horovod" and "paddle". The small bucket of
            DDP and Paddle is capped at their 1 MiB, or at this if less.
        bytes_per_element: bytes of a gradient element, for "horovod", which counts elements.

    Raises:
        InputError: no policy has that name, or the cap is not positive.
    """
    require(cap_bytes > 0, "cap_bytes", cap_bytes, "above 0 bytes")
    require(bytes_per_element > 0, "bytes_per_element", bytes_per_element, "above 0 bytes")
    small = min(cap_bytes, SMALL_CAP_BYTES)
    named: dict[str, Policy] = {
        "layerwise": Layerwise(),
        "single": Single(),
        "threshold": DistributedDataParallel(cap_bytes=cap_bytes, first_cap_bytes=small),
        "horovod": Horovod(cap_bytes / bytes_per_element),
        "paddle": PaddleDataParallel(comm_buffer_bytes=cap_bytes, last_comm_buffer_bytes=small),
        "mg-wfbp": MgWfbp(),
        "mgs": Mgs(),
        "mgs-corrected": MgsCorrected(),
        "exact": Exact(),
    }
    if name not in named:
        raise InputError("policy", name, ", ".join(POLICIES))
    return named[name]
