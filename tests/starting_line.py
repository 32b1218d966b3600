"""Several programs that do the same thing at the same moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

WAIT_FOR_START = "print('ready', flush=True)\ninput()\n"
"""What a program runs when it has imported all that it needs."""


def run_at_once(program: str, arguments: Sequence[Sequence[object]]) -> None:
    """Runs the program once for each row of arguments; all must succeed."""
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", program, *map(str, row)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for row in arguments
    ]
    try:
        for each in programs:
            assert each.stdout.readline() == "ready\n", each.communicate()[1]
        for each in programs:
            each.stdin.write("go\n")
            each.stdin.flush()
        for each in programs:
            _, stderr = each.communicate(timeout=120)
            assert each.returncode == 0, stderr
    finally:
        for each in programs:
            each.kill()
            each.wait()
