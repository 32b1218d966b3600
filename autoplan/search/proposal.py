"""From an Optuna trial to a layout: small shifts away from balanced partitions.

Cuts as sorted integers waste samples on orderings that mean the same and on partitions far from
balance; shifts of a few layers keep every proposal valid and near the good ones
(experiments/bench/bench_encoding.py measures the difference).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from autoplan.cluster import Cluster
from autoplan.cluster.placement import place
from autoplan.job import Job
from autoplan.pipeline.partition import balanced_bounds, uniform_bounds
from autoplan.predict import Predictor
from autoplan.search.climb import DEEP, DEEPEST
from autoplan.search.coarse import CoarseModel, thinned
from autoplan.search.layout import Layout
from autoplan.search.space import CAPPED_POLICIES, SearchSpace
from autoplan.workload import Workload

UNIFORM, COMPUTE, COMMUNICATION, BOUND = "uniform", "compute", "communication", "bound"
SHIFTED_REPLICAS = 4
"""Stages whose replicas a proposal shifts; more would only slow the sampler down."""
_SHIFTED_CUTS = 32
"""Cuts that a proposal shifts; those of deeper pipelines are spread evenly over them."""
_MOST_STAGES = 128
"""Numbers of stages that proposals choose from; of more, some are left out."""


class Suggester(Protocol):
    """What a proposal needs of an Optuna trial."""

    def suggest_int(self, name: str, low: int, high: int) -> int:
        """A whole number between low and high, both included."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of the choices."""


class Proposer:
    """Decodes trials for one experiment."""

    def __init__(self, workload: Workload, cluster: Cluster, job: Job, space: SearchSpace) -> None:
        """Works out which values the space leaves; raises InputError where none is left."""
        self.space = space
        self.num_layers, self.num_devices = len(workload.layers), cluster.num_devices
        self.domain = space.domain(self.num_layers, self.num_devices, job.global_batch)
        self.predictor = Predictor(workload, cluster, job, self.domain)
        self.coarse = CoarseModel(self.predictor)
        self.stages = thinned(
            self.domain.stages, self.num_devices, self.coarse.least_stages, _MOST_STAGES
        )
        """The numbers of stages that proposals choose from."""
        self.bases = {
            "uniform": (UNIFORM,),
            "balanced": (COMPUTE, COMMUNICATION),
            "open": (COMPUTE, COMMUNICATION, UNIFORM) + (() if space.equal_replicas else (BOUND,)),
        }[space.cuts]

    @property
    def notes(self) -> tuple[str, ...]:
        """What proposals leave out of the space because it is large."""
        notes = []
        if len(self.stages) < len(self.domain.stages):
            notes.append(
                f"proposals choose from {len(self.stages)} of {len(self.domain.stages)} numbers of "
                f"stages"
            )
        if max(self.stages) - 1 > _SHIFTED_CUTS:
            notes.append(
                f"proposals shift at most {_SHIFTED_CUTS} cuts of a partition; in pipelines of "
                f"more than {DEEP} stages only cuts of the busiest ones are moved, beyond "
                f"{DEEPEST} none"
            )
        return tuple(notes)

    def layout(self, trial: Suggester) -> Layout:
        """The layout that a trial's parameters stand for; every combination is a valid one."""
        domain, space = self.domain, self.space
        base = self._choose(trial, "base", self.bases)
        splits = domain.microbatches
        m = splits[trial.suggest_int("microbatches_index", 0, len(splits) - 1)]
        bound = self.predictor.bounds.quick(m) if base == BOUND else None
        if bound is not None and len(bound.replicas) in domain.stages:
            bounds, replicas = bound.bounds, bound.replicas
        else:
            base = COMPUTE if base == BOUND else base
            index = trial.suggest_int("stages_index", 0, len(self.stages) - 1)
            replicas = self._replicas(trial, m, self.stages[index])
            bounds = self.partition(base, m, replicas)
        if space.cuts == "open" and space.cut_shift > 0:
            bounds = self._shift(trial, bounds)
        policy = self._choose(trial, "grouping", space.grouping)
        caps = space.cap_bytes
        cap = self._choose(trial, "cap_bytes", caps) if policy in CAPPED_POLICIES else caps[0]
        return Layout(
            bounds=bounds,
            replicas=replicas,
            microbatches=m,
            schedule=self._choose(trial, "schedule", space.schedules),
            rank_order=self._choose(trial, "rank_order", space.rank_orders),
            recompute=self._choose(trial, "recompute", space.recompute),
            policy=policy,
            cap_bytes=cap,
        )

    def partition(self, base: str, microbatches: int, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """The bounds of a uniform or balanced partition over stages with these replicas."""
        if base == UNIFORM:
            return uniform_bounds(self.num_layers, len(replicas))
        samples = self.predictor.job.global_batch // microbatches
        usual = max(set(replicas), key=replicas.count)
        seconds = self.predictor.costs.layer_seconds(samples / usual)
        load = (seconds.forward_s_L + seconds.backward_s_L) * usual
        cut_s = self._cut_s(samples, replicas) if base == COMMUNICATION else None
        return balanced_bounds(load, replicas, cut_s)[0]

    def equal_replicas(self, microbatches: int, num_stages: int, steps_down: int = 0) -> int:
        """The most replicas that all of so many stages can have, or some steps below; 0 if none."""
        choices = self.domain.replicas_for(self.predictor.job.global_batch // microbatches)
        fitting = [r for r in choices if r * num_stages <= self.num_devices]
        return fitting[max(0, len(fitting) - 1 - steps_down)] if fitting else 0

    def _replicas(self, trial: Suggester, m: int, num_stages: int) -> tuple[int, ...]:
        """Replicas per stage: as many as fit, some steps down, each shifted by a step."""
        steps_down = trial.suggest_int("replica_steps_down", 0, 2)
        while (usual := self.equal_replicas(m, num_stages, steps_down)) == 0:
            num_stages = self.fewer_stages(m, num_stages)
        replicas = [usual] * num_stages
        if self.space.equal_replicas or len(self.domain.replicas) == 1:
            return tuple(replicas)
        choices = self.domain.replicas_for(self.predictor.job.global_batch // m)
        home = choices.index(usual)
        for s in range(min(num_stages, SHIFTED_REPLICAS)):
            shifted = home + trial.suggest_int(f"replica_shift_{s}", -1, 1)
            replicas[s] = choices[min(max(shifted, 0), len(choices) - 1)]
        while sum(replicas) > self.num_devices:
            widest = max(range(num_stages), key=replicas.__getitem__)
            replicas[widest] = choices[choices.index(replicas[widest]) - 1]
        return tuple(replicas)

    def fewer_stages(self, m: int, num_stages: int) -> int:
        """The largest allowed number of stages for which a replica choice exists."""
        least = self.domain.replicas_for(self.predictor.job.global_batch // m)[0]
        return max(
            s for s in self.domain.stages if s * least <= self.num_devices and s < num_stages
        )

    def _shift(self, trial: Suggester, bounds: tuple[int, ...]) -> tuple[int, ...]:
        """Moves each cut by some layers, keeping at least one layer in every stage."""
        reach, num_stages = self.space.cut_shift, len(bounds) - 1
        moved = list(bounds)
        shifts = {
            k: trial.suggest_int(f"cut_shift_{n}", -reach, reach)
            for n, k in self.shifted_cuts(num_stages).items()
        }
        for k in range(1, num_stages):
            wanted = bounds[k] + shifts.get(k, 0)
            highest = self.num_layers - (num_stages - k)
            moved[k] = min(max(wanted, moved[k - 1] + 1), highest)
        return tuple(moved)

    @staticmethod
    def shifted_cuts(num_stages: int) -> dict[int, int]:
        """The cuts that a proposal shifts, by the number of the parameter that does."""
        count = min(num_stages - 1, _SHIFTED_CUTS)
        return {n: n * num_stages // (count + 1) for n in range(1, count + 1)}

    def _cut_s(self, samples: int, replicas: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Seconds of one microbatch over each cut, there and back, on the slowest link."""
        transfers = place(self.predictor.cluster, replicas, "replica").transfers
        slowest = max((t.s_per_byte for t in transfers), default=0.0)
        return 2 * self.predictor.costs.cut_bytes_C * samples * slowest

    @staticmethod
    def _choose(trial: Suggester, name: str, choices: Sequence[Any]) -> Any:
        """Asks the sampler only where there is a choice."""
        return choices[0] if len(choices) == 1 else trial.suggest_categorical(name, choices)
