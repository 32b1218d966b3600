"""The problem of PipeDream's hierarchical optimizer, as its code states it.

It counts what a cut sends as the outputs of the last nodes and of every node before one of these
that also feeds something else, a tensor that does not cross included; without
--activation_compression_ratio it counts nothing (facts/planners.md 1.1). With levels of links, the
gradients of the first stage of the outer level are divided by the devices of a group, those of
other stages are not. It must use every device; here some may be idle.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from validation.peer_rows import PeerRow
from validation.peer_solved import Solved, solved_with

from autoplan.pipeline.ideal_stages import (
    Crossing,
    Floats,
    StageRules,
    Units,
    best_grouped_stages,
    best_stages,
)
from autoplan.pipeline.ideals import Ideals, Precedence


@dataclass(slots=True)
class _Profile:
    """A graph.txt: nodes by id with milliseconds and bytes, and edges between them."""

    nodes: dict[str, tuple[str, float, float, float]]
    edges: list[tuple[str, str]]

    def drop(self, names: set[str]) -> None:
        """Removes nodes and their edges."""
        self.nodes = {name: node for name, node in self.nodes.items() if name not in names}
        self.edges = [edge for edge in self.edges if not names & set(edge)]


_NODE = re.compile(
    r"(\S+) -- (.*) -- forward_compute_time=(\S+), backward_compute_time=(\S+), "
    r"activation_size=(\[.*\]|\S+), parameter_size=(\S+)"
)


def _profile(text: str) -> _Profile:
    """Without inputs, and without selectors that nobody reads, as the optimizer drops them."""
    profile = _Profile({}, [])
    for line in text.splitlines():
        if line.startswith("\t"):
            source, _, target = line.strip().partition(" -- ")
            profile.edges.append((source, target))
        elif found := _NODE.match(line):
            name, description, forward, backward, activation, parameters = found.groups()
            sizes = activation.strip("[]").split(";")
            entry = (
                description,
                float(forward) + float(backward),
                sum(float(size) for size in sizes),
                float(parameters),
            )
            profile.nodes[name] = entry
    fed = {target for _, target in profile.edges}
    described = {name: node[0] for name, node in profile.nodes.items()}
    profile.drop({n for n, d in described.items() if d.startswith("Input") and n not in fed})
    read = {source for source, _ in profile.edges}
    profile.drop({n for n, d in described.items() if d.startswith("__getitem__") and n not in read})
    return profile


def solve_pipedream(row: PeerRow, document: bytes, most_ideals: int) -> Solved:
    profile = _profile(document.decode())
    index = {name: number for number, name in enumerate(profile.nodes)}
    edges = tuple({(index[source], index[target]) for source, target in profile.edges})
    figures_N3 = np.array([node[1:] for node in profile.nodes.values()])
    units = Units(
        precedence=Precedence(num_units=len(index), edges=edges),
        compute_s_N=figures_N3[:, 0] / 1e3,
        parameter_bytes_N=figures_N3[:, 2],
        held_bytes_N=figures_N3[:, 1] + figures_N3[:, 2],
    )
    limit = row.limit_bytes if "--use_memory_constraint" in row.args else None
    straight = "--straight_pipeline" in row.args
    rules, crossings, around = [], [], 1
    counted = _crossing_bytes(units.precedence, figures_N3[:, 1])
    for devices, bytes_per_s in zip(row.devices, row.bandwidths, strict=True):
        rules.append(_pipedream_rules(devices, bytes_per_s, straight, limit, around))
        around = devices
        crossings.append(_scaled(counted, 2 / bytes_per_s))
    if "--activation_compression_ratio" not in row.args:
        crossings = [None] * len(rules)
    if len(rules) == 1:
        chain = best_stages(units, rules[0], crossing=crossings[0], most_ideals=most_ideals)
    else:
        chain = best_grouped_stages(
            units, *rules, crossing_inside=crossings[0], crossing_between=crossings[1]
        )
    return solved_with(chain, list(index))


def _pipedream_rules(
    devices: int, bytes_per_s: float, straight: bool, limit: float | None, around: int
) -> StageRules:
    """One level of links; `around` devices are in a group of the level inside."""
    replicas = (1,) if straight else tuple(range(1, devices + 1))
    gradients = tuple(4 * (d - 1) / (bytes_per_s * d) / d for d in replicas)
    return StageRules(
        devices=devices,
        replicas=replicas,
        gradient_s_per_byte=gradients,
        first_gradient_s_per_byte=tuple(seconds / around for seconds in gradients),
        limit_bytes=math.inf if limit is None else limit,
        held=None if limit is None else lambda used, each: -(-(devices - used) // each),
    )


def _crossing_bytes(precedence: Precedence, activation_bytes_N: Floats) -> Crossing:
    """What PipeDream counts at the border of an ideal (its "augmented antichain")."""
    count = precedence.num_units
    feeds_NN = np.zeros((count, count), dtype=np.float32)
    for source, target in precedence.edges:
        feeds_NN[source, target] = 1
    # Column n: all that n waits for, and n itself.
    closed_NN = np.eye(count, dtype=np.float32)
    for unit in precedence.order(depth_first=False):
        before = np.flatnonzero(feeds_NN[:, unit])
        closed_NN[:, unit] = np.maximum(closed_NN[:, unit], closed_NN[:, before].max(1, initial=0))
    # [p, a]: p feeds something that is not among what a waits for, though a waits for p.
    leaves_NN = np.minimum(closed_NN, feeds_NN @ (1 - closed_NN) > 0).astype(np.float32)

    def crossing(ideals: Ideals) -> Floats:
        inside_IN = ideals.member_table(count).astype(np.float32)
        last_IN = inside_IN * (inside_IN @ feeds_NN.T == 0)
        counted_IN = (last_IN > 0) | (last_IN @ leaves_NN.T > 0)
        crossing_I = counted_IN @ activation_bytes_N
        crossing_I[-1] = 0.0
        return np.asarray(crossing_I, dtype=np.float64)

    return crossing


def _scaled(crossing: Crossing, factor: float) -> Crossing:
    return lambda ideals: crossing(ideals) * factor
