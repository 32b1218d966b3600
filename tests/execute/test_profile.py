from __future__ import annotations

import argparse
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from autoplan.cli import profile as command
from autoplan.documents import build_json
from autoplan.errors import InputError
from autoplan.execute.layer_steps import TimeProbe, layer_step, whole_step
from autoplan.execute.model_source import load_model
from autoplan.execute.paddle_device import GpuDevice, current_device, set_threads
from autoplan.execute.profile import profile
from autoplan.execute.readings import steady_readings
from autoplan.workload import Workload

paddle = pytest.importorskip("paddle")

HEADER = """
import paddle
from paddle import nn
from paddle.nn import functional

def mean(output, labels):
    return (output.mean(axis=-1) - labels).square().mean()

def sample(width=64, batch=8):
    return paddle.ones([batch, width]), paddle.zeros([batch])
"""

TINY = """
class Twin(nn.Layer):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 32)
    def forward(self, ids):
        return self.table(ids), ids

def fold(states, ids):
    return states.reshape([states.shape[0], -1])

def build():
    layers = [Twin(), fold, nn.Linear(16 * 32, 256), nn.Linear(256, 2048), nn.Linear(2048, 2048)]
    layers[3].bias.stop_gradient = True
    ids = paddle.arange(8 * 16).reshape([8, 16]) % 50
    return layers, (ids, paddle.zeros([8])), mean
"""


def profiled(folder, text, **options) -> Workload:
    path = folder / "model_file.py"
    path.write_text(HEADER + text, encoding="utf-8")
    return profile(f"{path}:build", **options)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Workload:
    return profiled(tmp_path_factory.mktemp("tiny"), TINY, repeats=9)


def test_layers_are_named_by_class_or_function_and_number(tiny):
    names = [layer.name for layer in tiny.layers]
    assert names == ["Twin.0", "fold.1", "Linear.2", "Linear.3", "Linear.4"]
    assert tiny.name == "model_file"


def test_curves_have_three_positive_points_and_their_spread(tiny):
    for layer in tiny.layers:
        for curve in (layer.forward, layer.backward):
            assert curve.samples == (2.0, 4.0, 8.0)
            assert min(curve.seconds) > 0
            assert curve.spread_s is not None
            assert 0 <= curve.overhead_s <= curve.seconds[0]


def test_gradients_are_the_trainable_elements(tiny):
    trainable = [50 * 32, 0, 512 * 256 + 256, 256 * 2048, 2048 * 2048 + 2048]
    assert [layer.gradient_elements for layer in tiny.layers] == trainable
    assert tiny.layers[3].parameter_bytes == 4 * (256 * 2048 + 2048)


def test_stash_of_a_linear_layer_is_its_output(tiny):
    assert tiny.layers[2].stash_bytes_per_sample == pytest.approx(4 * 256, abs=64)
    assert tiny.layers[3].stash_bytes_per_sample == pytest.approx(4 * 2048, abs=64)


def test_backward_holds_a_fresh_weight_gradient_for_a_moment(tiny):
    weight_bytes = 4 * 2048 * 2048
    last = tiny.layers[4]
    assert last.workspace_bytes == pytest.approx(weight_bytes, rel=0.05)
    assert last.workspace_bytes_per_sample < 0.01 * weight_bytes


def test_cuts_count_every_tensor_that_crosses(tiny):
    ids, states = 16 * 8, 16 * 32 * 4
    expected = (ids, ids + states, states, 4 * 256, 4 * 2048, 0)
    assert tiny.cut_bytes_per_sample == expected


def test_provenance_says_where_the_figures_come_from(tiny):
    origin = tiny.provenance
    assert origin.source == "model_file.py:build"
    assert len(origin.source_sha256) == 64
    assert origin.device
    assert origin.threads is None or origin.threads >= 1
    assert origin.framework == f"paddlepaddle {paddle.__version__}"
    assert any("median of 9 repeats" in note for note in origin.notes)
    assert any("float32" in note for note in origin.notes)


def test_a_layer_of_sixteen_times_the_work_takes_longer(tiny):
    narrow, wide = tiny.layers[2], tiny.layers[4]
    assert wide.forward.seconds[-1] > 1.5 * narrow.forward.seconds[-1]
    assert wide.backward.seconds[-1] > 1.5 * narrow.backward.seconds[-1]


def test_a_shared_parameter_counts_once_in_the_first_layer(tmp_path):
    workload = profiled(
        tmp_path,
        """
def build():
    first, last = nn.Linear(64, 64), nn.Linear(64, 64)
    last.weight = first.weight
    return [first, functional.relu, last], sample(), mean
""",
    )
    assert [x.gradient_elements for x in workload.layers] == [64 * 64 + 64, 0, 64]
    note = "4096 elements is shared by Linear.0 and Linear.2: counted once, in the first"
    assert any(note in line for line in workload.provenance.notes)


def test_sizes_can_be_chosen(tmp_path):
    text = "def build(): return [nn.Linear(64, 64)], sample(), mean"
    workload = profiled(tmp_path, text, microbatch_sizes=(5, 1, 3, 8))
    assert workload.layers[0].forward.samples == (1.0, 3.0, 5.0, 8.0)


FAULTS = {
    "def build(): raise RuntimeError('no weights')": "build(): found RuntimeError: no weights",
    "def build(): return 3": "result: found a value of type int; allowed: (layers",
    "def build(): return [], sample(), mean": "layers: found (); allowed: at least one layer",
    "def build(): return [3], sample(), mean": "layers[0]: found 3; allowed: a paddle.nn.Layer",
    "def build(): return [nn.ReLU()], sample()[0], mean": "allowed: (inputs, labels)",
    "def build(): return [nn.ReLU()], sample(), 3": "loss: found 3; allowed: a callable",
    "def build(): return [nn.ReLU()], (paddle.ones([8, 2]), paddle.ones([4])), mean": "[8, 4]",
    "def build(): return [nn.Linear(64, 1)], sample(batch=3), mean": "sample: found 3; allowed",
    "def build(): return [nn.Linear(64, 1)], sample(), lambda o, l: o": "loss: found a result of",
    "def build(): return [nn.Linear(64, 1)], sample(), lambda o, l: 1.0": "loss: found type float",
    "def build(): return [nn.ReLU()], sample(), mean": "loss: found a loss without gradient",
    "def build(): return [nn.Linear(64, 5), nn.Linear(64, 5)], sample(), mean": (
        "m.py:build: forward of layers[1] (Linear.1): found ValueError: In operator matmul"
    ),
    "def build(): return [lambda x: 'text', nn.ReLU()], sample(), mean": "found type str; allowed",
    "def build(:": "import: found SyntaxError",
    "import no_such_module_at_all": "import: found ModuleNotFoundError: No module named",
    "raise SystemExit(3)": "import: found SystemExit: 3",
    "x = 1": "no function 'build' in",
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_of_the_model_are_told_in_one_line(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(HEADER + text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(FAULTS[text])) as caught:
        profile("m.py:build")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("experiments/models/uneven_gpt.py", "allowed: MODULE:FUNCTION"),
        (":build", "allowed: MODULE:FUNCTION"),
        ("no_such_module_at_all:build", "No module named 'no_such_module_at_all'"),
        ("absent/model.py:build", "found no .py file absent/model.py"),
        ("json:no_such_function", "no function 'no_such_function' in json"),
    ],
)
def test_a_wrong_source_is_refused(source, message):
    with pytest.raises(InputError, match=re.escape(message)):
        profile(source)


@pytest.mark.parametrize("sizes", [(1, 2), (0, 1, 2), (2, 4, 9), (4, 4, 4)])
def test_fewer_than_three_sizes_or_wrong_ones_are_refused(tmp_path, sizes):
    with pytest.raises(InputError, match="3 or more different sizes of 1 to 8"):
        profiled(
            tmp_path,
            "def build(): return [nn.Linear(64, 1)], sample(), mean",
            microbatch_sizes=sizes,
        )


def test_fewer_than_seven_repeats_are_refused():
    with pytest.raises(InputError, match="repeats: found 3; allowed: at least 7"):
        profile("json:loads", repeats=3)


def test_a_missing_framework_is_told_with_the_way_out(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "paddle", None)
    with pytest.raises(InputError, match=re.escape("pip install 'autoplan[paddle]'")):
        profile("json:loads")


def test_a_step_in_pieces_gives_the_gradients_of_the_whole(tmp_path):
    path = tmp_path / "skip.py"
    text = """
class Fork(nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
    def forward(self, states, *skip):
        return (self.linear(states), *(skip or (states,)))
def build():
    add = lambda states, skip: states + skip
    return [nn.Linear(64, 64), Fork(), Fork(), add, nn.Linear(64, 4)], sample(), mean
"""
    path.write_text(HEADER + text, encoding="utf-8")
    model = load_model(f"{path}:build")
    weights = [
        w for layer in model.layers if hasattr(layer, "parameters") for w in layer.parameters()
    ]
    layer_step(model, model.batch(8), TimeProbe(current_device()))
    in_pieces = [weight.grad.numpy().copy() for weight in weights]
    for weight in weights:
        weight.clear_grad()
    whole_step(model, model.batch(8))
    for weight, gradient in zip(weights, in_pieces, strict=True):
        np.testing.assert_allclose(weight.grad.numpy(), gradient, rtol=1e-4, atol=1e-6)
    assert np.abs(in_pieces[0]).max() > 0


def test_a_slow_round_does_not_reach_the_curves():
    rng = np.random.default_rng(5)
    calls = [(direction, i) for direction in ("forward", "backward") for i in range(6)]
    true_s = dict(zip(calls, rng.uniform(1e-3, 1e-2, len(calls)), strict=True))
    slow_R = rng.uniform(1.0, 2.0, 15)
    read = {
        n: {call: [(9.0, n * s * slow) for slow in slow_R] for call, s in true_s.items()}
        for n in (2, 4, 8)
    }
    whole = {n: [(9.0, n * sum(true_s.values()) * slow) for slow in slow_R] for n in read}
    readings = steady_readings(read, whole, cpu_clock=True)
    assert readings.seam_s == pytest.approx(0.0, abs=1e-9)
    median_speed = float(np.median(slow_R))
    for call, s in true_s.items():
        curve = readings.curve(call)
        assert curve.seconds == pytest.approx([n * s * median_speed for n in (2, 4, 8)])
        assert curve.spread_s == pytest.approx([0.0] * 3, abs=1e-9)
        assert curve.overhead_s == pytest.approx(0.0, abs=1e-9)
    assert readings.noise(steady=False) > 0.1


def test_what_starting_each_backward_alone_costs_is_taken_out():
    calls = [(direction, i) for direction in ("forward", "backward") for i in range(5)]
    read = {n: {call: [(9.0, n * 1e-3)] * 9 for call in calls} for n in (1, 2, 4)}
    whole = {n: [(9.0, n * 10e-3 - 4 * 2e-4)] * 9 for n in read}
    readings = steady_readings(read, whole, cpu_clock=True)
    assert readings.seam_s == pytest.approx(2e-4)
    assert readings.curve(("forward", 0)).seconds == pytest.approx((1e-3, 2e-3, 4e-3))
    summed_s = [sum(readings.curve(call).seconds[i] for call in calls) for i in range(3)]
    assert summed_s == pytest.approx([whole[n][0][1] for n in (1, 2, 4)])
    assert readings.excess_over_whole() == pytest.approx(0.0, abs=1e-9)


def test_every_call_on_a_gpu_exists_in_paddle():
    asked = []

    class Cuda:
        def __getattr__(self, name):
            assert callable(getattr(paddle.device.cuda, name))
            asked.append(name)
            return lambda: 7

    device = GpuDevice(SimpleNamespace(device=SimpleNamespace(cuda=Cuda())))
    device.synchronize()
    assert (device.allocated_bytes(), device.peak_bytes(reset=True), device.threads) == (7, 7, None)
    assert set(asked) >= {"get_device_name", "synchronize", "reset_max_memory_allocated"}


def test_threads_are_set_and_told(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    set_threads(2)
    assert current_device().threads == 2
    set_threads(1)
    with pytest.raises(InputError, match="threads: found 0"):
        set_threads(0)


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["profile", *words])


def test_the_command_writes_the_file_and_prints_one_document(tmp_path, capsys):
    model, out = tmp_path / "m.py", tmp_path / "new" / "w.json"
    text = "def build():\n    print('loading')\n    return [nn.Linear(64, 8)], sample(), mean"
    model.write_text(HEADER + text, encoding="utf-8")
    args = arguments(f"{model}:build", "--out", str(out), "--sizes", "1,2,4", "--json")
    assert command.run(args) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    workload = build_json(Workload, out.read_bytes(), str(out))
    assert summary["sha256"] == workload.sha256
    assert (summary["layers"], summary["samples"]) == (1, 4)
    assert "layer 1 of 1: Linear.0" in printed.err
    assert "loading" in printed.err


@pytest.mark.parametrize("out", ["/proc/no/w.json", "."])
def test_the_command_refuses_a_place_it_cannot_write_before_it_measures(out):
    with pytest.raises(InputError, match="--out"):
        command.run(arguments("no_such_module_at_all:build", "--out", out))


def test_the_command_refuses_sizes_that_are_no_numbers(tmp_path):
    with pytest.raises(InputError, match="--sizes"):
        command.run(arguments("m:f", "--out", str(tmp_path / "w"), "--sizes", "1,two"))
