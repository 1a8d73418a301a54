"""In the place of Flower's FedAvg: the same arguments, messages and records, as another's app sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

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


# ---------------------------------------------------------------------------------------------------- counting on


class Killed(Exception):
    pass


def kill_after(round: int) -> Any:
    def kill(done: Any) -> None:
        if done.round == round - 1:
            raise Killed

    return kill


def test_rounds_are_counted_on_after_a_restart(tmp_path: Path) -> None:
    sent: list[Any] = []
    judged: list[int] = []
    start = {"evaluate_fn": lambda server_round, arrays: judged.append(server_round)}
    options = {"seen": sent, "start": start, "rounds": 4, "fraction_evaluate": 1.0, "folder": tmp_path / "run"}
    with pytest.raises(Killed):
        run(on_round=kill_after(2), **options)
    sent.clear()
    judged.clear()
    resumed = run(resume=True, **options)
    assert sorted({config["server-round"] for _, _, config in sent}) == [3, 4]
    assert judged == [2, 3, 4]
    assert list(resumed.result.train_metrics_clientapp) == [3, 4]
    assert list(resumed.result.evaluate_metrics_clientapp) == [3, 4]


def test_a_schedule_at_the_clients_gives_the_same_bits_after_a_restart(tmp_path: Path) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        rate = 0.5 ** message.content["config"]["server-round"]
        received = {name: array.numpy() for name, array in message.content["arrays"].items()}
        moved = {name: values + np.float32(rate * (1 + context.node_id % 7)) for name, values in received.items()}
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": arrays(moved), "metrics": metrics}), reply_to=message)

    def trained(**options: Any) -> Any:
        strategy = FedDRAW(fraction_evaluate=0.0, **options)
        return strategy.start(InProcessGrid(app, NODES), arrays(), 4).arrays

    whole = trained()
    with pytest.raises(Killed):
        trained(folder=tmp_path / "run", on_round=kill_after(2))
    assert trained(folder=tmp_path / "run", resume=True) == whole
    by_hand = FedDRAW(fraction_evaluate=0.0, rounds=4)
    half = by_hand.start(InProcessGrid(app, NODES), arrays(), 2).arrays
    rest = FedDRAW(fraction_evaluate=0.0, round_offset=2)
    assert rest.start(InProcessGrid(app, NODES), half, 2).arrays == whole


def private(strategy: Any, noise: float = 0.0) -> Any:
    return DifferentialPrivacyServerSideFixedClipping(strategy, noise, 1.0, 3)


def test_a_wrapper_for_differential_privacy_is_led_through_start_and_resumes(tmp_path: Path) -> None:
    grid = InProcessGrid(clients(), NODES)

    def trained(**options: Any) -> tuple[Any, list[int]]:
        strategy, judged = FedDRAW(fraction_evaluate=0.0, **options), []
        judge = {"evaluate_fn": lambda server_round, arrays: judged.append(server_round)}
        return strategy.start(grid, arrays(), 4, through=private(strategy), **judge).arrays, judged

    whole, _ = trained()
    assert whole != arrays()
    with pytest.raises(Killed):
        trained(folder=tmp_path / "run", on_round=kill_after(3))
    resumed, judged = trained(folder=tmp_path / "run", resume=True)
    assert resumed == whole
    assert judged == [2, 3, 4]  # the killed round was not in a checkpoint yet: its model was not the wrapper's


def test_a_checkpoint_holds_the_model_with_the_wrappers_noise(tmp_path: Path) -> None:
    seen: list[ArrayRecord] = []
    strategy = FedDRAW(fraction_evaluate=0.0, folder=tmp_path / "run")
    judge = {"evaluate_fn": lambda server_round, arrays: seen.append(arrays)}
    strategy.start(InProcessGrid(clients(), NODES), arrays(), 2, through=private(strategy, 1.0), **judge)
    again = FedDRAW(fraction_evaluate=0.0, folder=tmp_path / "run", resume=True, rounds=2)
    assert again.restore(arrays()) == seen[-1]


def test_a_wrappers_own_start_works_with_rounds_and_says_so_without(tmp_path: Path) -> None:
    grid = InProcessGrid(clients(), NODES)
    with pytest.raises(UserError, match=r"Give it to this strategy as rounds=…, or let it lead: strategy\.start"):
        private(FedDRAW(fraction_evaluate=0.0)).start(grid, arrays(), 2)
    strategy = FedDRAW(fraction_evaluate=0.0, rounds=2, folder=tmp_path / "run")
    led = FedDRAW(fraction_evaluate=0.0)
    result = private(strategy).start(grid, arrays(), 2)
    assert result.arrays == led.start(grid, arrays(), 2, through=private(led)).arrays
    assert len((tmp_path / "run" / "weights.csv").read_text().splitlines()) == 1 + 2 * 3
    again = FedDRAW(fraction_evaluate=0.0, rounds=3, folder=tmp_path / "run", resume=True)
    with pytest.raises(UserError, match=r"holds 2 rounds that this loop does not know of: go on with strategy\.start"):
        private(again).start(grid, arrays(), 1)


def own_loop(strategy: Any, rounds: int, first: ArrayRecord, grid: Any) -> ArrayRecord:
    """As many users write it."""
    model = first
    for server_round in range(1, rounds + 1):
        replies = grid.send_and_receive(strategy.configure_train(server_round, model, ConfigRecord(), grid))
        model = strategy.aggregate_train(server_round, replies)[0] or model
        strategy.configure_evaluate(server_round, model, ConfigRecord(), grid)
    return model


def test_a_loop_of_ones_own_writes_the_folder_and_goes_on_from_it(tmp_path: Path) -> None:
    seen: list[Any] = []
    grid = InProcessGrid(clients(seen=seen), NODES)
    whole = FedDRAW(fraction_evaluate=0.0).start(grid, arrays(), 4).arrays
    first = FedDRAW(fraction_evaluate=0.0, rounds=4, folder=tmp_path / "run")
    own_loop(first, 2, arrays(), grid)
    del first
    seen.clear()
    rest = FedDRAW(fraction_evaluate=0.0, rounds=4, folder=tmp_path / "run", resume=True)
    begun = rest.restore(arrays())
    assert rest.round_offset == 2
    assert own_loop(rest, 2, begun, grid) == whole
    assert sorted({config["server-round"] for _, _, config in seen}) == [3, 4]
    assert len((tmp_path / "run" / "weights.csv").read_text().splitlines()) == 1 + 4 * 3
    with pytest.raises(UserError, match="round 5 of 4"):
        own_loop(rest, 3, begun, grid)


def test_a_strategy_that_only_evaluates_gives_no_model() -> None:
    strategy = run(fraction_train=0.0, fraction_evaluate=1.0)
    assert strategy.history == []
    assert strategy.result.evaluate_metrics_clientapp[1]["acc"] == 0.5
