from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from autoplan.execute.spawn import RankProcesses, rank_command, rank_environment


def started(*scripts):
    commands = [(sys.executable, "-c", script) for script in scripts]
    return RankProcesses(commands, rank_environment({}))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_exit_codes_and_last_lines_are_told_per_rank():
    ranks = started(
        "print('fine')",
        "import sys; print('first\\n\\nlast words  \\n', file=sys.stderr); sys.exit(4)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    )
    ranks.wait(20)
    assert ranks.exit_codes() == [0, 4, -11]
    assert [ranks.last_line(rank) for rank in range(3)] == ["fine", "last words", ""]


def test_kill_reaches_what_the_ranks_started_even_after_these_have_ended(tmp_path):
    script = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '600']);"
        "open(sys.argv[1] if len(sys.argv) > 1 else {path!r}, 'w').write(str(child.pid))"
    )
    first, second = tmp_path / "first", tmp_path / "second"
    ranks = started(
        script.format(path=str(first)),
        script.format(path=str(second)) + "; import time; time.sleep(600)",
    )
    until_s = time.monotonic() + 20
    while not (first.exists() and second.exists() and ranks.exit_codes()[0] == 0):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    time.sleep(0.05)
    children = [int(path.read_text()) for path in (first, second)]
    assert all(alive(pid) for pid in children)
    ranks.kill()
    time.sleep(0.05)
    assert not any(alive(pid) for pid in children)
    assert ranks.exit_codes() == [0, -9]


def test_ranks_inherit_only_what_is_allowed(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    environment = rank_environment({"MORE": "x"})
    assert "AWS_SECRET_ACCESS_KEY" not in environment
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["MORE"] == "x"
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == "/somewhere"


def test_no_file_of_the_current_folder_stands_in_for_a_module(tmp_path, monkeypatch):
    (tmp_path / "socket.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    command = rank_command("autoplan.execute.sockets")
    ranks = RankProcesses([command], rank_environment({}))
    ranks.wait(30)
    assert ranks.exit_codes() == [0]


def test_a_rank_that_cannot_be_started_ends_the_others():
    with pytest.raises(FileNotFoundError):
        RankProcesses([("sleep", "600"), ("/no/such/program",)], rank_environment({}))
