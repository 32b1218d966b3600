"""Imports what the scripts in experiments/ share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture(scope="session")
def import_experiment() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module by its name as the scripts do, `validation.peer_rows` for one."""
    sys.path.insert(0, str(EXPERIMENTS))
    yield importlib.import_module
    sys.path.remove(str(EXPERIMENTS))
