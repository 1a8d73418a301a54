"""A seventh of studies/paper-frozen.toml on the real label tables and made-up features: what
`--dry-run` predicts of it, and what it takes.

    FEDDRAW_CHEXPERT_LABELS=chexpert_train.csv.gz FEDDRAW_DATA=FOLDER \\
      python -m benchmarks.paper_frozen [--shard 1/7]

These are 95 of 660 runs, with all twelve scenarios and all eleven methods.

The label tables decide how many images each client of each scenario has, and so how many steps a
run takes; which numbers the features hold does not matter. CheXpert's table lies in the wheel of
torchxrayvision, `chestmnist_labels.npz` has the labels of ChestMNIST in MedMNIST's layout. The
classifier gets 1,024 features, as that of DenseNet121.

Both sides are seconds of one processor: the prediction comes from steps that were timed by the
process's own clock, and the use is the user and system time of the worker that carried the runs
out, with its start. Waiting for other programs counts on neither side. Sharing caches with them
makes a step take longer on both, so steps are timed before and after the runs, and the mean
counts. The features are computed before, and count on neither side.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.speed.own_cache import cache_in
from feddraw.cli.progress_bars import counting_bar
from feddraw.cli.study_progress import follow_study
from feddraw.cli.terminal import console, print_json, status_line
from feddraw.data.dataset import Dataset, Labels
from feddraw.data.datasets.chexpert import read_chexpert
from feddraw.data.image_settings import ImagePreparation
from feddraw.data.npz_archive import NpzArchive
from feddraw.data.splits import rows_by_split
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.run_preparation import (
    initial_model,
    open_experiment_data,
    trained_builder,
    with_features,
)
from feddraw.study.cost import EVALUATED_IMAGES
from feddraw.study.plan import PlannedRun, data_key, read_study, shard_of
from feddraw.study.preflight import preflight
from feddraw.study.progress import StudyProgress
from feddraw.study.results_table import ResultTable
from feddraw.study.run_study import run_study
from feddraw.system.progress import Progress

STUDY = Path(__file__).parents[1] / "studies" / "paper-frozen.toml"
CHEXPERT_LABELS = "FEDDRAW_CHEXPERT_LABELS"
FOLDER = "FEDDRAW_DATA"

SHARD = "1/7"  # of every seventh run, all scenarios come up; 10 shares the factor 2 with twelve
SIDE = 8  # pixels of the made-up images
WIDTH = 1024  # features, as DenseNet121 gives its classifier
HERE = "benchmarks.paper_frozen"
MADE_UP = {
    "CHX-*.data": f"{HERE}:chexpert_labels",
    "CHM-*.data": f"{HERE}:chestmnist_labels",
    "data.size": SIDE,
    "model": f"{HERE}:made_up_features",
    "model.frozen": "body",
}


# ------------------------------------------------------------------- the data sets and the network


def chexpert_labels(how: ImagePreparation) -> Dataset:
    """The labels of CheXpert's training images, which the test and validation images borrow: they
    are in no table that may be had.
    """
    table = read_chexpert({0: _file_of(CHEXPERT_LABELS)})
    training = len(table.labels)
    validation, test = EVALUATED_IMAGES["chexpert"]
    borrowed = np.arange(validation + test) % training
    labels = table.labels.take(np.concatenate([np.arange(training), borrowed]))
    assert labels.patients is not None
    others = [f"evaluated {number}" for number in range(len(borrowed))]
    labels = replace(
        labels,
        names=np.concatenate([labels.names[:training], others]),
        patients=np.concatenate([labels.patients[:training], others]),
    )
    split = np.repeat([0, 1, 2], [training, validation, test])
    return _with_made_up_images("CheXpert's labels", labels, split, how.size)


def chestmnist_labels(how: ImagePreparation) -> Dataset:
    """The labels of all of ChestMNIST."""
    table = NpzArchive.open(_file_of(FOLDER) / "chestmnist_labels.npz").table("paper")
    return _with_made_up_images("ChestMNIST's labels", table.labels, table.split, how.size)


def _file_of(variable: str) -> Path:
    path = os.environ.get(variable, "")
    if not path or not Path(path).exists():
        raise UserError(f"{variable} does not say where the label table is: {path or 'not set'}")
    return Path(path)


def _with_made_up_images(
    name: str, labels: Labels, split: NDArray[np.integer[Any]], size: int
) -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (len(labels), size, size), np.uint8)
    return Dataset(name, images, labels, rows_by_split(name, split), synthetic=True)


def made_up_features(classes: int) -> nn.Module:
    """A body that makes as many numbers of an image as DenseNet121, and its classifier. The body is
    the same for every seed, as one with weights from a file is.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(1, WIDTH, SIDE), nn.Flatten())
    return nn.Sequential(body, nn.Linear(WIDTH, classes))


# -------------------------------------------------------------------------- predicted and measured


@dataclass(frozen=True)
class Comparison:
    """Seconds of a processor that some runs were predicted to take, and those that they took."""

    runs: int
    timed: tuple[float, float]  # predicted before and after the runs
    used: float  # by the worker that carried them out

    @property
    def predicted(self) -> float:
        return fmean(self.timed)

    @property
    def ratio(self) -> float:
        return self.used / self.predicted

    def table(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "predicted_processor_seconds": [round(seconds, 1) for seconds in self.timed],
            "used_processor_seconds": round(self.used, 1),
            "used_over_predicted": round(self.ratio, 3),
        }


def compare(runs: Sequence[PlannedRun], out: Path, progress: Progress | None = None) -> Comparison:
    """Predict what some runs take one after the other, carry them out in one worker, and predict it
    again.
    """
    _compute_features(runs, progress)
    predicted = _predicted_seconds(runs, out / "before")
    children = _seconds_of_ended_children()
    study = StudyProgress([planned.name for planned in runs], workers=1)
    table = ResultTable(out / "runs.csv")
    follow_study(lambda say: run_study(runs, out, 1, [table], say), study)
    if study.failed:
        raise RunFailed("; ".join(study.failed.values()))
    used = _seconds_of_ended_children() - children
    again = _predicted_seconds(runs, out / "after")
    return Comparison(len(runs), (predicted, again), used)


def _predicted_seconds(runs: Sequence[PlannedRun], out: Path) -> float:
    """What `--dry-run` says with one worker, of runs whose folders are not there."""
    with status_line("looking", stderr=True) as say:
        prediction = preflight(runs, out, workers=1, devices="", say=say)
    if prediction.obstacles:
        raise UserError("; ".join(prediction.obstacles))
    return prediction.seconds


def _compute_features(runs: Sequence[PlannedRun], progress: Progress | None) -> None:
    """Of all images of each data set."""
    firsts: dict[str, PlannedRun] = {}
    for planned in runs:
        firsts.setdefault(data_key(planned.completed), planned)
    for planned in firsts.values():
        experiment = planned.completed
        dataset = open_experiment_data(experiment)
        build = trained_builder(experiment, len(dataset.findings))
        with_features(
            experiment,
            dataset,
            initial_model(build, experiment.seed).layout.frozen,
            trained_on=[dataset.rows["train"]],
            evaluated=[dataset.rows["validation"], dataset.rows["test"]],
            progress=progress,
        )


def _seconds_of_ended_children() -> float:
    """User and system time of all processes that this one has started and seen end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -------------------------------------------------------------------------------- the command line


def main(words: Sequence[str] | None = None) -> None:
    """Compare the runs that the command line names, and print a line or one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_frozen", description=__doc__)
    parser.add_argument("--shard", default=SHARD, help="i/n: every n-th run, from the i-th")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(words)
    runs = shard_of(read_study(STUDY, MADE_UP, trust=True), options.shard)
    with (
        tempfile.TemporaryDirectory() as folder,
        cache_in(folder),
        counting_bar(console(stderr=True), "") as progress,
        redirect_stdout(sys.stderr),  # what the study says of its runs
    ):
        comparison = compare(runs, Path(folder) / "runs", progress)
    if options.json:
        print_json(comparison.table())
        return
    console().print(
        f"{comparison.runs} runs: predicted {comparison.predicted / 60:.1f} minutes of one"
        f" processor, used {comparison.used / 60:.1f}: {comparison.ratio:.2f} times as many"
    )


if __name__ == "__main__":
    try:
        main()
    except (UserError, RunFailed) as mistake:
        print(f"benchmarks: {mistake}", file=sys.stderr)
        sys.exit(2 if isinstance(mistake, UserError) else 1)
