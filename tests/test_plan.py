from __future__ import annotations

import copy
import json

import pytest
from builders import random_plan, stage
from hypothesis import given
from hypothesis import strategies as st

from autoplan import GradientGroup, Plan, load_plan
from autoplan.documents import build, build_json, plain, pretty_json
from autoplan.errors import InputError

PLAN = Plan(
    stages=(
        stage(0, 3, [(2, 3), (0, 2)], replicas=2),
        stage(3, 4, recompute=True),
        stage(4, 6, [(4, 6)]),
    ),
    microbatches=4,
)


@st.composite
def plans(draw):
    rng = draw(st.randoms(use_true_random=False))
    return random_plan(rng, rng.randint(1, 12), rng.randint(1, 8), rng.choice([1, 8, 12, 60]))


def changed(changes):
    """The plan's document with values replaced, each by its path."""
    tree = copy.deepcopy(plain(PLAN))
    for path, value in changes.items():
        spot = tree
        *inner, last = path
        for key in inner:
            spot = spot[key]
        spot[last] = value
    return tree


GROUP = ("stages", 0, "groups")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({("stages",): []}, "stages"),
        ({("stages", 0, "layers"): [1, 3]}, "stages[0].groups"),
        ({("stages", 0, "layers"): [0, 2]}, "stages[0].groups[0].layers"),
        ({("stages", 0, "layers"): [3, 3]}, "stages[0].layers"),
        ({("stages", 0, "layers"): [3, 0]}, "stages[0].layers"),
        ({("stages", 0, "layers"): [-1, 3]}, "stages[0].layers"),
        ({("stages", 0, "layers"): [0, 3, 6]}, "stages[0].layers"),
        ({("stages", 0, "layers"): [0, True]}, "stages[0].layers[1]"),
        ({("stages", 0, "replicas"): 0}, "stages[0].replicas"),
        ({("stages", 0, "replicas"): 2.0}, "stages[0].replicas"),
        ({("stages", 1, "recompute"): 1}, "stages[1].recompute"),
        ({GROUP: []}, "stages[0].groups"),
        ({(*GROUP, 0, "layers"): [1, 3]}, "stages[0].groups[1].layers"),
        ({(*GROUP, 1, "layers"): [0, 1]}, "stages[0].groups[1].layers"),
        ({(*GROUP, 1, "layers"): [1, 2]}, "stages[0].groups"),
        ({(*GROUP, 0, "layers"): [2, 4]}, "stages[0].groups[0].layers"),
        ({(*GROUP, 0, "layers"): [3, 3]}, "stages[0].groups[0].layers"),
        ({(*GROUP, 0, "density"): 0}, "stages[0].groups[0].density"),
        ({(*GROUP, 0, "density"): 1.5}, "stages[0].groups[0].density"),
        ({(*GROUP, 0, "density"): float("nan")}, "stages[0].groups[0].density"),
        (
            {("stages", 0, "layers"): [1, 3], (*GROUP, 1, "layers"): [1, 2]},
            "stages[0].layers",
        ),
        (
            {("stages", 2, "layers"): [5, 6], ("stages", 2, "groups", 0, "layers"): [5, 6]},
            "stages[2].layers",
        ),
        (
            {("stages", 2, "layers"): [3, 6], ("stages", 2, "groups", 0, "layers"): [3, 6]},
            "stages[2].layers",
        ),
        ({("microbatches",): 0}, "microbatches"),
        ({("microbatches",): 2.5}, "microbatches"),
        ({("schedule",): "zb-h1"}, "schedule"),
        ({("rank_order",): "device"}, "rank_order"),
        ({("schema",): "autoplan-plan/2"}, "schema"),
        ({("stages", 0, "device"): 0}, "stages[0].device"),
    ],
)
def test_broken_plan_is_refused_by_the_name_of_its_field(changes, field):
    with pytest.raises(InputError) as caught:
        build(Plan, changed(changes), "p.json")
    assert str(caught.value).startswith(f"p.json: {field}: found ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["schedule", "rank_order"])
def test_constructor_refuses_unknown_words_too(field):
    with pytest.raises(InputError, match=f"^{field}: found 'other'"):
        Plan(stages=(stage(0, 1),), microbatches=1, **{field: "other"})


def test_derived_figures():
    assert PLAN.num_layers == 6
    assert PLAN.num_devices == 4
    assert PLAN.cuts == (3, 4)
    assert [each.num_layers for each in PLAN.stages] == [3, 1, 2]


@given(plans())
def test_plan_round_trips_through_json(plan):
    assert build_json(Plan, pretty_json(plan).encode(), "p") == plan
    assert build(Plan, plain(plan), "p") == plan


@given(plans(), plans())
def test_identity_is_equality(one, other):
    assert (one.sha256 == other.sha256) == (one == other)


def test_identity_ignores_field_order_and_number_spelling(tmp_path):
    file = tmp_path / "plan.json"
    PLAN.save(file)
    document = json.loads(file.read_text())
    turned = {key: document[key] for key in reversed(document)}
    file.write_text(json.dumps(turned).replace('"density": 1.0', '"density": 1'))
    assert load_plan(file) == PLAN
    assert load_plan(file).sha256 == PLAN.sha256
    assert GradientGroup(layers=(0, 1), density=1) == GradientGroup(layers=(0, 1))


def test_saved_plan_cut_off_anywhere_is_an_input_error(tmp_path):
    file = tmp_path / "plan.json"
    PLAN.save(file)
    assert load_plan(file) == PLAN
    data = file.read_bytes().strip()
    for end in range(len(data)):
        file.write_bytes(data[:end])
        with pytest.raises(InputError) as caught:
            load_plan(file)
        assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("num_layers", "num_devices", "global_batch", "field"),
    [
        (7, 4, 8, "stages: layers covered"),
        (6, 3, 8, "stages: devices"),
        (6, 4, 6, "microbatches"),
        (6, 4, 12, r"stages\[0\]\.replicas"),
    ],
)
def test_plan_for_something_else_is_refused(num_layers, num_devices, global_batch, field):
    PLAN.require_fits(6, 4, 8)
    with pytest.raises(InputError, match=f"^{field}: found"):
        PLAN.require_fits(num_layers, num_devices, global_batch)
