"""The problem of dnn-partitioning's dynamic program, as its code states it.

Edge costs are added to latencies whatever their units (facts/planners.md 3.4). Nodes of a colour
class, and of a cycle of classes, share a device; nodes without time that one other node touches
join it, as its code does to have fewer ideals.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from validation.peer_rows import PeerRow
from validation.peer_solved import Solved, solved_with

from autoplan.pipeline.ideal_stages import StageRules, Units, best_stages
from autoplan.pipeline.ideals import Precedence
from autoplan.workload.graph import strong_components
from autoplan.workload.stage_loads import Transfer

MOST_TRIVIAL = 1e-6
"""Milliseconds below which a node is taken to have no time."""


def solve_dnn_partitioning(row: PeerRow, document: bytes, most_ideals: int) -> Solved:
    """In the file's unit of time."""
    file = json.loads(document)
    order = _dnn_order(file)
    unit_of = _dnn_units(file, order)
    places = {unit: number for number, unit in enumerate(dict.fromkeys(unit_of.values()))}
    place_of = {node: places[unit] for node, unit in unit_of.items()}
    members: list[list[int]] = [[] for _ in places]
    figures_N3 = np.zeros((len(places), 3))
    for node in file["nodes"]:
        place = place_of[node["id"]]
        members[place].append(node["id"])
        figures_N3[place] += node["fpgaLatency"], node["cpuLatency"], node["size"]
    edges = {(place_of[source], place_of[target]) for source, target in order}
    units = Units(
        precedence=Precedence(
            num_units=len(places), edges=tuple(edge for edge in edges if edge[0] != edge[1])
        ),
        compute_s_N=figures_N3[:, 0],
        host_s_N=figures_N3[:, 1],
        fixed_bytes_N=figures_N3[:, 2],
        tensors=dnn_tensors(file, place_of),
    )
    checked = not any(flag in row.args for flag in ("-oneFpga", "-expert"))
    rules = StageRules(
        devices=row.devices[0],
        hosts=row.hosts,
        limit_bytes=row.limit_bytes if checked and row.limit_bytes is not None else math.inf,
    )
    return solved_with(best_stages(units, rules, most_ideals=most_ideals), members)


def dnn_tensors(file: dict[str, Any], place_of: dict[int, int]) -> tuple[Transfer, ...]:
    """One for each node with edges to other units; they all have the same cost."""
    costs: dict[int, float] = {}
    readers: dict[int, set[int]] = {}
    for edge in file["edges"]:
        costs[edge["sourceId"]] = edge["cost"]
        readers.setdefault(edge["sourceId"], set()).add(place_of[edge["destId"]])
    return tuple(
        Transfer(producer=place_of[node], consumers=tuple(sorted(places)), seconds=costs[node])
        for node, places in readers.items()
        if costs[node] > 0 and places != {place_of[node]}
    )


def _dnn_order(file: dict[str, Any]) -> list[tuple[int, int]]:
    """The edges, by node ids, that stages must follow.

    Forward edges; and the mirror images of backward edges at a class without forward nodes, which
    would else be placed without regard to the order of its backward nodes.
    """
    backward = {node["id"]: bool(node["isBackwardNode"]) for node in file["nodes"]}
    class_of = _classes(file)
    forward = {class_of[node] for node, flag in backward.items() if not flag}
    order = []
    for edge in file["edges"]:
        source, target = edge["sourceId"], edge["destId"]
        if not backward[target]:
            order.append((source, target))
        elif backward[source] and not {class_of[source], class_of[target]} <= forward:
            order.append((target, source))
    return order


def _classes(file: dict[str, Any]) -> dict[int, int]:
    """The colour class of each node, one of its own where it has none."""
    fresh = 1 + max((node.get("colorClass", -1) for node in file["nodes"]), default=0)
    return {n["id"]: n.get("colorClass", fresh + place) for place, n in enumerate(file["nodes"])}


def _dnn_units(file: dict[str, Any], order: list[tuple[int, int]]) -> dict[int, int]:
    """The unit of each node: classes, joined where they are on a cycle or trivial."""
    class_of = _classes(file)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(class_of.values()))}
    unit_of = {node: numbers[name] for node, name in class_of.items()}
    successors: list[set[int]] = [set() for _ in numbers]
    for source, target in order:
        successors[unit_of[source]].add(unit_of[target])
    component = strong_components(successors)
    unit_of = {node: component[unit] for node, unit in unit_of.items()}
    joined = _trivial(file, unit_of)
    return {node: joined[unit] for node, unit in unit_of.items()}


def _trivial(file: dict[str, Any], unit_of: dict[int, int]) -> dict[int, int]:
    """Where each unit ends up when those without time join the only one that they touch.

    A unit is without time if none of its nodes takes any and no backward node touches its forward
    ones.
    """
    slow, held, touching = set(), set(), {unit: set[int]() for unit in unit_of.values()}
    backward = {node["id"]: bool(node["isBackwardNode"]) for node in file["nodes"]}
    for node in file["nodes"]:
        if node["cpuLatency"] >= MOST_TRIVIAL or node["fpgaLatency"] >= MOST_TRIVIAL:
            slow.add(unit_of[node["id"]])
    for edge in file["edges"]:
        ends = (edge["sourceId"], edge["destId"])
        a, b = (unit_of[end] for end in ends)
        if backward[ends[0]] != backward[ends[1]]:
            held.add(a if backward[ends[1]] else b)
        elif a != b and not backward[ends[0]]:
            touching[a].add(b)
            touching[b].add(a)
    final = {unit: unit for unit in touching}
    pending = [unit for unit, near in touching.items() if len(near) == 1]
    while pending:
        unit = pending.pop()
        if unit in slow or unit in held or len(touching[unit]) != 1:
            continue
        [near] = touching.pop(unit)
        touching[near].discard(unit)
        final[unit] = near
        touching[unit] = set()
        pending.append(near)
    return {unit: _root(final, unit) for unit in final}


def _root(final: dict[int, int], unit: int) -> int:
    """The unit that one has joined, over any number of steps."""
    while final[unit] != unit:
        unit = final[unit]
    return unit
