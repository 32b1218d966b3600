from __future__ import annotations

import numpy as np
import pytest

from autoplan.errors import InputError
from autoplan.pipeline.ideals import Precedence, ideals_of, ideals_plain


def random_precedence(rng, num_units):
    order = rng.permutation(num_units).tolist()
    pairs = [(order[i], order[j]) for i in range(num_units) for j in range(i + 1, num_units)]
    return Precedence(
        num_units=num_units, edges=tuple(pair for pair in pairs if rng.random() < 0.3)
    )


@pytest.mark.parametrize("seed", range(40))
def test_ideals_are_the_subsets_that_lack_nothing_by_size(seed):
    rng = np.random.default_rng(seed)
    precedence = random_precedence(rng, int(rng.integers(1, 9)))
    table = ideals_of(precedence).member_table(precedence.num_units)
    found = [frozenset(np.flatnonzero(row).tolist()) for row in table]
    assert len(set(found)) == len(found)
    assert set(found) == ideals_plain(precedence)
    assert sorted(found, key=len) == found


@pytest.mark.parametrize("seed", range(20))
def test_steps_lead_to_all_ideals_with_a_unit_more(seed):
    rng = np.random.default_rng(seed)
    precedence = random_precedence(rng, 7)
    ideals = ideals_of(precedence)
    table = ideals.member_table(7)
    for a, row in enumerate(table):
        expected = [b for b, other in enumerate(table) if (row <= other).all()]
        expected = {b for b in expected if table[b].sum() == row.sum() + 1}
        steps = ideals.target_E[ideals.begin_I[a] : ideals.begin_I[a + 1]].tolist()
        assert sorted(steps) == sorted(expected)


def test_ideals_of_many_words_and_many_hash_entries():
    # 3 lines of 40 units beside each other: 41^3 ideals of 2 words.
    edges = tuple((unit, unit + 1) for unit in range(119) if unit % 40 != 39)
    ideals = ideals_of(Precedence(num_units=120, edges=edges), most=70_000)
    assert len(ideals.members_IW) == 41**3
    assert ideals.member_table(120)[-1].all()


def test_more_ideals_than_wanted_are_none():
    free = Precedence(num_units=10, edges=())
    assert ideals_of(free, most=2**10 - 1) is None
    assert len(ideals_of(free, most=2**10).members_IW) == 2**10


@pytest.mark.parametrize("depth_first", [False, True])
def test_orders_follow_the_edges(depth_first):
    precedence = random_precedence(np.random.default_rng(3), 30)
    order = precedence.order(depth_first=depth_first)
    assert sorted(order) == list(range(30))
    assert all(order.index(source) < order.index(target) for source, target in precedence.edges)


@pytest.mark.parametrize("edges", [((0, 1), (1, 0)), ((0, 2),), ((0, 0),)])
def test_cycles_and_units_that_are_not_there_are_refused(edges):
    with pytest.raises(InputError, match="edges"):
        Precedence(num_units=2, edges=edges)
