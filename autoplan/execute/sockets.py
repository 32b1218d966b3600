"""Stream sockets between the processes of a run: addresses, greetings, and framed messages.

Nobody joins who does not know the run's token, frames are length-prefixed JSON with raw bytes
behind it, and nothing that arrives is executed.
"""

from __future__ import annotations

import hmac
import json
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_LENGTHS = struct.Struct(">IQ")
_MAX_HEADER_BYTES = 2**26
_MAX_UNIX_PATH = 100
"""Linux allows 107 bytes."""
_CONNECT_S = 30.0


def listen(folder: Path, name: str, host: str | None = None) -> tuple[socket.socket, str]:
    """A listening socket and the address by which others reach it.

    Args:
        folder: a private folder for the socket's file.
        name: of that file.
        host: this machine's name for others; None stays on this machine and uses a file, or
            loopback where the folder's path is too long for one.
    """
    path = folder / name
    if host is None and len(str(path).encode()) <= _MAX_UNIX_PATH:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        address = f"unix:{path}"
    else:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((host or "127.0.0.1", 0))
        address = f"tcp:{host or '127.0.0.1'}:{listener.getsockname()[1]}"
    listener.listen(128)
    return listener, address


def free_port() -> int:
    """A port that nobody on this machine uses now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def connect(address: str, token: str, greeting: dict[str, Any]) -> socket.socket:
    """Connects to an address and says who is calling.

    Raises:
        OSError: nobody listens there.
    """
    kind, _, where = address.partition(":")
    if kind == "unix":
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.settimeout(_CONNECT_S)
        stream.connect(where)
    else:
        host, _, port = where.rpartition(":")
        stream = socket.create_connection((host, int(port)), timeout=_CONNECT_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.settimeout(None)
    send_frame(stream, {"token": token, **greeting})
    return stream


def accept(listener: socket.socket, token: str) -> tuple[socket.socket, dict[str, Any]] | None:
    """The next caller and its greeting; None for one that does not know the token.

    Raises:
        OSError: the listener was closed, or its time is over.
    """
    stream, _ = listener.accept()
    stream.settimeout(_CONNECT_S)
    try:
        greeting, _ = receive_frame(stream)
    except (OSError, ValueError, EOFError):
        stream.close()
        return None
    if not hmac.compare_digest(str(greeting.pop("token", "")), token):
        stream.close()
        return None
    stream.settimeout(None)
    if stream.family == socket.AF_INET:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream, greeting


def send_frame(stream: socket.socket, header: dict[str, Any], parts: Iterable[Bytes] = ()) -> None:
    """Sends a header and some bytes after it."""
    payload = tuple(parts)
    text = json.dumps(header, separators=(",", ":")).encode()
    stream.sendall(_LENGTHS.pack(len(text), sum(part.nbytes for part in payload)) + text)
    for part in payload:
        if part.nbytes:
            stream.sendall(part.data)


def receive_frame(stream: socket.socket) -> tuple[dict[str, Any], Bytes]:
    """The next header and the bytes after it.

    Raises:
        EOFError: the other side is gone.
        ValueError: what arrived is not a frame.
    """
    prefix = read_exactly(stream, _LENGTHS.size)
    header_bytes, payload_bytes = _LENGTHS.unpack(prefix.tobytes())
    if header_bytes > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {header_bytes} bytes")
    header = json.loads(read_exactly(stream, header_bytes).tobytes())
    if not isinstance(header, dict):
        raise ValueError("a header that is not an object")  # noqa: TRY004 - a bad message
    return header, read_exactly(stream, payload_bytes)


def read_exactly(stream: socket.socket, count: int) -> Bytes:
    """The next `count` bytes; raises EOFError where the other side is gone."""
    found = np.empty(count, dtype=np.uint8)
    view = found.data
    done = 0
    while done < count:
        received = stream.recv_into(view[done:])
        if received == 0:
            raise EOFError("the other side is gone")
        done += received
    return found
