"""Which transfers and collectives of a plan lie outside what was measured of the links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autoplan.cluster import Cluster
from autoplan.cluster.model import Collective, Link
from autoplan.cluster.placement import Placement
from autoplan.gradsync.costs import INDEX_BYTES, kept
from autoplan.plan import Plan, Stage


def link_notes(
    cluster: Cluster,
    placement: Placement,
    plan: Plan,
    crossing_bytes: Sequence[float],
    stage_group_elements: Sequence[Sequence[float]],
    value_bytes: int,
) -> tuple[str, ...]:
    """One note for each link and each table that is used beyond its measured sizes.

    Args:
        cluster: links and tables, some with the range that was measured.
        placement: where the plan's stages are.
        plan: the plan.
        crossing_bytes: of one microbatch across each cut between stages.
        stage_group_elements: gradient elements of each group of each stage.
        value_bytes: bytes of one gradient element.
    """
    beyond: dict[str, list[float]] = {}
    for s, size_bytes in enumerate(crossing_bytes):
        share = size_bytes / max(stage.replicas for stage in plan.stages[s : s + 2])
        link = _link(cluster, placement, s)
        if share > 0 and link.extrapolates(share):
            beyond.setdefault(f"transfers over {link.name}", []).append(share)
    for s, (stage, elements) in enumerate(zip(plan.stages, stage_group_elements, strict=True)):
        shape = placement.groups[s]
        for collective, size_bytes in _collectives(stage, elements, value_bytes):
            for table in cluster.measured:
                key = (table.collective, table.devices, table.nodes)
                outside = not table.size_bytes[0] <= size_bytes <= table.size_bytes[-1]
                if key == (collective, shape.devices, shape.nodes) and outside:
                    what = f"{collective} among {shape.devices} devices"
                    beyond.setdefault(what, []).append(size_bytes)
    return tuple(
        f"extrapolated: {what} of {min(sizes):.3g} to {max(sizes):.3g} bytes, which were not "
        f"measured"
        for what, sizes in beyond.items()
    )


def _link(cluster: Cluster, placement: Placement, s: int) -> Link:
    """The slower kind of link between a stage and the next."""
    nodes = {d // cluster.devices_per_node for stage in placement.devices[s : s + 2] for d in stage}
    inside = len(nodes) == 1 or cluster.inter_node is None
    return cluster.intra_node if inside else cluster.inter_node or cluster.intra_node


def _collectives(
    stage: Stage, elements: Sequence[float], value_bytes: int
) -> Iterator[tuple[Collective, float]]:
    """(collective, bytes of its buffer) of each group that is exchanged."""
    for group, count in zip(stage.groups, elements, strict=True):
        if stage.replicas == 1 or count == 0:
            continue
        if group.density == 1:
            yield "all_reduce", count * value_bytes
            continue
        gathered = stage.replicas * float(kept(np.array(count), group.density))
        yield "all_gather", gathered * value_bytes
        if value_bytes != INDEX_BYTES:
            yield "all_gather", gathered * INDEX_BYTES
