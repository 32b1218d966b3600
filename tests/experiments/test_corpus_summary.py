"""What the corpus' rows are summed up to."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def corpus(import_experiment):
    return import_experiment("corpus")


def row(case, **fields):
    """A case that was planned, proven best, and compared with nothing."""
    sound = {"status": "planned", "gap": 0.0, "worse_than": [], "search_s": 1.0, "planners": None}
    return {"case": case} | sound | fields


def test_plans_of_other_planners_are_counted_with_the_reasons_of_those_left_out(corpus):
    summary = corpus.summary_of(
        [
            row("a", planners={"compared": 3, "skipped": {"too many devices": 1}}),
            row("b", planners={"compared": 2, "skipped": {"too many devices": 4, "a CPU": 1}}),
            row("c"),
        ],
        seconds=10,
    )
    assert summary["other_plans_compared"] == 5
    assert summary["other_plans_left_out"] == ["too many devices: 5;", "a CPU: 1;"]


def test_cases_with_a_better_plan_elsewhere_are_named(corpus):
    rows = [row("a", worse_than=["other-planners"]), row("b", gap=0.2)]
    summary = corpus.summary_of(rows, seconds=10)
    assert summary["worse_than_others"] == ["a"]
    assert summary["gap_above_5_percent"] == ["b"]
    assert summary["proven_optima"] == 1
