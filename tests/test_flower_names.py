"""A site's name belongs to its node: nobody takes it while the site is away, and nobody is two
clients.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

import tiny
from feddraw import catalog
from feddraw.errors import RunFailed, UserError
from feddraw.flower import MethodStrategy
from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.client_app import Site, client
from feddraw.flower.in_process_grid import FIRST_NODE, InProcessGrid
from feddraw.flower.roster import node_fingerprint, read_roster
from feddraw.methods.fedavg import fedavg
from feddraw.training.client import Trainer

WEST = FIRST_NODE + 3  # the node that lies
KEYS = [
    ec.derive_private_key(number, ec.SECP384R1()).public_key().public_bytes(*form)
    for form in [(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)]
    for number in range(1, 5)
]
MARKS = [node_fingerprint(key) for key in KEYS]


class Keyed(InProcessGrid):
    """Nodes with registered keys, and the ids that a SuperLink gave them."""

    first = FIRST_NODE

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.contexts = {
            self.first + place: context for place, context in enumerate(self.contexts.values())
        }

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node, public_key=key)
            for node, key in zip(self.contexts, KEYS, strict=False)
        ]


class Restarted(Keyed):
    first = 7_000


def federation(
    method: Any, memory: Path, arrive: Any = None, grid: Any = InProcessGrid
) -> InProcessGrid:
    trainer = Trainer(
        tiny.build, tiny.examples(), tiny.shards(), tiny.TRAINING, method.local, asks=method.asks
    )

    def site(context: Any) -> Site:
        number = int(context.node_config["partition-id"])
        return Site(trainer, tiny.NAMES[number], number, number, memory)

    return grid(client(site), [{"partition-id": number} for number in range(4)], arrive=arrive)


def trained(
    tmp_path: Path,
    arrive: Any = None,
    *,
    method: Any = None,
    grid: Any = InProcessGrid,
    **options: Any,
) -> Any:
    method = method or fedavg()
    options = {"fraction_evaluate": 0.0, "min_available_nodes": 4} | options
    strategy = MethodStrategy(method, **options)
    strategy.start(
        federation(method, tmp_path / "memory", arrive, grid), model_to_arrays(tiny.initial()), 3
    )
    return strategy


def call(replies: list[Message], name: str, other: str) -> None:
    """Let a node say another name."""
    for reply in replies:
        if reply.content["client"]["name"] == name:
            reply.content["client"]["name"] = other


def without(replies: list[Message], name: str) -> list[Message]:
    return [reply for reply in replies if reply.content["client"]["name"] != name]


def status(strategy: Any, round: int) -> dict[str, str]:
    return {entry.client: entry.status for entry in strategy.history[round].ledger}


def by_round(**changes: Any) -> Any:
    """Changes to what arrives, by the number of the round."""

    def arrive(replies: list[Message]) -> list[Message]:
        return changes.get(f"round{replies[0].metadata.group_id}", lambda same: same)(replies)

    return arrive


def takes_north(replies: list[Message]) -> list[Message]:
    """North is away, and West answers in its name."""
    others = without(replies, "North")
    call(others, "West", "North")
    return others


ANOTHERS = "refused: it answers as North, which is another node's name"


def test_the_name_of_a_site_that_is_away_is_not_to_be_had(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = trained(tmp_path, by_round(round2=takes_north))
    assert status(strategy, 1) == {
        "North": "missing",
        "East": "weighted",
        "South": "weighted",
        "West": ANOTHERS,
    }
    assert set(status(strategy, 2).values()) == {"weighted"}
    told = [r.levelname for r in caplog.records if "West refused: it answers as North" in r.message]
    assert told == ["WARNING"]


def test_a_new_node_cannot_take_it_either(tmp_path: Path) -> None:
    late = by_round(round1=lambda replies: without(replies, "West"), round2=takes_north)
    strategy = trained(tmp_path, late)
    assert status(strategy, 1)[f"node {WEST}"] == ANOTHERS
    assert set(status(strategy, 2).values()) == {"weighted"}


def test_it_is_not_to_be_had_after_a_restart_of_the_server(tmp_path: Path) -> None:
    def dies(replies: list[Message]) -> list[Message]:
        raise RunFailed("the server is gone")

    with pytest.raises(RunFailed):
        trained(tmp_path, by_round(round2=dies), folder=tmp_path / "run")
    strategy = trained(tmp_path, by_round(round2=takes_north), folder=tmp_path / "run", resume=True)
    assert status(strategy, 0)["West"] == ANOTHERS
    assert set(status(strategy, 1).values()) == {"weighted"}


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_node_that_changes_its_name_in_every_round_is_one_client(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def renames(replies: list[Message]) -> list[Message]:
        call(replies, "West", f"West {replies[0].metadata.group_id}")
        return replies

    method = catalog.find("methods", name)()
    honest = trained(tmp_path / "honest", method=method)
    moving = trained(tmp_path / "moving", renames, method=method)
    assert moving.clients == ["North", "East", "South", "West 1"]
    assert {len(done.ledger) for done in moving.history} == {4}
    assert name == "scaffold" or tiny.same(
        moving.model, honest.model
    )  # SCAFFOLD's client forgets what it was
    assert "West 1 now calls itself West 3: it counts as West 1" in caplog.text


def test_nobody_is_called_by_another_nodes_number(tmp_path: Path) -> None:
    def takes_number(replies: list[Message]) -> list[Message]:
        call(replies, "West", f"node {FIRST_NODE}")
        return replies

    strategy = trained(tmp_path, takes_number)
    assert (
        status(strategy, 0)[f"node {WEST}"]
        == f"refused: it answers as node {FIRST_NODE}, which is another node's number"
    )


def test_a_known_site_is_not_called_by_another_nodes_number_either(tmp_path: Path) -> None:
    """Under secure sums two members of one name would stop everybody."""
    change = by_round(round2=lambda replies: call(replies, "West", f"node {FIRST_NODE}") or replies)
    strategy = trained(tmp_path, change)
    assert status(strategy, 0)["West"] == "weighted"
    assert status(strategy, 1)["West"].endswith("which is another node's number")
    assert status(strategy, 2)["West"] == "weighted"


# --------------------------------------------------------------------------------------------- keys


def killed(tmp_path: Path, grid: Any) -> None:
    def dies(replies: list[Message]) -> list[Message]:
        raise RunFailed("the server is gone")

    with pytest.raises(RunFailed):
        trained(tmp_path, by_round(round2=dies), folder=tmp_path / "run", grid=grid)


def test_a_registered_key_keeps_its_name_when_a_restarted_superlink_gives_new_ids(
    tmp_path: Path,
) -> None:
    whole = trained(tmp_path / "whole", grid=Keyed)
    killed(tmp_path, Keyed)
    resumed = trained(
        tmp_path, by_round(round2=takes_north), folder=tmp_path / "run", resume=True, grid=Restarted
    )
    assert status(resumed, 0) == {
        "North": "missing",
        "East": "weighted",
        "South": "weighted",
        "West": ANOTHERS,
    }
    assert resumed.clients == whole.clients


def test_without_keys_new_ids_are_strangers_until_the_operator_binds_them_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class NewIds(Restarted):
        def get_nodes(self) -> Iterable[NodeInfo]:
            return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    whole = trained(tmp_path / "whole")
    killed(tmp_path, InProcessGrid)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    with pytest.raises(RunFailed, match="no update counted"):
        trained(tmp_path, folder=tmp_path / "run", resume=True, grid=NewIds)
    assert "none of the 4 connected nodes is one that took part before" in caplog.text
    bound = trained(tmp_path, folder=tmp_path / "again", resume=True, grid=NewIds, rebind=True)
    assert tiny.same(bound.model, whole.model)


def test_the_operators_list_decides_who_is_who(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = {"Nord": MARKS[0], "East": MARKS[1], "South": FIRST_NODE + 2}
    strategy = trained(tmp_path, grid=Keyed, sites=sites, min_available_nodes=3)
    assert strategy.clients == ["Nord", "East", "South"]
    assert set(status(strategy, 0)) == {"Nord", "East", "South"}
    assert "Nord now calls itself North: it counts as Nord" in caplog.text


def test_a_site_that_the_list_calls_otherwise_still_finds_what_it_remembers(tmp_path: Path) -> None:
    method = catalog.find("methods", "scaffold")()
    sites = dict(zip(("Nord", "Ost", "Sued", "West"), MARKS, strict=True))
    listed = trained(tmp_path / "listed", method=method, grid=Keyed, sites=sites)
    assert listed.clients == list(sites)
    assert tiny.same(listed.model, trained(tmp_path / "free", method=method).model)


@pytest.mark.parametrize(
    ("sites", "says"),
    [
        ({"North": "north.key.pub"}, "neither a key's fingerprint"),
        ({"North": MARKS[0], "East": MARKS[0]}, "North and East have the same key"),
    ],
)
def test_a_list_that_cannot_be_right_is_refused(sites: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        MethodStrategy(fedavg(), sites=sites)


def test_the_list_is_also_a_text() -> None:
    assert read_roster(f"North={MARKS[0]}, St. Mary = {MARKS[1]}") == {
        "North": MARKS[0],
        "St. Mary": MARKS[1],
    }
    assert read_roster("") == {}
    with pytest.raises(UserError, match="NAME=FINGERPRINT"):
        read_roster("North")


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen")
def test_a_fingerprint_is_the_one_that_ssh_keygen_prints(tmp_path: Path) -> None:
    key = tmp_path / "north.key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", str(key)],
        check=True,
    )
    shown = subprocess.run(
        ["ssh-keygen", "-lf", f"{key}.pub"], check=True, capture_output=True, text=True
    ).stdout
    pem = subprocess.run(
        ["ssh-keygen", "-e", "-m", "PKCS8", "-f", f"{key}.pub"], check=True, capture_output=True
    ).stdout
    assert node_fingerprint(pem) == shown.split()[1]
