"""Messages between ranks on CPUs: one stream, one sender and one reader per pair and channel.

Paddle's Gloo blocks in every call until the peer takes part, and two directions on one group can
wait for each other for ever (facts/realruns.md section 1). Here a send only hands over, so any
order of sends and receives that a schedule asks for can run.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from autoplan.execute.clocks import sleep_until
from autoplan.execute.priorities import communicate_first
from autoplan.execute.sockets import (
    Bytes,
    accept,
    connect,
    listen,
    read_exactly,
    receive_frame,
    send_frame,
)

Array = NDArray[Any]
Channel = Literal["forward", "backward", "collective"]

_RELEASE = np.ones(1, dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Arrays on their way, None among them where there is nothing to send."""

    arrays: tuple[Array | None, ...]
    needs_gradient: tuple[bool, ...] = ()
    """Of activations: whether the sender wants a gradient back."""
    arrival_s: float = 0.0
    """When they arrive by the virtual clock."""
    due_s: float = 0.0
    """When they may be taken at the earliest, by the clock that a machine's processes share."""


@dataclass(slots=True)
class _Parcel:
    """A message in an outbox; the sender lets it go `hold_s` after it started on it."""

    message: Message
    hold_s: float = field(default=0.0)


class PostOffice:
    """One rank's connections to all others."""

    def __init__(self, rank: int, folder: Path, token: str, host: str | None = None) -> None:
        """Listens; `address` tells the others where."""
        self.rank = rank
        self._token = token
        self._listener, self.address = listen(folder, f"rank-{rank}", host)
        self._peers: tuple[str, ...] = ()
        self._inboxes: dict[tuple[int, str], queue.Queue[Message | Exception]] = {}
        self._outboxes: dict[tuple[int, str], queue.Queue[_Parcel | None]] = {}
        self._lock = threading.Lock()
        self._shares_clock = host is None
        self._link_free_s: dict[tuple[int, str], float] = {}
        _start(self._accept_all, "accept")

    def introduce(self, addresses: tuple[str, ...]) -> None:
        """Tells where each rank listens."""
        self._peers = addresses

    def send(self, to: int, channel: Channel, message: Message, hold_s: float = 0.0) -> None:
        """Hands a message to its sender thread.

        Args:
            to: the receiving rank.
            channel: messages of one channel arrive in order, and take their turns on the link.
            message: must not be changed afterwards.
            hold_s: seconds that the link takes at least. They are slept by the receiver, which one
                late wake-up delays; on another machine, whose clock is another, by the sender.
        """
        key = (to, channel)
        if key not in self._outboxes:
            self._outboxes[key] = queue.Queue()
            greeting = {"rank": self.rank, "channel": channel}
            stream = connect(self._peers[to], self._token, greeting)
            _start(self._send_all, f"send-{to}-{channel}", stream, self._outboxes[key])
        if hold_s > 0 and self._shares_clock:
            due_s = max(self._link_free_s.get(key, 0.0), time.monotonic()) + hold_s
            self._link_free_s[key] = due_s
            message, hold_s = replace(message, due_s=due_s), 0.0
        self._outboxes[key].put(_Parcel(message, hold_s))

    def close(self) -> None:
        """Hangs up once what was handed over is sent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for outbox in self._outboxes.values():
            outbox.put(None)

    def receive(self, source: int, channel: Channel) -> Message:
        """The next message of a channel, waiting for it.

        Raises:
            EOFError: the other side is gone.
        """
        found = self._inbox(source, channel).get()
        if isinstance(found, Exception):
            raise found
        if found.due_s > 0:
            sleep_until(found.due_s)
        return found

    def _inbox(self, source: int, channel: str) -> queue.Queue[Message | Exception]:
        with self._lock:
            return self._inboxes.setdefault((source, channel), queue.Queue())

    def _accept_all(self) -> None:
        """Gives every caller a reader of its own."""
        while True:
            try:
                caller = accept(self._listener, self._token)
            except OSError:
                return
            if caller is not None:
                stream, greeting = caller
                inbox = self._inbox(int(greeting["rank"]), str(greeting["channel"]))
                _start(self._read_all, f"read-{greeting['rank']}", stream, inbox)

    def _read_all(self, stream: socket.socket, inbox: queue.Queue[Message | Exception]) -> None:
        try:
            while True:
                header, payload = receive_frame(stream)
                message = _unpacked(header, payload)
                if header["held"]:
                    read_exactly(stream, 1)
                inbox.put(message)
        except (EOFError, OSError, ValueError) as error:
            inbox.put(EOFError(f"a connection was lost: {error}"))

    def _send_all(self, stream: socket.socket, outbox: queue.Queue[_Parcel | None]) -> None:
        """Sends what comes; holds nothing of it while it waits, so that tensors are freed."""
        with contextlib.closing(stream), contextlib.suppress(OSError):
            while _send(stream, outbox.get()):
                pass


def _send(stream: socket.socket, parcel: _Parcel | None) -> bool:
    """Writes first and lets go later, so that the bytes' own time is part of the hold."""
    if parcel is None:
        return False
    started_s = time.monotonic()
    held = parcel.hold_s > 0
    header, parts = _packed(parcel.message)
    send_frame(stream, header | {"held": held}, parts)
    if held:
        time.sleep(max(0.0, started_s + parcel.hold_s - time.monotonic()))
        stream.sendall(_RELEASE.data)
    return True


def _start(target: Any, name: str, *arguments: Any) -> None:
    def run() -> None:
        communicate_first()
        target(*arguments)

    threading.Thread(target=run, name=name, daemon=True).start()


def _packed(message: Message) -> tuple[dict[str, Any], list[Bytes]]:
    """A message as a header and raw bytes."""
    whole = [None if a is None else np.ascontiguousarray(a) for a in message.arrays]
    header = {
        "arrays": [None if a is None else [a.dtype.str, list(a.shape)] for a in message.arrays],
        "needs_gradient": message.needs_gradient,
        "arrival_s": message.arrival_s,
        "due_s": message.due_s,
    }
    return header, [a.reshape(-1).view(np.uint8) for a in whole if a is not None]


def _unpacked(header: dict[str, Any], payload: Bytes) -> Message:
    arrays: list[Array | None] = []
    start = 0
    for entry in header["arrays"]:
        if entry is None:
            arrays.append(None)
            continue
        dtype, shape = np.dtype(entry[0]), entry[1]
        end = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        arrays.append(payload[start:end].view(dtype).reshape(shape))
        start = end
    return Message(
        arrays=tuple(arrays),
        needs_gradient=tuple(header["needs_gradient"]),
        arrival_s=float(header["arrival_s"]),
        due_s=float(header["due_s"]),
    )
