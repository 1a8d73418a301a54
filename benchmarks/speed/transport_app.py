"""A federation whose clients send the model back untrained, in as many tensors as DenseNet121 has:
what remains of a round is the way of its messages.

A Flower app for a real SuperLink (settings `rounds`, `nodes`, `flat`, `out`), without torch. It
also runs on a checkout of feddraw from before the flat form.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import feddraw.flower

CONVOLUTIONS = 120
NORMS = 121
WEIGHTS = 56_600  # in one convolution
FEATURES = 346  # of one batch norm
OUTPUTS, INPUTS = 5, 1024  # of the classifier


def many_tensors() -> ArrayRecord:
    """727 tensors with 7.0 million numbers."""
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {}
    for layer in range(NORMS):
        norm = f"features.block.layer{layer}.norm"
        tensors[f"{norm}.weight"] = np.ones(FEATURES, np.float32)
        tensors[f"{norm}.bias"] = np.zeros(FEATURES, np.float32)
        tensors[f"{norm}.running_mean"] = np.zeros(FEATURES, np.float32)
        tensors[f"{norm}.running_var"] = np.ones(FEATURES, np.float32)
        tensors[f"{norm}.num_batches_tracked"] = np.array(0)
        if layer < CONVOLUTIONS:
            weights = rng.standard_normal(WEIGHTS, dtype=np.float32)
            tensors[f"features.block.layer{layer}.conv.weight"] = weights
    tensors["classifier.weight"] = rng.standard_normal((OUTPUTS, INPUTS), dtype=np.float32)
    tensors["classifier.bias"] = np.zeros(OUTPUTS, np.float32)
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in tensors.items()})


def flat_where_asked(message: Message, context: Context, app: Any) -> Message:
    """Our own clients' way, or that of a client which does not know the flat form."""
    if context.run_config["flat"] is True:
        return feddraw.flower.flat_mod(message, context, app)
    reply: Message = app(message, context)
    return reply


app = ClientApp(mods=[flat_where_asked])


@app.train()
def answer_untrained(message: Message, context: Context) -> Message:
    """The model that came, moved a little; counters count."""
    number = int(context.node_config["partition-id"])
    times = np.float32(1 + 1e-4 * (number + 1))
    sent = message.content.array_records["arrays"]
    arrays = ArrayRecord()
    for name, array in sent.items():
        values = array.numpy()
        moved = values * times if values.dtype == np.float32 else values + 1
        arrays[name] = Array(np.asarray(moved))
    metrics = MetricRecord(
        {"num-examples": 100 + number, "num-steps": 1, "loss": 0.5, "partition-id": number}
    )
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


server = ServerApp()


@server.main()
def transport_main(grid: Grid, context: Context) -> None:
    """Seconds of each round, from the first message to the new model, and the last model's hash."""
    settings = context.run_config
    nodes = int(settings["nodes"])
    ends = [time.perf_counter()]
    strategy = feddraw.flower.FedDRAW(
        fraction_evaluate=0.0,
        min_available_nodes=nodes,
        min_train_nodes=nodes,
        on_round=lambda _: ends.append(time.perf_counter()),
    )
    arrays = many_tensors()
    result = strategy.start(grid, arrays, num_rounds=int(settings["rounds"]), timeout=900)
    if any(len(done.weights) < nodes for done in strategy.history):
        raise RuntimeError(f"not all clients counted: {strategy.history[-1].ledger}")
    digest = hashlib.sha256()
    for name, array in sorted(result.arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.numpy().tobytes())
    measured = {"seconds": np.diff(ends).tolist(), "model": digest.hexdigest()}
    Path(str(settings["out"])).write_text(json.dumps(measured))
