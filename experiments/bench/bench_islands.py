"""What a second worker is worth, and how many workers one driver can listen to.

Two workers: islands as Ray actors with the driver's own code, against one island in this process,
turn and turn about. Each round gives candidates per wall second and per second of a core; on a
machine that does other work too, the second is the one to look at: it is the speedup on cores of
one's own, with the share of time that islands wait for the driver taken off.

Many workers: the driver's whole loop, database included, listens to simulated workers that answer
as recorded islands did and when they would have; what Ray costs the driver for so many calls, with
as many outstanding, is measured apart and added.

Run from the repository's root:

    python experiments/bench/bench_islands.py [--rounds 3] [--seconds 8] [--workers 1000] [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import ray
from simulated_crew import SimulatedCrew

from autoplan.results.search_recording import open_recording
from autoplan.search.archipelago import IslandSearch
from autoplan.search.experiment import Experiment, load_experiment
from autoplan.search.fleet import Fleet, generation_of
from autoplan.search.interrupts import Interrupts
from autoplan.search.island import Island, IslandSetting, Step, Stepped
from autoplan.search.ray_crew import RayCrew
from autoplan.search.session import Session
from autoplan.search.survey import Outline, Surveyor
from autoplan.storage.url import Storage

EXPERIMENTS = Path(__file__).resolve().parents[1]
_STEP_S, _TICK_S = 0.75, 0.25
_ENDLESS = 10**9
_PROBE_CALLS = 1000
"""Calls by which Ray's cost is measured."""


def settings_of(workers: int, seed: int) -> list[IslandSetting]:
    generation = generation_of(workers, _ENDLESS)
    return [
        IslandSetting(number=i, islands=workers, seed=seed, generation=generation)
        for i in range(workers)
    ]


def alone(experiment: Experiment, outline: Outline, seconds: float, seed: int) -> list[Stepped]:
    """Steps of one island in this process."""
    (setting,) = settings_of(1, seed)
    island, steps = Island(experiment, setting), []
    first, until_s = 0, time.monotonic() + seconds
    while time.monotonic() < until_s:
        step = Step(
            first=first,
            trials=setting.generation,
            seconds=_STEP_S,
            seconds_left=seconds,
            keep=setting.generation,
            proposals=outline.proposals if first == 0 else (),
        )
        steps.append(island.step(step))
        first += steps[-1].done
    return steps


def together(
    experiment: Experiment, outline: Outline, seconds: float, seed: int
) -> dict[str, float]:
    """Two islands of a running Ray, from when both have begun."""
    budget = dataclasses.replace(
        experiment.budget, workers=2, trials=_ENDLESS, seconds=_ENDLESS, seed=seed
    )
    session = Session(experiment, budget)
    session.open("sqlite://", None)
    crew = RayCrew(experiment, settings_of(2, seed), None, Interrupts())
    try:
        fleet, begun = Fleet(session), set()
        while len(begun) < 2:
            begun |= listen(fleet, crew, outline)
        before = fleet.num_candidates, fleet.cpu_s, fleet.busy_s
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        while time.monotonic() < start_s + seconds:
            listen(fleet, crew, outline)
        wall_s = time.monotonic() - start_s
        driver_cpu_s = time.process_time() - start_cpu_s
    finally:
        crew.close()
    candidates, cpu_s, busy_s = (
        after - known
        for after, known in zip(
            (fleet.num_candidates, fleet.cpu_s, fleet.busy_s), before, strict=True
        )
    )
    return {
        "candidates_per_s": candidates / wall_s,
        "candidates_per_cpu_s": candidates / (cpu_s + driver_cpu_s),
        "busy": min(1.0, busy_s / (2 * wall_s)),
        "driver_share": driver_cpu_s / wall_s,
    }


def listen(fleet: Fleet, crew: RayCrew, outline: Outline) -> set[int]:
    """One turn of the driver; the islands that have answered."""
    fleet.dispatch(crew, outline.proposals)
    events = crew.wait(_TICK_S)
    for event in events:
        fleet.take(event.value)
    return {event.worker for event in events}


def speedup(
    experiment: Experiment, outline: Outline, rounds: int, seconds: float
) -> tuple[dict[str, object], list[Stepped]]:
    """Figures of one against two workers, the median over rounds; and the recorded steps."""
    by_wall, by_cpu, busy, shares, recorded = [], [], [], [], []
    for seed in range(rounds):
        steps = alone(experiment, outline, seconds, seed)
        recorded += steps
        candidates = sum(step.candidates for step in steps)
        one_per_s = candidates / sum(step.busy_s for step in steps)
        one_per_cpu_s = candidates / sum(step.cpu_s for step in steps)
        two = together(experiment, outline, seconds, seed)
        by_wall.append(two["candidates_per_s"] / one_per_s)
        by_cpu.append(2 * two["busy"] * two["candidates_per_cpu_s"] / one_per_cpu_s)
        busy.append(two["busy"])
        shares.append(two["driver_share"])
    figures: dict[str, object] = {
        "two_workers_by_wall": statistics.median(by_wall),
        "two_workers_on_cores_of_their_own": statistics.median(by_cpu),
        "rounds_on_cores_of_their_own": by_cpu,
        "islands_busy": statistics.median(busy),
        "driver_share_of_two": statistics.median(shares),
    }
    return figures, recorded


class _Probe:
    """Answers what it was sent, at once."""

    def answer(self, data: Stepped, step: Step) -> Stepped:
        return data


def ray_cost(recorded: Sequence[Stepped], workers: int) -> dict[str, float]:
    """CPU seconds of the driver for one call and its answer, and for one look at all that wait."""
    probe = ray.remote(_Probe).options(num_cpus=0).remote()
    step = Step(first=0, trials=4, seconds=1, seconds_left=1, keep=1)
    data = dataclasses.replace(recorded[0], tried=recorded[0].tried[:1])
    ray.get(probe.answer.remote(data, step))
    start_s = time.process_time()
    references = [probe.answer.remote(data, step) for _ in range(_PROBE_CALLS)]
    waiting = list(references)
    while waiting:
        time.sleep(_TICK_S)
        ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for reference in ready:
            ray.get(reference, timeout=30)
    call_s = (time.process_time() - start_s) / _PROBE_CALLS
    # No node has so many CPUs: these calls wait for ever.
    nowhere = ray.remote(_Probe).options(num_cpus=10**6).remote()
    hanging = [nowhere.answer.remote(data, step) for _ in range(workers)]
    start_s = time.process_time()
    for _ in range(20):
        ray.wait(hanging, num_returns=len(hanging), timeout=0)
    look_s = (time.process_time() - start_s) / 20
    ray.kill(nowhere)
    return {"call_cpu_s": call_s, "look_cpu_s": look_s}


def simulate(
    experiment: Experiment, outline: Outline, recorded: Sequence[Stepped], workers: int,
    seconds: float,
) -> dict[str, float]:  # fmt: skip
    """The driver of a whole search by simulated workers."""
    budget = dataclasses.replace(
        experiment.budget, workers=workers, trials=_ENDLESS, seconds=seconds, exhaustive_plans=0
    )
    crews: list[SimulatedCrew] = []

    def make_crew(settings: Sequence[IslandSetting], _: Interrupts) -> SimulatedCrew:
        crews.append(SimulatedCrew(recorded, outline, seed=0))
        return crews[-1]

    storage = Storage.parse(experiment.default_storage)
    with open_recording(storage, experiment, None, 0) as recording:
        session = Session(experiment, budget, None, recording)
        search = IslandSearch(session, make_crew)
        session.open(storage, None)
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        result = search.run()
        wall_s = time.monotonic() - start_s
        cpu_s = time.process_time() - start_cpu_s
    (crew,) = crews
    return {
        "workers": workers,
        "wall_s": wall_s,
        "driver_cpu_s": cpu_s,
        "calls": crew.calls,
        "looks": crew.waits,
        "trials_per_s": result.trials / wall_s,
        "bytes_per_call": crew.call_bytes / max(1, crew.calls),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiment", default=str(EXPERIMENTS / "quickstart.toml"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each half of a round")
    parser.add_argument("--workers", type=int, default=1000, help="simulated ones")
    parser.add_argument("--simulated-seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true", help="print the figures as one document")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        experiment = dataclasses.replace(
            load_experiment(arguments.experiment), output=Path(folder) / "out"
        )
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
            object_store_memory=100 * 2**20,
        )  # fmt: skip
        outline = Surveyor(experiment).outline(60.0)
        figures, recorded = speedup(experiment, outline, arguments.rounds, arguments.seconds)
        cost = ray_cost(recorded, arguments.workers)
        ray.shutdown()
        simulated = simulate(
            experiment, outline, recorded, arguments.workers, arguments.simulated_seconds
        )
    by_ray_s = simulated["calls"] * cost["call_cpu_s"] + simulated["looks"] * cost["look_cpu_s"]
    figures |= {f"ray_{name}": value for name, value in cost.items()}
    figures |= {f"simulated_{name}": value for name, value in simulated.items()}
    figures["driver_share"] = (simulated["driver_cpu_s"] + by_ray_s) / simulated["wall_s"]
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        shown = ", ".join(f"{v:.2f}" for v in value) if isinstance(value, list) else f"{value:.4g}"
        print(f"{name:34} {shown}")


if __name__ == "__main__":
    main()
