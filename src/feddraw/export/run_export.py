"""A run's model for use elsewhere: ONNX, a MONAI bundle, safetensors, and a model card. Each format
is checked.

Every format is written to a folder of its own and applied to all test images; a probability that
differs by more than `TOLERANCE` from the run's own model stops the export.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import RunFailed, UserError, unknown
from feddraw.experiment.run_preparation import (
    PreparedData,
    open_experiment_data,
    prepare_client_data,
)
from feddraw.experiment.trained_model import TrainedModel, load_trained
from feddraw.export.exported_graph import Scorer
from feddraw.export.model_card import model_card
from feddraw.export.monai_bundle import write_monai_bundle
from feddraw.export.onnx_file import write_onnx
from feddraw.export.safetensors_file import write_safetensors
from feddraw.system.file_writing import make_folder, make_subfolder, write_json, write_whole
from feddraw.system.machine import installed
from feddraw.system.progress import Progress, no_progress

FORMATS = {"onnx": write_onnx, "monai": write_monai_bundle, "safetensors": write_safetensors}
NEEDED_PACKAGES = {"onnx": ("onnx", "onnxruntime"), "monai": ("MONAI", "fire")}
TOLERANCE = 1e-5  # largest difference of a probability from the run's own model
IMAGES_AT_A_TIME = 256


@dataclass(frozen=True)
class ExportCheck:
    """How far an exported model is from the run's own."""

    format: str
    images: int
    test_images: bool  # or random ones, where the run's data are not here
    difference: float  # the largest of any probability

    @property
    def words(self) -> str:
        kind = "test images" if self.test_images else "random images"
        return (
            f"{self.format}: largest difference of a probability {self.difference:.1e} on"
            f" {self.images:,} {kind}"
        )


@dataclass(frozen=True)
class Export:
    """What was written where, and how it was checked."""

    folder: Path
    checks: tuple[ExportCheck, ...]
    note: str  # why the test images could not be used; empty if they were


def export_run(
    run: Path,
    out: Path,
    *,
    formats: Sequence[str] = tuple(FORMATS),
    model: str = "last",
    names: bool = False,
    licence: str = "",
    trust: bool = False,
    progress: Progress = no_progress,
) -> Export:
    """Write a run's model in some formats, each checked on every test image, with a model card."""
    _check_formats(formats)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already used: choose another folder with --out")
    trained = load_trained(run, model, trust=trust)
    data, note = _data_of_run(trained, progress)
    if data is not None:
        images = CheckImages(data.dataset.images, data.dataset.rows["test"], of_test=True)
    else:
        images = random_images(trained.recipe.shape)
    expected = images.scored(trained.scores, "scoring with the run's model", progress)
    make_folder(out)
    checks = []
    for name in formats:
        make_subfolder(out / name)
        scorer = FORMATS[name](trained, out / name)
        scores = images.scored(scorer, f"checking {name}", progress)
        difference = _largest_difference(scores, expected)
        check = ExportCheck(name, len(images.rows), images.of_test, difference)
        if not check.difference <= TOLERANCE:
            raise RunFailed(f"{check.words}, more than {TOLERANCE:g}: do not use {out / name}")
        checks.append(check)
    sentences = [check.words for check in checks]
    card = model_card(trained, data, sentences, names=names, licence=licence, progress=progress)
    write_whole(out / "MODEL_CARD.md", card.encode())
    write_json(out / "check.json", {"model": model, "checks": [asdict(check) for check in checks]})
    return Export(out, tuple(checks), note)


def _check_formats(formats: Sequence[str]) -> None:
    """Refuse a format that we do not know, or whose packages are not installed."""
    if not formats:
        raise UserError(f"--formats names no format: choose from {', '.join(FORMATS)}")
    for name in formats:
        if name not in FORMATS:
            raise unknown("formats", name, FORMATS)
        needed = NEEDED_PACKAGES.get(name, ())
        if not all(installed(package.lower()) for package in needed):
            raise UserError(
                f"the format {name} needs {' and '.join(needed)}: pip install 'feddraw[export]'"
            )


def _data_of_run(trained: TrainedModel, progress: Progress) -> tuple[PreparedData | None, str]:
    """The run's images and who had which, or why they are not here."""
    try:
        dataset = open_experiment_data(trained.experiment, progress)
        data = prepare_client_data(trained.experiment, dataset)
        if data.partition.sha256 != trained.run.partition.get("sha256"):
            raise UserError("the clients' images are not those of the run")
    except UserError as why:
        note = f"the run's data cannot be opened here ({why}), so the check used random images"
        return None, note
    return data, ""


@dataclass(frozen=True, eq=False)
class CheckImages:
    """Prepared images to check on, read chunk by chunk: all test images may be more than the memory
    holds.
    """

    images: NDArray[np.uint8]
    rows: NDArray[np.intp]
    of_test: bool  # or random ones

    def scored(self, scorer: Scorer, what: str, progress: Progress) -> NDArray[np.float32]:
        """The probabilities of all of them, (images, findings)."""
        blocks = []
        for start in range(0, len(self.rows), IMAGES_AT_A_TIME):
            progress(what, start, len(self.rows))
            rows = self.rows[start : start + IMAGES_AT_A_TIME]
            blocks.append(scorer(np.asarray(self.images[rows])))
        progress(what, len(self.rows), len(self.rows))
        return np.concatenate(blocks)


def random_images(shape: tuple[int, ...]) -> CheckImages:
    """Noise in the shape of an image, for a check where the run's images are not here."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (IMAGES_AT_A_TIME, *shape), dtype=np.uint8)
    return CheckImages(images, np.arange(IMAGES_AT_A_TIME), of_test=False)


def _largest_difference(scores: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    if scores.shape != expected.shape or not np.isfinite(scores).all():
        return math.inf
    return float(np.abs(scores.astype(np.float64) - expected).max())
