"""What a rank runs on: emulated or real compute on the host, or a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from autoplan.errors import InputError
from autoplan.execute.collectives import Collective, RingCollective
from autoplan.execute.exchange import ThreadedExchange
from autoplan.execute.gloo import gloo_collectives
from autoplan.execute.gradient_groups import Exchange, PlannedGroup
from autoplan.execute.link_probe import GpuProbe, HostProbe, LinkProbe
from autoplan.execute.model_source import require_paddle
from autoplan.execute.nccl import (
    GpuGradients,
    GpuTensors,
    NcclExchange,
    NcclGroups,
    NcclNeighbours,
    group_environment,
)
from autoplan.execute.paddle_device import cpu_name, current_device, set_threads
from autoplan.execute.paddle_work import PaddleWork
from autoplan.execute.peers import peers_of
from autoplan.execute.priorities import starting_first
from autoplan.execute.rank_model import RankModel
from autoplan.execute.stage_runner import Neighbours, SocketNeighbours
from autoplan.execute.stage_work import EmulatedWork, StageWork
from autoplan.execute.tensors import HostTensors, Tensors
from autoplan.execute.transport import PostOffice
from autoplan.execute.worker_job import PlannedRun, WorkerJob


class Backend(Protocol):
    """Makes the parts of a stage for one plan after the other."""

    environment: dict[str, Any]
    """Framework, device and collectives, JSON-ready."""
    refusals: list[str | None]
    """Per plan, why the model does not allow it."""

    def work(self, run: PlannedRun, stage: int, replica: int) -> StageWork:
        """The compute of a stage, from the model's initial parameters on."""

    def exchange(self, run: PlannedRun, stage: int, work: StageWork) -> Exchange:
        """The exchange of its gradients among its replicas, of which there are several."""

    def neighbours(self, run: PlannedRun, stage: int, replica: int) -> Neighbours:
        """The transfers to and from the stages beside it."""

    def probe(self) -> LinkProbe:
        """The links by themselves."""

    def layers_s(self, samples: int) -> tuple[int, float] | None:
        """Samples, at most as many as asked for, and seconds of all layers on these, alone."""

    def synchronize(self) -> None:
        """Returns when the device has done its work."""


def open_backend(
    job: WorkerJob, rank: int, post: PostOffice, endpoints: tuple[str, ...]
) -> Backend:
    """Builds the model and connects the groups, as far as the job needs them.

    Args:
        job: what is to be run.
        rank: of this process.
        post: its connections.
        endpoints: host:port of every rank, for the framework's own groups.

    Raises:
        InputError: the model is not usable, or has another number of layers than the plans.
    """
    if job.modes.device == "gpu":
        return GpuBackend(job, rank, post, endpoints)
    if job.modes.compute == "real":
        return HostBackend(job, rank, post, endpoints)
    return EmulatedBackend(job, rank, post, endpoints)


class EmulatedBackend:
    """Sleeps the compute; messages and collectives are real."""

    def __init__(
        self, job: WorkerJob, rank: int, post: PostOffice, endpoints: tuple[str, ...]
    ) -> None:
        """Connects the groups."""
        self._job, self._rank, self._post = job, rank, post
        self.environment: dict[str, Any] = {"framework": "none", "device": cpu_name()}
        self.refusals: list[str | None] = [None] * len(job.runs)
        self._collectives = self._connected(endpoints)
        used = sorted({each.name for each in self._collectives.values()})
        self.environment["collectives"] = " and ".join(used) or "none"

    def work(self, run: PlannedRun, stage: int, replica: int) -> StageWork:
        """Sleeping."""
        last = stage + 1 == len(run.plan.stages)
        return EmulatedWork(
            run.plan.stages[stage],
            run.costs.stages[stage],
            last=last,
            emulated_link=self._job.modes.link == "emulated",
        )

    def exchange(self, run: PlannedRun, stage: int, work: StageWork) -> Exchange:
        """By a thread, over Gloo or a ring."""
        return ThreadedExchange(
            work.gradients,
            planned_groups(run, stage, self._parameters_per_layer(run, stage)),
            self._collectives[run.costs.stages[stage].ranks],
            rank=self._rank,
            emulated_compute=self._job.modes.compute == "emulated",
            emulated_link=self._job.modes.link == "emulated",
        )

    def neighbours(self, run: PlannedRun, stage: int, replica: int) -> Neighbours:
        """By the ranks' own connections."""
        stages = run.costs.stages
        return SocketNeighbours(
            peers_of(run.costs, stage, replica),
            (stages[stage].send_s, stages[stage - 1].send_s if stage > 0 else 0.0),
            self._post,
            emulated_link=self._job.modes.link == "emulated",
        )

    def layers_s(self, samples: int) -> tuple[int, float] | None:
        """Nothing is computed."""
        return None

    def probe(self) -> LinkProbe:
        """Connections, and Gloo or a ring."""
        return HostProbe(self._post, self._collectives)

    def synchronize(self) -> None:
        """Nothing is under way on a host when a call is over."""

    def _parameters_per_layer(self, run: PlannedRun, stage: int) -> list[int]:
        """How many parameters each layer of a stage trains."""
        groups = reversed(run.costs.stages[stage].groups)
        return [int(n > 0) for group in groups for n in group.layer_elements]

    def _connected(self, endpoints: tuple[str, ...]) -> dict[tuple[int, ...], Collective]:
        """A collective for each group that this rank is a member of."""
        groups = self._job.members()
        if not self._job.framework_groups:
            return {g: RingCollective(self._post, g) for g in groups if self._rank in g}
        with starting_first():
            return gloo_collectives(groups, self._post, endpoints)


class HostBackend(EmulatedBackend):
    """Computes with Paddle on the host, with one thread."""

    def __init__(
        self, job: WorkerJob, rank: int, post: PostOffice, endpoints: tuple[str, ...]
    ) -> None:
        """Builds the model; plans that it does not allow are refused one by one."""
        set_threads(1)
        self._tensors: Tensors = HostTensors(current_device())
        self._held, refusals = _built_model(job)
        super().__init__(job, rank, post, endpoints)
        self.refusals = refusals
        self.environment |= _described(self._tensors)

    def work(self, run: PlannedRun, stage: int, replica: int) -> StageWork:
        """The user's layers."""
        return PaddleWork(self._held, run.plan, (stage, replica), self._job.job, self._tensors)

    def layers_s(self, samples: int) -> tuple[int, float] | None:
        """A short profile of the whole model in this process."""
        return self._held.layers_s(samples, self._tensors.device)

    def _parameters_per_layer(self, run: PlannedRun, stage: int) -> list[int]:
        layers = run.plan.stages[stage].layers
        return [len(own) for own in self._held.layer_parameters[slice(*layers)]]


class GpuBackend:
    """Computes with Paddle on one CUDA device per rank, and communicates by NCCL."""

    def __init__(
        self, job: WorkerJob, rank: int, post: PostOffice, endpoints: tuple[str, ...]
    ) -> None:
        """Builds the model on the host, takes the device, and joins the other ranks."""
        self._job, self._post = job, post
        paddle = require_paddle()
        paddle.set_device("cpu")  # a stage's layers move to the device when it is entered
        self.refusals: list[str | None] = []
        if job.runs:
            self._held, self.refusals = _built_model(job)
        self._tensors = GpuTensors(job.devices[rank])
        self.environment = {**_described(self._tensors), "collectives": "nccl"}
        self._groups: NcclGroups | None = None
        if job.framework_groups:
            environment = group_environment(rank, endpoints, "nccl")
            environment["FLAGS_selected_gpus"] = str(job.devices[rank])
            pairs = {pair for run in job.runs for pair in _transfers(run)}
            both = (g for g in job.probed_groups if len(g) == 2)
            pairs |= {pair for a, b in both for pair in ((a, b), (b, a))}
            self._groups = NcclGroups(environment, job.members(), pairs)

    def work(self, run: PlannedRun, stage: int, replica: int) -> StageWork:
        """The user's layers."""
        return PaddleWork(self._held, run.plan, (stage, replica), self._job.job, self._tensors)

    def exchange(self, run: PlannedRun, stage: int, work: StageWork) -> Exchange:
        """On NCCL's streams."""
        assert self._groups is not None
        assert isinstance(work.gradients, GpuGradients)
        layers = run.plan.stages[stage].layers
        counts = [len(own) for own in self._held.layer_parameters[slice(*layers)]]
        group = self._groups.replicas[run.costs.stages[stage].ranks]
        return NcclExchange(work.gradients, planned_groups(run, stage, counts), group)

    def neighbours(self, run: PlannedRun, stage: int, replica: int) -> Neighbours:
        """By NCCL; a plan of one stage has none."""
        peers = peers_of(run.costs, stage, replica)
        if self._groups is None:
            return SocketNeighbours(peers, (0.0, 0.0), self._post, emulated_link=False)
        return NcclNeighbours(peers, self._post, self._groups)

    def layers_s(self, samples: int) -> tuple[int, float] | None:
        """The whole model may not fit on one device."""
        return None

    def probe(self) -> LinkProbe:
        """NCCL."""
        assert self._groups is not None
        groups = self._groups
        return GpuProbe(require_paddle(), self._post.rank, groups.replicas, groups.pairs)

    def synchronize(self) -> None:
        """Waits for all kernels."""
        self._tensors.device.synchronize()


def planned_groups(run: PlannedRun, stage: int, counts_L: list[int]) -> tuple[PlannedGroup, ...]:
    """A stage's gradient groups over parameters that are numbered in backward order.

    Args:
        run: the plan and its costs.
        stage: which stage.
        counts_L: parameters of each layer of the stage.
    """
    planned, costs = run.plan.stages[stage], run.costs.stages[stage]
    found = []
    number = 0
    for group, cost in zip(planned.groups, costs.groups, strict=True):
        first, end = (layer - planned.layers[0] for layer in group.layers)
        count = sum(counts_L[first:end])
        found.append(
            PlannedGroup(
                parameters=(number, number + count),
                density=group.density,
                layers=end - first,
                sparsify_s=cost.sparsify_s,
                handling_s=cost.handling_s,
                exchange_s=cost.exchange_s,
            )
        )
        number += count
    return tuple(found)


def _built_model(job: WorkerJob) -> tuple[RankModel, list[str | None]]:
    """The model, and per plan why it does not allow it."""
    assert job.source is not None
    held = RankModel(job.source, job.seed, job.job.global_batch)
    layers = len(held.model.layers)
    allowed = f"{layers}, the layers that {held.model.source} returns"
    refusals: list[str | None] = []
    for run in job.runs:
        if run.plan.num_layers != layers:
            raise InputError("stages: layers covered", run.plan.num_layers, allowed)
        try:
            held.require_cuts(run.plan)
            refusals.append(None)
        except InputError as error:
            refusals.append(str(error))
    return held, refusals


def _described(tensors: Tensors) -> dict[str, Any]:
    paddle = require_paddle()
    return {
        "framework": f"paddlepaddle {paddle.__version__}",
        "device": tensors.device.description,
    }


def _transfers(run: PlannedRun) -> Iterator[tuple[int, int]]:
    """(sender, receiver) of all transfers of a plan, both ways."""
    for s, stage in enumerate(run.costs.stages):
        for replica, rank in enumerate(stage.ranks):
            for peer in peers_of(run.costs, s, replica).after:
                yield rank, peer.rank
                yield peer.rank, rank
