"""Terminal tables of plans that were run for real."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from autoplan.execute.verification import Verification, VerifiedPlan
from autoplan.report.quantities import percent, seconds, size


def show_verification(verification: Verification, out: Console) -> None:
    """Predicted and measured side by side, and which plan to use."""
    table = Table("plan", box=None, header_style="bold", pad_edge=False)
    table.add_column("what it is")
    headings = ("predicted", "measured", "spread", "error", "rank", "memory: predicted", "measured")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    best = verification.best
    for each in verification.plans:
        table.add_row(*_cells(verification, each), style="bold" if each is best else None)
    out.print(table)
    out.print()
    floor = verification.noise_floor
    noise = f"; plans closer than {percent(floor)} are ties" if floor is not None else ""
    modes = verification.plans[0].run.modes
    out.print(
        f"clock: {verification.clock}; {modes.compute} compute, {modes.link} links{noise}; "
        f"ranks are predicted/measured",
        markup=False,
    )
    for each in verification.plans:
        if each.run.reason:
            out.print(f"{each.name}: {each.run.status}: {each.run.reason}", markup=False)
    for note in verification.notes:
        out.print(f"note: {note}", markup=False)
    out.print()
    out.print(verification.summary, style="bold", markup=False)


def _cells(verification: Verification, each: VerifiedPlan) -> list[str]:
    run, plan = each.run, each.plan
    median_s, spread, error = run.median_s, run.spread, each.error
    stages = len(plan.stages)
    replicas = "+".join(str(stage.replicas) for stage in plan.stages)
    ranks = [verification.rank(each, predicted=predicted) for predicted in (True, False)]
    return [
        each.name,
        f"{stages} stage{'s' * (stages > 1)} x {replicas}, {plan.microbatches} mb, {plan.schedule}",
        seconds(each.prediction.step_s),
        run.status if median_s is None else seconds(median_s),
        "-" if spread is None else percent(spread),
        "-" if error is None else f"{100 * error:+.1f} %",
        "-" if None in ranks else f"{ranks[0]}/{ranks[1]}" + " tie" * each.tied,
        size(max(each.predicted_bytes)),
        size(max(run.peak_memory_bytes)) if run.peak_memory_bytes else "-",
    ]
