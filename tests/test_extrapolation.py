from __future__ import annotations

import dataclasses

import pytest
from builders import cluster, layer, link, stage, workload

from autoplan import Job, Plan
from autoplan.cluster.model import MeasuredCollective
from autoplan.predict import Predictor

LAYERS = [layer(gradient_elements=100), layer(gradient_elements=1000)]


def notes(plan, *, crossing=50.0, measured_bytes=(100.0, 1000.0)):
    made = dataclasses.replace(link(), measured_bytes=measured_bytes)
    table = MeasuredCollective(
        collective="all_reduce", devices=2, nodes=1, size_bytes=(400.0, 3999.0), seconds=(1.0, 2.0)
    )
    model = workload(LAYERS, [0.0, crossing, 0.0])
    predictor = Predictor(
        model, cluster(4, intra_node=made, measured=(table,)), Job(global_batch=4)
    )
    found = predictor.predict(plan, lower_bound_s=0.0).notes
    return [note for note in found if "bytes" in note and note.startswith("extrapolated")]


def two_stages(microbatches):
    return Plan(stages=(stage(0, 1), stage(1, 2)), microbatches=microbatches)


@pytest.mark.parametrize(("microbatches", "beyond"), [(1, False), (2, False), (4, True)])
def test_transfers_outside_the_measured_sizes_are_told(microbatches, beyond):
    # 50 bytes per sample of 4 samples: 200, 100 and 50 bytes at a time.
    found = notes(two_stages(microbatches))
    assert bool(found) == beyond
    if beyond:
        assert found == [
            "extrapolated: transfers over link of 50 to 50 bytes, which were not measured"
        ]


def test_links_of_unknown_range_and_empty_cuts_are_not_told_of():
    assert notes(two_stages(4), measured_bytes=None) == []
    assert notes(two_stages(4), crossing=0.0) == []


def test_groups_outside_a_table_are_told_and_those_inside_are_not():
    inside = Plan(stages=(stage(0, 1, replicas=2), stage(1, 2)), microbatches=2)
    assert notes(inside) == [
        "extrapolated: transfers over link of 50 to 50 bytes, which were not measured"
    ]
    beyond = Plan(stages=(stage(0, 2, replicas=2),), microbatches=2)
    assert notes(beyond) == [
        "extrapolated: all_reduce among 2 devices of 4.4e+03 to 4.4e+03 bytes, which were not "
        "measured"
    ]
