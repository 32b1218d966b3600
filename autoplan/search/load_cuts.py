"""The best cuts under the maximum stage load, which are found at once for a row of stages."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from autoplan.bounds.stage_loads import StageLoads, StageTerms
from autoplan.cluster.collectives import GroupShape
from autoplan.cluster.placement import TransferCost, place
from autoplan.gradsync.costs import ElementCost
from autoplan.pipeline.minmax_stages import min_max_cuts
from autoplan.pipeline.schedule import in_flight
from autoplan.predict import Predictor
from autoplan.search.layout import Layout
from autoplan.search.space import Recompute

Floats = NDArray[np.float64]

_MOST_KEPT = 256
"""Loads that are kept: stages alike in different pipelines have the same."""
_MOST_LAYERS = 600
"""Layers up to which the loads of every stage are laid out; beyond, cuts are moved one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a stage stands in a pipeline, and on which links."""

    microbatches: int
    replicas: int
    receive: TransferCost
    send: TransferCost
    group: GroupShape
    held: int
    recompute: Recompute


class LoadCuts:
    """Cuts whose busiest stage is least busy, all gradients of a stage in one group."""

    def __init__(self, predictor: Predictor) -> None:
        """Lays out what all stages share."""
        self._costs, self._cluster = predictor.costs, predictor.cluster
        self._loads = StageLoads(predictor.costs)
        self._load = functools.lru_cache(maxsize=_MOST_KEPT)(self._load_CC)

    @property
    def supported(self) -> bool:
        """Whether the model is small enough."""
        return self._costs.elements_L.size <= _MOST_LAYERS

    def moved(self, layout: Layout) -> Layout:
        """The layout with the best cuts that fit in memory; as it is where there are none."""
        bounds, load_s = min_max_cuts(self._load(place) for place in self._places(layout))
        if np.isinf(load_s):
            return layout
        return dataclasses.replace(layout, bounds=bounds)

    def _places(self, layout: Layout) -> Iterator[_Place]:
        """What is known of each stage before it is cut."""
        placement = place(self._cluster, layout.replicas, layout.rank_order)
        none = TransferCost(alpha_s=0.0, s_per_byte=0.0)
        transfers = (none, *placement.transfers, none)
        count = len(layout.replicas)
        for s, replicas in enumerate(layout.replicas):
            yield _Place(
                microbatches=layout.microbatches,
                replicas=replicas,
                receive=transfers[s],
                send=transfers[s + 1],
                group=placement.groups[s],
                held=in_flight(layout.schedule, s, count, layout.microbatches),
                recompute=layout.recompute,
            )

    def _load_CC(self, place: _Place) -> Floats:
        """The load of the stage, by its cuts."""
        elements_CC = self._loads.elements_CC
        link_s_CC = np.zeros_like(elements_CC)
        if place.replicas > 1:
            cost = self._costs.group_cost(place.group, 1.0).communicate
            every = cast(ElementCost, cost).many(elements_CC)
            link_s_CC = np.where(elements_CC > 0, every, 0.0)
        terms = StageTerms(
            microbatches=place.microbatches,
            replicas=place.replicas,
            receive_s_C=self._crossing_s(place.receive, place.microbatches),
            send_s_C=self._crossing_s(place.send, place.microbatches),
            link_s_CC=link_s_CC,
            held_C=np.full(len(elements_CC), place.held),
            fused=True,
            may_keep=place.recompute != "always",
            may_recompute=place.recompute != "never",
        )
        return self._loads.under(terms, self._costs.available_bytes)

    def _crossing_s(self, transfer: TransferCost, microbatches: int) -> Floats:
        """Seconds of one microbatch over each cut."""
        samples = self._costs.job.global_batch // microbatches
        size_C = self._costs.cut_bytes_C * samples
        return np.where(size_C > 0, transfer.alpha_s + transfer.s_per_byte * size_C, 0.0)
