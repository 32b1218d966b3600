"""The problem of Piper's dynamic program without tensor parallelism, as its code states it.

Each of its two choices for a node is recomputing or not. Times and transfers are added whatever
their units (facts/planners.md 3.4).
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
from validation.peer_rows import PeerRow
from validation.peer_solved import Solved, solved_with

from autoplan.pipeline.ideal_stages import StageRules, Units, best_stages
from autoplan.pipeline.ideals import Precedence
from autoplan.workload.stage_loads import Transfer


def solve_piper(row: PeerRow, document: bytes, most_ideals: int) -> Solved:
    """Backwards: a stage's memory depends on the replicas of the stages behind it."""
    file = json.loads(document)
    index = {node["id"]: number for number, node in enumerate(file["nodes"])}
    [bytes_per_s] = row.bandwidths
    choices = [_piper_choices(node) for node in file["nodes"]]
    figures_N24 = np.array(choices, dtype=np.float64)
    plain, again = figures_N24[:, 0], figures_N24[:, 1]
    recomputes = np.full(len(index), "recompute=1" in row.args)
    edges = [(index[edge["destId"]], index[edge["sourceId"]]) for edge in file["edges"]]
    seconds = [2 * edge["communicationCost"] / bytes_per_s for edge in file["edges"]]
    units = Units(
        precedence=Precedence(num_units=len(index), edges=tuple(edges)),
        compute_s_N=plain[:, 0],
        parameter_bytes_N=plain[:, 1],
        held_bytes_N=plain[:, 2],
        fixed_bytes_N=plain[:, 3],
        recompute_s_N=np.where(recomputes, again[:, 0] - plain[:, 0], 0.0),
        saved_held_bytes_N=np.where(recomputes, plain[:, 2] - again[:, 2], 0.0),
        saved_fixed_bytes_N=np.where(recomputes, plain[:, 3] - again[:, 3], 0.0),
        tensors=tuple(
            Transfer(producer=target, consumers=(source,), seconds=time)
            for (source, target), time in zip(edges, seconds, strict=True)
        ),
    )
    microbatches = int(re.search(r"N=(\d+)", row.args)[1])
    devices = min(row.devices[0], microbatches)
    most = devices if "data_par=1" in row.args else 1
    replicas = tuple(d for d in range(1, most + 1) if microbatches % d == 0)
    rules = StageRules(
        devices=devices,
        replicas=replicas,
        gradient_s_per_byte=tuple(4 * (d - 1) / d / microbatches / bytes_per_s for d in replicas),
        limit_bytes=math.inf if row.limit_bytes is None else row.limit_bytes,
        held=lambda used, each: -(-used // each),
    )
    solved = solved_with(best_stages(units, rules, most_ideals=most_ideals), list(index))
    backwards = replace(solved.chain, stages=solved.chain.stages[::-1])
    return replace(solved, chain=backwards, stage_ids=solved.stage_ids[::-1])


def _piper_choices(node: dict[str, Any]) -> list[list[float]]:
    """Without and with recomputation: seconds, parameter bytes, bytes per held one, fixed bytes."""
    names = ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")
    found = {choice["id"]: [choice[name] for name in names] for choice in node["TMPCs"]["1"]}
    plain = found["vanilla"]
    return [plain, found.get("activation recomp", plain)]
