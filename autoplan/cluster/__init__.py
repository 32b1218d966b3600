"""What the job runs on: devices, links, and how long transfers and collectives take."""

from autoplan.cluster.load import load_cluster, resolve_cluster
from autoplan.cluster.model import (
    Cluster,
    Device,
    FusedCopy,
    Link,
    MeasuredCollective,
    MessageHandling,
    TopK,
)

__all__ = [
    "Cluster",
    "Device",
    "FusedCopy",
    "Link",
    "MeasuredCollective",
    "MessageHandling",
    "TopK",
    "load_cluster",
    "resolve_cluster",
]
