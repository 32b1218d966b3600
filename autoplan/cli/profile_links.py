"""`autoplan profile-links`: measures links and devices into a cluster file."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from autoplan.cli.arguments import some_text, whole_number

if TYPE_CHECKING:
    from autoplan.cluster import Cluster
    from autoplan.execute.device_profile import DeviceProfile
    from autoplan.execute.links import LinkProfile
    from autoplan.execute.real_run import DeviceKind

_OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "profile-links",
        help="measure links and collectives into a cluster file",
        description="Measures transfers, all-reduces and all-gathers between real processes on "
        "this machine, and with --model what a device needs beside its layers: the optimizer's "
        "update, copies of gradient groups, and top-k on the model's own gradients.",
    )
    parser.add_argument("--out", required=True, metavar="CLUSTER.toml", help="the file to write")
    parser.add_argument(
        "--base",
        type=some_text,
        metavar="CLUSTER.toml",
        help="take everything that is not measured from this file",
    )
    parser.add_argument(
        "--ranks",
        type=whole_number(2),
        metavar="N",
        help="processes; default: the devices of a node of --base, else one per core",
    )
    parser.add_argument(
        "--device", choices=("cpu", "gpu"), help="default: what --base is made of, else cpu"
    )
    parser.add_argument(
        "--repeats", type=whole_number(1), default=15, metavar="N", help="default: 15"
    )
    parser.add_argument(
        "--model",
        type=some_text,
        metavar="MODULE:FUNCTION",
        help="also measure update, copies and top-k of this model on a CPU",
    )
    parser.add_argument(
        "--optimizer", choices=_OPTIMIZERS, default="adamw", help="of --model; default: adamw"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures, writes the file, and prints what was found."""
    from autoplan.cluster import load_cluster
    from autoplan.cluster.save import save_cluster
    from autoplan.documents import pretty_json, require_writable

    require_writable(arguments.out, "--out")
    base = load_cluster(arguments.base) if arguments.base else None
    # Whatever a model prints while it is built or run must not get into the summary.
    with contextlib.redirect_stdout(sys.stderr):
        links = _links(arguments, base)
        device = _device(arguments)
    cluster = links.on(base or _own_machine(links, _ranks(arguments, None)))
    if device is not None:
        cluster = _with_device(cluster, device)
    lines = [line.line for line in links.lines]
    if device is not None:
        lines.append(device.line)
    save_cluster(cluster, arguments.out, [f"Measured on {links.device}.", *lines])
    if arguments.json:
        document = {
            "file": arguments.out,
            "sha256": cluster.sha256,
            "device": links.device,
            "collectives": links.collectives,
            "lines": [_row(line) for line in links.lines],
        }
        print(pretty_json(document), end="")
        return 0
    for line in lines:
        print(line)
    print(f"written to {arguments.out}")
    return 0


def _links(arguments: argparse.Namespace, base: Cluster | None) -> LinkProfile:
    from autoplan.execute.links import profile_links
    from autoplan.execute.verify import is_cpu

    default: DeviceKind = "gpu" if base and not is_cpu(base.device.name) else "cpu"
    return profile_links(
        _ranks(arguments, base),
        device=arguments.device or default,
        repeats=arguments.repeats,
        progress=_tell,
    )


def _device(arguments: argparse.Namespace) -> DeviceProfile | None:
    from autoplan.execute.device_profile import profile_device

    if arguments.model is None:
        return None
    return profile_device(arguments.model, optimizer=arguments.optimizer, progress=_tell)


def _ranks(arguments: argparse.Namespace, base: Cluster | None) -> int:
    if arguments.ranks is not None:
        return int(arguments.ranks)
    return max(2, base.devices_per_node if base else len(os.sched_getaffinity(0)))


def _own_machine(links: LinkProfile, ranks: int) -> Cluster:
    """One process per core, which share the memory."""
    from autoplan.cluster import Cluster, Device, Link

    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks
    return Cluster(
        name=f"{ranks} processes on one CPU machine",
        devices_per_node=ranks,
        device=Device(name=f"one CPU core of {links.device}", memory_bytes=memory_bytes),
        intra_node=Link(name="not measured yet", alpha_s=0.0, bandwidth_bytes_per_s=1.0),
    )


def _with_device(cluster: Cluster, device: DeviceProfile) -> Cluster:
    import dataclasses

    return dataclasses.replace(cluster, device=device.on(cluster.device))


def _row(line: Any) -> dict[str, Any]:
    return {
        "operation": line.operation,
        "ranks": line.ranks,
        "alpha_s": line.alpha_s,
        "s_per_byte": line.s_per_byte,
        "size_bytes": line.size_bytes,
        "seconds": line.seconds,
        "residuals": line.fit.residuals,
        "median_residual": line.fit.median_residual,
        "largest_residual": line.fit.largest_residual,
    }


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
