"""A run's model for use elsewhere: ONNX, a MONAI bundle, safetensors, and a model card. Each format is checked.

Every format is written to a folder of its own and applied to all test images; a probability that differs by more than
`TOLERANCE` from the run's own model stops the export.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import RunFailed, UserError, unknown
from feddraw.experiment.run_preparation import PreparedData, open_experiment_data, prepare_client_data
from feddraw.experiment.trained_model import TrainedModel, load_trained
from feddraw.export import monai_bundle, onnx_file, safetensors_file
from feddraw.export.graph import Scorer
from feddraw.export.model_card import model_card
from feddraw.system.file_writing import make_folder, make_subfolder, write_json, write_whole

Progress = Callable[[str, int, int], None]
Grey = NDArray[np.uint8]

FORMATS = {"onnx": onnx_file, "monai": monai_bundle, "safetensors": safetensors_file}
TOLERANCE = 1e-5  # largest difference of a probability from the run's own model
CHUNK = 256  # images at a time


@dataclass(frozen=True)
class Check:
    """How far an exported model is from the run's own."""

    format: str
    images: int
    test_images: bool  # or random ones, where the run's data are not here
    difference: float  # the largest of any probability

    @property
    def words(self) -> str:
        kind = "test images" if self.test_images else "random images"
        return f"{self.format}: largest difference of a probability {self.difference:.1e} on {self.images:,} {kind}"


@dataclass(frozen=True)
class Export:
    """What was written where, and how it was checked."""

    folder: Path
    checks: tuple[Check, ...]
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
    progress: Progress | None = None,
) -> Export:
    """Write a run's model in some formats, each checked on every test image, with a model card."""
    for name in formats:
        if name not in FORMATS:
            raise unknown("formats", name, FORMATS)
        FORMATS[name].check_installed()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already used: choose another folder with --out")
    trained = load_trained(run, model, trust=trust)
    say = progress or (lambda what, done, total: None)
    data, note = _data(trained, say)
    images = (
        CheckedImages(data.dataset.images, data.dataset.rows["test"]) if data else random_images(trained.recipe.size)
    )
    expected = images.scored(trained.scores, "scoring with the run's model", say)
    make_folder(out)
    checks = []
    for name in formats:
        make_subfolder(out / name)
        scorer = FORMATS[name].write(trained, out / name)
        found = images.scored(scorer, f"checking {name}", say)
        checks.append(Check(name, len(images.rows), data is not None, _largest(found, expected)))
        if not checks[-1].difference <= TOLERANCE:
            raise RunFailed(f"{checks[-1].words}, more than {TOLERANCE:g}: do not use {out / name}")
    card = model_card(trained, data, [check.words for check in checks], names=names, licence=licence)
    write_whole(out / "MODEL_CARD.md", card.encode())
    write_json(out / "check.json", {"model": model, "checks": [vars(check) for check in checks]})
    return Export(out, tuple(checks), note)


def _data(trained: TrainedModel, say: Progress) -> tuple[PreparedData | None, str]:
    """The run's images and who had which, or why they are not here."""
    try:
        data = prepare_client_data(trained.experiment, open_experiment_data(trained.experiment, say))
        if data.partition.sha256 != trained.run.partition.get("sha256"):
            raise UserError("the clients' images are not those of the run")
        return data, ""
    except UserError as why:
        return None, f"the run's data cannot be opened here ({why}), so the check used random images"


@dataclass(frozen=True, eq=False)
class CheckedImages:
    """Prepared images to check on, read chunk by chunk: all test images may be more than the memory holds."""

    images: Grey
    rows: NDArray[np.intp]

    def scored(self, scorer: Scorer, what: str, say: Progress) -> NDArray[np.float32]:
        """The probabilities of all of them."""
        blocks = []
        for start in range(0, len(self.rows), CHUNK):
            say(what, start, len(self.rows))
            blocks.append(scorer(np.asarray(self.images[self.rows[start : start + CHUNK]])))
        say(what, len(self.rows), len(self.rows))
        return np.concatenate(blocks)


def random_images(size: int) -> CheckedImages:
    images = np.random.default_rng(0).integers(0, 256, (CHUNK, size, size), dtype=np.uint8)
    return CheckedImages(images, np.arange(CHUNK))


def _largest(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    if found.shape != expected.shape or not np.isfinite(found).all():
        return math.inf
    return float(np.abs(found.astype(np.float64) - expected).max())
