"""A network with a frozen part: a round on features beside one on images, the pass that computes
features beside a bare loop, and training on features beside a bare loop over one matrix.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.speed.timing import TimingSession, ratio_of_times, seconds_of
from feddraw.core import Job
from feddraw.experiment.frozen_features import FEATURE_BATCH, Backbone, FeaturePass
from feddraw.experiment.run_preparation import initial_model, network_builder, prepare
from feddraw.experiment.running import opened_engine
from feddraw.experiment.settings import Experiment, complete
from feddraw.federation import Federation, federate
from feddraw.methods.fedavg import fedavg
from feddraw.server.collectors import Together
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples
from feddraw.training.network_cut import build_partly_frozen
from feddraw.training.settings import Training

IMAGES = 512
SIDE = 224
ROWS = 78_468  # CHM-5's training images
WIDTH = 1024  # features that DenseNet121 gives its classifier
FINDINGS = 14
TRAINING = Training(epochs=1, batch_size=64, lr=1e-3, clip=5.0)


def measure_frozen_part(session: TimingSession) -> dict[str, Any]:
    """Ratios of times; in a quick session of fewer images."""
    images = 64 if session.quick else IMAGES
    rows = 8_000 if session.quick else ROWS
    with tempfile.TemporaryDirectory() as cache:
        before = os.environ.get("FEDDRAW_CACHE")
        os.environ["FEDDRAW_CACHE"] = cache
        try:
            rounds = _rounds(session, images)
        finally:
            if before is None:
                del os.environ["FEDDRAW_CACHE"]
            else:
                os.environ["FEDDRAW_CACHE"] = before
        loops = _loops_over_matrix(session, Path(cache) / "matrix.npy", rows)
    return {
        "title": f"the classifier of DenseNet121, {images} images at {SIDE} px; {rows:,} features",
        "images_over_features": rounds,
        "feature_pass_over_bare": _feature_passes(session),
        "training_over_bare": loops,
    }


def _experiment(images: int, kind: str) -> Experiment:
    return Experiment(
        data={
            "name": "phantom",
            "size": SIDE,
            "train": images,
            "validation": 16,
            "test": 16,
            "features": kind,
        },
        scenario={"name": "iid", "clients": 2, "scale": 1.0},
        model={"name": "densenet121", "weights": "none", "frozen": "body"},
        method="fedavg",
        rounds=1,
        engine="serial",
    ).with_settings({"training.epochs": 1})


def _rounds(session: TimingSession, images: int) -> Any:
    """A round that computes the frozen part in every batch ÷ one on features that are there."""
    works = {}
    for kind in ("off", "float32"):
        works[kind] = partial(_seconds_of_round, prepare(_experiment(images, kind)))
    samples = session.interleave("a round on features", works, max(1, session.blocks // 10))
    return ratio_of_times(samples["off"], samples["float32"])


def _seconds_of_round(setup: Any) -> float:
    with opened_engine(setup) as engine:
        federation = Federation(
            method=setup.method,
            engine=engine,
            clients=setup.clients,
            rounds=1,
            seed=0,
            collect=Together(),
        )
        engine.predict(setup.initial, setup.dataset.rows["validation"][:2])  # makes the network
        return seconds_of(lambda: list(federate(federation, setup.initial)))


def _feature_passes(session: TimingSession) -> Any:
    """Our pass over a batch ÷ the frozen layers called one after the other, on one core."""
    experiment = complete(_experiment(FEATURE_BATCH, "float32"))
    build = network_builder(experiment, FINDINGS)
    module, _ = build()
    backbone = Backbone(build, "body", False, SIDE, dict[str, Any]())
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (FEATURE_BATCH, SIDE, SIDE), np.uint8)
    ours = FeaturePass(backbone, images, mean=0.5, std=0.25)
    frozen = module.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def bare() -> None:
        with torch.inference_mode():
            pixels = torch.from_numpy(images).unsqueeze(1).float().sub_(127.5).div_(63.75)
            frozen.features(pixels.expand(-1, 3, -1, -1)).relu().mean(dim=(2, 3)).numpy()

    works: dict[str, Callable[[], float]] = {
        "ours": lambda: seconds_of(lambda: ours.of_batch(np.arange(FEATURE_BATCH))),
        "bare": lambda: seconds_of(bare),
    }
    samples = session.interleave("features", works, max(1, session.blocks // 4))
    return ratio_of_times(samples["ours"], samples["bare"])


def one_layer(pretrained: bool = False) -> tuple[nn.Module, str]:
    """A network whose classifier has as many features as that of DenseNet121."""
    body = nn.Conv2d(1, WIDTH, 8)
    return nn.Sequential(body, nn.Flatten(), nn.Linear(WIDTH, FINDINGS)), "2"


def _loops_over_matrix(session: TimingSession, file: Path, rows: int) -> Any:
    """A client's epoch ÷ a bare loop over the same matrix, with the same order, loss, clipping and
    optimiser.
    """
    rng = np.random.default_rng(0)
    np.save(file, rng.standard_normal((rows, WIDTH), np.float32))
    features = np.load(file, mmap_mode="r")
    targets = rng.integers(0, 2, (rows, FINDINGS)).astype(np.float32)
    everyone = np.arange(rows)
    build = partial(build_partly_frozen, one_layer, "body", 8)
    method = fedavg()
    trainer = Trainer(build, Examples(features, targets), [everyone], TRAINING, method.local)
    job = Job(round=0, rounds=1, client=0, seed=0, model=initial_model(build, 0))

    def bare() -> None:
        layer = nn.Linear(WIDTH, FINDINGS)
        optimizer = torch.optim.Adam(layer.parameters(), lr=TRAINING.lr)
        order = np.random.default_rng(0).permutation(everyone)
        for start in range(0, rows, TRAINING.batch_size):
            batch = order[start : start + TRAINING.batch_size]
            scores = layer(torch.from_numpy(features[batch]))
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(
                scores, torch.from_numpy(targets[batch])
            )
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(layer.parameters(), TRAINING.clip)
            optimizer.step()

    works: dict[str, Callable[[], float]] = {
        "ours": lambda: seconds_of(lambda: trainer.work(job, {})),
        "bare": lambda: seconds_of(bare),
    }
    samples = session.interleave("training on features", works, max(1, session.blocks // 4))
    return ratio_of_times(samples["ours"], samples["bare"])
