"""autoplan search EXPERIMENT."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autoplan.cli.arguments import (
    add_calibration_option,
    add_storage_options,
    positive_number,
    some_text,
    whole_number,
)
from autoplan.cli.verify import add_run_options, record, require_runnable, show, verified
from autoplan.search.objective import OBJECTIVES

if TYPE_CHECKING:
    from autoplan.execute.verification import Verification
    from autoplan.search.experiment import Experiment
    from autoplan.storage.url import Storage


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
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="what to minimise (throughput: maximise); default: the experiment's, else step_time",
    )
    parser.add_argument("--seed", type=whole_number(0), help="seed of the sampler")
    add_storage_options(parser)
    parser.add_argument(
        "--study", type=some_text, metavar="NAME", help="study; default: the experiment's name"
    )
    parser.add_argument(
        "--output", type=some_text, metavar="DIR", help="folder for the plan and the database"
    )
    parser.add_argument(
        "--verify",
        type=whole_number(1),
        metavar="K",
        help="then run the K best plans and the default plan for real",
    )
    parser.add_argument(
        "--workers",
        type=whole_number(1),
        metavar="N",
        help="processes that propose and score; more than one are Ray actors; default: the "
        "experiment's, else 1",
    )
    parser.add_argument(
        "--ray-address",
        type=some_text,
        metavar="A",
        help="Ray cluster for more than one worker, such as auto; default: $RAY_ADDRESS, else Ray "
        "is started on this machine and stopped at the end",
    )
    add_calibration_option(parser)
    add_run_options(parser.add_argument_group("real runs, with --verify"))
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Searches and prints the result; 0, or 130 where it was interrupted."""
    from autoplan.documents import pretty_json
    from autoplan.report.console import console
    from autoplan.report.progress import ProgressLine
    from autoplan.report.search_tables import show_result
    from autoplan.results.search_recording import open_recording
    from autoplan.search.experiment import load_experiment
    from autoplan.search.run import search
    from autoplan.storage.url import Storage

    experiment = load_experiment(arguments.experiment, arguments.calibration)
    if arguments.output:
        experiment = dataclasses.replace(experiment, output=Path(arguments.output))
    if arguments.objective:
        experiment = dataclasses.replace(experiment, objective=arguments.objective)
    if arguments.verify is not None:
        require_runnable(experiment, arguments)
    names = ("trials", "seconds", "seed", "workers")
    given = {name: getattr(arguments, name) for name in names}
    changes = {name: value for name, value in given.items() if value is not None}
    budget = dataclasses.replace(experiment.budget, **changes)
    storage = _storage(arguments) or Storage.parse(experiment.default_storage)
    recording = open_recording(storage, experiment, arguments.study, budget.seed)
    # Ray prints on standard output what its other processes have to say.
    with recording, contextlib.redirect_stdout(sys.stderr), ProgressLine() as progress:
        result = search(
            experiment,
            budget=budget,
            storage=storage,
            study=arguments.study,
            ray_address=arguments.ray_address,
            recording=recording,
            on_progress=progress,
        )
    interrupted = result.stopped_by == "interrupted"
    if not arguments.json:
        show_result(result, console())
    verification = None if interrupted else _verified(experiment, arguments)
    if arguments.json:
        document = result.to_document()
        if verification is not None:
            document |= {"verification": verification.to_document()}
        print(pretty_json(document), end="")
    elif verification is not None:
        print()
        show(verification)
    if verification is not None:
        record(verification, experiment, _storage(arguments), arguments.study)
    if interrupted:
        return 130
    return int(verification is not None and verification.best is None)


def _storage(arguments: argparse.Namespace) -> Storage | None:
    """The database that was chosen; None for the default."""
    from autoplan.storage.url import given_storage

    return given_storage(arguments.storage, arguments.storage_file)


def _verified(experiment: Experiment, arguments: argparse.Namespace) -> Verification | None:
    """Runs the best plans for real, if that was asked for."""
    from autoplan.search.study_plans import best_plans

    if arguments.verify is None:
        return None
    storage, study = _storage(arguments), arguments.study
    plans = best_plans(experiment, arguments.verify, storage=storage, study=study)
    return verified(experiment, plans, arguments)
