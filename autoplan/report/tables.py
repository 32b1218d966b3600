"""Terminal tables of workloads, predictions and search results."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table

from autoplan.plan import Plan
from autoplan.prediction import ROUNDING, Prediction, StagePrediction
from autoplan.report.quantities import count, percent, seconds, size
from autoplan.search.run import SearchResult
from autoplan.workload import Workload

_WIDE = 100
"""Columns from which all of a stage's figures are shown."""


def show_workload(workload: Workload, out: Console) -> None:
    """The layers with their costs at the smallest measured size, and totals."""
    first = workload.layers[0].forward.samples[0]
    same = all(layer.forward.samples[0] == first for layer in workload.layers)
    at = f"at {first:g} per call" if same else "at the smallest size"
    out.print(
        f"[bold]{workload.name}[/]: {len(workload.layers)} layers; a sample is {workload.sample}"
    )
    table = Table("layer", "name", box=None, header_style="bold", pad_edge=False)
    headings = (
        f"forward {at}", f"backward {at}", "gradients", "parameters", "stash/sample", "out/sample",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for i, layer in enumerate(workload.layers):
        forward, backward = layer.forward, layer.backward
        table.add_row(
            str(i),
            _shorten(layer.name),
            seconds(forward.seconds[0]),
            seconds(backward.seconds[0]),
            count(layer.gradient_elements),
            size(layer.parameter_bytes),
            size(layer.stash_bytes_per_sample),
            size(workload.cut_bytes_per_sample[i + 1]),
        )
    layers = workload.layers
    table.add_section()
    table.add_row(
        "",
        "total",
        seconds(sum(layer.forward.seconds[0] for layer in layers)),
        seconds(sum(layer.backward.seconds[0] for layer in layers)),
        count(sum(layer.gradient_elements for layer in layers)),
        size(sum(layer.parameter_bytes for layer in layers)),
        size(sum(layer.stash_bytes_per_sample for layer in layers)),
        "",
        style="bold",
    )
    out.print(table)
    _show_provenance(workload, out)


def _show_provenance(workload: Workload, out: Console) -> None:
    origin = workload.provenance
    facts = [origin.source, origin.device, origin.framework]
    facts.append(f"{origin.threads} threads" if origin.threads else None)
    out.print("from " + "; ".join(fact for fact in facts if fact), markup=False)
    for note in origin.notes:
        out.print(f"note: {note}", markup=False)


def show_result(result: SearchResult, out: Console) -> None:
    """The best plan, the baselines beside it, its stages, and where everything is."""
    prediction = result.prediction
    step_s = prediction.step_s
    known = {name: p for name, p in result.baselines.items() if p is not None}
    out.print(f"[bold]best plan[/]: {describe(result.plan)}")
    if prediction.gap == 0:
        proof = "proven optimal under the model"
    else:
        proof = f"at most {percent(prediction.gap)} above the optimum"
    out.print(
        f"step [bold]{seconds(step_s)}[/], {prediction.samples_per_s:.4g} samples/s; {proof} "
        f"(no plan of this space is below {seconds(prediction.lower_bound_s)})"
    )
    if known:
        name, best = min(known.items(), key=lambda item: item[1].step_s)
        ratio = best.step_s / step_s
        out.print(f"[bold]{ratio:.2f} times as fast[/] as the best default, {name}")
        if ratio < 1 - ROUNDING:
            out.print(f"note: {name} is faster, but lies outside the space that was searched")
    out.print()
    out.print(_baseline_table(result))
    out.print()
    out.print(stage_table(prediction, out.width))
    _show_notes(prediction.notes, out)
    out.print()
    out.print(
        f"{result.trials} trials, {result.candidates} plans scored in {result.seconds:.1f} s"
        f" ({_STOPPED[result.stopped_by]})"
    )
    out.print(f"plan:     {result.plan_path}", markup=False, soft_wrap=True)
    out.print(f"database: {result.storage}, study {result.study}", markup=False, soft_wrap=True)


_STOPPED = {
    "trials": "all trials done",
    "time": "out of time; the same command goes on",
    "optimal": "stopped: nothing better exists",
    "interrupted": "interrupted; the same command goes on",
}


def show_prediction(plan: Plan, prediction: Prediction, out: Console) -> None:
    """A plan's step, its bound and its stages."""
    out.print(f"[bold]plan[/]: {describe(plan)}")
    if not prediction.feasible:
        out.print(f"[bold red]does not fit[/]: lacks {size(prediction.missing_bytes)}")
    out.print(
        f"step [bold]{seconds(prediction.step_s)}[/], {prediction.samples_per_s:.4g} samples/s; "
        f"lower bound {seconds(prediction.lower_bound_s)}, gap {percent(prediction.gap)}"
    )
    out.print(stage_table(prediction, out.width))
    _show_notes(prediction.notes, out)


def describe(plan: Plan) -> str:
    """One line: stages, replicas, devices with the arithmetic, microbatches, schedule."""
    replicas = [stage.replicas for stage in plan.stages]
    stages = len(replicas)
    if len(set(replicas)) == 1:
        devices = f"{plan.num_devices} (={stages}x{replicas[0]})"
    else:
        devices = f"{plan.num_devices} (={'+'.join(map(str, replicas))})"
    order = ""
    if 1 < stages < plan.num_devices:
        order = f", {plan.rank_order}s packed inside nodes"
    groups = sum(len(stage.groups) for stage in plan.stages if stage.replicas > 1)
    merged = f", {groups} gradient groups" if groups else ""
    return (
        f"{stages} stage{'s' * (stages > 1)} on {devices} devices, {plan.microbatches} "
        f"microbatches, {plan.schedule}{order}{merged}"
    )


def _baseline_table(result: SearchResult) -> Table:
    table = Table("plan", box=None, header_style="bold", pad_edge=False)
    for heading in ("step", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("what it is")
    best_s = result.prediction.step_s
    table.add_row("found", seconds(best_s), "1.000", describe(result.plan), style="bold")
    for name, prediction in result.baselines.items():
        if prediction is None:
            table.add_row(name, "-", "-", "no such plan fits the devices")
            continue
        stages = prediction.stages
        detail = f"{len(stages)} stage{'s' * (len(stages) > 1)} x {stages[0].replicas} replicas"
        ratio = f"{prediction.step_s / best_s:.3f}"
        table.add_row(name, seconds(prediction.step_s), ratio, detail)
    return table


def stage_table(prediction: Prediction, width: int) -> Table:
    """Per stage: layers, devices, where the step goes, memory against what there is.

    Narrow terminals (less than 100 columns) leave out the seconds per microbatch.
    """
    table = Table("stage", "layers", "devices", box=None, header_style="bold", pad_edge=False)
    columns: dict[str, Callable[[StagePrediction], float]] = {
        "forward": lambda stage: stage.forward_s,
        "backward": lambda stage: stage.backward_s,
        "compute": lambda stage: stage.compute_s,
        "bubble": lambda stage: stage.bubble_s,
        "top-k": lambda stage: stage.sparsification_s,
        "exposed": lambda stage: stage.exposed_communication_s,
        "update": lambda stage: stage.optimizer_s,
    }
    if not any(stage.sparsification_s for stage in prediction.stages):
        del columns["top-k"]
    if width < _WIDE:
        del columns["forward"], columns["backward"]
    for heading in (*columns, "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for s, stage in enumerate(prediction.stages):
        memory = stage.memory
        table.add_row(
            str(s),
            f"{stage.layers[0]}-{stage.layers[1] - 1}",
            _ranges(stage.devices),
            *(seconds(value(stage)) for value in columns.values()),
            f"{size(memory.total_bytes)} of {size(memory.available_bytes)}",
            style="red" if memory.missing_bytes else None,
        )
    return table


def _show_notes(notes: Iterable[str], out: Console) -> None:
    for note in notes:
        out.print(f"note: {note}", markup=False)


def _ranges(numbers: tuple[int, ...]) -> str:
    """0-3,8 for 0 1 2 3 8; steps of more than one as 0-14/2."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    last = numbers[-1]
    if list(numbers) == list(range(numbers[0], last + 1, step)) and len(numbers) > 2:
        return f"{numbers[0]}-{last}" + (f"/{step}" if step > 1 else "")
    return ",".join(map(str, numbers))


def _shorten(name: str, width: int = 40) -> str:
    name = " ".join(name.split())
    return name if len(name) <= width else name[: width - 3] + "..."
