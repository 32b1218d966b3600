"""Ranks placed by Ray on a cluster: one bundle of a placement group per rank."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from autoplan.errors import AutoplanError
from autoplan.execute.spawn import Processes, RankProcesses, rank_environment

_PLACEMENT_S = 60.0
_START_S = 120.0
_REFRESH_S = 1.0
"""How often exit codes are asked for; a rank that ends is noticed by its connection at once."""


class RayStarter:
    """Starts each rank on the node where Ray reserves a CPU, and a GPU if wanted, for it."""

    def __init__(self, address: str | None, *, gpus_per_rank: int = 0) -> None:
        """Connects to a cluster unless this process is connected already.

        Args:
            address: of the cluster, such as "auto"; None starts one on this machine.
            gpus_per_rank: 1 where ranks compute on GPUs.

        Raises:
            AutoplanError: there is no such cluster.
        """
        import ray

        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, include_dashboard=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                first = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise AutoplanError(f"no Ray cluster at {address!r}: {first}") from None
        self._ray: Any = ray
        self.host: str | None = str(self._ray.util.get_node_ip_address())
        self._bundle = {"CPU": 1.0} | ({"GPU": float(gpus_per_rank)} if gpus_per_rank else {})

    def start(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> Processes:
        """Reserves a bundle per rank, as few nodes as possible, and starts them.

        Raises:
            AutoplanError: the cluster has too few free CPUs or GPUs.
        """
        return _RayProcesses(commands, environment, self._bundle)

    def device(self, rank: int) -> int:
        """Ray shows each rank its own GPU only."""
        return 0

    def gpus(self) -> int:
        """GPUs in the cluster."""
        return int(self._ray.cluster_resources().get("GPU", 0))


class _RayProcesses:
    """An actor per rank, which holds the rank as its child."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        bundle: dict[str, float],
    ) -> None:
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._ray: Any = ray
        self._remove = remove_placement_group
        self._group = placement_group([dict(bundle) for _ in commands], strategy="PACK")
        self._actors: list[Any] = []
        self._codes: list[int | None] = [None] * len(commands)
        self._read_s = time.monotonic()
        try:
            ray.get(self._group.ready(), timeout=_PLACEMENT_S)
            kind = ray.remote(_RankHolder)
            for i, command in enumerate(commands):
                place = PlacementGroupSchedulingStrategy(self._group, i)
                options = kind.options(
                    num_cpus=bundle["CPU"],
                    num_gpus=bundle.get("GPU", 0.0),
                    scheduling_strategy=place,
                )
                arguments = (list(command), dict(environment), os.getcwd())
                self._actors.append(options.remote(*arguments))
            ray.get([actor.exit_code.remote() for actor in self._actors], timeout=_START_S)
        except ray.exceptions.GetTimeoutError:
            self.kill()
            needed = f"{len(commands)} x {bundle}"
            raise AutoplanError(f"Ray found no place for {needed} in {_PLACEMENT_S:g} s") from None
        except BaseException:
            self.kill()
            raise

    def exit_codes(self) -> list[int | None]:
        """As of a moment ago; a rank whose actor is lost counts as killed."""
        if time.monotonic() - self._read_s > _REFRESH_S:
            self._read_s = time.monotonic()
            self._codes = [self._exit_code(actor) for actor in self._actors]
        return self._codes

    def wait(self, limit_s: float) -> None:
        """Waits for all to end by themselves, and kills what is left after `limit_s`."""
        until_s = time.monotonic() + limit_s
        while None in self.exit_codes() and time.monotonic() < until_s:
            time.sleep(_REFRESH_S / 10)
        self.kill()

    def kill(self) -> None:
        """Kills every rank with all that it started, and gives the places back."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.get(actor.kill.remote(), timeout=_PLACEMENT_S)
            self._ray.kill(actor)
        self._remove(self._group)

    def last_line(self, rank: int) -> str:
        """The last line that a rank wrote, empty where its node is lost."""
        try:
            return str(self._ray.get(self._actors[rank].last_line.remote(), timeout=_START_S))
        except self._ray.exceptions.RayError:
            return ""

    def _exit_code(self, actor: Any) -> int | None:
        try:
            found: int | None = self._ray.get(actor.exit_code.remote(), timeout=_START_S)
        except self._ray.exceptions.RayError:
            return -1
        return found


class _RankHolder:
    """Runs on the rank's node, as an actor."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: str) -> None:
        """Starts the rank with this node's interpreter, in the same folder if it is there too."""
        if os.path.isdir(folder):
            os.chdir(folder)
        here = [sys.executable, *command[1:]]
        self._processes = RankProcesses([here], rank_environment(environment))

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._processes.exit_codes()[0]

    def last_line(self) -> str:
        """What it said last."""
        return self._processes.last_line(0)

    def kill(self) -> None:
        """Ends it."""
        self._processes.kill()
