"""Schedules, the timeline simulator, partitions and lower bounds of pipelines."""

from autoplan.pipeline.schedule import in_flight, stage_order
from autoplan.pipeline.simulator import Timeline, simulate

__all__ = ["Timeline", "in_flight", "simulate", "stage_order"]
