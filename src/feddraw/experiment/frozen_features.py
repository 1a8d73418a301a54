"""What clients train on where a part of the network is frozen: features in place of images.

Every image passes the frozen part once, in evaluation mode, in batches of one size, so that its
features do not depend on which other images a run needs. They are kept in the cache
(`data/feature_cache.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddraw.data.dataset import Dataset
from feddraw.data.feature_cache import (
    FeatureEntry,
    Features,
    FeatureSettings,
    images_identity,
    open_features,
    tensors_digest,
)
from feddraw.experiment.settings import Experiment
from feddraw.system.progress import Progress
from feddraw.system.shared_memory import SharedArrays, SharedHandle, attach_shared
from feddraw.system.workers import in_workers_if_they_pay, limited_workers
from feddraw.training.augment import augment
from feddraw.training.loop import Examples
from feddraw.training.network import Build
from feddraw.training.network_cut import find_cut, noise_image
from feddraw.training.partly_frozen import FeatureExtractor
from feddraw.training.reproducibility import one_thread

FEATURE_BATCH = 32  # images that pass the frozen part together; a smaller batch is filled up
NOTED_FEATURES = 64  # of the image of noise, by which other code of the network is noticed

Rows = NDArray[np.intp]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Backbone:
    """The frozen part of a network: how to make it, and its tensors."""

    build: Build  # of the whole network
    layer: str  # where it is cut
    projection: bool
    side: int  # of an image in pixels
    tensors: Arrays
    device: str = "cpu"
    channels: int = 1

    def extractor(self) -> FeatureExtractor:
        """What computes features, in evaluation mode."""
        module, classifier = self.build()
        cut = find_cut(module, classifier, self.layer, self.side, self.projection, self.channels)
        needed = module.state_dict()
        state = {
            name: torch.from_numpy(np.array(values)).reshape(needed[name].shape)
            for name, values in self.tensors.items()
        }
        module.load_state_dict(state, strict=False)
        module.eval()
        module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return FeatureExtractor(module, cut.layers[0])


@dataclass(eq=False)
class FeaturePass:
    """Computes the features of images, batch by batch."""

    backbone: Backbone
    images: NDArray[np.uint8]
    mean: float
    std: float

    @cached_property
    def extractor(self) -> FeatureExtractor:
        return self.backbone.extractor()

    def of_noise(self) -> Features:
        """The features of the image of noise."""
        extractor = self.extractor
        with one_thread(), torch.inference_mode():
            noise = noise_image(self.backbone.side, channels=self.backbone.channels)
            features = extractor(noise.to(self.backbone.device))
            return np.asarray(features[0].float().cpu().contiguous().numpy())

    def of_batch(self, rows: Rows) -> Features:
        """The features of no more rows than a batch has."""
        images = self._prepared(rows)
        full = torch.zeros(FEATURE_BATCH, *images.shape[1:])
        full[: len(rows)] = images
        batch = full.contiguous(memory_format=torch.channels_last).to(self.backbone.device)
        extractor = self.extractor
        with one_thread(), torch.inference_mode():
            features = extractor(batch)[: len(rows)]
            return np.asarray(features.float().cpu().contiguous().numpy())

    def _prepared(self, rows: Rows) -> Tensor:
        """Normalised images; a row beyond them is an augmented copy of one, turned, shifted and
        zoomed as its number says.
        """
        number = len(self.images)
        nothing = np.zeros((number, 0), np.float32)
        images, _ = Examples(self.images, nothing, self.mean, self.std).batch(rows % number)
        for place, row in enumerate(rows.tolist()):
            if row >= number:
                generator = torch.Generator().manual_seed(row)
                images[place : place + 1] = augment(images[place : place + 1], generator)
        return images

    def blocks(self, rows: Rows) -> Iterator[tuple[Rows, Features]]:
        """Rows with their features as they get ready, by as many processes as there are cores where
        that pays.
        """
        starts = range(0, len(rows), FEATURE_BATCH)
        workers = limited_workers(0) if self.backbone.device == "cpu" else 1

        def compute(start: int) -> Features:
            return self.of_batch(rows[start : start + FEATURE_BATCH])

        with closing(SharedArrays()) as shared:
            finished = in_workers_if_they_pay(
                compute,
                starts,
                workers,
                for_workers=lambda: FeatureWork.of(self, rows, shared),
                doing="computed features",
                then="finished work is kept: start again to continue",
            )
            for start, features in finished:
                yield rows[start : start + FEATURE_BATCH], features


@dataclass(eq=False)
class FeatureWork:
    """What a worker process needs to compute features: images and tensors in shared memory."""

    backbone: Backbone  # without its tensors
    tensors: Mapping[str, SharedHandle]
    images: SharedHandle
    mean: float
    std: float
    rows: Rows
    _opened: FeaturePass | None = field(default=None, init=False)

    @staticmethod
    def of(feature_pass: FeaturePass, rows: Rows, shared: SharedArrays) -> FeatureWork:
        backbone = feature_pass.backbone
        return FeatureWork(
            backbone=replace(backbone, tensors={}),
            tensors={name: shared.publish(array) for name, array in backbone.tensors.items()},
            images=shared.publish(feature_pass.images),
            mean=feature_pass.mean,
            std=feature_pass.std,
            rows=rows,
        )

    def __call__(self, start: int) -> Features:
        if self._opened is None:
            torch.set_num_threads(1)
            tensors = {name: attach_shared(handle) for name, handle in self.tensors.items()}
            backbone = replace(self.backbone, tensors=tensors)
            self._opened = FeaturePass(backbone, attach_shared(self.images), self.mean, self.std)
        return self._opened.of_batch(self.rows[start : start + FEATURE_BATCH])


def backbone_of(experiment: Experiment, build: Build, tensors: Arrays) -> Backbone:
    """The frozen part of an experiment's network; `build` makes the whole of it."""
    _, model = experiment.section("model")
    return Backbone(
        build=build,
        layer=experiment.frozen,
        projection=bool(model.get("projection", 0)),
        side=int(experiment.section("data")[1]["size"]),
        tensors=tensors,
        device=experiment.training.device,
        channels=experiment.channels,
    )


def rows_of_features(
    experiment: Experiment,
    images: int,
    trained_on: Sequence[Rows],
    evaluated: Sequence[Rows],
) -> Rows:
    """The rows that a run needs of the features of so many images: those that it trains and
    evaluates on, then the augmented copies of the former.
    """
    training = np.unique(np.concatenate(trained_on))
    needed = [np.unique(np.concatenate([*evaluated, training]))]
    for copy in range(int(experiment.section("data")[1]["copies"])):
        needed.append(training + images * (1 + copy))
    return np.concatenate(needed)


def feature_entry(
    experiment: Experiment, dataset: Dataset, feature_pass: FeaturePass
) -> FeatureEntry:
    """Where the features of a data set are kept."""
    settings = experiment.section("data")[1]
    of_noise = feature_pass.of_noise()
    return FeatureEntry.of(
        dataset.name,
        FeatureSettings(
            tensors=tensors_digest(feature_pass.backbone.tensors),
            cut=feature_pass.extractor.layer,
            images=images_identity(dataset.images),
            mean=dataset.mean,
            std=dataset.std,
            shape=of_noise.shape,
            type=str(settings["features"]),
        ),
        rows=len(dataset.images) * (1 + int(settings["copies"])),
        of_noise=of_noise.reshape(-1)[:NOTED_FEATURES],
    )


def dataset_of_features(
    experiment: Experiment,
    dataset: Dataset,
    backbone: Backbone,
    needed: Rows,
    progress: Progress | None = None,
) -> Dataset:
    """The data set with features in place of images, those of the needed rows filled in.

    Behind the features of the images lie those of their augmented copies (`data.copies`).
    """
    feature_pass = FeaturePass(backbone, dataset.images, dataset.mean, dataset.std)
    entry = feature_entry(experiment, dataset, feature_pass)
    features = open_features(entry, needed, feature_pass.blocks, progress)
    return replace(dataset, images=features)


@dataclass(frozen=True)
class FeatureEstimate:
    """What computing features takes."""

    images: int
    bytes: int
    seconds: float  # in one process


def estimate_features(
    experiment: Experiment, dataset: Dataset, backbone: Backbone, needed: Rows, *, prepared: bool
) -> FeatureEstimate:
    """What the needed features take that are not there yet, from the time of one batch; where the
    images are not `prepared`, none is there.
    """
    feature_pass = FeaturePass(backbone, dataset.images, dataset.mean, dataset.std)
    entry = feature_entry(experiment, dataset, feature_pass)
    missing = entry.missing(needed) if prepared else needed
    if not len(missing):
        return FeatureEstimate(0, 0, 0.0)
    batch = missing[:FEATURE_BATCH]
    feature_pass.of_batch(batch)  # the first chooses algorithms
    # as training steps are timed: on processors that other programs share, without their time
    clock = time.process_time if backbone.device == "cpu" else time.perf_counter
    began = clock()
    feature_pass.of_batch(batch)
    batches = -(-len(missing) // FEATURE_BATCH)
    seconds = (clock() - began) * batches
    return FeatureEstimate(len(missing), len(missing) * entry.row_bytes, seconds)
