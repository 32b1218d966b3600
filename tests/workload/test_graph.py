from __future__ import annotations

import heapq
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.errors import InputError
from autoplan.workload import CostCurve, Layer
from autoplan.workload.graph import Graph, Tensor, chain, cut_bytes, cycle_names, strong_components


def layer(name):
    curve = CostCurve.proportional(1.0)
    return Layer(name=name, forward=curve, backward=curve)


def graph(names, tensors):
    """`tensors` as (producer, consumers, bytes), names as characters."""
    return Graph(
        layers=tuple(layer(name) for name in names),
        tensors=tuple(
            Tensor(producer=made, consumers=tuple(read), bytes_per_sample=size)
            for made, read, size in tensors
        ),
    )


@st.composite
def random_graphs(draw):
    """Acyclic graphs whose layers lie in the file in any order."""
    num = draw(st.integers(1, 9))
    run_order = draw(st.permutations([f"n{i}" for i in range(num)]))
    tensors = []
    for i, producer in enumerate(run_order):
        for _ in range(draw(st.integers(0, 2))):
            after = run_order[i + 1 :]
            chosen = draw(st.lists(st.sampled_from(after), max_size=3)) if after else []
            size = draw(st.integers(0, 100))
            tensors.append(
                Tensor(producer=producer, consumers=tuple(chosen), bytes_per_sample=size / 7)
            )
    names = draw(st.permutations(run_order))
    return Graph(layers=tuple(layer(n) for n in names), tensors=tuple(tensors))


def counted_cuts(graph, order):
    """Slow and obvious: which tensors have their producer before a cut and a reader behind it."""
    names = [graph.layers[node].name for node in order]
    cuts = []
    for cut in range(len(names) + 1):
        before, behind = set(names[:cut]), set(names[cut:])
        crossing = [
            t for t in graph.tensors if t.producer in before and behind.intersection(t.consumers)
        ]
        cuts.append(sum(t.bytes_per_sample for t in crossing))
    return cuts


def kahn(graph):
    """Kahn's order, ties broken by position."""
    index = {layer.name: i for i, layer in enumerate(graph.layers)}
    edges = {(index[t.producer], index[c]) for t in graph.tensors for c in t.consumers}
    waiting = {i: sum(target == i for _, target in edges) for i in range(len(graph.layers))}
    ready, order = [i for i, left in waiting.items() if not left], []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for source, target in edges:
            if source == node:
                waiting[target] -= 1
                if not waiting[target]:
                    heapq.heappush(ready, target)
    return order


@given(random_graphs())
def test_the_order_is_topological_and_covers_every_layer(graph):
    place = {graph.layers[node].name: i for i, node in enumerate(chain(graph).order)}
    assert sorted(place.values()) == list(range(len(graph.layers)))
    for tensor in graph.tensors:
        assert all(place[tensor.producer] < place[reader] for reader in tensor.consumers)


@given(random_graphs())
def test_cut_bytes_equal_a_count_of_the_crossing_tensors(graph):
    laid = chain(graph)
    assert laid.cut_bytes_per_sample == pytest.approx(counted_cuts(graph, laid.order))
    assert laid.cut_bytes_per_sample[0] == laid.cut_bytes_per_sample[-1] == 0


@given(random_graphs())
def test_the_chain_carries_no_more_than_kahns(graph):
    total = sum(chain(graph).cut_bytes_per_sample)
    assert total <= sum(cut_bytes(graph, kahn(graph))) * (1 + 1e-12)


@given(random_graphs())
def test_the_chain_is_a_function_of_the_graph(graph):
    assert chain(graph) == chain(graph)


def test_a_skip_connection_counts_at_every_cut_it_crosses():
    laid = chain(graph("abcd", [("a", "bd", 10), ("b", "c", 1), ("c", "d", 2)]))
    assert laid.cut_bytes_per_sample == (0, 10, 11, 12, 0)


def test_a_tensor_with_several_readers_counts_once_per_cut():
    laid = chain(graph("abc", [("a", "bcc", 5), ("b", "c", 1)]))
    assert laid.cut_bytes_per_sample == (0, 5, 6, 0)


def test_a_branch_is_finished_before_the_next_one_begins():
    # Kahn by position runs the three branches side by side, with three large tensors alive.
    branches = [(f"{b}{i}", f"{b}{i + 1}", 100) for b in "xyz" for i in range(4)]
    ends = [(f"{b}4", "end", 1) for b in "xyz"]
    names = ["in", *(f"{b}{i}" for i in range(5) for b in "xyz"), "end"]
    tensors = [("in", ["x0", "y0", "z0"], 1)]
    tensors += [(made, [read], size) for made, read, size in branches + ends]
    made = graph(names, tensors)
    assert max(chain(made).cut_bytes_per_sample) <= 103
    assert max(cut_bytes(made, kahn(made))) >= 300


@pytest.mark.parametrize(
    ("names", "tensors", "found"),
    [
        ("", [], "no layers"),
        ("aba", [], "'a'"),
        ("ab", [("a", "c", 1)], "'c'"),
        ("ab", [("c", "a", 1)], "'c'"),
        ("abcd", [("a", "b", 1), ("b", "c", 1), ("c", "b", 1), ("c", "d", 1)], "b, c"),
        ("ab", [("a", "b", 1), ("b", "b", 0)], "b"),
    ],
    ids=["empty", "duplicate", "no consumer", "no producer", "cycle", "loop"],
)
def test_a_broken_graph_is_refused_with_the_node(names, tensors, found):
    with pytest.raises(InputError) as error:
        chain(graph(names, tensors))
    assert found in str(error.value)


@pytest.mark.parametrize("size", [-1.0, float("nan"), float("inf")])
def test_a_tensor_of_no_size_is_refused(size):
    with pytest.raises(InputError):
        Tensor(producer="a", consumers=("b",), bytes_per_sample=size)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=25))
def test_components_are_what_reaches_each_other(edges):
    successors = [{b for a, b in edges if a == node} for node in range(8)]
    reach = [set(targets) | {node} for node, targets in enumerate(successors)]
    for middle, a in itertools.product(range(8), range(8)):
        if middle in reach[a]:
            reach[a] |= reach[middle]
    component = strong_components(successors)
    for a, b in itertools.product(range(8), range(8)):
        assert (component[a] == component[b]) == (b in reach[a] and a in reach[b])
    cyclic = any(a != b and b in reach[a] and a in reach[b] for a in range(8) for b in range(8))
    loop = any(node in targets for node, targets in enumerate(successors))
    assert bool(cycle_names(successors, list("abcdefgh"))) == (cyclic or loop)


def test_thousands_of_layers_are_laid_out_quickly():
    num = 3000
    tensors = [(f"n{i}", [f"n{i + 1}", f"n{min(num - 1, i + 9)}"], 8) for i in range(num - 1)]
    deep = graph([f"n{i}" for i in range(num)], tensors)
    wide = graph(["a", *(f"n{i}" for i in range(num))], [("a", [f"n{i}" for i in range(num)], 1)])
    start_s = time.perf_counter()
    chain(deep)
    chain(wide)
    assert time.perf_counter() - start_s < 4
