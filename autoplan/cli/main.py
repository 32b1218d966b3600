"""The command `autoplan`, also `python -m autoplan`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from autoplan.cli import (
    groups,
    predict,
    profile,
    profile_links,
    results,
    search,
    verify,
    workload,
)
from autoplan.errors import AutoplanError
from autoplan.redaction import install, redacted

_VERBS = (search, predict, verify, profile, profile_links, groups, workload, results)


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong and how to get help; exit code 2."""
        line = redacted(" ".join(message.splitlines()))
        self.exit(2, f"{self.prog}: {line}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
        prog="autoplan",
        description="Finds the fastest way to train a model on given devices.",
    )
    top.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for module in _VERBS:
        module.add_parser(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (DESIGN section 6)."""
    install()
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except AutoplanError as error:
        if arguments.debug:
            raise
        print("autoplan: " + redacted(" ".join(str(error).splitlines())), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("autoplan: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away; nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
