from __future__ import annotations

import dataclasses

import pytest

from autoplan.costmodel.graph import Op, TensorInfo
from autoplan.costmodel.measurements import Measurement, Measurements, grow, load_measurements
from autoplan.costmodel.signature import signature
from autoplan.errors import InputError


def database(**seconds):
    ops = {name: Measurement(seconds=value) for name, value in seconds.items()}
    return Measurements(device="cpu", framework="paddle 3", threads=1, ops=ops)


def test_a_file_grows_and_newer_measurements_replace_older_ones(tmp_path):
    path = tmp_path / "ops.json"
    grow(path, database(a=1.0, b=2.0))
    grow(path, dataclasses.replace(database(b=3.0, c=4.0), step_overhead_s=0.5))
    found = load_measurements(path)
    assert {key: value.seconds for key, value in found.ops.items()} == {"a": 1, "b": 3, "c": 4}
    assert found.step_overhead_s == 0.5


@pytest.mark.parametrize(
    ("field", "value"), [("device", "gpu"), ("framework", "paddle 2"), ("threads", 2)]
)
def test_measurements_of_another_device_are_not_mixed_in(tmp_path, field, value):
    path = tmp_path / "ops.json"
    grow(path, database(a=1.0))
    with pytest.raises(InputError, match=field) as caught:
        grow(path, dataclasses.replace(database(b=1.0), **{field: value}))
    assert str(path) in str(caught.value)
    assert set(load_measurements(path).ops) == {"a"}


def test_negative_times_are_refused_with_their_place(tmp_path):
    path = tmp_path / "ops.json"
    path.write_text(
        '{"device": "d", "framework": "f", "ops": {"relu": {"seconds": -1}}}', encoding="utf-8"
    )
    with pytest.raises(InputError, match=r"ops\.relu\.seconds"):
        load_measurements(path)


def test_a_signature_tells_shapes_formats_and_attributes_apart():
    def key(shape=(2, 3), dtype="float32", slots=("x",), **attributes):
        tensors = (TensorInfo(name="any", shape=shape, dtype=dtype),)
        op = Op(type="relu", inputs=(0,), input_slots=slots, attributes=attributes, id=5)
        return signature(op, tensors)

    keys = [key(), key(shape=(3, 2)), key(dtype="float16"), key(slots=("y",)), key(axis=1)]
    assert len(set(keys)) == len(keys)
    assert key(axis=1, keep=True) == key(keep=True, axis=1)


def test_a_signature_does_not_depend_on_the_order_of_slots():
    tensors = tuple(TensorInfo(name=n, shape=(i,), dtype="int8") for i, n in enumerate("ab"))
    one = Op(type="f", inputs=(0, 1), input_slots=("x", "y"))
    other = Op(type="f", inputs=(1, 0), input_slots=("y", "x"))
    assert signature(one, tensors) == signature(other, tensors)
