"""Only what is trained travels: sites with images and weights of their own, over Flower's messages
in one process.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.numpy import load_file

from feddraw.experiment.run_preparation import initial_model
from feddraw.flower import client_app
from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.client_app import app
from feddraw.flower.frozen_layers import FROZEN, QUESTION
from feddraw.flower.in_process_grid import FIRST_NODE, InProcessGrid
from feddraw.flower.server_app import serve_flower_run
from feddraw.flower.strategy import MethodStrategy
from feddraw.methods.fedavg import fedavg
from feddraw.system.file_reading import read_csv, read_json
from feddraw.training.network_by_name import build_network
from feddraw.training.own_frozen_layers import frozen_digest
from half_frozen_network import half_frozen
from test_flower_app import NODES, config, folders, hospitals, keyed, state  # noqa: F401 - fixtures

GROWTH = 8
NAMES = ("North", "East", "South")


@dataclass(frozen=True)
class Sent:
    """A message to a node."""

    node: int
    kind: str
    frozen: bool  # whether the frozen layers are in it
    bytes: int  # of all its tensors


class Watched(InProcessGrid):
    """A grid that writes down what goes to the nodes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: list[Sent] = []

    def _answer(self, message: Message) -> Message:
        records = message.content.array_records
        size = sum(len(array.data) for record in records.values() for array in record.values())
        node = message.metadata.dst_node_id
        self.sent.append(Sent(node, message.metadata.message_type, FROZEN in records, size))
        return super()._answer(message)

    def sent_layers(self) -> set[str]:
        """Names of the sites that were sent the frozen layers."""
        return {NAMES[sent.node - FIRST_NODE] for sent in self.sent if sent.frozen}


def weights_file(folder: Path, name: str, seed: int) -> Path:
    """A file of weights for the compact network, as torch writes it."""
    torch.manual_seed(seed)
    module, _ = build_network("compact", 2, {"growth": GROWTH})
    file = folder / name
    torch.save(module.state_dict(), file)
    return file


def cut_run(tmp_path: Path, weights: Path, **changes: Any) -> dict[str, Any]:
    """A run that trains the classifier alone, on images of the sites' own."""
    frozen = {"model.frozen": "body", "model.weights": str(weights), "method.name": "fedavg"}
    frozen |= {"rounds": 2, "training.epochs": 1}
    return folders(tmp_path, **frozen | changes)


def with_settings(nodes: Any, tmp_path: Path, **by_site: dict[str, str]) -> list[dict[str, Any]]:
    """The nodes, each with a memory, and with what only some of them have."""
    return [
        node | {"memory": str(tmp_path / "memory" / node["client"])} | by_site[node["client"]]
        for node in nodes
    ]


@pytest.fixture(autouse=True)
def fresh_process() -> None:
    """A node's message usually starts a process, which knows nothing of an earlier one."""
    client_app._site_with_own_folder.cache_clear()
    client_app._layers_of_backbone.cache_clear()


def test_sites_with_images_of_their_own_get_the_frozen_part_once_and_train_the_rest(
    hospitals: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    weights = weights_file(tmp_path, "server.pt", seed=5)
    run = cut_run(tmp_path, weights)
    nodes = with_settings(hospitals, tmp_path, North={}, East={}, South={})
    grid = Watched(app, nodes, run)
    strategy = serve_flower_run(grid, run)
    assert all(entry.weighted for done in strategy.history for entry in done.ledger)
    train = [sent for sent in grid.sent if sent.kind == "train"]
    assert [sent.frozen for sent in train] == [True] * 3 + [False] * 3
    assert not any(sent.frozen for sent in grid.sent if sent.kind == "evaluate")
    layout = strategy.model.layout
    assert layout.length("param") == 2 * (layout.entries[0].shape[1] + 1)
    assert train[-1].bytes < train[0].bytes / 10
    # the whole network is in the run's folder: the file's body, a classifier that has moved
    written = load_file(tmp_path / "run" / "model.safetensors")
    from_file = torch.load(weights, weights_only=True)
    body = [name for name in written if not name.startswith("classifier")]
    assert all(
        np.array_equal(written[name], np.atleast_1d(from_file[name].numpy())) for name in body
    )
    assert not np.array_equal(written["classifier.weight"], from_file["classifier.weight"].numpy())
    assert read_json(tmp_path / "run" / "metrics.json")["test"]["auc"]["macro"] > 0

    # another run with another server: what the sites have kept is not sent again
    again = run | {"out": str(tmp_path / "again")}
    grid = Watched(app, nodes, again)
    serve_flower_run(grid, again)
    assert grid.sent_layers() == set()
    ours, theirs = (tmp_path / name / "model.safetensors" for name in ("run", "again"))
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_site_that_has_the_file_is_sent_no_frozen_tensor_and_the_bits_are_the_same(
    hospitals: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    weights = weights_file(tmp_path, "server.pt", seed=5)
    copy = {"backbone": str(weights_file(tmp_path, "copy.pt", seed=5))}
    grids = {}
    for way, own in {"sent": {}, "file": copy}.items():
        run = cut_run(tmp_path, weights, out=str(tmp_path / way))
        nodes = with_settings(hospitals, tmp_path / way, North=own, East=own, South={})
        grids[way] = Watched(app, nodes, run)
        serve_flower_run(grids[way], run)
        kept = {file.parent.name for file in (tmp_path / way).rglob("frozen-*.safetensors")}
        assert kept == grids[way].sent_layers()
    assert grids["sent"].sent_layers() == set(NAMES)
    assert grids["file"].sent_layers() == {"South"}
    assert [sent.kind for sent in grids["file"].sent].count(QUESTION) == 3  # once for each node
    models = [(tmp_path / way / "model.safetensors").read_bytes() for way in grids]
    assert models[0] == models[1]


def test_a_site_with_images_of_its_own_opens_no_file_that_the_server_names(
    hospitals: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The run's settings come from the server; a path in them is one of the server's machine."""
    weights = weights_file(tmp_path, "server.pt", seed=5)
    run = cut_run(tmp_path, weights, rounds=1)

    class Elsewhere(Watched):
        def _answer(self, message: Message) -> Message:
            weights.unlink(missing_ok=True)  # the server has read it
            return super()._answer(message)

    nodes = with_settings(hospitals, tmp_path, North={}, East={}, South={})
    strategy = serve_flower_run(Elsewhere(app, nodes, run), run)
    assert strategy.history[0].weights.keys() == set(NAMES)


def test_nodes_of_a_partition_have_the_frozen_part_by_the_runs_settings(tmp_path: Path) -> None:
    run = config(rounds=1, out=str(tmp_path / "run"), **{"model.frozen": "body"})
    grid = Watched(app, NODES, run)
    serve_flower_run(grid, run)
    assert [sent.kind for sent in grid.sent].count(QUESTION) == len(NODES)
    assert grid.sent_layers() == set()
    assert (tmp_path / "run" / "metrics.json").exists()


def test_a_site_whose_file_has_another_hash_is_refused_in_a_line_and_the_others_go_on(
    hospitals: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    weights = weights_file(tmp_path, "server.pt", seed=5)
    other = {"backbone": str(weights_file(tmp_path, "other.pt", seed=6))}
    run = cut_run(tmp_path, weights, nodes=2)
    nodes = with_settings(hospitals, tmp_path, North={}, East=other, South={})
    grid = Watched(app, nodes, run)
    strategy = serve_flower_run(grid, run)
    assert grid.sent_layers() == {"North", "South"}  # East would not use them
    agreed = strategy._frozen.order[FROZEN]
    client_app._layers_of_backbone.cache_clear()
    context = Context(1, FIRST_NODE + 1, nodes[1], RecordDict(), run)
    own = client_app.own_layers(context)
    assert own is not None
    line = f"other.pt: its frozen tensors have SHA-256 {own.digest}, the server's {agreed}; get the"
    ledger = read_csv(tmp_path / "run" / "weights.csv")
    refusals = [entry["status"] for entry in ledger if not float(entry["weight"])]
    assert len(refusals) == 2
    assert all(line in status for status in refusals)
    assert {entry["client"] for entry in ledger if float(entry["weight"])} == {"North", "South"}


def test_under_secure_sums_the_file_is_used_too_and_another_is_named_before_it_is_in_a_sum(
    hospitals: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    weights = weights_file(tmp_path, "server.pt", seed=5)
    copy = {"backbone": str(weights_file(tmp_path, "copy.pt", seed=5))}
    run = cut_run(tmp_path, weights, secure=True, rounds=1)
    nodes = keyed(hospitals, NAMES, tmp_path / "keys")
    nodes = with_settings(nodes, tmp_path, North=copy, East=copy, South={})
    grid = Watched(app, nodes, run)
    strategy = serve_flower_run(grid, run)
    assert strategy.history[0].weights.keys() == set(NAMES)
    assert grid.sent_layers() == {"South"}

    other = {"backbone": str(weights_file(tmp_path, "other.pt", seed=6))}
    again = run | {"out": str(tmp_path / "again")}
    nodes = with_settings(nodes, tmp_path, North=copy, East=other, South={})
    grid = Watched(app, nodes, again)
    client_app._layers_of_backbone.cache_clear()
    strategy = serve_flower_run(grid, again)
    assert grid.sent_layers() == set()
    statuses = {entry.client: entry.status for entry in strategy.history[0].ledger}
    assert "other.pt: its frozen tensors have SHA-256" in statuses["East"]
    assert f"the server's {strategy._frozen.order[FROZEN]}; get the" in statuses["East"]


def test_a_site_that_gets_the_right_file_after_a_round_takes_part_again(
    hospitals: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    weights = weights_file(tmp_path, "server.pt", seed=5)
    theirs = weights_file(tmp_path, "theirs.pt", seed=6)
    run = cut_run(tmp_path, weights, nodes=2, rounds=3)
    nodes = with_settings(hospitals, tmp_path, North={}, East={"backbone": str(theirs)}, South={})

    class Mended(Watched):
        def _answer(self, message: Message) -> Message:
            trained = [sent for sent in self.sent if sent.kind == "train"]
            if len(trained) == 3 and message.metadata.message_type == QUESTION:
                weights_file(tmp_path, "theirs.pt", seed=5)
                client_app._layers_of_backbone.cache_clear()
            return super()._answer(message)

    grid = Mended(app, nodes, run)
    strategy = serve_flower_run(grid, run)
    assert ["East" in done.weights for done in strategy.history] == [False, True, True]
    assert "East" not in grid.sent_layers()


def test_a_file_that_is_replaced_after_a_site_has_named_it_is_noticed_before_the_site_trains(
    hospitals: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The digest is of the tensors that are used, not of the file when the question came."""
    weights = weights_file(tmp_path, "server.pt", seed=5)
    own = weights_file(tmp_path, "own.pt", seed=5)
    run = cut_run(tmp_path, weights, nodes=2, rounds=1)
    nodes = with_settings(hospitals, tmp_path, North={}, East={"backbone": str(own)}, South={})

    class Replaced(Watched):
        def _answer(self, message: Message) -> Message:
            if message.metadata.message_type == "train":
                weights_file(tmp_path, "own.pt", seed=6)
                client_app._layers_of_backbone.cache_clear()  # another process of the site
            return super()._answer(message)

    grid = Replaced(app, nodes, run)
    strategy = serve_flower_run(grid, run)
    assert strategy.history[0].weights.keys() == {"North", "South"}
    (refused,) = (entry.status for entry in strategy.history[0].ledger if not entry.weighted)
    assert "own.pt: its frozen tensors have SHA-256" in refused


def test_clients_that_know_nothing_of_the_question_are_sent_the_frozen_layers_in_every_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    initial = initial_model(half_frozen, seed=7)
    foreign = ClientApp()
    got: list[str] = []

    @foreign.train()
    def train(message: Message, context: Context) -> Message:
        frozen = {name: a.numpy() for name, a in message.content.array_records[FROZEN].items()}
        got.append(frozen_digest(frozen))
        arrays = ArrayRecord(dict(message.content.array_records["arrays"].items()))
        metrics = MetricRecord({"num-examples": 5, "num-steps": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @foreign.query()
    def query(message: Message, context: Context) -> Message:
        raise AssertionError("another's query is not for us to ask")

    strategy = MethodStrategy(fedavg(), fraction_evaluate=0.0, frozen=initial.layout.frozen)
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy.start(InProcessGrid(foreign, [{}, {}]), model_to_arrays(initial), 2)
    assert got == [frozen_digest(initial.layout.frozen)] * 4
    assert all(len(done.weights) == 2 for done in strategy.history)
    assert "0 of 2 nodes have them already" in caplog.text
