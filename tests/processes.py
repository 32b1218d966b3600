"""Processes that tests start, look at, and kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ISLAND = "_IslandActor"
SURVEYOR = "_SurveyorActor"


def descendants(parent):
    """Numbers and command lines of the processes that a process has started, and they in turn."""
    children, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if status[0] != "Z":
            children.setdefault(int(status[1]), []).append(int(folder.name))
            commands[int(folder.name)] = command
    found, waiting = {}, [parent]
    while waiting:
        for number in children.get(waiting.pop(), []):
            found[number] = commands[number]
            waiting.append(number)
    return found


def named(parent, text):
    """Those of the descendants whose command line holds a text."""
    return sorted(number for number, command in descendants(parent).items() if text in command)


def alive(numbers):
    """Those of some processes that still run."""
    found = set()
    for number in numbers:
        with contextlib.suppress(OSError):
            state = (Path("/proc") / str(number) / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                found.add(number)
    return found


def wait_until(true, seconds, what):
    """Waits for something to become true; returns it."""
    until_s = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < until_s, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found


def working_islands(process):
    """The workers of a search that a test has started, awaited: one that is lost is replaced."""

    def found():
        assert process.poll() is None, f"the search has ended: {process.communicate()}"
        return named(process.pid, ISLAND)

    return wait_until(found, 60, f"workers of {descendants(process.pid)}")


@contextlib.contextmanager
def searching(experiment_path, *options, environment=None):
    """`autoplan search` in a session of its own; killed at the end if it still runs."""
    command = [sys.executable, "-m", "autoplan", "search", str(experiment_path), "--json"]
    process = subprocess.Popen(
        [*command, *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
        process.stderr.close()


def searched(experiment_path, *options, environment=None, seconds=120):
    """Runs `autoplan search` to its end: exit code, standard output, standard error."""
    with searching(experiment_path, *options, environment=environment) as process:
        out, err = process.communicate(timeout=seconds)
        return process.returncode, out, err
