"""Checked values of command line options."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole_number(least: int) -> Callable[[str], int]:
    """A parser of whole numbers of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            message = f"found {text!r}; allowed: a whole number of at least {least}"
            raise argparse.ArgumentTypeError(message)
        return value

    return parse


def some_text(text: str) -> str:
    """A text that is not empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a text that is not empty")
    return text


def density(text: str) -> float:
    """A share above 0, at most 1."""
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a number above 0, at most 1")
    return value


def positive_number(text: str) -> float:
    """A finite number above 0."""
    value = _number(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a finite number above 0")
    return value


def _number(text: str) -> float:
    """The number that a text stands for, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan
