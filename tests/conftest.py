"""What tests of several packages share."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_experiment

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of published inputs, which lies beside the repository on some machines only."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("the published inputs (../shared/data) are not on this machine")
    return folder


@pytest.fixture(scope="session")
def shared_facts() -> Path:
    """The folder of reference results, which lies beside the repository on some machines only."""
    folder = SHARED / "facts"
    if not folder.is_dir():
        pytest.skip("the reference results (../shared/facts) are not on this machine")
    return folder


@pytest.fixture
def experiment_path(tmp_path: Path) -> Path:
    """An experiment file that a search can run in a second."""
    return small_experiment.write(tmp_path)


@pytest.fixture
def experiment(experiment_path: Path):
    """That experiment, loaded."""
    from autoplan.search.experiment import load_experiment

    return load_experiment(experiment_path)
