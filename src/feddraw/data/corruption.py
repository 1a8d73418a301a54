"""Sites whose data are worse or made otherwise: labels turned round, images blurred, noisy, or of
another scanner.

What is done to images holds for all images of a site, those that it keeps back too. Labels are
turned round in training only: what a model is measured on stays true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import Dataset, Labels
from feddraw.errors import UserError, unknown

Rows = NDArray[np.intp]
SiteRows = Mapping[str, Rows]  # by site
Grey = NDArray[np.uint8]  # (images, height, width)

ALTERED_TOGETHER = 1024  # images altered at a time
ALTERATION_BOUNDS = {  # the lowest and highest value of each number
    "flip": (0, 1),
    "blur": (0, 100),
    "noise": (0, 10),
    "gamma": (0.01, 100),
    "contrast": (0, 100),
    "crop": (0, 0.45),
}


@dataclass(frozen=True)
class Alteration:
    """What is done to one site's data; the defaults change nothing."""

    flip: float = 0.0
    blur: float = 0.0
    noise: float = 0.0
    gamma: float = 1.0
    contrast: float = 1.0
    crop: float = 0.0

    @property
    def of_images(self) -> bool:
        return replace(self, flip=0.0) != Alteration()

    def altered_images(self, images: Grey, rng: np.random.Generator) -> Grey:
        """The images as this site has them: cut, blurred, then as its scanner shows them, with its
        noise.
        """
        starts = range(0, len(images), ALTERED_TOGETHER)
        pieces = [self._altered(images[first : first + ALTERED_TOGETHER], rng) for first in starts]
        return np.concatenate(pieces) if pieces else images

    def _altered(self, images: Grey, rng: np.random.Generator) -> Grey:
        grey = images.astype(np.float32) / np.float32(255)
        if self.crop:
            grey = _corrupt_by_crop(_corrupt_by_crop(grey, self.crop, 1), self.crop, 2)
        if self.blur:
            from scipy.ndimage import gaussian_filter

            grey = gaussian_filter(grey, (0, self.blur, self.blur), mode="nearest")
        if self.gamma != 1:
            grey = grey ** np.float32(self.gamma)
        if self.contrast != 1:
            grey = np.float32(0.5) + np.float32(self.contrast) * (grey - np.float32(0.5))
        if self.noise:
            grey = grey + np.float32(self.noise) * rng.standard_normal(grey.shape, dtype=np.float32)
        return np.asarray(np.rint(np.clip(grey, 0, 1) * 255).astype(np.uint8))


def _corrupt_by_crop(grey: NDArray[Any], share: float, axis: int) -> NDArray[Any]:
    """Without this share at either end of an axis, stretched to its old length by linear
    interpolation.
    """
    length = grey.shape[axis]
    at = np.linspace(share * (length - 1), (1 - share) * (length - 1), length)
    left = np.minimum(at.astype(np.intp), length - 2)
    part = (
        (at - left)
        .astype(np.float32)
        .reshape([-1 if one == axis else 1 for one in range(grey.ndim)])
    )
    return np.asarray((1 - part) * grey.take(left, axis) + part * grey.take(left + 1, axis))


@dataclass(frozen=True)
class Corruption:
    """Which sites' data are altered, and how much. Sites stand in text: "C4=0.3, C1=0.1"."""

    # share of the labels that are turned round, each finding of each training image by itself
    flip: str = ""
    blur: str = ""  # standard deviation of a Gaussian, in pixels
    noise: str = ""  # standard deviation of what is added to grey values from 0 to 1
    gamma: str = ""  # grey values to this power
    contrast: str = ""  # their distance from mid-grey times this
    crop: str = ""  # share of the image cut off at each side, the rest enlarged

    def alterations(self, sites: Sequence[str]) -> dict[str, Alteration]:
        """What is done at each site; refuses sites that there are not, and numbers that make no
        sense.
        """
        found = {site: Alteration() for site in sites}
        for kind in fields(self):
            for site, value in _corruption_by_site(kind.name, getattr(self, kind.name)).items():
                if site not in found:
                    raise unknown("sites", site, sites)
                found[site] = replace(found[site], **{kind.name: value})
        return {site: one for site, one in found.items() if one != Alteration()}

    def check(self) -> None:
        """Refuse what cannot be read, before the sites are known."""
        for kind in fields(self):
            _corruption_by_site(kind.name, getattr(self, kind.name))


def _corruption_by_site(what: str, text: str) -> dict[str, float]:
    """'C4=0.3, C2=1' as a dict."""
    found = {}
    low, high = ALTERATION_BOUNDS[what]
    for item in filter(str.strip, text.split(",")):
        name, _, number = item.rpartition("=")
        if not re.fullmatch(r" *[0-9]{1,6}(\.[0-9]{1,9})? *", number):
            raise UserError(
                f"corruption.{what} must read like 'C4=0.3, C2=1' (site = number), not '{text}'"
            )
        if not low <= float(number) <= high:
            raise UserError(
                f"corruption.{what} must be from {low:g} to {high:g}, not {number.strip()}"
            )
        found[name.strip()] = float(number)
    return found


@dataclass(frozen=True, eq=False)
class CorruptedDataset:
    """A data set with some sites' data altered, and where it has the test images as these sites
    would make them.
    """

    dataset: Dataset
    views: SiteRows


def corrupt_dataset(
    dataset: Dataset,
    alterations: Mapping[str, Alteration],
    rows: SiteRows,
    trained_on: SiteRows,
    seed: int,
) -> CorruptedDataset:
    """The data set with each site's data altered as told; `rows` are all of a site, `trained_on`
    those it trains on.

    The images are copied into memory. What is left to chance depends on the seed and the site's
    place only.
    """
    if not alterations:
        return CorruptedDataset(dataset, {})
    images = np.array(dataset.images)
    values = np.array(dataset.labels.values)
    for number, (site, own) in enumerate(rows.items()):
        one = alterations.get(site, Alteration())
        if one.of_images:
            images[own] = one.altered_images(images[own], np.random.default_rng([seed, number, 0]))
        if one.flip:
            _flip_labels(
                dataset.labels,
                values,
                trained_on[site],
                one.flip,
                np.random.default_rng([seed, number, 1]),
            )
    altered = replace(dataset, images=images, labels=replace(dataset.labels, values=values))
    return _with_corrupted_views(altered, alterations, list(rows), seed)


def _flip_labels(
    labels: Labels, values: Grey, rows: Rows, rate: float, rng: np.random.Generator
) -> None:
    """Turn each known label of these rows round with this probability."""
    turned = rng.random((len(rows), values.shape[1])) < rate
    if labels.known is not None:
        turned &= labels.known[rows]
    values[rows] ^= turned.astype(values.dtype)


def _with_corrupted_views(
    dataset: Dataset, alterations: Mapping[str, Alteration], sites: Sequence[str], seed: int
) -> CorruptedDataset:
    """With one copy of the test images for every site that has other images than the rest, in no
    split.
    """
    test = dataset.rows["test"]
    different = [site for site in sites if site in alterations and alterations[site].of_images]
    if not different:
        return CorruptedDataset(dataset, {})
    chances = {site: np.random.default_rng([seed, sites.index(site), 2]) for site in different}
    copies = [
        alterations[site].altered_images(dataset.images[test], rng) for site, rng in chances.items()
    ]
    first = len(dataset.images)
    views = {
        site: first + len(test) * place + np.arange(len(test))
        for place, site in enumerate(different)
    }
    labels = dataset.labels.take(np.concatenate([np.arange(first), *[test] * len(different)]))
    named = [
        f"{name} as at {site}" for site in different for name in dataset.labels.names[test].tolist()
    ]
    names = np.concatenate([dataset.labels.names, np.array(named, dtype=np.str_)])
    images = np.concatenate([dataset.images, *copies])
    return CorruptedDataset(
        replace(dataset, images=images, labels=replace(labels, names=names)), views
    )
