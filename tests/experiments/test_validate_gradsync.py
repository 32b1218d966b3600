"""The DDL benchmarks are predicted as well as they were when the model was chosen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "validate_gradsync.py"
METHODS = {"BSP", "WFBP", "MG-WFBP"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own."""
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def document(shared_facts: Path) -> dict[str, Any]:
    """What the script finds."""
    done = run("--facts", str(shared_facts), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_setting_has_a_prediction_of_each_method(document):
    settings = defaultdict(set)
    for row in document["rows"]:
        assert row["measured_s"] > 0
        assert row["predicted_s"] >= row["single_gpu_s"] * 0.999
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
        settings[row["model"], row["network"], row["gpus"]].add(row["method"])
    assert {model for model, _, _ in settings} == {"ResNet-50", "BERT-Base", "BERT-Large"}
    assert all(methods == METHODS for methods in settings.values())
    assert len(settings) >= 32


def test_no_model_is_predicted_by_a_fit_that_knows_it(document):
    for row in document["rows"]:
        left_out = f"without {row['model']}"
        assert row["fit"] == (left_out if left_out in document["fits"] else "on both")
    assert "without BERT-Large" not in document["fits"]
    assert document["link"]["calibrated_on"] == "BSP"
    assert all(s > 0 for s in document["link"]["s_per_byte"].values())
    assert document["link"]["host_s_per_tensor"] >= 0


@pytest.mark.parametrize("kind", ["uncalibrated", "all methods"])
def test_mape_is_that_of_the_rows(document, kind):
    rows = [row for row in document["rows"] if kind == "all methods" or row["method"] != "BSP"]
    for name, mape in document["mape"][kind].items():
        named = [
            abs(row["error"])
            for row in rows
            if name in ("overall", row["model"], row["network"])
            or name == f"{row['model']}, {row['network']}"
        ]
        assert mape == pytest.approx(fmean(named)), name


def test_ranking_is_that_of_the_rows(document):
    settings = defaultdict(list)
    for row in document["rows"]:
        settings[row["model"], row["network"], row["gpus"]].append(row)
    right, pairs = {}, []
    for setting, rows in settings.items():
        outcomes = []
        for pair in combinations(rows, 2):
            low, high = sorted(pair, key=lambda row: row["measured_s"])
            if high["measured_s"] / low["measured_s"] - 1 > document["ranking"]["margin"]:
                outcomes.append(high["predicted_s"] > low["predicted_s"])
        if outcomes:
            right[setting] = all(outcomes)
            pairs += outcomes
    judged = document["ranking"]["settings"]
    assert {(s["model"], s["network"], s["gpus"]): s["right"] for s in judged} == right
    assert document["ranking"]["share"] == pytest.approx(fmean(right.values()))
    assert document["ranking"]["share_of_pairs"] == pytest.approx(fmean(pairs))


def test_predictions_are_as_good_as_they_were(document):
    """Reached: 5.2 %, 6.2 %, 4.3 % and 5.0 %; with BSP 3.7 %; the order in 93.5 % and 96.2 %."""
    mape = document["mape"]["uncalibrated"]
    assert mape["overall"] < 0.056
    assert mape["ResNet-50"] < 0.067
    assert mape["BERT-Base"] < 0.047
    assert mape["BERT-Large"] < 0.054
    assert document["mape"]["all methods"]["overall"] < 0.041
    assert document["ranking"]["share"] >= 0.90
    assert document["ranking"]["share_of_pairs"] >= 0.94


def test_what_is_unexplained_is_said(document):
    assert len(document["unexplained"]) >= 4
    assert all(
        sentence.endswith(".") and "{" not in sentence for sentence in document["unexplained"]
    )


def test_text_for_people_has_the_figures(shared_facts):
    done = run("--facts", str(shared_facts))
    assert done.returncode == 0, done.stderr
    assert "MAPE without BSP" in done.stdout
    assert "What it cannot explain" in done.stdout


def test_absent_facts_are_said_in_one_line(tmp_path):
    done = run("--facts", str(tmp_path / "none"))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert str(tmp_path / "none") in done.stderr
