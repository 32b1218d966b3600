"""The GPU backend without a GPU: its own code and Paddle's calls, on the host and over Gloo.

Gloo blocks where NCCL does not, so that only schedules in which no two ranks send to each other at
the same time can run here: GPipe of two stages, and replicas.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from builders import stage
from real_runs import MODEL, pipeline, predictor, reference_losses, sparse

from autoplan.execute import launch
from autoplan.execute.protocol import Settings
from autoplan.execute.real_run import Modes
from autoplan.execute.run_plans import run_plans

pytest.importorskip("paddle")

PLANS = {
    "one process": pipeline(stage(0, 6), microbatches=2),
    "gpipe": pipeline(stage(0, 3), stage(3, 6), microbatches=4, schedule="gpipe"),
    "replicas": pipeline(stage(0, 6, [(4, 6), (1, 4), (0, 1)], replicas=2), microbatches=2),
    "sparse": pipeline(sparse(0, 6, [(5, 6), (0, 5)], 0.05), microbatches=1),
}


@pytest.fixture(scope="module")
def runs():
    with pytest.MonkeyPatch.context() as patch:
        script = str(Path(__file__).with_name("host_as_gpu.py"))
        patch.setattr(launch, "rank_command", lambda _, *words: (sys.executable, script, *words))
        found = run_plans(
            predictor(devices=2),
            list(PLANS.values()),
            source=f"{MODEL}:build",
            modes=Modes(device="gpu"),
            settings=Settings(rounds=1, warmup_steps=5, step_limit_s=60),
        )
    return dict(zip(PLANS, found, strict=True))


@pytest.mark.parametrize("name", ["one process", "gpipe", "replicas"])
def test_dense_plans_have_the_losses_of_one_process(name, runs):
    run = runs[name]
    assert (run.status, run.reason) == ("ok", None)
    np.testing.assert_allclose(run.losses, reference_losses(5), rtol=0, atol=1e-5)
    assert run.replicas_agree


def test_sparse_plans_learn_and_their_replicas_stay_identical(runs):
    run = runs["sparse"]
    assert (run.status, run.reason) == ("ok", None)
    assert run.losses[4] < run.losses[0]
    assert run.replicas_agree


def test_runs_on_gpus_are_read_on_the_wall_clock(runs):
    for run in runs.values():
        assert run.clock == "wall"
        assert run.virtual_s == ()
        assert run.environment is not None
        assert run.environment.collectives == "nccl"
        assert all(bytes_ > 0 for bytes_ in run.peak_memory_bytes)
