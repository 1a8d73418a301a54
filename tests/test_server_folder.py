"""The folder of a server on Flower or FLARE, made by a real strategy: it has weights, but no settings
and no metrics. `explain`, `report` and `watch` read it and say what it does not hold.
"""

from __future__ import annotations

import csv
import json
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feddraw.cli import app
from feddraw.errors import UserError
from feddraw.experiment.trained_model import load_trained
from feddraw.experiment.verify import verify
from feddraw.results.recorded_run import read_run
from feddraw.results.run_collection import collect_runs
from feddraw.watch.followed_folder import FollowedFolder
from feddraw.watch.run_documents import run_detail
from run_folders import make_run

pytest.importorskip("flwr")

from feddraw.methods.feddraw import feddraw
from test_flower import ROUNDS, tiny, trained


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `FedDRAW(folder="run")` leaves behind."""
    place = tmp_path_factory.mktemp("flower")
    trained(feddraw(), place / "memory", folder=place / "run")
    return place / "run"


@pytest.fixture
def of_flare(served: Path, tmp_path: Path) -> Path:
    """As FLARE's aggregator writes it: the ledger, and a log without a line."""
    shutil.copytree(served, tmp_path / "flare", ignore=shutil.ignore_patterns("checkpoint"))
    (tmp_path / "flare" / "rounds.jsonl").write_text("")
    return tmp_path / "flare"


def typed(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_a_servers_folder_is_read_with_what_it_holds(served: Path) -> None:
    run = read_run(served)
    assert run.of_server
    assert not run.finished
    assert (run.done, run.planned) == (ROUNDS, ROUNDS)
    assert run.ledger.clients == tuple(tiny.NAMES)
    assert run.ledger["weight"].sum(axis=1) == pytest.approx([1.0] * ROUNDS)
    assert all(line.loss > 0 for line in run.rounds)


def test_explain_says_who_counted_how_much_and_what_is_not_known(served: Path) -> None:
    text = typed("explain", served)
    assert "Folder of a Flower or FLARE server, 4 clients; 3 rounds" in text
    assert "does not hold settings (method, scenario and seed are not known), metrics" in text
    assert "North counted most" in text
    assert "from similarity" in text
    document = json.loads(CliRunner().invoke(app, ["explain", str(served), "--json"]).output)
    assert document["method"] is document["scenario"] is document["seed"] is None
    assert len(document["not_held"]) == 4
    assert [client["client"] for client in document["clients"]] == list(tiny.NAMES)


def test_a_server_that_has_not_finished_says_how_far_it_is(served: Path, tmp_path: Path) -> None:
    shutil.copytree(served, tmp_path / "half")
    for name, lines in {"rounds.jsonl": 2, "weights.csv": 1 + 2 * 4}.items():
        file = tmp_path / "half" / name
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:lines]))
    assert "2 rounds, counted from 0, of 3 planned" in typed("explain", tmp_path / "half")


def test_a_report_shows_its_weights_and_no_metrics(served: Path, tmp_path: Path) -> None:
    text = typed("report", served, "--out", tmp_path / "report")
    assert "holds no metrics" in text
    page = (tmp_path / "report" / "report.md").read_text()
    assert "North counted most" in page
    assert "does not hold settings" in page
    assert "AUC" not in page.replace("no AUC or GM of the model", "")
    assert list((tmp_path / "report" / "figures").glob("*weights*.svg"))


def test_a_server_beside_runs_changes_no_number_of_theirs(served: Path, tmp_path: Path) -> None:
    for method in ("feddraw", "fedavg"):
        make_run(tmp_path / "study" / method, method=method, auc=0.8 + 0.01 * len(method))
    typed("report", tmp_path / "study", "--out", tmp_path / "alone")
    shutil.copytree(served, tmp_path / "study" / "server")
    typed("report", tmp_path / "study", "--out", tmp_path / "both")
    tables = [(tmp_path / name / "report.csv").read_text() for name in ("alone", "both")]
    assert tables[0] == tables[1]
    page = (tmp_path / "both" / "report.md").read_text()
    assert "North counted most" in page
    collected = collect_runs([tmp_path / "study"])
    assert len(collected.runs) == 2
    assert [run.path.name for run in collected.servers] == ["server"]


def test_flares_ledger_alone_is_explained_and_reported(of_flare: Path, tmp_path: Path) -> None:
    text = typed("explain", of_flare)
    assert "losses and times of rounds" in text
    assert "North counted most" in text
    typed("report", of_flare, "--out", tmp_path / "report")
    assert "North counted most" in (tmp_path / "report" / "report.md").read_text()


def test_influence_that_only_clients_know_is_hidden_also_where_a_round_counted_nobody(
    of_flare: Path,
) -> None:
    """As under secure sums: the rows of those that did not count have a 0."""
    ledger = of_flare / "weights.csv"
    with ledger.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        idle = row["round"] == "1"
        row["influence"] = "0.0" if idle else "hidden"
        if idle:
            row |= {"weight": "0.0", "status": "unused: the secure sum failed"}
    with ledger.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    clients = json.loads(typed("explain", of_flare, "--json"))["clients"]
    assert [client["influence"] for client in clients] == [None] * len(clients)


def test_watch_shows_it_without_metrics(served: Path, of_flare: Path) -> None:
    for path, state in ((served, "finished"), (of_flare, "running")):
        followed = FollowedFolder(path)
        followed.look()
        (run,) = followed.runs.values()
        assert (run.state, run.done) == (state, ROUNDS)
        told = run_detail(run)
        assert told["server"]
        assert told["unlocked"] == (path == of_flare)
        assert told["clients"] == list(tiny.NAMES)
        json.dumps(told, allow_nan=False)
    run.look(frozenset(), time.time() + 1000)
    assert run.state == "stopped"  # nothing was written for long: FLARE holds no lock to look at


def test_what_needs_settings_or_a_model_says_so_in_one_line(served: Path) -> None:
    with pytest.raises(UserError, match="is the folder of a server, without settings: it cannot"):
        verify(served)
    with pytest.raises(UserError, match="is the folder of a server, without settings and model"):
        load_trained(served)


def test_the_folder_of_flares_own_aggregator_is_explained(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")
    from test_nvflare import test_the_aggregator_gives_the_model_and_the_ledger_of_the_loop

    test_the_aggregator_gives_the_model_and_the_ledger_of_the_loop(tmp_path / "flare")
    text = typed("explain", tmp_path / "flare")
    assert "Folder of a Flower or FLARE server, 4 clients; 2 rounds" in text
    assert "losses and times of rounds" in text
