"""Phantom radiographs: synthetic chest images with the paper's five findings, of no patient, that
need no download.

How common each finding is, how often they come together, and how many images have none is that of
the paper's Table 1.
"""

from __future__ import annotations

import math
import os
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import SPLITS, Dataset, Labels, Split
from feddraw.data.datasets._phantom_anatomy import draw_chests
from feddraw.data.finding_names import PAPER_FINDINGS
from feddraw.errors import UserError, unknown
from feddraw.system.progress import Progress

CHEST_RADIOGRAPHS = True
SYNTHETIC = True
SMALLEST_PHANTOM, LARGEST_PHANTOM = 28, 224  # pixels
LABEL_NOISE = 0.05
PHANTOM_BLOCK = 16  # images drawn together: few enough for the processor's cache
PHANTOM_MEAN, PHANTOM_STD = 0.545, 0.27  # of grey / 255, over both mixes

# Images with each finding, among all images (Table 1 of the paper).
TABLE_1 = {
    "chestmnist": ((7996, 1690, 9261, 1950, 3263), 78468),
    "chexpert": ((59583, 61493, 76899, 23385, 12983), 191027),
}
# How strongly each finding follows an illness that all share: effusion goes with every other. The
# factor of a mix is solved for its number of images with no finding, 59,438 and 51,052.
SHARED = np.array([0.45, 0.25, 0.75, 0.45, 0.40])
SHARED_FACTOR = {"chestmnist": 1.0332, "chexpert": 0.7112}


def draw_phantom_findings(images: int, mix: str, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(images, 5): which findings are there, as common and as often together as in the mix."""
    counts, total = TABLE_1[mix]
    limit = [NormalDist().inv_cdf(1 - count / total) for count in counts]
    shared = SHARED * SHARED_FACTOR[mix]
    of_finding = np.sqrt(1 - shared**2) * rng.standard_normal((images, len(PAPER_FINDINGS)))
    of_illness = shared * rng.standard_normal((images, 1))
    return of_finding + of_illness > limit


def draw_phantom_block(
    seed: tuple[int, int, int], size: int, mix: str, label_noise: float
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """`PHANTOM_BLOCK` images and their labels. A wrong row of labels is that of another patient."""
    rng = np.random.default_rng(seed)
    seen = draw_phantom_findings(PHANTOM_BLOCK, mix, rng)
    other = draw_phantom_findings(PHANTOM_BLOCK, mix, rng)
    severity = seen * rng.random(seen.shape, dtype=np.float32)
    labels = np.where(rng.random((PHANTOM_BLOCK, 1)) < label_noise, other, seen)
    return draw_chests(severity, size, rng), labels


def check_phantom_settings(mix: str, label_noise: float, **numbers: int) -> None:
    """One line that says which value cannot be drawn."""
    for name, value in numbers.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
            raise UserError(f"phantom {name} must be a whole number of zero or more, not {value!r}")
    if not SMALLEST_PHANTOM <= numbers["size"] <= LARGEST_PHANTOM:
        raise UserError(
            f"phantoms have {SMALLEST_PHANTOM} to {LARGEST_PHANTOM} pixels, not {numbers['size']}"
        )
    if mix not in TABLE_1:
        raise unknown("phantom mixes", str(mix), TABLE_1)
    images = sum(numbers[split] for split in SPLITS)
    # no limit where the machine cannot be asked for its memory
    memory = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if hasattr(os, "sysconf")
        else math.inf
    )
    if images * numbers["size"] ** 2 > memory:
        raise UserError(
            f"{images:,} phantoms of {numbers['size']} px do not fit in the memory: draw fewer, or"
            " smaller"
        )
    if not (isinstance(label_noise, int | float) and 0 <= label_noise < 0.5):
        raise UserError(
            f"phantom label_noise must be a share from 0 to less than 0.5, not {label_noise!r}"
        )


def phantom(
    size: int = 32,
    mix: str = "chestmnist",
    train: int = 4000,
    validation: int = 1000,
    test: int = 2000,
    label_noise: float = LABEL_NOISE,
    seed: int = 0,
    progress: Progress | None = None,
) -> Dataset:
    """Synthetic radiographs drawn from formulas; no download, the same bits for the same seed.

    `mix` gives how common findings are; `label_noise` is the share of images that carry the labels
    of some other patient, which leaves that as it is. A longer split begins with the images of a
    shorter one.
    """
    check_phantom_settings(
        mix, label_noise, size=size, train=train, validation=validation, test=test, seed=seed
    )
    total = train + validation + test
    rows: dict[Split, NDArray[np.intp]] = {
        "train": np.arange(train),
        "validation": np.arange(train, train + validation),
        "test": np.arange(train + validation, total),
    }
    images = np.empty((total, size, size), np.uint8)
    values = np.empty((total, len(PAPER_FINDINGS)), np.uint8)
    # Freed at once: malloc then keeps arrays of this size, and drawing is twice as fast.
    np.empty(2**24, np.uint8)
    ready = 0
    for number, of_split in enumerate(rows.values()):
        for block, start in enumerate(range(0, len(of_split), PHANTOM_BLOCK)):
            chosen = of_split[start : start + PHANTOM_BLOCK]
            drawn, present = draw_phantom_block((seed, number, block), size, mix, label_noise)
            images[chosen] = drawn[: len(chosen)]
            values[chosen] = present[: len(chosen)]
            ready += len(chosen)
            if progress:
                progress("drawing phantoms", ready, total)
    names = np.array([f"phantom-{number:06d}" for number in range(total)], dtype=np.str_)
    return Dataset(
        "phantom",
        images,
        Labels(values, PAPER_FINDINGS, names),
        rows,
        mean=PHANTOM_MEAN,
        std=PHANTOM_STD,
        synthetic=SYNTHETIC,
    )
