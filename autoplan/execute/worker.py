"""A rank's process: it does what the launch tells it over one connection, and ends with it.

    python -m autoplan.execute.worker RANK CONTROL_ADDRESS

The answers are JSON objects with a field "did": "hello", "listening", "ready", "entered", "step",
"left", "probed", "profiled", or "failed" with the reason. What the user's model prints goes to
standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from autoplan.documents import build
from autoplan.errors import InputError
from autoplan.execute.backends import Backend, open_backend
from autoplan.execute.clocks import StepClock
from autoplan.execute.gradient_groups import Exchange, NoExchange
from autoplan.execute.host_memory import keep_freed_memory
from autoplan.execute.link_probe import ProbeOrder, timed
from autoplan.execute.model_source import complaint
from autoplan.execute.priorities import go_first, keep_to_core
from autoplan.execute.sockets import connect, free_port, receive_frame, send_frame
from autoplan.execute.stage_runner import StageRunner
from autoplan.execute.stage_work import StageWork
from autoplan.execute.transport import PostOffice
from autoplan.execute.worker_job import PlannedRun, WorkerJob

RUN_ID = "AUTOPLAN_RUN"
"""The environment variable that marks all processes of a launch, and is its token."""
_SWITCH_S = 5e-4
"""How long a thread of an emulating rank may keep others from running Python, at most."""
_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


class Worker:
    """The state of one rank."""

    def __init__(self, rank: int, backend: Backend, job: WorkerJob) -> None:
        """Runs plans of a job on a backend."""
        self._rank, self._backend, self._job = rank, backend, job
        self._runner: StageRunner | None = None
        self._exchange: Exchange = NoExchange()
        self._work: StageWork | None = None

    def enter(self, number: int) -> None:
        """Prepares this rank's stage of a plan, from the model's initial parameters on."""
        run = self._job.runs[number]
        stage, replica = _place(run, self._rank)
        self._work = self._backend.work(run, stage, replica)
        self._exchange = NoExchange()
        if run.plan.stages[stage].replicas > 1 and self._work.gradients.sizes:
            self._exchange = self._backend.exchange(run, stage, self._work)
        neighbours = self._backend.neighbours(run, stage, replica)
        self._runner = StageRunner(run.plan, stage, self._work, self._exchange, neighbours)

    def step(self, start_at_s: float | None) -> dict[str, Any]:
        """One step, and what the clocks say of it."""
        assert self._runner is not None
        cpu_s = time.process_time()
        clock = StepClock(self._job.modes.compute, start_at_s)
        loss = self._runner.step(clock)
        self._backend.synchronize()
        return {
            "wall_s": clock.wall_s(),
            "virtual_s": clock.virtual_s(),
            "cpu_s": time.process_time() - cpu_s,
            "loss": loss,
        }

    def leave(self) -> dict[str, Any]:
        """Ends the work on a plan; its peak of memory and its parameters' checksum."""
        assert self._work is not None
        self._exchange.close()
        found: dict[str, Any] = dict(self._work.close())
        if "peak_bytes" in found:
            found["peak_bytes"] += self._exchange.held_bytes()
        self._runner = self._work = None
        self._exchange = NoExchange()
        return found

    def probe(self, order: ProbeOrder) -> dict[str, Any]:
        """Times a transfer or a collective."""
        wall_s, cpu_s = timed(self._backend.probe(), order)
        return {"seconds": wall_s, "cpu_s": cpu_s}


def _place(run: PlannedRun, rank: int) -> tuple[int, int]:
    """The stage of a rank, and which replica of it this is."""
    for s, stage in enumerate(run.costs.stages):
        if rank in stage.ranks:
            return s, stage.ranks.index(rank)
    raise AssertionError(f"rank {rank} has no place in the plan")


class _Control:
    """The connection to the launch; the process ends when the launch does."""

    def __init__(self, address: str, token: str, rank: int) -> None:
        self._stream = connect(address, token, {"rank": rank, "did": "hello"})
        kind, _, where = address.partition(":")
        local = kind == "unix"
        self.folder = Path(where).parent if local else Path()
        """Where sockets of ranks on the same machine lie."""
        self.host = None if local else str(self._stream.getsockname()[0])
        """This machine's name for ranks on others; None where all share one machine."""
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def order(self) -> dict[str, Any]:
        """The next order, waiting for it."""
        return self._orders.get()

    def answer(self, did: str, **fields: Any) -> None:
        """Tells the launch what was done."""
        with contextlib.suppress(OSError):
            send_frame(self._stream, {"did": did, **fields})

    def _listen(self) -> None:
        try:
            while True:
                header, _ = receive_frame(self._stream)
                self._orders.put(header)
        except (EOFError, OSError, ValueError):
            # Whoever started this process is gone, whatever the main thread is waiting for.
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)
            os._exit(1)


def _obey(rank: int, control: _Control, token: str) -> None:
    """Does what the launch orders, until it says stop."""
    job = build(WorkerJob, control.order(), "job")
    if job.cores:
        keep_to_core(job.cores[rank])
    if not job.modes.needs_framework:
        # A rank that emulates all of its work sleeps nearly all the time.
        sys.setswitchinterval(_SWITCH_S)
        go_first()
    post = PostOffice(rank, control.folder, token, control.host)
    endpoint = f"{control.host or '127.0.0.1'}:{free_port()}"
    control.answer("listening", address=post.address, endpoint=endpoint)
    others = control.order()
    post.introduce(tuple(others["addresses"]))
    backend = open_backend(job, rank, post, tuple(others["endpoints"]))
    control.answer("ready", environment=backend.environment, refusals=backend.refusals)
    worker = Worker(rank, backend, job)
    while True:
        order = control.order()
        if order["do"] == "enter":
            worker.enter(order["plan"])
            control.answer("entered")
        elif order["do"] == "step":
            control.answer("step", **worker.step(order["start_at_s"]))
        elif order["do"] == "leave":
            control.answer("left", **worker.leave())
        elif order["do"] == "profile":
            control.answer("profiled", layers_s=backend.layers_s(order["samples"]))
        elif order["do"] == "probe":
            probe = build(ProbeOrder, order["order"], "order")
            control.answer("probed", **worker.probe(probe))
        else:
            return


def _prepare_process() -> None:
    """Dies with its parent, wakes up punctually, and keeps its memory."""
    keep_freed_memory()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(_PR_SET_TIMERSLACK, 1)


def main(arguments: list[str]) -> int:
    """Runs one rank."""
    rank, address = int(arguments[0]), arguments[1]
    _prepare_process()
    token = os.environ[RUN_ID]
    control = _Control(address, token, rank)
    try:
        _obey(rank, control, token)
    except InputError as error:
        parts = {"field": error.field, "found": str(error.found), "allowed": error.allowed}
        control.answer("failed", kind="input", reason=str(error), source=error.source, **parts)
        return 2
    except MemoryError as error:
        control.answer("failed", kind="oom", reason=str(error) or "out of memory")
        return 1
    except Exception as error:
        control.answer("failed", kind="crash", reason=complaint(error))
        raise
    return 0


if __name__ == "__main__":
    code = 1
    try:
        code = main(sys.argv[1:])
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that still wait for peers must not keep the process; neither must the framework.
    os._exit(code)
