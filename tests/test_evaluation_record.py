"""Evaluations by the sites of a federation are part of the record: who, how many images, how long,
with what result; and an absent one is a line, not silence.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from feddraw.analysis.explain_weights import explain_run_weights
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.flower import MethodStrategy
from feddraw.flower.in_process_grid import FIRST_NODE
from feddraw.methods.fedavg import fedavg
from feddraw.results.recorded_run import read_run
from feddraw.results.round_log import RoundLine, read_round_log
from feddraw.results.site_evaluations import SiteEvaluation
from feddraw.watch.followed_folder import FollowedFolder
from feddraw.watch.run_documents import run_detail, run_summary
from test_flower_app import carry_out, folders, hospital
from test_flower_interface import arrays
from test_flower_names import MARKS, Keyed

NAMES = ("North", "East", "South")
SITES = dict(zip(NAMES, MARKS, strict=False))


class Sites:
    """Clients whose evaluation of a server round may fail, be lost, or lack a size."""

    def __init__(self) -> None:
        self.app = ClientApp()
        self.app.train()(self._train)
        self.app.evaluate()(self._evaluate)

    def _train(self, message: Message, context: Any) -> Message:
        metrics = MetricRecord({"num-examples": 10, "num-steps": 1})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    def _evaluate(self, message: Message, context: Any) -> Message:
        site = context.node_id - FIRST_NODE
        round = int(message.metadata.group_id)
        if (round, site) == (2, 1):
            raise OSError("disk full")
        size = 0 if (round, site) == (3, 0) else 10 + site
        metrics = MetricRecord(
            {"num-examples": size, "auc": 0.7, "evaluate-seconds": 2.5, "broken": math.nan}
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=message)


class Leaving(Keyed):
    """A grid whose third node is gone from some server round's evaluation on."""

    gone = False

    def get_node_ids(self) -> list[int]:
        nodes = list(super().get_node_ids())
        return nodes[:2] if self.gone else nodes


def lose(replies: list[Message]) -> list[Message]:
    """South's evaluation of server round 1 is lost."""
    first = replies[0].metadata
    if first.message_type == "evaluate" and first.group_id == "1":
        return [reply for reply in replies if reply.metadata.src_node_id != FIRST_NODE + 2]
    return replies


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three rounds; South is gone from the last evaluation on."""
    grid = Leaving(Sites().app, [{}] * 3, arrive=lose)

    def leave(done: Any) -> None:
        grid.gone = done.round == 2

    MethodStrategy(fedavg(), sites=SITES, folder=tmp_path / "run", on_round=leave).start(
        grid, arrays(), 3
    )
    return tmp_path / "run"


def statuses(line: RoundLine) -> dict[str, str]:
    return {site.client: site.status for site in line.evaluations}


def test_each_round_has_who_evaluated_and_who_did_not(run: Path) -> None:
    lines = read_round_log(run / "rounds.jsonl")
    assert [line.round for line in lines] == [0, 1, 2]
    assert statuses(lines[0]) == {"North": "evaluated", "East": "evaluated", "South": "missing"}
    assert statuses(lines[1]) == {
        "North": "evaluated",
        "South": "evaluated",
        "East": "refused: its app failed: OSError: disk full",
    }
    assert statuses(lines[2]) == {
        "East": "evaluated",
        "North": "refused: num-examples among its metrics is not a positive number",
        "South": "not connected",
    }
    assert lines[0].evaluations[1] == SiteEvaluation(
        client="East", images=11, seconds=2.5, metrics={"auc": 0.7}
    )
    assert all(line.seconds["evaluation"] > 0 for line in lines)
    assert [RoundLine.read(json.loads(line.text())).document() for line in lines] == [
        line.document() for line in lines
    ]


def test_explain_says_whose_evaluations_are_absent_and_why(run: Path) -> None:
    said = " ".join(weights_in_sentences(explain_run_weights(read_run(run))))
    assert "Asked to evaluate, but did not answer: South in round 0." in said
    assert "Evaluation refused (its app failed: OSError: disk full): East in round 1." in said
    assert "Evaluation: not connected: South in round 2." in said


def test_watch_shows_them_and_a_rounds_time_includes_them(run: Path) -> None:
    followed = FollowedFolder(run)
    followed.look()
    (one,) = followed.runs.values()
    detail = run_detail(one)
    told = {site["client"]: site for site in detail["evaluations"]}
    assert told["East"] == {
        "client": "East",
        "status": "evaluated",
        "images": 11,
        "seconds": 2.5,
        "auc": None,
    }
    assert told["South"]["status"] == "not connected"
    troubles = [(trouble["round"], trouble["client"]) for trouble in detail["trouble"]]
    assert troubles == [(0, "South"), (1, "East"), (2, "North"), (2, "South")]
    assert run_summary(one)["trouble"] == 4
    line = read_round_log(run / "rounds.jsonl")[0]
    assert line.whole_seconds == pytest.approx(
        line.seconds["training"] + line.seconds["aggregation"] + line.seconds["evaluation"]
    )


def test_the_ready_app_has_each_sites_own_auc_from_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FEDDRAW_CACHE", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "state"))
    nodes = [
        {"data": hospital(tmp_path / name, 40, seed), "client": name}
        for seed, name in enumerate(NAMES)
    ]
    carry_out(folders(tmp_path, rounds=2, **{"training.epochs": 1}), nodes)
    lines = read_round_log(tmp_path / "run" / "rounds.jsonl")
    assert [set(statuses(line).values()) for line in lines] == [{"evaluated"}] * 2
    for line in lines:
        areas = [site.metrics["validation-auc"] for site in line.evaluations]
        assert all(0 <= area <= 1 for area in areas)
        assert line.validation.auc.macro not in areas  # that of all images together
        assert all(site.seconds > 0 for site in line.evaluations)
        assert line.seconds["evaluation"] >= max(site.seconds for site in line.evaluations)
    # validation images in every round, test images as well in the last
    assert [{site.images for site in line.evaluations} for line in lines] == [{8}, {16}]
    assert "test-auc" not in lines[0].evaluations[0].metrics
    assert "test-auc" in lines[1].evaluations[0].metrics


def test_a_site_that_is_not_there_when_a_round_begins_is_not_called_sampled_out() -> None:
    grid = Leaving(Sites().app, [{}] * 3)
    grid.gone = True
    strategy = MethodStrategy(fedavg(), sites=SITES, fraction_evaluate=0.0)
    strategy.start(grid, arrays(), 1)
    status = {entry.client: entry.status for entry in strategy.history[0].ledger}
    assert status == {"North": "weighted", "East": "weighted", "South": "not connected"}
