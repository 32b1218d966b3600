"""The plans of PipeDream, dnn-partitioning and Piper on our order of a workload's layers.

ref_planners.csv tells them in three ways, and none names our layers:

- Piper lists the nodes of each stage.
- PipeDream gives the seconds of each stage; its cuts are where the layers before them take as long.
- dnn-partitioning gives the load of each device and the number of its nodes; its cuts are where so
  many nodes lie before them, if the stages then have just these loads under its own definition.

A plan whose stages are not contiguous in our order has no counterpart, nor has one that uses more
devices than there are, tensor parallelism, or a CPU beside the accelerators.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from validation.dnn_problem import dnn_tensors
from validation.peer_problems import why_not
from validation.peer_rows import PeerRow, read_peer_rows

from autoplan.search.layout import Layout, assemble
from autoplan.search.proposal import Proposer
from autoplan.workload import Workload
from autoplan.workload.readers.base import unique_names
from autoplan.workload.readers.contraction import Edge, Operation, contract

NOT_CONTIGUOUS = "its stages are not contiguous in our order of the layers"
NO_STAGES = "its stages are not listed"
CLOSE = 1e-5
"""Relative difference that six printed digits leave."""
_SAME_S = 1e-9
"""Difference of two sums of the same seconds, per second of all layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Stages on our order of the layers."""

    bounds: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(slots=True)
class PeerPlans:
    """The splits of all runs on a workload, and why others have none."""

    splits: dict[str, Split] = field(default_factory=dict)
    """By the run's title."""
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """The best of the peers' plans under our model."""

    compared: int
    """Runs whose plan has a counterpart."""
    skipped: dict[str, int]
    """Runs without one, by reason."""
    step_s: float | None = None
    """The least step, None where no plan fits."""
    row: str | None = None
    """The run that it is from."""


class NoCounterpartError(Exception):
    """A plan that cannot be told in our words; its message is the reason."""


def rescored(proposer: Proposer, workload: Workload, path: Path, shared: Path) -> Rescored | None:
    """The best step of the plans that peers made for a workload file; None if they made none.

    Every plan gets its best number of microbatches, schedule, rank order, recomputation and groups
    that the space allows.
    """
    plans = plans_for(workload, path, shared, proposer.num_devices)
    if not plans.splits and not plans.skipped:
        return None
    steps = {split: _best_step_s(proposer, split) for split in dict.fromkeys(plans.splits.values())}
    best_s, best_row = min(
        ((steps[split], title) for title, split in plans.splits.items()),
        default=(float("inf"), None),
    )
    found = best_s < float("inf")
    return Rescored(
        compared=len(plans.splits),
        skipped=dict(sorted(plans.skipped.items())),
        step_s=best_s if found else None,
        row=best_row if found else None,
    )


def plans_for(workload: Workload, path: Path, shared: Path, num_devices: int) -> PeerPlans:
    """The splits for a workload that was read from a file, on at most so many devices."""
    plans = PeerPlans()
    data = shared / "data"
    for row in read_peer_rows(shared / "facts"):
        if row.data_path(data).resolve() != path.resolve():
            continue
        try:
            split = split_of(row, workload, path, data)
        except NoCounterpartError as error:
            plans.skipped[str(error)] += 1
            continue
        if sum(split.replicas) > num_devices:
            plans.skipped["it uses more devices than the cluster has"] += 1
        else:
            plans.splits[row.title] = split
    return plans


def split_of(row: PeerRow, workload: Workload, path: Path, data: Path) -> Split:
    """The split that a run ended with; raises NoCounterpartError."""
    reason = why_not(row, data)
    if reason is None and not row.split:
        reason = NO_STAGES
    if reason is not None:
        raise NoCounterpartError(reason)
    splits = {"pipedream": _pipedream, "piper": _piper, "dnn-partitioning": _dnn_partitioning}
    split = splits[row.peer](row, workload, path)
    if split is None:
        raise NoCounterpartError(NOT_CONTIGUOUS)
    return split


def _best_step_s(proposer: Proposer, split: Split) -> float:
    """The least step of a split over everything else that the space leaves open."""
    predictor, best_s = proposer.predictor, float("inf")
    for layout in _layouts(proposer, split):
        score = predictor.score(assemble(layout, predictor, proposer.space))
        if score.feasible:
            best_s = min(best_s, score.step_s)
    return best_s


def _layouts(proposer: Proposer, split: Split) -> Iterator[Layout]:
    """All layouts with the stages and replicas of a split."""
    space = proposer.space
    for m in proposer.domain.microbatches:
        samples = proposer.predictor.job.global_batch // m
        if any(samples % replicas for replicas in split.replicas):
            continue
        for schedule in space.schedules:
            for rank_order in space.rank_orders:
                for recompute in space.recompute:
                    yield Layout(
                        bounds=split.bounds,
                        replicas=split.replicas,
                        microbatches=m,
                        schedule=schedule,
                        rank_order=rank_order,
                        recompute=recompute,
                        policy="exact" if "exact" in space.grouping else space.grouping[0],
                        cap_bytes=space.cap_bytes[0],
                    )


def _pipedream(row: PeerRow, workload: Workload, path: Path) -> Split | None:
    stages = re.findall(r"states\[(\d+),(\d+)\) compute ([\d.e+-]+)s x(\d+)", row.split)
    spans = [(int(start), int(end), float(time), int(count)) for start, end, time, count in stages]
    if len(row.devices) > 1:
        spans = _innermost(spans)
    calls_s = [layer.forward.seconds[0] + layer.backward.seconds[0] for layer in workload.layers]
    before_s_C = np.concatenate([[0.0], np.cumsum(calls_s)])
    cuts = [0]
    for elapsed_s in accumulate(time for _, _, time, _ in spans[:-1]):
        near = np.flatnonzero(np.abs(before_s_C - elapsed_s) <= _SAME_S * before_s_C[-1])
        near = near[(near > cuts[-1]) & (near < len(calls_s))]
        if not len(near):
            return None
        # Layers that take no time may lie on either side: the cut that carries least is taken.
        cuts.append(int(min(near, key=lambda cut: workload.cut_bytes_per_sample[cut])))
    replicas = tuple(count for _, _, _, count in spans)
    return Split(bounds=(*cuts, len(calls_s)), replicas=replicas)


def _innermost(spans: Sequence[tuple[int, int, float, int]]) -> list[tuple[int, int, float, int]]:
    """The stages inside groups, with their replicas in all groups; the groups are listed first."""
    whole = max(end for _, end, _, _ in spans)
    count = 1 + next(number for number, span in enumerate(spans) if span[1] == whole)
    groups, inside = spans[:count], spans[count:]
    return [
        (start, end, time, replicas * groups_of)
        for first, last, _, groups_of in groups
        for start, end, time, replicas in inside
        if first <= start and end <= last
    ]


def _piper(row: PeerRow, workload: Workload, path: Path) -> Split | None:
    nodes = json.loads(path.read_bytes())["nodes"]
    ordered = sorted(nodes, key=lambda node: node["id"])
    names = unique_names([(node["name"], node["id"]) for node in ordered])
    name_of = {node["id"]: name for node, name in zip(ordered, names, strict=True)}
    stages = []
    for replicas, listed in re.findall(r"n\d+ d(\d+) t1 ar\d+ \[([^]]*)\]", row.split):
        ids = [number for part in listed.split("+") for number in _numbers(part)]
        stages.append(({name_of[number] for number in ids}, int(replicas)))
    return _contiguous([layer.name for layer in workload.layers], stages)


def _numbers(part: str) -> range:
    """The numbers of "7" or "0-5"."""
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def _contiguous(order: Sequence[str], stages: Sequence[tuple[set[str], int]]) -> Split | None:
    """The split of stages with these layers, wherever each lies in the order."""
    bounds, replicas = [0], []
    left = list(stages)
    while bounds[-1] < len(order):
        stage = next((some for some in left if order[bounds[-1]] in some[0]), None)
        if stage is None or set(order[bounds[-1] : bounds[-1] + len(stage[0])]) != stage[0]:
            return None
        left.remove(stage)
        bounds.append(bounds[-1] + len(stage[0]))
        replicas.append(stage[1])
    return Split(bounds=tuple(bounds), replicas=tuple(replicas))


def _dnn_partitioning(row: PeerRow, workload: Workload, path: Path) -> Split | None:
    accelerators, _, hosts = row.split.partition("||")
    if any(int(count) for count in re.findall(r"n(\d+)", hosts)):
        raise NoCounterpartError("it uses a CPU beside the accelerators")
    found = re.findall(r"load ([\d.e+-]+) n(\d+)", accelerators)
    stages = [(float(load), int(count)) for load, count in found if int(count)]
    file = json.loads(path.read_bytes())
    members = _members(file)
    sizes = [len(members[layer.name]) for layer in workload.layers]
    loads = _Loads(file, [members[layer.name] for layer in workload.layers])
    before_C = [0, *accumulate(sizes)]
    for listed in (stages, stages[::-1]):
        cuts = [0, *accumulate(count for _, count in listed)]
        if not set(cuts) <= set(before_C):
            continue
        bounds = tuple(before_C.index(cut) for cut in cuts)
        same = all(
            abs(loads.of(*span) - load) <= CLOSE * load
            for span, (load, _) in zip(pairwise(bounds), listed, strict=True)
        )
        if same:
            return Split(bounds=bounds, replicas=(1,) * len(listed))
    return None


def _members(file: dict[str, Any]) -> dict[str, list[int]]:
    """The ids of the nodes in each layer, by the name that the reader gives the layer."""
    names = unique_names([(node["name"], node["id"]) for node in file["nodes"]])
    operations = [
        Operation(
            id=node["id"],
            name=name,
            group=node.get("colorClass"),
            backward=bool(node["isBackwardNode"]),
            time=node["fpgaLatency"] if node["supportedOnFpga"] else node["cpuLatency"],
            parameter_bytes=0.0,
            stash_bytes=0.0,
        )
        for node, name in zip(file["nodes"], names, strict=True)
    ]
    edges = [Edge(edge["sourceId"], edge["destId"], edge["size"]) for edge in file["edges"]]
    joined = contract(operations, edges)
    layers = zip(joined.costs, joined.members, strict=True)
    return {costs.name: members for costs, members in layers}


class _Loads:
    """Loads of stages under dnn-partitioning's definition, in the file's unit of time."""

    def __init__(self, file: dict[str, Any], members: Sequence[Sequence[int]]) -> None:
        place_of = {node: place for place, group in enumerate(members) for node in group}
        latency = {node["id"]: node["fpgaLatency"] for node in file["nodes"]}
        self.compute = [sum(latency[node] for node in group) for group in members]
        self.tensors = dnn_tensors(file, place_of)

    def of(self, first: int, end: int) -> float:
        """The load of the layers from `first` to before `end`."""
        stage, load = set(range(first, end)), float(sum(self.compute[first:end]))
        for tensor in self.tensors:
            ends = {tensor.producer, *tensor.consumers}
            load += tensor.seconds if ends & stage and ends - stage else 0.0
        return load
