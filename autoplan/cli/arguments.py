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


def add_calibration_option(parser: argparse.ArgumentParser) -> None:
    """Adds --calibration."""
    parser.add_argument(
        "--calibration",
        type=some_text,
        metavar="FILE",
        help="scale device seconds as real runs showed (verify --calibrate); default: what the "
        "experiment names",
    )


def add_storage_options(
    parser: argparse.ArgumentParser, *, otherwise: str = "a file in the experiment's output folder"
) -> None:
    """Adds --storage and --storage-file, which exclude each other."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--storage",
        type=some_text,
        metavar="URL",
        help="database (SQLAlchemy URL without a password, or a SQLite file); default: "
        "$AUTOPLAN_STORAGE, then the URL in the file $AUTOPLAN_STORAGE_FILE, then "
        f"{otherwise}",
    )
    group.add_argument(
        "--storage-file",
        type=some_text,
        metavar="FILE",
        help="file whose one line is the database's URL, for URLs with a password",
    )


def _number(text: str) -> float:
    """The number that a text stands for, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan
