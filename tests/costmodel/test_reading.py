from __future__ import annotations

import pytest

from autoplan.costmodel import Op, TensorInfo
from autoplan.costmodel.reading import in_bulk


def test_instances_made_in_bulk_equal_those_of_the_constructor():
    rows = [("a", (2, 3), "float32"), ("b", (), "int64")]
    made = in_bulk(TensorInfo, ("name", "shape", "dtype"), rows)
    assert made == [
        TensorInfo(name="a", shape=(2, 3), dtype="float32"),
        TensorInfo(name="b", shape=(), dtype="int64"),
    ]
    assert in_bulk(TensorInfo, ("name", "shape", "dtype"), []) == []


def test_fields_of_any_order_and_mutable_defaults_are_each_instances_own():
    one, two = in_bulk(Op, ("id", "inputs", "type"), [(7, (0,), "relu"), (8, (1,), "tanh")])
    assert one == Op(type="relu", inputs=(0,), id=7)
    assert two == Op(type="tanh", inputs=(1,), id=8)
    assert one.attributes is not two.attributes


def test_rows_that_lack_a_field_are_refused():
    with pytest.raises(AssertionError, match="dtype"):
        in_bulk(TensorInfo, ("name", "shape"), [("a", ())])
    with pytest.raises(IndexError):
        in_bulk(TensorInfo, ("name", "shape", "dtype"), [("a", (), "bool"), ("b", ())])
