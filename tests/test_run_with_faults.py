"""What is told about a federation that had faults: sites that came late, were silent, or sent what
could not be used. The folder is that of a real run of the ready app.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flwr.app import Message
from typer.testing import CliRunner

from feddraw.analysis.events_in_words import Event, causes_in_words, status_in_words
from feddraw.analysis.explain_weights import explain_run_weights
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.cli import app
from feddraw.flower.in_process_grid import FIRST_NODE
from feddraw.results.recorded_run import read_run
from feddraw.watch.followed_folder import FollowedFolder
from feddraw.watch.run_documents import run_summary
from test_flower_app import carry_out, folders, hospital

SITES = ("North", "East", "South", "West")
ROUNDS = 8
# by round, counted from 0, the sites whose answers are lost
SILENT = {0: ("East", "West"), 1: ("West",), 4: ("South",), 5: ("South",), 7: ("South",)}
REFUSED = {3: "East", 6: "North"}  # by round, a site that says it has no images


def with_faults(replies: list[Message]) -> list[Message]:
    arrived = []
    for reply in replies:
        round = int(reply.metadata.group_id) - 1
        site = SITES[reply.metadata.src_node_id - FIRST_NODE]
        training = reply.metadata.message_type.startswith("train")
        if training and site in SILENT.get(round, ()):
            continue
        if training and site == REFUSED.get(round):
            for record in reply.content.metric_records.values():
                record["num-examples"] = 0
        arrived.append(reply)
    return arrived


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FEDDRAW_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(place / "cache"))
        nodes = [
            {"data": hospital(place / name, 60 - 10 * number, number), "client": name}
            for number, name in enumerate(SITES)
        ]
        settings = folders(place, rounds=ROUNDS, nodes=4, **{"training.epochs": 1})
        carry_out(settings, nodes, with_faults)
    return place / "run"


def typed(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_explain_tells_the_story_of_the_run(folder: Path) -> None:
    text = typed("explain", folder)
    assert "feddraw on the sites' own folders, 4 clients, seed 0; 8 rounds" in text
    assert "CHM-2" not in text
    assert (
        "Asked, but did not answer: node 1002 in round 0, node 1004 in round 0, West in round 1 and"
        " South in rounds 4 to 5 and 7." in text
    )
    assert "): East in round 3 and North in round 6." in text
    assert "East joined in round 1; before that nobody was asked under this name." in text
    assert "West joined in round 1" in text  # its evaluation of round 0 gave its name
    assert "Not among the clients: node 1002 and node 1004." in text
    assert "more cases" not in text


def test_no_cause_client_or_round_is_hidden_under_a_number_of_others() -> None:
    """Every second round of 30, twelve sites are missing, for three causes."""
    causes = ("missing", "refused: its app failed: disk full", "not connected")
    events = [
        Event(round, f"Site {site}", causes[site % 3])
        for round in range(0, 30, 2)
        for site in range(12)
    ]
    sentences = list(causes_in_words(events, status_in_words))
    assert len(sentences) == 3
    said = " ".join(sentences)
    assert "more" not in said
    every_second = ", ".join(map(str, range(0, 28, 2)))
    for site in range(12):
        assert f"Site {site} in rounds {every_second} and 28" in said


def test_means_are_over_the_rounds_in_which_a_client_counted(folder: Path) -> None:
    document = json.loads(CliRunner().invoke(app, ["explain", str(folder), "--json"]).output)
    clients = {client["client"]: client for client in document["clients"]}
    assert {name: client["rounds"] for name, client in clients.items()} == {
        "North": 7,
        "South": 5,
        "East": 6,
        "West": 6,
    }
    assert sum(client["image_share"] for client in clients.values()) == pytest.approx(1.0)
    explained = explain_run_weights(read_run(folder))
    assert explained.fair.tolist() == pytest.approx([1 / n for n in (2, 3, 4, 3, 3, 3, 3, 3)])
    for name, client in clients.items():
        place = explained.clients.index(name)
        counted = explained.counted[:, place]
        differences = (explained.shares[:, place] - explained.fair)[counted]
        parts = client["from_size"] + client["from_similarity"] + client["from_policy"]
        assert parts == pytest.approx(differences.mean())
        assert client["mean"] == pytest.approx(explained.shares[counted, place].mean())


def test_equal_shares_are_those_of_the_clients_that_counted(folder: Path) -> None:
    """FedDRAW's last round has equal weights, also where one site is silent."""
    said = " ".join(weights_in_sentences(explain_run_weights(read_run(folder))))
    assert "exactly equal in round 7" in said
    assert "rounds in which it counted" in said


def test_a_silent_site_is_missing_only_where_it_was_asked(folder: Path) -> None:
    table = read_run(folder).ledger
    west = table.clients.index("West")
    assert [row[west] for row in table.status[:3]] == ["not sampled", "missing", "weighted"]
    south = table.clients.index("South")
    assert table.status[4][south] == "missing"


def test_the_report_and_watch_name_the_data_and_the_clients_as_they_are(
    folder: Path, tmp_path: Path
) -> None:
    followed = FollowedFolder(folder)
    followed.look()
    (run,) = followed.runs.values()
    assert run_summary(run)["scenario"] == "own folders"
    typed("report", folder, "--out", tmp_path / "report")
    page = (tmp_path / "report" / "report.md").read_text()
    assert "own folders" in page
    assert "in CHM-2" not in page
    assert "flwr run app consortium" in page  # its images are at the sites
    assert "feddraw run" not in page
    assert "* best mean" not in page  # of one method
