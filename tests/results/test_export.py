import csv
import json
import sys

import pytest
from scored_plans import batch, plan, scored

from autoplan.errors import InputError
from autoplan.results.database import Database
from autoplan.results.export import COLUMNS, export
from autoplan.results.queries import find_plan, leaders
from autoplan.results.recorder import SearchRecorder


@pytest.fixture
def database(tmp_path, experiment):
    path = str(tmp_path / "results.db")
    for name, number in (("b", 0), ("a", 1)):
        with SearchRecorder.open(path, experiment, name=name) as recorder:
            recorder.scores([*batch(number), scored(4, 512, step_s=None, reason='no, "never"\n')])
    with Database.open(path) as opened:
        yield opened


def test_csv_reads_back_as_the_leaderboard(database, tmp_path):
    out = tmp_path / "new" / "out.csv"
    assert export(database, "a", "csv", out) == 8
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    expected = leaders(database, "a")
    assert [row["plan_sha256"] for row in found] == [row["plan_sha256"] for row in expected]
    assert [row["feasible"] for row in found] == ["true"] * 7 + ["false"]
    for row, original in zip(found[:7], expected, strict=False):
        assert float(row["predicted_step_s"]) == original["predicted_step_s"]
    assert (found[7]["predicted_step_s"], found[7]["reason"]) == ("", 'no, "never"\n')


def test_json_reads_back_as_the_leaderboard(database, tmp_path):
    out = tmp_path / "out.json"
    assert export(database, None, "json", out) == 16
    found = json.loads(out.read_text())
    assert [row["experiment"] for row in found] == ["a"] * 8 + ["b"] * 8
    assert set(found[0]) == set(COLUMNS)
    assert found[0]["predicted_step_s"] == leaders(database, "a")[0]["predicted_step_s"]
    assert found[7]["predicted_step_s"] is None


def test_parquet_reads_back_as_the_leaderboard(database, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    monkeypatch.setattr("autoplan.results.export._ROW_GROUP", 5)
    out = tmp_path / "out.parquet"
    assert export(database, None, "parquet", out) == 16
    found = parquet.read_table(out).to_pylist()
    assert tuple(found[0]) == COLUMNS
    assert found[:8] == leaders(database, "a")


def test_parquet_without_pyarrow_is_one_line_that_says_what_to_install(
    database, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'autoplan\[parquet\]'"):
        export(database, "a", "parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_is_replaced_whole_or_not_at_all(database, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("earlier")
    with pytest.raises(InputError, match="study"):
        export(database, "absent", "csv", out)
    assert out.read_text() == "earlier"
    export(database, "a", "csv", out)
    assert out.read_text().startswith("experiment,")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out.csv"]


def test_a_folder_is_no_place_for_an_export(database, tmp_path):
    with pytest.raises(InputError, match="--out"):
        export(database, "a", "csv", tmp_path)


def test_a_plan_is_found_by_the_start_of_its_hash(database):
    wanted = batch(0)[3].plan
    assert find_plan(database, wanted.sha256[:12].upper()) == wanted
    for prefix in ("", "zz", plan(4, 4096).sha256, "%", "_" * 64):
        with pytest.raises(InputError, match="exactly one plan"):
            find_plan(database, prefix)
