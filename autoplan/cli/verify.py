"""autoplan verify EXPERIMENT."""

from __future__ import annotations

import argparse
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

if TYPE_CHECKING:
    from autoplan.execute.real_run import Modes
    from autoplan.execute.spawn import Starter
    from autoplan.execute.verification import Verification
    from autoplan.plan import Plan
    from autoplan.search.experiment import Experiment
    from autoplan.storage.url import Storage


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "verify",
        help="run plans for real and compare them with their predictions",
        description="Runs plans and the default plan for real, prints predicted and measured side "
        "by side, and says which plan to use.",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT.toml", help="what the plans are for")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--plan", action="append", type=some_text, metavar="PLAN.json", help="a plan; repeatable"
    )
    which.add_argument("--study", type=some_text, metavar="NAME", help="take a study's best plans")
    parser.add_argument(
        "--top", type=whole_number(1), default=3, metavar="K", help="of a study; default: 3"
    )
    add_storage_options(parser)
    add_calibration_option(parser)
    add_run_options(parser)
    parser.add_argument(
        "--ray-address",
        type=some_text,
        metavar="A",
        help="have Ray place the ranks on this cluster (auto: the one that is running)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def add_run_options(parser: argparse._ActionsContainer) -> None:
    """Adds how plans are run for real."""
    parser.add_argument(
        "--model",
        type=some_text,
        metavar="MODULE:FUNCTION",
        help="the model; default: the one that the workload was profiled from",
    )
    parser.add_argument(
        "--rounds", type=whole_number(5), default=5, metavar="N", help="measured rounds; default: 5"
    )
    parser.add_argument(
        "--compute",
        choices=("real", "emulated"),
        default="real",
        help="emulated: sleep the profiled seconds of every layer",
    )
    parser.add_argument(
        "--link",
        choices=("native", "emulated"),
        default="native",
        help="emulated: sleep the cluster's latency and bandwidth beside every transfer",
    )
    parser.add_argument(
        "--clock",
        choices=("auto", "wall", "virtual"),
        default="auto",
        help="auto: wall, or where others use the cores, CPU time carried in messages",
    )
    parser.add_argument(
        "--step-limit",
        type=positive_number,
        metavar="S",
        help="seconds until a step counts as hung",
    )
    parser.add_argument(
        "--calibrate",
        type=some_text,
        metavar="OUT.json",
        help="fit one factor on device seconds to these runs, for --calibration from then on",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the plans and prints; 1 where one of the plans that were asked for did not run."""
    from autoplan.documents import pretty_json
    from autoplan.search.experiment import load_experiment
    from autoplan.storage.url import given_storage

    experiment = load_experiment(arguments.experiment, arguments.calibration)
    storage = given_storage(arguments.storage, arguments.storage_file)
    if arguments.plan:
        plans = _files(arguments.plan)
    else:
        plans = _study_plans(experiment, storage, arguments)
    verification = verified(experiment, plans, arguments)
    if arguments.json:
        print(pretty_json(verification.to_document()), end="")
    else:
        show(verification)
    record(verification, experiment, storage, arguments.study)
    return int(not verification.ran(plans))


def verified(
    experiment: Experiment, plans: dict[str, Plan], arguments: argparse.Namespace
) -> Verification:
    """Runs plans as the options say, and writes what these say of the device's speed."""
    from autoplan.execute.protocol import Settings
    from autoplan.execute.verify import verify

    _require_calibratable(arguments)
    verification = verify(
        experiment,
        plans,
        source=arguments.model,
        modes=_modes(arguments),
        settings=Settings(
            rounds=arguments.rounds,
            clock=arguments.clock,
            step_limit_s=arguments.step_limit,
            seed=experiment.budget.seed,
        ),
        progress=lambda line: print(line, file=sys.stderr, flush=True),
        starter=_starter(experiment, arguments),
    )
    if arguments.calibrate:
        _calibrate(verification, experiment, arguments.calibrate)
    return verification


def _require_calibratable(arguments: argparse.Namespace) -> None:
    """Refuses a calibration that could not be fitted or written, before anything runs."""
    from autoplan.documents import require_writable
    from autoplan.errors import InputError, words

    if arguments.calibrate is None:
        return
    if arguments.compute != "real":
        found = words("emulated compute, which says nothing of the device")
        raise InputError("--calibrate", found, "--compute real")
    require_writable(arguments.calibrate, "--calibrate")


def _calibrate(verification: Verification, experiment: Experiment, path: str) -> None:
    """Writes the factor that the runs ask for."""
    from autoplan.execute.calibrate import calibration_of

    calibration = calibration_of(verification, experiment)
    calibration.save(path)
    print(f"{calibration.note}; written to {path}", file=sys.stderr)


def record(
    verification: Verification,
    experiment: Experiment,
    storage: Storage | str | None,
    study: str | None,
) -> None:
    """Adds the runs to the experiment database, and tells where they are."""
    from autoplan.results.verified import record_verification

    kept = record_verification(verification, experiment, storage=storage, study=study)
    name = study or experiment.name
    print(f"recorded in {kept.shown}: autoplan results compare {name}", file=sys.stderr)


def require_runnable(experiment: Experiment, arguments: argparse.Namespace) -> None:
    """Refuses real runs that could not be started whatever the plans."""
    from autoplan.execute.verify import require_runnable

    _require_calibratable(arguments)
    starter = _starter(experiment, arguments)
    require_runnable(experiment, _modes(arguments), arguments.model, starter)


def show(verification: Verification) -> None:
    """Prints the table and the summary."""
    from autoplan.report.console import console
    from autoplan.report.verification import show_verification

    show_verification(verification, console())


def _modes(arguments: argparse.Namespace) -> Modes:
    from autoplan.execute.real_run import Modes

    return Modes(compute=arguments.compute, link=arguments.link)


def _starter(experiment: Experiment, arguments: argparse.Namespace) -> Starter:
    """Where ranks run: on this machine, or where Ray places them."""
    from autoplan.execute.spawn import LocalStarter
    from autoplan.execute.verify import needs_gpus

    address = getattr(arguments, "ray_address", None)  # not every verb has the option
    if address is None:
        return LocalStarter()
    from autoplan.execute.ray_starter import RayStarter

    gpus = int(needs_gpus(experiment, _modes(arguments)))
    return RayStarter(address, gpus_per_rank=gpus)


def _files(paths: list[str]) -> dict[str, Plan]:
    """Plans by the shortest names that tell them apart."""
    from autoplan.plan import load_plan

    stems = [Path(path).stem for path in paths]
    unique = len(set(stems)) == len(stems)
    return {
        stem if unique else path: load_plan(path) for stem, path in zip(stems, paths, strict=True)
    }


def _study_plans(
    experiment: Experiment, storage: Storage | None, arguments: argparse.Namespace
) -> dict[str, Plan]:
    """The best plans of a study."""
    from autoplan.search.study_plans import best_plans

    return best_plans(experiment, arguments.top, storage=storage, study=arguments.study)
