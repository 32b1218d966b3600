"""A long search with something killed every few seconds, and the books checked after each death.

Kills a worker, the surveyor or the driver, interrupts the driver, or restarts or stops the database
server, at moments and in an order that the seed decides. The seed is printed first, so that a
failure can be looked for again. The database is a PostgreSQL server of its own where PostgreSQL is
installed, else a SQLite file. Run from the repository's root, beside the tests whose tools it uses:

    python experiments/soak.py [--seconds 600] [--seed N] [--workers 2] [--json]

Exit code 0: after every death no process was left, no acknowledged trial was lost or doubled, and
the best plan was the least of the rows. 1: not so; the folder with everything is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import postgres_server  # noqa: E402
import small_experiment  # noqa: E402
from processes import ISLAND, SURVEYOR, alive, descendants, named, wait_until  # noqa: E402
from search_invariants import check, files_with, num_acknowledged  # noqa: E402

from autoplan.errors import InputError, StorageError  # noqa: E402
from autoplan.search.experiment import load_experiment  # noqa: E402

SHORTEST_S, LONGEST_S = 4.0, 20.0
"""Between two deaths."""
GONE_S = 30.0
"""How long what a dead driver started may live on."""


class Soak:
    """One search that is started again whenever it has ended."""

    def __init__(self, folder: Path, seed: int, workers: int) -> None:
        """Writes the experiment and starts the server; the search is started by `start`."""
        self.folder, self.rng, self.workers = folder, random.Random(seed), workers
        self.path = small_experiment.write(folder)
        capped = 'space = {grouping = ["threshold"]}'
        text = self.path.read_text().replace('space = "default"', capped)
        self.path.write_text(text)
        self.experiment = load_experiment(self.path)
        self.server = None if postgres_server.absent() else postgres_server.PostgresServer()
        self.storage = self.experiment.default_storage
        if self.server is not None:
            self.server.start()
            self.storage = self.server.url()
        self.log = (folder / "log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None
        self.known = 0
        self.done: Counter[str] = Counter()

    def start(self) -> None:
        """Starts the search if it does not run."""
        if self.process is not None and self.process.poll() is None:
            return
        command = [
            sys.executable, "-m", "autoplan", "search", str(self.path), "--json",
            "--workers", str(self.workers), "--trials", "100000000", "--seconds", "120",
        ]  # fmt: skip
        environment = {**os.environ, "AUTOPLAN_STORAGE": self.storage}
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, env=environment, start_new_session=True
        )
        self.done["started"] += 1

    def kill_worker(self) -> None:
        """SIGKILL for one island."""
        self._kill_one(ISLAND)

    def kill_surveyor(self) -> None:
        """SIGKILL for who sweeps and bounds."""
        self._kill_one(SURVEYOR)

    def kill_driver(self) -> None:
        """SIGKILL for the command itself."""
        self._end(signal.SIGKILL)

    def interrupt(self) -> None:
        """Ctrl-C, once."""
        self._end(signal.SIGINT)

    def restart_server(self) -> None:
        """As if the database's machine had lost its power for a moment."""
        if self.server is not None:
            self.server.restart_at_once()

    def stop_server(self) -> None:
        """The database is away for some seconds."""
        if self.server is not None:
            self.server.stop()
            time.sleep(self.rng.uniform(1.0, 10.0))
            self.server.start()

    def audit(self) -> None:
        """The books, by another connection, whether the search runs or not."""
        try:
            found = num_acknowledged(self.storage)
        except (InputError, StorageError, KeyError):
            assert self.known == 0, "the study is gone"
            return
        assert found >= self.known, f"{self.known - found} acknowledged trials were lost"
        self.known = found

    def close(self) -> None:
        """Ends the search, and checks everything at rest."""
        try:
            self._end(signal.SIGINT)
            self.audit()
            check(self.storage, self.experiment)
            leaks = files_with(self.folder, postgres_server.PASSWORD)
            assert not leaks, f"the password is in {leaks}"
        finally:
            self._end(signal.SIGKILL)
            self.log.close()
            if self.server is not None:
                self.server.remove()

    def _kill_one(self, name: str) -> None:
        assert self.process is not None
        found = named(self.process.pid, name)
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(found), signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        """Ends the driver; nothing of it may be left soon afterwards."""
        process = self.process
        if process is None or process.poll() is not None:
            return
        started = descendants(process.pid)
        process.send_signal(how)
        process.wait(timeout=150)
        wait_until(lambda: not alive(started), GONE_S, "nothing of the driver is left")


def soak(folder: Path, seconds: float, seed: int, workers: int) -> dict[str, object]:
    """Runs and kills until the time is over; what was done."""
    run = Soak(folder, seed, workers)
    actions: list[Callable[[], None]] = [
        run.kill_worker, run.kill_surveyor, run.kill_driver, run.interrupt, run.restart_server,
        run.stop_server,
    ]  # fmt: skip
    until_s = time.monotonic() + seconds
    try:
        while time.monotonic() < until_s:
            run.start()
            time.sleep(run.rng.uniform(SHORTEST_S, LONGEST_S))
            action = run.rng.choice(actions)
            print(f"{action.__name__}, {run.known} trials", file=sys.stderr, flush=True)
            action()
            run.done[action.__name__] += 1
            run.audit()
    finally:
        run.close()
    return {"seed": seed, "trials": run.known, "storage": run.storage.split(":")[0], **run.done}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the figures as one document")
    arguments = parser.parse_args()
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="autoplan-soak-"))
    try:
        figures = soak(folder, arguments.seconds, seed, arguments.workers)
    except AssertionError as error:
        print(f"seed {seed}: {error}; everything is in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps(figures))
    else:
        print(", ".join(f"{name} {value}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
