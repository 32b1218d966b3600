from __future__ import annotations

import csv
import importlib.util
import json
import statistics
import sys
from pathlib import Path

import pytest

from autoplan.documents import build_json
from autoplan.workload import Workload

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "workloads"


def committed(name: str) -> Workload:
    path = FOLDER / name
    return build_json(Workload, path.read_bytes(), str(path))


@pytest.fixture(scope="module")
def paper() -> Workload:
    return committed("gpt-1.5b-a100.json")


@pytest.fixture(scope="module")
def measured() -> Workload:
    return committed("uneven-gpt-cpu.json")


@pytest.fixture(scope="module")
def script():
    path = FOLDER / "make_gpt_1_5b_a100.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_the_paper_model_has_the_parameters_of_the_formula(paper):
    layers, h, s, v = 22, 2304, 1024, 51200
    tied = 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h))
    elements = sum(layer.gradient_elements for layer in paper.layers)
    assert elements == pytest.approx(tied + v * h, rel=0.01)
    assert sum(layer.parameter_bytes for layer in paper.layers) == 2 * elements


def test_the_paper_model_has_embedding_blocks_and_head(paper):
    assert len(paper.layers) == 24
    assert len({(x.forward, x.backward) for x in paper.layers[1:-1]}) == 1
    assert set(paper.cut_bytes_per_sample[1:-1]) == {2.0 * 1024 * 2304}
    assert paper.cut_bytes_per_sample[-1] == 0


def test_overheads_stay_a_small_part_of_the_paper_times(paper):
    for layer in paper.layers:
        for curve in (layer.forward, layer.backward):
            assert curve.overhead_s < 0.15 * curve.seconds[0]


def test_peak_memory_of_the_paper_is_met(paper):
    # 1F1B on 8 stages: stage 1 holds three layers and 7 microbatches of 6; 16 bytes per element.
    block = paper.layers[1]
    held = 3 * (7 * 6 * block.stash_bytes_per_sample + 16 * block.gradient_elements)
    assert held / 1e9 == pytest.approx(30, rel=0.05)


def test_three_layers_take_the_published_stage_times(paper, shared_facts):
    table = (shared_facts / "measured" / "meas_zerobubble_profile.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(table.splitlines()) if row["model"] == "1.5B"]
    seconds = {n: statistics.median(float(r[n]) for r in rows) / 1e3 for n in rows[0] if "T_" in n}
    block = paper.layers[1]
    backward_s = seconds["T_B_ms"] + seconds["T_W_ms"]
    assert 3 * block.forward.at(6) == pytest.approx(seconds["T_F_ms"], rel=1e-9)
    assert 3 * block.backward.at(6) == pytest.approx(backward_s, rel=1e-9)
    share = seconds["T_W_ms"] / backward_s
    assert block.weight_gradient_share == pytest.approx(share, rel=1e-9)


def test_the_script_rebuilds_the_committed_file(script, shared_facts, tmp_path, capsys):
    out = tmp_path / "again.json"
    assert script.main(["--facts", str(shared_facts), "--out", str(out), "--json"]) == 0
    assert out.read_bytes() == (FOLDER / "gpt-1.5b-a100.json").read_bytes()
    assert json.loads(capsys.readouterr().out)["layers"] == 24


def test_absent_facts_are_told_in_one_line(script, tmp_path, capsys):
    assert script.main(["--facts", str(tmp_path), "--out", str(tmp_path / "w.json")]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "no such file" in message
    assert not (tmp_path / "w.json").exists()


def test_the_measured_model_has_the_parameters_of_its_shapes(measured):
    multipliers, h, s, v = (1, 8, 2, 4, 1, 6, 1, 3, 8, 2, 12, 1, 4, 2), 192, 128, 2000
    blocks = [4 * h * h + 9 * h + 2 * m * h * h + m * h for m in multipliers]
    expected = [(v + s) * h, *blocks, 2 * h + h * v + v]
    assert [layer.gradient_elements for layer in measured.layers] == expected


def test_wider_blocks_of_the_measured_model_take_longer(measured):
    narrow, wide = measured.layers[1], measured.layers[11]
    for a, b in ((narrow.forward, wide.forward), (narrow.backward, wide.backward)):
        assert all(x < y for x, y in zip(a.seconds, b.seconds, strict=True))
        assert list(a.seconds) == sorted(a.seconds)


def test_the_measured_model_is_close_to_affine_in_the_microbatch(measured):
    for layer in measured.layers:
        for curve in (layer.forward, layer.backward):
            (n1, n2, n3), (t1, t2, t3) = curve.samples, curve.seconds
            between = t1 + (t3 - t1) * (n2 - n1) / (n3 - n1)
            assert t2 == pytest.approx(between, rel=0.15)
