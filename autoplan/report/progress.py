"""A line that tells how far a search is."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autoplan.report.quantities import percent, seconds, size
from autoplan.search.result import Progress

_PLAIN_INTERVAL_S = 2.0


class ProgressLine:
    """On standard error: one line kept up to date on a terminal, a plain line now and then else."""

    def __init__(self) -> None:
        """Finds out what standard error is."""
        self._console = Console(file=sys.stderr)
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)
        self._printed_s = time.monotonic()

    def __enter__(self) -> ProgressLine:
        """Starts the line."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Removes the line."""
        self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Shows how far the search is."""
        if self._console.is_terminal:
            self._live.update(Text(_line(progress), no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._printed_s >= _PLAIN_INTERVAL_S:
            self._printed_s = time.monotonic()
            print(_line(progress), file=sys.stderr, flush=True)


def _line(progress: Progress) -> str:
    best = "none fits yet"
    if progress.best_s is not None:
        gap = progress.best_s / progress.lower_bound_s - 1 if progress.lower_bound_s > 0 else 0.0
        best = f"best {seconds(progress.best_s)}, gap {percent(gap)}"
    if progress.least_bytes is not None:
        best += f", {progress.points} plans on the front down to {size(progress.least_bytes)}"
    workers = f" of {progress.workers} workers" if progress.workers > 1 else ""
    elapsed = max(progress.elapsed_s, 1e-9)
    by_trials = elapsed / max(progress.trials, 1) * (progress.total_trials - progress.trials)
    left = max(0.0, min(by_trials, progress.budget_s - elapsed))
    return (
        f"trial {progress.trials}/{progress.total_trials}  {best}  bound "
        f"{seconds(progress.lower_bound_s)}  {progress.candidates / elapsed:.0f} plans/s{workers}  "
        f"{left:.0f} s left"
    )
