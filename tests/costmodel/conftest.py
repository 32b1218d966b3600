"""Training programs that tests read, built once each."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[2] / "experiments" / "models" / "training_programs.py"


@pytest.fixture
def static_paddle():
    """The paddle module in static mode."""
    paddle = pytest.importorskip("paddle")
    paddle.enable_static()
    yield paddle
    paddle.disable_static()


@functools.cache
def _source():
    spec = importlib.util.spec_from_file_location("training_programs", MODELS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def training_program(static_paddle):
    """Makes (program, startup) of a model by name, of PIR or of the old IR."""

    def make(name, batch=-1, old_ir=False, **sizes):
        # Paddle's counter for names is global: a guard makes programs alike in any order of tests.
        with static_paddle.utils.unique_name.guard():
            build = getattr(_source(), name)
            if not old_ir:
                return build(batch, **sizes)
            with static_paddle.pir_utils.OldIrGuard():
                return build(batch, **sizes)

    return make
