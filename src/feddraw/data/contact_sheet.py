"""A contact sheet: some images of any data set in a grid, with their findings underneath."""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from feddraw.data.dataset import Dataset
from feddraw.errors import UserError


def varied_examples(values: NDArray[np.uint8], count: int) -> list[int]:
    """Up to `count` images, taken in turn from those with no finding and those with each, so that
    rare ones show.
    """
    groups = [np.flatnonzero(~values.any(axis=1)), *(np.flatnonzero(column) for column in values.T)]
    turns = zip_longest(*(group[:count].tolist() for group in groups))
    order = dict.fromkeys(image for turn in turns for image in turn if image is not None)
    return list(islice(order, count))


def findings_caption(truth: NDArray[np.integer[Any]], classes: tuple[str, ...]) -> str:
    """The findings, one per line; an image without one has no finding only if all its labels are
    known.
    """
    present = [name for name, label in zip(classes, truth, strict=True) if label == 1]
    return "\n".join(present) or ("no finding" if (truth == 0).all() else "none known")


def contact_sheet(dataset: Dataset, rows: int, columns: int) -> Figure:
    """Images from the start of the data set, varied in their findings; synthetic ones are called
    so.
    """
    if rows < 1 or columns < 1:
        raise UserError(
            f"a sheet of {rows} rows and {columns} columns is empty: give at least one of each"
        )
    figure = Figure(figsize=(1.7 * columns, 2.15 * rows + 0.5), layout="constrained")
    synthetic = ": synthetic images of no patient" if dataset.synthetic else ""
    figure.suptitle(f"{dataset.name}, {dataset.size} px{synthetic}")
    for axes in (grid := figure.subplots(rows, columns, squeeze=False)).flat:
        axes.set_axis_off()
    truth = dataset.labels.truth(np.arange(len(dataset.labels)))
    for axes, image in zip(
        grid.flat, varied_examples(dataset.labels.values, rows * columns), strict=False
    ):
        axes.imshow(dataset.images[image], cmap="gray", vmin=0, vmax=255)  # colours as they are
        axes.set_title(
            findings_caption(truth[image], dataset.findings), y=0, va="top", pad=-4, fontsize=7
        )
    return figure
