"""The small variant on whatever machine this is; whether targets are met is the script's to say."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

pytest.importorskip("paddle")


@pytest.fixture(scope="module")
def reports(import_experiment):
    script = import_experiment("validate_real")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        script.main(["--small", "--json", "--rounds", "3", "--repeats", "7"])
    found = json.loads(printed.getvalue())["reports"]
    return {(each["layer"], each["model"]): each for each in found}


def test_two_models_run_every_plan_in_two_layers(reports):
    assert set(reports) == {(layer, model) for layer in "AB" for model in ("mlp", "conv")}
    for report in reports.values():
        assert report["broken"] == {}
        assert report["figures"]["plans"] == 8


@pytest.mark.parametrize("model", ["mlp", "conv"])
def test_emulated_steps_take_what_was_predicted(reports, model):
    report = reports["A", model]
    # A step waits for the slowest wake-up on its way, so that some lateness is the machine's.
    assert report["figures"]["largest error"] < 0.06
    assert report["figures"]["Spearman"] > 0.9
    for row in report["plans"]:
        assert min(row["wall_s"]) > row["predicted_s"] * (1 - 1e-3)
        assert row["virtual_s"] == pytest.approx([row["predicted_s"]] * 3, rel=1e-9)


@pytest.mark.parametrize("model", ["mlp", "conv"])
def test_real_steps_take_about_what_was_predicted(reports, model):
    report = reports["B", model]
    assert 0.6 < report["factor"] < 1.6
    assert report["figures"]["MAPE"] < 0.10
    assert report["figures"]["largest error"] < 0.25
    assert report["figures"]["Spearman"] > 0.6
