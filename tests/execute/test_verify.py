from __future__ import annotations

import dataclasses

import pytest
from builders import cluster, layer, workload

from autoplan import GradientGroup, Job, Plan, Stage
from autoplan.errors import InputError
from autoplan.execute.protocol import Settings
from autoplan.execute.real_run import Modes, RealRun
from autoplan.execute.run_notes import run_notes
from autoplan.execute.spawn import LocalStarter
from autoplan.execute.verification import Verification, VerifiedPlan
from autoplan.execute.verify import (
    CannotRunHereError,
    model_source,
    names_gpus,
    require_runnable,
    verify,
)
from autoplan.predict import Predictor
from autoplan.search.heuristics import baselines
from autoplan.search.proposal import Proposer

EMULATED = Modes(compute="emulated", link="emulated")
QUICK = Settings(rounds=2, warmup_steps=1)


def two_stages(cut, layers=8, **fields):
    stages = tuple(
        Stage(layers=each, groups=(GradientGroup(layers=each),))
        for each in ((0, cut), (cut, layers))
    )
    return Plan(stages=stages, microbatches=4, **fields)


def best_default(experiment):
    parts = (experiment.workload, experiment.cluster, experiment.job, experiment.space)
    known = [each for each in baselines(Proposer(*parts)).values() if each is not None]
    return min(known, key=lambda each: each.score.step_s).plan


@pytest.fixture
def on_cpus(experiment):
    device = dataclasses.replace(experiment.cluster.device, name="one CPU core")
    return dataclasses.replace(
        experiment, cluster=dataclasses.replace(experiment.cluster, device=device)
    )


def test_the_default_plan_runs_beside_the_others(experiment):
    plans = {"early": two_stages(3), "late": two_stages(5)}
    found = verify(experiment, plans, modes=EMULATED, settings=QUICK)
    assert [each.name for each in found.plans] == ["early", "late", "default"]
    assert found.default == "default"
    assert found.plans[2].plan == best_default(experiment)
    assert all(each.run.status == "ok" for each in found.plans)
    assert found.clock == "wall"
    for each in found.plans:
        # A wall clock never runs ahead of what was slept.
        assert -0.5 < each.error < 1e-3
        assert each.prediction.step_s == pytest.approx(each.run.virtual_s[0], rel=1e-9)
    ranks = [(found.rank(each, predicted=False), each.run.median_s) for each in found.plans]
    assert sorted(ranks) == sorted(ranks, key=lambda pair: pair[1])
    document = found.to_document()
    assert document["summary"] == found.summary
    assert [row["name"] for row in document["plans"]] == ["early", "late", "default"]
    assert document["plans"][0]["run"]["modes"]["compute"] == "emulated"


def test_a_default_plan_that_was_asked_for_runs_once(experiment):
    found = verify(experiment, {"mine": best_default(experiment)}, modes=EMULATED, settings=QUICK)
    assert [each.name for each in found.plans] == ["mine"]
    assert found.default == "mine"
    assert "which is the default" in found.summary
    assert any("plan mine is the default" in note for note in found.notes)


def test_a_plan_for_another_model_is_refused_by_name(experiment):
    with pytest.raises(InputError, match=r"^odd: stages: layers covered: found 7; allowed: 8"):
        verify(experiment, {"odd": two_stages(3, 7)}, modes=EMULATED)


@pytest.mark.parametrize("modes", [Modes(), Modes(link="emulated"), Modes(compute="emulated")])
def test_gpus_that_are_not_there_are_told_in_one_line(experiment, modes):
    pytest.importorskip("paddle")
    assert names_gpus(experiment)
    with pytest.raises(CannotRunHereError) as caught:
        verify(experiment, {"one": two_stages(3)}, source="m:f", modes=modes)
    assert caught.value.exit_code == 1
    assert "the plans need 4 of them, but there are 0 here" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(CannotRunHereError):
        require_runnable(experiment, modes, "m:f", LocalStarter())
    require_runnable(experiment, EMULATED, None, LocalStarter())


def test_real_compute_takes_the_model_of_the_profile_or_asks_for_it(on_cpus, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"--model: found nothing, and the workload is from"):
        verify(on_cpus, {"one": two_stages(3)})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("def build(): ...")
    origin = dataclasses.replace(
        on_cpus.workload.provenance, source="net.py:build", source_sha256="0" * 64
    )
    profiled = dataclasses.replace(
        on_cpus, workload=dataclasses.replace(on_cpus.workload, provenance=origin)
    )
    source, notes = model_source(profiled, None)
    assert source == "net.py:build"
    assert "has changed since it was profiled" in notes[0]
    assert model_source(profiled, "other:build") == ("other:build", [])


def verification(default_runs, **medians):
    """A verification of plans with these medians, None for one that broke."""
    predictor = Predictor(workload([layer()] * 2), cluster(2), Job(global_batch=4))
    plans = []
    for name, median_s in medians.items():
        plan = two_stages(1, 2, schedule="gpipe" if name == "default" else "1f1b")
        run = (
            RealRun(plan_sha256=plan.sha256, status="failed", reason="it broke", modes=EMULATED)
            if median_s is None
            else RealRun(plan_sha256=plan.sha256, status="ok", modes=EMULATED, wall_s=(median_s,))
        )
        plans.append((name, plan, run))
    known = [run.median_s for _, _, run in plans if run.median_s]
    return Verification(
        experiment="e",
        plans=tuple(
            VerifiedPlan(
                name=name,
                plan=plan,
                prediction=predictor.predict(plan),
                run=run,
                tied=bool(run.median_s and run.median_s <= 1.05 * min(known)),
            )
            for name, plan, run in plans
        ),
        default="default" if default_runs else None,
        clock="wall",
        noise_floor=0.05,
    )


@pytest.mark.parametrize(
    ("medians", "expected"),
    [
        ({"a": 2.0, "default": 3.0}, "use plan a: measured 2 s, 50.0 % faster than the default, "),
        ({"a": 2.0, "default": 2.05}, "use plan a: measured 2 s, as fast as the default to within"),
        ({"a": 4.0, "default": 3.0}, "use plan default: measured 3 s, which is the default, "),
        ({"a": 2.0, "default": None}, "use plan a: measured 2 s, the default did not run (failed)"),
        ({"a": None, "default": None}, "no plan ran: a: it broke; default: it broke"),
    ],
)
def test_the_summary_says_which_plan_to_use_and_why(medians, expected):
    found = verification(True, **medians)
    assert found.summary.startswith(expected)
    if found.best is not None:
        assert found.summary.endswith(f"predicted {found.best.prediction.step_s:.3g} s")


def test_a_plan_that_broke_has_no_rank():
    found = verification(True, a=None, b=2.0, default=1.0)
    assert [found.rank(each, predicted=False) for each in found.plans] == [None, 2, 1]
    assert not found.ran({"a"})
    assert found.ran({"b", "default"})


def test_without_a_default_plan_the_summary_says_so():
    assert "no default plan fits" in verification(False, a=1.0).summary


def test_losses_that_no_sound_run_gives_are_told():
    plans = verification(True, up=1.0, nan=1.0, fine=1.0).plans
    losses = {"up": (2.0, 2.5), "nan": (2.0, float("nan")), "fine": (2.0, 1.5)}
    trained = [
        dataclasses.replace(
            each,
            run=dataclasses.replace(
                each.run, losses=losses[each.name], replicas_agree=each.name != "fine"
            ),
        )
        for each in plans
    ]
    notes = run_notes(trained)
    assert "warning: the loss did not stay finite: nan" in notes
    assert "warning: the loss did not fall: up" in notes
    assert "warning: replicas ended with different parameters: fine" in notes
    assert any("the same steps led to different losses (up 2.5, nan nan" in note for note in notes)
    assert run_notes([trained[2]])[:-1] == []
