"""A predicted step as a Chrome trace, which Perfetto opens."""

from __future__ import annotations

from typing import Any

from autoplan.pipeline.simulator import Timeline
from autoplan.plan import Plan
from autoplan.stage_costs import Exchanges

_MICROSECONDS = 1e6
_COMPUTE, _EXCHANGE = 0, 1


def chrome_trace(
    plan: Plan, timeline: Timeline, exchanges: tuple[Exchanges, ...]
) -> dict[str, Any]:
    """One process per stage with a compute and a gradient-exchange track; times in microseconds."""
    events: list[dict[str, Any]] = []
    last_backward_s_S = timeline.last_backward_start_s_S
    for s, stage in enumerate(plan.stages):
        first, end = stage.layers
        events.append(_named("process_name", s, None, f"stage {s}: layers {first}-{end - 1}"))
        events.append(_named("thread_name", s, _COMPUTE, "compute"))
        events.append(_named("thread_name", s, _EXCHANGE, "gradient exchange"))
        for m in range(plan.microbatches):
            for letter, starts, durations in (
                ("F", timeline.forward_start_s_SM, timeline.forward_s_S),
                ("B", timeline.backward_start_s_SM, timeline.backward_s_S),
            ):
                start_s = float(starts[s, m])
                events.append(_span(s, _COMPUTE, f"{letter}{m}", start_s, float(durations[s])))
        for start_s, end_s, index in exchanges[s].spans:
            low, high = stage.groups[index].layers
            name = f"layers {low}-{high - 1}"
            begin_s = float(last_backward_s_S[s]) + start_s
            events.append(_span(s, _EXCHANGE, name, begin_s, end_s - start_s))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _span(stage: int, track: int, name: str, start_s: float, duration_s: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": stage,
        "tid": track,
        "name": name,
        "ts": start_s * _MICROSECONDS,
        "dur": duration_s * _MICROSECONDS,
    }


def _named(kind: str, stage: int, track: int | None, name: str) -> dict[str, Any]:
    where = {} if track is None else {"tid": track}
    return {"ph": "M", "pid": stage, "name": kind, "args": {"name": name}, **where}
