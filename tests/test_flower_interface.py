"""In the place of Flower's FedAvg: the same arguments, messages and records, as another's app sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from feddraw.errors import UserError
from feddraw.flower import FedDRAW, MethodStrategy
from feddraw.flower._inprocess import InProcessGrid
from feddraw.methods.fedavg import fedavg

NODES = [{"partition-id": number} for number in range(3)]
START = {"body.weight": np.zeros((2, 3), np.float32), "head.weight": np.ones((2, 3), np.float32)}
START["head.bias"] = np.zeros(2, np.float32)


def arrays(tensors: dict[str, Any] | None = None) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in (tensors or START).items()})


def clients(answer: Any = None, seen: list[Any] | None = None) -> ClientApp:
    """Clients that add their number to every tensor; `answer` may change the reply."""
    app = ClientApp()

    def content(message: Message, context: Any) -> RecordDict:
        number = int(context.node_config["partition-id"])
        if seen is not None:
            seen.append((message.metadata.message_type, number, dict(message.content["config"])))
        received = {name: array.numpy() for name, array in message.content["arrays"].items()}
        moved = {name: values + (number + 1) for name, values in received.items()}
        reply = RecordDict({"arrays": arrays(moved), "metrics": MetricRecord({"num-examples": 10, "acc": 0.5})})
        return reply if answer is None else answer(reply, number)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        return Message(content(message, context), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        reply = content(message, context)
        reply.pop("arrays", None)
        return Message(reply, reply_to=message)

    return app


def run(
    answer: Any = None, rounds: int = 1, *, seen: Any = None, nodes: int = 3, start: Any = None, **options: Any
) -> Any:
    """A strategy with its result."""
    options = {"fraction_evaluate": 0.0} | options
    strategy = options.pop("strategy", None) or MethodStrategy(options.pop("method", fedavg()), **options)
    grid = InProcessGrid(clients(answer, seen), [{"partition-id": number} for number in range(nodes)])
    strategy.result = strategy.start(grid, arrays(), rounds, **(start or {}))
    return strategy


# ---------------------------------------------------------------------------------------------------- what is sent


def test_every_key_of_the_users_configuration_arrives_as_it_was_given() -> None:
    theirs = {"seed": 7, "rounds": 99, "run": "mine", "round": -1, "final": "no", "lr": 0.1}
    seen: list[Any] = []
    given = ConfigRecord(dict(theirs))
    run(rounds=2, seen=seen, fraction_evaluate=1.0, start={"train_config": given, "evaluate_config": given})
    assert len(seen) == 12
    for _, _, config in seen:
        assert {key: config[key] for key in theirs} == theirs
        assert set(config) == theirs.keys() | {"server-round", "feddraw"}
    assert set(given) == theirs.keys() | {"server-round"}  # as FedAvg leaves it


def test_a_message_holds_one_record_of_tensors_and_one_of_settings_as_flowers_mods_want_it() -> None:
    grid = InProcessGrid(clients(), NODES)
    strategy = FedDRAW(rounds=3)
    for message in strategy.configure_train(1, arrays(), ConfigRecord(), grid):
        assert len(message.content.array_records) == len(message.content.config_records) == 1


def test_our_own_key_is_not_to_be_used_by_others() -> None:
    with pytest.raises(UserError, match="a key 'feddraw', which this package uses itself"):
        run(start={"train_config": ConfigRecord({"feddraw": 1})})


def test_evaluation_draws_other_nodes_than_training() -> None:
    seen: list[Any] = []
    run(rounds=20, seen=seen, nodes=10, fraction_train=0.5, fraction_evaluate=0.5)
    asked: dict[str, list[set[int]]] = {"train": [set() for _ in range(20)], "evaluate": [set() for _ in range(20)]}
    for kind, number, config in seen:
        asked[kind][config["server-round"] - 1].add(number)
    both = zip(asked["train"], asked["evaluate"], strict=True)
    shared = [len(one & other) for one, other in both]
    assert sum(count == 5 for count in shared) <= 2  # one pair in 252 is the same by chance
    assert 1.5 < np.mean(shared) < 3.5  # 2.5 by chance
