"""autoplan workload from-program MODULE:FUNCTION --out W.json."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoplan.cli.arguments import some_text, whole_number

if TYPE_CHECKING:
    from autoplan.costmodel import Costs, Measurements, OpGraph
    from autoplan.costmodel.costs import Mode
    from autoplan.execute.program_source import ProgramSource


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the action."""
    parser = actions.add_parser(
        "from-program",
        help="turn a Paddle training program into a workload",
        description="Cuts a single-device static training program into layers where one tensor "
        "crosses, with seconds from measured operators, from a device's peaks, or both.",
    )
    parser.add_argument(
        "source",
        type=some_text,
        metavar="MODULE:FUNCTION",
        help="a function that returns a program, (program, startup) or (program, startup, feed)",
    )
    parser.add_argument("--out", required=True, metavar="W.json", help="the file to write")
    parser.add_argument(
        "--batch-size",
        type=whole_number(1),
        required=True,
        help="samples in one call; open dimensions stand for it",
    )
    parser.add_argument("--device", type=some_text, help="a device of the catalog, for analysis")
    parser.add_argument("--cluster", metavar="C.toml", help="a cluster whose device to take")
    parser.add_argument("--costs", metavar="OPS.json", help="measured operators")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure operators that are not known yet on this device, and add them to --costs",
    )
    parser.add_argument(
        "--loop-trips", type=whole_number(0), help="iterations of loops of unknown length"
    )
    parser.add_argument(
        "--crossing",
        type=whole_number(1),
        default=1,
        help="tensors that may cross a cut; default 1",
    )
    parser.add_argument("--strict", action="store_true", help="refuse operators without a cost")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Builds the workload and writes it.

    Raises:
        InputError: the program, an option, or the place to write to is not usable.
    """
    from autoplan.documents import pretty_json, require_writable, write_atomic

    require_writable(arguments.out, "--out")
    # Whatever the user's module prints must not get into the summary.
    with contextlib.redirect_stdout(sys.stderr):
        workload, sources = _workload(arguments)
    write_atomic(arguments.out, pretty_json(workload))
    summary = {
        "file": arguments.out,
        "name": workload.name,
        "sha256": workload.sha256,
        "layers": len(workload.layers),
        "forward_s": sum(layer.forward.seconds[-1] for layer in workload.layers),
        "backward_s": sum(layer.backward.seconds[-1] for layer in workload.layers),
        "costs": sources,
        "notes": list(workload.provenance.notes),
    }
    if arguments.json:
        print(pretty_json(summary), end="")
        return 0
    print(
        f"{summary['layers']} layers: forward {1e3 * summary['forward_s']:.3f} ms, backward "
        f"{1e3 * summary['backward_s']:.3f} ms at {arguments.batch_size} samples ({sources}); "
        f"written to {arguments.out}"
    )
    for note in workload.provenance.notes:
        if note.startswith("warning:"):
            print(note, file=sys.stderr)
    return 0


def _workload(arguments: argparse.Namespace) -> tuple[Any, str]:
    """The workload, and in words where its seconds come from."""
    from autoplan.costmodel.costs import cost_ops, unknown_types
    from autoplan.costmodel.layers import workload_of_program
    from autoplan.costmodel.paddle_program import read_program
    from autoplan.costmodel.shapes import has_open_batch, resolved
    from autoplan.execute.program_source import load_program
    from autoplan.workload import Provenance

    found = load_program(arguments.source)
    graph = read_program(found.program, name=found.name, default_trips=arguments.loop_trips)
    largest = arguments.batch_size
    several = {max(1, largest // 4), max(1, largest // 2)} if has_open_batch(graph) else set()
    sizes = sorted({*several, largest})
    costs, measurements, words = _costs(arguments, found, graph, sizes)

    def unknown(samples: int) -> tuple[str, ...]:
        sized = resolved(graph, samples)
        return unknown_types(sized, cost_ops(sized, costs), costs)

    missing = unknown(largest)
    notes = [f"seconds: {words}; layers are named after the operators that take longest"]
    if missing:
        notes.append(f"warning: no cost of {', '.join(missing)}: counted as 0")
    workload = workload_of_program(
        graph,
        costs,
        [n for n in sizes if n == largest or unknown(n) == missing],
        name=found.name,
        provenance=Provenance(
            source=found.source,
            source_sha256=found.source_sha256,
            device=words if measurements is None else measurements.device,
            framework=None if measurements is None else measurements.framework,
            threads=None if measurements is None else measurements.threads,
            notes=tuple(notes),
        ),
        crossing=arguments.crossing,
        strict=arguments.strict,
    )
    return workload, words


def _costs(
    arguments: argparse.Namespace, found: ProgramSource, graph: OpGraph, sizes: Sequence[int]
) -> tuple[Costs, Measurements | None, str]:
    """Costs by the options, the measurements among them, and both in words."""
    from autoplan.costmodel.costs import Roofline, costs_for
    from autoplan.errors import InputError, words

    device = _device(arguments)
    roofline = None if device is None else Roofline.of_device(device)
    measurements = _measurements(arguments, found, graph, sizes)
    if measurements is not None:
        mode: Mode = "benchmarking" if roofline is None else "mixed"
        said = f"operators measured on {measurements.device}"
        if device is not None:
            said += f", others by the peaks of {device.name}"
        return (
            costs_for(mode, measurements, None if device is None else roofline),
            measurements,
            said,
        )
    if device is None:
        allowed = "--measure, --costs, --device or --cluster"
        raise InputError("--costs", words("nothing that says what operators cost"), allowed)
    return costs_for("analysis", None, roofline), None, f"by the peaks of {device.name}"


def _device(arguments: argparse.Namespace) -> Any:
    """The device to analyse for, or None."""
    from autoplan.cluster import Device, load_cluster
    from autoplan.cluster.load import catalog
    from autoplan.documents import build
    from autoplan.errors import InputError

    if arguments.cluster is not None:
        return load_cluster(arguments.cluster).device
    if arguments.device is None:
        return None
    known = catalog("devices")
    if arguments.device not in known:
        raise InputError("--device", arguments.device, ", ".join(sorted(known)))
    return build(Device, known[arguments.device], "the catalog")


def _measurements(
    arguments: argparse.Namespace, found: ProgramSource, graph: OpGraph, sizes: Sequence[int]
) -> Measurements | None:
    """What --costs holds, grown by what --measure asks for at each batch size."""
    from autoplan.costmodel.measurements import grow, load_measurements
    from autoplan.costmodel.shapes import resolved
    from autoplan.errors import InputError, words
    from autoplan.execute.op_timing import measure_program
    from autoplan.execute.program_source import random_feed

    path = arguments.costs
    known = None
    if path is not None and (Path(path).exists() or not arguments.measure):
        known = load_measurements(path)
    if not arguments.measure:
        return known
    if found.startup is None:
        missing = words("no startup program")
        raise InputError("--measure", missing, "a function that returns (program, startup)")
    for samples in sizes:
        feed = found.feed or random_feed(resolved(graph, samples))
        known = measure_program(
            found.program,
            found.startup,
            {name: content[:samples] for name, content in feed.items()},
            known=known,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
        if path is not None:
            known = grow(path, known)
    return known
