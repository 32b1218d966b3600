"""Ctrl-C, and the signal that clusters send before they take a machine away."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SecondInterruptError(KeyboardInterrupt):
    """The user does not want to wait for what a first interrupt leaves to be done."""


class Interrupts:
    """Within it, the first signal is noted; the second one ends whatever is going on."""

    def __init__(self, *, raising: bool = False) -> None:
        """`raising` says that the first signal raises KeyboardInterrupt too.

        Libraries may swallow what is raised within them, so that `requested` counts.
        """
        self.requested, self.raising = False, raising
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        """Takes the signals over, where this is the main thread."""
        self.take_over()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def take_over(self) -> None:
        """Handles the signals, again where a library has changed that meanwhile."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.signal(number, self._note)
            self._before.setdefault(number, before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise SecondInterruptError
        self.requested = True
        if self.raising:
            raise KeyboardInterrupt
