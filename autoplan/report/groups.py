"""The terminal view of grouping policies."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from autoplan.gradsync.comparison import Comparison
from autoplan.report.quantities import percent, seconds


def show_comparison(comparison: Comparison, noise: float, out: Console) -> None:
    """Every policy's end beside the optimum, the verdict, and how firm it is."""
    table = Table("policy", box=None, header_style="bold", pad_edge=False)
    for heading in ("end", "gap to exact", "groups", "exposed comm", "top-k", "densities"):
        table.add_column(heading, justify="right")
    for name, grouping in sorted(
        comparison.groupings.items(), key=lambda item: (item[1].finish_s, item[0] != "exact")
    ):
        timing = grouping.timing
        table.add_row(
            name,
            seconds(timing.finish_s),
            percent(max(0.0, comparison.gap(name))),
            str(len(grouping.groups)),
            seconds(timing.exposed_s),
            seconds(timing.sparsify_s),
            _densities(grouping.densities),
            style="bold" if name == "exact" else None,
        )
    out.print(table)
    bound_s = comparison.lower_bound_s
    proven = (
        "" if comparison.best_s > bound_s * (1 + 1e-9) else ", which the exact grouping reaches"
    )
    out.print(
        f"seconds after backward starts; backward alone takes {seconds(comparison.compute_s)}; "
        f"no contiguous grouping ends before {seconds(bound_s)}{proven}"
    )
    _show_verdict(comparison, noise, out)
    for what, other in comparison.sensitivities.items():
        out.print(
            f"if {what}: best with {other.num_groups} groups, {seconds(other.finish_s)}; today's "
            f"best grouping is then {percent(max(0.0, other.regret))} off"
        )


def _show_verdict(comparison: Comparison, noise: float, out: Console) -> None:
    """Says plainly whether there is anything to gain."""
    if comparison.nothing_to_gain(noise):
        out.print(
            f"[bold]nothing to gain[/]: all policies end within {percent(noise)} of each other, "
            f"which is measurement noise"
        )
        return
    default = comparison.gap("threshold")
    if default <= noise:
        out.print(
            f'[bold]nothing to gain over PyTorch\'s default[/]: "threshold" is within '
            f"{percent(noise)} of the optimum, which is measurement noise"
        )
    else:
        out.print(f"[bold]to gain[/]: PyTorch's default ends {percent(default)} later than exact")


def _densities(densities: tuple[float, ...]) -> str:
    """Each density that groups have, with the number of groups."""
    counts = {density: densities.count(density) for density in sorted(set(densities))}
    return ", ".join(f"{count} at {density:g}" for density, count in counts.items())
