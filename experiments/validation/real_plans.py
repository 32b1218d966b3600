"""Plans that exercise every decision in real runs of a model on up to four ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from autoplan import Cluster, Device, GradientGroup, Link, Plan, Stage, Workload
from autoplan.plan import Schedule

SAMPLES = 16
"""Samples per step, so that each of 2 replicas has one in each of 8 microbatches."""
DENSITY = 0.01
Ranges = Sequence[tuple[int, int]]


def rehearsed_cluster(device: Device) -> Cluster:
    """Four ranks on Ethernet of 1 Gb/s: slow enough that transfers and grouping matter."""
    link = Link(name="1 Gb/s Ethernet", alpha_s=1e-3, bandwidth_bytes_per_s=125e6)
    return Cluster(name="four ranks", devices_per_node=4, device=device, intra_node=link)


def validation_plans(workload: Workload) -> dict[str, Plan]:
    """Named plans: S in {1, 2, 4}, D in {1, 2}, the hybrid, M in {2, 4, 8}, both schedules."""
    return dict([*_pipelines(workload), *_bucketings(workload), *_hybrids(workload)])


def small_plans(workload: Workload) -> dict[str, Plan]:
    """A few of them, on at most two ranks."""
    names = (
        "S1 M4",
        "S2 even M2 1f1b",
        "S2 even M8 1f1b",
        "S2 even M4 gpipe",
        "S2 late M4 1f1b",
        "D2 one M2",
        "D2 layers M4",
        "D2 halves M8",
    )
    every = validation_plans(workload)
    return {name: every[name] for name in names}


def is_bucketing(plan: Plan) -> bool:
    """Whether gradients are exchanged, and nothing else crosses the network."""
    return len(plan.stages) == 1 and plan.stages[0].replicas > 1


def is_sparse(plan: Plan) -> bool:
    """Whether any group is sparse."""
    return any(group.density < 1 for stage in plan.stages for group in stage.groups)


def _pipelines(workload: Workload) -> Iterator[tuple[str, Plan]]:
    even, late, quarters = _even(workload, 2), _late(workload), _even(workload, 4)
    for m in (2, 4, 8):
        yield f"S1 M{m}", _plan([(0, len(workload.layers))], m)
        for schedule in ("1f1b", "gpipe"):
            yield f"S2 even M{m} {schedule}", _plan(even, m, schedule=schedule)
            yield f"S4 even M{m} {schedule}", _plan(quarters, m, schedule=schedule)
        yield f"S2 late M{m} 1f1b", _plan(late, m)


def _bucketings(workload: Workload) -> Iterator[tuple[str, Plan]]:
    count = len(workload.layers)
    whole, middle = [(0, count)], count // 2
    each = [(i, i + 1) for i in reversed(range(count))]
    halves = [(middle, count), (0, middle)]
    thirds = [(2 * count // 3, count), (count // 3, 2 * count // 3), (0, count // 3)]
    grouped = {"one": [(0, count)], "layers": each, "halves": halves, "thirds": thirds}
    for name, m in (("one", 2), ("layers", 2), ("layers", 4), ("halves", 4), ("thirds", 2)):
        yield f"D2 {name} M{m}", _plan(whole, m, groups=grouped[name], replicas=2)
    yield "D2 halves M8", _plan(whole, 8, groups=halves, replicas=2)
    for name in ("one", "halves"):
        groups = grouped[name]
        yield f"D2 sparse {name} M2", _plan(whole, 2, groups=groups, replicas=2, density=DENSITY)


def _hybrids(workload: Workload) -> Iterator[tuple[str, Plan]]:
    even = _even(workload, 2)
    yield "S2 D2 M2 1f1b", _plan(even, 2, replicas=2)
    yield "S2 D2 M4 gpipe", _plan(even, 4, replicas=2, schedule="gpipe")
    yield "S2 D2 M8 1f1b", _plan(even, 8, replicas=2)


def _plan(
    stages: Ranges,
    microbatches: int,
    *,
    groups: Ranges | None = None,
    replicas: int = 1,
    density: float = 1.0,
    schedule: Schedule = "1f1b",
) -> Plan:
    return Plan(
        stages=tuple(
            Stage(
                layers=layers,
                replicas=replicas,
                groups=tuple(
                    GradientGroup(layers=each, density=density) for each in groups or [layers]
                ),
            )
            for layers in stages
        ),
        microbatches=microbatches,
        schedule=schedule,
    )


def _even(workload: Workload, stages: int) -> list[tuple[int, int]]:
    """Stages of about equal work: each cut where the running sum is next to its share."""
    work = np.cumsum([x.forward.seconds[-1] + x.backward.seconds[-1] for x in workload.layers])
    cuts = [0]
    for s in range(1, stages):
        nearest = int(np.argmin(np.abs(work - work[-1] * s / stages))) + 1
        cuts.append(min(max(nearest, cuts[-1] + 1), len(work) - (stages - s)))
    return list(pairwise([*cuts, len(work)]))


def _late(workload: Workload) -> list[tuple[int, int]]:
    """Two stages, the first with a layer more than its even share (or less, at the end)."""
    cut = _even(workload, 2)[0][1]
    count = len(workload.layers)
    cut = cut + 1 if cut + 1 < count else cut - 1
    return [(0, cut), (cut, count)]
