"""The fixed order of forwards and backwards on each stage, and the stashes it holds."""

from __future__ import annotations

from autoplan.errors import InputError
from autoplan.plan import SCHEDULES


def stage_order(schedule: str, stage: int, num_stages: int, microbatches: int) -> list[int]:
    """What a stage runs, in order: m is the forward of microbatch m, ~m its backward.

    GPipe runs all forwards, then all backwards. 1F1B warms up with min(S - s, M) forwards, then
    alternates one backward and one forward, then drains (DESIGN 3.1).

    Raises:
        InputError: the schedule is not known.
    """
    warm = in_flight(schedule, stage, num_stages, microbatches)
    order = list(range(warm))
    for i in range(microbatches - warm):
        order += (~i, warm + i)
    order += (~m for m in range(microbatches - warm, microbatches))
    return order


def in_flight(schedule: str, stage: int, num_stages: int, microbatches: int) -> int:
    """Microbatches whose stash a stage holds at most: M for GPipe, min(S - s, M) for 1F1B.

    Raises:
        InputError: the schedule is not known.
    """
    if schedule == "gpipe":
        return microbatches
    if schedule == "1f1b":
        return min(num_stages - stage, microbatches)
    raise InputError("schedule", schedule, " or ".join(SCHEDULES))
