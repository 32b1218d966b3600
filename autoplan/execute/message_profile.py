"""What a message between stages takes from the core of a rank that computes."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from autoplan.cluster.model import MessageHandling
from autoplan.execute.fits import Fit, fit_affine
from autoplan.execute.model_source import require_paddle
from autoplan.execute.paddle_device import current_device
from autoplan.execute.tensors import HostTensors
from autoplan.execute.transport import Message, PostOffice

SIZES = tuple(4**i for i in range(5, 12))
"""1 KB to 4 MB."""
_WARM_UP = 3


def profile_messages(
    repeats: int, before_each: Callable[[], None], sizes: Sequence[int] = SIZES
) -> tuple[MessageHandling, Fit]:
    """Sends tensors from one end of a connection to the other, both in this process.

    Counts the CPU seconds of all threads from a tensor to the tensor that arrives, half of them
    for either end: the other end of a rank's messages is on another core.

    Args:
        repeats: of each size; the median counts.
        before_each: work that leaves caches as cold as a stage's compute does.
        sizes: bytes, rising, at least two.
    """
    with tempfile.TemporaryDirectory(prefix="autoplan-") as folder:
        token = uuid.uuid4().hex
        ends = [PostOffice(rank, Path(folder), token) for rank in range(2)]
        try:
            for end in ends:
                end.introduce(tuple(each.address for each in ends))
            seconds = [_handling_s(ends, size, repeats, before_each) for size in sizes]
        finally:
            for end in ends:
                end.close()
    fit = fit_affine(sizes, seconds)
    return handling_of(fit), fit


def handling_of(fit: Fit) -> MessageHandling:
    """Seconds of a message, from a line over bytes."""
    message_s, byte_s = fit.coefficients
    return MessageHandling(s_per_message=message_s, s_per_byte=byte_s)


def _handling_s(
    ends: Sequence[PostOffice], size: int, repeats: int, before_each: Callable[[], None]
) -> float:
    """CPU seconds of one end for one message."""
    sender, receiver = ends
    tensors = HostTensors(current_device())
    tensor = require_paddle().zeros([max(1, size // 4)])
    found = []
    for _ in range(_WARM_UP + repeats):
        before_each()
        began_s = time.process_time()
        sender.send(1, "forward", Message(arrays=(tensors.pack(tensor),), needs_gradient=(True,)))
        tensors.unpack(receiver.receive(0, "forward").arrays[0])
        found.append((time.process_time() - began_s) / 2)
    return float(np.median(found[_WARM_UP:]))
