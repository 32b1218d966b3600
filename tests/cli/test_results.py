"""autoplan results, as a user runs it."""

import csv
import json
import subprocess
import sys

import pytest
from command_line import one_line
from postgres_server import PASSWORD
from scored_plans import batch, plan, scored

from autoplan.cli.main import main
from autoplan.execute.real_run import Modes, RealRun
from autoplan.plan import load_plan
from autoplan.results.recorder import Outcome, SearchRecorder
from autoplan.results.runs import MeasuredPlan, Sweep, record_sweep


def real_run(cut, seconds, **fields):
    modes = Modes(compute="emulated", link="emulated")
    run = RealRun(
        plan_sha256=plan(cut).sha256, status="ok", modes=modes, wall_s=seconds,
        foreign_load=(0.01,), **fields,
    )  # fmt: skip
    return MeasuredPlan(plan=plan(cut), run=run)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("AUTOPLAN_STORAGE", "AUTOPLAN_STORAGE_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def database(tmp_path, experiment):
    path = tmp_path / "results.db"
    with SearchRecorder.open(str(path), experiment) as recorder:
        recorder.scores([scored(cut, step_s=float(cut)) for cut in (1, 2, 3)])
        recorder.scores([scored(4, missing_bytes=1e9), *batch(1, 40)])
        recorder.finish(Outcome(stopped_by="trials", num_trials=44, lower_bound_s=0.9))
        runs = (real_run(1, (1.1, 1.1)), real_run(2, (1.6, 1.6)))
        record_sweep(recorder.database, Sweep(experiment="small", measured=runs))
    return path


def results(capsys, *arguments):
    code = main(["results", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert (code, err) == (0, ""), (code, out, err)
    return out


def test_list_shows_the_best_predicted_and_measured(capsys, database):
    out = results(capsys, "list", "--storage", database)
    (line,) = [line for line in out.splitlines() if line.startswith("small ")]
    for words in ("44", "43", "1.00 s", "11.1 %", "2 of 2", "1.10 s", "trials"):
        assert words in line, words


def test_list_as_json_is_one_document(capsys, database):
    found = json.loads(results(capsys, "list", "--storage", f"sqlite:///{database}", "--json"))
    (row,) = found["experiments"]
    assert (row["num_plans"], row["num_feasible"], row["best_predicted_step_s"]) == (44, 43, 1.0)
    assert row["gap"] == pytest.approx(1 / 0.9 - 1)
    assert (row["num_measured"], row["best_measured_step_s"]) == (2, 1.1)


def test_show_lists_plans_best_first_and_says_how_many_there_are(capsys, database):
    out = results(capsys, "show", "small", "--storage", database, "--limit", 3)
    lines = out.splitlines()
    assert lines[2].startswith(plan(1).sha256[:10])
    assert "1.10 s (wall)" in lines[2]
    assert "-9.1 %" in lines[2]
    assert "3 of 44 plans" in out
    whole = results(capsys, "show", "small", "--storage", database, "--limit", 0)
    assert "lacks 954 MiB" in whole
    rows = json.loads(
        results(capsys, "show", "small", "--storage", database, "--limit", 0, "--json")
    )
    assert rows["num_plans"] == len(rows["plans"]) == 44
    assert rows["plans"][0]["plan_sha256"] == plan(1).sha256


def test_a_plan_comes_out_as_the_file_that_other_commands_read(capsys, database, tmp_path):
    prefix = plan(2).sha256[:10]
    out = results(capsys, "show", "--plan", prefix, "--storage", database)
    (tmp_path / "plan.json").write_text(out)
    assert load_plan(tmp_path / "plan.json") == plan(2)


def test_compare_shows_error_and_ranks(capsys, database):
    out = results(capsys, "compare", "small", "--storage", database)
    assert "wall clock, emulated compute, emulated links, cpu" in out
    line = next(line for line in out.splitlines() if line.startswith(plan(2).sha256[:10]))
    for words in ("2.00 s", "1.60 s", "+25.0 %", "0 %", "1.00 %", " 2 "):
        assert words in line, words
    assert "the best predicted plan was the fastest" in out
    (kind,) = json.loads(results(capsys, "compare", "small", "--storage", database, "--json"))[
        "kinds"
    ]
    assert kind["best_is_best"] is True
    assert [row["measured_rank"] for row in kind["plans"]] == [1, 2]


def test_export_writes_the_file_and_says_so(capsys, database, tmp_path):
    out = tmp_path / "out.csv"
    said = results(capsys, "export", "--storage", database, "--out", out)
    assert said == f"44 rows written to {out}\n"
    with out.open() as file:
        assert len(list(csv.DictReader(file))) == 44
    said = results(
        capsys, "export", "small", "--storage", database, "--format", "json", "--out", out, "--json"
    )
    assert json.loads(said) == {"rows": 44, "format": "json", "out": str(out)}


def test_the_database_comes_from_the_environment_or_a_file(capsys, database, tmp_path, monkeypatch):
    file = tmp_path / "url"
    file.write_text(f"sqlite:///{database}\n")
    expected = results(capsys, "list", "--storage", database)
    assert results(capsys, "list", "--storage-file", file) == expected
    monkeypatch.setenv("AUTOPLAN_STORAGE_FILE", str(file))
    assert results(capsys, "list") == expected
    monkeypatch.setenv("AUTOPLAN_STORAGE", str(database))
    assert results(capsys, "list") == expected


def test_an_empty_database_has_nothing_to_show(capsys, tmp_path):
    (tmp_path / "empty.db").write_bytes(b"")
    assert results(capsys, "list", "--storage", tmp_path / "empty.db") == "no experiments\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list"], "storage: found none; allowed: --storage URL"),
        (["list", "--storage", "absent.db"], "found no file absent.db"),
        (["list", "--storage", "nonsense"], "storage: found 'nonsense'"),
        (["list", "--storage", "postgresql://me:pw-1234@h/x"], "a URL without a password"),
        (["list", "--storage-file", "absent"], "absent: found no such file"),
        (["list", "--storage", "a.db", "--storage-file", "b"], "not allowed with"),
        (["show", "--storage", "DATABASE"], "NAME: found nothing"),
        (["show", "other", "--storage", "DATABASE"], "study: found 'other'"),
        (["show", "small", "--limit", "-1", "--storage", "DATABASE"], "--limit"),
        (["show", "--plan", "0000000", "--storage", "DATABASE"], "plan: found '0000000'"),
        (["compare", "other", "--storage", "DATABASE"], "study: found 'other'"),
        (["export", "--storage", "DATABASE"], "--out"),
        (["export", "--format", "xls", "--out", "x", "--storage", "DATABASE"], "--format"),
        (["export", "other", "--out", "x", "--storage", "DATABASE"], "study: found 'other'"),
        (["export", "--out", ".", "--storage", "DATABASE"], "--out"),
        ([], "PART"),
    ],
)
def test_bad_input_is_one_line(capsys, database, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [str(database) if word == "DATABASE" else word for word in arguments]
    before = {path.name for path in tmp_path.iterdir()}
    line = one_line(capsys, "results", *given)
    assert words in line
    assert "pw-1234" not in line
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("part", ["list", "show small", "compare small", "export --out x.csv"])
def test_a_damaged_database_is_one_line_and_exit_code_5(capsys, database, tmp_path, part):
    data = database.read_bytes()[:-3000]
    database.write_bytes(data)
    code = main(["results", *part.split(), "--storage", str(database)])
    out, err = capsys.readouterr()
    assert (code, out) == (5, "")
    assert len(err.splitlines()) == 1
    assert "left as it was" in err
    assert database.read_bytes() == data


def test_a_server_is_read_without_showing_its_password(postgres_url, experiment):
    with SearchRecorder.open(postgres_url, experiment) as recorder:
        recorder.scores(batch(0))
    environ = {"PATH": "/usr/bin:/bin", "AUTOPLAN_STORAGE": postgres_url}
    for url in (postgres_url, postgres_url.replace(f":{PASSWORD}@", ":wrong-one-55@")):
        done = subprocess.run(
            [sys.executable, "-m", "autoplan", "results", "list", "--json"],
            env={**environ, "AUTOPLAN_STORAGE": url},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == (0 if url == postgres_url else 5), done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        assert "wrong-one-55" not in done.stdout + done.stderr
