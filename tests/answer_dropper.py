"""A proxy before PostgreSQL that loses the answers to some commits, together with the connection.

What the server has committed is then there although nobody was told so: the moment at which a
client that simply tries again writes twice.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading

_COMMIT = b"COMMIT\0"
"""How the text of a simple query ends that commits."""


class AnswerDropper:
    """Forwards connections; drops some when a commit has gone to the server and before its answer.

    Half of these drops wait for the server's answer, so that it has committed for certain; the
    others leave open whether it ever will.
    """

    def __init__(self, port: int, seed: int, share: float) -> None:
        """Args: the server's port, the seed of the moments, the share of commits to drop."""
        self.share, self.num_dropped, self.num_commits = share, 0, 0
        self._server_port, self._rng, self._lock = port, random.Random(seed), threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()

    def __enter__(self) -> AnswerDropper:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # A listener that is only closed goes on waiting in its other thread.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                _end(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            commits = _Pending()
            for source, target, forward in (
                (client, server, self._to_server),
                (server, client, self._to_client),
            ):
                threading.Thread(
                    target=self._pump, args=(source, target, forward, commits), daemon=True
                ).start()

    def _pump(self, source, target, forward, pending) -> None:
        """Forwards one direction until either end is gone, then ends both."""
        with contextlib.suppress(OSError):
            while (data := source.recv(2**16)) and forward(data, target, pending):
                pass
        for each in (source, target):
            _end(each)
            each.close()
        with self._lock:
            self._open -= {source, target}

    def _to_server(self, data: bytes, server: socket.socket, pending: _Pending) -> bool:
        if not data.endswith(_COMMIT):
            server.sendall(data)
            return True
        with self._lock:
            self.num_commits += 1
            drop = self._rng.random() < self.share
            wait = self._rng.random() < 0.5
            self.num_dropped += drop
        pending.drop = drop and wait  # before the answer can be there
        server.sendall(data)
        return not drop or wait

    def _to_client(self, data: bytes, client: socket.socket, pending: _Pending) -> bool:
        if pending.drop:
            return False
        client.sendall(data)
        return True


class _Pending:
    """What one connection waits for."""

    drop = False
    """Whether the next answer is to a commit, and lost."""


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
