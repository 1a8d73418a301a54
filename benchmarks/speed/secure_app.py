"""A federation whose clients do nothing but answer, in clear or under masks: what messages and sums
take, no training.

For the in-process grid, and as a Flower app for a real SuperLink (settings `rounds`, `secure`,
`out`).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from benchmarks.speed.made_up_model import CLIENTS, made_up_model
from feddraw.flower import job_orders
from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.flat_exchange import flat_mod
from feddraw.flower.frozen_layers import ACTION, FROZEN
from feddraw.flower.secure_site import secure_where_keyed
from feddraw.flower.strategy import FedDRAW
from feddraw.system.file_writing import write_whole

app = ClientApp(mods=[flat_mod, secure_where_keyed])


@app.train()
def answer_untrained(message: Message, context: Context) -> Message:
    """The model that came, moved a little."""
    number = int(context.node_config["partition-id"])
    sent = message.content.array_records["arrays"]
    times = np.float32(1 + 1e-4 * (number + 1))
    arrays = ArrayRecord({name: Array(array.numpy() * times) for name, array in sent.items()})
    metrics = MetricRecord(
        {"num-examples": 100 + number, "num-steps": 10, "loss": 0.5, "partition-id": number}
    )
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    if frozen := job_orders.read_orders(message.content).get(FROZEN):
        content["client"] = ConfigRecord({FROZEN: frozen})  # as a site that keeps what it was sent
    return Message(content, reply_to=message)


@app.query(ACTION)
def answer_question(message: Message, context: Context) -> Message:
    """A node whose settings say so has the frozen layers from a file."""
    held = {}
    if context.node_config.get("has-file"):
        held = {FROZEN: job_orders.read_orders(message.content)[FROZEN]}
    return Message(RecordDict({"client": ConfigRecord(held)}), reply_to=message)


def seconds_of_secure_rounds(
    grid: Grid, rounds: int, parameters: int, *, secure: bool, seed: int = 0
) -> list[float]:
    """Of each round, from the first message to the new model.

    The first model is drawn from the seed: sites answer the same one under masks only once.
    """
    ends = [time.perf_counter()]
    strategy = FedDRAW(
        fraction_evaluate=0.0,
        min_available_nodes=CLIENTS,
        min_train_nodes=CLIENTS,
        secure=secure,
        on_round=lambda _: ends.append(time.perf_counter()),
    )
    strategy.start(grid, model_to_arrays(made_up_model(parameters, seed)), rounds, timeout=900)
    if any(len(done.weights) < CLIENTS for done in strategy.history):
        raise RuntimeError(f"not all clients counted: {strategy.history[-1].ledger}")
    return np.diff(ends).tolist()


def bytes_in_message(message: Message) -> int:
    """Of tensors, keys, shares, signatures and orders, without Flower's own envelope."""
    return sum(
        _bytes_of_value(value) for record in message.content.values() for value in record.values()
    )


def _bytes_of_value(value: Any) -> int:
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(map(_bytes_of_value, value))
    return len(value) if isinstance(value, bytes) else len(str(value).encode())


server = ServerApp()


@server.main()
def secure_bench_main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    seconds = seconds_of_secure_rounds(
        grid,
        rounds=int(settings["rounds"]),
        parameters=int(settings["parameters"]),
        secure=settings["secure"] is True,
    )
    write_whole(Path(str(settings["out"])), json.dumps(seconds).encode())
