"""Standard output as tables are printed on it."""

from __future__ import annotations

from rich.console import Console

_MIN_WIDTH = 110
"""Columns of output that is not a terminal."""


def console() -> Console:
    """Standard output; wide enough for the tables where it is a file or a pipe."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=max(out.width, _MIN_WIDTH))
