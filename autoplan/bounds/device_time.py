"""Lower bounds on the devices of a plan times its step: what a sample costs in device-seconds."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math

from autoplan.bounds.loads import LoadBounds
from autoplan.bounds.plans import PlanBounds

_MOST_CERTIFICATES = 6
"""Numbers of devices whose step is bounded with care, each about as long as a whole search's."""
_ANY, _QUICK, _CERTIFIED = range(3)
"""How a number of devices is bounded: by a step on all devices, by one on as many, with care."""


class DeviceTimeBounds:
    """Bounds on devices times step for one workload, cluster and job, over one domain."""

    def __init__(self, plan_bounds: PlanBounds, load_bounds: LoadBounds) -> None:
        """Takes the bounds on steps, and on what fits in memory, over the same domain."""
        self.plan_bounds, self.load_bounds = plan_bounds, load_bounds
        self._up_to = functools.lru_cache(maxsize=128)(self._restricted)

    @functools.cached_property
    def quick_s(self) -> float:
        """A bound in device-seconds per step; infinite where no plan fits in memory."""
        return self._least(math.inf, _QUICK)

    def certified_s(self, reached_s: float) -> float:
        """A tighter bound, given the device-seconds that some plan of the domain reaches."""
        return self._least(reached_s, _CERTIFIED)

    def promising(self, most: int) -> list[PlanBounds]:
        """Bounds on steps with at most n devices, for the n whose plans may cost the least."""
        any_s = self.plan_bounds.quick_s
        found: list[tuple[float, int]] = []
        for n in self._possible_devices:
            worst_s = sorted(found)[most - 1][0] if len(found) >= most else math.inf
            if n * any_s >= worst_s:
                break
            found.append((n * self._up_to(n).quick_s, n))
        return [self._up_to(n) for _, n in sorted(found)[:most]]

    def _least(self, reached_s: float, care: int) -> float:
        """Bounds the most promising numbers of devices ever more carefully.

        A plan on exactly n devices takes at least n times the least step on at most n.
        """
        any_s = self.plan_bounds.quick_s
        heap = [(n * any_s, n, _ANY) for n in self._possible_devices]
        certificates = 0
        while heap:
            low_s, n, known = heap[0]
            enough = known == care or certificates == _MOST_CERTIFICATES
            if low_s >= reached_s or (known > _ANY and enough):
                return min(low_s, reached_s)
            step_s = self._up_to(n).quick_s
            if known == _QUICK:
                step_s = self._up_to(n).certified_s(reached_s / n)
                certificates += 1
            heapq.heapreplace(heap, (max(low_s, n * step_s), n, known + 1))
        return math.inf

    @functools.cached_property
    def _possible_devices(self) -> list[int]:
        """Numbers of devices over which some partition fits in memory."""
        domain = self.plan_bounds.domain
        every = set(range(min(domain.replicas) * min(domain.stages), self.plan_bounds.devices + 1))
        fitting: set[int] = set()
        for m in domain.microbatches:
            least_N = self.load_bounds.least_by_devices(m)
            if least_N is None:
                return sorted(every)
            fitting |= {n for n in every if math.isfinite(least_N[n])}
            if fitting == every:
                break
        return sorted(fitting)

    def _restricted(self, devices: int) -> PlanBounds:
        """The bounds on steps over plans with at most so many devices."""
        domain = dataclasses.replace(self.plan_bounds.domain, devices=devices)
        return PlanBounds(self.plan_bounds.costs, domain)
