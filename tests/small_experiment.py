"""A small experiment on disk, with every part in a file of its own."""

import json
from pathlib import Path

WORKLOAD = {
    "schema": "autoplan-workload/1",
    "name": "small",
    "layers": [
        {
            "name": f"layer{i}",
            "forward": {"samples": [1, 4], "seconds": [0.001 * w, 0.003 * w]},
            "backward": {"samples": [1, 4], "seconds": [0.002 * w, 0.006 * w]},
            "gradient_elements": 1_000_000 * w,
            "parameter_bytes": 4_000_000.0 * w,
            "stash_bytes_per_sample": 1_000_000.0,
        }
        for i, w in enumerate([1, 5, 2, 2, 7, 1, 1, 3])
    ],
    "cut_bytes_per_sample": [0.0, *[400_000.0] * 7, 0.0],
}

CLUSTER = """
schema = "autoplan-cluster/1"
name = "two by two"
nodes = 2
devices_per_node = 2
device = {name = "device", memory_bytes = 1e9, memory_bandwidth_bytes_per_s = 1e11}
intra_node = "pcie3-x16"
inter_node = "10gbe"
"""

EXPERIMENT = """
schema = "autoplan-experiment/1"
name = "small"
cluster = "cluster.toml"
space = "default"
output = "out"

[workload]
path = "workload.json"

[job]
global_batch = 16
optimizer = "momentum"

[budget]
trials = 30
seconds = 60
exhaustive_plans = 0  # so small a space would leave nothing to propose
"""


def write(folder: Path) -> Path:
    """Writes the files and returns the experiment's path."""
    (folder / "workload.json").write_text(json.dumps(WORKLOAD))
    (folder / "cluster.toml").write_text(CLUSTER)
    path = folder / "experiment.toml"
    path.write_text(EXPERIMENT)
    return path
