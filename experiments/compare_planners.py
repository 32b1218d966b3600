"""Solves the problems of PipeDream, dnn-partitioning and Piper, and compares with what they found.

    python experiments/compare_planners.py [--shared ../shared] [--only SUBSTRING] [--json]

Each row of facts/reference/ref_planners.csv that ended with a plan and whose input is in
shared/data is planned again under that planner's own objective, with its devices, memory limit and
bandwidths, by the search over chains of ideals (autoplan/pipeline/ideal_stages.py); rows that have
no counterpart are counted by reason. validation/peer_problems.py says what each planner counts.

CPU seconds are of reading the input and planning, the median of three runs where they are short.
Ours leave out the start of the interpreter and the loading of compiled kernels, which is printed
apart; the peers' are of the process, but those of Piper's "equi" planner leave out reading the
input. A problem (the same input, devices and limits) may have rows of several modes: there, the
best value is compared, and the least CPU time with which each side reached it.

Exit codes: 0; 1 if a value is worse; 2 for bad input, published files that are absent included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from validation.peer_problems import ONE_ORDER, solve, why_not
from validation.peer_rows import PeerRow, read_peer_rows

from autoplan.errors import InputError, require
from autoplan.pipeline.ideal_stages import StageRules, Units, best_grouped_stages, best_stages
from autoplan.pipeline.ideals import Precedence
from autoplan.workload.stage_loads import Transfer

DEFAULT_SHARED = Path(__file__).resolve().parents[2] / "shared"
SHORT_S = 0.2
"""CPU seconds below which a run is repeated."""
ROUNDING = 1e-9


def load_kernels() -> float:
    """Compiles or loads what planning runs; its CPU seconds."""
    started_s = time.process_time()
    tensor = Transfer(producer=0, consumers=(1,), seconds=1.0)
    fork = Precedence(num_units=3, edges=((0, 1), (0, 2)))
    units = Units(precedence=fork, compute_s_N=np.array([3.0, 2.0, 2.0]), tensors=(tensor,))
    rules = StageRules(devices=2)
    best_stages(units, rules)
    best_grouped_stages(units, rules, rules)
    return time.process_time() - started_s


def compare(row: PeerRow, data: Path) -> dict[str, Any]:
    """A row, planned again."""
    started_s = time.process_time()
    solved = solve(row, data)
    times = [time.process_time() - started_s]
    while len(times) < 3 and times[0] < SHORT_S:
        started_s = time.process_time()
        solve(row, data)
        times.append(time.process_time() - started_s)
    load = solved.chain.load_s
    tolerance = row.resolution + ROUNDING * row.value
    cpu_s = statistics.median(times)
    return {
        "row": row.title,
        "peer": row.peer,
        "input": row.input,
        "mode": mode_of(row),
        "problem": problem_of(row),
        "theirs": row.value,
        "ours": load,
        "tolerance": tolerance,
        "verdict": verdict(load, row.value, tolerance),
        "proven": solved.chain.proven,
        "their_cpu_s": row.cpu_s,
        "our_cpu_s": cpu_s,
        "stages": [
            {"nodes": nodes, "replicas": stage.replicas}
            for nodes, stage in zip(solved.stage_ids, solved.chain.stages, strict=True)
        ],
    }


def mode_of(row: PeerRow) -> str:
    """How the planner searched."""
    if row.peer == "piper":
        return "equi" if "runPipeDream2BW" in row.program else "full"
    if row.peer == "pipedream":
        return "levels" if len(row.devices) > 1 else "full"
    return next((flag for flag in ONE_ORDER if flag in row.args), "full")


def problem_of(row: PeerRow) -> str:
    """What rows of several modes have in common."""
    args = row.args
    if row.peer == "dnn-partitioning":
        args = " ".join(args.split(" ")[:2])
    limit = "" if "-oneFpga" in row.args or "-expert" in row.args else str(row.limit_bytes)
    return f"{row.peer} {row.name} {row.devices}+{row.hosts} {limit or 'any'} {args}"


def problems_of(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each problem the best value of each side, and the least time that it was reached in."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["problem"], []).append(row)
    problems = []
    for name, group in grouped.items():
        best = min(group, key=lambda row: row["theirs"])
        enough = best["theirs"] + best["tolerance"]
        ours = min(row["ours"] for row in group)
        problems.append(
            {
                "row": name,
                "peer": best["peer"],
                "mode": "problems",
                "theirs": best["theirs"],
                "ours": ours,
                "verdict": verdict(ours, best["theirs"], best["tolerance"]),
                "proven": any(row["proven"] for row in group),
                "their_cpu_s": min(r["their_cpu_s"] for r in group if r["theirs"] <= enough),
                "our_cpu_s": min((r["our_cpu_s"] for r in group if r["ours"] <= enough), default=0),
            }
        )
    return problems


def verdict(ours: float, theirs: float, tolerance: float) -> str:
    """How our value compares with theirs."""
    if abs(ours - theirs) <= tolerance:
        return "equal"
    return "better" if ours < theirs else "worse"


def summary_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts and CPU ratios of some rows."""
    verdicts = Counter(row["verdict"] for row in rows)
    ratios = [cpu_ratio(row) for row in rows]
    return {
        "rows": len(rows),
        **{name: verdicts[name] for name in ("equal", "better", "worse")},
        "proven": sum(row["proven"] for row in rows),
        "slower": sum(row["our_cpu_s"] > row["their_cpu_s"] for row in rows),
        "median_cpu_ratio": statistics.median(ratios),
        "max_cpu_ratio": max(ratios),
    }


def cpu_ratio(row: dict[str, Any]) -> float:
    """Our CPU time per theirs, which is known to a millisecond."""
    return float(row["our_cpu_s"] / max(row["their_cpu_s"], 1e-3))


def summaries(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By peer and mode, and by peer for problems."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in (*rows, *problems_of(rows)):
        groups.setdefault(f"{row['peer']} {row['mode']}", []).append(row)
    return {name: summary_of(group) for name, group in sorted(groups.items())}


def inputs_of(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """CPU time of all rows of an input together, and the worst verdict."""
    inputs: dict[str, dict[str, Any]] = {}
    for row in rows:
        total = inputs.setdefault(
            f"{row['peer']} {row['input']}", {"their_cpu_s": 0.0, "our_cpu_s": 0.0, "worse": 0}
        )
        total["their_cpu_s"] += row["their_cpu_s"]
        total["our_cpu_s"] += row["our_cpu_s"]
        total["worse"] += row["verdict"] == "worse"
    return inputs


def line_of(row: dict[str, Any]) -> str:
    """A row of the table."""
    return (
        f"{row['verdict']:6} {row['theirs']:12.6g} {row['ours']:12.6g}"
        f" {row['ours'] / row['theirs']:9.6f} {row['their_cpu_s']:9.3f} {row['our_cpu_s']:9.4f}"
        f" {cpu_ratio(row):8.3f}  {row['row']}"
    )


def text(document: dict[str, Any]) -> Iterable[str]:
    """The summary, and what is slower."""
    yield ""
    heads = ("rows", "equal", "better", "worse", "proven", "slower")
    yield f"{'':28}" + "".join(f"{head:>8}" for head in heads) + "  CPU ours / theirs: median, most"
    for name, summary in document["summary"].items():
        counts = "".join(f"{summary[head]:8}" for head in heads)
        ratios = f"{summary['median_cpu_ratio']:20.4f} {summary['max_cpu_ratio']:8.2f}"
        yield f"{name:28}{counts}{ratios}"
    for reason, count in document["skipped"].items():
        yield f"{count} rows are left out: {reason}"
    yield f"{document['load_kernels_s']:.2f} CPU s loaded the compiled kernels once, apart"
    slower_inputs = [
        name for name, t in document["inputs"].items() if t["our_cpu_s"] > t["their_cpu_s"]
    ]
    yield f"inputs in more CPU time than the peer took in all: {', '.join(slower_inputs) or 'none'}"
    slower = [row for row in document["problems"] if row["our_cpu_s"] > row["their_cpu_s"]]
    if slower:
        yield "problems in more CPU time than the peer took to its best value:"
    yield from (line_of(row) for row in sorted(slower, key=cpu_ratio, reverse=True))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=DEFAULT_SHARED, help="data and facts")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="rows with it in the title")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    chosen = parser.parse_args(arguments)
    data = chosen.shared / "data"
    try:
        rows = [row for row in read_peer_rows(chosen.shared / "facts") if chosen.only in row.title]
        require(bool(rows), "--only", chosen.only, "a part of a row's title")
    except (OSError, InputError) as error:
        print(f"compare_planners: {error}", file=sys.stderr)
        return 2
    reasons = [why_not(row, data) for row in rows]
    document: dict[str, Any] = {
        "load_kernels_s": load_kernels(),
        "skipped": Counter(reason for reason in reasons if reason is not None),
        "rows": [],
    }
    if not chosen.json:
        print("verdict      theirs         ours     ratio their CPU   our CPU    ratio  row")
    for row, reason in zip(rows, reasons, strict=True):
        if reason is None:
            document["rows"].append(compare(row, data))
            if not chosen.json:
                print(line_of(document["rows"][-1]), flush=True)
    document["problems"] = problems_of(document["rows"])
    document["summary"] = summaries(document["rows"])
    document["inputs"] = inputs_of(document["rows"])
    if chosen.json:
        print(json.dumps(document, indent=2, sort_keys=True))
    else:
        print("\n".join(text(document)))
    return 1 if any(row["verdict"] == "worse" for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
