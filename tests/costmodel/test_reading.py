from __future__ import annotations

import pytest

from autoplan.costmodel import Op, TensorInfo
from autoplan.costmodel.reading import in_bulk


def test_instances_made_in_bulk_equal_those_of_the_constructor():
    columns = {"name": ["a", "b"], "shape": [(2, 3), ()], "dtype": ("float32", "int64")}
    assert in_bulk(TensorInfo, columns) == [
        TensorInfo(name="a", shape=(2, 3), dtype="float32"),
        TensorInfo(name="b", shape=(), dtype="int64"),
    ]
    assert in_bulk(TensorInfo, dict.fromkeys(columns, ())) == []


def test_fields_of_any_order_and_mutable_defaults_are_each_instances_own():
    columns = {"id": [7, 8], "inputs": [(0,), (1,)], "type": ["relu", "tanh"]}
    one, two = in_bulk(Op, columns)
    assert one == Op(type="relu", inputs=(0,), id=7)
    assert two == Op(type="tanh", inputs=(1,), id=8)
    assert one.attributes is not two.attributes


def test_columns_that_lack_a_field_or_a_value_are_refused():
    with pytest.raises(AssertionError, match="dtype"):
        in_bulk(TensorInfo, {"name": ["a"], "shape": [()]})
    with pytest.raises(AssertionError, match="shape"):
        in_bulk(TensorInfo, {"name": ["a", "b"], "shape": [()], "dtype": ["bool", "bool"]})
