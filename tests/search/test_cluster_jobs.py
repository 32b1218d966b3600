"""Searches as jobs of a Ray cluster, and the examples for Kubernetes and Slurm."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import uuid
from pathlib import Path

import pytest
from processes import wait_until
from search_invariants import CAPPED, check, num_acknowledged

from autoplan.search.experiment import load_experiment

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "experiments" / "cluster"
yaml = pytest.importorskip("yaml")


def test_the_slurm_example_is_sound_shell_and_drains_on_the_signal_it_asks_for():
    path = EXAMPLES / "slurm.sbatch"
    subprocess.run(["bash", "-n", path], check=True, timeout=30)
    text = path.read_text()
    assert text.startswith("#!/bin/bash\n")
    assert re.search(r"^#SBATCH --signal=B:TERM@\d+$", text, re.MULTILINE)
    assert "RAY_AUTH_MODE=token" in text
    directives = re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)
    assert all(re.fullmatch(r"--[a-z-]+(=\S+)?", directive) for directive in directives)


def test_the_kubernetes_example_names_an_experiment_and_options_that_there_are():
    from autoplan.cli.main import parser

    job = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    program, arguments = job["spec"]["entrypoint"].split(" search ")
    assert program == "python -m autoplan"
    found = parser().parse_args(["search", *arguments.split()])
    assert (ROOT / found.experiment).is_file()
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    islands = sum(
        int(c["resources"]["limits"]["cpu"]) * group["replicas"]
        for group in cluster["workerGroupSpecs"]
        for c in group["template"]["spec"]["containers"]
    )
    assert found.workers == islands
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_database_is_a_secret_of_the_driver_alone():
    job = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert "AUTOPLAN_STORAGE_FILE" in {each["name"] for each in head["env"]}
    for group in cluster["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        assert "volumes" not in pod
        names = {each["name"] for c in pod["containers"] for each in c["env"]}
        assert not any(name.startswith("AUTOPLAN") for name in names)


def test_jobs_need_an_extra_that_the_project_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert any(each.startswith("ray[default]") for each in extras["cluster"])
    assert any(each.startswith("ray[default]") for each in extras["test"])


def ray_command(*arguments, environment, check_code=True, timeout=120):
    """Runs `ray` and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0 or not check_code, output
    return output


@pytest.fixture
def job_cluster(tmp_path):
    """A cluster with a job server and token authentication; what its commands need to know."""
    if importlib.util.find_spec("aiohttp_cors") is None:
        pytest.skip("the job server is not installed (pip install 'autoplan[cluster]')")
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": uuid.uuid4().hex * 2,
    }
    environment.pop("RAY_ADDRESS", None)
    folder = tempfile.mkdtemp(prefix="ray-")  # short, since sockets lie in it
    port = 20_000 + os.getpid() % 10_000
    head = subprocess.Popen(
        [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
            "--num-cpus=3", f"--port={port}", f"--dashboard-port={port + 1}",
            "--dashboard-agent-listen-port=0", "--include-dashboard=true",
            "--object-store-memory=100000000", f"--temp-dir={folder}",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port + 1}", environment
    finally:
        head.terminate()
        head.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_runs_as_a_job_of_a_cluster(experiment_path, job_cluster, tmp_path):
    address, environment = job_cluster
    submission = f"autoplan-{uuid.uuid4().hex[:8]}"
    uncapped = experiment_path.read_text()
    experiment_path.write_text(uncapped.replace('space = "default"', CAPPED))
    database = tmp_path / "job.db"
    url = tmp_path / "url"
    url.write_text(f"sqlite:///{database.as_posix()}\n")
    runtime = {"env_vars": {"AUTOPLAN_STORAGE_FILE": str(url)}}

    listed = ("job", "list", "--address", address)
    wait_until(
        lambda: "Error" not in ray_command(*listed, environment=environment, check_code=False),
        120,
        "the job server listens",
    )
    # The name of the submission makes it harmless to send it twice, as is tried below.
    output = ray_command(
        "job", "submit", "--address", address, "--working-dir", experiment_path.parent,
        "--runtime-env-json", json.dumps(runtime), "--submission-id", submission,
        "--entrypoint-num-cpus", "0.1", "--",
        sys.executable, "-m", "autoplan", "search", experiment_path.name, "--workers", "2",
        "--ray-address", "auto", "--trials", "30", "--json",
        environment=environment, timeout=300,
    )  # fmt: skip
    assert f"Job '{submission}' succeeded" in output
    experiment = load_experiment(experiment_path)
    check(f"sqlite:///{database}", experiment)
    assert num_acknowledged(f"sqlite:///{database}") == 30
    again = ray_command(
        "job", "submit", "--address", address, "--submission-id", submission, "--", "true",
        environment=environment, check_code=False,
    )  # fmt: skip
    assert "already exists" in again
    without = {**environment, "RAY_AUTH_TOKEN": "0" * 64}
    refused = ray_command("job", "list", "--address", address, environment=without,
                          check_code=False)  # fmt: skip
    assert submission not in refused
