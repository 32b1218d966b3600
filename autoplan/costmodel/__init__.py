"""Operator graphs of Paddle programs: seconds of forward, backward and update, and memory."""

from autoplan.costmodel.costs import Costs, Given, Measured, Roofline
from autoplan.costmodel.estimate import CostEstimate, CostSources, RankEstimate, estimate
from autoplan.costmodel.graph import Op, OpGraph, TensorInfo, load_graph
from autoplan.costmodel.measurements import Measurements, load_measurements
from autoplan.costmodel.memory import MemoryEstimate, estimate_memory
from autoplan.costmodel.paddle_api import estimate_cost
from autoplan.costmodel.paddle_program import read_program

__all__ = [
    "CostEstimate",
    "CostSources",
    "Costs",
    "Given",
    "Measured",
    "Measurements",
    "MemoryEstimate",
    "Op",
    "OpGraph",
    "RankEstimate",
    "Roofline",
    "TensorInfo",
    "estimate",
    "estimate_cost",
    "estimate_memory",
    "load_graph",
    "load_measurements",
    "read_program",
]
