"""One command compares: what is run in which order, what a budget leaves out, and what the report
says.
"""

from __future__ import annotations

import json

import pytest
import tomli_w
from typer.testing import CliRunner

from feddraw.cli import app
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import prepare
from feddraw.study.cost import RunEstimate, RunWork, StepCost
from feddraw.study.method_comparison import (
    ComparisonBudget,
    comparison_runs,
    comparison_seeds_in_words,
    what_would_fit,
)
from feddraw.study.plan import method_of, unfinished_runs
from feddraw.study.progress import StudyEvent, StudyProgress
from feddraw.study.run_study import run_study
from feddraw.study.timing_on_own_data import estimate_run
from small import small
from typed import typed


def budget(seconds, runs, *, each=10.0, workers=1, now=(0.0,)):
    expected = {planned.name: each for planned in runs}
    return ComparisonBudget(seconds / 0.97, runs, expected, workers, lambda: now[0]), StudyProgress(
        [], workers, expected, lambda: now[0]
    )


def test_runs_come_seed_by_seed_and_each_method_has_the_same_settings():
    runs = comparison_runs(small(seed=3, **{"training.lr": 0.01}), seeds=2)
    assert [(method_of(run), run.experiment.seed) for run in runs] == [
        (method, seed) for seed in (3, 4) for method in ("feddraw", "fedavg", "uniform", "alone")
    ]
    assert {run.experiment.training.lr for run in runs} == {0.01}
    assert runs[0].name == "quantity_feddraw_seed=3"


def test_a_method_of_ones_own_comes_first_with_its_settings():
    runs = comparison_runs(small(**{"method": "fedprox", "method.mu": 0.3}), seeds=1)
    assert [method_of(run) for run in runs] == ["fedprox", "feddraw", "fedavg", "uniform", "alone"]
    assert runs[0].experiment.method["mu"] == 0.3


def test_folds_are_as_many_repeats():
    assert len(comparison_runs(small(), folds=3)) == 3 * 4
    assert {run.experiment.folds for run in comparison_runs(small(), folds=3)} == {3}
    assert len(comparison_runs(small(folds=4))) == 4 * 4
    assert len(comparison_runs(small())) == 5 * 4
    with pytest.raises(UserError, match="at most one seed per fold"):
        comparison_runs(small(folds=2), seeds=3)
    with pytest.raises(UserError, match="at least 2, not 1"):
        comparison_runs(small(), folds=1)
    with pytest.raises(UserError, match="positive"):
        comparison_runs(small(), seeds=-1)


def test_a_budget_has_room_for_whole_seeds_only():
    runs = comparison_runs(small(), seeds=3)
    assert [
        comparison_seeds_in_words(budget(seconds, runs)[0].chosen())
        for seconds in (1000, 95, 41, 25, 5)
    ] == [
        "feddraw, fedavg, uniform, alone with seeds 0, 1, 2",
        "feddraw, fedavg, uniform, alone with seeds 0, 1",
        "feddraw, fedavg, uniform, alone with seed 0",
        "",
        "",
    ]
    assert len(budget(41, runs, workers=2)[0].chosen()) == 8


def test_while_running_a_seed_begins_only_if_it_still_fits_at_the_pace_so_far():
    runs, now = comparison_runs(small(), seeds=2), [0.0]
    limits, tally = budget(90, runs, now=now)
    assert len(limits.chosen()) == 8
    for planned in runs[:4]:
        assert limits.admits(planned, tally)
        tally.note(StudyEvent("started", planned.name))
        now[0] += 15.0  # half as fast again as was expected
        tally.note(StudyEvent("finished", planned.name, row={}))
    assert [limits.admits(planned, tally) for planned in runs[4:]] == [
        False
    ] * 4  # 60 s are over, 60 s are needed


def test_a_seed_that_has_begun_is_finished_and_none_begins_of_which_a_part_would_fit():
    runs, now = comparison_runs(small(), seeds=3), [0.0]
    limits, tally = budget(85, runs, now=now)
    admitted = []
    for planned in runs:
        if limits.admits(planned, tally):
            admitted.append(planned)
            tally.note(StudyEvent("started", planned.name))
            now[0] += 10.0 if planned.experiment.seed == 0 else 20.0  # others use the machine, too
            tally.note(StudyEvent("finished", planned.name, row={}))
    # 85 s are over in the middle of seed 1; half a seed could not be compared
    assert comparison_seeds_in_words(admitted) == (
        "feddraw, fedavg, uniform, alone with seeds 0, 1"
    )
    limits, tally = budget(39, runs, now=[0.0])  # three of four methods would fit
    assert not any(limits.admits(planned, tally) for planned in runs)


def test_where_nothing_fits_the_minutes_rounds_and_size_that_would_are_named():
    runs = comparison_runs(small(rounds=10, **{"data.size": 64}), seeds=2)
    cost = StepCost(step=1.0, batch=8, client=0.0, evaluated_image=0.0, memory=0, timed_memory=0)
    estimate = RunEstimate(
        cost=cost,
        opening=2.0,
        work=RunWork(steps=100, jobs=0, evaluated=0),
        first_round=RunWork(steps=10, jobs=0, evaluated=0),
        rounds=10,
    )
    estimates = {planned.name: estimate for planned in runs}
    limits, _ = budget(130, runs, each=estimate.seconds)
    # 4 methods: 4 * (2 + 10 rounds) <= 130 for 3 rounds, 4 * (2 + 100 / 4) for 32 pixels
    assert what_would_fit(limits, estimates) == [
        "--minutes 8",
        "--set rounds=3 (of 10)",
        "--set data.size=32 (of 64)",
    ]
    # 16 pixels would fit, 4 * (2 + 100 / 16), but phantoms have at least 28
    limits, _ = budget(37, runs, each=estimate.seconds)
    assert not any("data.size" in option for option in what_would_fit(limits, estimates))
    limits, _ = budget(30, runs, each=estimate.seconds)
    assert what_would_fit(limits, estimates) == ["--minutes 8"]


def test_a_command_that_cannot_finish_a_seed_says_what_would_fit(tmp_path, monkeypatch):
    def estimates(runs, _):
        cost = StepCost(1.0, 8, 0.0, 0.0, 0, 0)
        one = RunEstimate(cost, 0.0, RunWork(100, 0, 0), RunWork(10, 0, 0), 10)
        return {planned.name: one for planned in runs}

    (tmp_path / "mine.toml").write_text('data = "phantom"\nscenario = "iid"\nrounds = 10\n')
    monkeypatch.setattr("feddraw.cli.compare._estimate_comparison", estimates)
    out = tmp_path / "out"
    typed = ["compare", str(tmp_path / "mine.toml"), "--minutes", "2", "--workers", "1"]
    ended = CliRunner().invoke(app, [*typed, "--out", str(out)])
    assert isinstance(ended.exception, UserError)
    assert "the 4 runs of seed 0 take about 7 min" in str(ended.exception)
    assert "--minutes 7; --set rounds=2 (of 10)" in str(ended.exception)
    assert not out.exists()


def test_a_run_is_estimated_from_timed_steps_of_its_own():
    short, long = (estimate_run(prepare(small(rounds=rounds))) for rounds in (2, 20))
    assert 0 < short.cost.step < 1
    assert short.seconds < long.seconds
    alone = estimate_run(prepare(small(method="alone", rounds=2)))
    assert alone.seconds > 0


def test_runs_that_others_failures_kept_from_starting_are_not_said_to_be_late(
    tmp_path, monkeypatch
):
    def fail(runs, *_, **__):
        yield from (StudyEvent("failed", planned.name, "no memory") for planned in runs[:3])
        yield StudyEvent("left out", runs[3].name)

    nothing = RunWork(0, 0, 0)
    quick = RunEstimate(StepCost(1.0, 8, 0.0, 0.0, 0, 0), 1.0, nothing, nothing, 1)
    (tmp_path / "mine.toml").write_text('data = "phantom"\nscenario = "iid"\n')
    monkeypatch.setattr("feddraw.study.run_study.run_study", fail)
    monkeypatch.setattr(
        "feddraw.cli.compare._estimate_comparison",
        lambda runs, _: {one.name: quick for one in runs},
    )
    words = [
        "compare",
        str(tmp_path / "mine.toml"),
        "--seeds",
        "1",
        "--workers",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    said = CliRunner().invoke(app, words).output
    assert "not started, because several runs in a row failed: alone with seed 0" in said
    assert " 0 min" not in said


def test_the_command_ends_in_a_report_of_all_methods_and_leaves_nothing_to_do(tmp_path):
    table = small(rounds=1).table()
    (tmp_path / "mine.toml").write_text(
        tomli_w.dumps({key: value for key, value in table.items() if value is not None})
    )
    done = typed("compare", "mine.toml", "--workers", "1", "--seeds", "1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "timed here" in done.stdout
    assert "4 runs on 1 worker: about " in done.stdout
    assert "report: runs/mine/report.html" in done.stdout
    out = tmp_path / "runs" / "mine"
    assert all(
        method in (out / "report.md").read_text()
        for method in ("feddraw", "fedavg", "uniform", "alone")
    )
    plan = json.loads((out / "plan.json").read_text())
    assert (len(plan["runs"]), plan["failed"], plan["left_out"]) == (4, {}, [])
    runs = comparison_runs(small(rounds=1), seeds=1)
    assert unfinished_runs(runs, out) == []
    assert [event.kind for event in run_study(runs, out, 1, [])] == ["skipped"] * 4


def test_a_studys_file_is_told_the_command_that_takes_it(tmp_path):
    (tmp_path / "study.toml").write_text('method = ["fedavg", "feddraw"]\n')
    refused = typed("compare", "study.toml", folder=tmp_path)
    assert refused.returncode == 2
    assert "a file with lists of values is a study: feddraw study study.toml" in refused.stderr


def test_sites_that_are_left_out_or_have_one_class_are_named_before_training(tmp_path, monkeypatch):
    cost = StepCost(1.0, 8, 0.0, 0.0, 0, 0)
    nothing = RunWork(0, 0, 0)
    noted = RunEstimate(cost, 1.0, nothing, nothing, 1, notes=("C has one class only",))
    monkeypatch.setattr(
        "feddraw.study.method_comparison.estimate_runs",
        lambda experiments, places: [noted] * len(experiments),
    )
    monkeypatch.setattr("feddraw.study.run_study.run_study", lambda *_, **__: iter(()))
    table = small(rounds=1).table()
    file = tmp_path / "mine.toml"
    file.write_text(tomli_w.dumps({key: v for key, v in table.items() if v is not None}))
    words = ["compare", str(file), "--workers", "1", "--seeds", "1", "--out", str(tmp_path / "o")]
    assert CliRunner().invoke(app, words).output.count("note: C has one class only") == 1
