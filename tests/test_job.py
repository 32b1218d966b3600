from __future__ import annotations

import pytest

from autoplan import Job
from autoplan.documents import build, build_json, pretty_json
from autoplan.errors import InputError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("global_batch", 0),
        ("global_batch", -8),
        ("memory_headroom", -0.1),
        ("memory_headroom", 1),
        ("memory_headroom", float("nan")),
        ("optimizer_s_per_element", -1e-12),
        ("optimizer_s_per_element", float("inf")),
        ("optimizer_s_per_element", float("nan")),
        ("optimizer", "adan"),
        ("precision", "int8"),
    ],
)
def test_job_that_makes_no_sense_cannot_be_built(field, value):
    with pytest.raises(InputError, match=f"^{field}: found"):
        Job(**({"global_batch": 8} | {field: value}))


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "global_batch"),
        ({"global_batch": True}, "global_batch"),
        ({"global_batch": "8"}, "global_batch"),
        ({"global_batch": 8.0}, "global_batch"),
        ({"global_batch": 8, "optimizer": "Adam"}, "optimizer"),
        ({"global_batch": 8, "precision": "fp16"}, "precision"),
        ({"global_batch": 8, "memory_headroom": False}, "memory_headroom"),
        ({"global_batch": 8, "batch": 8}, "batch"),
    ],
)
def test_job_document_is_read_strictly(document, field):
    with pytest.raises(InputError, match=rf"^e\.toml: job\.{field}: found"):
        build(Job, document, "e.toml", "job")


def test_job_round_trips_and_2_is_2_0():
    job = Job(global_batch=8, optimizer_s_per_element=2, memory_headroom=0)
    same = build_json(Job, pretty_json(job).encode(), "j")
    assert same == job
    assert same.sha256 == job.sha256
    float_job = Job(memory_headroom=0.0, optimizer_s_per_element=2.0, global_batch=8)
    assert float_job.sha256 == job.sha256
    assert Job(global_batch=9).sha256 != Job(global_batch=8).sha256


@pytest.mark.parametrize(
    ("optimizer", "precision", "state", "update"),
    [
        # float32: update reads and writes the parameter (8), reads the gradient (4), and reads
        # and writes each state (8). 16 bits: master copy (8), 16-bit parameter (2), gradient (2).
        ("sgd", "float32", 0, 8 + 4),
        ("momentum", "float32", 4, 8 + 4 + 8),
        ("adamw", "float32", 8, 8 + 4 + 16),
        ("sgd", "float16", 4, 8 + 2 + 2),
        ("adam", "bfloat16", 12, 8 + 2 + 2 + 16),
    ],
)
def test_bytes_of_optimizer_state_and_update(optimizer, precision, state, update):
    job = Job(global_batch=1, optimizer=optimizer, precision=precision)
    assert job.optimizer_bytes_per_element == state
    assert job.update_bytes_per_element == update


def test_mixed_precision_adam_takes_16_bytes_per_parameter():
    job = Job(global_batch=1, optimizer="adam", precision="float16")
    assert 2 + job.gradient_bytes_per_element + job.optimizer_bytes_per_element == 16
