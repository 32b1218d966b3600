"""One launch: all ranks of a sweep, told what to do and watched meanwhile."""

from __future__ import annotations

import contextlib
import selectors
import shutil
import socket
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoplan.documents import plain
from autoplan.errors import AutoplanError, InputError, words
from autoplan.execute.link_probe import ProbeOrder
from autoplan.execute.real_run import Status
from autoplan.execute.sockets import accept, listen, receive_frame, send_frame
from autoplan.execute.spawn import LocalStarter, Starter, rank_command
from autoplan.execute.worker import RUN_ID
from autoplan.execute.worker_job import WorkerJob

_POLL_S = 0.05
_START_LEAD_S = 0.01
"""How far ahead a step's start lies, so that every rank has heard of it."""
_FAREWELL_S = 5.0
_OUT_OF_MEMORY = ("out of memory", "ResourceExhausted", "Cannot allocate memory", "MemoryError")


class RunFailedError(AutoplanError):
    """What ended a launch before its work was done."""

    def __init__(self, status: Status, reason: str) -> None:
        """Keeps the status and the reason in one line."""
        self.status: Status = status
        self.reason = " ".join(reason.split())
        super().__init__(self.reason)


class Launch:
    """The running ranks of one launch; leaving the context ends them."""

    def __init__(self, job: WorkerJob, ranks: int, starter: Starter | None = None) -> None:
        """Starts the processes.

        Args:
            job: what they are to do.
            ranks: how many there are.
            starter: where they run; on this machine by default.
        """
        starter = starter or LocalStarter()
        self._job, self._ranks = job, ranks
        self._shares_clock = starter.host is None
        self._token = uuid.uuid4().hex
        self._folder = Path(tempfile.mkdtemp(prefix="autoplan-"))
        self._streams: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self.environment: dict[str, Any] = {}
        self.refusals: list[str | None] = []
        try:
            self._listener, address = listen(self._folder, "control", starter.host)
            commands = [
                rank_command("autoplan.execute.worker", str(rank), address) for rank in range(ranks)
            ]
            self._processes = starter.start(commands, {RUN_ID: self._token})
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def __enter__(self) -> Launch:
        """Nothing more to start."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Ends every process, and removes the launch's folder."""
        for stream in self._streams.values():
            with contextlib.suppress(OSError):
                send_frame(stream, {"do": "stop"})
        self._processes.wait(_FAREWELL_S if kind is None else 0.0)
        for stream in self._streams.values():
            stream.close()
        self._listener.close()
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def prepare(self, limit_s: float) -> None:
        """Waits until all ranks have built the model and found each other.

        Raises:
            RunFailedError: one of them ended, or they took longer than `limit_s`.
            InputError: the model is at fault.
        """
        until_s = time.monotonic() + limit_s
        self._listener.settimeout(_POLL_S)
        while len(self._streams) < self._ranks:
            self._require_alive(range(self._ranks))
            if time.monotonic() > until_s:
                missing = sorted(set(range(self._ranks)) - self._streams.keys())
                raise RunFailedError("timeout", f"{_named(missing)} did not start in {limit_s:g} s")
            with contextlib.suppress(TimeoutError):
                caller = accept(self._listener, self._token)
                if caller is not None:
                    stream, greeting = caller
                    self._streams[int(greeting["rank"])] = stream
                    self._selector.register(stream, selectors.EVENT_READ, int(greeting["rank"]))
        ranks = range(self._ranks)
        self._tell(ranks, plain(self._job))
        heard = self._collect(ranks, "listening", until_s - time.monotonic())
        names = {"addresses": "address", "endpoints": "endpoint"}
        self._tell(ranks, {k: [heard[rank][name] for rank in ranks] for k, name in names.items()})
        ready = self._collect(ranks, "ready", until_s - time.monotonic())
        self.environment = ready[0]["environment"]
        self.refusals = ready[0]["refusals"]

    def enter(self, ranks: Sequence[int], plan: int, limit_s: float) -> None:
        """Has ranks prepare a plan; raises RunFailedError like `step`."""
        self._tell(ranks, {"do": "enter", "plan": plan})
        self._collect(ranks, "entered", limit_s)

    def step(self, ranks: Sequence[int], limit_s: float) -> dict[int, dict[str, Any]]:
        """Has ranks run one step, all from the same moment on.

        Returns:
            What each rank says of it.

        Raises:
            RunFailedError: one of them ended, failed, or did not answer within `limit_s`.
        """
        start_at_s = time.monotonic() + _START_LEAD_S if self._shares_clock else None
        self._tell(ranks, {"do": "step", "start_at_s": start_at_s})
        return self._collect(ranks, "step", limit_s)

    def leave(self, ranks: Sequence[int], limit_s: float) -> dict[int, dict[str, Any]]:
        """Has ranks end their work on a plan; like `step`."""
        self._tell(ranks, {"do": "leave"})
        return self._collect(ranks, "left", limit_s)

    def layers_s(self, samples: int, limit_s: float) -> tuple[int, float] | None:
        """Has all ranks profile the model in short; samples and their mean seconds; like `step`."""
        ranks = range(self._ranks)
        self._tell(ranks, {"do": "profile", "samples": samples})
        heard = [each["layers_s"] for each in self._collect(ranks, "profiled", limit_s).values()]
        if None in heard:
            return None
        return int(heard[0][0]), statistics.fmean(seconds for _, seconds in heard)

    def probe(self, order: ProbeOrder, limit_s: float) -> list[float]:
        """Has ranks time an operation; per repeat, the seconds of the slowest; like `step`."""
        heard = self._probed(order, limit_s)
        if order.operation == "transfer":
            return list(heard[order.ranks[0]]["seconds"])
        return [max(each) for each in zip(*(h["seconds"] for h in heard.values()), strict=True)]

    def probe_cpu(self, order: ProbeOrder, limit_s: float) -> list[float]:
        """The CPU seconds of all repeats on all ranks; otherwise like `probe`."""
        heard = self._probed(order, limit_s)
        return [seconds for each in heard.values() for seconds in each["cpu_s"]]

    def _probed(self, order: ProbeOrder, limit_s: float) -> dict[int, dict[str, Any]]:
        self._tell(order.ranks, {"do": "probe", "order": plain(order)})
        return self._collect(order.ranks, "probed", limit_s)

    def _tell(self, ranks: Sequence[int], order: dict[str, Any]) -> None:
        for rank in ranks:
            with contextlib.suppress(OSError):  # a rank that is gone is noticed by _collect
                send_frame(self._streams[rank], order)

    def _collect(self, ranks: Sequence[int], did: str, limit_s: float) -> dict[int, dict[str, Any]]:
        """One answer from each rank."""
        until_s = time.monotonic() + limit_s
        found: dict[int, dict[str, Any]] = {}
        while len(found) < len(ranks):
            left_s = max(0.0, until_s - time.monotonic())
            for key, _ in self._selector.select(min(_POLL_S, left_s)):
                answer = self._answer(key.fileobj, key.data)
                if answer["did"] == "failed":
                    raise self._failure(key.data, answer)
                if answer["did"] == did and key.data in ranks:
                    found[key.data] = answer
            self._require_alive(range(self._ranks))
            if time.monotonic() > until_s:
                silent = [rank for rank in ranks if rank not in found] or ranks
                raise RunFailedError("timeout", f"no answer of {_named(silent)} in {limit_s:.3g} s")
        return found

    def _answer(self, stream: Any, rank: int) -> dict[str, Any]:
        """A rank's next answer; its failure where it is gone."""
        try:
            answer, _ = receive_frame(stream)
        except (EOFError, OSError, ValueError):
            self._selector.unregister(stream)
            self._await_end(rank)
            raise self._death(rank) from None
        return answer

    def _await_end(self, rank: int) -> None:
        """Gives a process that hung up a moment to end, so that its exit code is known."""
        until_s = time.monotonic() + _FAREWELL_S
        while self._processes.exit_codes()[rank] is None and time.monotonic() < until_s:
            time.sleep(_POLL_S)

    def _require_alive(self, ranks: Sequence[int]) -> None:
        """Raises the failure of a rank that ended; what it said last may still be unread."""
        codes = self._processes.exit_codes()
        for rank in ranks:
            if codes[rank] is not None:
                stream = self._streams.get(rank)
                if stream is not None:
                    self._drain(stream, rank)
                raise self._death(rank)

    def _drain(self, stream: socket.socket, rank: int) -> None:
        stream.settimeout(_FAREWELL_S)  # what the rank started may still hold the other end
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                answer, _ = receive_frame(stream)
                if answer["did"] == "failed":
                    raise self._failure(rank, answer)

    def _failure(self, rank: int, answer: dict[str, Any]) -> AutoplanError:
        """What a rank said of its own failure."""
        if answer["kind"] == "input" and not self.environment:
            # Before anything ran, it is the model or the job that is wrong, not a plan.
            found, allowed = words(answer["found"]), answer["allowed"]
            return InputError(answer["field"], found, allowed, source=answer["source"])
        reason = answer["reason"]
        memory = answer["kind"] == "oom" or any(word in reason for word in _OUT_OF_MEMORY)
        return RunFailedError("oom" if memory else "failed", f"rank {rank}: {reason}")

    def _death(self, rank: int) -> RunFailedError:
        """The failure of a rank that ended without a word."""
        code = self._processes.exit_codes()[rank]
        last = self._processes.last_line(rank)
        if code == -9:
            reason = f"rank {rank} was killed, as the system does when memory runs out"
            return RunFailedError("oom", reason)
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        memory = any(word in last for word in _OUT_OF_MEMORY)
        status: Status = "oom" if memory else "failed"
        return RunFailedError(status, f"rank {rank}: {how}" + (f": {last}" if last else ""))


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
