"""Which knobs a search may turn, and over which values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from autoplan.bounds.plans import PlanDomain, divisors
from autoplan.documents import STRICT, build, identity, toml_value
from autoplan.errors import InputError, require
from autoplan.gradsync.policies import DDP_CAP_BYTES, POLICIES, PolicyName
from autoplan.gradsync.problem import GroupLimits
from autoplan.plan import RankOrder, Schedule

Recompute = Literal["never", "where-needed", "always"]
Cuts = Literal["uniform", "balanced", "open"]
CAPPED_POLICIES = ("threshold", "horovod", "paddle")
"""Policies that `cap_bytes` means something to."""


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
    """Group caps for the policies that close a group at a cap."""
    densities: tuple[float, ...] = (1.0,)
    """Densities that a group may have: 1.0 dense, less top-k with error feedback."""
    group_max_bytes: float | None = None
    """Most bytes of gradients in a group."""
    group_min_elements: float = 0.0
    """Fewest elements in a group."""
    max_groups: int | None = None
    """Most groups of a stage."""
    exchange_memory_bytes: float | None = None
    """Most bytes of fused buffers and residuals of a stage."""

    def __post_init__(self) -> None:
        """Refuses empty choices and values that no plan can have."""
        for name in ("stages", "replicas", "microbatches"):
            values = getattr(self, name)
            sound = all(value >= 1 for value in values) and len(set(values)) == len(values)
            require(sound, name, values, "distinct whole numbers of at least 1")
        for name in ("schedules", "rank_orders", "recompute", "grouping", "cap_bytes", "densities"):
            values = getattr(self, name)
            sound = bool(values) and len(set(values)) == len(values)
            require(sound, name, values, "at least one value, none twice")
        require(self.cut_shift >= 0, "cut_shift", self.cut_shift, "at least 0 layers")
        sound = all(cap > 0 for cap in self.cap_bytes)
        require(sound, "cap_bytes", self.cap_bytes, "numbers of bytes above 0")
        sound = all(0 < density <= 1 for density in self.densities)
        require(sound, "densities", self.densities, "numbers above 0, at most 1")
        sound = self.group_max_bytes is None or self.group_max_bytes > 0
        require(sound, "group_max_bytes", self.group_max_bytes, "above 0 bytes")
        self.limits(1.0)  # refuses limits that no grouping can keep
        known = set(self.grouping) <= set(POLICIES)
        require(known, "grouping", self.grouping, ", ".join(POLICIES))

    @property
    def sha256(self) -> str:
        """The space's identity."""
        return identity(self)

    def limits(self, bytes_per_element: float) -> GroupLimits:
        """What every grouping keeps to."""
        most, memory = self.group_max_bytes, self.exchange_memory_bytes
        return GroupLimits(
            max_elements=math.inf if most is None else most / bytes_per_element,
            min_elements=self.group_min_elements,
            max_groups=self.max_groups,
            max_memory_bytes=math.inf if memory is None else memory,
        )

    def domain(self, num_layers: int, num_devices: int, global_batch: int) -> PlanDomain:
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
        return PlanDomain(
            microbatches=splits,
            replicas=replicas,
            stages=stages,
            schedules=self.schedules,
            rank_orders=self.rank_orders,
            densities=self.densities,
            may_keep=self.recompute != ("always",),
            may_recompute=self.recompute != ("never",),
        )


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
