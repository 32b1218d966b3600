"""autoplan search EXPERIMENT."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

from autoplan.cli.arguments import positive_number, some_text, whole_number


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "search",
        help="find the fastest plan for an experiment",
        description="Finds the fastest plan for an experiment and says how far from optimal it can "
        "be. The same command carries an unfinished study on.",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT.toml", help="what to plan")
    parser.add_argument("--trials", type=whole_number(1), help="proposals in the study, in all")
    parser.add_argument("--seconds", type=positive_number, help="wall-clock seconds of this run")
    parser.add_argument("--seed", type=whole_number(0), help="seed of the sampler")
    parser.add_argument(
        "--storage",
        type=some_text,
        metavar="URL",
        help="database (SQLAlchemy URL); default: $AUTOPLAN_STORAGE, else a SQLite file in the "
        "output folder",
    )
    parser.add_argument(
        "--study", type=some_text, metavar="NAME", help="study; default: the experiment's name"
    )
    parser.add_argument(
        "--output", type=some_text, metavar="DIR", help="folder for the plan and the database"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Searches and prints the result; 0, or 130 where it was interrupted."""
    from autoplan.documents import pretty_json
    from autoplan.report.console import console
    from autoplan.report.progress import ProgressLine
    from autoplan.report.tables import show_result
    from autoplan.search.experiment import load_experiment
    from autoplan.search.run import search

    experiment = load_experiment(arguments.experiment)
    if arguments.output:
        experiment = dataclasses.replace(experiment, output=Path(arguments.output))
    given = {name: getattr(arguments, name) for name in ("trials", "seconds", "seed")}
    changes = {name: value for name, value in given.items() if value is not None}
    budget = dataclasses.replace(experiment.budget, **changes)
    with ProgressLine() as progress:
        result = search(
            experiment,
            budget=budget,
            storage=arguments.storage or os.environ.get("AUTOPLAN_STORAGE"),
            study=arguments.study,
            on_progress=progress,
        )
    if arguments.json:
        print(pretty_json(result.to_document()), end="")
    else:
        show_result(result, console())
    return 130 if result.stopped_by == "interrupted" else 0
