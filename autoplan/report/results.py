"""Terminal tables of the experiment database."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from autoplan.report.quantities import percent, seconds, size
from autoplan.results.comparison import ComparedPlan, Comparison
from autoplan.results.queries import ExperimentSummary, Leader

_NOTE_WIDTH = 14
_HASH_CHARACTERS = 10
"""Of a plan's sha256; `results show --plan` finds the plan by them."""


def show_experiments(experiments: Sequence[ExperimentSummary], out: Console) -> None:
    """One line per experiment with the best of its plans."""
    if not experiments:
        out.print("no experiments")
        return
    table = _table("experiment", "workload", "cluster")
    for heading in ("plans", "feasible", "best predicted", "gap", "runs", "best measured"):
        table.add_column(heading, justify="right")
    table.add_column("stopped by")
    for each in experiments:
        table.add_row(
            each.name,
            each.workload or "-",
            each.cluster or "-",
            str(each.num_plans),
            str(each.num_feasible),
            _seconds(each.best_predicted_step_s),
            "-" if each.gap is None else percent(each.gap),
            f"{each.num_measured} of {each.num_real_runs}" if each.num_real_runs else "-",
            _seconds(each.best_measured_step_s),
            each.stopped_by or "-",
        )
    out.print(table)


def show_leaders(rows: Sequence[Leader], total: int, out: Console) -> None:
    """Plans, best first, with what was measured."""
    table = _table("plan")
    for heading in ("stages on\ndevices", "micro-\nbatches"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("schedule", no_wrap=True)
    for heading in ("predicted", "memory", "measured", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("by")
    table.add_column("note", min_width=_NOTE_WIDTH)
    for row in rows:
        error = row["prediction_error_share"]
        measured = _seconds(row["measured_step_s"])
        clock = f" ({row['clock']})" if row["clock"] else ""
        memory = row["predicted_peak_memory_bytes"]
        table.add_row(
            row["plan_sha256"][:_HASH_CHARACTERS],
            f"{row['num_stages']} on {row['num_devices']}",
            str(row["microbatches"]),
            row["schedule"],
            _seconds(row["predicted_step_s"]),
            "-" if memory is None else size(memory),
            measured + clock,
            "-" if error is None else _signed(error),
            row["proposed_by"] or "-",
            _why_not(row),
            style=None if row["feasible"] else "dim",
        )
    out.print(table)
    if total > len(rows):
        out.print(f"{len(rows)} of {total} plans; --limit shows more")


def _why_not(row: Leader) -> str:
    """What keeps a plan from being used; nothing where nothing does."""
    if row["feasible"]:
        return ""
    missing_bytes = row["missing_bytes"]
    return f"lacks {size(missing_bytes)}" if missing_bytes else str(row["reason"])


def show_comparisons(comparisons: Sequence[Comparison], out: Console) -> None:
    """Predicted beside measured, one table per kind of run."""
    if not comparisons:
        out.print("no real runs")
    for i, comparison in enumerate(comparisons):
        if i:
            out.print()
        _show_comparison(comparison, out)


def _show_comparison(comparison: Comparison, out: Console) -> None:
    out.print(
        f"[bold]{comparison.clock} clock[/], {comparison.compute_mode} compute, "
        f"{comparison.link_mode} links, {comparison.device_kind}"
    )
    table = _table("plan", "by")
    for heading in ("predicted", "measured", "error", "spread", "load", "rank: predicted",
                    "measured"):  # fmt: skip
        table.add_column(heading, justify="right")
    table.add_column("note")
    for plan in comparison.plans:
        table.add_row(*_compared_cells(plan))
    out.print(table)
    if comparison.mean_error_share is not None:
        verdict = {
            True: "; the best predicted plan was the fastest",
            None: "",
            False: "; the best predicted plan was not the fastest",
        }[comparison.best_is_best]
        out.print(f"mean error {percent(comparison.mean_error_share)}{verdict}")


def _compared_cells(plan: ComparedPlan) -> list[str]:
    load = plan.foreign_load_share
    return [
        plan.plan_sha256[:_HASH_CHARACTERS],
        plan.proposed_by or "-",
        _seconds(plan.predicted_step_s),
        _seconds(plan.measured_step_s),
        "-" if plan.error_share is None else _signed(plan.error_share),
        "-" if plan.spread_share is None else percent(plan.spread_share),
        "-" if load is None else percent(load),
        str(plan.predicted_rank or "-"),
        str(plan.measured_rank or "-"),
        "" if plan.reason is None else f"{plan.status}: {plan.reason}",
    ]


def _table(*headings: str) -> Table:
    return Table(*headings, box=None, header_style="bold", pad_edge=False)


def _seconds(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _signed(share: float) -> str:
    """+1.2 %, -3.4 %."""
    return f"{100 * share:+.1f} %"
