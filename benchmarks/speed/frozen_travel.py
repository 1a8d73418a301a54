"""A round under secure sums in which only a head is trained, beside the whole network: bytes and
seconds.

Ten sites in this process answer without training, one after the other, so the seconds are those of
messages, masks and sums at all sites and at the server.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.made_up_model import CLASSES, CLIENTS, WIDE_PARAMETERS, made_up_model
from benchmarks.speed.timing import TimingSession, median_interval, ratio_of_times
from feddraw.core import Layout, Model
from feddraw.system.machine import installed

FEATURES = 1280  # that EfficientNet-Lite0 gives its classifier
WHOLE = "whole"  # every number is trained
SENT = "sent"  # the head is trained, and every site is sent what is frozen
HEAD = "head"  # the head is trained, and every site has what is frozen
REPEATS = 5


def measure_frozen_travel(
    session: TimingSession, parameters: int = WIDE_PARAMETERS
) -> dict[str, Any]:
    """Megabytes and seconds of a round by what travels."""
    if not (installed("flwr") and installed("cryptography")):
        return {"missing": "needs pip install 'feddraw[flower,secure]'"}
    import feddraw.flower.strategy  # noqa: F401 - Flower's import sets the level of its log anew
    from benchmarks.speed.secure_costs import (
        byte_counting_grid,
        log_secure_errors_only,
        nodes_with_keys,
    )

    head = CLASSES * (FEATURES + 1)
    with tempfile.TemporaryDirectory() as name, log_secure_errors_only(logging.getLogger("flwr")):
        grids = {}
        for way in (WHOLE, SENT, HEAD):
            folder = Path(name) / way
            folder.mkdir()
            nodes = [node | {"has-file": way == HEAD} for node in nodes_with_keys(folder)]
            grids[way] = byte_counting_grid(nodes)
        repeats = dict.fromkeys(grids, 0)

        def timed_round(way: str) -> float:
            repeats[way] += 1
            model = made_up_model(parameters, seed=repeats[way], features=FEATURES)
            frozen: Mapping[str, NDArray[np.float32]] = {}
            if way != WHOLE:
                model, frozen = _head_and_body(model)
            return _seconds_of_round(grids[way], model, frozen)

        works = {way: partial(timed_round, way) for way in grids}
        samples = session.interleave(
            "travel: a round of a head under secure sums", works, min(REPEATS, session.blocks)
        )
    megabytes = {
        way: {"up": grid.up / repeats[way] / 1e6, "down": grid.down / repeats[way] / 1e6}
        for way, grid in grids.items()
    }
    return {
        "title": f"{CLIENTS} sites, {head:,} of {parameters + head:,} numbers trained",
        "head": head,
        "seconds": {way: median_interval(taken) for way, taken in samples.items()},
        "whole_over_head": ratio_of_times(samples[WHOLE], samples[HEAD]),
        "megabytes": megabytes,
        "bytes_whole_over_head": sum(megabytes[WHOLE].values()) / sum(megabytes[HEAD].values()),
    }


def _head_and_body(model: Model) -> tuple[Model, dict[str, NDArray[np.float32]]]:
    """The classifier as a model, and the tensors before it, which are frozen."""
    arrays = model.arrays()
    frozen = {name: arrays[name] for name in arrays if not name.startswith("classifier.")}
    heads = [entry for entry in model.layout.entries if entry.name not in frozen]
    layout = Layout.of(((e.name, e.kind, e.shape, e.dtype) for e in heads), "classifier")
    params = np.concatenate([arrays[entry.name].ravel() for entry in heads])
    return replace(model, params=params, layout=replace(layout, frozen=frozen)), frozen


def _seconds_of_round(grid: Any, model: Model, frozen: Mapping[str, NDArray[np.float32]]) -> float:
    """From the first message to the new model."""
    from feddraw.flower.array_records import model_to_arrays
    from feddraw.flower.strategy import FedDRAW

    strategy = FedDRAW(
        fraction_evaluate=0.0,
        min_available_nodes=CLIENTS,
        min_train_nodes=CLIENTS,
        secure=True,
        frozen=frozen,
    )
    arrays = model_to_arrays(model)
    began = time.perf_counter()
    strategy.start(grid, arrays, 1, timeout=900)
    seconds = time.perf_counter() - began
    if len(strategy.history[-1].weights) < CLIENTS:
        raise RuntimeError(f"not all clients counted: {strategy.history[-1].ledger}")
    return seconds
