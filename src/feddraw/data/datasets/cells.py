"""Synthetic blood cells: stained cells of five kinds in colour, each image of exactly one, of no
patient, that need no download.

Every site stains in its own way and sees one kind more often than the others; every patient differs
a little from the rest of the site, and all images of a patient are in one split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import CLASSES_TASK, SPLITS, Dataset, Labels, Split
from feddraw.data.imaging import in_channels
from feddraw.errors import UserError, at_least, not_negative
from feddraw.system.progress import Progress

SYNTHETIC = True
SMALLEST_CELL, LARGEST_CELL = 16, 224  # pixels of an image
MOST_CELLS = 100_000  # images
IMAGES_PER_PATIENT = 5
CELL_BLOCK = 64  # images drawn together
CELL_MEAN, CELL_STD = 0.87, 0.17  # of level / 255

CELL_KINDS = ("erythrocyte", "lymphocyte", "neutrophil", "eosinophil", "platelet")
# Radius of the cell, of a lobe of its nucleus and of the circle on which the lobes lie, in halves
# of the image; the number of lobes.
RADIUS = np.array([0.55, 0.60, 0.68, 0.68, 0.26], np.float32)
NUCLEUS = np.array([0.0, 0.46, 0.22, 0.26, 0.0], np.float32)
LOBES_APART = np.array([0.0, 0.0, 0.30, 0.27, 0.0], np.float32)
LOBES = np.array([0, 1, 3, 2, 0])
MOST_LOBES = 3
# How much of red, green and blue the parts take away: optical densities.
BODY_STAIN = np.array(
    [
        [0.15, 0.55, 0.55],
        [0.35, 0.30, 0.08],
        [0.10, 0.25, 0.15],
        [0.10, 0.70, 0.95],
        [0.50, 0.75, 0.25],
    ],
    np.float32,
)
NUCLEUS_STAIN = np.array([0.90, 1.30, 0.45], np.float32)
GROUND_STAIN = np.array([0.04, 0.08, 0.07], np.float32)
PALE_CENTRE = np.array([0.7, 0, 0, 0, 0], np.float32)  # share of stain that its middle lacks


@dataclass(frozen=True)
class Smear:
    """Who the images are of."""

    sites: NDArray[np.intp]
    patients: NDArray[np.intp]  # within the split
    stains: NDArray[np.float32]  # (images, 3), by what densities are multiplied


def cells(  # noqa: PLR0913, PLR0917 - the settings of the data set
    size: int = 32,
    channels: int = 3,
    train: int = 800,
    validation: int = 200,
    test: int = 400,
    sites: int = 4,
    skew: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Dataset:
    """Synthetic stained blood cells in colour, of five classes, with sites and patients.

    `skew` is by how much a site sees its most common kind more often than each other kind: 0 not at
    all, 1 twice as often. With `channels = 1` the images are grey.
    """
    check_cell_settings(channels, skew, size=size, train=train, validation=validation, test=test)
    at_least("cells sites", sites, 1)
    not_negative("cells seed", seed)
    total = train + validation + test
    shape = (total, size, size) if channels == 1 else (total, size, size, 3)
    images = np.empty(shape, np.uint8)
    kinds = np.empty(total, np.intp)
    names: list[str] = []
    patients: list[str] = []
    of_sites: list[str] = []
    rows: dict[Split, NDArray[np.intp]] = {}
    start = 0
    for number, (split, count) in enumerate(zip(SPLITS, (train, validation, test), strict=True)):
        rows[split] = np.arange(start, start + count)
        smear = draw_smear(count, sites, np.random.default_rng([seed, number]))
        for first in range(0, count, CELL_BLOCK):
            block = np.arange(first, min(first + CELL_BLOCK, count))
            rng = np.random.default_rng([seed, number, first])
            of_block = draw_kinds(smear.sites[block], skew, rng)
            drawn = draw_cells(of_block, smear.stains[block], size, rng)
            images[start + block] = [in_channels(image, channels) for image in drawn]
            kinds[start + block] = of_block
            if progress:
                progress("drawing cells", start + int(block[-1]) + 1, total)
        names += [f"cell-{split}-{image:06d}" for image in range(count)]
        patients += [f"{split}-{patient:05d}" for patient in smear.patients.tolist()]
        of_sites += [f"Lab {site + 1}" for site in smear.sites.tolist()]
        start += count
    labels = Labels(
        values=np.eye(len(CELL_KINDS), dtype=np.uint8)[kinds],
        findings=CELL_KINDS,
        names=np.array(names, dtype=np.str_),
        patients=np.array(patients, dtype=np.str_),
        sites=np.array(of_sites, dtype=np.str_),
        task=CLASSES_TASK,
    )
    return Dataset("cells", images, labels, rows, CELL_MEAN, CELL_STD, synthetic=SYNTHETIC)


def check_cell_settings(channels: int, skew: float, **numbers: int) -> None:
    """One line that says which value cannot be drawn."""
    if channels not in (1, 3):
        raise UserError(f"data.channels must be 1 (grey) or 3 (colour), not {channels}")
    if not (isinstance(skew, int | float) and math.isfinite(skew) and skew >= 0):
        raise UserError(f"cells skew must be a number of zero or more, not {skew!r}")
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UserError(f"cells {name} must be a whole number of zero or more, not {value!r}")
    if not SMALLEST_CELL <= numbers["size"] <= LARGEST_CELL:
        raise UserError(
            f"cells have {SMALLEST_CELL} to {LARGEST_CELL} pixels, not {numbers['size']}"
        )
    if sum(numbers[split] for split in SPLITS) > MOST_CELLS:
        raise UserError(f"at most {MOST_CELLS:,} cells are drawn: ask for fewer")


def draw_smear(images: int, sites: int, rng: np.random.Generator) -> Smear:
    """Who the images of a split are of. A site's stain is the same in every split."""
    patients = np.arange(images) // IMAGES_PER_PATIENT
    of_sites = patients % sites
    of_site = np.array(
        [np.random.default_rng([site, 17]).uniform(0.75, 1.3, 3) for site in range(sites)]
    )
    of_patient = rng.uniform(0.92, 1.08, (patients.max(initial=0) + 1, 3))
    return Smear(of_sites, patients, (of_site[of_sites] * of_patient[patients]).astype(np.float32))


def draw_kinds(sites: NDArray[np.intp], skew: float, rng: np.random.Generator) -> NDArray[np.intp]:
    """Which kind each image shows: one of them more often, by its site."""
    weights = np.ones((len(sites), len(CELL_KINDS)))
    weights[np.arange(len(sites)), sites % len(CELL_KINDS)] += skew
    limits = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    drawn = (rng.random((len(sites), 1)) > limits).sum(axis=1)
    return np.asarray(np.minimum(drawn, len(CELL_KINDS) - 1))


def draw_cells(
    kinds: NDArray[np.intp], stains: NDArray[np.float32], size: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """(images, size, size, 3): one cell each, somewhere near the middle."""
    number = len(kinds)

    def around(mean: float, spread: float) -> NDArray[np.float32]:
        """A random number for each image, to be spread over its pixels."""
        drawn = mean + spread * rng.uniform(-1, 1, (number, 1, 1))
        return np.asarray(drawn, np.float32)

    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j].astype(np.float32)
    right = around(0, 0.15)
    down = around(0, 0.15)
    radius = RADIUS[kinds][:, None, None] * around(1, 0.3)
    oval = around(1, 0.12)
    distance = np.hypot((x - right) * oval, (y - down) / oval)
    body = _disc(distance, radius)
    pale = PALE_CENTRE[kinds][:, None, None] * np.exp(-((distance / (0.5 * radius)) ** 2))
    angle = around(0, math.pi)
    nucleus = np.zeros_like(body)
    for lobe in range(MOST_LOBES):
        turn = angle + 2 * math.pi * lobe / np.maximum(LOBES[kinds], 1)[:, None, None]
        apart = LOBES_APART[kinds][:, None, None] * around(1, 0.15)
        from_lobe = np.hypot(x - right - apart * np.cos(turn), y - down - apart * np.sin(turn))
        disc = _disc(from_lobe, NUCLEUS[kinds][:, None, None] * around(1, 0.12))
        nucleus = np.maximum(nucleus, disc * (lobe < LOBES[kinds])[:, None, None])
    strength = around(0.75, 0.45)  # of faint cells little is seen
    tint = rng.uniform(0.6, 1.4, (number, 1, 1, 3)).astype(np.float32)
    granules = 1 + 0.25 * rng.standard_normal(body.shape, dtype=np.float32)
    stained = (body * (1 - pale) * (1 - nucleus) * granules)[..., None]
    density = (
        GROUND_STAIN
        + stained * BODY_STAIN[kinds][:, None, None, :]
        + nucleus[..., None] * NUCLEUS_STAIN
    )
    light = np.exp(-density * strength[..., None] * tint * stains[:, None, None, :])
    noise = 0.06 * rng.standard_normal(light.shape, dtype=np.float32)
    return np.asarray(np.rint(255 * np.clip(light + noise, 0, 1)).astype(np.uint8))


def _disc(distance: NDArray[np.float32], radius: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 inside and 0 outside, with a soft edge; nothing where the radius is 0."""
    inside = np.clip((radius - distance) / 0.08 + 0.5, 0, 1)
    return np.asarray(inside * (radius > 0))
