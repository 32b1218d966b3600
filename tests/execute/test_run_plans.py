from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from builders import stage
from real_runs import MODEL, pipeline, predictor, reference_losses, sparse

from autoplan.errors import InputError
from autoplan.execute.protocol import Settings
from autoplan.execute.real_run import Modes
from autoplan.execute.run_plans import run_plans

pytest.importorskip("paddle")


DENSE = {
    "one process": pipeline(stage(0, 6), microbatches=2),
    "two stages, 1f1b": pipeline(stage(0, 3), stage(3, 6)),
    "uneven cut, gpipe": pipeline(stage(0, 1), stage(1, 6), microbatches=8, schedule="gpipe"),
    "three stages": pipeline(stage(0, 2), stage(2, 3), stage(3, 6), microbatches=8),
    "recomputed": pipeline(stage(0, 4, recompute=True), stage(4, 6, recompute=True)),
    "replicas by layer": pipeline(
        stage(0, 6, [(5, 6), (4, 5), (3, 4), (1, 3), (0, 1)], replicas=2), microbatches=1
    ),
    "four replicas": pipeline(stage(0, 6, [(3, 6), (0, 3)], replicas=4), microbatches=2),
    "hybrid": pipeline(
        stage(0, 3, [(1, 3), (0, 1)], replicas=2),
        stage(3, 6, replicas=2),
        rank_order="stage",
    ),
    "two to one": pipeline(stage(0, 3, replicas=2), stage(3, 6)),
    "one to two": pipeline(
        stage(0, 2), stage(2, 6, [(4, 6), (2, 4)], replicas=2), schedule="gpipe"
    ),
}


@pytest.fixture(scope="module")
def dense_runs():
    runs = run_plans(
        predictor(),
        list(DENSE.values()),
        source=f"{MODEL}:build",
        settings=Settings(rounds=2, warmup_steps=5),
    )
    return dict(zip(DENSE, runs, strict=True))


@pytest.fixture(scope="module")
def expected_losses():
    return reference_losses(5)


@pytest.mark.parametrize("name", DENSE)
def test_a_dense_plan_has_the_losses_of_one_process(name, dense_runs, expected_losses):
    run = dense_runs[name]
    assert (run.status, run.reason) == ("ok", None)
    assert expected_losses[4] < expected_losses[0]
    np.testing.assert_allclose(run.losses, expected_losses, rtol=0, atol=1e-5)
    assert run.replicas_agree


def test_every_round_is_read_on_every_clock(dense_runs):
    for run in dense_runs.values():
        assert len(run.wall_s) == len(run.virtual_s) == len(run.foreign_load) == 2
        assert min(run.wall_s) > 0
        assert min(run.virtual_s) > 0
        assert run.environment is not None
        assert run.environment.ranks == 4
        assert run.environment.framework.startswith("paddlepaddle")
        # The layers by themselves, before and after the sweep.
        assert run.environment.profile_ratio_before > 0
        assert run.environment.drift is not None


def test_memory_is_told_per_stage_and_more_microbatches_in_flight_need_more(dense_runs):
    assert [len(run.peak_memory_bytes) for run in dense_runs.values()] == [
        len(plan.stages) for plan in DENSE.values()
    ]
    assert all(bytes_ > 0 for run in dense_runs.values() for bytes_ in run.peak_memory_bytes)
    # The first stage stashes four microbatches instead of one of the same size with recompute.
    plain, saved = dense_runs["two stages, 1f1b"], dense_runs["recomputed"]
    assert saved.peak_memory_bytes[1] < plain.peak_memory_bytes[1]


def test_sparse_plans_learn_and_their_replicas_stay_identical():
    ranges = [(5, 6), (2, 5), (0, 2)]
    plans = [
        pipeline(sparse(0, 6, ranges, 0.05), microbatches=2),
        pipeline(sparse(0, 3, [(1, 3), (0, 1)], 0.1), sparse(3, 6, [(3, 6)], 0.1)),
    ]
    runs = run_plans(
        predictor(),
        plans,
        source=f"{MODEL}:build",
        settings=Settings(rounds=1, warmup_steps=20),
    )
    for run in runs:
        assert (run.status, run.reason) == ("ok", None)
        assert statistics.fmean(run.losses[-3:]) < run.losses[0] - 0.05
        assert run.replicas_agree


def marked(mark):
    """Processes that have this text in their environment, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def test_what_breaks_is_told_while_the_others_go_on_and_nothing_stays(monkeypatch):
    mark = uuid.uuid4().hex
    monkeypatch.setenv("PYTHON_AUTOPLAN_TEST", mark)
    halves = (stage(0, 3), stage(3, 5))
    plans = [
        pipeline(*halves, microbatches=16),  # one sample: ends
        pipeline(*halves, microbatches=2),  # eight samples: runs
        pipeline(*halves, microbatches=8),  # two samples: hangs
        pipeline(*halves, microbatches=4),  # four samples: no memory
        pipeline(stage(0, 5), microbatches=2),
    ]
    started = []
    runs = run_plans(
        predictor(5, devices=2),
        plans,
        source=f"{MODEL}:build_trap",
        settings=Settings(rounds=1, warmup_steps=1, step_limit_s=4.0),
        progress=lambda line: started.append(bool(marked(mark))) if "starting" in line else None,
    )
    assert [run.status for run in runs] == ["failed", "ok", "timeout", "oom", "ok"]
    assert runs[0].reason == "rank 0: exit code 3: the ground gave way"
    assert "no answer of rank" in str(runs[2].reason)
    assert "no room for 4 samples" in str(runs[3].reason)
    assert len(started) == 4
    assert marked(mark) == []


def test_ranks_end_with_the_process_that_started_them(tmp_path):
    mark = uuid.uuid4().hex
    folder = Path(__file__).parent
    parent = subprocess.Popen(
        [sys.executable, str(folder / "orphan.py")],
        env={
            **os.environ,
            "PYTHONPATH": str(folder.parent),
            "PYTHON_AUTOPLAN_TEST": mark,
            "TMPDIR": str(tmp_path),
        },
        stderr=subprocess.DEVNULL,
    )
    try:
        until_s = time.monotonic() + 60
        while len(marked(mark)) < 3 and time.monotonic() < until_s:
            time.sleep(0.05)
        assert len(marked(mark)) == 3
    finally:
        parent.kill()
        parent.wait(10)
    until_s = time.monotonic() + 5
    while marked(mark) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert marked(mark) == []


def test_layers_that_share_parameters_stay_together():
    plans = [
        pipeline(stage(0, 2), stage(2, 4)),
        pipeline(stage(0, 4)),
        pipeline(stage(0, 4, [(3, 4), (2, 3), (1, 2), (0, 1)], replicas=2)),
    ]
    apart, alone, replicated = run_plans(
        predictor(4, devices=2),
        plans,
        source=f"{MODEL}:build_tied",
        settings=Settings(rounds=1, warmup_steps=4),
    )
    assert apart.status == "failed"
    assert "Embedding.0 on stage 0 and Head.3 on stage 1, which share a parameter" in apart.reason
    assert alone.losses[3] < alone.losses[0]
    # A shared gradient is final, and exchanged, when the first of its layers is done.
    np.testing.assert_allclose(replicated.losses, alone.losses, rtol=0, atol=1e-5)
    assert replicated.replicas_agree


def test_a_model_with_other_layers_than_the_plan_is_refused():
    with pytest.raises(InputError, match="stages: layers covered: found 4; allowed: 6"):
        run_plans(predictor(4), [pipeline(stage(0, 4))], source=f"{MODEL}:build")


def test_real_compute_needs_a_model():
    with pytest.raises(InputError, match="model: found none"):
        run_plans(predictor(), [DENSE["one process"]])


EMULATED = {
    "1f1b": pipeline(stage(0, 3), stage(3, 6), microbatches=4),
    "gpipe": pipeline(stage(0, 2), stage(2, 6), microbatches=4, schedule="gpipe"),
    "recomputed": pipeline(stage(0, 2, recompute=True), stage(2, 4), stage(4, 6), microbatches=8),
    "groups": pipeline(stage(0, 6, [(4, 6), (2, 4), (0, 2)], replicas=2), microbatches=1),
    "hybrid": pipeline(
        stage(0, 3, [(1, 3), (0, 1)], replicas=2), stage(3, 6, replicas=2), rank_order="stage"
    ),
    "two to one": pipeline(stage(0, 3, replicas=2), stage(3, 6)),
    "sparse": pipeline(sparse(0, 6, [(4, 6), (2, 4), (0, 2)], 0.1), microbatches=2),
}


@pytest.fixture(scope="module")
def emulated_runs():
    chosen = predictor(layer_s=5e-3, bandwidth_bytes_per_s=2e6)
    modes = Modes(compute="emulated", link="emulated")
    settings = Settings(rounds=2, warmup_steps=1)
    runs = run_plans(chosen, list(EMULATED.values()), modes=modes, settings=settings)
    return {
        name: (run, chosen.score(plan).step_s)
        for (name, plan), run in zip(EMULATED.items(), runs, strict=True)
    }


@pytest.mark.parametrize("name", EMULATED)
def test_the_virtual_clock_of_emulated_compute_follows_the_model_exactly(name, emulated_runs):
    run, predicted_s = emulated_runs[name]
    assert (run.status, run.reason) == ("ok", None)
    assert run.virtual_s == pytest.approx([predicted_s] * 2, rel=1e-9)


@pytest.mark.parametrize("name", EMULATED)
def test_the_wall_clock_of_emulated_compute_is_close_to_the_model(name, emulated_runs):
    run, predicted_s = emulated_runs[name]
    assert run.clock == "wall"
    # Sleeps never end early. On a busy machine they end late, up to a millisecond per message,
    # which is much of these short steps.
    assert min(run.wall_s) > predicted_s * (1 - 1e-3)
    assert min(run.wall_s) < predicted_s * 1.1


def test_emulated_compute_over_gloo_follows_the_model_too():
    chosen = predictor(devices=2, layer_s=1e-3, bandwidth_bytes_per_s=2e6)
    modes = Modes(compute="emulated", link="native")
    settings = Settings(rounds=1, warmup_steps=1)
    (run,) = run_plans(chosen, [EMULATED["groups"]], modes=modes, settings=settings)
    assert run.environment is not None
    assert run.environment.collectives == "gloo"
    assert run.virtual_s == pytest.approx([chosen.score(EMULATED["groups"]).step_s], rel=1e-9)
