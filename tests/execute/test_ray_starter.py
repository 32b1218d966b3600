from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders import stage
from real_runs import pipeline, predictor

from autoplan.execute.protocol import Settings
from autoplan.execute.ray_starter import RayStarter
from autoplan.execute.real_run import Modes
from autoplan.execute.run_plans import run_plans
from autoplan.execute.worker import RUN_ID


def ranks_of(parent_mark):
    """Ranks whose command line names this machine's control address."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"autoplan.execute.worker" in command and parent_mark.encode() in command:
            found.append(int(folder.name))
    return found


def test_ranks_placed_by_ray_run_a_plan_and_are_gone_afterwards(ray_cluster):
    starter = RayStarter(None)
    assert starter.host
    chosen = predictor(devices=2, layer_s=1e-3, bandwidth_bytes_per_s=2e6)
    plans = [
        pipeline(stage(0, 3), stage(3, 6)),
        pipeline(stage(0, 6, [(3, 6), (0, 3)], replicas=2), microbatches=1),
    ]
    seen = []
    runs = run_plans(
        chosen,
        plans,
        modes=Modes(compute="emulated", link="emulated"),
        settings=Settings(rounds=1, warmup_steps=1, step_limit_s=60),
        starter=starter,
        progress=lambda line: seen.append(len(ranks_of(f"tcp:{starter.host}"))),
    )
    for plan, run in zip(plans, runs, strict=True):
        assert (run.status, run.reason) == ("ok", None)
        assert run.virtual_s == pytest.approx([chosen.score(plan).step_s], rel=1e-9)
    assert max(seen) == 2
    assert ranks_of(f"tcp:{starter.host}") == []
    assert RUN_ID not in os.environ
