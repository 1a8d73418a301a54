"""A model travels as a few arrays between our own server and clients, with the same bits as tensor
by tensor, and everybody else gets ordinary tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

import tiny
from feddraw.errors import RunFailed
from feddraw.flower import FedDRAW, MethodStrategy, flat_mod, record, secure_mod
from feddraw.flower.array_records import Refused, model_to_arrays, pack_array
from feddraw.flower.flat_exchange import ANSWER, flat_grid
from feddraw.flower.flat_models import (
    LAYOUT,
    FlatLayout,
    flat_record,
    is_flat,
    layout_in_record,
    ordinary_record,
)
from feddraw.flower.in_process_grid import FIRST_NODE, InProcessGrid
from feddraw.methods.fedavg import fedavg
from feddraw.methods.scaffold import scaffold
from feddraw.secure.sums.signing_keys import new_signing_key, site_directory_line
from half_frozen_network import FROZEN_NAMES, half_frozen, site_trainer
from test_flower import app as tiny_app

NODES = [{"partition-id": number} for number in range(4)]


class Recorder(InProcessGrid):
    """What goes over the wire: by message, whether its model is flat, down and up."""

    def __init__(self, app: ClientApp, nodes: Any = NODES, arrive: Any = None) -> None:
        super().__init__(app, nodes, arrive=arrive)
        self.down: list[dict[int, bool]] = []  # by exchange, by node
        self.up: list[dict[int, bool]] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        if not messages:
            return []
        self.down.append({m.metadata.dst_node_id: has_flat_model(m) for m in messages})
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.up.append({r.metadata.src_node_id: has_flat_model(r) for r in replies})
        return replies


def has_flat_model(message: Message) -> bool:
    return message.has_content() and any(map(is_flat, message.content.array_records.values()))


def state_dict() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        "first.weight": rng.normal(size=(3, 4)).astype(np.float32),
        "norm.weight": np.ones(3, np.float32),
        "norm.bias": np.zeros(3, np.float32),
        "norm.running_mean": np.zeros(3, np.float32),
        "norm.running_var": np.ones(3, np.float32),
        "norm.num_batches_tracked": np.array(5),
        "classifier.weight": rng.normal(size=(2, 3)).astype(np.float32),
        "classifier.bias": np.zeros(2, np.float32),
    }


def first_arrays() -> ArrayRecord:
    return ArrayRecord({name: Array(tensor) for name, tensor in state_dict().items()})


def plain_app(*mods: Any, kept: tuple[str, ...] = ()) -> ClientApp:
    """Somebody's app, which knows nothing of feddraw and keeps some tensors to itself."""
    made = ClientApp(mods=list(mods))

    @made.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
        moved = {
            name: np.asarray(values * np.float32(1 + number / 100))
            if values.dtype == np.float32
            else np.asarray(values + 1)
            for name, values in sent.items()
            if name not in kept
        }
        arrays = ArrayRecord({name: Array(values) for name, values in moved.items()})
        metrics = MetricRecord({"num-examples": 10 + number, "loss": 0.5, "num-steps": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @made.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        total = sum(float(array.numpy().sum()) for array in message.content["arrays"].values())
        metrics = MetricRecord({"num-examples": 10, "total": total})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return made


def some_flat(chosen: Callable[[int], bool]) -> Any:
    """`flat_mod` at some of the nodes only."""

    def mod(message: Message, context: Context, app: Any) -> Message:
        number = int(context.node_config["partition-id"])
        return flat_mod(message, context, app) if chosen(number) else app(message, context)

    return mod


def run(grid: Recorder, rounds: int = 3, **options: Any) -> Any:
    options = {"min_available_nodes": 4, "fraction_evaluate": 0.0} | options
    strategy = FedDRAW(**options)
    return strategy, strategy.start(grid, first_arrays(), rounds)


# ------------------------------------------------------------------------------------------ the form


def test_every_tensor_comes_out_as_it_went_in_to_the_last_byte() -> None:
    arrays = record(
        {
            "half": torch.randn(2, 3).half(),
            "brain": torch.randn(5).bfloat16(),
            "single": torch.randn(3, 1, 2),
            "double": torch.randn(4, dtype=torch.float64),
            "none": torch.zeros(0, 7),
            "number": torch.tensor(1.5),
            "counter": torch.tensor(7),
            "more": torch.randn(2),
            "mask": torch.tensor([True, False]),
            "small": torch.tensor([1, 2], dtype=torch.uint8),
        }
    )
    layout = FlatLayout.of_record(arrays)
    assert layout is not None
    flat = flat_record(arrays, layout)
    assert len(flat) == 1 + len({array.dtype for array in arrays.values()}) < len(arrays)
    again = ordinary_record(flat, layout_in_record(flat, layout.digest))
    assert list(again) == list(arrays)
    for name, array in arrays.items():
        assert again[name] == array
        assert again[name].data == array.data


def test_a_record_that_would_not_come_out_the_same_has_no_flat_form() -> None:
    in_columns = np.asfortranarray(np.ones((2, 3), np.float32))
    for tensor in (Array(in_columns), pack_array(np.ones(2, np.complex64))):
        assert FlatLayout.of_record(ArrayRecord({"a": tensor})) is None


def test_the_hash_covers_names_types_shapes_and_order() -> None:
    arrays = dict(first_arrays().items())
    others = [
        {("other" if name == "norm.bias" else name): array for name, array in arrays.items()},
        arrays | {"norm.bias": pack_array(np.zeros(3, np.float64))},
        arrays | {"norm.bias": pack_array(np.zeros((3, 1), np.float32))},
        dict(reversed(arrays.items())),
    ]
    digests = [FlatLayout.of_record(ArrayRecord(other)).digest for other in [arrays, *others]]
    assert len(set(digests)) == len(digests)


def test_a_hostile_server_is_refused_in_one_line() -> None:
    layout = FlatLayout.of_record(first_arrays())
    flat = flat_record(first_arrays(), layout)
    with pytest.raises(Refused, match="whose hash was announced"):
        layout_in_record(flat, "0" * 64)
    for text in (b"[", b'[["a","float32",[-1]]]', b'[["a","O",[1]]]', b"[" * 10_000, b"3"):
        with pytest.raises(Refused, match="layout of its flat model cannot be read"):
            FlatLayout.of_text(text)
    with pytest.raises(Refused, match="comes twice"):
        FlatLayout.of_text(b'[["a","float32",[1]],["a","float32",[1]]]')


# --------------------------------------------------------------------------------- who gets it, when


def test_our_own_clients_get_and_send_few_arrays_after_the_first_message(tmp_path: Path) -> None:
    method = scaffold()  # which sends and gets vectors beside the model
    grid = Recorder(tiny_app(method, tmp_path))
    strategy = MethodStrategy(method, min_available_nodes=4)
    strategy.start(grid, model_to_arrays(tiny.initial()), 3)
    *_, last = tiny.train(method, 3)
    assert tiny.same(strategy.model, last.next_model)
    assert [set(flat.values()) for flat in grid.down] == [{False}, *[{True}] * 5]
    assert [set(flat.values()) for flat in grid.up] == [{True}, {False}] * 3  # train, evaluate


def test_plain_flower_clients_get_ordinary_tensors_beside_ours_and_no_bit_changes() -> None:
    grids = {
        "none": Recorder(plain_app()),
        "some": Recorder(plain_app(some_flat(lambda number: number % 2 == 1))),
        "all": Recorder(plain_app(flat_mod)),
    }
    results = {name: run(grid, fraction_evaluate=1.0)[1] for name, grid in grids.items()}
    models = {
        name: {key: array.data for key, array in result.arrays.items()}
        for name, result in results.items()
    }
    assert models["some"] == models["all"] == models["none"]
    metrics = {n: str(result.evaluate_metrics_clientapp) for n, result in results.items()}
    assert metrics["some"] == metrics["all"] == metrics["none"]
    assert not any(any(flat.values()) for flat in [*grids["none"].down, *grids["none"].up])
    for flat in grids["some"].down[1:]:
        assert flat == {FIRST_NODE + number: number % 2 == 1 for number in range(4)}


def test_a_foreign_server_and_our_client_exchange_ordinary_tensors(tmp_path: Path) -> None:
    grid = Recorder(tiny_app(fedavg(), tmp_path))
    strategy = FedAvg(min_available_nodes=4, fraction_evaluate=0.0)
    result = strategy.start(grid, model_to_arrays(tiny.initial()), 2)
    assert set(result.arrays) == set(model_to_arrays(tiny.initial()))
    assert not any(any(flat.values()) for flat in [*grid.down, *grid.up])


def test_a_node_that_no_longer_knows_the_form_gets_ordinary_tensors_again() -> None:
    def set_back_in_round_3(message: Message, context: Context, app: Any) -> Message:
        round = int(message.content["config"]["server-round"])
        if context.node_config["partition-id"] == 0 and round >= 3:
            return app(message, context)
        return flat_mod(message, context, app)

    grid = Recorder(plain_app(set_back_in_round_3))
    strategy, _ = run(grid, rounds=5)
    assert [flat[FIRST_NODE] for flat in grid.down] == [False, True, True, False, False]
    assert [len(done.weights) for done in strategy.history] == [4, 4, 3, 4, 4]


def test_a_few_tensors_travel_as_they_are() -> None:
    grid = Recorder(plain_app(flat_mod))
    strategy = FedDRAW(min_available_nodes=4, fraction_evaluate=0.0)
    few = {name: first_arrays()[name] for name in ("classifier.weight", "classifier.bias")}
    strategy.start(grid, ArrayRecord(few), 2)
    assert not any(any(flat.values()) for flat in [*grid.down, *grid.up])


# --------------------------------------------------------------------------- with everything else


def test_tensors_that_clients_keep_to_themselves_leave_the_flat_model_too() -> None:
    kept = tuple(name for name in state_dict() if name.startswith("norm."))
    plain, _ = run(Recorder(plain_app(kept=kept)))
    grid = Recorder(plain_app(flat_mod, kept=("norm.num_batches_tracked", *kept)))
    strategy, _ = run(grid)
    assert [entry.name for entry in strategy.model.layout.entries] == [
        name for name in state_dict() if name not in kept
    ]
    assert tiny.same(strategy.model, plain.model)


def test_a_wrapper_sees_ordinary_tensors() -> None:
    class Watched(DifferentialPrivacyServerSideFixedClipping):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            seen.extend(set(reply.content) for reply in replies)
            assert not any(map(has_flat_model, replies))
            return super().aggregate_train(server_round, replies)

    def private(app: ClientApp) -> Any:
        strategy = FedDRAW(min_available_nodes=4, fraction_evaluate=0.0)
        wrapper = Watched(strategy, 0.0, 1e9, 4)
        return strategy.start(Recorder(app), first_arrays(), 3, through=wrapper)

    seen: list[set[str]] = []
    results = [private(plain_app()), private(plain_app(flat_mod))]
    ordinary, flat = ({n: a.data for n, a in result.arrays.items()} for result in results)
    assert flat == ordinary
    assert all(ANSWER not in names for names in seen)


def test_a_server_that_goes_on_begins_with_ordinary_tensors_and_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    class Killed(Exception):
        pass

    def kill(replies: list[Message]) -> list[Message]:
        if replies[0].metadata.group_id == "3":
            raise Killed
        return replies

    whole, _ = run(Recorder(plain_app(flat_mod)), rounds=4)
    with pytest.raises(Killed):
        run(Recorder(plain_app(flat_mod), arrive=kill), rounds=4, folder=tmp_path)
    grid = Recorder(plain_app(flat_mod))
    again, _ = run(grid, rounds=4, folder=tmp_path, resume=True)
    assert [set(flat.values()) for flat in grid.down] == [{False}, {True}]
    assert tiny.same(again.model, whole.model)


def secure_nodes(folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    names = [f"Site {number}" for number in range(4)]
    lines = [site_directory_line(name, new_signing_key(folder / f"{name}.key")) for name in names]
    (folder / "sites.toml").write_text("\n".join(lines))
    return [
        {
            "partition-id": number,
            "key": str(folder / f"{name}.key"),
            "sites": str(folder / "sites.toml"),
            "memory": str(folder / name),
            "simulated": True,
        }
        for number, name in enumerate(names)
    ]


def test_sites_under_secure_sums_agree_whether_their_model_came_flat_or_not(tmp_path: Path) -> None:
    mods = {
        "none": [secure_mod],
        "some": [some_flat(lambda number: number < 2), secure_mod],
        "all": [flat_mod, secure_mod],
    }
    found = {}
    for name, chosen in mods.items():
        grid = Recorder(plain_app(*chosen), secure_nodes(tmp_path / name))
        strategy, _ = run(grid, secure=True)
        assert [len(done.weights) for done in strategy.history] == [4, 4, 4]
        offers = [flat for flat in grid.down if len(flat) == 4]
        flat_nodes = {"none": 0, "some": 2, "all": 4}[name]
        assert sum(offers[-1].values()) == flat_nodes
        found[name] = strategy.model
    assert tiny.same(found["some"], found["none"])
    assert tiny.same(found["all"], found["none"])


def test_a_site_does_not_sign_another_layout_of_the_same_bytes(tmp_path: Path) -> None:
    """A server that renames a tensor for one site only."""

    class Renaming(Recorder):
        def _answer(self, message: Message) -> Message:
            model = message.content.array_records.get("arrays")
            if message.metadata.dst_node_id == FIRST_NODE and model and is_flat(model):
                tensors = layout_in_record(model, digest).text.replace(b"norm.bias", b"norm.mean")
                model = ArrayRecord(dict(model))
                model[LAYOUT] = pack_array(np.frombuffer(tensors, np.uint8))
                message.content = RecordDict({**message.content, "arrays": model})
            return super()._answer(message)

    digest = FlatLayout.of_record(first_arrays()).digest
    grid = Renaming(plain_app(flat_mod, secure_mod), secure_nodes(tmp_path / "keys"))
    strategy, _ = run(grid, rounds=2, secure=True)
    assert set(strategy.history[0].weights) == {f"Site {number}" for number in range(4)}
    assert "Site 0" not in strategy.history[1].weights


def test_frozen_layers_go_beside_a_flat_model(tmp_path: Path) -> None:
    from feddraw.experiment.run_preparation import initial_model
    from feddraw.flower.client_app import Site, client

    first = initial_model(half_frozen, 0)
    app = client(
        lambda context: Site(
            site_trainer(),
            tiny.NAMES[context.node_config["partition-id"]],
            context.node_config["partition-id"],
            context.node_config["partition-id"],
            tmp_path / str(context.node_id),
        )
    )
    grid = Recorder(app)
    strategy = MethodStrategy(
        fedavg(), min_available_nodes=4, fraction_evaluate=0.0, frozen=first.layout.frozen
    )
    strategy.start(grid, model_to_arrays(first), 2)
    assert [len(done.weights) for done in strategy.history] == [4, 4]
    assert set(grid.down[-1].values()) == {True}
    assert set(strategy.model.layout.frozen) == set(FROZEN_NAMES)


def test_a_client_of_another_network_says_which_tensor_differs(tmp_path: Path) -> None:
    """Also where the model comes flat from the first message on."""
    other = dict(model_to_arrays(tiny.initial()).items())
    name = next(iter(other))
    other[name] = pack_array(np.zeros(3, np.float32))

    class AlwaysFlat(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            sent = message.content.array_records["arrays"]
            flat = flat_record(sent, FlatLayout.of_record(sent))
            message.content = RecordDict({**message.content, "arrays": flat})
            return super()._answer(message)

    grid = AlwaysFlat(tiny_app(fedavg(), tmp_path), NODES)
    strategy = MethodStrategy(fedavg(), min_available_nodes=4, fraction_evaluate=0.0)
    with pytest.raises(RunFailed):
        strategy.start(grid, ArrayRecord(other), 2)
    (entry, *_) = strategy.history[0].ledger
    assert name in entry.status


def test_what_the_grid_does_not_change_is_the_other_grids(tmp_path: Path) -> None:
    inner = Recorder(plain_app())
    grid = flat_grid(inner, "arrays")
    assert list(grid.get_node_ids()) == list(inner.get_node_ids())
    query = Message(RecordDict({"config": ConfigRecord({"a": 1})}), FIRST_NODE, "train")
    grid.send_and_receive([query])
    assert dict(query.content["config"]) == {"a": 1}
