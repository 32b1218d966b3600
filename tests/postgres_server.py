"""A PostgreSQL server of the tests' own, from the system's packages."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

USER = "planner"
PASSWORD = "open-sesame-31415"
_PR_SET_PDEATHSIG = 1
_READY_S = 30


def absent() -> str | None:
    """Why no server can be started here, or None."""
    if not _programs():
        return "PostgreSQL is not installed (on Debian: apt-get install postgresql)"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed (pip install 'autoplan[postgres]')"
    if os.getuid() == 0 and _unprivileged() is None:
        return "PostgreSQL refuses to run as root, and there is no user to run it as"
    return None


def _programs() -> Path | None:
    """The newest folder with both programs."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: p.parent.name)
    if on_path := shutil.which("initdb"):
        folders.append(Path(on_path).parent)
    whole = [f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()]
    return whole[-1] if whole else None


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom to run as where the tests run as root."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class PostgresServer:
    """Started in a temporary folder on a free port; asks for a password; ends with its parent."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._folder = Path(tempfile.mkdtemp(prefix="autoplan-pg-"))
        self._identity = {}
        if os.getuid() == 0:
            user = _unprivileged()
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._process = None
        # The server ends with the thread that started it, so that thread stays.
        self._spawner = ThreadPoolExecutor(max_workers=1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._make_cluster()

    def url(self, database: str = "postgres") -> str:
        """With the password."""
        return f"postgresql+psycopg://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def emptied(self) -> str:
        """The URL of the database, without tables and without anybody else in it.

        A new database for each test would take 7 MB and a tenth of a second.
        """
        import psycopg

        with psycopg.connect(self.url().replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return self.url()

    def start(self) -> None:
        """Starts the server and waits until it takes connections."""
        options = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self._folder,
            "fsync": "off",  # the machine is not what fails in these tests
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        command = [self._programs / "postgres", "-D", self._folder / "data", *arguments]
        self._process = self._spawner.submit(self._spawn, command).result()
        self._wait_until_ready()

    def _spawn(self, command: list) -> subprocess.Popen:
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                **self._identity,
            )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is PostgreSQL's fast stop, SIGQUIT its immediate one, as if the power failed."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None

    def restart_at_once(self) -> None:
        """As after a power failure."""
        self.stop(signal.SIGQUIT)
        self.start()

    def remove(self) -> None:
        """Stops the server, whatever state it is in, and deletes its files."""
        try:
            self.stop(signal.SIGQUIT)
        finally:
            self._spawner.shutdown()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _make_cluster(self) -> None:
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        command = [
            self._programs / "initdb", "-D", self._folder / "data", "-U", USER, "-E", "UTF8",
            "--locale=C", "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync",
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, cwd=self._folder, **self._identity
        )
        assert done.returncode == 0, done.stderr

    def _wait_until_ready(self) -> None:
        import psycopg

        deadline_s = time.monotonic() + _READY_S
        while True:
            try:
                psycopg.connect(self.url().replace("+psycopg", ""), connect_timeout=2).close()
            except psycopg.OperationalError:
                log = (self._folder / "log").read_text()
                assert self._process.poll() is None, log
                assert time.monotonic() < deadline_s, log
                time.sleep(0.05)
            else:
                return


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
