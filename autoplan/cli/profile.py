"""`autoplan profile`: measures a Paddle model into a workload file."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from autoplan.documents import pretty_json, require_writable, write_atomic
from autoplan.errors import InputError
from autoplan.workload import Workload


def add_parser(subparsers: Any) -> None:
    """Adds the verb and its arguments."""
    parser = subparsers.add_parser(
        "profile",
        help="measure the layers of a Paddle model",
        description="Measures forward and backward seconds, gradients and memory of every layer "
        "of a Paddle model at three or more microbatch sizes, and writes a workload file.",
    )
    parser.add_argument(
        "source",
        metavar="MODULE:FUNCTION",
        help="a function that returns (layers, (inputs, labels), loss); MODULE is a dotted name "
        "or the path of a .py file",
    )
    parser.add_argument("--out", required=True, metavar="W.json", help="the file to write")
    parser.add_argument(
        "--sizes",
        metavar="N,N,N",
        help="microbatch sizes; default: a quarter, half and all of the batch",
    )
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="default: 7")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="compute threads on a CPU; default: Paddle's"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measures, writes the file, and prints a summary.

    Raises:
        InputError: an argument, the model, or the place to write to is not usable.
    """
    sizes = _sizes(args.sizes)
    require_writable(args.out, "--out")
    # Whatever the model prints while it is built or run must not get into the summary.
    with contextlib.redirect_stdout(sys.stderr):
        workload = _profile(args, sizes)
    write_atomic(args.out, pretty_json(workload))
    summary = _summary(workload, args.out)
    if args.json:
        print(pretty_json(summary), end="")
        return 0
    print(
        f"{summary['layers']} layers: forward {1e3 * summary['forward_s_per_sample']:.3f} ms, "
        f"backward {1e3 * summary['backward_s_per_sample']:.3f} ms per sample "
        f"at {summary['samples']:g} samples; written to {args.out}"
    )
    return 0


def _profile(args: argparse.Namespace, sizes: tuple[int, ...] | None) -> Workload:
    from autoplan.execute.paddle_device import set_threads
    from autoplan.execute.profile import profile

    if args.threads is not None:
        set_threads(args.threads)
    return profile(
        args.source,
        microbatch_sizes=sizes,
        repeats=args.repeats,
        seed=args.seed,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )


def _sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError("--sizes", text, "whole numbers with commas, such as 1,2,4") from None


def _summary(workload: Workload, out: str) -> dict[str, Any]:
    samples = workload.layers[0].forward.samples[-1]
    return {
        "file": out,
        "name": workload.name,
        "sha256": workload.sha256,
        "layers": len(workload.layers),
        "samples": samples,
        "forward_s_per_sample": sum(x.forward.seconds[-1] for x in workload.layers) / samples,
        "backward_s_per_sample": sum(x.backward.seconds[-1] for x in workload.layers) / samples,
        "notes": list(workload.provenance.notes),
    }
