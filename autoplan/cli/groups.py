"""autoplan groups WORKLOAD --cluster CLUSTER."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autoplan.cli.arguments import density, positive_number, whole_number
from autoplan.cli.workload import add_reading_options, load

if TYPE_CHECKING:
    from autoplan.cluster import Cluster
    from autoplan.gradsync.comparison import Comparison
    from autoplan.job import Job
    from autoplan.workload import Workload

_DEFAULT_NOISE = 0.02
"""Repeated runs differ by 0.2 to 1.1 % (facts/mgs.md section 7); twice that is safe."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "groups",
        help="compare ways to merge gradients under data parallelism",
        description="Shows when the gradients of one backward pass have been exchanged under "
        "every grouping policy, the exact optimum among them, and how sure that is.",
    )
    parser.add_argument("workload", metavar="WORKLOAD", help="a workload file")
    parser.add_argument("--cluster", required=True, metavar="CLUSTER.toml")
    parser.add_argument(
        "--replicas", type=whole_number(2), help="data-parallel replicas; default: all devices"
    )
    parser.add_argument(
        "--batch", type=positive_number, help="samples per replica; default: the largest measured"
    )
    parser.add_argument(
        "--density",
        type=density,
        action="append",
        help="share of the gradient that is sent; 1 is dense, less is top-k; given twice, each "
        "group takes the better one",
    )
    parser.add_argument(
        "--precision", choices=("float32", "float16", "bfloat16"), default="float32"
    )
    parser.add_argument("--cap-bytes", type=positive_number, help="cap of threshold policies")
    parser.add_argument("--max-group-bytes", type=positive_number, help="limit for every policy")
    parser.add_argument("--min-elements", type=whole_number(0), default=0, help="limit per group")
    parser.add_argument("--max-groups", type=whole_number(1), help="limit for every policy")
    parser.add_argument("--max-memory", type=positive_number, help="bytes of buffers, residuals")
    parser.add_argument(
        "--noise",
        type=positive_number,
        default=_DEFAULT_NOISE,
        help="share below which two times count as equal; default 0.02",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_reading_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compares and prints."""
    from autoplan.cluster import load_cluster
    from autoplan.documents import pretty_json
    from autoplan.job import Job

    workload = load(arguments.workload, arguments)
    cluster = load_cluster(arguments.cluster)
    job = Job(global_batch=1, precision=arguments.precision)
    comparison = _compare(workload, cluster, job, arguments)
    if arguments.json:
        print(pretty_json(_document(comparison)), end="")
    else:
        from autoplan.report.console import console
        from autoplan.report.groups import show_comparison

        show_comparison(comparison, arguments.noise, console())
    return 0


def _compare(
    workload: Workload, cluster: Cluster, job: Job, arguments: argparse.Namespace
) -> Comparison:
    """The comparison on the cluster as stated and with its links off by a factor of two."""
    import dataclasses
    import math

    from autoplan.cluster.placement import place
    from autoplan.errors import InputError
    from autoplan.gradsync import GroupLimits
    from autoplan.gradsync.comparison import compare
    from autoplan.stage_costs import StageCosts

    replicas = arguments.replicas or cluster.num_devices
    if not 2 <= replicas <= cluster.num_devices:
        allowed = f"2 to {cluster.num_devices}, the devices of {arguments.cluster}"
        raise InputError("replicas", replicas, allowed)
    samples = arguments.batch or max(layer.backward.samples[-1] for layer in workload.layers)
    most, memory = arguments.max_group_bytes, arguments.max_memory
    limits = GroupLimits(
        max_elements=math.inf if most is None else most / job.gradient_bytes_per_element,
        min_elements=arguments.min_elements,
        max_groups=arguments.max_groups,
        max_memory_bytes=math.inf if memory is None else memory,
    )
    densities = tuple(dict.fromkeys(arguments.density or [1.0]))
    problems = {}
    for what, (alpha, beta) in _LINKS.items():
        links = {
            name: dataclasses.replace(
                link,
                alpha_s=link.alpha_s * alpha,
                bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / beta,
            )
            for name in ("intra_node", "inter_node")
            if (link := getattr(cluster, name)) is not None
        }
        changed = dataclasses.replace(cluster, **links)
        shape = place(changed, (replicas,), "replica").groups[0]
        costs = StageCosts(workload, changed, job)
        whole = (0, len(workload.layers))
        problems[what] = costs.grouping_problem(whole, samples, shape, densities, limits)
    nominal = problems.pop("as stated")
    return compare(nominal, problems, cap_bytes=arguments.cap_bytes)


_LINKS = {
    "as stated": (1.0, 1.0),
    "latency x 2": (2.0, 1.0),
    "latency / 2": (0.5, 1.0),
    "seconds per byte x 2": (1.0, 2.0),
    "seconds per byte / 2": (1.0, 0.5),
}


def _document(comparison: Comparison) -> dict[str, object]:
    """The comparison as JSON-ready values."""
    return {
        "policies": {
            name: {
                "finish_s": grouping.finish_s,
                "groups": grouping.groups,
                "densities": grouping.densities,
                "num_groups": len(grouping.groups),
                "exposed_communication_s": grouping.timing.exposed_s,
                "sparsification_s": grouping.timing.sparsify_s,
                "gap": comparison.gap(name),
            }
            for name, grouping in comparison.groupings.items()
        },
        "lower_bound_s": comparison.lower_bound_s,
        "backward_s": comparison.compute_s,
        "sensitivity": comparison.sensitivities,
    }
