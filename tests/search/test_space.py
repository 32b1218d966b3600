import dataclasses

import pytest

from autoplan.documents import toml_value
from autoplan.errors import InputError
from autoplan.search.space import SearchSpace, build_space, load_space, shipped_spaces


def test_shipped_spaces_are_valid_and_named_by_their_files(tmp_path):
    assert set(shipped_spaces()) == {"default", "frameworks", "pipeline"}
    for name in shipped_spaces():
        assert isinstance(load_space(name, tmp_path, "experiment.toml", "space"), SearchSpace)


def test_an_empty_list_leaves_everything_that_is_valid_open():
    domain = SearchSpace().domain(num_layers=3, num_devices=8, global_batch=12)
    assert domain.stages == (1, 2, 3)
    assert domain.microbatches == (1, 2, 3, 4, 6, 12)
    assert domain.replicas_for(samples=6) == (1, 2, 3, 6)


def test_a_list_restricts_a_knob():
    space = SearchSpace(stages=(2, 4), replicas=(2,), microbatches=(4, 5))
    domain = space.domain(num_layers=10, num_devices=8, global_batch=16)
    assert domain.stages == (2, 4)
    assert domain.replicas == (2,)
    assert domain.microbatches == (4,)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"stages": (9,)}, "stages"),
        ({"replicas": (16,)}, "replicas"),
        ({"microbatches": (5,)}, "microbatches"),
        ({"replicas": (3,)}, "microbatches"),
    ],
)
def test_a_space_that_leaves_nothing_is_refused(changes, field):
    space = dataclasses.replace(SearchSpace(), **changes)
    with pytest.raises(InputError) as error:
        space.domain(num_layers=8, num_devices=8, global_batch=16)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"knob": 1}, "knob: found an unknown field"),
        ({"stages": [0]}, "stages: found (0,)"),
        ({"stages": "any"}, "stages: found 'any'"),
        ({"stages": [2, 2]}, "stages: found (2, 2)"),
        ({"schedules": ["zigzag"]}, "schedules[0]: found 'zigzag'"),
        ({"schedules": []}, "schedules: found ()"),
        ({"cap_bytes": [-1.0]}, "cap_bytes: found (-1.0,)"),
        ({"cap_bytes": [float("nan")]}, "cap_bytes[0]: found nan"),
        ({"cut_shift": -1}, "cut_shift: found -1"),
        ({"grouping": ["wfbp"]}, "grouping[0]: found 'wfbp'"),
        ({"schema": "autoplan-space/9"}, "schema: found 'autoplan-space/9'"),
        ({"equal_replicas": 1}, "equal_replicas: found 1"),
    ],
)
def test_bad_spaces_are_named_in_one_line(document, where):
    with pytest.raises(InputError) as error:
        build_space(document, "space.toml")
    assert str(error.value).startswith(f"space.toml: {where}; allowed: ")


def test_an_unknown_space_lists_the_shipped_ones(tmp_path):
    with pytest.raises(InputError, match="default, frameworks, pipeline"):
        load_space("nothing", tmp_path, "experiment.toml", "space")


def test_every_shipped_space_documents_a_schema():
    for file in shipped_spaces().values():
        assert toml_value(str(file))["schema"] == "autoplan-space/1"
