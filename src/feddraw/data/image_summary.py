"""What training images have in common, small enough to be kept beside a model: by it `predict` sees
that a new image is of another kind.

It holds means over the training images and spreads of two numbers, and no extreme of any image. Of
fewer than `FEWEST_PATIENTS` there is none. Two summaries, with and without one patient, must not
give that patient's images by subtraction: mean picture and histogram are in steps as large as what
one patient can change them by. This is no differential privacy: many summaries of nearly the same
images tell more than two, and the spreads tell roughly how unlike the others a left-out image is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import Dataset
from feddraw.data.image_facts import modality_of

FEWEST_PATIENTS = 20
MOST_IMAGES = 2000  # of large data sets every so many-th image is looked at
LOOKED_AT_TOGETHER = 256
BINS = 32  # of the histogram of levels
CELLS = 8  # of the mean picture, along each side
SPREADS = 6.0  # from the mean to what is far outside
LEAST_DISTANCE = 16.0  # levels of 255 that are never far outside
LEAST_RESEMBLANCE = 0.3  # below it the training images have no picture in common
FLAT = 1  # levels between darkest and brightest of an image that shows nothing
EMPTY = "the image is empty: all its pixels are alike"


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a number over the training images."""

    mean: float
    std: float


@dataclass(frozen=True)
class ImageSummary:
    """Of prepared training images."""

    images: int  # looked at
    channels: int
    size: int  # pixels
    in_colour: float  # share of images whose channels differ, in tenths, rounded down
    modalities: tuple[str, ...]  # that DICOM files named; empty: none did
    histogram: tuple[float, ...]  # share of pixels at each of `BINS` levels
    picture: tuple[float, ...]  # mean level of each of `CELLS` × `CELLS` parts, row by row
    distance: Spread  # of an image's histogram from this one, in levels of 255
    resemblance: Spread  # correlation of an image's parts with this picture

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @staticmethod
    def of_record(record: object) -> ImageSummary | None:
        """What `record` gave; None where that is not there, or damaged."""
        if not isinstance(record, Mapping):
            return None
        try:
            summary = ImageSummary(
                images=int(record["images"]),
                channels=int(record["channels"]),
                size=int(record["size"]),
                in_colour=float(record["in_colour"]),
                modalities=tuple(modality_of(name) for name in record["modalities"]),
                histogram=tuple(float(share) for share in record["histogram"]),
                picture=tuple(float(level) for level in record["picture"]),
                distance=_spread(record["distance"]),
                resemblance=_spread(record["resemblance"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        numbers = [*summary.histogram, *summary.picture, summary.in_colour]
        whole = (len(summary.histogram), len(summary.picture)) == (BINS, CELLS**2)
        return summary if whole and all(map(math.isfinite, numbers)) else None

    def doubts(self, image: NDArray[np.uint8]) -> list[str]:
        """In what way a prepared image is unlike those of the training."""
        if int(image.max()) - int(image.min()) <= FLAT:
            return [EMPTY]
        levels = _levels(image[None])
        distance = self._distance(levels)
        if self._looks_inverted(levels, distance):
            return ["the image looks inverted: its negative is like the training images"]
        if distance > self._far:
            trained = float(np.dot(self.histogram, _centres()))
            return [
                f"its levels are far outside those of the training images (mean {levels.mean():.0f}"
                f" of 255, theirs {trained:.0f})"
            ]
        return []

    @property
    def _far(self) -> float:
        return max(LEAST_DISTANCE, self.distance.mean + SPREADS * self.distance.std)

    def _looks_inverted(self, levels: NDArray[np.float32], distance: float) -> bool:
        """By its parts, where the training images have a picture in common; else by its levels."""
        usual = self.resemblance.mean - 2 * self.resemblance.std
        if usual > LEAST_RESEMBLANCE:
            resemblance = _correlations(_parts(levels), np.array(self.picture))[0]
            return bool(resemblance <= -usual)
        near = self.distance.mean + 2 * self.distance.std
        return distance > self._far and self._distance(255 - levels) <= near

    def _distance(self, levels: NDArray[np.float32]) -> float:
        return float(_distances(_histograms(levels), np.array(self.histogram))[0])


def _spread(record: Mapping[str, Any]) -> Spread:
    spread = Spread(float(record["mean"]), float(record["std"]))
    if not (math.isfinite(spread.mean) and spread.std >= 0 and math.isfinite(spread.std)):
        raise ValueError(record)
    return spread


def summary_of(dataset: Dataset, rows: NDArray[np.intp]) -> ImageSummary | None:
    """Of some of a data set's images, in any order; None of too few patients to hide each other.
    Where patients are not known, each image is one of its own.
    """
    every = np.unique(rows)
    chosen = every[:: -(-len(every) // MOST_IMAGES)]
    owners = dataset.labels.patients
    _, images_of_patients = np.unique(
        chosen if owners is None else owners[chosen], return_counts=True
    )
    if len(images_of_patients) < FEWEST_PATIENTS:
        return None
    largest_share = float(images_of_patients.max() / len(chosen))
    starts = range(0, len(chosen), LOOKED_AT_TOGETHER)
    blocks = [chosen[start : start + LOOKED_AT_TOGETHER] for start in starts]
    histograms = []
    parts = []
    coloured = 0
    for block in blocks:
        images = np.asarray(dataset.images[block])
        if images.ndim == 4:
            coloured += int((np.ptp(images, axis=3) > 0).any(axis=(1, 2)).sum())
        levels = _levels(images)
        histograms.append(_histograms(levels))
        parts.append(_parts(levels))
    histogram = _coarse_histogram(np.concatenate(histograms).mean(axis=0), largest_share)
    picture = _coarse_picture(np.concatenate(parts).mean(axis=0), largest_share)
    distances = _distances(np.concatenate(histograms), histogram)
    resemblances = _correlations(np.concatenate(parts), picture)
    return ImageSummary(
        images=len(chosen),
        channels=dataset.channels,
        size=dataset.size,
        in_colour=10 * coloured // len(chosen) / 10,
        modalities=dataset.modalities,
        histogram=_rounded(histogram, 5),
        picture=_rounded(picture, 0),
        distance=Spread(*_rounded([distances.mean(), distances.std()], 1)),
        resemblance=Spread(*_rounded([resemblances.mean(), resemblances.std()], 2)),
    )


def _coarse_histogram(histogram: NDArray[np.float64], largest_share: float) -> NDArray[np.float64]:
    """With the share of pixels up to each level in steps of the share of one patient's images."""
    up_to = np.minimum(np.round(np.cumsum(histogram) / largest_share) * largest_share, 1)
    up_to[-1] = 1
    return np.diff(up_to, prepend=0)


def _coarse_picture(picture: NDArray[np.float64], largest_share: float) -> NDArray[np.float64]:
    """In whole levels, in steps of what one patient's images can change a mean by."""
    step = math.ceil(255 * largest_share)
    return np.asarray(np.round(picture / step) * step)


def _rounded(values: Sequence[float] | NDArray[np.float64], digits: int) -> tuple[float, ...]:
    return tuple(round(float(value), digits) for value in values)


def _levels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(images, height, width), of colours the mean of their channels."""
    levels = images.astype(np.float32)
    return levels.mean(axis=3) if levels.ndim == 4 else levels


def _histograms(levels: NDArray[np.float32]) -> NDArray[np.float64]:
    """(images, BINS): share of pixels at each level."""
    number = len(levels)
    bins = np.minimum(levels * (BINS / 256), BINS - 1).astype(np.intp).reshape(number, -1)
    flat = (bins + BINS * np.arange(number)[:, None]).ravel()
    counts = np.bincount(flat, minlength=BINS * number).reshape(number, BINS)
    return np.asarray(counts / bins.shape[1])


def _distances(histograms: NDArray[np.float64], of_all: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how many levels pixels have to be moved on average to make one histogram of the other."""
    between = np.cumsum(histograms - of_all, axis=1)
    return np.asarray(np.abs(between).sum(axis=1) * (256 / BINS))


def _parts(levels: NDArray[np.float32]) -> NDArray[np.float64]:
    """(images, CELLS²): the mean level of each part of an image."""
    starts = np.arange(CELLS) * levels.shape[1] // CELLS
    heights = np.diff(starts, append=levels.shape[1])
    sums = np.add.reduceat(np.add.reduceat(levels, starts, axis=1), starts, axis=2)
    means = sums / (heights[:, None] * heights)
    return np.asarray(means.reshape(len(levels), -1), dtype=np.float64)


def _correlations(parts: NDArray[np.float64], picture: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each image's parts with a picture; 0 where one of the two is flat."""
    parts = parts - parts.mean(axis=1, keepdims=True)
    picture = picture - picture.mean()
    lengths = np.linalg.norm(parts, axis=1) * np.linalg.norm(picture)
    return np.asarray(np.divide(parts @ picture, lengths, np.zeros(len(parts)), where=lengths > 0))


def _centres() -> NDArray[np.float64]:
    """The level in the middle of each bin."""
    return np.asarray((np.arange(BINS) + 0.5) * (256 / BINS) - 0.5)
