from __future__ import annotations

import pytest

from autoplan.costmodel.graph import Collective, Op, OpGraph, TensorInfo, load_graph
from autoplan.errors import InputError


def loop():
    body = Op(type="relu", inputs=(0,), outputs=(1,), input_slots=("x",), output_slots=("out",))
    exchange = Op(
        type="all_reduce",
        inputs=(1,),
        outputs=(1,),
        role="backward",
        collective=Collective(kind="all_reduce", ring=3, num_ranks=2),
        attributes={"use_calc_stream": True, "axes": (0, 1)},
    )
    return OpGraph(
        tensors=(
            TensorInfo(name="x", shape=(-1, 4), dtype="float32"),
            TensorInfo(name="y", shape=(2, 4), dtype="bfloat16", persistable=True),
        ),
        ops=(Op(type="while", inputs=(0,), blocks=((body,),), trips=3, id=9), exchange),
        feeds=(0,),
    )


def test_a_graph_survives_its_file(tmp_path):
    path = tmp_path / "graph.json"
    loop().save(path)
    assert load_graph(path) == loop()
    assert load_graph(path).sha256 == loop().sha256


def test_walk_reaches_operators_inside_blocks_after_their_owner():
    assert [op.type for op in loop().walk()] == ["while", "relu", "all_reduce"]


def test_bytes_follow_the_number_format():
    assert loop().tensors[1].size_bytes == 16


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"tensors": [], "ops": [{"type": "relu", "inputs": [0]}]}', "op relu: tensors"),
        ('{"tensors": [{"name": "a", "shape": [1], "dtype": "float7"}], "ops": []}', "dtype"),
        ('{"tensors": [{"name": "a", "shape": [-2], "dtype": "int8"}], "ops": []}', "shape"),
        ('{"tensors": [], "ops": [{"type": "relu", "role": "sideways"}]}', "ops[0].role"),
        ('{"tensors": [], "ops": [{"kind": "relu"}]}', "ops[0]"),
    ],
)
def test_a_broken_file_is_refused_with_file_and_field(tmp_path, text, field):
    path = tmp_path / "graph.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_graph(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert field in str(caught.value)
