"""autoplan results (list | show | compare | export)."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoplan.cli.arguments import add_storage_options, some_text, whole_number

if TYPE_CHECKING:
    from autoplan.results.database import Database

_DEFAULT_LIMIT = 20


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb and its own verbs."""
    parser = verbs.add_parser(
        "results",
        help="look into the experiment database",
        description="Lists experiments, shows their plans, compares predicted with measured steps, "
        "and exports all of it.",
    )
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    listing = parts.add_parser("list", help="all experiments with their best plans")
    listing.set_defaults(run=list_all)
    show = parts.add_parser("show", help="an experiment's plans, best first; or one plan")
    show.add_argument("name", metavar="NAME", nargs="?", type=some_text, help="the experiment")
    show.add_argument(
        "--limit",
        type=whole_number(0),
        default=_DEFAULT_LIMIT,
        help=f"plans shown; 0 for all (default: {_DEFAULT_LIMIT})",
    )
    show.add_argument(
        "--plan", metavar="SHA256", type=some_text, help="print this plan's file instead"
    )
    show.set_defaults(run=show_one)
    compare = parts.add_parser("compare", help="predicted and measured, error and rank")
    compare.add_argument("name", metavar="NAME", type=some_text, help="the experiment")
    compare.set_defaults(run=compare_one)
    export = parts.add_parser("export", help="write the leaderboard as a file")
    export.add_argument(
        "name", metavar="NAME", nargs="?", type=some_text, help="the experiment; default: all"
    )
    export.add_argument("--format", choices=("csv", "json", "parquet"), default="csv")
    export.add_argument("--out", required=True, metavar="FILE", type=some_text)
    export.set_defaults(run=export_rows)
    for part in (listing, show, compare, export):
        add_storage_options(part, otherwise="none")
        part.add_argument("--json", action="store_true", help="print one JSON document")


def list_all(arguments: argparse.Namespace) -> int:
    """Prints all experiments."""
    from autoplan.report.console import console
    from autoplan.report.results import show_experiments
    from autoplan.results.queries import list_experiments

    with _opened(arguments) as database:
        experiments = list_experiments(database)
    if arguments.json:
        rows = [_fields(each) | {"gap": each.gap} for each in experiments]
        _print_json({"storage": database.storage.shown, "experiments": rows})
    else:
        show_experiments(experiments, console())
    return 0


def show_one(arguments: argparse.Namespace) -> int:
    """Prints an experiment's plans, or one plan."""
    from autoplan.documents import pretty_json
    from autoplan.errors import InputError, words
    from autoplan.report.console import console
    from autoplan.report.results import show_leaders
    from autoplan.results.export import json_row
    from autoplan.results.queries import count_plans, find_plan, leaders

    if arguments.name is None and arguments.plan is None:
        raise InputError("NAME", words("nothing"), "the name of an experiment, or --plan")
    with _opened(arguments) as database:
        if arguments.plan is not None:
            print(pretty_json(find_plan(database, arguments.plan)), end="")
            return 0
        rows = leaders(database, arguments.name, arguments.limit or None)
        total = count_plans(database, arguments.name)
    if arguments.json:
        _print_json({"experiment": arguments.name, "num_plans": total,
                     "plans": [json_row(row) for row in rows]})  # fmt: skip
    else:
        show_leaders(rows, total, console())
    return 0


def compare_one(arguments: argparse.Namespace) -> int:
    """Prints predicted beside measured."""
    from autoplan.report.console import console
    from autoplan.report.results import show_comparisons
    from autoplan.results.comparison import compare

    with _opened(arguments) as database:
        comparisons = compare(database, arguments.name)
    if arguments.json:
        kinds = [
            _fields(each)
            | {
                "plans": [_fields(p) | {"error_share": p.error_share} for p in each.plans],
                "mean_error_share": each.mean_error_share,
                "best_is_best": each.best_is_best,
            }
            for each in comparisons
        ]
        _print_json({"experiment": arguments.name, "kinds": kinds})
    else:
        show_comparisons(comparisons, console())
    return 0


def export_rows(arguments: argparse.Namespace) -> int:
    """Writes the leaderboard."""
    from autoplan.results.export import export

    with _opened(arguments) as database:
        count = export(database, arguments.name, arguments.format, Path(arguments.out))
    if arguments.json:
        _print_json({"rows": count, "format": arguments.format, "out": arguments.out})
    else:
        print(f"{count} rows written to {arguments.out}")
    return 0


def _opened(arguments: argparse.Namespace) -> AbstractContextManager[Database]:
    """The database that the options or the environment name; it must exist."""
    from autoplan.errors import InputError, words
    from autoplan.results.database import Database
    from autoplan.storage.url import FILE_VARIABLE, URL_VARIABLE, given_storage

    storage = given_storage(arguments.storage, arguments.storage_file)
    if storage is None:
        allowed = f"--storage URL, --storage-file FILE, ${URL_VARIABLE} or ${FILE_VARIABLE}"
        raise InputError("storage", words("none"), allowed)
    return Database.open(storage, create=False)


def _fields(value: Any) -> dict[str, Any]:
    """A row's own fields, JSON-ready, None included."""
    import dataclasses
    import datetime

    row = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {
        name: each.isoformat() if isinstance(each, datetime.datetime) else each
        for name, each in row.items()
    }


def _print_json(document: object) -> None:
    import json

    print(json.dumps(document, allow_nan=False))
