"""The GPU side of a run: tensors on a CUDA device, transfers and gradient sums by NCCL.

Every transfer and every sum is put on a stream of its own by Paddle (`sync_op=False`), which makes
it wait for the compute that was launched before, so that it overlaps with what is launched after;
`wait` makes the compute stream wait for it in turn. Each pair of ranks has a group per direction,
since operations of one group run in the order in which they were launched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from autoplan.execute.clocks import StepClock
from autoplan.execute.gradient_groups import Gradients, GroupOrder, PlannedGroup
from autoplan.execute.model_source import require_paddle
from autoplan.execute.paddle_device import Device, GpuDevice
from autoplan.execute.peers import Peer, Peers, part_of
from autoplan.execute.tensors import dtype_name
from autoplan.execute.transport import Channel, Message, PostOffice
from autoplan.gradsync.costs import kept

_CHANNELS: tuple[Channel, Channel] = ("forward", "backward")


def group_environment(rank: int, endpoints: tuple[str, ...], backend: str) -> dict[str, str]:
    """The variables by which Paddle finds the other ranks."""
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(len(endpoints)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_MASTER": endpoints[0],
        "PADDLE_DISTRI_BACKEND": backend,
    }


class GpuTensors:
    """Tensors on one CUDA device; layers of other stages stay on the host."""

    holds_all_layers = False
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")

    def __init__(self, number: int) -> None:
        """Computes on the CUDA device with this number from now on."""
        self._paddle = require_paddle()
        self._place = f"gpu:{number}"
        self._paddle.set_device(self._place)
        self.device: Device = GpuDevice(self._paddle)

    def move_in(self, layer: Any) -> None:
        """Copies parameters and buffers to the device."""
        if hasattr(layer, "to"):
            layer.to(device=self._place)

    def move_out(self, layer: Any) -> None:
        """Copies them back to the host."""
        if hasattr(layer, "to"):
            layer.to(device="cpu")

    def pack(self, tensor: Any) -> Any:
        """The tensor itself, without its history."""
        return tensor.detach()

    def unpack(self, received: Any) -> Any:
        """It came as a tensor."""
        return received

    def gradients(self, parameters: list[Any]) -> Gradients:
        """The parameters, from which `NcclExchange` takes the gradients."""
        return GpuGradients(parameters)


class GpuGradients:
    """The gradients of a stage's parameters on the device."""

    def __init__(self, parameters: list[Any]) -> None:
        """Takes the parameters in backward order of their layers."""
        self.parameters = parameters
        self.sizes = tuple(int(parameter.size) for parameter in parameters)

    def read(self, number: int, into: Any) -> None:
        """Copies the gradient out to the host."""
        into[:] = self.parameters[number].grad.numpy().reshape(-1)

    def write(self, number: int, values: Any) -> None:
        """Copies values in from a tensor or from the host."""
        gradient = self.parameters[number].grad
        paddle = require_paddle()
        if not isinstance(values, paddle.Tensor):
            values = paddle.to_tensor(values)
        paddle.assign(values.reshape(gradient.shape).astype(gradient.dtype), output=gradient)


class NcclGroups:
    """Paddle's groups of all plans of a launch; all ranks make them in the same order."""

    def __init__(
        self,
        environment: dict[str, str],
        replicas: Iterable[tuple[int, ...]],
        pairs: Iterable[tuple[int, int]],
    ) -> None:
        """Joins the other ranks.

        Args:
            environment: the variables by which Paddle finds them.
            replicas: ranks of each stage that exchange gradients.
            pairs: (sender, receiver) of every transfer in any plan.
        """
        os.environ.update(environment)
        distributed = require_paddle().distributed
        distributed.init_parallel_env()
        self.replicas = {g: distributed.new_group(list(g)) for g in sorted(set(replicas))}
        self.pairs = {p: distributed.new_group(sorted(p)) for p in sorted(set(pairs))}


class NcclNeighbours:
    """Transfers between stages; shapes go ahead over the ranks' own connections."""

    def __init__(self, peers: Peers, post: PostOffice, groups: NcclGroups) -> None:
        """Takes with whom this replica shares samples."""
        self._peers, self._post, self._groups = peers, post, groups
        self._paddle = require_paddle()
        self._under_way: list[tuple[Any, Any]] = []

    def begin(self, clock: StepClock) -> None:
        """A step starts; the transfers of the last one are over."""
        for task, _ in self._under_way:
            task.wait()
        self._under_way.clear()

    def receive(self, way: int) -> Message | None:
        """Joins what the replicas on that side sent, in the order of their samples."""
        peers = self._peers.after if way else self._peers.before
        if not peers:
            return None
        parts = [self._received(peer, _CHANNELS[way]) for peer in peers]
        columns = zip(*(arrays for arrays, _ in parts), strict=True)
        joined = tuple(self._joined(column) for column in columns)
        flags = zip(*(flags for _, flags in parts), strict=True)
        return Message(arrays=joined, needs_gradient=tuple(any(column) for column in flags))

    def send(self, way: int, message: Message | None) -> None:
        """Splits the samples among the replicas on the other side."""
        peers = self._peers.before if way else self._peers.after
        if not peers or message is None:
            return
        # A sent tensor must outlive its transfer, but not by much.
        self._under_way = [each for each in self._under_way if not each[0].is_completed()]
        for peer in peers:
            tensors = [
                None
                if t is None
                else part_of(t, peer, len(peers), self._peers.samples).contiguous()
                for t in message.arrays
            ]
            head = {
                "tensors": [None if t is None else [dtype_name(t), list(t.shape)] for t in tensors],
                "needs_gradient": message.needs_gradient,
            }
            text = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
            self._post.send(peer.rank, _CHANNELS[way], Message(arrays=(text,)))
            group = self._groups.pairs[self._post.rank, peer.rank]
            for tensor in tensors:
                if tensor is not None:
                    task = self._paddle.distributed.isend(tensor, peer.rank, group)
                    self._under_way.append((task, tensor))

    def _received(self, peer: Peer, channel: Channel) -> tuple[list[Any], list[bool]]:
        text = self._post.receive(peer.rank, channel).arrays[0]
        assert text is not None
        head = json.loads(text.tobytes())
        group = self._groups.pairs[peer.rank, self._post.rank]
        tensors: list[Any] = []
        for entry in head["tensors"]:
            if entry is None:
                tensors.append(None)
                continue
            tensor = self._paddle.empty(entry[1], dtype=entry[0])
            self._paddle.distributed.irecv(tensor, peer.rank, group).wait()
            tensors.append(tensor)
        return tensors, head["needs_gradient"]

    def _joined(self, column: tuple[Any, ...]) -> Any:
        if len(column) == 1:
            return column[0]
        there = [tensor for tensor in column if tensor is not None]
        return self._paddle.concat(there) if len(there) == len(column) else None


class NcclExchange:
    """Gradient groups in the planned order on NCCL's stream, overlapping with backward.

    Sparse groups keep a residual for the whole stage, as in `exchange.ThreadedExchange`.
    """

    def __init__(
        self, gradients: GpuGradients, groups: tuple[PlannedGroup, ...], group: Any
    ) -> None:
        """Exchanges over a Paddle group of the stage's replicas."""
        self._paddle = require_paddle()
        self._gradients, self._group = gradients, group
        self._groups = tuple(g for g in groups if g.parameters[0] < g.parameters[1])
        self._order = GroupOrder(self._groups)
        self._offsets = np.concatenate([[0], np.cumsum(gradients.sizes, dtype=np.int64)]).tolist()
        sparse = any(each.density < 1 for each in self._groups)
        size = self._offsets[-1] if sparse else 0
        self._residual = self._paddle.zeros([size], dtype="float32")
        self._under_way: list[tuple[PlannedGroup, list[Any], list[Any]]] = []

    def begin(self, clock: StepClock) -> None:
        """A step starts; no group is ready."""
        self._order.restart()

    def mark_ready(self, parameter: int) -> None:
        """Launches every group that this completes, in the planned order."""
        for number in self._order.due_after(parameter):
            self._launch(self._groups[number])

    def finish(self) -> None:
        """Launches the rest, waits for all, and replaces the gradients."""
        for number in self._order.rest():
            self._launch(self._groups[number])
        with self._paddle.no_grad():
            for group, tasks, buffers in self._under_way:
                for task in tasks:
                    task.wait()
                self._write(
                    group, buffers[0] if group.density == 1 else self._dense(group, buffers)
                )
        self._under_way.clear()

    def held_bytes(self) -> int:
        """Nothing that the framework's allocator does not count."""
        return 0

    def close(self) -> None:
        """Frees the residual."""
        self._residual = self._paddle.zeros([0], dtype="float32")

    def _launch(self, group: PlannedGroup) -> None:
        distributed = self._paddle.distributed
        parameters = self._gradients.parameters[slice(*group.parameters)]
        kinds = {dtype_name(parameter) for parameter in parameters}
        # Residuals must not lose what is too small for 16 bits.
        kind = kinds.pop() if len(kinds) == 1 and group.density == 1 else "float32"
        with self._paddle.no_grad():
            flat = self._paddle.concat([p.grad.reshape([-1]).astype(kind) for p in parameters])
            if group.density == 1:
                task = distributed.all_reduce(flat, group=self._group, sync_op=False)
                self._under_way.append((group, [task], [flat]))
                return
            values, indices = self._selected(group, flat)
            gathered: tuple[list[Any], list[Any]] = ([], [])
            tasks = [
                distributed.all_gather(into, part, group=self._group, sync_op=False)
                for into, part in zip(gathered, (values, indices), strict=True)
            ]
            self._under_way.append((group, tasks, [gathered, values, indices]))

    def _selected(self, group: PlannedGroup, flat: Any) -> tuple[Any, Any]:
        """The largest elements of gradient and residual; the rest stays behind."""
        first, end = (self._offsets[number] for number in group.parameters)
        total = self._residual[first:end] + flat
        k = int(kept(np.array(float(end - first)), group.density))
        _, indices = self._paddle.topk(total.abs(), k, sorted=False)
        values = self._paddle.gather(total, indices)
        nothing = self._paddle.zeros_like(values)
        self._residual[first:end] = self._paddle.scatter(total, indices, nothing)
        return values, indices.astype("int32")

    def _dense(self, group: PlannedGroup, buffers: list[Any]) -> Any:
        """The sum of what all replicas sent."""
        first, end = (self._offsets[number] for number in group.parameters)
        total = self._paddle.zeros([end - first], dtype="float32")
        for values, indices in zip(*buffers[0], strict=True):
            # One replica after the other, so that the sum is the same bit for bit on each.
            total = self._paddle.scatter_nd_add(total, indices.reshape([-1, 1]), values)
        return total

    def _write(self, group: PlannedGroup, flat: Any) -> None:
        start = self._offsets[group.parameters[0]]
        for number in range(*group.parameters):
            low, high = (self._offsets[n] - start for n in (number, number + 1))
            self._gradients.write(number, flat[low:high])
