"""The problems that PipeDream, dnn-partitioning and Piper solve, as chains of ideals.

Each is stated as the planner's code states it, its errors included, so that figures are of one
thing; the module of each says what that is.
"""

from __future__ import annotations

import re
from pathlib import Path

from validation.dnn_problem import solve_dnn_partitioning
from validation.peer_rows import PeerRow
from validation.peer_solved import Solved
from validation.pipedream_problem import solve_pipedream
from validation.piper_problem import solve_piper

from autoplan.pipeline.ideals import MOST_IDEALS

SOLVERS = {
    "pipedream": solve_pipedream,
    "dnn-partitioning": solve_dnn_partitioning,
    "piper": solve_piper,
}
ONE_ORDER = ("-linearize", "-pipeDream", "-expert", "-oneFpga")
"""Arguments with which dnn-partitioning tries less than all ideals; so does "runPipeDream2BW"."""
FEW_IDEALS = 500


def solve(row: PeerRow, data: Path) -> Solved:
    """Reads the input of a row and solves its problem.

    Against a planner that tries one linear order, or less, all ideals are only tried where they
    are few; against one that tries them all, ours does too.
    """
    one_order = any(flag in row.args for flag in ONE_ORDER) or "runPipeDream2BW" in row.program
    document = row.data_path(data).read_bytes()
    return SOLVERS[row.peer](row, document, FEW_IDEALS if one_order else MOST_IDEALS)


def why_not(row: PeerRow, data: Path) -> str | None:
    """Why a row has no counterpart here, None where it has one."""
    if "inserted layers" in row.input or not row.data_path(data).is_file():
        return "its input is not in shared/data"
    if row.peer == "piper" and re.search(r" t([2-9]|\d\d)", row.split):
        return "its plan has tensor parallel stages"
    if "-localSearch" in row.args:
        return "its devices hold pieces that are not contiguous, and their memory is not checked"
    return None
