from __future__ import annotations

import csv
import dataclasses
import math

import numpy as np
import pytest

from autoplan.cluster.collectives import CollectiveCost
from autoplan.errors import InputError
from autoplan.gradsync import oracle
from autoplan.gradsync.costs import Affine, AllReduce, Logarithmic, SparseAllGather, Sum, Table
from autoplan.gradsync.exact import choose_costs, exact_grouping, lower_bound_s
from autoplan.gradsync.problem import GroupCost, GroupingProblem, GroupLimits
from autoplan.gradsync.timing import time_groups

V100_TOP_K_S = 4.99671953e-10


def random_cost(rng, kind):
    alpha, beta = float(rng.random() * 3 * (rng.random() < 0.8)), float(rng.random() * 0.2)
    jumps = (rng.random(7) * 6).tolist()
    rising = tuple(np.sort(rng.random(3) * 5).tolist())
    return {
        "affine": Affine(alpha, beta),
        "concave": lambda x: alpha + beta * math.sqrt(x),
        "convex": lambda x: alpha / 10 + beta / 20 * x * x,
        "any": lambda x: jumps[int(x) % 7],
        "table": Table((3.0, 10.0, 40.0), rising),
        "x log x": Logarithmic(beta / 7),
        "floor": lambda x: max(alpha, beta / 5 * x),
        "linear": lambda x: beta / 5 * x,
    }[kind]


LINKS = ("affine", "concave", "convex", "any", "table")
TOP_KS = ("x log x", "floor", "linear", "affine")


def handled(problem, rng):
    """The same where exchanges take their share from the backward beside them."""
    costs = tuple(
        dataclasses.replace(cost, handling=random_cost(rng, rng.choice(["affine", "any"])))
        for cost in problem.costs
    )
    return dataclasses.replace(problem, costs=costs)


def random_problem(rng, most_layers, costs, limited):
    """Equal times, times of 0 and layers without elements are common."""
    layers = int(rng.integers(1, most_layers + 1))
    backward_s = rng.choice([0, 0, 0.5, 1, 2, 5], layers) if rng.random() < 0.5 else None
    if backward_s is None:
        backward_s = rng.random(layers) * 3
    elements = (rng.integers(0, 40, layers) * (rng.random(layers) < 0.8)).astype(float)
    dense = GroupCost(communicate=random_cost(rng, rng.choice(LINKS)))
    sparse = GroupCost(
        communicate=random_cost(rng, rng.choice(LINKS)),
        sparsify=random_cost(rng, rng.choice(TOP_KS)),
        density=0.01,
    )
    limits = {}
    if limited:
        chance = rng.random(4) < 0.45
        limits["max_elements"] = float(rng.integers(5, 80)) if chance[0] else math.inf
        most = int(min(40, limits["max_elements"]))
        limits["min_elements"] = float(rng.integers(0, most + 1)) if chance[1] else 0.0
        limits["max_groups"] = int(rng.integers(1, 5)) if chance[2] else None
        cap = float(rng.integers(0, 8 * int(elements.sum()) + 1))
        limits["max_memory_bytes"] = cap if chance[3] else math.inf
    return GroupingProblem(
        backward_s=backward_s.tolist(),
        elements=elements.tolist(),
        costs={"dense": (dense,), "sparse": (sparse,), "mixed": (dense, sparse)}[costs],
        limits=GroupLimits(**limits),
    )


def check_against_brute_force(problem):
    best = oracle.brute_force(problem)
    least_s = oracle.pareto_finish_s(problem)
    if best is None:
        assert least_s is None
        with pytest.raises(InputError, match=r"min_elements|max_groups|max_memory_bytes"):
            exact_grouping(problem)
        return
    groups, choices = exact_grouping(problem)
    timing = time_groups(problem, groups, choices)
    assert timing.finish_s == pytest.approx(best[0], rel=1e-12)
    assert timing.compute_s <= best[1] * (1 + 1e-12)
    assert least_s == pytest.approx(best[0], rel=1e-12)
    assert oracle.keeps_limits(problem, groups, choices, small_last=True)
    assert lower_bound_s(problem) <= best[0] * (1 + 1e-12)
    again = time_groups(problem, groups, choose_costs(problem, groups))
    assert again.finish_s == pytest.approx(best[0], rel=1e-12)


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
@pytest.mark.parametrize("costs", ["dense", "sparse", "mixed"])
def test_exact_equals_all_groupings_and_choices(costs, limited):
    for seed in range(250):
        check_against_brute_force(random_problem(np.random.default_rng(seed), 6, costs, limited))


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
@pytest.mark.parametrize("costs", ["dense", "sparse", "mixed"])
def test_exact_knows_what_exchanges_take_from_compute(costs, limited):
    changed = 0
    for seed in range(250):
        rng = np.random.default_rng(seed)
        bare = random_problem(rng, 6, costs, limited)
        problem = handled(bare, rng)
        check_against_brute_force(problem)
        if oracle.brute_force(bare) is not None:
            groups, choices = exact_grouping(bare)
            unaware_s = time_groups(problem, groups, choices).finish_s
            best_s = time_groups(problem, *exact_grouping(problem)).finish_s
            changed += best_s < unaware_s * (1 - 1e-9)
    assert changed > 20


@pytest.mark.parametrize("costs", ["dense", "sparse"])
def test_exact_equals_all_groupings_of_up_to_12_layers(costs):
    for seed in range(12):
        rng = np.random.default_rng(1000 + seed)
        check_against_brute_force(random_problem(rng, 12, costs, limited=seed % 2 == 1))


@pytest.mark.parametrize("costs", ["sparse", "mixed"])
def test_labels_equal_the_plain_ones_on_longer_problems(costs):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, 24, costs, limited=seed % 3 == 0)
        problem = handled(problem, rng) if seed % 2 else problem
        least_s = oracle.pareto_finish_s(problem)
        if least_s is not None:
            groups, choices = exact_grouping(problem)
            finish_s = time_groups(problem, groups, choices).finish_s
            assert finish_s == pytest.approx(least_s, rel=1e-12)


def test_affine_costs_in_linear_time_equal_any_cost_in_quadratic_time():
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        layers = int(rng.integers(1, 40))
        line = Affine(float(rng.random() * rng.choice([0, 1, 3])), float(rng.random() * 0.2))
        problem = GroupingProblem(
            backward_s=(rng.random(layers) * rng.choice([0, 1], layers)).tolist(),
            elements=rng.integers(0, 20, layers).astype(float).tolist(),
            costs=(GroupCost(communicate=line),),
        )
        hidden = GroupCost(communicate=lambda x, line=line: line(x))
        general = dataclasses.replace(problem, costs=(hidden,))
        found, expected = (
            time_groups(each, *exact_grouping(each)).finish_s for each in (problem, general)
        )
        assert found == pytest.approx(expected, rel=1e-12)
        assert lower_bound_s(problem) <= found * (1 + 1e-12)
        assert lower_bound_s(general) <= found * (1 + 1e-12)
        if seed % 10 == 0:
            assert found == pytest.approx(oracle.dense_finish_s(problem), rel=1e-12)


def test_costs_that_say_they_are_affine_give_the_same_as_their_figures():
    ring = AllReduce(CollectiveCost(pieces=((1.0, 0.01),)), bytes_per_element=4.0)
    cheapest = AllReduce(CollectiveCost(pieces=((1.0, 0.01), (0.0, 0.1))), bytes_per_element=4.0)
    nothing = AllReduce(CollectiveCost(pieces=()), bytes_per_element=4.0)
    for cost in (Sum((Affine(0.5, 0.1), ring)), ring, cheapest, nothing):
        problem = GroupingProblem(
            backward_s=[1.0, 0.2, 0.0, 2.0, 0.3],
            elements=[5.0, 30.0, 0.0, 9.0, 1.0],
            costs=(GroupCost(communicate=cost),),
        )
        check_against_brute_force(problem)


def test_gathers_of_whole_numbers_of_elements():
    gather = SparseAllGather(CollectiveCost(pieces=((0.3, 0.01),)), replicas=4, density=0.1)
    cost = GroupCost(communicate=gather, sparsify=Logarithmic(0.002), density=0.1)
    for seed in range(20):
        problem = random_problem(np.random.default_rng(seed), 8, "sparse", limited=False)
        check_against_brute_force(dataclasses.replace(problem, costs=(cost,)))


def test_exact_beats_the_greedy_on_its_counter_example():
    # facts/mgs.md 1.6: gradients ready at 0, .9 and 1.8 in backward order; greedy merges all: 4.3.
    problem = GroupingProblem(
        backward_s=[0.9, 0.9, 0.0],
        elements=[0.5] * 3,
        costs=(GroupCost(communicate=Affine(1.0, 1.0)),),
    )
    groups, choices = exact_grouping(problem)
    assert groups == ((2,), (1, 0))
    assert time_groups(problem, groups, choices).finish_s == pytest.approx(3.8, rel=1e-12)


def test_the_bound_is_met_where_all_is_ready_together_or_nothing_queues():
    # facts/mgs.md 1.7, (iii) and (ii).
    line = Affine(1.0, 0.01)
    for backward_s in ([0.0, 0.0, 0.0, 2.0], [50.0, 60.0, 40.0, 2.0]):
        for cost in (line, line.__call__):
            problem = GroupingProblem(
                backward_s=backward_s,
                elements=[10.0, 20.0, 30.0, 40.0],
                costs=(GroupCost(communicate=cost),),
            )
            finish_s = time_groups(problem, *exact_grouping(problem)).finish_s
            assert lower_bound_s(problem) == pytest.approx(finish_s, rel=1e-12)


def test_ties_go_to_fewer_groups():
    for cost in (Affine(1.0, 0.0), Affine(1.0, 0.0).__call__):
        problem = GroupingProblem(
            backward_s=[9.0, 0.5, 0.5, 0.5, 0.5],
            elements=[1.0, 1.0, 1.0, 1.0, 1.0],
            costs=(GroupCost(communicate=cost),),
        )
        groups, choices = exact_grouping(problem)
        assert time_groups(problem, groups, choices).finish_s == 12.0
        assert len(groups) == 1


def test_a_layer_above_the_cap_goes_alone_and_the_last_group_may_be_small_if_it_must():
    problem = GroupingProblem(
        backward_s=[1.0] * 4,
        elements=[2.0, 100.0, 5.0, 5.0],
        costs=(GroupCost(communicate=Affine(10.0, 0.0)),),
        limits=GroupLimits(max_elements=20, min_elements=6),
    )
    assert exact_grouping(problem)[0] == ((3, 2), (1,), (0,))


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (GroupLimits(max_elements=20, min_elements=20), "min_elements"),
        (GroupLimits(max_elements=20, max_groups=1), "max_groups"),
        (GroupLimits(max_elements=20, min_elements=15, max_memory_bytes=10), "max_memory_bytes"),
    ],
)
def test_limits_that_nothing_keeps_are_named(limits, field):
    problem = GroupingProblem(
        backward_s=[1.0] * 4,
        elements=[8.0, 8.0, 8.0, 8.0],
        costs=(GroupCost(communicate=Affine(10.0, 0.0)),),
        limits=limits,
    )
    with pytest.raises(InputError, match=f"^{field}: "):
        exact_grouping(problem)


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_costs_that_are_no_seconds_are_refused(bad):
    for cost in (lambda x: bad, Affine(bad, 0.0), Affine(0.0, bad)):
        for sparsify in (None, cost):
            problem = GroupingProblem(
                backward_s=[1.0, 1.0],
                elements=[1.0, 2.0],
                costs=(GroupCost(communicate=cost, sparsify=sparsify),),
            )
            with pytest.raises(InputError, match="seconds"):
                exact_grouping(problem)


def test_choices_for_groups_that_are_not_contiguous():
    dense = GroupCost(communicate=Affine(1.0, 0.1))
    sparse = GroupCost(communicate=Affine(0.5, 0.01), sparsify=Logarithmic(0.02), density=0.1)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        order = rng.permutation(6).tolist()
        cuts = sorted(rng.choice(range(1, 6), 2, replace=False).tolist())
        groups = tuple(tuple(sorted(part)[::-1]) for part in np.split(order, cuts))
        groups = tuple(tuple(int(layer) for layer in part) for part in groups)
        problem = GroupingProblem(
            backward_s=rng.random(6).tolist(),
            elements=rng.integers(0, 30, 6).astype(float).tolist(),
            costs=(dense, sparse),
        )
        least_s = min(
            time_groups(problem, groups, (a, b, c)).finish_s
            for a in (0, 1)
            for b in (0, 1)
            for c in (0, 1)
        )
        found = time_groups(problem, groups, choose_costs(problem, groups))
        assert found.finish_s == pytest.approx(least_s, rel=1e-12)


def test_choices_that_cannot_keep_the_memory_are_refused():
    dense = GroupCost(communicate=Affine(1.0, 0.1))
    sparse = GroupCost(communicate=Affine(0.1, 0.0), sparsify=lambda x: 0.0, density=0.1)
    problem = GroupingProblem(
        backward_s=[1.0, 1.0],
        elements=[10.0, 10.0],
        costs=(dense, sparse),
        limits=GroupLimits(max_memory_bytes=80.0),
    )
    assert choose_costs(problem, ((1, 0),)) == (0,)
    assert choose_costs(problem, ((1,), (0,))) == (1, 1)
    with pytest.raises(InputError, match="max_memory_bytes"):
        choose_costs(
            dataclasses.replace(problem, limits=GroupLimits(max_memory_bytes=79)), ((1, 0),)
        )


def test_problems_in_many_rows_of_ends(monkeypatch):
    monkeypatch.setattr("autoplan.gradsync.exact._CELLS", 30)
    for seed in range(60):
        limited = seed % 2 == 0
        problem = random_problem(np.random.default_rng(seed), 9, "dense", limited)
        check_against_brute_force(problem)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_recorded_optima_of_measured_models(shared_facts):
    measured = shared_facts / "measured"
    gradients, lines, missing = {}, {}, set()
    for row in read(measured / "mgs_espresso_tensor_ready.csv"):
        tensor = float(row["ready_gap_us"]) * 1e-6, float(row["numel"])
        gradients.setdefault(row["model"], []).insert(0, tensor)
    for row in read(measured / "mgs_perf_constants.csv"):
        key = row["primitive"], row["network_or_gpu"], row["P"]
        lines.setdefault(key, (float(row["a"] or 0), float(row["b"] or 0)))
    compared = 0
    for row in read(measured / "mgs_gap_greedy_vs_exact.csv"):
        if row["model"] not in gradients:
            missing.add(row["model"])
            continue
        backward_s, elements = map(list, zip(*gradients[row["model"]], strict=True))
        backward_s[-1] = 0.0
        dense = row["mode"] == "dense"
        primitive = "allreduce" if dense else "allgather"
        alpha_s, beta = lines[primitive, row["net"], row["P"]]
        cost = GroupCost(communicate=Affine(alpha_s, 4 * beta))
        if not dense:
            gather = Affine(2 * alpha_s, 2 * beta * int(row["P"]) * 4 * 0.001)
            cost = GroupCost(communicate=gather, sparsify=Logarithmic(V100_TOP_K_S), density=0.001)
        problem = GroupingProblem(backward_s=backward_s, elements=elements, costs=(cost,))
        groups, choices = exact_grouping(problem)
        finish_s = time_groups(problem, groups, choices).finish_s
        assert finish_s == pytest.approx(float(row["exact_s"]), rel=1e-5)
        # Where exchanges hide, the recorded optima have more groups than they need.
        hidden = dense and (row["net"] == "56GbIB" or row["model"] == "lstm")
        recorded = int(row["exact_groups"])
        assert len(groups) <= recorded if hidden else len(groups) == recorded
        compared += 1
    # Two models of the recorded optima have no tensor times of their own in the tables.
    assert missing == {"googlenet_bcaffe_k80", "bert_large"}
    assert compared == 39
