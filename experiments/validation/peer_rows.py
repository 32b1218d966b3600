"""What the planners of PipeDream, Piper and dnn-partitioning found: ref_planners.csv.

A row of facts/reference/ref_planners.csv is one run: an input, devices, a memory limit, arguments,
and the least largest load that the planner reports with its CPU time. ref_timing_clean.csv repeats
some of them on an idle machine.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from pathlib import Path

PEERS = ("pipedream", "dnn-partitioning", "piper")
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    """A run of a planner that ended with a plan."""

    peer: str
    program: str
    input: str
    """The path in the publisher's repository."""
    devices: tuple[int, ...]
    """Accelerators, from the innermost level of links to the outermost."""
    hosts: int
    """CPUs of dnn-partitioning, which it may use beside the accelerators."""
    limit_bytes: float | None
    """Of a device, None where the planner was told of none."""
    bandwidths: tuple[float, ...]
    """Bytes per second, one for each level; none where the input's edges have times."""
    args: str
    value: float
    resolution: float
    """Half a unit of the last printed digit of the value."""
    split: str
    cpu_s: float

    @property
    def name(self) -> str:
        """The input's short name, as files in shared/data have it."""
        path = Path(self.input)
        return path.parent.name if self.peer == "pipedream" else path.stem

    @property
    def title(self) -> str:
        """A line that no other row has."""
        limit = "" if self.limit_bytes is None else f" {self.limit_bytes / GIB:.3g} GiB"
        devices = "x".join(str(count) for count in self.devices)
        words = f"{self.peer} {self.name} {devices} devices{limit}"
        return f"{words} [{self.program.rpartition('/')[2]}] {self.args}"

    def data_path(self, data: Path) -> Path:
        """Where its input lies in shared/data, whether or not it does."""
        if self.peer == "pipedream":
            return data / "pipedream" / f"{self.name}.graph.txt"
        if self.peer == "piper":
            return data / "piper" / Path(self.input).name
        folder = "layer-graphs" if "/LayerGraphs/" in self.input else "operator-graphs"
        return data / "dnn-partitioning" / folder / Path(self.input).name


def read_peer_rows(facts: Path) -> list[PeerRow]:
    """The runs that ended with a plan, with the lesser of their CPU times; raises OSError."""
    clean = {}
    with (facts / "reference" / "ref_timing_clean.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            clean[row["peer"], row["case"]] = float(row["cpu_s"])
    with (facts / "reference" / "ref_planners.csv").open(newline="") as file:
        wanted = [row for row in csv.DictReader(file) if row["peer"] in PEERS]
    return [_row(row, clean) for row in wanted if row["status"] == "ok"]


def _row(row: dict[str, str], clean: dict[tuple[str, str], float]) -> PeerRow:
    """A line of the table; its devices are "16", "4x4" or "6 accel + 1 CPU"."""
    accelerators = row["devices"].split(" ")[0]
    hosts = re.search(r"\+ (\d+) CPU", row["devices"])
    limit = row["memory_limit_bytes"]
    digits = row["objective_value"].partition(".")[2]
    peer_row = PeerRow(
        peer=row["peer"],
        program=row["program"],
        input=row["input"],
        devices=tuple(int(count) for count in accelerators.split("x")),
        hosts=int(hosts[1]) if hosts else 0,
        limit_bytes=float(limit) if limit.isdigit() else None,
        bandwidths=_bandwidths(row["bandwidth"]),
        args=row["args"],
        value=float(row["objective_value"]),
        resolution=0.5 * 10.0 ** -len(digits),
        split=row["split"],
        cpu_s=float(row["planner_cpu_s"]),
    )
    case = _clean_case(peer_row)
    least = min(peer_row.cpu_s, clean.get((peer_row.peer, case), peer_row.cpu_s))
    return replace(peer_row, cpu_s=least)


def _bandwidths(text: str) -> tuple[float, ...]:
    """From "25 GiB/s", "12e9,1.25e9 B/s" or words without a figure."""
    number, _, unit = text.partition(" ")
    factors = {"B/s": 1.0, "GiB/s": float(GIB)}
    if unit not in factors:
        return ()
    return tuple(float(part) * factors[unit] for part in number.split(","))


def _clean_case(row: PeerRow) -> str:
    """The name that the table of clean timings would have the run under."""
    if row.peer == "piper":
        every = row.args.endswith("data_par=1 tensor_par=1 recompute=1") and "runDP" in row.program
        batch = re.search(r"N=\d+", row.args)
        limit = f"{(row.limit_bytes or 0) / GIB:g}GiB"
        return f"{row.name} k={row.devices[0]} {limit} {batch[0] if batch else ''}" * every
    if row.peer == "pipedream":
        plain = row.args == f"-n {row.devices[0]} --activation_compression_ratio 1"
        return f"{row.name} n={row.devices[0]} acr=1" * plain
    folder = Path(row.input).parent.name
    return f"{folder}/{row.name} defaults, full DP" * ("full" in row.program and row.hosts == 1)
