"""autoplan workload show | convert FILE, and from-program MODULE:FUNCTION."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autoplan.cli import from_program
from autoplan.cli.arguments import whole_number

if TYPE_CHECKING:
    from autoplan.workload import Workload


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "workload",
        help="look at a workload file, or convert it",
        description="Reads autoplan's own JSON, PipeDream graph.txt, Piper JSON and "
        "dnn-partitioning JSON; the format is told by the content.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print the layers as a table with totals")
    show.add_argument("--json", action="store_true", help="print autoplan's JSON instead")
    show.set_defaults(run=_show)
    convert = actions.add_parser("convert", help="write autoplan's own JSON")
    convert.add_argument("--out", required=True, metavar="WORKLOAD.json", help="file to write")
    convert.set_defaults(run=_convert)
    from_program.add_parser(actions)
    for action in (show, convert):
        action.add_argument("file", metavar="FILE")
        add_reading_options(action)


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Adds what a workload file may not say itself."""
    parser.add_argument(
        "--batch-size", type=whole_number(1), help="samples in the profiled minibatch"
    )
    parser.add_argument("--time-unit", choices=("s", "ms", "us"), help="unit of the file's times")
    parser.add_argument(
        "--bytes-per-element", type=whole_number(1), help="bytes of one parameter; default 4"
    )


def load(path: str, arguments: argparse.Namespace) -> Workload:
    """The workload of a file, read with these options."""
    from autoplan.workload import ReadOptions, load_workload

    names = ("batch_size", "time_unit", "bytes_per_element")
    given = {name: getattr(arguments, name) for name in names}
    options = ReadOptions(**{name: value for name, value in given.items() if value is not None})
    return load_workload(path, options)


def _show(arguments: argparse.Namespace) -> int:
    """Prints the layers."""
    from autoplan.documents import pretty_json
    from autoplan.report.console import console
    from autoplan.report.tables import show_workload

    workload = load(arguments.file, arguments)
    if arguments.json:
        print(pretty_json(workload), end="")
    else:
        show_workload(workload, console())
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    """Writes the workload in autoplan's own format."""
    from autoplan.documents import pretty_json, write_atomic

    workload = load(arguments.file, arguments)
    write_atomic(arguments.out, pretty_json(workload))
    print(f"{arguments.out}: {len(workload.layers)} layers of {workload.name}")
    return 0
