"""Real runs: every round is kept, kinds of measurements are never mixed."""

import math

import pytest
import sqlalchemy as sa
from scored_plans import plan, scored

from autoplan.errors import InputError
from autoplan.execute.real_run import Environment, Modes, RealRun
from autoplan.predict import Predictor
from autoplan.results import schema
from autoplan.results.comparison import compare
from autoplan.results.queries import leaders, list_experiments
from autoplan.results.recorder import SearchRecorder
from autoplan.results.runs import MeasuredPlan, Sweep, record_sweep

EMULATED = Modes(compute="emulated", link="emulated")
ENVIRONMENT = Environment(
    framework="none", device="a core", threads=1, ranks=2, cores=2, pinned=True, collectives="none"
)


def run(cut=4, step_s=(2.0, 2.2, 2.1), **fields):
    """A run of one of the small experiment's plans."""
    defaults = {
        "status": "ok",
        "modes": EMULATED,
        "wall_s": step_s,
        "virtual_s": tuple(s - 0.5 for s in step_s),
        "foreign_load": (0.01, 0.04, 0.02),
        "losses": (3.0, 2.0, math.nan),
        "replicas_agree": True,
        "peak_memory_bytes": (1e6, 3e6),
        "environment": ENVIRONMENT,
    }
    return RealRun(plan_sha256=plan(cut).sha256, **{**defaults, **fields})


def failed(cut, status="oom", reason="no memory left"):
    return run(cut, status=status, reason=reason, step_s=(), foreign_load=(), environment=None)


def measured(cut, **fields):
    return MeasuredPlan(plan=plan(cut), run=run(cut, **fields))


@pytest.fixture
def recorder(storage, experiment):
    with SearchRecorder.open(storage, experiment) as opened:
        opened.scores([scored(cut, step_s=float(cut)) for cut in range(1, 6)])
        yield opened


def rows(recorder, table):
    return recorder.database.read(lambda c: c.execute(sa.select(table)).all())


def test_a_run_is_kept_with_every_round_and_its_environment(recorder):
    record_sweep(recorder.database, Sweep(experiment="small", measured=(measured(4),)))
    (row,) = rows(recorder, schema.real_runs)
    assert (row.status, row.clock, row.compute_mode, row.link_mode) == (
        "ok", "wall", "emulated", "emulated",
    )  # fmt: skip
    assert (row.median_step_s, row.foreign_load_share) == (2.1, 0.04)
    assert row.spread_share == pytest.approx(0.2 / 2.1)
    assert (row.peak_memory_bytes, row.replicas_agree) == (3e6, True)
    assert row.losses_json == "[3,2,null]"
    assert row.stage_peak_memory_bytes_json == "[1000000,3000000]"
    assert '"device":"a core"' in row.environment_json
    rounds = sorted(rows(recorder, schema.real_run_rounds))
    assert [each.wall_s for each in rounds] == [2.0, 2.2, 2.1]
    assert [each.virtual_s for each in rounds] == [1.5, 1.7000000000000002, 1.6]


def test_a_sweep_sent_again_adds_nothing_and_another_one_adds_runs(recorder):
    sweep = Sweep(experiment="small", measured=(measured(3), measured(4)))
    for _ in range(3):
        record_sweep(recorder.database, sweep)
    assert len(rows(recorder, schema.real_runs)) == 2
    assert len(rows(recorder, schema.real_run_rounds)) == 6
    record_sweep(recorder.database, Sweep(experiment="small", measured=sweep.measured))
    assert len(rows(recorder, schema.real_runs)) == 4


def test_a_plan_that_no_search_scored_gets_its_prediction_as_score(recorder, experiment):
    predictor = Predictor(experiment.workload, experiment.cluster, experiment.job)
    prediction = predictor.predict(plan(7))
    given = (
        MeasuredPlan(plan=plan(7), run=run(7), prediction=prediction, proposed_by="default"),
        MeasuredPlan(plan=plan(6), run=run(6)),
    )
    record_sweep(recorder.database, Sweep(experiment="small", measured=given))
    found = {row["plan_sha256"]: row for row in leaders(recorder.database, "small")}
    row = found[plan(7).sha256]
    assert row["proposed_by"] == "default"
    assert row["predicted_step_s"] == row["predicted_step_at_run_s"] == prediction.step_s
    assert row["prediction_error_share"] == pytest.approx(prediction.step_s / 2.1 - 1)
    assert "without a prediction" in found[plan(6).sha256]["reason"]
    assert found[plan(6).sha256]["measured_step_s"] == 2.1


def test_the_leaderboard_shows_the_latest_measurement_that_has_a_figure(recorder):
    for each in (measured(4), measured(4, step_s=(3.0, 3.0, 3.0)), None):
        given = each or MeasuredPlan(plan=plan(4), run=failed(4))
        record_sweep(recorder.database, Sweep(experiment="small", measured=(given,)))
    row = {r["plan_sha256"]: r for r in leaders(recorder.database, "small")}[plan(4).sha256]
    assert row["measured_step_s"] == 3.0
    assert row["prediction_error_share"] == pytest.approx(4.0 / 3.0 - 1)
    assert (row["clock"], row["predicted_step_at_run_s"]) == ("wall", None)
    (summary,) = list_experiments(recorder.database)
    assert (summary.num_real_runs, summary.num_measured) == (3, 2)
    assert summary.best_measured_step_s == 2.1


def test_a_comparison_ranks_within_a_kind_and_never_mixes_clocks_or_modes(recorder):
    wall = [
        measured(1, step_s=(1.1,) * 3), measured(2, step_s=(1.9,) * 3),
        measured(3, step_s=(1.5,) * 3), MeasuredPlan(plan=plan(5), run=failed(5)),
    ]  # fmt: skip
    virtual = [measured(2, clock="virtual", step_s=(2.5,) * 3)]
    for sweep in (wall, virtual):
        record_sweep(recorder.database, Sweep(experiment="small", measured=tuple(sweep)))
    latest, first = compare(recorder.database, "small")
    assert (latest.clock, first.clock) == ("virtual", "wall")
    assert [p.measured_step_s for p in latest.plans] == [2.0]
    assert latest.best_is_best is None
    assert [p.plan_sha256 for p in first.plans] == [plan(c).sha256 for c in (1, 3, 2, 5)]
    assert [p.measured_rank for p in first.plans] == [1, 2, 3, None]
    assert [p.predicted_rank for p in first.plans] == [1, 3, 2, None]
    assert first.best_is_best is True
    errors = [p.error_share for p in first.plans[:3]]
    assert errors == pytest.approx([1 / 1.1 - 1, 3 / 1.5 - 1, 2 / 1.9 - 1])
    assert first.mean_error_share == pytest.approx(sum(map(abs, errors)) / 3)
    assert (first.plans[3].status, first.plans[3].reason) == ("oom", "no memory left")
    (summary,) = list_experiments(recorder.database)
    assert summary.best_measured_step_s == 2.0


def test_a_wrong_ranking_is_told(recorder):
    given = (measured(1, step_s=(5.0,) * 3), measured(2, step_s=(4.0,) * 3))
    record_sweep(recorder.database, Sweep(experiment="small", measured=given))
    (comparison,) = compare(recorder.database, "small")
    assert comparison.best_is_best is False


def test_an_unknown_experiment_is_refused_with_the_ones_there_are(recorder):
    with pytest.raises(InputError, match="found 'other'"):
        record_sweep(recorder.database, Sweep(experiment="other", measured=(measured(4),)))
    for ask in (compare, leaders):
        with pytest.raises(InputError, match="it holds small"):
            ask(recorder.database, "other")
    assert rows(recorder, schema.real_runs) == []


def test_the_run_of_another_plan_is_refused():
    with pytest.raises(InputError, match="run"):
        MeasuredPlan(plan=plan(3), run=run(4))
