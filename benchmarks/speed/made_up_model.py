"""A model of made-up numbers, about as large as DenseNet121, and clients' updates of it.

numpy only: no torch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddraw.core import Entry, Layout, Model, Update

CLIENTS = 10
# About DenseNet121: seven million numbers.
WIDE_PARAMETERS = 6_900_000
LAYERS = 364
FEATURES = 1024
CLASSES = 5


def client_names(clients: int) -> list[str]:
    return [f"C{number + 1}" for number in range(clients)]


def made_up_model(
    parameters: int = WIDE_PARAMETERS, seed: int = 0, *, features: int = FEATURES
) -> Model:
    """A model of so many numbers in as many tensors as DenseNet121 has, and two more of the
    classifier's, which gets so many features.
    """
    length = parameters // LAYERS
    entries = [Entry(f"body.{n}.weight", "param", (length,), n * length) for n in range(LAYERS)]
    weight = LAYERS * length
    bias = weight + CLASSES * features
    entries.append(Entry("classifier.weight", "param", (CLASSES, features), weight))
    entries.append(Entry("classifier.bias", "param", (CLASSES,), bias))
    return Model(
        params=np.random.default_rng(seed).standard_normal(bias + CLASSES, dtype=np.float32),
        buffers=np.zeros(0, np.float32),
        counters=np.zeros(0, np.int64),
        layout=Layout(tuple(entries), "classifier"),
    )


def made_up_updates(sent: Model, clients: int) -> list[Update]:
    """Updates in one matrix, as the engines leave them."""
    matrix = np.empty((clients, len(sent.params)), np.float32)
    moves = np.random.default_rng(1).normal(1.0, 1e-3, clients)
    for row, move in zip(matrix, moves, strict=True):
        np.multiply(sent.params, np.float32(move), out=row)
    models = [replace(sent, params=row) for row in matrix]
    return [Update(i, model, 100 + i, 10, {"loss": 0.5}) for i, model in enumerate(models)]
