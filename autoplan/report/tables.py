"""Terminal tables of workloads and predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table

from autoplan.plan import Plan
from autoplan.prediction import Prediction, StagePrediction
from autoplan.report.quantities import count, percent, seconds, size
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
    show_notes(prediction.notes, out)


def describe(plan: Plan) -> str:
    """One line: stages, replicas, devices with the arithmetic, microbatches, schedule, groups."""
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
    merged = f", {groups} gradient group{'s' * (groups > 1)}" if groups else ""
    again = sum(stage.recompute for stage in plan.stages)
    recomputed = f", {again} recomputed" if again else ""
    return (
        f"{stages} stage{'s' * (stages > 1)} on {devices} devices, {plan.microbatches} "
        f"microbatches, {plan.schedule}{order}{merged}{recomputed}"
    )


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


def show_notes(notes: Iterable[str], out: Console) -> None:
    """What figures assume, a line each."""
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
