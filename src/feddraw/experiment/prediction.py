"""New images through a trained model: found in folders and tables, decoded and scored by several
processes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.image_facts import dicom_modality, is_in_colour
from feddraw.data.image_folder import files_below, require_pydicom_for
from feddraw.data.image_summary import EMPTY, FLAT
from feddraw.data.imaging import BadImage, has_colours
from feddraw.data.own_tables import path_inside_folder
from feddraw.data.table_columns import path_column
from feddraw.errors import UserError
from feddraw.experiment.trained_model import TrainedModel, load_trained
from feddraw.system.csv_cells import csv_text
from feddraw.system.progress import Progress, no_progress
from feddraw.system.workers import in_workers_if_they_pay, limited_workers
from feddraw.tasks import Task
from feddraw.text import join_names, safe_line

SCORED_CHUNK = 64  # images that a worker takes at a time
MOSTLY = 0.99  # share of training images in colour from which on a grey one is unlike them
TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageToPredict:
    """An image to score, by the name it has in the output."""

    name: str
    path: Path | None  # none where a table's row has no usable path


@dataclass(frozen=True, eq=False)
class Prediction:
    """Scores of images, and why some have none."""

    images: tuple[ImageToPredict, ...]
    task: Task
    findings: tuple[str, ...]
    scores: NDArray[np.float32]  # (images, findings), not a number where an image cannot be read
    calls: NDArray[np.float64]  # 1, 0, or not a number
    problems: dict[int, str]
    doubts: dict[int, str] = field(default_factory=dict)  # of images that are scored all the same

    def csv(self) -> str:
        """One row per image: the task's columns, such as each finding's score and call, and in the
        last column why there are none, or why they may mean nothing.
        """
        header = ["image", *self.task.prediction_header(self.findings), "problem"]
        return csv_text([header, *map(self._row, range(len(self.images)))])

    def _row(self, place: int) -> list[object]:
        cells = self.task.prediction_cells(self.findings, self.scores[place], self.calls[place])
        return [
            self.images[place].name,
            *cells,
            self.problems.get(place) or self.doubts.get(place, ""),
        ]


def find_images_to_predict(
    inputs: Sequence[Path], root: Path | None = None, column: str = ""
) -> list[ImageToPredict]:
    """Image files as they were named: files themselves, all in a folder and below it, or the rows
    of a table.
    """
    to_predict: list[ImageToPredict] = []
    for path in inputs:
        if path.is_dir():
            files = files_below(path)
            to_predict += [ImageToPredict(str(file), file) for file in files.images]
            for sentence in files.left_out_in_words():
                log.warning("%s: %s", safe_line(str(path)), safe_line(sentence))
        elif path.name.lower().endswith(TABLE_SUFFIXES):
            to_predict += _images_in_table(path, root, column)
        elif path.exists():
            to_predict.append(ImageToPredict(str(path), path))
        else:
            raise UserError(f"no file or folder {path}")
    if not to_predict:
        raise UserError(f"no PNG, JPEG or DICOM file in {', '.join(map(str, inputs))}")
    require_pydicom_for(image.path for image in to_predict if image.path is not None)
    return to_predict


def _images_in_table(path: Path, root: Path | None, column: str) -> Iterator[ImageToPredict]:
    """The images that a table names, none of them outside its folder."""
    sheet = CsvSheet.of(path, columns=1)
    place = path_column(sheet, column)
    if place is None:
        there = ", ".join(sheet.header)
        raise UserError(
            f"{path} has no column of image paths; it has {there} (name it with --column)"
        )
    folder = path.parent if root is None else root
    for _, fields in sheet.rows():
        name = path_inside_folder(fields[place], folder)
        yield ImageToPredict(fields[place], None if name is None else folder / name)


def predict_images(
    run: Path,
    images: Sequence[ImageToPredict],
    model: str = "last",
    *,
    trust: bool = False,
    strict: bool = False,
    workers: int = 0,
    progress: Progress | None = None,
) -> Prediction:
    """Score images as the run's evaluation does; one that cannot be read is told, and the others
    are done.

    One that is unlike the training images is scored and told; if `strict`, it is not scored.
    """
    trained = _loaded_model(run, model, trust)
    say = progress or no_progress
    paths = tuple(image.path for image in images)
    job = ImageScoring(run, model, trust, strict, paths)
    scores = np.full((len(images), len(trained.findings)), np.nan, np.float32)
    problems: dict[int, str] = {}
    doubts: dict[int, str] = {}
    done = 0
    say("scoring images", 0, len(images))
    starts = range(0, len(images), SCORED_CHUNK)
    for start, chunk in job.chunks(starts, limited_workers(workers)):
        scores[start : start + len(chunk.scores)] = chunk.scores
        problems |= {start + row: why for row, why in chunk.unread.items()}
        doubts |= {start + row: why for row, why in chunk.doubts.items()}
        done += len(chunk.scores)
        say("scoring images", done, len(images))
    return Prediction(
        images=tuple(images),
        task=trained.task,
        findings=trained.findings,
        scores=trained.recalibrated(scores),
        calls=trained.calls(scores),
        problems=dict(sorted(problems.items())),
        doubts=dict(sorted(doubts.items())),
    )


@lru_cache(maxsize=1)
def _loaded_model(run: Path, model: str, trust: bool) -> TrainedModel:
    return load_trained(run, model, trust=trust)


@dataclass(frozen=True, eq=False)
class ScoredChunk:
    """Some images in turn; what is said of them is by row."""

    scores: NDArray[np.float32]  # as the network gives them
    unread: dict[int, str]
    doubts: dict[int, str]


@dataclass(frozen=True)
class ImageScoring:
    """All that a worker needs to score chunks of images; it loads the model itself."""

    run: Path
    model: str
    trust: bool
    strict: bool
    paths: tuple[Path | None, ...]

    def chunks(self, starts: Sequence[int], workers: int) -> Iterator[tuple[int, ScoredChunk]]:
        """Each chunk's start with its scores, as they get ready; the time of the first says if
        other processes pay.
        """
        return in_workers_if_they_pay(
            self,
            starts,
            workers,
            doing="scored images",
            then="no scores were written: start again",
        )

    def __call__(self, start: int) -> ScoredChunk:
        """Decode, prepare and score a chunk."""
        trained = _loaded_model(self.run, self.model, self.trust)
        paths = self.paths[start : start + SCORED_CHUNK]
        images = np.zeros((len(paths), *trained.recipe.shape), np.uint8)
        unread: dict[int, str] = {}
        doubts: dict[int, str] = {}
        for row, path in enumerate(paths):
            try:
                if path is None:
                    raise BadImage("not a path inside the table's folder, or one with '..' in it")
                images[row] = trained.recipe.of_file(path)
                if doubt := why_in_doubt(trained, path, images[row]):
                    doubts[row] = doubt
            except BadImage as why:
                unread[row] = str(why)
        if self.strict:
            unread |= doubts
            doubts = {}
        scores = trained.network_scores(images)
        scores[list(unread)] = np.nan
        return ScoredChunk(scores, unread, doubts)


def why_in_doubt(trained: TrainedModel, path: Path, prepared: NDArray[np.uint8]) -> str:
    """In what way an image is not of the kind that a model was trained on; empty if it is."""
    doubts = []
    known = trained.trained_on
    modality = dicom_modality(path)
    if known is not None and known.modalities and modality and modality not in known.modalities:
        doubts.append(
            f"its modality is {modality}, the model was trained on {join_names(known.modalities)}"
        )
    if trained.recipe.channels == 1:
        if is_in_colour(path):
            doubts.append("it is in colour, the model was trained on grey images")
    elif known is not None and known.in_colour > MOSTLY and not has_colours(prepared):
        doubts.append("it is grey, the model was trained on images in colour")
    if known is not None:
        doubts += known.doubts(prepared)
    elif int(np.ptp(prepared)) <= FLAT:
        doubts.append(EMPTY)
    return "; ".join(doubts)
