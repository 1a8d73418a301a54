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
from feddraw.text import parse_pairs

Rows = NDArray[np.intp]
SiteRows = Mapping[str, Rows]  # by site
Pixels = NDArray[np.uint8]  # (images, height, width), with three channels behind in colour

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

    def altered_images(self, images: Pixels, rng: np.random.Generator) -> Pixels:
        """The images as this site has them: cut, blurred, then as its scanner shows them, with its
        noise.
        """
        if not len(images):
            return images
        starts = range(0, len(images), ALTERED_TOGETHER)
        return np.concatenate(
            [self._altered(images[start : start + ALTERED_TOGETHER], rng) for start in starts]
        )

    def _altered(self, images: Pixels, rng: np.random.Generator) -> Pixels:
        grey = images.astype(np.float32) / np.float32(255)
        if self.crop:
            grey = _cropped(_cropped(grey, self.crop, axis=1), self.crop, axis=2)
        if self.blur:
            from scipy.ndimage import gaussian_filter

            along_axes = (0, self.blur, self.blur, 0)[: grey.ndim]
            grey = gaussian_filter(grey, along_axes, mode="nearest")
        if self.gamma != 1:
            grey = grey ** np.float32(self.gamma)
        if self.contrast != 1:
            grey = np.float32(0.5) + np.float32(self.contrast) * (grey - np.float32(0.5))
        if self.noise:
            grey = grey + np.float32(self.noise) * rng.standard_normal(grey.shape, dtype=np.float32)
        return np.asarray(np.rint(np.clip(grey, 0, 1) * 255).astype(np.uint8))


def _cropped(grey: NDArray[Any], share: float, axis: int) -> NDArray[Any]:
    """Without this share at either end of an axis, stretched to its old length by linear
    interpolation.
    """
    length = grey.shape[axis]
    position = np.linspace(share * (length - 1), (1 - share) * (length - 1), length)
    left = np.minimum(position.astype(np.intp), length - 2)
    shape = [1] * grey.ndim
    shape[axis] = length
    right_part = (position - left).astype(np.float32).reshape(shape)
    left_pixels = grey.take(left, axis)
    right_pixels = grey.take(left + 1, axis)
    return np.asarray((1 - right_part) * left_pixels + right_part * right_pixels)


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
        alterations = {site: Alteration() for site in sites}
        for kind in fields(self):
            for site, value in self._by_site(kind.name).items():
                if site not in alterations:
                    raise unknown("sites", site, sites)
                alterations[site] = replace(alterations[site], **{kind.name: value})
        unchanged = Alteration()
        return {site: change for site, change in alterations.items() if change != unchanged}

    def check(self) -> None:
        """Refuse what cannot be read, before the sites are known."""
        for kind in fields(self):
            self._by_site(kind.name)

    def _by_site(self, kind: str) -> dict[str, float]:
        """How much of one kind of alteration each site gets."""
        setting = f"corruption.{kind}"
        example = "'C4=0.3, C2=1' (site = number)"
        low, high = ALTERATION_BOUNDS[kind]
        values = parse_pairs(getattr(self, kind), _number, setting=setting, example=example)
        for value in values.values():
            if not low <= value <= high:
                raise UserError(f"{setting} must be from {low:g} to {high:g}, not {value:g}")
        return values


def _number(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text):
        raise ValueError(text)
    return float(text)


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
    """The data set with each site's data altered; `rows` are all of a site, `trained_on` those it
    trains on.

    The images are copied into memory. What is left to chance depends on the seed and the site's
    place only.
    """
    if not alterations:
        return CorruptedDataset(dataset, {})
    images = np.array(dataset.images)
    values = np.array(dataset.labels.values)
    for number, (site, of_site) in enumerate(rows.items()):
        alteration = alterations.get(site, Alteration())
        if alteration.of_images:
            rng = np.random.default_rng([seed, number, 0])
            images[of_site] = alteration.altered_images(images[of_site], rng)
        if alteration.flip:
            rng = np.random.default_rng([seed, number, 1])
            turned = _turned_labels(dataset.labels, trained_on[site], alteration.flip, rng)
            values[trained_on[site]] ^= turned.astype(values.dtype)
    altered = replace(dataset, images=images, labels=replace(dataset.labels, values=values))
    return _with_views(altered, alterations, list(rows), seed)


def _turned_labels(
    labels: Labels, rows: Rows, rate: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """(rows, findings): which labels are turned round, each known one with this probability."""
    turned = rng.random((len(rows), labels.values.shape[1])) < rate
    if labels.known is not None:
        turned &= labels.known[rows]
    return turned


def _with_views(
    dataset: Dataset, alterations: Mapping[str, Alteration], sites: Sequence[str], seed: int
) -> CorruptedDataset:
    """With one copy of the test images, in no split, for every site that has other images than the
    rest.
    """
    test = dataset.rows["test"]
    end = len(dataset.images)
    images = [dataset.images]
    rows = [np.arange(end)]
    names = [dataset.labels.names]
    views: dict[str, Rows] = {}
    for number, site in enumerate(sites):
        if site not in alterations or not alterations[site].of_images:
            continue
        rng = np.random.default_rng([seed, number, 2])
        images.append(alterations[site].altered_images(dataset.images[test], rng))
        rows.append(test)
        of_view = [f"{name} as at {site}" for name in dataset.labels.names[test].tolist()]
        names.append(np.array(of_view, dtype=np.str_))
        views[site] = end + np.arange(len(test))
        end += len(test)
    if not views:
        return CorruptedDataset(dataset, {})
    labels = replace(dataset.labels.take(np.concatenate(rows)), names=np.concatenate(names))
    return CorruptedDataset(replace(dataset, images=np.concatenate(images), labels=labels), views)
