"""Workload, cluster, job and plan in; step time, its breakdown, memory and a bound out.

The one place where the engines (pipeline, gradsync) meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.bounds.plans import PlanBounds, PlanDomain
from autoplan.calibration import NOTE
from autoplan.cluster import Cluster
from autoplan.cluster.placement import Placement, place
from autoplan.extrapolation import link_notes
from autoplan.job import Job
from autoplan.pipeline.kernels import last_backward_start_s
from autoplan.pipeline.schedule import in_flight
from autoplan.pipeline.simulator import Timeline, simulate
from autoplan.plan import Plan
from autoplan.prediction import Memory, Prediction, StagePrediction
from autoplan.stage_costs import Exchanges, StageCosts
from autoplan.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a search needs to know of a plan."""

    step_s: float
    max_load_s: float
    """Seconds per step that the busiest stage works (`StagePrediction.load_s`)."""
    num_devices: int
    """Devices that the plan uses."""
    peak_bytes: float
    """Memory that the fullest stage needs on each of its devices."""
    missing_bytes: float
    keeps_limits: bool = True
    """Whether its gradient groups keep to the limits that were asked for."""

    @property
    def feasible(self) -> bool:
        """Whether the plan fits in memory, keeps its limits, and its step time is finite."""
        return self.keeps_limits and self.missing_bytes == 0 and math.isfinite(self.step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What decides a plan's step, per stage."""

    samples: tuple[float, ...]
    placement: Placement
    compute_s: tuple[tuple[float, float], ...]
    send_s: tuple[float, ...]
    exchanges: tuple[Exchanges, ...]
    update_s: tuple[float, ...]
    stage_end_s: tuple[float, ...]


class Predictor:
    """Predicts plans for one workload, cluster and job, sharing what they have in common."""

    def __init__(
        self, workload: Workload, cluster: Cluster, job: Job, domain: PlanDomain | None = None
    ) -> None:
        """Keeps the inputs; `domain` is what the lower bound covers, by default everything."""
        self.workload, self.cluster, self.job = workload, cluster, job
        self.costs = StageCosts(workload, cluster, job)
        self.domain = domain or PlanDomain.everything(len(workload.layers), cluster, job)
        self.bounds = PlanBounds(self.costs, self.domain)

    def score(self, plan: Plan) -> Score:
        """Step time and missing memory of a valid plan; raises InputError if it does not fit."""
        run = self._run(plan)
        memories = self._memories(plan, run)
        return Score(
            step_s=max(run.stage_end_s),
            max_load_s=max(_load_s(plan, run, s) for s in range(len(plan.stages))),
            num_devices=plan.num_devices,
            peak_bytes=max(memory.total_bytes for memory in memories),
            missing_bytes=max(memory.missing_bytes for memory in memories),
        )

    def timeline(self, plan: Plan) -> tuple[Timeline, tuple[Exchanges, ...]]:
        """Every forward and backward of a plan, and each stage's gradient exchanges.

        Raises:
            InputError: like `predict`.
        """
        run = self._run(plan)
        timeline = simulate(
            [forward for forward, _ in run.compute_s],
            [backward for _, backward in run.compute_s],
            plan.microbatches,
            plan.schedule,
            run.send_s,
            run.send_s,
            run.update_s,
            exclusive_links=True,
            last_backward_s=_last_backward_s(run.compute_s, run.exchanges),
        )
        return timeline, run.exchanges

    def predict(self, plan: Plan, lower_bound_s: float | None = None) -> Prediction:
        """The plan's step, broken down.

        Args:
            plan: what to predict.
            lower_bound_s: a bound on the steps of all plans, where one is known; a tight one takes
                seconds to compute.

        Raises:
            InputError: the plan is for another model, needs more devices than there are, the batch
                cannot be split as it asks, or it holds sparse groups and the device states no cost
                of top-k.
        """
        run = self._run(plan)
        step_s = max(run.stage_end_s)
        memories = self._memories(plan, run)
        stages = tuple(
            self._stage(plan, run, s, step_s, memory) for s, memory in enumerate(memories)
        )
        return Prediction(
            step_s=step_s,
            lower_bound_s=(
                self.bounds.certified_s(step_s) if lower_bound_s is None else lower_bound_s
            ),
            samples_per_s=self.job.global_batch / step_s if step_s > 0 else math.inf,
            stages=stages,
            notes=self._notes(plan, run),
        )

    def _run(self, plan: Plan) -> _Run:
        """Puts a plan's stages on the devices and runs its schedule."""
        cluster, costs = self.cluster, self.costs
        plan.require_fits(len(self.workload.layers), cluster.num_devices, self.job.global_batch)
        per_microbatch = self.job.global_batch // plan.microbatches
        samples = tuple(per_microbatch / stage.replicas for stage in plan.stages)
        placement = place(cluster, tuple(s.replicas for s in plan.stages), plan.rank_order)
        handling_s = self._handling_s(plan, samples)
        compute_s = tuple(
            (forward + sum(messages), backward + sum(messages))
            for (forward, backward), messages in zip(
                (
                    costs.compute_s(stage.layers, n, stage.recompute)
                    for stage, n in zip(plan.stages, samples, strict=True)
                ),
                handling_s,
                strict=True,
            )
        )
        send_s = tuple(
            transfer.at(float(costs.cut_bytes_C[cut]) * per_microbatch)
            for transfer, cut in zip(placement.transfers, plan.cuts, strict=True)
        )
        exchanges = tuple(
            costs.exchanges(stage, n, shape).later(after)
            for stage, n, shape, (_, after) in zip(
                plan.stages, samples, placement.groups, handling_s, strict=True
            )
        )
        starts = last_backward_start_s(
            [forward for forward, _ in compute_s],
            [backward for _, backward in compute_s],
            send_s,
            plan.microbatches,
            plan.schedule,
            _last_backward_s(compute_s, exchanges),
        ).tolist()
        rate = costs.optimizer_s_per_element
        update_s = tuple(
            float(costs.elements_L[slice(*stage.layers)].sum()) * rate for stage in plan.stages
        )
        ends = zip(starts, exchanges, update_s, strict=True)
        return _Run(
            samples=samples,
            placement=placement,
            compute_s=compute_s,
            send_s=send_s,
            exchanges=exchanges,
            update_s=update_s,
            stage_end_s=tuple(start + link.finish_s + update for start, link, update in ends),
        )

    def _handling_s(self, plan: Plan, samples: Sequence[float]) -> list[tuple[float, float]]:
        """Per stage, its own seconds for a message to or from the stage before, and after it."""
        found = []
        for stage, n in zip(plan.stages, samples, strict=True):
            seconds_C = self.costs.handling_s_C(n)
            found.append((float(seconds_C[stage.layers[0]]), float(seconds_C[stage.layers[1]])))
        return found

    def _memories(self, plan: Plan, run: _Run) -> list[Memory]:
        """Peak memory of each stage."""
        count = len(plan.stages)
        return [
            self.costs.memory(
                stage, run.samples[s], in_flight(plan.schedule, s, count, plan.microbatches)
            )
            for s, stage in enumerate(plan.stages)
        ]

    def _stage(
        self, plan: Plan, run: _Run, s: int, step_s: float, memory: Memory
    ) -> StagePrediction:
        stage = plan.stages[s]
        forward, backward = run.compute_s[s]
        exchange = run.exchanges[s]
        compute = plan.microbatches * (forward + backward) + exchange.handling_s
        exposed = max(0.0, exchange.finish_s - backward - exchange.taken_s)
        return StagePrediction(
            layers=stage.layers,
            replicas=stage.replicas,
            devices=run.placement.devices[s],
            forward_s=forward,
            backward_s=backward,
            send_forward_s=run.send_s[s] if s < len(run.send_s) else 0.0,
            compute_s=compute,
            sparsification_s=exchange.sparsify_s,
            exposed_communication_s=exposed,
            optimizer_s=run.update_s[s],
            load_s=_load_s(plan, run, s),
            bubble_s=max(0.0, step_s - compute - exchange.sparsify_s - exposed - run.update_s[s]),
            memory=memory,
        )

    def _notes(self, plan: Plan, run: _Run) -> tuple[str, ...]:
        """What the figures assume beyond the measurements."""
        source = self.workload.provenance.notes
        notes = [note for note in source if note.startswith(("warning:", NOTE))]
        for samples in sorted(set(run.samples)):
            count = self.costs.layer_seconds(samples).extrapolated
            if count:
                notes.append(
                    f"extrapolated: {count} of {len(self.workload.layers)} layers were not "
                    f"measured at {samples:g} samples per call"
                )
        notes += self._link_notes(plan, run)
        if self.job.optimizer_s_per_element is None and self.costs.optimizer_s_per_element == 0:
            notes.append(
                "the optimizer's update counts as 0 s: the device states no memory bandwidth, the "
                "job no optimizer_s_per_element"
            )
        if self.bounds.large:
            notes.append(
                "the lower bound is the one for long chains on many devices: it knows stages by "
                "their work, memory and update, and leaves transfers between other stages out"
            )
        return tuple(notes)

    def _link_notes(self, plan: Plan, run: _Run) -> tuple[str, ...]:
        """Where links are used beyond the sizes at which they were measured."""
        per_microbatch = self.job.global_batch // plan.microbatches
        elements_L = self.costs.elements_L
        return link_notes(
            self.cluster,
            run.placement,
            plan,
            [float(self.costs.cut_bytes_C[cut]) * per_microbatch for cut in plan.cuts],
            [
                [float(elements_L[slice(*group.layers)].sum()) for group in stage.groups]
                for stage in plan.stages
            ],
            self.job.gradient_bytes_per_element,
        )


def _load_s(plan: Plan, run: _Run, s: int) -> float:
    """Seconds that a stage computes, sends, receives and exchanges in a step, summed up."""
    forward, backward = run.compute_s[s]
    before = run.send_s[s - 1] if s > 0 else 0.0
    after = run.send_s[s] if s < len(run.send_s) else 0.0
    exchange = run.exchanges[s]
    exchanged = exchange.taken_s + sum(end - start for start, end, _ in exchange.spans)
    # Activations go forward and gradients of their size come back over both cuts.
    steady = plan.microbatches * (forward + backward + 2 * (before + after))
    return steady + exchanged + run.update_s[s]


def _last_backward_s(
    compute_s: tuple[tuple[float, float], ...], exchanges: tuple[Exchanges, ...]
) -> list[float]:
    """Seconds of each stage's last backward: exchanges delay the gradient it passes on."""
    pairs = zip(compute_s, exchanges, strict=True)
    return [backward + exchange.taken_s for (_, backward), exchange in pairs]


def predict(workload: Workload, cluster: Cluster, job: Job, plan: Plan) -> Prediction:
    """Predicts one plan; the lower bound covers every plan that the cluster can run.

    Raises:
        InputError: the plan is for another model, needs more devices than there are, the batch
            cannot be split as it asks, or it holds sparse groups and the device states no cost of
            top-k.
    """
    return Predictor(workload, cluster, job).predict(plan)
