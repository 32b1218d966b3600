"""One experiment: what is trained, where, for which job, over which space, with which budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from autoplan.bounds.plans import PlanDomain
from autoplan.calibration import Calibration, calibrated, load_calibration
from autoplan.cluster import Cluster, load_cluster, resolve_cluster
from autoplan.documents import STRICT, build, toml_value
from autoplan.errors import InputError, require, words
from autoplan.job import Job
from autoplan.search.objective import ObjectiveName
from autoplan.search.space import SearchSpace, build_space, load_space
from autoplan.workload import ReadOptions, Workload, load_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadReference:
    """Which workload file, and what the file itself does not say."""

    __pydantic_config__ = STRICT

    path: str
    """The file, relative to the experiment's folder."""
    origin: str | None = None
    """Where to get it; told where the file is absent."""
    batch_size: int | None = None
    """Samples in the profiled minibatch, for formats that do not say."""
    time_unit: Literal["s", "ms", "us"] | None = None
    """Unit of times, for formats that do not say."""
    bytes_per_element: int | None = None
    """Bytes of one parameter, for formats that count bytes only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When a search stops: at the first of the two."""

    __pydantic_config__ = STRICT

    trials: int = 200
    """Proposals in the study, earlier runs of the same study included."""
    seconds: float = 60.0
    """Wall-clock seconds of this run."""
    seed: int = 0
    """Seed of the sampler; the same seed, trials and workers give the same plan."""
    workers: int = 1
    """Processes that propose and score; more than one run as actors of Ray."""
    exhaustive_plans: int = 1_500_000
    """Every plan of a space is looked at where there are about so many or fewer; 0 for never."""

    def __post_init__(self) -> None:
        """Refuses empty budgets."""
        require(self.trials >= 1, "trials", self.trials, "at least 1")
        sound = math.isfinite(self.seconds) and self.seconds > 0
        require(sound, "seconds", self.seconds, "a finite number above 0")
        require(0 <= self.seed < 2**32, "seed", self.seed, "0 to 4294967295")
        require(self.workers >= 1, "workers", self.workers, "at least 1")
        sound = self.exhaustive_plans >= 0
        require(sound, "exhaustive_plans", self.exhaustive_plans, "at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """The part of an experiment file that is not a cluster or a space."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-experiment/1"]
    name: str
    workload: WorkloadReference
    job: Job
    budget: Budget = field(default_factory=Budget)
    objective: ObjectiveName = "step_time"
    """What is minimised."""
    output: str | None = None
    calibration: str | None = None
    """A file that `verify --calibrate` wrote, relative to the experiment's folder."""

    def __post_init__(self) -> None:
        """Refuses names that cannot be a folder's."""
        name = self.name
        sound = bool(name) and all(c.isalnum() or c in "-_." for c in name) and name[0] != "."
        require(sound, "name", name, "letters, digits, '-', '_' and '.', not starting with '.'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A loaded experiment."""

    name: str
    workload: Workload
    cluster: Cluster
    job: Job
    space: SearchSpace
    budget: Budget = field(default_factory=Budget)
    objective: ObjectiveName = "step_time"
    """What is minimised."""
    output: Path
    """Folder for the plan and the database."""
    calibration: Calibration | None = None
    """What workload, cluster and job are already scaled by."""

    def domain(self) -> PlanDomain:
        """What the space leaves open here; raises InputError where that is nothing."""
        layers, devices = len(self.workload.layers), self.cluster.num_devices
        return self.space.domain(layers, devices, self.job.global_batch)

    @property
    def default_storage(self) -> str:
        """The URL of the database that a search uses where none is named."""
        return f"sqlite:///{(self.output / 'study.db').as_posix()}"

    @property
    def identities(self) -> dict[str, str]:
        """What decides a plan's score: the sha256 of each part, and the objective's name."""
        parts = ("workload", "cluster", "job", "space")
        hashes = {part: getattr(self, part).sha256 for part in parts}
        return hashes | {"objective": self.objective}


def load_experiment(path: str | Path, calibration: str | Path | None = None) -> Experiment:
    """Reads an experiment file and the files that it names, relative to its own folder.

    Args:
        path: the experiment file.
        calibration: a calibration file, in place of the one that the experiment names.

    Raises:
        InputError: one of the files cannot be read or is not valid.
    """
    source, folder = str(path), Path(path).parent
    document = toml_value(path)
    cluster = _part(document, "cluster", source)
    space = document.pop("space", "default")
    head = build(_Document, document, source)
    experiment = Experiment(
        name=head.name,
        workload=_workload(head.workload, folder, source),
        cluster=_cluster(cluster, folder, source),
        job=head.job,
        space=_space(space, folder, source),
        budget=head.budget,
        objective=head.objective,
        output=folder / (head.output or f"runs/{head.name}"),
    )
    try:
        experiment.domain()
    except InputError as error:
        raise error.inside(source, "space") from None
    if calibration is None and head.calibration is not None:
        calibration = folder / head.calibration
    return experiment if calibration is None else _calibrated(experiment, calibration)


def _calibrated(experiment: Experiment, path: str | Path) -> Experiment:
    """The experiment with the factor of a calibration file on all device seconds."""
    found = load_calibration(path)
    parts = (experiment.workload, experiment.cluster, experiment.job)
    workload, cluster, job = calibrated(*parts, found)
    return replace(experiment, workload=workload, cluster=cluster, job=job, calibration=found)


def _part(document: dict[str, Any], name: str, source: str) -> Any:
    """Takes a required part out of the document."""
    if name not in document:
        raise InputError(name, words("nothing"), "a file or a table", source=source)
    return document.pop(name)


def _workload(reference: WorkloadReference, folder: Path, source: str) -> Workload:
    path = folder / reference.path
    if not path.exists():
        hint = f"; get it from: {reference.origin}" if reference.origin else ""
        allowed = f"an existing file (looked for {path}){hint}"
        raise InputError("workload.path", reference.path, allowed, source=source)
    options: dict[str, Any] = {
        name: value
        for name in ("batch_size", "time_unit", "bytes_per_element")
        if (value := getattr(reference, name)) is not None
    }
    try:
        chosen = ReadOptions(**options)
    except InputError as error:
        raise error.inside(source, "workload") from None
    return load_workload(path, chosen)


def _cluster(value: object, folder: Path, source: str) -> Cluster:
    if isinstance(value, str):
        path = folder / value
        if not path.exists():
            allowed = f"a table or an existing file (looked for {path})"
            raise InputError("cluster", value, allowed, source=source)
        return load_cluster(path)
    if isinstance(value, dict):
        return resolve_cluster(value, source, "cluster")
    raise InputError("cluster", value, "a file or a table", source=source)


def _space(value: object, folder: Path, source: str) -> SearchSpace:
    if isinstance(value, str):
        return load_space(value, folder, source, "space")
    if isinstance(value, dict):
        return build_space(value, source, "space")
    raise InputError("space", value, "the name of a space, a file or a table", source=source)


def require_same(
    study: str, known: Mapping[str, str], identities: Mapping[str, str], source: str
) -> None:
    """Checks that a study belongs to an experiment.

    Args:
        study: its name.
        known: identity of each part of the experiment that it was started with.
        identities: those of the experiment at hand.
        source: where the study is kept, as it may be shown.

    Raises:
        InputError: some part is another one; the message says which.
    """
    changed = [part for part, value in identities.items() if known.get(part) != value]
    if not changed:
        return
    what = f"{', '.join(changed)} changed"
    if "objective" in changed:
        what += f", the objective was {known.get('objective')}"
    allowed = (
        f"the experiment that this study was started with ({what}); "
        f"give --study another name to start afresh"
    )
    raise InputError("study", study, allowed, source=source)
