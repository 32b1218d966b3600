"""Which knobs a search may turn, and over which values."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from autoplan.documents import STRICT, build, identity, toml_value
from autoplan.errors import InputError, require
from autoplan.gradsync.grouping import DDP_CAP_BYTES, POLICIES
from autoplan.plan import RankOrder, Schedule
from autoplan.predict import PlanDomain, divisors

Recompute = Literal["never", "where-needed", "always"]
Cuts = Literal["uniform", "balanced", "open"]
PolicyName = Literal["layerwise", "single", "threshold", "exact"]


MOST_MICROBATCHES = 1024
"""Microbatches that a space allows where it names none: bubbles are long gone by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The open knobs. A list holds the values allowed; an empty one allows all that are valid."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-space/1"] = "autoplan-space/1"
    stages: tuple[int, ...] = ()
    """Numbers of pipeline stages."""
    replicas: tuple[int, ...] = ()
    """Numbers of replicas that a stage may have."""
    equal_replicas: bool = False
    """Whether all stages must have the same number of replicas."""
    cuts: Cuts = "open"
    """Where stages may be cut: equal layer counts, balanced by cost, or anywhere."""
    cut_shift: int = 3
    """With open cuts, how many layers a proposal moves a cut away from a balanced partition."""
    microbatches: tuple[int, ...] = ()
    """Numbers of microbatches per step; an empty list allows all divisors of the batch up to
    MOST_MICROBATCHES."""
    schedules: tuple[Schedule, ...] = ("1f1b", "gpipe")
    """Schedules."""
    rank_orders: tuple[RankOrder, ...] = ("replica", "stage")
    """What is packed inside a node."""
    recompute: tuple[Recompute, ...] = ("never",)
    """Whether stages may recompute their forward instead of stashing it."""
    grouping: tuple[PolicyName, ...] = ("exact",)
    """Policies that group gradients."""
    cap_bytes: tuple[float, ...] = (float(DDP_CAP_BYTES),)
    """Group caps for the threshold policy."""

    def __post_init__(self) -> None:
        """Refuses empty choices and values that no plan can have."""
        for name in ("stages", "replicas", "microbatches"):
            values = getattr(self, name)
            sound = all(value >= 1 for value in values) and len(set(values)) == len(values)
            require(sound, name, values, "distinct whole numbers of at least 1")
        for name in ("schedules", "rank_orders", "recompute", "grouping", "cap_bytes"):
            values = getattr(self, name)
            sound = bool(values) and len(set(values)) == len(values)
            require(sound, name, values, "at least one value, none twice")
        require(self.cut_shift >= 0, "cut_shift", self.cut_shift, "at least 0 layers")
        sound = all(cap > 0 for cap in self.cap_bytes)
        require(sound, "cap_bytes", self.cap_bytes, "numbers of bytes above 0")
        known = set(self.grouping) <= set(POLICIES)
        require(known, "grouping", self.grouping, ", ".join(POLICIES))

    @property
    def sha256(self) -> str:
        """The space's identity."""
        return identity(self)

    def domain(self, num_layers: int, num_devices: int, global_batch: int) -> SpaceDomain:
        """The values that are left for a model, a cluster and a batch.

        Raises:
            InputError: nothing is left of one of the knobs.
        """
        limit = min(num_layers, num_devices)
        stages = tuple(s for s in sorted(self.stages) or range(1, limit + 1) if s <= limit)
        allowed = (
            f"at least one of 1 to {limit}: there are {num_layers} layers on {num_devices} devices"
        )
        require(bool(stages), "stages", self.stages, allowed)
        candidates = sorted(self.replicas) or range(1, num_devices + 1)
        replicas = tuple(r for r in candidates if r * stages[0] <= num_devices)
        allowed = f"at least one number that leaves {stages[0]} stages on {num_devices} devices"
        require(bool(replicas), "replicas", self.replicas, allowed)
        splits = tuple(
            m
            for m in divisors(global_batch)
            if (m in self.microbatches if self.microbatches else m <= MOST_MICROBATCHES)
            and any((global_batch // m) % r == 0 for r in replicas)
        )
        allowed = (
            f"divisors of the global batch of {global_batch} samples that leave microbatches which "
            f"some number of replicas divides"
        )
        require(bool(splits), "microbatches", self.microbatches, allowed)
        return SpaceDomain(stages=stages, bound=PlanDomain(microbatches=splits, replicas=replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceDomain:
    """The numbers that a space leaves open for one experiment."""

    stages: tuple[int, ...]
    bound: PlanDomain

    @property
    def microbatches(self) -> tuple[int, ...]:
        """Numbers of microbatches, rising."""
        return self.bound.microbatches

    def replicas_for(self, samples: int) -> tuple[int, ...]:
        """Numbers of replicas that divide a microbatch of so many samples, rising."""
        return tuple(r for r in self.bound.replicas if samples % r == 0)


def shipped_spaces() -> dict[str, Traversable]:
    """The spaces that come with autoplan, by name."""
    inside = resources.files("autoplan") / "search_spaces"
    folder = inside if inside.is_dir() else Path(__file__).parents[2] / "search_spaces"
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


def load_space(name: str, folder: Path, source: str, field: str) -> SearchSpace:
    """Reads a space that comes with autoplan, or a file.

    Args:
        name: a shipped space's name, or a path relative to `folder`.
        folder: where relative paths start.
        source: the file that names the space, for messages.
        field: the field that names it.

    Raises:
        InputError: there is no such space, or it is not valid.
    """
    shipped = shipped_spaces()
    if name in shipped:
        return build_space(toml_value(str(shipped[name])), str(shipped[name].name))
    path = folder / name
    if not path.is_file():
        allowed = f"a file, a table, or one of {', '.join(shipped)}"
        raise InputError(field, name, allowed, source=source)
    return build_space(toml_value(path), str(path))


def build_space(document: dict[str, Any], source: str, prefix: str = "") -> SearchSpace:
    """Builds a space from a parsed table; raises InputError where it is not valid."""
    return build(SearchSpace, document, source, prefix)
