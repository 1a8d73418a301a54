"""The parts that are servers of other loops: `feddraw.aggregate`, Flower, NVIDIA FLARE."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from artefacts import Document, decode_run, decode_safetensors, rows_by_client
from numpy.typing import NDArray
from workbench import FIRST_SITE, ROUNDS, SITES, Cases, Settings, Workbench

Arrays = dict[str, NDArray[Any]]

# ------------------------------------------------------------ updates by numbers

FINDINGS, WIDTH = 3, 6
SHAPES = {"body.weight": (WIDTH, 4), "norm.weight": (WIDTH,), "norm.bias": (WIDTH,)}
SHAPES |= {"classifier.weight": (FINDINGS, WIDTH), "classifier.bias": (FINDINGS,)}
PARAMETERS = sum(math.prod(shape) for shape in SHAPES.values())
LENGTHS = {"params": PARAMETERS, "model": PARAMETERS + 2 * WIDTH, "number": 1, "findings": FINDINGS}
LENGTHS |= {"groups": 4 * FINDINGS + 2, "classifier": FINDINGS * (WIDTH + 1), "spread": 2}
FAR, FARTHER = 3.0, 40.0  # how far two clients move in the cases of the gate, in usual moves


def drawn(*seeds: int | str) -> np.random.Generator:
    """Random numbers that these seeds decide."""
    return np.random.default_rng([int.from_bytes(str(seed).encode()[:8], "big") for seed in seeds])


def first_state_dict() -> Arrays:
    """A small network with batch norm, as numpy arrays."""
    rng = drawn("first")
    made: Arrays = {
        name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in SHAPES.items()
    }
    made["norm.running_mean"] = rng.normal(0, 0.1, WIDTH).astype(np.float32)
    made["norm.running_var"] = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32)
    made["norm.num_batches_tracked"] = np.array(7, np.int64)
    return made


def moved_state_dict(sent: Mapping[str, Any], round: int, client: int, length: float) -> Arrays:
    """What a client makes of a model."""
    rng = drawn("move", round, client)
    made: Arrays = {}
    for name, array in sent.items():
        old = np.asarray(array)
        move = rng.normal(0, 0.05 * length, old.shape)
        made[name] = (old + (3 if old.dtype.kind == "i" else move)).astype(old.dtype)
    made["norm.running_var"] = np.abs(made["norm.running_var"]) + np.float32(0.1)
    return made


def beside_the_model(sends: Mapping[str, str], round: int, client: int) -> Arrays:
    """What a client sends beside its model; all of it positive, as counts and losses are."""
    found = {}
    for name, extent in sends.items():
        numbers = drawn(name, round, client).uniform(0.1, 1.0, LENGTHS[extent])
        counts = extent in ("findings", "groups") or name == "gradient spread"
        found[name] = (np.round(numbers * 20) + 1 if counts else numbers).astype(np.float32)
    return found


def what_clients_send(bench: Workbench, changes: Settings) -> Mapping[str, str]:
    """Of a method: name to extent of the vectors beside the model."""
    method = bench.find("feddraw.experiment.settings:make_method")(bench.experiment(changes))
    sends: Mapping[str, str] = method.sends
    return sends


def as_ledger(entries: Any) -> Document:
    """Ledger entries of any number of rounds."""
    rows = [dataclasses.asdict(entry) for entry in entries]
    for row in rows:
        row.pop("hidden", None)  # nothing is hidden from these servers, nor a column of the files
    return rows_by_client(rows)


# ------------------------------------------------------------ feddraw.aggregate


def aggregated(bench: Workbench, name: str, kind: str) -> Document:
    """Three rounds; the state goes through a file between them, and one client is absent once."""
    import feddraw

    policy = {"cap": 0.3, "floor": 0.05} if kind == "policy" else None
    gate_kind = bench.find("feddraw.server.gate:Gate")
    gate = gate_kind(norm="refuse", factor=10.0, clip=2.0) if kind == "gate" else None
    limits = {f"policy.{key}": value for key, value in (policy or {}).items()}
    sends = what_clients_send(bench, {"method": name, **limits})
    sent, state = first_state_dict(), None
    ledger: list[Any] = []
    file = bench.new_folder() / "state.safetensors"
    found: Document = {}
    for round in range(ROUNDS):
        updates = list(_updates_of_round(kind, sends, sent, round))
        given: dict[str, Any] = {"method": _with_settings(bench, name), "state": state}
        given |= {"gate": gate, "policy": policy, "clients": list(SITES), "outputs": FINDINGS}
        result = feddraw.aggregate(sent, updates, round=round, rounds=ROUNDS, **given)
        result.state.save(file)
        state, sent = feddraw.AggregationState.load(file), result.next_model
        ledger += result.ledger
        found = {
            "model": result.model,
            "next_model": result.next_model,
            "broadcast": result.broadcast,
        }
    return found | {"ledger": as_ledger(ledger), "checkpoint": decode_safetensors(file)}


def _with_settings(bench: Workbench, name: str) -> Any:
    return bench.experiment({"method": name}).method


def _updates_of_round(
    kind: str, sends: Mapping[str, str], sent: Mapping[str, Any], round: int
) -> Any:
    import feddraw

    for client, (site, size) in enumerate(SITES.items()):
        if round == 1 and site == FIRST_SITE:
            continue  # absent
        length = {"Hill": FAR, "West": FARTHER}.get(site, 1.0) if kind == "gate" else 1.0
        model = moved_state_dict(sent, round, client, length)
        if kind == "gate" and round == 2 and site == "East":
            model["classifier.bias"][0] = np.nan
        labelled = [output != client for output in range(FINDINGS)] if kind == "labels" else None
        extra = beside_the_model(sends, round, client)
        yield feddraw.ClientUpdate(model, size, site, 2 + client, extra, labelled)


def every_aggregation(bench: Workbench) -> Cases:
    """Each method that allows it, plain, with partial labels, under a gate and under a policy."""
    for name in [*bench.methods, *bench.some_mixtures()]:
        for kind in ("plain", "labels", "gate", "policy"):
            yield f"{name} {kind}", partial(aggregated, bench, name, kind)


# ------------------------------------------------------------ Flower


def flower_nodes(bench: Workbench, clients: Any, secure: bool) -> list[dict[str, Any]]:
    """The settings of each node; under secure sums its own key and the file of all public keys."""
    nodes: list[dict[str, Any]] = [{"partition-id": number} for number in range(len(clients))]
    if not secure:
        return nodes
    keys = bench.new_folder()
    new_key = bench.find("feddraw.secure_sums.signing_keys:new_signing_key")
    line_of = bench.find("feddraw.secure_sums.signing_keys:site_directory_line")
    lines = [line_of(name, new_key(keys / f"{name}.key")) for name in clients]
    (keys / "sites.toml").write_text("\n".join(lines), encoding="utf-8")
    common = {"sites": str(keys / "sites.toml"), "memory": str(bench.new_folder())}
    own = [common | {"key": str(keys / f"{name}.key")} for name in clients]
    return [node | settings for node, settings in zip(nodes, own, strict=True)]


def over_flower(
    bench: Workbench, changes: Settings, options: Settings, dataset: Any = None
) -> Document:
    """Our clients behind a Flower strategy, every message answered in this process."""
    from feddraw.flower import MethodStrategy, Site, client

    prepare = bench.find("feddraw.experiment.run_preparation:prepare")
    setup = prepare(bench.experiment(changes), dataset=dataset or bench.dataset)
    memory, folder = bench.new_folder(), bench.new_folder()

    def site(context: Any) -> Any:
        number = int(context.node_config["partition-id"])
        kept = dict.fromkeys(("validation", "test"), setup.holdout_rows[number])
        return Site(setup.trainer, setup.clients[number], number, number, memory, kept)

    count = len(setup.clients)
    fewest = dict.fromkeys(("min_available_nodes", "min_train_nodes", "min_evaluate_nodes"), count)
    # nobody comes later in this process: a second site is not waited for
    about = {"folder": folder, "proxy": setup.proxy, "wait": 1.0, **fewest, **options}
    strategy = MethodStrategy(setup.method, **about)
    nodes = flower_nodes(bench, setup.clients, bool(options.get("secure")))
    grid = bench.find("feddraw.flower.in_process_grid:InProcessGrid")(client(site), nodes)
    result = strategy.start(grid, as_record(setup.initial.arrays()), ROUNDS)
    return flower_document(result) | decode_run(folder, bench.names)


def as_record(arrays: Mapping[str, Any]) -> Any:
    """Arrays as Flower sends them."""
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def flower_document(result: Any) -> Document:
    """What Flower's `start` gives: the arrays, and the metrics of every round."""
    told = {"train": result.train_metrics_clientapp, "evaluate": result.evaluate_metrics_clientapp}
    metrics = {
        kind: {
            str(round): {k: v for k, v in record.items() if "seconds" not in k}
            for round, record in one.items()
        }
        for kind, one in told.items()
    }
    return {
        "next_model": {name: array.numpy() for name, array in result.arrays.items()},
        "metrics": metrics,
    }


def plain_numpy_app(mods: Any) -> Any:
    """Somebody's ClientApp that knows nothing of feddraw."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        round = int(message.content["config"]["server-round"])
        sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
        arrays: ArrayRecord = as_record(moved_state_dict(sent, round, number, 1.0))
        metrics = MetricRecord(
            {"num-examples": list(SITES.values())[number], "train_loss": 0.5 / (number + 1)}
        )
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def one_line_swap(bench: Workbench, secure: bool) -> Document:
    """`FedDRAW` in place of `FedAvg` in somebody's app."""
    from feddraw.flower import FedDRAW, secure_mod

    folder, count = bench.new_folder(), len(SITES)
    fewest = {"min_available_nodes": count, "fraction_evaluate": 0.0}
    strategy = FedDRAW(folder=folder, secure=secure, **fewest)
    nodes = flower_nodes(bench, list(SITES), secure)
    app = plain_numpy_app([secure_mod] if secure else [])
    grid = bench.find("feddraw.flower.in_process_grid:InProcessGrid")(app, nodes)
    result = strategy.start(grid, as_record(first_state_dict()), ROUNDS)
    return flower_document(result) | decode_run(folder, bench.names)


def flower_clear(bench: Workbench) -> Cases:
    """Each method, also with partial labels; FedDRAW in another's app; a policy; sampling."""
    for name, changes in bench.several().items():
        yield name, partial(over_flower, bench, changes, {})
        yield f"{name} labels", partial(over_flower, bench, changes, {}, bench.partly_labelled)
    yield "feddraw own app", partial(one_line_swap, bench, False)
    for name in ("feddraw", "scaffold"):
        policy, some = {"policy": {"cap_times": 1.3}}, {"fraction_train": 0.6, "min_train_nodes": 2}
        limits = {"method": name, "policy.cap_times": 1.3}
        yield f"{name} policy", partial(over_flower, bench, limits, policy)
        yield f"{name} sampled", partial(over_flower, bench, {"method": name}, some)


def flower_secure(bench: Workbench) -> Cases:
    """The same under secure sums, where a method can."""
    secure = {"secure": True}
    for name, changes in bench.several(secure).items():
        if not bench.refusal({**changes, **secure}):
            yield name, partial(over_flower, bench, changes, secure)
            yield (
                f"{name} labels",
                partial(over_flower, bench, changes, secure, bench.partly_labelled),
            )
    yield "feddraw own app", partial(one_line_swap, bench, True)
    limits, policy = {"method": "feddraw", "policy.cap_times": 1.3}, {"policy": {"cap_times": 1.3}}
    yield "feddraw policy", partial(over_flower, bench, limits, policy | {"secure": True})


# ------------------------------------------------------------ NVIDIA FLARE


class FlareContext:
    """What FLARE tells an aggregator."""

    def __init__(self, round: int, weights: Mapping[str, Any]) -> None:
        from nvflare.apis.fl_constant import ProcessType, ReservedKey
        from nvflare.app_common.app_constant import AppConstants

        learnable = {"weights": weights, "meta": {}}
        self.props = {AppConstants.CURRENT_ROUND: round, AppConstants.GLOBAL_MODEL: learnable}
        self.props[ReservedKey.PROCESS_TYPE] = ProcessType.SERVER_JOB

    def get_prop(self, name: str) -> Any:
        return self.props.get(name)

    def get_identity_name(self) -> str:
        return ""

    def get_peer_context(self) -> None:
        return None


def by_flare(bench: Workbench, name: str) -> Document:
    """Three rounds by FLARE's aggregator."""
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

    from feddraw.nvflare import MethodAggregator

    sends = what_clients_send(bench, {"method": name})
    pack = bench.find("feddraw.nvflare.model_meta:pack_meta")
    folder: Path = bench.new_folder()
    settings = {key: value for key, value in _with_settings(bench, name).items() if key != "name"}
    aggregator = MethodAggregator(
        name, ROUNDS, settings=settings, folder=str(folder), outputs=FINDINGS
    )
    sent: Any = first_state_dict()
    for round in range(ROUNDS):
        aggregator.reset_stats()
        for client, (site, size) in enumerate(SITES.items()):
            params = moved_state_dict(sent, round, client, 1.0)
            about = {
                "client_name": site,
                "num_examples": size,
                "NUM_STEPS_CURRENT_ROUND": 2 + client,
            }
            extra = beside_the_model(sends, round, client)
            meta = about | (pack({"extra": extra}) if extra else {})
            aggregator.accept_model(FLModel(params_type=ParamsType.FULL, params=params, meta=meta))
        aggregator.fl_ctx = FlareContext(round, sent)
        sent = aggregator.aggregate_model().params
    entries = [entry for done in aggregator.history for entry in done]
    return decode_run(folder, bench.names) | {
        "next_model": dict(sent),
        "ledger": as_ledger(entries),
    }


def every_flare_aggregator(bench: Workbench) -> Cases:
    """Each method that FLARE's aggregator allows."""
    for name in [*bench.methods, *bench.some_mixtures()]:
        yield name, partial(by_flare, bench, name)
