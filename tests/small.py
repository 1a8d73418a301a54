"""A small experiment that the tests share: seconds, not minutes."""

from __future__ import annotations

from typing import Any

from feddraw.experiment.settings import Experiment


def small(**changes: Any) -> Experiment:
    """Three unequal clients, 28-pixel phantoms, a tiny network, three rounds."""
    experiment = Experiment(
        data={"name": "phantom", "size": 28, "train": 240, "validation": 80, "test": 80},
        scenario={"name": "quantity", "clients": 3, "power": 1.0, "scale": 1.0},
        model={"name": "compact", "growth": 8},
        rounds=3,
        engine="serial",
    )
    return experiment.with_settings({"training.batch_size": 32, "training.epochs": 1} | changes)
