"""Measures the links between ranks, and puts what was found into a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autoplan.cluster import Cluster, Link
from autoplan.cluster.model import Collective, MeasuredCollective, MessageHandling
from autoplan.errors import InputError, require, words
from autoplan.execute.fits import Fit, fit_affine
from autoplan.execute.launch import Launch
from autoplan.execute.link_probe import ProbedOperation, ProbeOrder
from autoplan.execute.message_profile import handling_of
from autoplan.execute.real_run import DeviceKind, Modes
from autoplan.execute.spawn import LocalStarter, Starter
from autoplan.execute.worker_job import WorkerJob
from autoplan.job import Job

SIZES = tuple(4**i for i in range(5, 13))
"""1 KB to 16 MB; plans beyond it are told that they were extrapolated."""
MOST_RANKS = 64
_START_S = 300.0
_PROBE_S = 120.0
_COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLine:
    """An operation between so many ranks at several sizes, and the line through them."""

    operation: ProbedOperation
    ranks: int
    size_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    """The shortest repeat at this or a larger size: what others do to a machine only adds to it."""
    spread: tuple[float, ...]
    """(median - shortest) / shortest at each size."""
    fit: Fit

    @property
    def alpha_s(self) -> float:
        """Seconds at no bytes."""
        return self.fit.coefficients[0]

    @property
    def s_per_byte(self) -> float:
        """Seconds per byte."""
        return self.fit.coefficients[1]

    @property
    def line(self) -> str:
        """All that was found, in words."""
        return (
            f"{self.operation} of {self.ranks} ranks: {1e3 * self.alpha_s:.4g} ms + "
            f"{1e9 * self.s_per_byte:.4g} ns/B from {self.size_bytes[0]} to "
            f"{self.size_bytes[-1]} bytes; residuals: median {100 * self.fit.median_residual:.1f} "
            f"%, largest {100 * self.fit.largest_residual:.1f} %; median repeat "
            f"{100 * float(np.median(self.spread)):.0f} % above the shortest"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """What was measured, and on what."""

    lines: tuple[MeasuredLine, ...]
    device: str
    """The processor's model name."""
    collectives: str
    """Who did the collectives, such as "gloo"."""

    def on(self, cluster: Cluster) -> Cluster:
        """The cluster with these links inside its nodes, and these tables for its collectives."""
        transfer = next(line for line in self.lines if line.operation == "transfer")
        tables = tuple(_table(line) for line in self.lines if line.operation != "transfer")
        replaced = {(t.collective, t.devices, t.nodes) for t in tables}
        others = tuple(
            t for t in cluster.measured if (t.collective, t.devices, t.nodes) not in replaced
        )
        link = Link(
            name="measured transfers",
            alpha_s=transfer.alpha_s,
            bandwidth_bytes_per_s=1 / transfer.s_per_byte,
            measured_bytes=(float(transfer.size_bytes[0]), float(transfer.size_bytes[-1])),
            source=transfer.line,
        )
        return dataclasses.replace(cluster, intra_node=link, measured=(*others, *tables))


def profile_links(
    ranks: int,
    *,
    device: DeviceKind = "cpu",
    sizes: Sequence[int] = SIZES,
    repeats: int = 15,
    progress: Callable[[str], None] | None = None,
    starter: Starter | None = None,
) -> LinkProfile:
    """Times transfers, all-reduces and all-gathers between real processes, as plans run them.

    Args:
        ranks: how many processes, at least 2.
        device: where the buffers are.
        sizes: bytes, rising, at least three.
        repeats: of each size; the shortest counts.
        progress: is told in one line what was found.
        starter: where the ranks run; on this machine by default.

    Raises:
        InputError: an argument is not usable.
        RunFailedError: a rank failed.
    """
    require(2 <= ranks <= MOST_RANKS, "ranks", ranks, f"2 to {MOST_RANKS}")
    require(repeats >= 1, "repeats", repeats, "at least 1")
    rising = len(sizes) >= 3 and all(a < b for a, b in pairwise(sizes))
    allowed = "three or more rising numbers of bytes, each at least 64"
    require(rising and sizes[0] >= 64, "sizes", tuple(sizes), allowed)
    starter = starter or LocalStarter()
    groups = tuple(tuple(range(n)) for n in _group_sizes(ranks))
    tell = progress or (lambda line: None)
    lines = []
    with Launch(_job(ranks, groups, device, starter), ranks, starter) as launch:
        launch.prepare(_START_S)
        wanted: list[tuple[ProbedOperation, tuple[int, ...]]] = [("transfer", (0, 1))]
        wanted += [(operation, group) for operation in _COLLECTIVES for group in groups]
        for operation, group in wanted:
            lines.append(_measured(launch, operation, group, sizes, repeats))
            tell(lines[-1].line)
        told = launch.environment
    return LinkProfile(lines=tuple(lines), device=told["device"], collectives=told["collectives"])


def profile_exchange_handling(
    sizes: Sequence[int] = SIZES, repeats: int = 15
) -> tuple[MessageHandling, Fit]:
    """What an all-reduce takes from the core of a rank that computes meanwhile.

    CPU seconds of all threads of a rank, of two on this machine, with caches as cold as between
    pieces of compute. The median counts.

    Raises:
        RunFailedError: a rank failed.
    """
    group, starter = (0, 1), LocalStarter()
    seconds = []
    with Launch(_job(len(group), (group,), "cpu", starter), len(group), starter) as launch:
        launch.prepare(_START_S)
        for size in sizes:
            order = ProbeOrder(
                operation="all_reduce", ranks=group, size_bytes=size, repeats=repeats, cold=True
            )
            seconds.append(float(np.median(launch.probe_cpu(order, _PROBE_S))))
    fit = fit_affine(sizes, seconds)
    return handling_of(fit), fit


def _job(
    ranks: int, groups: tuple[tuple[int, ...], ...], device: DeviceKind, starter: Starter
) -> WorkerJob:
    """No plans, but the groups whose links are measured."""
    gpu = device == "gpu"
    return WorkerJob(
        runs=(),
        job=Job(global_batch=1),
        modes=Modes(compute="real" if gpu else "emulated", link="native", device=device),
        seed=0,
        framework_groups=True,
        devices=tuple(map(starter.device, range(ranks))) if gpu else (),
        probed_groups=groups,
    )


def _group_sizes(ranks: int) -> list[int]:
    """2, 4, 8, ... and all ranks."""
    powers = [2**i for i in range(1, ranks.bit_length()) if 2**i < ranks]
    return [*powers, ranks]


def _measured(
    launch: Launch,
    operation: ProbedOperation,
    group: tuple[int, ...],
    sizes: Sequence[int],
    repeats: int,
) -> MeasuredLine:
    """All sizes, twice in opposite orders, so that a disturbance does not hit one size alone."""
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for order in (sizes, tuple(reversed(sizes))):
        for size in order:
            asked = ProbeOrder(
                operation=operation, ranks=group, size_bytes=size, repeats=-(-repeats // 2)
            )
            found[size] += launch.probe(asked, _PROBE_S)
    # What a smaller message took beyond a larger one was noise.
    every = [min(found[size]) for size in sizes]
    shortest = np.minimum.accumulate(every[::-1])[::-1].tolist()
    fit = fit_affine(sizes, shortest)
    if fit.coefficients[1] <= 0:
        got = words(f"{operation}: no more seconds for more bytes")
        raise InputError("sizes", got, "sizes that are further apart")
    return MeasuredLine(
        operation=operation,
        ranks=len(group),
        size_bytes=tuple(sizes),
        seconds=tuple(shortest),
        spread=tuple(
            float(np.median(found[size])) / least - 1
            for size, least in zip(sizes, shortest, strict=True)
        ),
        fit=fit,
    )


def _table(line: MeasuredLine) -> MeasuredCollective:
    assert line.operation != "transfer"
    return MeasuredCollective(
        collective=line.operation,
        devices=line.ranks,
        nodes=1,
        size_bytes=tuple(float(size) for size in line.size_bytes),
        seconds=line.seconds,
    )
