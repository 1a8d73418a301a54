"""`feddraw operator sites`: nodes under the names that they have in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flwr.proto.node_pb2 import NodeInfo

from feddraw.cli import app
from feddraw.errors import UserError
from feddraw.flower import MethodStrategy
from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.in_process_grid import FIRST_NODE
from feddraw.flower.registered_sites import list_nodes, registered_sites
from feddraw.methods.feddraw import feddraw
from test_flower import ROUNDS, federation, tiny, trained

SINCE = "2026-11-17T08:00:00+00:00"
GONE = "2026-11-17T09:30:00+00:00"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("flower")
    trained(feddraw(), place / "memory", folder=place / "run")
    return place / "run"


def nodes() -> list[Any]:
    """As the SuperLink lists them: two nodes of the run, one that never came, one taken off."""
    return [
        NodeInfo(node_id=1001, status="online", last_activated_at=SINCE),
        NodeInfo(node_id=1002, status="offline", last_deactivated_at=GONE),
        NodeInfo(node_id=7, status="registered", public_key=b"a key"),
        NodeInfo(node_id=8, status="unregistered", public_key=b"an old key"),
    ]


def test_nodes_have_the_names_and_numbers_of_the_run(run: Path) -> None:
    found = {site.identity: site for site in registered_sites(nodes(), run)}
    first, second = found["node 1001"], found["node 1002"]
    assert {site.name for site in found.values()} == {*tiny.NAMES, ""}
    assert first.name != second.name
    assert (first.state, first.last_seen) == ("online", "now, since 2026-11-17 08:00:00 UTC")
    assert (second.state, second.last_seen) == ("offline", "2026-11-17 09:30:00 UTC")
    assert first.rounds == second.rounds == ROUNDS
    assert first.seconds is not None
    (stranger,) = [site for site in found.values() if not site.name]
    assert stranger.identity.startswith("SHA256:")
    assert (stranger.state, stranger.last_seen, stranger.rounds) == ("registered", "never", None)
    assert [found[f"node {node}"].state for node in (1003, 1004)] == ["not registered"] * 2


def test_a_node_that_is_not_on_the_runs_list_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*tiny.NAMES]
    sites = {name: FIRST_NODE + place for place, name in enumerate(names[:-1])}
    later = {"Later": 4711}  # listed, and has not come yet
    run = tmp_path / "run"
    strategy = MethodStrategy(
        feddraw(), fraction_evaluate=0.0, min_available_nodes=3, sites=sites | later, folder=run
    )
    grid = federation(feddraw(), tmp_path / "memory")
    strategy.start(grid, model_to_arrays(tiny.initial()), ROUNDS)
    online = {"status": "online", "last_activated_at": SINCE}
    listed = NodeInfo(node_id=FIRST_NODE, **online)
    stranger = NodeInfo(node_id=FIRST_NODE + len(names) - 1, name=names[0], **online)
    found = {site.identity: site for site in registered_sites([listed, stranger], run)}
    assert (found[f"node {FIRST_NODE}"].name, found[f"node {FIRST_NODE}"].listed) == (
        names[0],
        True,
    )
    assert found["node 4711"].name == "Later"
    marked = found[f"node {stranger.node_id}"]
    assert (marked.listed, marked.rounds) == (False, None)  # also under a listed site's name
    monkeypatch.setattr("feddraw.flower.registered_sites.list_nodes", lambda _: [listed, stranger])
    monkeypatch.setenv("COLUMNS", "160")
    command = ["operator", "sites", "--run", str(run)]
    assert CliRunner().invoke(app, command).output.count("online, not on the list") == 1


def test_before_the_first_run_a_site_has_the_name_under_which_its_key_was_registered() -> None:
    named = NodeInfo(node_id=7, status="registered", public_key=b"a key", name="North")
    (site,) = registered_sites([named], None)
    assert (site.name, site.rounds) == ("North", None)


def test_a_terminal_without_flowers_configuration_is_told_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"'consortium' not found.*type `export FLWR_HOME="):
        list_nodes("consortium")


def test_the_command_shows_a_table_or_one_document(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddraw.flower.registered_sites.list_nodes", lambda _: nodes())
    shown = CliRunner().invoke(app, ["operator", "sites", "consortium", "--run", str(run)])
    assert shown.exit_code == 0, shown.output
    assert all(name in shown.output for name in tiny.NAMES)
    command = ["operator", "sites", "--run", str(run), "--json"]
    document = json.loads(CliRunner().invoke(app, command).output)
    assert len(document) == 5
    without = CliRunner().invoke(app, ["operator", "sites"])
    assert "are those of a run: --run FOLDER" in without.output
