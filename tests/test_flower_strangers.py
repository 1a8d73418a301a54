"""With a list of sites, a node that is not on it gets nothing, takes no place and changes nothing.

The strangers here are registered at the SuperLink, answer everything and lie where they can.
"""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from feddraw.errors import RunFailed, UserError
from feddraw.flower import MethodStrategy
from feddraw.flower.in_process_grid import FIRST_NODE
from feddraw.flower.reply_intake import Reply
from feddraw.flower.roster import Roster
from feddraw.methods.fedavg import fedavg
from test_flower_interface import arrays
from test_flower_names import MARKS, Keyed

STRANGER = FIRST_NODE + 3
SITES = dict(zip(("North", "East", "South"), MARKS, strict=False))
AUC = 0.8


class Recorder:
    """Clients that write down which node was sent what; the last node is a stranger."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.app = ClientApp()
        self.app.train()(self._train)
        self.app.evaluate()(self._evaluate)
        self.app.query()(self._query)

    def _train(self, message: Message, context: Any) -> Message:
        self.sent.append(("train", context.node_id))
        metrics = MetricRecord({"num-examples": 10, "num-steps": 1})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    def _evaluate(self, message: Message, context: Any) -> Message:
        self.sent.append(("evaluate", context.node_id))
        auc = 0.0 if context.node_id == STRANGER else AUC
        metrics = MetricRecord({"num-examples": 10, "auc": auc})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def _query(self, message: Message, context: Any) -> Message:
        self.sent.append(("query", context.node_id))
        return Message(RecordDict(), reply_to=message)

    def nodes_sent(self, kind: str) -> list[int]:
        return [node for sent_kind, node in self.sent if sent_kind == kind]


def federation(nodes: int = 4, arrive: Any = None) -> tuple[Recorder, Keyed]:
    recorder = Recorder()
    return recorder, Keyed(recorder.app, [{}] * nodes, arrive=arrive)


def test_a_node_that_is_not_on_the_list_is_sent_nothing(caplog: pytest.LogCaptureFixture) -> None:
    recorder, grid = federation()
    strategy = MethodStrategy(fedavg(), sites=SITES)
    strategy.start(grid, arrays(), 3)
    assert STRANGER not in {node for _, node in recorder.sent}
    assert len(recorder.nodes_sent("train")) == len(recorder.nodes_sent("evaluate")) == 9
    assert [set(done.weights) for done in strategy.history] == [set(SITES)] * 3
    assert {len(done.ledger) for done in strategy.history} == {3}
    told = [one for one in caplog.messages if "not on the operator's list of sites" in one]
    assert told == [
        f"node {STRANGER} ({MARKS[3]}) is connected and not on the operator's list of sites:"
        " nothing is sent to it"
    ]


def test_it_takes_no_place_in_a_sample() -> None:
    recorder, grid = federation()
    strategy = MethodStrategy(
        fedavg(), fraction_train=0.5, fraction_evaluate=0.5, sites=SITES, seed=3
    )
    strategy.start(grid, arrays(), 10)
    assert {len(done.weights) for done in strategy.history} == {2}
    assert len(recorder.nodes_sent("evaluate")) == 20
    assert STRANGER not in {node for _, node in recorder.sent}


def test_a_round_does_not_begin_with_it_in_place_of_a_site() -> None:
    recorder, grid = federation()
    away = {"North": MARKS[0], "East": MARKS[1], "Far": f"SHA256:{'a' * 43}"}
    strategy = MethodStrategy(fedavg(), min_available_nodes=3, sites=away, wait=0.2)
    with pytest.raises(RunFailed, match="only 2 of 3 nodes were connected"):
        strategy.start(grid, arrays(), 1)
    assert recorder.sent == []


def test_its_evaluation_is_not_averaged_in_even_if_it_answers_unasked() -> None:
    def intrude(replies: list[Message]) -> list[Message]:
        """The stranger sends a copy of a site's message with numbers of its own."""
        if replies[0].metadata.message_type != "evaluate":
            return replies
        forged = Message(RecordDict(), STRANGER, "evaluate", group_id=replies[0].metadata.group_id)
        metrics = MetricRecord({"num-examples": 10_000, "auc": 0.0})
        return [Message(RecordDict({"metrics": metrics}), reply_to=forged), *replies]

    _, grid = federation(arrive=intrude)
    strategy = MethodStrategy(fedavg(), sites=SITES)
    result = strategy.start(grid, arrays(), 2)
    means = [dict(record) for record in result.evaluate_metrics_clientapp.values()]
    assert means == [{"auc": pytest.approx(AUC)}] * 2


def test_a_reply_of_an_unlisted_node_is_refused_whatever_name_it_gives_itself() -> None:
    """Also if it came as one of those that were asked."""
    roster = Roster({"North": 1, "East": 2})
    replies = [
        Reply(node, name, (0, 0, name), RecordDict()) for node, name in [(1, "North"), (3, "Else")]
    ]
    accepted, refused = roster.recognize(replies)
    assert [reply.name for reply in accepted] == ["North"]
    assert refused == {3: "its key node 3 is not on the operator's list of sites"}


def test_an_evaluation_under_another_nodes_name_is_left_out_without_a_list() -> None:
    def lie(replies: list[Message]) -> list[Message]:
        """East evaluates as North, which trained before."""
        if replies[0].metadata.message_type == "evaluate":
            metrics: Any = replies[1].content["metrics"]
            metrics["partition-id"] = 0
            metrics["auc"] = 0.0
        else:
            for number, reply in enumerate(replies):
                named: Any = reply.content["metrics"]
                named["partition-id"] = number
        return replies

    _, grid = federation(nodes=3, arrive=lie)
    result = MethodStrategy(fedavg()).start(grid, arrays(), 1)
    assert dict(result.evaluate_metrics_clientapp[1]) == {"auc": pytest.approx(AUC)}


def test_an_evaluation_of_another_round_is_left_out() -> None:
    old: list[Message] = []

    def late(replies: list[Message]) -> list[Message]:
        """The first node's evaluation of round 1 comes again, in place of that of round 2."""
        if replies[0].metadata.message_type != "evaluate":
            return replies
        if not old:
            old.extend(replies)
            metrics: Any = replies[0].content["metrics"]
            metrics["auc"] = 0.2
            return replies
        return [old[0], *replies[1:]]

    _, grid = federation(nodes=3, arrive=late)
    result = MethodStrategy(fedavg()).start(grid, arrays(), 2)
    assert dict(result.evaluate_metrics_clientapp[2]) == {"auc": pytest.approx(AUC)}


def test_a_round_cannot_wait_for_more_nodes_than_are_listed() -> None:
    with pytest.raises(UserError, match="waits for 4 nodes, and only 3 are on the list of sites"):
        MethodStrategy(fedavg(), min_available_nodes=4, sites=SITES)


@pytest.mark.parametrize("sites", [SITES, None])
def test_the_start_says_who_may_take_part(
    sites: dict[str, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    _, grid = federation(nodes=3)
    MethodStrategy(fedavg(), sites=sites).start(grid, arrays(), 1)
    expected = "sites: North, East, South; nobody else" if sites else "anyone who is registered"
    assert expected in caplog.text


def test_a_free_name_belongs_to_the_node_that_first_answers_under_it() -> None:
    """Two nodes say that they are North: before, neither counted, in every round."""

    def both_north(replies: list[Message]) -> list[Message]:
        for number, reply in enumerate(replies):
            named: Any = reply.content["metrics"]
            named["partition-id"] = min(number, 1) if replies[0].metadata.group_id == "1" else 1
        return list(reversed(replies))

    _, grid = federation(nodes=3, arrive=both_north)
    strategy = MethodStrategy(fedavg(), fraction_evaluate=0.0)
    strategy.start(grid, arrays(), 2)
    first = {entry.client: entry.status for entry in strategy.history[0].ledger}
    assert first == {
        "partition 0": "weighted",
        "partition 1": "weighted",
        f"node {FIRST_NODE + 1}": "refused: it answers as partition 1, which is another node's name",
    }
