"""Terminal tables of what a search found."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from autoplan.prediction import ROUNDING, Prediction
from autoplan.report.quantities import percent, seconds, size
from autoplan.report.tables import describe, show_notes, stage_table
from autoplan.search.objective import ObjectiveName, value_of
from autoplan.search.result import FrontPoint, SearchResult

_HEADINGS: dict[ObjectiveName, str] = {
    "step_time": "step",
    "max_stage_load": "busiest stage",
    "throughput_per_device": "device-time/step",
    "step_time_and_memory": "step",
}
_STOPPED = {
    "trials": "all trials done",
    "time": "out of time; the same command goes on",
    "optimal": "stopped: nothing better exists",
    "closed": "stopped: every interval between the points was searched",
    "interrupted": "interrupted; the same command goes on",
}


def show_result(result: SearchResult, out: Console) -> None:
    """The best plan or the front, the baselines beside it, its stages, and where everything is."""
    prediction = result.prediction
    what = "fastest plan" if result.front else "best plan"
    out.print(f"[bold]{what}[/]: {describe(result.plan)}")
    out.print(f"{_achieved(result)}; {_proof(result)}")
    _show_advantage(result, out)
    out.print()
    if result.front:
        out.print(_front_table(result.front))
        out.print()
    out.print(_baseline_table(result))
    out.print()
    out.print(stage_table(prediction, out.width))
    show_notes(prediction.notes, out)
    out.print()
    out.print(
        f"{result.trials} trials, {result.candidates} plans scored in {result.seconds:.1f} s"
        f" ({_STOPPED[result.stopped_by]})"
    )
    out.print(f"plan:     {result.plan_path}", markup=False, soft_wrap=True)
    if result.front:
        first, last = result.front[0].plan_path, result.front[-1].plan_path.name
        out.print(f"front:    {first} to {last}", markup=False, soft_wrap=True)
    out.print(f"database: {result.storage}, study {result.study}", markup=False, soft_wrap=True)


def _achieved(result: SearchResult) -> str:
    """The objective's figure, in words."""
    prediction = result.prediction
    step = f"step [bold]{seconds(prediction.step_s)}[/], {prediction.samples_per_s:.4g} samples/s"
    if result.objective == "max_stage_load":
        rate = prediction.samples_per_s * prediction.step_s / result.value
        return (
            f"busiest stage [bold]{seconds(result.value)}[/] per step where nothing overlaps, "
            f"{rate:.4g} samples/s without draining (step {seconds(prediction.step_s)})"
        )
    if result.objective == "throughput_per_device":
        each = prediction.samples_per_s / prediction.num_devices
        devices = f"{prediction.num_devices} device{'s' * (prediction.num_devices > 1)}"
        return f"[bold]{each:.4g} samples/s per device[/] on {devices}: {step}"
    return step


def _proof(result: SearchResult) -> str:
    """How far from the best plan it can be, and what was looked at."""
    bound = f"(no plan of this space is below {seconds(result.lower_bound)})"
    if result.gap == 0:
        exhaustive = " by exhaustive search" if result.exhaustive else ""
        return f"proven optimal under the model{exhaustive} {bound}"
    if result.exhaustive:
        return (
            f"the best of this space by exhaustive search, and at most {percent(result.gap)} above "
            f"any other grouping of the gradients {bound}"
        )
    return f"at most {percent(result.gap)} above the optimum {bound}"


def _show_advantage(result: SearchResult, out: Console) -> None:
    """What the plan is worth against the best default."""
    known = {
        name: value_of(result.objective, prediction)
        for name, prediction in result.baselines.items()
        if prediction is not None
    }
    if not known:
        return
    name = min(known, key=known.__getitem__)
    ratio = known[name] / result.value
    better = {
        "max_stage_load": "times the throughput of",
        "throughput_per_device": "times the throughput per device of",
    }.get(result.objective, "times as fast as")
    out.print(f"[bold]{ratio:.2f} {better}[/] the best default, {name}")
    if ratio < 1 - ROUNDING:
        out.print(f"note: {name} is better, but lies outside the space that was searched")


def _front_table(front: tuple[FrontPoint, ...]) -> Table:
    """Step time against memory, the fastest first."""
    table = Table("memory", box=None, header_style="bold", pad_edge=False)
    for heading in ("step", "ratio", "gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("what it is")
    best_s = front[0].prediction.step_s
    for point in front:
        step_s = point.prediction.step_s
        table.add_row(
            size(point.prediction.peak_bytes),
            seconds(step_s),
            f"{step_s / best_s:.3f}",
            percent(point.gap),
            describe(point.plan),
        )
    return table


def _baseline_table(result: SearchResult) -> Table:
    table = Table("plan", box=None, header_style="bold", pad_edge=False)
    for heading in (_HEADINGS[result.objective], "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("what it is")
    table.add_row("found", seconds(result.value), "1.000", describe(result.plan), style="bold")
    for name, prediction in result.baselines.items():
        if prediction is None:
            table.add_row(name, "-", "-", "no such plan fits the devices")
            continue
        value = value_of(result.objective, prediction)
        ratio = f"{value / result.value:.3f}"
        table.add_row(name, seconds(value), ratio, _shape(prediction))
    return table


def _shape(prediction: Prediction) -> str:
    stages = prediction.stages
    return f"{len(stages)} stage{'s' * (len(stages) > 1)} x {stages[0].replicas} replicas"
