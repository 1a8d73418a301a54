"""Progress is told while a client trains, and time left follows from what has been done."""

from __future__ import annotations

import time

import numpy as np
import pytest
from torch.nn.functional import binary_cross_entropy_with_logits

from feddraw.cli import study_progress
from feddraw.cli.progress_bars import as_clock, duration_in_words, elapsed_and_left
from feddraw.core import Update
from feddraw.engines.serial import Serial
from feddraw.experiment import run_progress as metering
from feddraw.experiment.running import iterate
from feddraw.results.run_folder import RunFolder
from feddraw.study.progress import StudyEvent, StudyProgress
from feddraw.system.file_reading import read_jsonl
from feddraw.training.objective import Presence
from small import small


def slow_engine(prepared, workers):
    """Takes long over a step, as a large network would."""
    engine = Serial(prepared.trainer)

    def slow_loss(logits, targets):
        time.sleep(0.04)
        return binary_cross_entropy_with_logits(logits, targets)

    engine.trainer.objective = Presence(slow_loss)
    return engine


def test_a_run_tells_of_steps_under_way_and_writes_how_long_clients_took(tmp_path, monkeypatch):
    monkeypatch.setattr(metering, "REPORT_INTERVAL", 0.03)
    told = []
    experiment = small(rounds=2, engine=f"{__name__}:slow_engine")
    rounds = list(iterate(experiment, tmp_path / "run", progress=lambda *news: told.append(news)))
    told = [news for news in told if news[0].startswith("round")]
    done, totals = [news[1] for news in told], {news[2] for news in told}
    assert len(totals) == 1
    assert done == sorted(done)
    first = [news[1] for news in told if news[0] == "round 0: 0 of 3 clients"]
    assert 0 < first[-1] < done[-1] < totals.pop()  # steps of the first client, before it was back
    assert told[0][0] == "round 0: 0 of 3 clients"
    assert any(news[0] == "round 1: evaluating" for news in told)
    lines = read_jsonl(RunFolder(tmp_path / "run").rounds)
    assert set(lines[1]["client_seconds"]) == {"C1", "C2", "C3"} == set(rounds[1].client_seconds)
    assert set(lines[1]["seconds"]) == {"training", "aggregation", "evaluation"}
    assert lines[1]["time"].endswith("+00:00")


def test_a_mistake_in_the_callback_ends_the_run(monkeypatch):
    monkeypatch.setattr(metering, "REPORT_INTERVAL", 0.03)

    def progress(what, ready, total):
        if what.startswith("round") and ready:
            raise RuntimeError("the terminal is gone")

    with pytest.raises(RuntimeError, match="gone"):
        list(iterate(small(rounds=1, engine=f"{__name__}:slow_engine"), progress=progress))


def test_an_update_without_a_time_says_so():
    assert np.isnan(Update(0, None, 1, 1).seconds)


def told(tally, *events):
    for event in events:
        tally.note(event)


def test_time_left_follows_from_finished_and_running_runs_and_goes_to_the_worker_that_is_free_first():
    now = [0.0]
    tally = StudyProgress("abcd", 2, clock=lambda: now[0])
    assert tally.seconds_left() is None
    told(tally, StudyEvent("started", "a"), StudyEvent("started", "b"))
    now[0] = 10.0
    told(
        tally,
        StudyEvent("progress", "a", "round 1: 1 of 2 clients", 0.5),
        StudyEvent("progress", "b", "round 0", 0.0),
    )
    assert tally.seconds_left() is None  # what was done before a start says nothing about the pace
    told(
        tally,
        StudyEvent("progress", "a", "round 1", 0.75),
        StudyEvent("progress", "b", "round 1", 0.25),
    )
    assert tally.pace == pytest.approx(20 / 0.5)
    # a needs 10 s more, b 30 s; c begins after a, d after b
    assert tally.seconds_left() == pytest.approx(70)
    assert tally.run_left("b") == pytest.approx(30)
    told(tally, StudyEvent("finished", "a", row={}), StudyEvent("left out", "d"))
    assert (tally.finished, tally.left_out, list(tally.waiting)) == (1, ["d"], ["c"])


def test_measured_times_say_what_one_run_costs_beside_another():
    now = [0.0]
    tally = StudyProgress(["short", "long"], 1, {"short": 10.0, "long": 90.0}, clock=lambda: now[0])
    assert tally.seconds_left() == 100
    told(tally, StudyEvent("started", "short"))
    now[0] = 20.0
    told(tally, StudyEvent("finished", "short", row={}))
    assert tally.seconds_left() == pytest.approx(
        180
    )  # this machine takes twice as long as measured
    assert tally.seconds_left([]) == 0
    assert tally.share == pytest.approx(0.1)


def test_a_run_that_was_finished_before_is_told_as_the_study_stands_in_a_long_silence(
    monkeypatch, capsys
):
    monkeypatch.setattr(study_progress, "SILENT_SECONDS", -1.0)
    skipped = StudyEvent("skipped", "a", row={"auc": "0.8", "gm": ""})  # as a table has it
    study_progress.follow_study(lambda _: iter([skipped]), StudyProgress("ab", 1))
    assert capsys.readouterr().out.startswith("1 done, 0 running, 1 left; ")


def test_times_are_readable():
    assert as_clock(3725) == "1:02:05"
    assert [duration_in_words(seconds) for seconds in (5, 600, 9000)] == ["5 s", "10 min", "2.5 h"]
    assert elapsed_and_left(65, None) == "0:01:05 elapsed, estimating"
    assert elapsed_and_left(65, 5) == "0:01:05 elapsed, 0:00:05 left"
