"""A model whose scores are no numbers has no metrics, and the run says in which round that
began.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from feddraw.analysis.bootstrap import weighted_auc
from feddraw.analysis.explain_weights import explain_run_weights
from feddraw.analysis.metrics import not_finite
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.cli import app
from feddraw.cli.run import round_line
from feddraw.core import BySize, Method, Server, Weighted
from feddraw.engines.serial import Serial
from feddraw.experiment import running
from feddraw.experiment.running import run
from feddraw.flower import score_histograms
from feddraw.results.metrics import Divergence
from feddraw.results.recorded_run import read_run
from feddraw.results.round_log import RoundLine
from feddraw.results.trackers import numbers_of_line
from feddraw.server.ledger import LedgerEntry
from feddraw.server.method_check import MadeUpFederation
from feddraw.server.round import RoundRecord
from feddraw.server.status import RefusalCause
from feddraw.system.file_reading import read_json, read_jsonl
from feddraw.tasks.findings import Findings
from small import small

SETTINGS = [
    "--data",
    "phantom",
    "--size",
    "28",
    "--scenario",
    "quantity",
    "--model",
    "compact",
    "--method",
    "fedavg",
    "--rounds",
    "3",
    "--epochs",
    "1",
    "--batch-size",
    "32",
    "--engine",
    "serial",
    "--set",
    "data.train=240",
    "--set",
    "data.validation=80",
    "--set",
    "data.test=80",
    "--set",
    "scenario.clients=3",
    "--set",
    "model.growth=8",
]


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is finite, but from the second round on it has an output that is not."""
    judge = running.evaluate_round

    class Broken(Serial):
        def predict(self, model, rows):
            scores = super().predict(model, rows)
            scores[3:] = math.nan
            return scores

    def evaluate(setup, engine, model, *, final):
        rounds.append(1)
        judged = Broken(setup.trainer) if len(rounds) > 1 else engine
        return judge(setup, judged, model, final=final)

    rounds: list[int] = []
    monkeypatch.setattr(running, "evaluate_round", evaluate)


@pytest.mark.filterwarnings("ignore")
def test_scores_that_are_no_numbers_are_undefined_in_every_file_and_the_first_round_is_named(
    breaks: None, tmp_path: Path
) -> None:
    results = list(run(small(method="fedavg"), tmp_path / "run"))
    first, second, third = read_jsonl(tmp_path / "run" / "rounds.jsonl")
    findings = list(first["validation"]["per_class"])
    assert "diverged" not in first
    assert first["validation"]["macro"] is not None
    for entry in (second, third):
        assert entry["diverged"].startswith("the model's scores are not finite numbers (")
        assert entry["validation"]["macro"] is None
        assert entry["validation"]["undefined"] == findings
    metrics = read_json(tmp_path / "run" / "metrics.json")
    assert metrics["diverged"] == {"round": 1, "why": second["diverged"]}
    assert metrics["test"]["auc"]["macro"] is metrics["test"]["gm"]["macro"] is None
    assert metrics["test"]["undefined"] == metrics["test"]["not_finite"] == findings
    assert "validation AUC undefined" in round_line(results[1])
    assert "diverged: the model's scores" in round_line(results[1])
    numbers = numbers_of_line(RoundLine.of(results[1]))
    assert numbers["validation/findings without auc"] == len(findings)
    assert math.isnan(numbers["validation/auc"])
    found = read_run(tmp_path / "run")
    assert found.diverged == Divergence(1, second["diverged"])
    assert any(
        sentence.startswith("The run diverged in round 1: ")
        for sentence in weights_in_sentences(explain_run_weights(found))
    )


@pytest.mark.filterwarnings("ignore")
def test_the_command_ends_with_code_1_and_the_report_names_the_round(
    breaks: None, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["run", *SETTINGS, "--out", str(tmp_path / "run")])
    assert done.exit_code == 1
    assert "undefined" in done.output
    assert (
        "diverged in round 1: the model's scores are not finite numbers"
        in f"{done.output} {done.exception}"
    )
    made = CliRunner().invoke(
        app, ["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]
    )
    assert made.exit_code == 0, made.output
    text = " ".join((tmp_path / "report" / "report.md").read_text().split())
    assert "diverged in round 1: the model's scores are not finite numbers" in text
    assert "only positives or only negatives" not in text


def test_a_run_whose_updates_are_all_refused_keeps_its_model_and_says_so(tmp_path: Path) -> None:
    results = list(
        run(
            small(**{"method": "fedavg", "training.lr": 1e30, "training.optimizer": "sgd"}),
            tmp_path / "run",
        )
    )
    metrics = read_json(tmp_path / "run" / "metrics.json")
    assert metrics["diverged"] == {
        "round": 0,
        "why": "every update was refused, because none was finite; try a lower training.lr",
    }
    assert np.isfinite(results[-1].model.params).all()
    assert metrics["test"]["auc"]["macro"] is not None  # of the model that nobody has moved
    assert "loss undefined" in round_line(results[0])


def test_a_round_has_not_diverged_while_one_update_is_finite_or_nobody_answered() -> None:
    refused = LedgerEntry(0, "A", 1, 1, status="refused: for whatever reason")
    silent = LedgerEntry(0, "B", 0, 0, status="missing")
    not_finite = {"A": RefusalCause.NOT_FINITE_UPDATE}
    assert RoundRecord(round=0, ledger=(refused, silent), refusals=not_finite).diverged
    for ledger in ((refused, LedgerEntry(0, "B", 1, 1)), (silent,), ()):
        assert not RoundRecord(round=0, ledger=ledger, refusals=not_finite).diverged
    large = {"A": RefusalCause.OTHER}
    assert not RoundRecord(round=0, ledger=(refused,), refusals=large).diverged


class Overflowing(Server):
    """A server rule of somebody's own that overflows whatever the clients send."""

    def step(self, sums, state):
        return sums.total * np.float32(math.inf), state


def test_a_server_rule_that_overflows_is_blamed_itself_and_not_the_learning_rate() -> None:
    made = MadeUpFederation.of(Method(Weighted(BySize(), Overflowing())))
    overflowed = made.together()(made.round(), made.updates)
    assert not overflowed.weights
    assert "every update that was let in was finite" in overflowed.diverged
    assert "server rule" in overflowed.diverged
    assert "training.lr" not in overflowed.diverged

    sound = MadeUpFederation.of(Method(Weighted(BySize())))
    broken = [
        replace(
            update,
            model=replace(update.model, params=np.full_like(update.model.params, math.nan)),
        )
        for update in sound.updates
    ]
    result = sound.together()(sound.round(), broken)
    assert result.diverged.startswith("every update was refused, because none was finite")
    assert not sound.together()(sound.round(), [*broken[:-1], sound.updates[-1]]).diverged


def test_sites_say_which_findings_have_scores_that_are_no_numbers() -> None:
    flwr = pytest.importorskip("flwr.app")
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, (40, 2))
    good, bad = rng.random((40, 2)), rng.random((40, 2))
    bad[3, 1] = math.nan
    sent = [
        score_histograms.histograms_to_metrics(
            "validation", score_histograms.count_by_score(s, truth), not_finite(s)
        )
        for s in (good, bad)
    ]
    contents = [flwr.RecordDict({"metrics": flwr.MetricRecord(one)}) for one in sent]
    found = score_histograms.merged_histogram_metrics(
        contents, ("Edema", "Nodule"), Findings()
    ).validation
    assert (found.undefined, found.not_finite) == (("Nodule",), ("Nodule",))
    assert math.isnan(found.gm.per_class["Nodule"])
    assert 0 < found.auc.per_class["Edema"] < 1
    assert (
        json.dumps(
            score_histograms.histograms_to_metrics(
                "test", score_histograms.count_by_score(good, truth)
            )
        ).count("not-finite")
        == 0
    )


def test_a_bootstrap_of_scores_that_are_no_numbers_has_no_value() -> None:
    scores, truth = np.array([0.1, math.nan, 0.7, 0.9]), np.array([0, 1, 0, 1])
    assert np.isnan(weighted_auc(scores, truth, np.ones((3, 4)))).all()
