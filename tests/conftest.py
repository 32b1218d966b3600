"""What tests of several packages share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import postgres_server
import pytest
import small_experiment
from postgres_server import PostgresServer

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


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of the tests' own; tests skip with a reason where there is none."""
    if reason := postgres_server.absent():
        pytest.skip(reason)
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """The URL, password included, of its database, emptied."""
    return postgres.emptied()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Ray with two CPUs, to which this process is connected; it takes ten seconds to start."""
    ray = pytest.importorskip("ray")
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    yield
    ray.shutdown()


@pytest.fixture
def experiment_path(tmp_path: Path) -> Path:
    """An experiment file that a search can run in a second."""
    return small_experiment.write(tmp_path)


@pytest.fixture
def unproven_path(experiment_path: Path) -> Path:
    """The same in a space where no plan reaches the bound: trials or time end the search."""
    from search_invariants import CAPPED

    text = experiment_path.read_text().replace('space = "default"', CAPPED)
    experiment_path.write_text(text)
    return experiment_path


@pytest.fixture
def experiment(experiment_path: Path):
    """That experiment, loaded."""
    from autoplan.search.experiment import load_experiment

    return load_experiment(experiment_path)
