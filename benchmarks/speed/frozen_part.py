"""A network with a frozen part: rounds and runs on features beside those on images and beside bare
loops, and the memory that training on features takes.

    python -m benchmarks.speed.frozen_part FEATURES

trains on a file of features in a process of its own and prints by how much its memory grew.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.speed.own_cache import cache_in
from benchmarks.speed.timing import (
    Ratio,
    TimingSession,
    measured_in_own_process,
    median_interval,
    ratio_of_times,
    seconds_of,
)
from feddraw.data.dataset import Dataset
from feddraw.data.feature_cache import cached_folders, remove_cached_folder
from feddraw.data.scenarios.paper_scenarios import paper_scenario
from feddraw.engines.serial import Serial
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.frozen_features import FEATURE_BATCH, Backbone, FeaturePass
from feddraw.experiment.run_preparation import (
    PreparedRun,
    initial_model,
    network_builder,
    open_experiment_data,
    prepare,
)
from feddraw.experiment.running import opened_engine
from feddraw.experiment.settings import Experiment
from feddraw.federation import Federation, federate
from feddraw.methods.fedavg import fedavg
from feddraw.system.machine import cores, peak_memory
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples
from feddraw.training.partly_frozen_by_trial import build_partly_frozen
from feddraw.training.settings import Training

IMAGES = 512
EVALUATED = 32  # validation images after a round, and as many test images
SIDE = 224
WIDTH = 1024  # features that DenseNet121 gives its classifier
FINDINGS = 14
TRAINING = Training(epochs=1, batch_size=64, lr=1e-3, clip=5.0)
ROUNDS = 3  # of the run at CHM-5's size
WARM_ROUNDS = 5  # rounds on features for one on images, which takes a minute


def measure_frozen_part(session: TimingSession) -> dict[str, Any]:
    """Ratios of times and of memory; in a quick session with fewer images."""
    images = 64 if session.quick else IMAGES
    sizes = _client_sizes(session.quick)
    with tempfile.TemporaryDirectory() as folder, cache_in(folder):
        first_run = _first_runs(session, images)
        round_on_images = _rounds(session, images)
        features = Path(folder) / "features.npy"
        _write_made_up_features(features, sum(sizes))
        run = _runs_over_matrix(session, features, sizes)
        memory = _memory_growth(session, features)
    return {
        "title": f"the classifier of DenseNet121, {images} images at {SIDE} px",
        "features": sum(sizes),
        "images_over_features": round_on_images,
        "first_over_bare_and_warm": first_run,
        "feature_pass_over_bare": _feature_passes(session),
        "training_over_bare": run,
        "memory_over_touched": memory,
    }


def _client_sizes(quick: bool) -> tuple[int, ...]:
    """Training images by client of CHM-5; in a quick session a tenth."""
    scenario = paper_scenario("CHM-5", 0.1 if quick else 1.0)
    assert scenario is not None
    return scenario.sizes


# --------------------------------------------------------------------------- DenseNet121 on images


def _experiment(images: int, kind: str) -> Experiment:
    return Experiment(
        data={
            "name": "phantom",
            "size": SIDE,
            "train": images,
            "validation": EVALUATED,
            "test": EVALUATED,
            "features": kind,
        },
        scenario={"name": "iid", "clients": 2, "scale": 1.0},
        model={"name": "densenet121", "weights": "none", "frozen": "body"},
        method="fedavg",
        rounds=1,
        engine="serial",
    ).with_settings({"training.epochs": 1})


def _first_runs(session: TimingSession, images: int) -> Ratio:
    """A run of one round that has to compute the features ÷ a bare pass over its images on as many
    cores, and the same run once more.
    """
    experiment = _experiment(images, "float32")
    dataset = open_experiment_data(experiment)
    bare = _bare_pass()

    def first_run() -> float:
        for folder in cached_folders():
            remove_cached_folder(folder)
        return seconds_of(lambda: _whole_run(experiment, dataset))

    works: dict[str, Callable[[], float]] = {
        "first": first_run,
        "bare": lambda: seconds_of(lambda: bare(dataset.images, threads=cores())),
        "warm": lambda: seconds_of(lambda: _whole_run(experiment, dataset)),
    }
    samples: dict[str, list[float]] = {name: [] for name in works}
    for _ in session.each("a first run", range(max(1, session.blocks // 10))):
        for name, work in works.items():  # in this order: the first leaves its features
            samples[name].append(work())
    without_us = np.add(samples["bare"], samples["warm"])
    return ratio_of_times(samples["first"], list(without_us))


def _whole_run(experiment: Experiment, dataset: Dataset) -> None:
    setup = prepare(experiment, dataset=dataset)
    with opened_engine(setup) as engine:
        for result in federate(_federation(setup, engine), setup.initial):
            setup.evaluator.after_a_round(engine, [result.model], ("validation", "test"))


def _rounds(session: TimingSession, images: int) -> Ratio:
    """A round that computes the frozen part in every batch ÷ one on features that are there, both
    with the evaluation of the validation images.
    """
    on_images = prepare(_experiment(images, "off"))
    on_features = prepare(_experiment(images, "float32"))
    session.progress("a round on images", 0, 1)
    whole = _seconds_of_round(on_images)
    session.progress("a round on images", 1, 1)
    parts = [
        _seconds_of_round(on_features)
        for _ in session.each("rounds on features", range(WARM_ROUNDS))
    ]
    return median_interval([whole / part for part in parts])


def _seconds_of_round(setup: PreparedRun) -> float:
    with opened_engine(setup) as engine:
        federation = _federation(setup, engine)
        engine.predict(setup.initial, setup.dataset.rows["validation"][:2])  # makes the network

        def one_round() -> None:
            for result in federate(federation, setup.initial):
                setup.evaluator.after_a_round(engine, [result.model], ("validation",))

        return seconds_of(one_round)


def _federation(setup: PreparedRun, engine: Any) -> Federation:
    return Federation(method=setup.method, engine=engine, clients=setup.clients, rounds=1, seed=0)


def _bare_pass() -> Callable[..., None]:
    """The frozen layers of DenseNet121, called one after the other on batch after batch."""
    build = network_builder(complete_settings(_experiment(FEATURE_BATCH, "float32")), FINDINGS)
    module, _ = build()
    frozen = module.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def bare(images: NDArray[np.uint8], threads: int) -> None:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            for start in range(0, len(images), FEATURE_BATCH):
                batch = images[start : start + FEATURE_BATCH]
                pixels = torch.from_numpy(batch).unsqueeze(1).float().sub_(127.5).div_(63.75)
                three = pixels.expand(-1, 3, -1, -1)
                frozen.features(three).relu().mean(dim=(2, 3)).numpy()
        torch.set_num_threads(1)

    return bare


def _feature_passes(session: TimingSession) -> Ratio:
    """Our pass over a batch ÷ the frozen layers called one after the other, on one core."""
    build = network_builder(complete_settings(_experiment(FEATURE_BATCH, "float32")), FINDINGS)
    backbone = Backbone(build, "body", False, SIDE, dict[str, Any]())
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (FEATURE_BATCH, SIDE, SIDE), np.uint8)
    ours = FeaturePass(backbone, images, mean=0.5, std=0.25)
    bare = _bare_pass()
    works = {
        "ours": lambda: seconds_of(lambda: ours.of_batch(np.arange(FEATURE_BATCH))),
        "bare": lambda: seconds_of(lambda: bare(images, threads=1)),
    }
    samples = session.interleave("features", works, max(1, session.blocks // 4))
    return ratio_of_times(samples["ours"], samples["bare"])


# ----------------------------------------------------------------------- a run at CHM-5's full size


def one_layer(pretrained: bool = False) -> tuple[nn.Module, str]:
    """A network whose classifier has as many features as that of DenseNet121."""
    body = nn.Conv2d(1, WIDTH, 8)
    return nn.Sequential(body, nn.Flatten(), nn.Linear(WIDTH, FINDINGS)), "2"


def _write_made_up_features(file: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    np.save(file, rng.standard_normal((rows, WIDTH), np.float32))


def _made_up_targets(rows: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(1)
    return rng.integers(0, 2, (rows, FINDINGS)).astype(np.float32)


def _shards(sizes: Sequence[int]) -> list[NDArray[np.intp]]:
    """The rows of each client, drawn from all."""
    order = np.random.default_rng(2).permutation(sum(sizes))
    return [np.sort(rows) for rows in np.split(order, np.cumsum(sizes)[:-1])]


class RunOnMatrix:
    """A run of FedAvg on a file of features, memory-mapped as those of the cache are; nothing is
    evaluated.
    """

    def __init__(self, file: Path, shards: Sequence[NDArray[np.intp]], rounds: int) -> None:
        features = np.load(file, mmap_mode="r")
        build = partial(build_partly_frozen, one_layer, "body", 8)
        method = fedavg()
        examples = Examples(features, _made_up_targets(len(features)))
        trainer = Trainer(build, examples, shards, TRAINING, method.local)
        self._federation = Federation(
            method=method,
            engine=Serial(trainer),
            clients=[str(number) for number in range(len(shards))],
            rounds=rounds,
            seed=0,
        )
        self._initial = initial_model(build, 0)

    def __call__(self) -> None:
        for _ in federate(self._federation, self._initial):
            pass


def _bare_run(file: Path, shards: Sequence[NDArray[np.intp]]) -> Callable[[], None]:
    """As many epochs over the same rows in the same order, with the same loss, clipping and
    optimiser.
    """
    features = np.load(file, mmap_mode="r")
    targets = _made_up_targets(len(features))

    def epoch(rows: NDArray[np.intp], layer: nn.Linear) -> None:
        optimizer = torch.optim.Adam(layer.parameters(), lr=TRAINING.lr)
        order = np.random.default_rng(0).permutation(rows)
        for start in range(0, len(order), TRAINING.batch_size):
            batch = order[start : start + TRAINING.batch_size]
            scores = layer(torch.from_numpy(features[batch]))
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(
                scores, torch.from_numpy(targets[batch])
            )
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(layer.parameters(), TRAINING.clip)
            optimizer.step()

    def bare() -> None:
        layer = nn.Linear(WIDTH, FINDINGS)
        for _ in range(ROUNDS):
            for rows in shards:
                epoch(rows, layer)

    return bare


def _runs_over_matrix(session: TimingSession, file: Path, sizes: Sequence[int]) -> Ratio:
    """A run ÷ a bare loop over the same matrix, without evaluation on both sides."""
    shards = _shards(sizes)
    run = RunOnMatrix(file, shards, ROUNDS)
    bare = _bare_run(file, shards)
    works = {"ours": lambda: seconds_of(run), "bare": lambda: seconds_of(bare)}
    samples = session.interleave("a run on features", works, max(1, session.blocks // 4))
    return ratio_of_times(samples["ours"], samples["bare"])


# ------------------------------------------------------------------------------------------- memory


def _memory_growth(session: TimingSession, file: Path) -> float:
    """By how much the memory of a process grows while it trains ÷ the features that it touches."""
    for _ in session.each("memory of training on features", range(1)):
        grown = measured_in_own_process("benchmarks.speed.frozen_part", str(file))
    return float(grown["grown"] / grown["touched"])


def memory_of_run(file: Path) -> dict[str, int]:
    """Bytes by which this process grows, and those of the features that it touches: all of them,
    as CHM-5 does.
    """
    rows = len(np.load(file, mmap_mode="r"))
    run = RunOnMatrix(file, np.array_split(np.arange(rows), 4), rounds=1)
    with suppress(OSError):  # forget the peak so far, where the system allows it
        Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory()
    run()
    return {"grown": peak_memory() - before, "touched": rows * WIDTH * 4}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(memory_of_run(Path(sys.argv[1]))))
