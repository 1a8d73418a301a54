"""The paper's own step, on one core: DenseNet121 at 224 px with augmentation, smoothing and clipping, and its test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from feddraw.bench.bare_loops import PAPER_TRAINING, Workload
from feddraw.bench.ratios import Session, interval, timed
from feddraw.catalog import installed
from feddraw.core import Correction
from feddraw.methods.feddraw import feddraw
from feddraw.training.loop import fit, make_optimizer, one_thread, predict

STEP = Workload("DenseNet121, 224 px", "densenet121", 224, 1, 1, 16, (("weights", "none"),))


def measure(session: Session, step: Workload = STEP) -> dict[str, Any]:
    """Images a second in training and in testing."""
    if step.model == "densenet121" and not installed("monai"):
        return {"missing": "MONAI is not installed"}
    trainer = step.trainer(feddraw().local)
    network, rows = trainer.network, np.arange(step.batch)
    training = replace(trainer.training, **PAPER_TRAINING)
    arguments = (training, Correction(), 0, trainer.smoothed_loss, make_optimizer(network, training))
    with one_thread():
        works = {
            "training": lambda: timed(lambda: fit(network, trainer.examples, rows, *arguments)),
            "testing": lambda: timed(lambda: predict(network, trainer.examples, rows)),
        }
        samples = session.interleave(f"the paper's step: {step.title}", works, max(1, session.blocks // 3))
    speeds = {name: interval(step.batch / np.array(seconds)) for name, seconds in samples.items()}
    return {"title": f"{step.title}, batches of {step.batch}, one core", "images_per_second": speeds}
