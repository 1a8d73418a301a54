"""Secure sums over Flower: the bits of the serial engine's, whoever drops, and no model leaves a
client.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import tiny
from feddraw import catalog
from feddraw.core import Joint, Method
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.run_preparation import initial_model
from feddraw.flower import FedDRAW, MethodStrategy, secure_mod
from feddraw.flower.array_records import model_to_arrays, unpack_array
from feddraw.flower.client_app import Site, client
from feddraw.flower.in_process_grid import FIRST_NODE, InProcessGrid
from feddraw.flower.method_as_text import method_as_text, method_from_text
from feddraw.flower.secure_messages import (
    SECURE_ORDER,
    SECURE_RECORD,
    FlowerRun,
    RecordNames,
    read_offer,
)
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddisco import feddisco
from feddraw.methods.feddraw import feddraw
from feddraw.methods.feddyn import feddyn
from feddraw.methods.krum import krum
from feddraw.secure.rounds.in_process import Secure
from feddraw.secure.sums.client import SecureSumClient
from feddraw.secure.sums.signing_keys import new_signing_key, site_directory_line
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from half_frozen_network import FROZEN_NAMES, half_frozen, site_trainer
from test_flower import QUICKSTART, app

SITES = (*tiny.NAMES, "Coast", "Hill")
STAGES = ("meet", "add", "sign", "reveal")
Change = Callable[[str, str, Message], list[Message]]  # stage, site, its answer: what arrives


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a signing key for each site, and the file of all their public keys."""
    folder = tmp_path_factory.mktemp("keys")
    lines = [site_directory_line(name, new_signing_key(folder / f"{name}.key")) for name in SITES]
    (folder / "sites.toml").write_text("\n".join(lines))
    return folder


def nodes(keys: Path, memory: Path, count: int = 4, **more: Any) -> list[dict[str, Any]]:
    common = {"sites": str(keys / "sites.toml"), "memory": str(memory), "simulated": True} | more
    return [
        {"partition-id": n, "key": str(keys / f"{name}.key")} | common
        for n, name in enumerate(SITES[:count])
    ]


class Line(InProcessGrid):
    """The way from the sites to the server: it writes down all that arrives, and may change it."""

    def __init__(
        self, app: ClientApp, nodes: list[dict[str, Any]], change: Change | None = None
    ) -> None:
        super().__init__(app, nodes, arrive=self._arriving)
        self.arrived: list[tuple[str, str, RecordDict]] = []  # stage, site, content
        self.errors: list[str] = []
        self.stages: list[str] = []
        self._change = change or (lambda stage, site, reply: [reply])

    def _answer(self, message: Message) -> Message:
        orders = json.loads(str(message.content.config_records["config"]["feddraw"]))
        order = orders.get(SECURE_ORDER) or {"stage": "plain"}
        stage = order.get("stage", "offer")
        self._stage = f"{order.get('sum', '')} {stage}".strip()
        self.stages += [self._stage] if self._stage not in self.stages[-1:] else []
        return super()._answer(message)

    def _arriving(self, replies: list[Message]) -> Iterator[Message]:
        for reply in replies:
            site = SITES[reply.metadata.src_node_id - FIRST_NODE]
            for found in self._change(self._stage.split()[-1], site, reply):
                if found.has_error():
                    self.errors.append(f"{site}, {self._stage}: {found.error.reason}")
                else:
                    self.arrived.append((self._stage, site, found.content))
                yield found


# ------------------------------------------------------------------------------------ the same bits


def trained(method: Method, grid: Line, rounds: int = 2, **options: Any) -> MethodStrategy:
    strategy = MethodStrategy(
        method, fraction_evaluate=0.0, min_available_nodes=4, secure=True, **options
    )
    strategy.start(grid, model_to_arrays(tiny.initial()), rounds)
    return strategy


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (feddraw(), {}),
        (feddraw(), {"policy": {"cap_times": 1.2}, "clear_weights": True}),
        (feddyn(), {}),
        (feddisco(), {}),
    ],
)
def test_the_bits_are_those_of_the_serial_engine(
    method: Method, options: Any, keys: Path, tmp_path: Path
) -> None:
    clear = options.get("clear_weights", False)
    grid = Line(app(method, tmp_path), nodes(keys, tmp_path, clear_weights=clear))
    strategy = trained(method, grid, rounds=3, **options)
    assert grid.errors == []
    policy = Policy(**options["policy"]) if options else Policy()
    collect = Secure(tiny.NAMES, tiny.SIZES, policy=policy, clear_weights=clear)
    *_, middle, last = tiny.train(method, 3, collect=collect)
    assert tiny.same(strategy.model, last.next_model)
    assert repr(strategy.history[-1].ledger) == repr(last.ledger)
    assert repr(strategy.history[1].ledger) == repr(middle.ledger)
    hides = method in (feddraw(), feddisco()) and not clear
    assert np.isnan(list(strategy.history[1].weights.values())).all() == hides


def test_who_drops_after_its_size_is_known_changes_no_bit_of_what_the_serial_engine_gives(
    keys: Path, tmp_path: Path
) -> None:
    method = feddraw()
    grid = Line(app(method, tmp_path), nodes(keys, tmp_path), losing([("add", "South")]))
    strategy = trained(method, grid)
    masked = Secure(tiny.NAMES, tiny.SIZES, drops=lambda round: {"South": ("moves", 2)})
    *_, last = tiny.train(method, 2, collect=masked)
    assert set(strategy.history[-1].weights) == {"North", "East", "West"}
    assert tiny.same(strategy.model, last.next_model)
    assert repr(strategy.history[-1].ledger) == repr(last.ledger)


# --------------------------------------------------------------------------------- a user's own app

WEIGHTS, SIZE = (
    np.arange(8, dtype=np.float32).reshape(2, 4) / 8,
    {name: 20 + 10 * n for n, name in enumerate(SITES)},
)


def moved(number: int, round: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng([number, round]).normal(0, 0.1, (2, 4)).astype(np.float32)


def plain_app(*mods: Any, extra: Callable[[RecordDict], None] = lambda reply: None) -> ClientApp:
    """Somebody's app, which knows nothing of feddraw: numpy only."""
    found = ClientApp(mods=list(mods))

    @found.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        sent = message.content.array_records["arrays"]
        arrays = {name: sent[name].numpy() for name in sent}
        arrays["head.weight"] = arrays["head.weight"] + moved(
            number, message.content["config"]["server-round"]
        )
        metrics = MetricRecord(
            {"num-examples": SIZE[SITES[number]], "train_loss": 0.5, "secret": 1.5, "list": [0.5]}
        )
        reply = RecordDict(
            {"arrays": ArrayRecord({n: Array(a) for n, a in arrays.items()}), "metrics": metrics}
        )
        extra(reply)
        return Message(reply, reply_to=message)

    @found.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 5, "accuracy": 0.9, "list": [0.1] * 8})
        reply = RecordDict(
            {
                "arrays": message.content["arrays"],
                "metrics": metrics,
                "notes": ConfigRecord({"a": "b"}),
            }
        )
        return Message(reply, reply_to=message)

    return found


def first_arrays() -> ArrayRecord:
    return ArrayRecord({"head.weight": Array(WEIGHTS), "head.bias": Array(np.zeros(2, np.float32))})


def run(grid: Line, rounds: int = 1, **options: Any) -> FedDRAW:
    options = {"fraction_evaluate": 0.0, "min_available_nodes": 4, "secure": True} | options
    strategy = FedDRAW(**options)
    strategy.start(grid, first_arrays(), rounds)
    return strategy


def expected(strategy: FedDRAW, names: Iterable[str]) -> np.ndarray[Any, Any]:
    """The model after one round in which these counted, by the ledger's weights."""
    weights = strategy.history[-1].weights
    assert set(weights) == set(names)
    return WEIGHTS + sum(np.float64(weights[name]) * moved(SITES.index(name)) for name in names)


def statuses(strategy: FedDRAW) -> dict[str, str]:
    return {entry.client: entry.status for entry in strategy.history[-1].ledger}


def weights_of(strategy: FedDRAW) -> np.ndarray[Any, Any]:
    assert strategy.model is not None
    return np.asarray(strategy.model.arrays()["head.weight"])


def test_a_users_app_needs_the_mod_and_nothing_else(keys: Path, tmp_path: Path) -> None:
    grid = Line(plain_app(secure_mod), nodes(keys, tmp_path))
    strategy = run(grid)
    assert grid.errors == []
    assert grid.stages == ["offer", "meet", "moves add", "moves sign", "moves reveal"]
    np.testing.assert_allclose(weights_of(strategy), expected(strategy, tiny.NAMES), atol=1e-6)
    assert strategy.history[0].weights == pytest.approx(
        {name: SIZE[name] / 140 for name in tiny.NAMES}
    )
    assert [entry.steps for entry in strategy.history[0].ledger] == [None] * 4  # it tells none


def test_a_users_app_that_tells_no_steps_is_refused_by_a_method_that_computes_with_them(
    keys: Path, tmp_path: Path
) -> None:
    method = catalog.find("methods", "inverse_steps")()
    strategy = MethodStrategy(method, fraction_evaluate=0.0, min_available_nodes=4, secure=True)
    grid = Line(plain_app(secure_mod), nodes(keys, tmp_path))
    strategy.start(grid, first_arrays(), 1)
    assert strategy.history[0].weights == {}
    assert all("let its app send num-steps" in status for status in statuses(strategy).values())


def test_all_that_arrives_are_masked_words_and_listed_numbers(keys: Path, tmp_path: Path) -> None:
    """What a server gets of an app that sends far too much."""

    def too_much(reply: RecordDict) -> None:
        reply["more"] = ArrayRecord({"copy": reply.array_records["arrays"]["head.weight"]})
        reply["notes"] = ConfigRecord({"model": reply.array_records["arrays"]["head.weight"].data})
        reply["client"] = ConfigRecord({"name": "North", "model": [0.5] * 8})
        del reply["client"]

    grid = Line(plain_app(secure_mod, extra=too_much), nodes(keys, tmp_path))
    strategy = run(grid, rounds=2, fraction_evaluate=1.0, min_evaluate_nodes=4)
    assert grid.errors == []
    assert len(grid.arrived) == 4 * 2 * 6
    known = [(WEIGHTS + moved(n)).tobytes() for n in range(4)]
    known += [moved(n, round).tobytes() for n in range(4) for round in (1, 2)]
    said = {"meet": {"size", "labelled", "signatures"}, "offer": {"digest"}}
    for stage, _, content in grid.arrived:
        if stage == "plain":  # an evaluation in clear
            assert not content["metrics"]
            continue
        last = stage.split()[-1]
        assert set(content) <= {"client", SECURE_RECORD, "words"}, stage
        assert ("client" in content) == (stage == "offer")
        assert ("words" in content) == (last == "add")
        for arrays in content.array_records.values():
            assert [(array.dtype, array.shape) for array in arrays.values()] == [("uint64", (13,))]
        record = content.config_records[SECURE_RECORD]
        assert set(record) <= {"facts", "names", "contents"}
        facts = json.loads(str(record["facts"]))
        assert set(facts) == said.get(last, {"statement"} if last == "add" else set())
        if last == "add":
            assert set(json.loads(facts["statement"])) == {"own_weights", "steps"}
        assert set(content.config_records.get("client", {})) <= {"name", "number"}
        written = b"".join(record.get("contents", []))  # type: ignore[arg-type]
        assert not any(model in written for model in known)
    assert strategy.history[0].reported["loss"] == pytest.approx(0.5)
    words = [
        unpack_array(content.array_records["words"]["words"])
        for _, _, content in grid.arrived
        if "words" in content
    ]
    assert len({one.tobytes() for one in words}) == 8
    assert (
        np.abs(np.concatenate(words).view(np.int64) / 2.0**40).min() > 1
    )  # a weighted move is less; chance: 10^-5


def test_a_site_with_the_mod_gives_its_model_to_no_server(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="takes part in secure sums only"):
        run(Line(plain_app(secure_mod), nodes(keys, tmp_path)), rounds=2, secure=False)


def test_nodes_without_a_key_are_told_how_to_get_one(keys: Path, tmp_path: Path) -> None:
    without = [{**node, "key": ""} for node in nodes(keys, tmp_path)]
    with pytest.raises(
        RunFailed,
        match=r"no update counted .*its app failed: (UserError: )?secure sums need a signing key",
    ):
        run(Line(plain_app(secure_mod), without), rounds=2)


def test_an_app_without_the_mod_is_told_to_add_it(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"it needs ClientApp\(mods=\[secure_mod\]\)"):
        run(Line(plain_app(), nodes(keys, tmp_path)), rounds=2)


def test_what_waits_at_a_site_is_for_its_owner_only_and_gone_after_the_round(
    keys: Path, tmp_path: Path
) -> None:
    seen: list[tuple[str, list[str]]] = []

    def look(stage: str, site: str, reply: Message) -> list[Message]:
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert {stat.S_IMODE(file.parent.stat().st_mode) for file in files} == {0o700}
        seen.append((stage, sorted(file.name for file in files)))
        return [reply]

    run(Line(plain_app(secure_mod), nodes(keys, tmp_path), look))
    for file, counts in (("train.offer", (4, 4, 4, 4, 0)), ("train.part", (0, 4, 4, 4, 0))):
        waiting = {stage: names.count(file) for stage, names in seen}
        assert waiting == dict(zip(("offer", *STAGES), counts, strict=True))


# --------------------------------------------------------------------------------- who falls silent


def losing(lost: Collection[tuple[str, str]]) -> Change:
    """These answers do not arrive: stage and site."""
    return lambda stage, site, reply: [] if (stage, site) in lost else [reply]


@pytest.mark.parametrize("stage", ["offer", *STAGES])
def test_one_of_four_may_drop_at_any_stage(stage: str, keys: Path, tmp_path: Path) -> None:
    grid = Line(plain_app(secure_mod), nodes(keys, tmp_path), losing([(stage, "South")]))
    strategy = run(grid)
    counts = stage in ("sign", "reveal")  # its words are in the sum by then
    there = [name for name in tiny.NAMES if counts or name != "South"]
    np.testing.assert_allclose(weights_of(strategy), expected(strategy, there), atol=1e-6)
    assert [name for name, status in statuses(strategy).items() if status != "weighted"] == (
        [] if counts else ["node 1003" if stage == "offer" else "South"]
    )
    assert "missing" in statuses(strategy).values() or counts


def losing_first(stage: str, sites: Collection[str]) -> Change:
    """The answers of these sites do not arrive the first time."""
    lost: set[str] = set()

    def change(at: str, site: str, reply: Message) -> list[Message]:
        if at == stage and site in sites and site not in lost:
            lost.add(site)
            return []
        return [reply]

    return change


@pytest.mark.parametrize("stage", STAGES[:2])
def test_where_too_many_drop_the_same_members_try_again_with_fresh_keys(
    stage: str, keys: Path, tmp_path: Path
) -> None:
    change = losing_first(stage, ("South", "West"))
    grid = Line(plain_app(secure_mod), nodes(keys, tmp_path, 6), change)
    strategy = run(grid, min_available_nodes=6)
    np.testing.assert_allclose(weights_of(strategy), expected(strategy, SITES), atol=1e-6)
    assert grid.stages[-5:] == ["again", "meet", *(f"moves {one}" for one in STAGES[1:])]
    assert len(list(tmp_path.rglob("train.run"))) == 6
    assert all(len(file.read_text().split()) == 1 for file in tmp_path.rglob("train.run"))


def test_a_sum_that_clients_were_asked_to_open_is_never_tried_again(
    keys: Path, tmp_path: Path
) -> None:
    lost = losing([("reveal", "South"), ("reveal", "West")])
    grid = Line(plain_app(secure_mod), nodes(keys, tmp_path, 6), lost)
    strategy = run(grid, min_available_nodes=6)
    assert np.array_equal(weights_of(strategy), WEIGHTS)
    assert grid.stages[-1] == "moves reveal"
    why = "opened shares came from 4 of 6 clients, 5 are needed"
    assert statuses(strategy)["North"] == f"unused: the secure sum 'train: moves' failed: {why}"


def test_a_round_with_too_few_clients_counts_nobody_and_a_second_one_ends_the_run(
    keys: Path, tmp_path: Path
) -> None:
    lost = losing([("add", "South"), ("add", "West")])
    with pytest.raises(
        RunFailed, match=r"no update counted in rounds 0 and 1 .*values came from 2 of 4 clients"
    ):
        run(Line(plain_app(secure_mod), nodes(keys, tmp_path), lost), rounds=3)


def test_fewer_than_three_clients_are_refused(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="only 2 of 3 nodes were connected"):
        run(Line(plain_app(secure_mod), nodes(keys, tmp_path, 2)), min_available_nodes=2, wait=0.1)


# ----------------------------------------------------------------------------------- what is forged


def changed(reply: Message, change: Callable[[bytes], bytes]) -> Message:
    """The answer with other bytes in it."""
    record = reply.content.config_records[SECURE_RECORD]
    record["contents"] = [change(one) for one in record["contents"]]
    return reply


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[:-1],
    "a bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}
if os.environ.get("FEDDRAW_LONG"):
    CHANGES |= {
        "empty": lambda content: b"",
        "first bit": lambda content: bytes([content[0] ^ 1]) + content[1:],
        "longer": lambda content: content + b"\0",
    }


@pytest.mark.parametrize("stage", ["offer", *STAGES])
def test_answers_that_are_broken_on_the_way_are_refused_by_name(
    stage: str, keys: Path, tmp_path: Path
) -> None:
    for number, change in enumerate(CHANGES.values()):

        def spoil(at: str, site: str, reply: Message, change: Any = change) -> list[Message]:
            return [changed(reply, change) if (at, site) == (stage, "South") else reply]

        grid = Line(plain_app(secure_mod), nodes(keys, tmp_path / str(number)), spoil)
        strategy = run(grid, site_keys=keys / "sites.toml")
        counts = stage in ("sign", "reveal")
        there = [name for name in tiny.NAMES if counts or name != "South"]
        np.testing.assert_allclose(weights_of(strategy), expected(strategy, there), atol=1e-6)
        assert counts or statuses(strategy)["South"].startswith("refused: "), statuses(strategy)


def test_words_that_were_changed_on_the_way_are_refused_by_name(keys: Path, tmp_path: Path) -> None:
    def spoil(stage: str, site: str, reply: Message) -> list[Message]:
        if (stage, site) == ("add", "South"):
            words = unpack_array(reply.content.array_records["words"]["words"]).copy()
            words[3] += 1
            reply.content["words"] = ArrayRecord({"words": Array(words)})
        return [reply]

    strategy = run(Line(plain_app(secure_mod), nodes(keys, tmp_path), spoil))
    assert (
        statuses(strategy)["South"] == "refused: the masked values of South has a wrong signature"
    )
    np.testing.assert_allclose(
        weights_of(strategy), expected(strategy, ["North", "East", "West"]), atol=1e-6
    )


@pytest.mark.parametrize("stage", STAGES)
def test_answers_of_another_round_are_refused_by_name(
    stage: str, keys: Path, tmp_path: Path
) -> None:
    kept: dict[tuple[str, str], list[RecordDict]] = {}

    def replay(at: str, site: str, reply: Message) -> list[Message]:
        before = kept.setdefault((at, site), [])
        before.append(reply.content)
        if len(before) > 1 and (at, site) == (stage, "South"):
            reply.__dict__["_content"] = before[0]
        return [reply]

    grid = Line(plain_app(secure_mod), nodes(keys, tmp_path), replay)
    strategy = run(grid, rounds=2)
    assert statuses(strategy)["South"].startswith("refused: ") or stage in ("sign", "reveal")
    assert len(strategy.history[1].weights) == (4 if stage in ("sign", "reveal") else 3)


def test_answers_of_one_stage_to_another_and_twice_the_same_change_nothing(
    keys: Path, tmp_path: Path
) -> None:
    first: dict[str, Message] = {}

    def confuse(stage: str, site: str, reply: Message) -> list[Message]:
        if stage == "meet":
            first[site] = reply
        mixed = first[site].content if (stage, site) == ("add", "South") else reply.content
        reply.__dict__["_content"] = mixed
        return [reply, reply]

    strategy = run(Line(plain_app(secure_mod), nodes(keys, tmp_path), confuse))
    assert statuses(strategy)["South"].startswith(
        "refused: a message of a secure sum cannot be read"
    )
    np.testing.assert_allclose(
        weights_of(strategy), expected(strategy, ["North", "East", "West"]), atol=1e-6
    )


def test_a_site_with_anothers_key_is_refused(keys: Path, tmp_path: Path) -> None:
    given = nodes(keys, tmp_path)
    given[2]["client"] = "North"  # but it has South's key
    grid = Line(plain_app(secure_mod), given)
    strategy = run(grid)
    assert "calls itself North, but its key is that of South" in statuses(strategy)["node 1003"]
    assert len(strategy.history[0].weights) == 3


# -------------------------------------------------------------------------------------------- again


class Killed(Exception):
    """A server that dies in the middle of a round."""


def killed_server(grid: Line, folder: Path, at: int, rounds: int = 3) -> None:
    """A run whose server dies after the sum of a round was opened, and before it is saved."""
    strategy = FedDRAW(fraction_evaluate=0.0, min_available_nodes=4, secure=True, folder=folder)
    record = strategy._record_round

    def die(done: Any) -> None:
        if done.round == at:
            raise Killed
        record(done)

    strategy._record_round = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        strategy.start(grid, first_arrays(), rounds)


def test_a_server_killed_before_a_list_is_signed_goes_on_to_the_same_bits(
    keys: Path, tmp_path: Path
) -> None:
    """The sites have trained; they try the same sum again, and do not train again."""
    whole = run(Line(plain_app(secure_mod), nodes(keys, tmp_path / "a")), rounds=3)
    added: list[str] = []

    def die(stage: str, site: str, reply: Message) -> list[Message]:
        added.extend([site] if stage == "add" else [])
        if len(added) == 6:
            added.append("once")
            raise Killed
        return [reply]

    grid = Line(plain_app(secure_mod), nodes(keys, tmp_path / "b"), die)
    strategy = FedDRAW(
        fraction_evaluate=0.0, min_available_nodes=4, secure=True, folder=tmp_path / "run"
    )
    with pytest.raises(Killed):
        strategy.start(grid, first_arrays(), 3)
    resumed = run(grid, rounds=3, folder=tmp_path / "run", resume=True)
    assert tiny.same(resumed.model, whole.model)
    assert grid.errors == []
    runs = [len(file.read_text().split()) for file in (tmp_path / "b").rglob("train.run")]
    assert runs == [3] * 4


def test_a_round_that_was_opened_is_not_opened_again_by_a_server_that_was_killed(
    keys: Path, tmp_path: Path
) -> None:
    """With other clients the difference of the two sums would be what one client sent."""
    grid = Line(plain_app(secure_mod), nodes(keys, tmp_path / "b"))
    killed_server(grid, tmp_path / "run", at=1)
    resumed = run(grid, rounds=3, folder=tmp_path / "run", resume=True)
    assert len(grid.errors) == 4
    assert all("has run its app on this before" in error for error in grid.errors)
    assert resumed.history[0].weights == {}  # the round is lost
    assert len(resumed.history[1].weights) == 4  # and the next is not


class Partial(Line):
    """A server that sends South something else than the others."""

    def __init__(
        self, app: ClientApp, nodes: list[dict[str, Any]], kind: str, lie: dict[str, Any]
    ) -> None:
        super().__init__(app, nodes)
        self._kind, self._lie = kind, lie

    def _answer(self, message: Message) -> Message:
        south = message.metadata.dst_node_id == FIRST_NODE + SITES.index("South")
        if south and message.metadata.message_type == self._kind and "arrays" in message.content:
            config = ConfigRecord(
                dict(message.content.config_records["config"]) | self._lie.get("config", {})
            )
            message.content = RecordDict(dict(message.content) | self._lie | {"config": config})
        return super()._answer(message)


LIES = [
    {"config": {"lr": 0.0}},  # at all others, and the sum would be one site's move
    {
        "arrays": ArrayRecord(
            {"head.weight": Array(0 * WEIGHTS), "head.bias": Array(np.zeros(2, np.float32))}
        )
    },
    {"more": first_arrays()},
]


@pytest.mark.parametrize("lie", LIES)
def test_a_site_that_is_sent_anything_else_than_the_others_masks_nothing(
    lie: Any, keys: Path, tmp_path: Path
) -> None:
    grid = Partial(plain_app(secure_mod), nodes(keys, tmp_path), "train", lie)
    strategy = run(grid)
    (status,) = [status for name, status in statuses(strategy).items() if status != "weighted"]
    assert "other settings or another model" in status or "does not take the record" in status
    assert set(strategy.history[0].weights) == set(tiny.NAMES) - {"South"}


@pytest.mark.parametrize("lie", LIES)
def test_counts_are_summed_of_sites_that_evaluate_the_same_only(
    lie: Any, keys: Path, tmp_path: Path
) -> None:
    """With a model that puts the others' images into one bin, the rest of the counts would be one
    site's.
    """
    grid = Partial(plain_app(secure_mod), nodes(keys, tmp_path), "evaluate", lie)
    run(grid, fraction_evaluate=1.0, min_evaluate_nodes=4, masked_counts=True, findings=("a", "b"))
    assert {site for stage, site, _ in grid.arrived if stage == "counts add"} == set(tiny.NAMES) - {
        "South"
    }


@pytest.mark.parametrize(
    ("labelling", "images", "summed"), [(3, 5, True), (2, 5, False), (4, 0, True)]
)
def test_counts_of_a_finding_that_two_sites_label_are_not_summed_and_a_site_may_have_no_images(
    labelling: int, images: int, summed: bool, keys: Path, tmp_path: Path
) -> None:
    def about(message: Message, context: Context, app: Any) -> Message:
        reply, number = app(message, context), int(context.node_config["partition-id"])
        if message.metadata.message_type == "evaluate":
            reply.content["client"] = ConfigRecord(
                {"name": SITES[number], "labelled": [number < labelling, True]}
            )
            reply.content["metrics"]["num-examples"] = images if number == 0 else 5
        return reply

    grid = Line(plain_app(secure_mod, about), nodes(keys, tmp_path))
    run(grid, fraction_evaluate=1.0, min_evaluate_nodes=4, masked_counts=True, findings=("a", "b"))
    assert grid.errors == []
    assert ("counts reveal" in grid.stages) == summed


def test_sites_that_answered_are_not_missing_where_the_counts_of_too_few_came(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    silent = ("South", "West")

    def lose(stage: str, site: str, reply: Message) -> list[Message]:
        lost = reply.metadata.message_type == "evaluate" and site in silent
        return [] if lost else [reply]

    grid = Line(plain_app(secure_mod), nodes(keys, tmp_path), lose)
    strategy = run(
        grid, fraction_evaluate=1.0, min_evaluate_nodes=4, masked_counts=True, findings=("a", "b")
    )
    assert strategy.evaluation is not None
    found = {site.client: site.status for site in strategy.evaluation.sites}
    assert {name for name, status in found.items() if status == "missing"} == set(silent)
    for name in set(tiny.NAMES) - set(silent):
        assert found[name].startswith("unused: the secure sum 'evaluate: counts' failed: keys came")
    assert "again" not in grid.stages, "nobody who is missing could answer a second attempt"
    assert "is left out of a secure sum" not in caplog.text, "the sites that answered did nothing"


def test_a_site_with_labels_of_another_length_is_refused_and_the_others_count(
    keys: Path, tmp_path: Path
) -> None:
    def about(message: Message, context: Context, app: Any) -> Message:
        reply, number = app(message, context), int(context.node_config["partition-id"])
        reply.content["client"] = ConfigRecord(
            {"name": SITES[number], "labelled": [True] * (2 if number else 3)}
        )
        return reply

    found = statuses(run(Line(plain_app(secure_mod, about), nodes(keys, tmp_path))))
    assert "3 labelled findings where the model has 2" in found.pop(SITES[0])
    assert found == dict.fromkeys(tiny.NAMES[1:], "weighted")


def test_a_site_with_labels_of_another_length_is_left_out_of_the_counts(
    keys: Path, tmp_path: Path
) -> None:
    def about(message: Message, context: Context, app: Any) -> Message:
        reply, number = app(message, context), int(context.node_config["partition-id"])
        if message.metadata.message_type == "evaluate":
            reply.content["client"] = ConfigRecord(
                {"name": SITES[number], "labelled": [True] * (2 if number else 1)}
            )
        return reply

    grid = Line(plain_app(secure_mod, about), nodes(keys, tmp_path))
    strategy = run(
        grid, fraction_evaluate=1.0, min_evaluate_nodes=4, masked_counts=True, findings=("a", "b")
    )
    assert {site for stage, site, _ in grid.arrived if stage == "counts add"} == set(tiny.NAMES) - {
        SITES[0]
    }
    assert "counts reveal" in grid.stages
    documents = {site.client: site.document() for site in strategy.evaluation.sites}
    assert documents.pop(SITES[0])["status"].startswith("refused: ")
    # whose counts are in the sum, and nothing about one site
    assert documents == {
        name: {"client": name, "status": "evaluated"} for name in tiny.NAMES if name != SITES[0]
    }


def test_two_messages_at_once_never_put_the_same_masks_on_different_words(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits, and finds that the site has masked already."""
    mask, masking, second = SecureSumClient.mask, threading.Event(), list[Message]()

    class Twice(Line):
        def _answer(self, message: Message) -> Message:
            if second or '"stage": "add"' not in str(message.content["config"]["feddraw"]):
                return super()._answer(message)
            ask = super()._answer
            other = threading.Thread(target=lambda: masking.wait(5) and second.append(ask(message)))
            other.start()
            reply = ask(message)
            other.join()
            return reply

    def slow(*given: Any, **named: Any) -> Any:
        masking.set()
        time.sleep(0.2)
        return mask(*given, **named)

    monkeypatch.setattr(SecureSumClient, "mask", slow)
    run(Twice(plain_app(secure_mod), nodes(keys, tmp_path)))
    assert "its state is 'masked', not 'shared'" in second[0].error.reason


# ----------------------------------------------------------------------------------------- settings


def test_rules_that_need_every_clients_parameters_are_refused() -> None:
    with pytest.raises(UserError, match="cannot run under secure sums"):
        MethodStrategy(krum(), secure=True)


def test_a_gate_that_clips_is_refused() -> None:
    with pytest.raises(UserError, match="cannot leave out or clip"):
        FedDRAW(secure=True, gate=Gate(clip=3.0))


def test_a_site_asks_for_as_many_clients_as_it_wants(keys: Path, tmp_path: Path) -> None:
    grid = Line(plain_app(secure_mod), nodes(keys, tmp_path, fewest=5))
    with pytest.raises(RunFailed, match="takes part with at least 5 only"):
        run(grid, rounds=2)


def test_a_server_names_rules_of_this_package_and_nothing_else() -> None:
    for name in catalog.names("methods"):
        method = catalog.find("methods", name)()
        if method.centralised or isinstance(method.aggregation, Joint):
            continue
        assert method_from_text(json.loads(json.dumps(method_as_text(method)))) == method
    given = method_as_text(feddraw())
    for bad in (
        "os:system",
        "feddraw:cosine",
        "feddraw.core:Model",
        "feddraw:feddraw",
        "subprocess:Popen",
        "x",
    ):
        with pytest.raises(UserError):
            method_from_text(given | {"weighting": {"rule": bad}})


def test_the_quickstart_trains_with_the_mod_added_and_nothing_else(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(QUICKSTART))
    source = (QUICKSTART / "client_app.py").read_text()
    assert source.count("ClientApp()") == 1
    made: dict[str, Any] = {"secure_mod": secure_mod}
    exec(
        compile(
            source.replace("ClientApp()", "ClientApp(mods=[secure_mod])"), "client_app.py", "exec"
        ),
        made,
    )
    from task import Net

    torch.manual_seed(0)
    strategy = FedDRAW(min_available_nodes=4, secure=True)
    grid = Line(made["app"], nodes(keys, tmp_path))
    lr = ConfigRecord({"lr": 0.1})
    result = strategy.start(grid, ArrayRecord(Net().state_dict()), 3, train_config=lr)
    assert grid.errors == []
    assert result.evaluate_metrics_clientapp == {}  # a site's accuracy is its own
    assert list(strategy.history[2].weights.values()) == pytest.approx(
        [1 / 4] * 4
    )  # equal at the end
    assert result.arrays["norm.num_batches_tracked"].numpy() == 15


def test_frozen_layers_are_sent_once_under_secure_sums_too(keys: Path, tmp_path: Path) -> None:
    initial, trainer = initial_model(half_frozen, seed=7), site_trainer()

    def site(context: Any) -> Site:
        number = int(context.node_config["partition-id"])
        return Site(trainer, tiny.NAMES[number], number, number, tmp_path)

    grid = Line(client(site), nodes(keys, tmp_path, 3))
    strategy = MethodStrategy(
        fedavg(), fraction_evaluate=0.0, secure=True, frozen=initial.layout.frozen
    )
    strategy.start(grid, model_to_arrays(initial), 2)
    assert grid.errors == []
    assert strategy._frozen.holding == {1001, 1002, 1003}
    assert [len(done.weights) for done in strategy.history] == [3, 3]
    assert strategy.model is not None
    after = strategy.model.arrays()
    assert all(np.array_equal(after[name], initial.arrays()[name]) for name in FROZEN_NAMES)


def test_a_resumed_server_asks_for_the_same_and_one_with_other_settings_does_not(
    keys: Path, tmp_path: Path
) -> None:
    sent: list[RecordDict] = []

    class Watched(Line):
        def _answer(self, message: Message) -> Message:
            sent.append(message.content)
            return super()._answer(message)

    run(Watched(plain_app(secure_mod), nodes(keys, tmp_path)))

    def digest(**run_config: Any) -> bytes:
        return read_offer(sent[0], FlowerRun(1, "train", run_config), RecordNames()).digest

    first = digest(rounds=3, lr=0.1)
    assert digest(rounds=3, lr=0.1, resume=True) == first
    assert digest(rounds=3, lr=0.0) != first
