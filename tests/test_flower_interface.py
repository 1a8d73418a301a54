"""In the place of Flower's FedAvg: the same arguments, messages and records, as another's app sees
them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from feddraw.errors import RunFailed, UserError
from feddraw.flower import FedDRAW, MethodStrategy, metric_means, reply_intake
from feddraw.flower.in_process_grid import FIRST_NODE, InProcessGrid
from feddraw.methods.fedavg import fedavg
from feddraw.server.policy import Policy
from feddraw.system.file_reading import read_jsonl

NODES = [{"partition-id": number} for number in range(3)]
START = {"body.weight": np.zeros((2, 3), np.float32), "head.weight": np.ones((2, 3), np.float32)}
START["head.bias"] = np.zeros(2, np.float32)


def arrays(tensors: dict[str, Any] | None = None) -> ArrayRecord:
    return ArrayRecord(
        {name: Array(np.asarray(values)) for name, values in (tensors or START).items()}
    )


def clients(answer: Any = None, seen: list[Any] | None = None) -> ClientApp:
    """Clients that add their number to every tensor; `answer` may change the reply."""
    app = ClientApp()

    def content(message: Message, context: Any) -> RecordDict:
        number = int(context.node_config["partition-id"])
        if seen is not None:
            seen.append((message.metadata.message_type, number, dict(message.content["config"])))
        received = {name: array.numpy() for name, array in message.content["arrays"].items()}
        moved = {name: values + (number + 1) for name, values in received.items()}
        reply = RecordDict(
            {"arrays": arrays(moved), "metrics": MetricRecord({"num-examples": 10, "acc": 0.5})}
        )
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
    answer: Any = None,
    rounds: int = 1,
    *,
    seen: Any = None,
    nodes: int = 3,
    start: Any = None,
    **options: Any,
) -> Any:
    """A strategy with its result."""
    options = {"fraction_evaluate": 0.0} | options
    strategy = options.pop("strategy", None) or MethodStrategy(
        options.pop("method", fedavg()), **options
    )
    grid = InProcessGrid(
        clients(answer, seen), [{"partition-id": number} for number in range(nodes)]
    )
    strategy.result = strategy.start(grid, arrays(), rounds, **(start or {}))
    return strategy


# ------------------------------------------------------------------------------------- what is sent


def test_every_key_of_the_users_configuration_arrives_as_it_was_given() -> None:
    theirs = {"seed": 7, "rounds": 99, "run": "mine", "round": -1, "final": "no", "lr": 0.1}
    seen: list[Any] = []
    given = ConfigRecord(dict(theirs))
    run(
        rounds=2,
        seen=seen,
        fraction_evaluate=1.0,
        start={"train_config": given, "evaluate_config": given},
    )
    assert len(seen) == 12
    for _, _, config in seen:
        assert {key: config[key] for key in theirs} == theirs
        assert set(config) == theirs.keys() | {"server-round", "feddraw"}
    assert set(given) == theirs.keys() | {"server-round"}  # as FedAvg leaves it


def test_a_message_holds_one_record_of_tensors_and_one_of_settings_as_flowers_mods_want_it() -> (
    None
):
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
    asked: dict[str, list[set[int]]] = {
        "train": [set() for _ in range(20)],
        "evaluate": [set() for _ in range(20)],
    }
    for kind, number, config in seen:
        asked[kind][config["server-round"] - 1].add(number)
    both = zip(asked["train"], asked["evaluate"], strict=True)
    shared = [len(one & other) for one, other in both]
    assert sum(count == 5 for count in shared) <= 2  # one pair in 252 is the same by chance
    assert 1.5 < np.mean(shared) < 3.5  # 2.5 by chance


# -------------------------------------------------------------------------------------- counting on


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
    options = {
        "seen": sent,
        "start": start,
        "rounds": 4,
        "fraction_evaluate": 1.0,
        "folder": tmp_path / "run",
    }
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
        moved = {
            name: values + np.float32(rate * (1 + context.node_id % 7))
            for name, values in received.items()
        }
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


def test_a_wrapper_for_differential_privacy_is_led_through_start_and_resumes(
    tmp_path: Path,
) -> None:
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
    assert judged == [
        2,
        3,
        4,
    ]  # the killed round was not in a checkpoint yet: its model was not the wrapper's


def test_a_checkpoint_holds_the_model_with_the_wrappers_noise(tmp_path: Path) -> None:
    seen: list[ArrayRecord] = []
    strategy = FedDRAW(fraction_evaluate=0.0, folder=tmp_path / "run")
    judge = {"evaluate_fn": lambda server_round, arrays: seen.append(arrays)}
    strategy.start(
        InProcessGrid(clients(), NODES), arrays(), 2, through=private(strategy, 1.0), **judge
    )
    again = FedDRAW(fraction_evaluate=0.0, folder=tmp_path / "run", resume=True, rounds=2)
    assert again.restore(arrays()) == seen[-1]


def test_a_wrappers_own_start_works_with_rounds_and_says_so_without(tmp_path: Path) -> None:
    grid = InProcessGrid(clients(), NODES)
    with pytest.raises(
        UserError, match=r"Pass rounds=… to this strategy, or start with strategy\.start"
    ):
        private(FedDRAW(fraction_evaluate=0.0)).start(grid, arrays(), 2)
    strategy = FedDRAW(fraction_evaluate=0.0, rounds=2, folder=tmp_path / "run")
    led = FedDRAW(fraction_evaluate=0.0)
    result = private(strategy).start(grid, arrays(), 2)
    assert result.arrays == led.start(grid, arrays(), 2, through=private(led)).arrays
    assert len((tmp_path / "run" / "weights.csv").read_text().splitlines()) == 1 + 2 * 3
    again = FedDRAW(fraction_evaluate=0.0, rounds=3, folder=tmp_path / "run", resume=True)
    with pytest.raises(
        UserError,
        match=r"holds 2 rounds that this loop does not know of: go on with strategy\.start",
    ):
        private(again).start(grid, arrays(), 1)


def own_loop(strategy: Any, rounds: int, first: ArrayRecord, grid: Any) -> ArrayRecord:
    """As many users write it."""
    model = first
    for server_round in range(1, rounds + 1):
        replies = grid.send_and_receive(
            strategy.configure_train(server_round, model, ConfigRecord(), grid)
        )
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


# ---------------------------------------------------------------------------------- what comes back


def with_metrics(*numbers: dict[str, Any]) -> Any:
    """Replies whose metrics are given, a client each."""

    def answer(reply: RecordDict, number: int) -> RecordDict:
        reply["metrics"] = MetricRecord(numbers[number])
        return reply

    return answer


def test_any_positive_number_is_a_weight() -> None:
    weights = (0.25, 0.4, 1.35)
    strategy = run(
        with_metrics(*({"weight": weight} for weight in weights)), weighted_by_key="weight"
    )
    assert list(strategy.history[0].weights.values()) == pytest.approx([w / 2 for w in weights])
    assert [entry.size for entry in strategy.history[0].ledger] == list(weights)
    moved = strategy.result.arrays["body.weight"].numpy()
    assert moved == pytest.approx((0.25 * 1 + 0.4 * 2 + 1.35 * 3) / 2)


def test_a_cap_in_medians_holds_for_weights_below_one() -> None:
    answer = with_metrics({"num-examples": 0.1}, {"num-examples": 0.1}, {"num-examples": 0.9})
    assert [
        entry.size for entry in run(answer, policy=Policy(max_size_times=3)).history[0].ledger
    ] == pytest.approx([0.1, 0.1, 0.3])


def test_lists_among_the_metrics_are_averaged_number_by_number() -> None:
    both = (
        {"acc": 1, "curve": [1.0, 3.0]},
        {"acc": 0, "curve": [3.0, 5.0]},
        {"acc": 1, "curve": [2.0, 4.0]},
    )
    answer = with_metrics(
        *({"num-examples": size} | m for size, m in zip((1, 1, 2), both, strict=True))
    )
    strategy = run(answer, fraction_evaluate=1.0)
    for found in (
        strategy.result.train_metrics_clientapp[1],
        strategy.result.evaluate_metrics_clientapp[1],
    ):
        assert (found["acc"], found["curve"]) == (0.75, [2.0, 4.0])
        assert "num-examples" not in found


@pytest.mark.parametrize("name", ["loss", "train_loss", "train-loss"])
def test_the_clients_loss_is_in_the_lines_of_the_rounds_under_any_of_its_names(
    name: str, tmp_path: Path
) -> None:
    run(
        with_metrics(*({"num-examples": 10, name: loss} for loss in (1.0, 2.0, 6.0))),
        folder=tmp_path / "run",
    )
    assert [line["loss"] for line in read_jsonl(tmp_path / "run" / "rounds.jsonl")] == [3.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), [float("nan"), 1.0]])
def test_a_metric_that_is_not_finite_costs_neither_the_model_nor_the_others_metric(
    bad: Any, caplog: pytest.LogCaptureFixture
) -> None:
    good = [0.5, 0.5] if isinstance(bad, list) else 0.5
    pairs = ((good, 1.0), (bad, float("nan")), (good, 3.0))
    numbers = [{"num-examples": 10, "acc": value, "train_loss": loss} for value, loss in pairs]
    strategy = run(with_metrics(*numbers), fraction_evaluate=1.0)
    assert [entry.status for entry in strategy.history[0].ledger] == ["weighted"] * 3
    for found in (
        strategy.result.train_metrics_clientapp[1],
        strategy.result.evaluate_metrics_clientapp[1],
    ):
        assert (found["acc"], found["train_loss"]) == (good, 2.0)
    assert "acc of 3 clients: 1 not finite, left out of the mean" in caplog.text


def test_tensors_are_there_for_a_metrics_function_and_for_a_subclass() -> None:
    seen: list[int] = []

    def merge(contents: list[RecordDict], key: str) -> MetricRecord:
        seen.extend(len(content["arrays"]) for content in contents)
        return MetricRecord({"distance": 1.0})

    run(train_metrics_aggr_fn=merge)
    assert seen == [3, 3, 3]

    class Watching(FedDRAW):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            kept = list(replies)
            found = super().aggregate_train(server_round, kept)
            seen.extend(len(reply.content["arrays"]) for reply in kept)
            return found

    seen.clear()
    run(strategy=Watching(fraction_evaluate=0.0))
    assert seen == [3, 3, 3]


def test_nobody_but_us_looks_so_the_tensors_leave_the_replies() -> None:
    kept: list[Any] = []

    def arrive(replies: list[Any]) -> list[Any]:
        kept.extend(replies)
        return replies

    FedDRAW(fraction_evaluate=0.0).start(
        InProcessGrid(clients(), NODES, arrive=arrive), arrays(), 1
    )
    assert all("arrays" not in reply.content for reply in kept)


def at_home(*names: str) -> Any:
    """Clients that keep tensors to themselves."""

    def answer(reply: RecordDict, number: int) -> RecordDict:
        reply["arrays"] = ArrayRecord(
            {name: one for name, one in reply["arrays"].items() if name not in names}
        )
        return reply

    return answer


def test_tensors_that_all_clients_keep_to_themselves_leave_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """FedBN at the clients."""
    answer = at_home("body.weight")
    whole = run(answer, 3, method=fedavg())
    assert [len(r.weights) for r in whole.history] == [3, 3, 3]
    assert list(whole.result.arrays) == ["head.weight", "head.bias"]  # as with FedAvg
    assert whole.result.arrays["head.weight"].numpy() == pytest.approx(1 + 3 * 2.0)
    assert "all replies hold 2 of 3 tensors, without body.weight" in caplog.text
    with pytest.raises(Killed):
        run(answer, 3, folder=tmp_path / "run", on_round=kill_after(2))
    assert run(answer, 3, folder=tmp_path / "run", resume=True).result.arrays == whole.result.arrays


def test_one_client_cannot_cut_the_model_and_nobody_its_classifier() -> None:
    def one(reply: RecordDict, number: int) -> RecordDict:
        return at_home("body.weight")(reply, number) if number == 1 else reply

    strategy = run(one)
    assert "1 tensor(s) are not there, such as body.weight" in strategy.history[0].ledger[1].status
    assert len(strategy.history[0].weights) == 2
    with pytest.raises(RunFailed, match=r"are not there, such as head\.bias"):
        run(at_home("head.bias"), rounds=3)


def test_of_two_records_with_a_size_the_first_counts() -> None:
    def answer(reply: RecordDict, number: int) -> RecordDict:
        first = MetricRecord({"num-examples": number + 1, "acc": 0.25})
        last = MetricRecord({"num-examples": 1000, "acc": 0.75, "auc": 0.5})
        reply.pop("metrics")
        reply["a"], reply["b"] = first, last
        return reply

    strategy = run(answer, fraction_evaluate=1.0)
    assert [entry.size for entry in strategy.history[0].ledger] == [1, 2, 3]
    for means in (
        strategy.result.train_metrics_clientapp[1],
        strategy.result.evaluate_metrics_clientapp[1],
    ):
        assert (means["acc"], means["auc"]) == (0.25, 0.5)


# ----------------------------------------------------------------------- replies that are too large


def many_metrics(reply: RecordDict) -> None:
    reply["metrics"] = MetricRecord({"num-examples": 10} | {f"m{n}": 0.5 for n in range(20_000)})


def many_records(reply: RecordDict) -> None:
    for number in range(20_000):
        reply[f"more {number}"] = MetricRecord({f"m{number}": 0.5})


def long_list(reply: RecordDict) -> None:
    reply["metrics"] = MetricRecord({"num-examples": 10, "curve": [0.5] * (9 << 20)})


def long_text(reply: RecordDict) -> None:
    reply["client"] = ConfigRecord({"name": "x" * (65 << 20)})


def large_tensors(reply: RecordDict) -> None:
    reply["another"] = arrays({"zeros": np.zeros(17 << 20, np.uint8)})


TOO_LARGE = {
    many_metrics: "its reply has 20,001 metrics, at most 1,000 are read",
    many_records: "its reply has 20,002 records, at most 100 are read",
    long_list: "its reply has 72 MB of metrics and settings, at most 64 MB are read",
    long_text: "its reply has 65 MB of metrics and settings, at most 64 MB are read",
    large_tensors: "its reply has 17 MB of tensors, at most 16 MB are read",
}


@pytest.mark.parametrize("change", TOO_LARGE, ids=lambda change: change.__name__)
def test_a_reply_that_is_too_large_is_refused_by_name_before_it_is_read(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    named_reply = reply_intake.named_reply

    def watched(node: int, content: RecordDict) -> Any:
        read.append(node)
        return named_reply(node, content)

    monkeypatch.setattr(reply_intake, "named_reply", watched)
    strategy = run(one_other(change))
    status = {entry.client: entry.status for entry in strategy.history[0].ledger}
    assert status["node 1002"] == f"refused: {TOO_LARGE[change]}"
    assert list(strategy.history[0].weights) == ["node 1001", "node 1003"]
    assert read == [1001, 1003]


@pytest.mark.parametrize("change", [many_metrics, many_records, long_list])
def test_an_evaluation_that_is_too_large_is_left_out(
    change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = run(one_other(change), fraction_evaluate=1.0)
    assert strategy.result.evaluate_metrics_clientapp[1]["acc"] == 0.5
    assert f"no evaluation of node {FIRST_NODE + 1}: refused: its reply has" in caplog.text


def test_a_reply_may_be_as_large_as_the_limits() -> None:
    def full(reply: RecordDict) -> None:
        reply["metrics"] = MetricRecord({"num-examples": 10} | {f"m{n}": 0.5 for n in range(999)})
        for number in range(98):
            reply[f"more {number}"] = ConfigRecord({})

    strategy = run(one_other(full))
    assert len(strategy.history[0].weights) == 3


def test_means_of_metrics_look_at_each_reply_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 metrics in one reply took 67 s, because its size was looked up anew for each."""
    looked: list[int] = []
    metrics_in_reply = reply_intake.metrics_in_reply

    def watched(content: RecordDict) -> Any:
        looked.append(len(content))
        return metrics_in_reply(content)

    monkeypatch.setattr(metric_means, "metrics_in_reply", watched)
    contents = [
        RecordDict(
            {f"{n}": MetricRecord({f"m{n}": float(size), "num-examples": size}) for n in range(3)}
        )
        for size in (1, 3)
    ]
    means = metric_means.weighted_metric_means(contents, "num-examples")
    assert looked == [3, 3]
    assert dict(means) == {f"m{n}": 2.5 for n in range(3)}  # (1 · 1 + 3 · 3) / 4
    large = RecordDict({"metrics": MetricRecord()})
    many_metrics(large)
    began = time.perf_counter()
    assert len(metric_means.weighted_metric_means([large], "num-examples")) > 5_000
    assert time.perf_counter() - began < 20


def test_a_round_keeps_a_bounded_part_of_what_clients_call_metrics() -> None:
    """A server keeps the means of all rounds: a client with lists of millions would fill it."""
    honest = {"num-examples": 10, "loss": 0.5, "by finding": [0.5] * 14}
    flood = {f"flood {n}": [1.0] * 10_000 for n in range(20)} | {"x" * 10**6: 1.0}
    contents = [
        RecordDict({"metrics": MetricRecord(numbers)})
        for numbers in (flood | honest, honest, honest)
    ]
    means = metric_means.weighted_metric_means(contents, "num-examples")
    assert means["loss"] == 0.5
    assert means["by finding"] == [0.5] * 14
    flooded = [name for name in means if name not in honest]
    assert flooded == ["flood 0"]


# ------------------------------------------------------------------------------- Flower's own cases
# What the tests of Flower's strategies ask of replies and their averages, in our words. Where Flower gives up the whole
# round because of one reply, we refuse that reply: see docs/federation.md.

MATRIX = np.arange(21, dtype=np.float64).reshape(7, 3)


def averaged(
    tensors: Any, weights: Any, sent: Any = None, rounds: int = 1, names: Any = None
) -> Any:
    """The model and the ledger of replies with these tensors, a list a client."""
    named = [dict(zip(names or map(str, range(99)), one, strict=False)) for one in tensors]
    first = arrays(
        {name: np.zeros_like(values) for name, values in named[0].items()} if sent is None else sent
    )

    def answer(message: Message, context: Any) -> Message:
        number = int(context.node_config["partition-id"])
        metrics = MetricRecord({"num-examples": weights[number]})
        return Message(
            RecordDict({"arrays": arrays(named[number]), "metrics": metrics}), reply_to=message
        )

    app = ClientApp()
    app.train()(answer)
    strategy = MethodStrategy(fedavg(), fraction_evaluate=0.0)
    grid = InProcessGrid(app, [{"partition-id": number} for number in range(len(named))])
    found = strategy.start(grid, first, rounds).arrays
    return [array.numpy() for array in found.values()], strategy.history[-1].ledger


CASES = {
    "four matrices, weights below one": (
        [[MATRIX * (n + k) for k in range(4)] for n in range(3)],
        (0.25, 0.4, 0.35),
        1,
    ),
    "a tensor without dimensions, weights below one": (
        [[np.array(v)] for v in (0.3, -1.2, 2.0)],
        (0.25, 0.4, 0.35),
        1,
    ),
    "two tensors of two clients": ([[MATRIX, MATRIX[0]], [MATRIX + 28, MATRIX[0] - 5]], (1, 2), 1),
    "the same replies in a second round": (
        [[MATRIX, MATRIX[0]], [MATRIX + 28, MATRIX[0] - 5]],
        (1, 2),
        2,
    ),
    "a tensor without dimensions of two clients": ([[np.array(1.0)], [np.array(3.0)]], (1, 2), 1),
    "in single precision": ([[np.array(1.0, np.float32)], [np.array(3.0, np.float32)]], (1, 2), 1),
    "a vector of three clients": ([[np.full(4, v)] for v in (1.0, 0.2, 0.5)], (5, 2, 9), 1),
    "equal weights": ([[np.array(v)] for v in (1.0, 3.0, 2.0)], (1, 1, 1), 1),
    "all the same": ([[MATRIX]] * 3, (5, 5, 5), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_replies_are_averaged_as_flower_averages_them(case: str) -> None:
    tensors, weights, rounds = CASES[case]
    found, _ = averaged(tensors, weights, rounds=rounds)
    for place, values in enumerate(found):
        expected = np.average([one[place] for one in tensors], axis=0, weights=weights)
        assert values.shape == np.shape(tensors[0][place])
        assert values.dtype == tensors[0][place].dtype
        assert values == pytest.approx(expected, rel=1e-6)


def one_other(change: Any) -> Any:
    """The second of three clients answers otherwise."""

    def answer(reply: RecordDict, number: int) -> RecordDict:
        if number == 1:
            change(reply)
        return reply

    return answer


def put(name: str, record: Any) -> Any:
    return lambda reply: reply.__setitem__(name, record)


def moved_to(old: str, new: str) -> Any:
    return lambda reply: reply.__setitem__(new, reply.pop(old))


def shorter(reply: RecordDict) -> None:
    reply["arrays"] = arrays({name: array.numpy()[:1] for name, array in reply["arrays"].items()})


REFUSED = {
    "a list for a weight": (
        put("metrics", MetricRecord({"num-examples": [3, 4]})),
        "num-examples = [3, 4]",
    ),
    "no weight": (put("metrics", MetricRecord({"loss": 0.01})), "no num-examples"),
    "no metrics": (lambda reply: reply.pop("metrics"), "no num-examples"),
    "a tensor of another name": (
        put("arrays", arrays({**START, "b": MATRIX})),
        "1 tensor(s) that were not sent",
    ),
    "a tensor less": (lambda reply: at_home("head.bias")(reply, 1), "1 tensor(s) are not there"),
    "tensors of another shape": (shorter, "body.weight of shape (1, 3)"),
    "two models, neither by its name": (
        lambda reply: (
            reply.__setitem__("one", reply["arrays"]),
            reply.__setitem__("two", reply.pop("arrays")),
        ),
        "2 records of tensors",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_where_flower_gives_up_the_round_one_reply_is_refused(case: str) -> None:
    change, why = REFUSED[case]
    strategy = run(one_other(change))
    status = [entry.status for entry in strategy.history[0].ledger]
    assert sum(one == "weighted" for one in status) == 2
    assert any(one.startswith(f"refused: {why}") for one in status)
    with pytest.raises(RunFailed, match="no update counted"):  # where all do it, the run ends
        run(lambda reply, number: one_other(change)(reply, 1), rounds=2)


ACCEPTED = {
    "a weight below one": put("metrics", MetricRecord({"num-examples": 0.123})),
    "the model under another key": moved_to("arrays", "global-model"),
    "the metrics under another key": moved_to("metrics", "my-metrics"),
    "two records of metrics": put("more-metrics", MetricRecord({"loss": 0.321})),
    "two models, one by its name": put("another-model", arrays()),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_can_be_understood_counts(case: str) -> None:
    change = ACCEPTED[case]
    assert len(run(one_other(change)).history[0].weights) == 3
    assert len(run(lambda reply, number: one_other(change)(reply, 1)).history[0].weights) == 3
