"""What is trained: layers with their measured costs, and the bytes between them."""

from autoplan.workload.cost_curve import CostCurve
from autoplan.workload.load import ReadOptions, load_workload
from autoplan.workload.model import BytesCurve, Layer, Provenance, Workload

__all__ = [
    "BytesCurve",
    "CostCurve",
    "Layer",
    "Provenance",
    "ReadOptions",
    "Workload",
    "load_workload",
]
