"""The Flower path gives the bits of the serial engine, for every method, and survives what a
federation brings.
"""

from __future__ import annotations

import csv
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import tiny
from feddraw import catalog
from feddraw.core import Method
from feddraw.errors import RunFailed, UserError
from feddraw.flower import FedDRAW, MethodStrategy, record, round_report, state_dict
from feddraw.flower.array_records import arrays_to_model, model_to_arrays
from feddraw.flower.client_app import Site, client
from feddraw.flower.in_process_grid import InProcessGrid
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddraw import feddraw
from feddraw.methods.fednova import fednova
from feddraw.methods.inverse_steps import inverse_steps
from feddraw.results.ledger_table import LedgerTable, read_ledger
from feddraw.server.gate import Gate
from feddraw.server.ledger import LedgerEntry
from feddraw.server.round import RoundRecord
from feddraw.server.state_dict import layout_of_arrays
from feddraw.system.file_reading import read_jsonl
from feddraw.system.locks import locked_inodes
from feddraw.training.client import Trainer
from feddraw.watch.followed_run import FollowedRun
from feddraw.watch.run_documents import run_detail

NODES = [{"partition-id": number} for number in range(4)]
ROUNDS = 3


def app(method: Method, memory: Path) -> ClientApp:
    """The tiny federation's clients behind Flower's door."""
    trainer = Trainer(
        tiny.build, tiny.examples(), tiny.shards(), tiny.TRAINING, method.local, asks=method.asks
    )

    def site(context: Any) -> Site:
        number = int(context.node_config["partition-id"])
        return Site(trainer, tiny.NAMES[number], number, number, memory)

    return client(site)


def federation(
    method: Method, memory: Path, arrive: Any = None, nodes: Any = NODES
) -> InProcessGrid:
    return InProcessGrid(app(method, memory), nodes, arrive=arrive)


def trained(
    method: Method, memory: Path, rounds: int = ROUNDS, arrive: Any = None, **options: Any
) -> MethodStrategy:
    strategy = MethodStrategy(method, fraction_evaluate=0.0, min_available_nodes=4, **options)
    strategy.start(federation(method, memory, arrive), model_to_arrays(tiny.initial()), rounds)
    return strategy


# ------------------------------------------------------------------------------------ the same bits


@pytest.mark.parametrize("name", catalog.names("methods"))
def test_every_method_gives_the_bits_of_the_serial_engine(name: str, tmp_path: Path) -> None:
    method = catalog.find("methods", name)()
    *_, last = tiny.train(method, ROUNDS)
    strategy = trained(
        method, tmp_path, proxy=tiny.server_images() if method.needs.server_images else None
    )
    assert tiny.same(strategy.model, last.next_model)
    assert repr(strategy.history[-1].ledger) == repr(last.ledger)


def test_the_order_of_arrival_changes_no_bit(tmp_path: Path) -> None:
    method = catalog.find("methods", "fedadp")()
    one = trained(method, tmp_path / "a")
    other = trained(method, tmp_path / "b", arrive=lambda replies: replies[::-1])
    assert tiny.same(one.model, other.model)
    assert repr(one.history) == repr(
        [replace(r, seconds=o.seconds) for r, o in zip(other.history, one.history, strict=True)]
    )


# -------------------------------------------------------------------------------- the one-line swap

QUICKSTART = Path(__file__).parent.parent / "examples" / "flower" / "quickstart"
OURS = (
    "from feddraw.flower import FedDRAW as FedAvg  # was: from flwr.serverapp.strategy import"
    " FedAvg"
)


def quickstart(monkeypatch: pytest.MonkeyPatch, strategy: str) -> tuple[Any, Any]:
    """Strategy and result of the quickstart's app, with the first import as given."""
    source = (QUICKSTART / "server_app.py").read_text()
    assert source.count(OURS) == 1
    monkeypatch.syspath_prepend(str(QUICKSTART))
    made: list[Any] = []

    class Watched(FedDRAW if "feddraw" in strategy else FedAvg):  # type: ignore[misc]
        def start(self, *arguments: Any, **options: Any) -> Any:
            made.extend([self, super().start(*arguments, **options)])
            return made[1]

    monkeypatch.setattr("feddraw.flower.FedDRAW", Watched)
    monkeypatch.setattr("flwr.serverapp.strategy.FedAvg", Watched)
    server: dict[str, Any] = {}
    exec(compile(source.replace(OURS, strategy), "server_app.py", "exec"), server)
    clients: dict[str, Any] = {}
    exec(compile((QUICKSTART / "client_app.py").read_text(), "client_app.py", "exec"), clients)
    grid = InProcessGrid(clients["app"], NODES[:3])
    torch.manual_seed(0)
    server["app"](grid, grid.contexts[1001])
    return made[0], made[1]


def test_a_quickstart_app_runs_with_one_line_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = quickstart(monkeypatch, "from flwr.serverapp.strategy import FedAvg")[1]
    strategy, result = quickstart(monkeypatch, OURS)
    assert result.arrays.keys() == before.arrays.keys()
    counter = "norm.num_batches_tracked"
    assert (before.arrays[counter].dtype, result.arrays[counter].dtype) == ("float64", "int64")
    assert [len(r.weights) for r in strategy.history] == [3, 3, 3]
    assert strategy.history[0].weights["node 1001"] == pytest.approx(160 / 240)  # by size at first
    assert list(strategy.history[2].weights.values()) == pytest.approx(
        [1 / 3] * 3
    )  # equal at the end
    assert strategy.model.layout.classifier == "head"
    assert result.evaluate_metrics_clientapp[3]["accuracy"] > 0.9
    assert result.train_metrics_clientapp[3]["clients-weighted"] == 3
    assert [entry.steps for entry in strategy.history[0].ledger] == [None] * 3  # nobody said


def test_the_ledger_is_among_flowers_metrics_only_where_that_is_asked_for() -> None:
    plain = once(echo(moved)).result.train_metrics_clientapp[1]
    assert set(plain) == {
        "clients-weighted",
        "clients-refused",
        "clients-unused",
        "clients-missing",
        "train_loss",
    }
    asked = once(echo(moved), ledger_in_metrics=True).result.train_metrics_clientapp[1]
    assert asked["ledger-client"] == [0, 1, 2]
    assert asked["ledger-weight"] == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert "ledger-steps" not in asked  # nobody said


def test_the_strategy_takes_the_place_of_fedavg_in_every_argument() -> None:
    names = [
        "fraction_train",
        "fraction_evaluate",
        "min_train_nodes",
        "min_evaluate_nodes",
        "min_available_nodes",
    ]
    names += ["weighted_by_key", "arrayrecord_key", "configrecord_key"]
    values = [0.5, 0.25, 3, 4, 5, "images", "model", "settings"]
    theirs, ours = FedAvg(*values), FedDRAW(*values)
    assert isinstance(ours, FedAvg)
    assert (
        [getattr(ours, name) for name in names]
        == [getattr(theirs, name) for name in names]
        == values
    )


def test_a_server_needs_no_torch() -> None:
    code = (
        "import sys; from feddraw.flower import FedDRAW; FedDRAW(); print('torch' in sys.modules,"
        " 'ray' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


# -------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_precision_travels_without_loss(dtype: torch.dtype) -> None:
    state = {
        "head.weight": torch.randn(3, 5).to(dtype),
        "head.bias": torch.randn(3).to(dtype),
        "n": torch.tensor(7),
    }
    arrays = record(state)
    model = arrays_to_model(arrays, layout_of_arrays(arrays))
    back = state_dict(model_to_arrays(model))
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def test_records_are_byte_for_byte_those_of_flower() -> None:
    state = tiny.build()[0].state_dict()
    theirs, ours = ArrayRecord(state), record(state)
    assert all(
        theirs[name].data == ours[name].data and theirs[name].shape == ours[name].shape
        for name in state
    )
    assert torch.equal(ours.to_torch_state_dict()["first.weight"], state["first.weight"])


def test_averages_keep_the_type_of_each_tensor(tmp_path: Path) -> None:
    state = {
        "body.weight": torch.randn(4, 4).half(),
        "norm.running_var": torch.rand(4),
        "norm.num_batches_tracked": torch.tensor(5),
        "mask": torch.tensor([True, False]),
        "head.weight": torch.randn(2, 4).to(torch.bfloat16),
        "head.bias": torch.randn(2).to(torch.bfloat16),
    }
    grid = InProcessGrid(echo(lambda arrays, node: record(state)), NODES)
    strategy = FedDRAW(fraction_evaluate=0.0)
    result = strategy.start(grid, record(state), 2)
    found = state_dict(result.arrays)
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        name: t.dtype for name, t in state.items()
    }
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    assert strategy.model.layout.classifier == "head"


def test_the_classifier_is_the_last_matrix_with_a_bias_or_the_one_that_is_named() -> None:
    shapes = {
        "embed.weight": (9, 4),
        "head.weight": (3, 4),
        "head.bias": (3,),
        "tie.weight": (4, 4),
        "tie.scale": (4,),
    }
    arrays = record({name: torch.zeros(shape) for name, shape in shapes.items()})
    assert layout_of_arrays(arrays).classifier == "head"
    assert layout_of_arrays(arrays, "embed").classifier == "embed"
    with pytest.raises(UserError, match="no 'haed' among the layers: did you mean head"):
        layout_of_arrays(arrays, "haed")


@pytest.mark.parametrize(
    ("shapes", "taken"),
    [
        ({"hidden.weight": (5, 4), "hidden.bias": (5,), "fc.weight": (2, 5)}, "fc"),
        (
            {
                "neck.weight": (5, 4),
                "neck.bias": (5,),
                "head.weight": (2, 5, 1, 1),
                "head.bias": (2,),
            },
            "head",
        ),
        ({"body.weight": (5, 4), "fc.weight": (2, 5)}, "fc"),
        ({"fc.weight": (2, 5), "fc.bias": (2,), "aux.weight": (2, 5), "aux.bias": (2,)}, ""),
        ({"fc.weight": (2, 5), "fc.bias": (2,), "aux.weight": (1, 5), "aux.bias": (1,)}, ""),
    ],
)
def test_a_head_that_cannot_be_told_is_asked_for_with_the_candidates(
    shapes: dict[str, Any], taken: str
) -> None:
    arrays = record({name: torch.ones(shape) for name, shape in shapes.items()})

    def started(**options: Any) -> Any:
        grid = InProcessGrid(echo(lambda arrays, number: arrays), NODES[:2])
        strategy = MethodStrategy(
            options.pop("method", feddraw()), fraction_evaluate=0.0, **options
        )
        strategy.start(grid, arrays, 1)
        return strategy.model.layout.classifier

    if taken:
        assert started() == taken
    else:
        with pytest.raises(UserError, match="it may be fc, aux"):
            started()
        assert started(method=fedavg()) == "aux"  # which does not look at the classifier
        assert started(classifier="fc") == "fc"
    with pytest.raises(UserError, match=r"has \d output\(s\) for 3 finding"):
        started(classifier=taken or "fc", findings=("a", "b", "c"))


# -------------------------------------------------------------------------------------- bad replies


def echo(answer: Any, sizes: Any = None) -> ClientApp:
    """Clients that answer with what a function makes of the received tensors and their number."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        number = int(context.node_config["partition-id"])
        arrays = answer(message.content["arrays"], number)
        metrics = {"num-examples": 10 * (number + 1), "partition-id": number, "train_loss": 0.5}
        metrics |= {} if sizes is None else sizes(number)
        return Message(
            RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message
        )

    return app


def moved(arrays: ArrayRecord, number: int) -> ArrayRecord:
    return record(
        {
            name: t + 0.01 * (number + 1) if t.is_floating_point() else t + 1
            for name, t in state_dict(arrays).items()
        }
    )


def broken(how: str) -> Any:
    """Replies of which the second client's is spoilt."""

    def answer(arrays: ArrayRecord, number: int) -> Any:
        tensors = state_dict(moved(arrays, number))
        if number != 1:
            return record(tensors)
        match how:
            case "nan":
                tensors["head.weight"][0, 0] = torch.nan
            case "infinity":
                tensors["body.weight"][0, 0] = torch.inf
            case "a tensor is lost":
                del tensors["head.bias"]
            case "a tensor too many":
                tensors["extra.weight"] = torch.zeros(2)
            case "another shape":
                tensors["head.weight"] = tensors["head.weight"].T.contiguous()
            case "integers":
                tensors["head.weight"] = tensors["head.weight"].long()
            case "no tensors":
                return ArrayRecord()
        found = record(tensors)
        if how == "garbage":
            found["head.weight"] = Array(
                "float32", (2, 4), "numpy.ndarray", b"\x93NUMPY\x01\x00garbage"
            )
        if how == "a pickle":
            found["head.weight"] = Array("object", (1,), "numpy.ndarray", np_pickle())
        return found

    return answer


def np_pickle() -> bytes:
    file = BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


def start_arrays() -> ArrayRecord:
    return record(
        {
            "body.weight": torch.ones(4, 4),
            "n": torch.tensor(0),
            "head.weight": torch.ones(2, 4),
            "head.bias": torch.ones(2),
        }
    )


def once(app: ClientApp, arrive: Any = None, rounds: int = 1, **options: Any) -> FedDRAW:
    strategy = FedDRAW(fraction_evaluate=0.0, **options)
    strategy.result = strategy.start(
        InProcessGrid(app, NODES[:3], arrive=arrive), start_arrays(), rounds
    )
    return strategy


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("nan", r"not finite \(head.weight\)"),
        ("infinity", r"not finite \(body.weight\)"),
        ("a tensor is lost", "1 tensor.* not there, such as head.bias"),
        ("a tensor too many", "not sent, such as extra.weight"),
        ("another shape", r"head.weight of shape \(4, 2\) where \(2, 4\)"),
        ("integers", "head.weight of type int64 where float32"),
        ("no tensors", "4 tensor.* not there"),
        ("garbage", "cannot be read"),
        ("a pickle", "cannot be read"),
    ],
)
def test_a_broken_reply_is_left_out_and_named_and_the_round_goes_on(how: str, why: str) -> None:
    strategy = once(echo(broken(how)))
    status = {entry.client: entry.status for entry in strategy.history[0].ledger}
    assert status["partition 0"] == status["partition 2"] == "weighted"
    assert status["partition 1"].startswith("refused: ")
    assert re.search(why, status["partition 1"])
    assert strategy.history[0].weights == pytest.approx(
        {"partition 0": 0.25, "partition 2": 0.75}, abs=1e-15
    )
    expected = 1 + 0.01 * (0.25 * 1 + 0.75 * 3)
    assert state_dict(strategy.result.arrays)["body.weight"].numpy() == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize("size", [0, -5, float("nan"), float("inf"), 1e12, [3, 4], None])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    def sizes(number: int) -> dict[str, Any]:
        return {} if number != 1 else {"num-examples": size}

    app = echo(moved, sizes) if size is not None else echo(moved)
    if size is None:
        strategy = once(app, weighted_by_key="images")
        assert {entry.status for entry in strategy.history[0].ledger} == {
            "refused: no images among its metrics"
        }
        return
    strategy = once(app)
    assert re.search("is not a positive number", strategy.history[0].ledger[1].status)
    assert list(strategy.history[0].weights) == ["partition 0", "partition 2"]


def test_the_first_record_with_a_size_says_how_many_images_there_are() -> None:
    """A client may add records of its own, which happen to use the same name."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        number = int(context.node_config["partition-id"])
        content = {
            "arrays": moved(message.content["arrays"], number),
            "timing": MetricRecord({"waited": 3.0}),
            "metrics": MetricRecord({"num-examples": 10 * (number + 1), "partition-id": number}),
            "quality check": MetricRecord({"num-examples": 1000}),
        }
        return Message(RecordDict(content), reply_to=message)

    sizes = [entry.size for entry in once(app).history[0].ledger]
    assert sizes == [10, 20, 30]


def test_when_nobody_counts_the_model_stays_and_a_second_round_of_it_ends_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    empty = echo(lambda arrays, number: ArrayRecord())
    strategy = once(empty)
    assert strategy.result.arrays == start_arrays()
    assert strategy.result.train_metrics_clientapp[1]["clients-refused"] == 3
    told = [r.message for r in caplog.records if r.levelname == "ERROR"]
    assert told == [
        "server round 1: no update counted, the model stays as it was "
        "(3 refused: 4 tensor(s) are not there, such as body.weight)"
    ]
    with pytest.raises(
        RunFailed, match=r"no update counted in rounds 0 and 1 \(3 refused: 4 tensor"
    ):
        once(empty, rounds=5)


def test_rounds_in_which_nobody_counts_may_be_apart() -> None:
    rounds = iter([[], [0, 1, 2], [], [1, 2]])
    strategy = once(
        echo(moved), lambda replies: [replies[place] for place in next(rounds)], rounds=4
    )
    assert [len(r.weights) for r in strategy.history] == [0, 3, 0, 2]


def test_a_million_times_too_large_a_size_is_pointed_out_and_capped_where_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def sizes(number: int) -> dict[str, Any]:
        return {"num-examples": 5 * (10**6 if number == 2 else 1)}

    assert once(echo(moved, sizes)).history[0].weights["partition 2"] > 0.99
    assert "partition 2 reports 5000000 images, 1000000 × the median" in caplog.text
    capped = once(echo(moved, sizes), policy={"max_size_times": 3.0}).history[0]
    assert capped.weights["partition 2"] == pytest.approx(3 / 5)
    assert capped.ledger[2].size == 15
    strict = once(echo(moved, sizes), gate=Gate(max_size=100_000)).history[0]
    assert list(strict.weights) == ["partition 0", "partition 1"]


def test_steps_that_a_client_does_not_tell_are_empty_in_the_ledger(tmp_path: Path) -> None:
    def steps(number: int) -> dict[str, Any]:
        return {"num-steps": 7} if number == 2 else {}

    strategy = once(echo(moved, steps), folder=tmp_path)
    assert [entry.steps for entry in strategy.history[0].ledger] == [None, None, 7]
    with (tmp_path / "weights.csv").open() as file:
        assert [line["steps"] for line in csv.DictReader(file)] == ["", "", "7"]
    read = read_ledger(tmp_path / "weights.csv")
    assert [entry.steps for entry in read] == [None, None, 7]
    assert np.isnan(LedgerTable.of(read)["steps"][0]).tolist() == [True, True, False]


def test_a_method_that_counts_steps_refuses_a_client_that_does_not_tell_them() -> None:
    def steps(number: int) -> dict[str, Any]:
        return {} if number == 1 else {"num-steps": 10 * (number + 1)}

    strategy = MethodStrategy(inverse_steps(), fraction_evaluate=0.0)
    strategy.start(InProcessGrid(echo(moved, steps), NODES[:3]), start_arrays(), 1)
    assert strategy.history[0].weights == pytest.approx({"partition 0": 0.75, "partition 2": 0.25})
    status = strategy.history[0].ledger[1].status
    assert status.startswith("refused: it does not say how many optimiser steps it took")
    assert status.endswith("let its app send num-steps, a whole number, among the metrics")


def test_fednova_says_what_a_plain_client_must_send_and_counts_it_when_it_is_sent() -> None:
    strategy = MethodStrategy(fednova(), fraction_evaluate=0.0)
    strategy.start(InProcessGrid(echo(moved), NODES[:3]), start_arrays(), 1)
    assert {entry.status for entry in strategy.history[0].ledger} == {
        "refused: no progress (with plain SGD its number of optimiser steps) beside the model: train"
        " with feddraw.flower.client, or send it in an ArrayRecord 'extra' as 'progress', float32"
        " of shape (1,)"
    }

    def with_progress(replies: list[Message]) -> list[Message]:
        for reply in replies:
            reply.content["extra"] = ArrayRecord({"progress": Array(np.ones(1, np.float32))})
        return replies

    strategy = MethodStrategy(fednova(), fraction_evaluate=0.0)
    grid = InProcessGrid(echo(moved), NODES[:3], arrive=with_progress)
    strategy.start(grid, start_arrays(), 1)
    assert len(strategy.history[0].weights) == 3


def test_a_node_without_a_name_is_short_in_the_log_and_whole_in_the_ledger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entries = tuple(
        LedgerEntry(0, name, 5, None, weight=0.5, status=status)
        for name, status in (
            ("node 4861205919237034123", "weighted"),
            ("North", "weighted"),
            ("node 9911205919237271828", "refused: it was not asked"),
        )
    )
    with caplog.at_level("INFO", "flwr"):
        round_report.log_round(RoundRecord(round=0, ledger=entries, loss=0.5), 3)
    assert caplog.messages == [
        "server round 1/3: node …034123 0.500  North 0.500",
        "server round 1: node …271828 refused: it was not asked",
    ]


# ------------------------------------------------------------------------------------------- faults


def test_a_node_that_is_gone_is_missing_and_one_whose_app_fails_is_named() -> None:
    def arrive(replies: list[Message]) -> list[Message]:
        failed = Message(
            Error(1, "disk\nfull"), reply_to=Message(RecordDict(), 1003, "train", group_id="1")
        )
        return [replies[0], failed]

    strategy = once(echo(moved), arrive)
    status = {entry.client: entry.status for entry in strategy.history[0].ledger}
    assert status == {
        "partition 0": "unused: only 1 client could count, and policy.min_sites asks for 2",
        "node 1002": "missing",
        "node 1003": "refused: its app failed: disk full",
    }


def test_a_site_with_one_image_is_refused_by_name_and_the_others_go_on(tmp_path: Path) -> None:
    rows = [*tiny.shards()[:3], tiny.shards()[3][:1]]
    trainer = Trainer(tiny.build, tiny.examples(), rows, tiny.TRAINING, fedavg().local)
    site = client(
        lambda context: Site(
            trainer, tiny.NAMES[n := int(context.node_config["partition-id"])], n, n
        )
    )
    strategy = MethodStrategy(fedavg(), fraction_evaluate=0.0, min_available_nodes=4)
    strategy.start(InProcessGrid(site, NODES), model_to_arrays(tiny.initial()), 1)
    (ledger,) = (done.ledger for done in strategy.history)
    assert [entry.weighted for entry in ledger] == [True, True, True, False]
    assert "1 image(s) at batch size 8: too few for a training step" in ledger[3].status


def test_a_node_that_was_there_before_is_missing_under_its_name() -> None:
    rounds = iter([[0, 1, 2], [2, 0]])
    strategy = once(
        echo(moved), lambda replies: [replies[place] for place in next(rounds)], rounds=2
    )
    assert [(entry.client, entry.status) for entry in strategy.history[1].ledger] == [
        ("partition 0", "weighted"),
        ("partition 1", "missing"),
        ("partition 2", "weighted"),
    ]


def test_equal_copies_count_once_and_different_answers_of_one_node_not_at_all() -> None:
    same = once(echo(moved), lambda replies: [replies[1], *replies])
    assert repr(same.history[0].ledger) == repr(
        once(echo(moved)).history[0].ledger
    )  # also where nan is in it

    def arrive(replies: list[Message]) -> list[Message]:
        other = RecordDict(
            dict(replies[0].content)
            | {"metrics": MetricRecord({"num-examples": 99, "partition-id": 1})}
        )
        return [
            *replies,
            Message(other, reply_to=Message(RecordDict(), 1002, "train", group_id="1")),
        ]

    for order in (arrive, lambda replies: arrive(replies)[::-1]):
        ledger = once(echo(moved), order).history[0].ledger
        assert [entry.status for entry in ledger] == [
            "weighted",
            "weighted",
            "refused: it answered twice, and not the same",
        ]


def test_of_two_nodes_under_one_name_only_the_first_is_believed() -> None:
    def rename(replies: list[Message]) -> list[Message]:
        replies[2].content["metrics"]["partition-id"] = 1
        return replies

    first = once(echo(moved), rename)
    assert list(first.history[0].weights) == ["partition 0", "partition 1"]
    assert first.roster.label(1002) == "partition 1"
    later = once(
        echo(moved),
        lambda replies: rename(replies) if replies[0].metadata.group_id == "2" else replies,
        rounds=2,
    )
    assert list(later.history[1].weights) == ["partition 0", "partition 1"]
    assert (
        later.history[1].ledger[2].status
        == "refused: it answers as partition 1, which is another node's name"
    )


def test_a_late_reply_and_one_of_a_stranger_do_not_count() -> None:
    kept: list[Message] = []

    def arrive(replies: list[Message]) -> list[Message]:
        if not kept:  # the last client is too late for the first round
            kept.append(replies.pop())
            return replies
        stranger = Message(
            kept[0].content, reply_to=Message(RecordDict(), 77, "train", group_id="2")
        )
        return [*(r for r in replies if r.metadata.src_node_id != 1003), kept[0], stranger]

    strategy = once(echo(moved), arrive, rounds=2)
    status = {entry.client: entry.status for entry in strategy.history[1].ledger}
    assert status["node 1003"] == "refused: it answers round 1, not round 2"
    assert status["node 77"] == "refused: it was not asked"
    assert list(strategy.history[1].weights) == ["partition 0", "partition 1"]


def test_waiting_for_nodes_has_an_end() -> None:
    with pytest.raises(RunFailed, match=r"only 3 of 5 nodes were connected within 0\.1 s"):
        once(echo(moved), min_available_nodes=5, wait=0.1)


def test_sampling_is_drawn_from_its_own_seed() -> None:
    def asked(seed: int, state: int) -> list[list[str]]:
        random.seed(state)
        np.random.seed(state)  # noqa: NPY002 (to show that it does not matter)
        strategy = FedDRAW(0.5, 0.0, min_train_nodes=2, seed=seed)
        strategy.start(InProcessGrid(echo(moved), NODES), start_arrays(), 4)
        return [list(r.weights) for r in strategy.history]

    assert asked(0, 1) == asked(0, 2)
    assert asked(0, 1) != asked(1, 1)
    assert all(len(clients) == 2 for clients in asked(0, 1))


# -------------------------------------------------------------------------------- ledger and resume


def test_the_ledger_is_written_and_every_round_is_told_as_it_happens(tmp_path: Path) -> None:
    told: list[Any] = []
    strategy = trained(
        feddraw(), tmp_path / "memory", folder=tmp_path / "run", on_round=told.append
    )
    assert told == strategy.history
    with (tmp_path / "run" / "weights.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["client"] for line in lines] == list(tiny.NAMES) * ROUNDS
    assert [float(line["weight"]) for line in lines[:4]] == list(
        strategy.history[0].weights.values()
    )


def test_watch_follows_the_folder_while_the_server_works(tmp_path: Path) -> None:
    run, seen = FollowedRun(tmp_path / "run", "run", 0), []

    def look(_: Any) -> None:
        run.look(locked_inodes(), time.time())
        seen.append((run.state, run.done, run.total))

    strategy = trained(feddraw(), tmp_path / "memory", folder=tmp_path / "run", on_round=look)
    assert seen == [("running", 1, ROUNDS), ("running", 2, ROUNDS), ("finished", 3, ROUNDS)]
    told = run_detail(run)
    assert told["clients"] == list(tiny.NAMES)
    assert [row[-1] for row in told["weights"]] == list(strategy.history[-1].weights.values())
    assert [row[-1] for row in told["client_seconds"]] == list(
        strategy.history[-1].client_seconds.values()
    )
    assert told["loss"] == [done.reported["loss"] for done in strategy.history]
    assert all(set(seconds) == {"training", "aggregation"} for seconds in told["seconds"])


@pytest.mark.parametrize("name", ["feddraw", "scaffold", "fedadp"])
def test_a_server_killed_between_rounds_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    method = catalog.find("methods", name)()
    whole = trained(method, tmp_path / "memory")

    class Killed(Exception):
        pass

    def kill(done: Any) -> None:
        if done.round == 1:
            raise Killed

    options = {"folder": tmp_path / "run"}
    with pytest.raises(Killed):
        trained(method, tmp_path / "memory", on_round=kill, **options)
    resumed = trained(method, tmp_path / "memory", resume=True, **options)
    assert [r.round for r in resumed.history] == [2]
    assert tiny.same(resumed.model, whole.model)
    assert len((tmp_path / "run" / "weights.csv").read_text().splitlines()) == 1 + 4 * ROUNDS
    assert [line["round"] for line in read_jsonl(tmp_path / "run" / "rounds.jsonl")] == list(
        range(ROUNDS)
    )
    assert trained(method, tmp_path / "memory", resume=True, **options).history == []
    with pytest.raises(UserError, match="already used"):
        trained(method, tmp_path / "memory", **options)


def test_a_round_that_is_asked_for_again_finds_the_clients_memory_of_the_first_time(
    tmp_path: Path,
) -> None:
    """The server dies after the clients have trained, before it has their replies."""
    method = catalog.find("methods", "scaffold")()
    whole = trained(method, tmp_path / "memory")

    def lose(replies: list[Message]) -> list[Message]:
        if int(replies[0].metadata.group_id) == 2:
            raise RunFailed("killed")
        return replies

    with pytest.raises(RunFailed):
        trained(method, tmp_path / "memory", arrive=lose, folder=tmp_path / "run")
    resumed = trained(method, tmp_path / "memory", folder=tmp_path / "run", resume=True)
    assert tiny.same(resumed.model, whole.model)


def test_an_offset_goes_on_with_the_schedule_by_hand(tmp_path: Path) -> None:
    whole = trained(feddraw(), tmp_path)
    first = trained(feddraw(), tmp_path, rounds=1, **{"round_offset": 0})  # T = 1 here: the prior
    assert first.rounds == 1
    started = MethodStrategy(feddraw(), fraction_evaluate=0.0, rounds=ROUNDS)
    result = started.start(federation(feddraw(), tmp_path), model_to_arrays(tiny.initial()), 1)
    assert started.rounds == ROUNDS
    rest = MethodStrategy(feddraw(), fraction_evaluate=0.0, round_offset=1)
    rest.start(federation(feddraw(), tmp_path), result.arrays, ROUNDS - 1)
    assert rest.rounds == ROUNDS
    assert tiny.same(rest.model, whole.model)


def test_a_loop_of_ones_own_must_say_how_many_rounds(tmp_path: Path) -> None:
    strategy = MethodStrategy(fedavg(), fraction_evaluate=0.0)
    with pytest.raises(UserError, match=r"Pass rounds=… to this strategy"):
        strategy.configure_train(
            1, model_to_arrays(tiny.initial()), ConfigRecord(), federation(fedavg(), tmp_path)
        )


def test_a_client_of_another_network_says_so(tmp_path: Path) -> None:
    strategy = FedDRAW(fraction_evaluate=0.0, min_available_nodes=4)
    strategy.start(federation(feddraw(), tmp_path), start_arrays(), 1)
    assert all(
        "the server's model is not this site's network" in e.status
        for e in strategy.history[0].ledger
    )
