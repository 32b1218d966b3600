"""A rank whose GPU is the host and whose NCCL is Gloo: the same calls, without the device.

python host_as_gpu.py RANK CONTROL_ADDRESS
"""

from __future__ import annotations

import os
import sys

from autoplan.execute import backends, nccl, worker
from autoplan.execute.model_source import require_paddle
from autoplan.execute.nccl import group_environment
from autoplan.execute.paddle_device import current_device


class HostTensors(nccl.GpuTensors):
    holds_all_layers = True

    def __init__(self, number):
        self._paddle = require_paddle()
        self._place = "cpu"
        self.device = current_device()


def environment(rank, endpoints, backend):
    assert backend == "nccl"
    return group_environment(rank, endpoints, "gloo")


if __name__ == "__main__":
    backends.GpuTensors = HostTensors
    backends.group_environment = environment
    code = worker.main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
