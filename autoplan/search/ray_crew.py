"""Workers as actors of Ray, on this machine or on a cluster.

Every call has a deadline: a call that waits for a node that has vanished would wait for ever. Calls
run at most once; a lost worker's successor is told what the lost one had acknowledged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autoplan.errors import InputError, words
from autoplan.search.crew import SURVEYOR, Answer, Call, Lost
from autoplan.search.experiment import Experiment
from autoplan.search.front_island import make_island
from autoplan.search.interrupts import Interrupts
from autoplan.search.island import IslandSetting
from autoplan.search.ray_leftovers import Watch
from autoplan.search.survey import Surveyed, Surveyor
from autoplan.storage.url import FILE_VARIABLE, URL_VARIABLE

_OBJECT_STORE_BYTES = 100 * 2**20
"""The least that Ray likes: what workers send fits in messages."""
_HEAD = "node:__internal_head__"
"""The resource by which Ray marks the head."""
_FETCH_S = 30.0
_CONNECT_S = 10.0
_FEW_WORKERS, _TOGETHER_S = 16, 0.03
"""Up to so many, each answer is taken as it comes; of more, those of a moment together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    worker: int
    until_s: float


class RayCrew:
    """One actor per worker, each with a CPU of its own; the surveyor shares one."""

    def __init__(
        self,
        experiment: Experiment,
        settings: Sequence[IslandSetting],
        address: str | None,
        interrupts: Interrupts,
    ) -> None:
        """Connects to a cluster, or starts Ray here; a program that is connected stays so.

        Args:
            experiment: what is planned.
            settings: of the islands, in their order.
            address: of the cluster; None is $RAY_ADDRESS, or else a Ray of our own.
            interrupts: takes back the signals that Ray takes.

        Raises:
            InputError: there is no such cluster.
        """
        self._ray, self._watch, self._ours = _connected(address, len(settings))
        interrupts.take_over()
        self._settings = {setting.number: setting for setting in settings}
        self._experiment = self._ray.put(experiment)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, _Pending] = {}

    def submit(self, worker: int, call: Call) -> None:
        """Asks a worker, which is started where it does not run."""
        actor = self._actors.get(worker)
        if actor is None:
            actor = self._actors[worker] = self._start(worker)
        reference = getattr(actor, call.method).remote(*call.arguments)
        until_s = time.monotonic() + call.limit_s
        self._pending[reference] = _Pending(worker=worker, until_s=until_s)

    def wait(self, seconds: float) -> Sequence[Answer | Lost]:
        """What has happened, as soon as something has, or nothing after so many seconds.

        Raises:
            Exception: what a worker raised.
        """
        waiting = list(self._pending)
        if not waiting:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=seconds)
        if ready and len(waiting) > _FEW_WORKERS:
            time.sleep(_TOGETHER_S)
            ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        events = [self._event(reference) for reference in ready]
        now_s = time.monotonic()
        late = [ref for ref, pending in self._pending.items() if now_s > pending.until_s]
        return events + [self._give_up(reference) for reference in late]

    def dismiss(self, worker: int) -> None:
        """Ends a worker, whatever it is doing."""
        actor = self._actors.pop(worker, None)
        for reference in [r for r, pending in self._pending.items() if pending.worker == worker]:
            del self._pending[reference]
        if actor is not None:
            with contextlib.suppress(Exception):  # it may be dead already
                self._ray.kill(actor)

    def close(self) -> None:
        """Ends all workers, and Ray where it was started here; harmless to repeat."""
        for worker in list(self._actors):
            self.dismiss(worker)
        if self._ours:
            self._ours = False
            self._ray.shutdown()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _start(self, worker: int) -> Any:
        """A new actor; it waits in a queue until a node has a place for it."""
        surveyor = worker == SURVEYOR
        kind = self._ray.remote(_SurveyorActor if surveyor else _IslandActor)
        options = kind.options(
            num_cpus=0 if surveyor else 1,
            num_gpus=0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=self._surveyors_place() if surveyor else "SPREAD",
        )
        if surveyor:
            return options.remote(self._experiment)
        return options.remote(self._experiment, self._settings[worker])

    def _surveyors_place(self) -> Any:
        """A node that is not the cluster's head, where there is one: it takes no CPU of its own."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        for node in self._ray.nodes():
            resources = node["Resources"]
            if node["Alive"] and resources.get("CPU", 0) >= 1 and _HEAD not in resources:
                return NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        return "DEFAULT"

    def _event(self, reference: Any) -> Answer | Lost:
        """An answer that is there, or the loss of who should have given it."""
        errors = self._ray.exceptions
        worker = self._pending.pop(reference).worker
        try:
            value = self._ray.get(reference, timeout=_FETCH_S)
        except errors.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except (errors.RayError, TimeoutError) as error:
            self.dismiss(worker)
            reason = str(error).strip().splitlines() or [type(error).__name__]
            return Lost(worker=worker, reason=reason[0], died=True)
        return Answer(worker=worker, value=value)

    def _give_up(self, reference: Any) -> Lost:
        worker = self._pending[reference].worker
        self.dismiss(worker)
        return Lost(worker=worker, reason="it did not answer in time", died=False)


def _connected(address: str | None, workers: int) -> tuple[Any, Watch | None, bool]:
    """Ray, connected; who looks after what it leaves, and whether to stop it at the end."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    if ray.is_initialized():
        return ray, None, False
    chosen = address or os.environ.get("RAY_ADDRESS") or None
    if chosen in (None, "local"):
        return ray, _started(ray, workers), True
    try:
        _require_listener(chosen)
        ray.init(address=chosen, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        allowed = (
            f"the address of a running Ray cluster, or auto, and the same token in "
            f"~/.ray/auth_token or RAY_AUTH_TOKEN as there ({lines[0]})"
        )
        raise InputError("--ray-address", words(str(chosen)), allowed) from None
    return ray, None, True


def _started(ray: Any, workers: int) -> Watch:
    """Starts Ray here; who looks after what it leaves."""
    watch = Watch()
    try:
        with _without_secrets(), watch.marking():
            ray.init(
                address="local",
                num_cpus=workers,
                num_gpus=0,
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except BaseException:
        ray.shutdown()
        watch.close()
        raise
    return watch


def _require_listener(address: str) -> None:
    """Raises OSError where nobody listens at an address: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()


@contextlib.contextmanager
def _without_secrets() -> Iterator[None]:
    """Keeps the database's URL out of the environment that Ray's processes inherit."""
    names = (URL_VARIABLE, FILE_VARIABLE)
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _leave_gpus_alone() -> None:
    """Ray shows all GPUs to actors that ask for none; nothing here may open one."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


class _IslandActor:
    """An island in a process of its own."""

    def __init__(self, experiment: Experiment, setting: IslandSetting) -> None:
        _leave_gpus_alone()
        self._island = make_island(experiment, setting)

    def step(self, *arguments: Any) -> Any:
        return self._island.step(*arguments)


class _SurveyorActor:
    """A surveyor in a process of its own."""

    def __init__(self, experiment: Experiment) -> None:
        _leave_gpus_alone()
        self._surveyor = Surveyor(experiment)

    def answer(self, part: str, arguments: tuple[Any, ...]) -> Surveyed:
        return self._surveyor.answer(part, arguments)
