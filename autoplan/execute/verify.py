"""Runs plans and the default plan for real, and puts predicted and measured side by side."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from autoplan.errors import AutoplanError, InputError, words
from autoplan.execute.protocol import Settings, noise_floor, ties_with_best
from autoplan.execute.real_run import Modes
from autoplan.execute.run_notes import run_notes
from autoplan.execute.run_plans import Progress, run_plans
from autoplan.execute.spawn import LocalStarter, Starter
from autoplan.execute.verification import Verification, VerifiedPlan
from autoplan.plan import Plan
from autoplan.predict import Predictor
from autoplan.prediction import Prediction
from autoplan.search.experiment import Experiment
from autoplan.search.heuristics import baselines
from autoplan.search.proposal import Proposer

DEFAULT = "default"
"""The name under which the default plan is run."""
_CPU = re.compile(r"\bcpu\b", re.IGNORECASE)


class CannotRunHereError(AutoplanError):
    """What was asked for needs devices that this machine does not have."""

    exit_code = 1


def verify(
    experiment: Experiment,
    plans: Mapping[str, Plan],
    *,
    source: str | None = None,
    modes: Modes | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    starter: Starter | None = None,
) -> Verification:
    """Runs plans of an experiment, and beside them the best default plan.

    The default plan is the best of what people do today (uniform or balanced pipelines, data
    parallelism), each at its best under the model.

    Args:
        experiment: what the plans are for.
        plans: what to run, by name.
        source: "MODULE:FUNCTION" of the model; by default the one that the workload was profiled
            from, if it can be found from the current folder.
        modes: what of the runs is real; by default compute and links, on the cluster's devices.
        settings: rounds, clock, limits.
        progress: is told in one line what was done.
        starter: where the ranks run; on this machine by default.

    Raises:
        InputError: a plan does not fit the experiment, or the model is missing or not usable.
        CannotRunHereError: the cluster's devices are GPUs, and there are too few here.
    """
    lineup, default, notes = _lineup(experiment, plans)
    starter = starter or LocalStarter()
    ranks = max(plan.num_devices for plan, _ in lineup.values())
    modes = resolved_modes(experiment, modes or Modes(), starter, ranks)
    found = None
    if modes.compute == "real":
        found, warnings = model_source(experiment, source)
        notes += warnings
    runs = run_plans(
        Predictor(experiment.workload, experiment.cluster, experiment.job, experiment.domain()),
        [plan for plan, _ in lineup.values()],
        source=found,
        modes=modes,
        settings=settings,
        progress=progress,
        starter=starter,
    )
    verified = tuple(
        VerifiedPlan(name=name, plan=plan, prediction=prediction, run=run, tied=tied)
        for (name, (plan, prediction)), run, tied in zip(
            lineup.items(), runs, ties_with_best(runs), strict=True
        )
    )
    return Verification(
        experiment=experiment.name,
        plans=verified,
        default=default,
        clock=runs[0].clock,
        noise_floor=noise_floor(runs),
        notes=(*notes, *run_notes(verified)),
    )


def require_runnable(
    experiment: Experiment, modes: Modes, source: str | None, starter: Starter
) -> None:
    """Refuses what `verify` could not run whatever the plans, before anybody searches for these.

    Raises:
        InputError: there is no model.
        CannotRunHereError: there is no GPU, and the cluster is made of them.
    """
    resolved_modes(experiment, modes, starter, ranks=1)
    if modes.compute == "real":
        model_source(experiment, source)


def names_gpus(experiment: Experiment) -> bool:
    """Whether the experiment's cluster is made of GPUs: its device is not called a CPU."""
    return not is_cpu(experiment.cluster.device.name)


def is_cpu(device_name: str) -> bool:
    """Whether a device is a CPU or a core of one, by its name."""
    return _CPU.search(device_name) is not None


def needs_gpus(experiment: Experiment, modes: Modes) -> bool:
    """Whether ranks compute or communicate on GPUs."""
    emulated = modes.compute == modes.link == "emulated"
    return names_gpus(experiment) and not emulated


def resolved_modes(experiment: Experiment, modes: Modes, starter: Starter, ranks: int) -> Modes:
    """The modes on the cluster's kind of device.

    Raises:
        CannotRunHereError: GPUs are needed and there are too few.
    """
    if not needs_gpus(experiment, modes):
        return modes
    device = experiment.cluster.device.name
    there = starter.gpus()
    if there < ranks:
        raise CannotRunHereError(
            f"cluster {experiment.cluster.name!r} is made of GPUs ({device}), and the plans need "
            f"{ranks} of them, but there are {there} here; run on such machines, or rehearse "
            f"with --compute emulated --link emulated"
        )
    return Modes(compute=modes.compute, link=modes.link, device="gpu")


def model_source(experiment: Experiment, given: str | None) -> tuple[str, list[str]]:
    """MODULE:FUNCTION of the model, and what is to be noted about it.

    Raises:
        InputError: none was given, and the workload names none that can be found.
    """
    if given is not None:
        return given, []
    origin = experiment.workload.provenance
    module, colon, _ = origin.source.rpartition(":")
    if not colon or not _can_be_found(module):
        found = words(f"nothing, and the workload is from {origin.source!r}")
        allowed = "MODULE:FUNCTION of the model whose layers the workload describes"
        raise InputError("--model", found, allowed)
    notes = []
    if origin.source_sha256 and Path(module).is_file() and _sha256(module) != origin.source_sha256:
        notes.append(f"{module} has changed since it was profiled; profile it again")
    return origin.source, notes


_Lineup = dict[str, tuple[Plan, Prediction]]


def _lineup(
    experiment: Experiment, plans: Mapping[str, Plan]
) -> tuple[_Lineup, str | None, list[str]]:
    """The plans and the default one, each with its prediction; the default's name, and notes."""
    proposer = Proposer(experiment.workload, experiment.cluster, experiment.job, experiment.space)
    predictor = proposer.predictor
    chosen = {n: (p, _predicted(predictor, n, p)) for n, p in plans.items() if n != DEFAULT}
    known = [each for each in baselines(proposer).values() if each is not None]
    if not known:
        return chosen, None, ["no default plan (uniform, balanced, data-parallel) fits the devices"]
    best = min(known, key=lambda each: each.score.step_s)
    for name, (plan, _) in chosen.items():
        if plan.sha256 == best.plan.sha256:
            return chosen, name, [f"plan {name} is the default: {best.name}"]
    chosen[DEFAULT] = (best.plan, _predicted(predictor, DEFAULT, best.plan))
    return chosen, DEFAULT, [f"the default plan is {best.name}, at its best under the model"]


def _predicted(predictor: Predictor, name: str, plan: Plan) -> Prediction:
    """Without a lower bound, which nobody asked for and takes seconds to compute."""
    try:
        return predictor.predict(plan, lower_bound_s=0.0)
    except InputError as error:
        raise error.inside(name) from None


def _can_be_found(module: str) -> bool:
    if module.endswith(".py"):
        return Path(module).is_file()
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
