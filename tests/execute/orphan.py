"""Runs a plan whose steps take minutes, for a test that kills this process meanwhile."""

from __future__ import annotations

import sys

from builders import stage
from real_runs import pipeline, predictor

from autoplan.execute.protocol import Settings
from autoplan.execute.real_run import Modes
from autoplan.execute.run_plans import run_plans

if __name__ == "__main__":
    run_plans(
        predictor(devices=2, layer_s=10.0),
        [pipeline(stage(0, 3), stage(3, 6))],
        modes=Modes(compute="emulated", link="emulated"),
        settings=Settings(rounds=1, warmup_steps=1),
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
