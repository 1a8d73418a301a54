"""Which estimator of a site's contribution finds what? The runs of studies/contribution.md.

    python -m benchmarks.contribution_study pilot   LABELS.csv    what a task costs here
    python -m benchmarks.contribution_study run     LABELS.csv    40 splits, seven conditions
    python -m benchmarks.contribution_study natural LABELS.csv    10 splits of the natural sites
    python -m benchmarks.contribution_study tables                what came of it

LABELS.csv is that of the unpacked sample of 224 px. Rows are added to tables in docs/data, split by
split, and those that are there are not repeated: a command can be stopped and typed again.

A run is a federation of the package by FedAvg, recombined by its own collector and valued by its
own metric. Only the classifier is trained, on features of EfficientNet-Lite0, as in
benchmarks/work_study.py, whose splits, sites and features these are.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.work_study import (
    DATA,
    HEAD,
    FeatureTable,
    Rows,
    client_rows,
    open_features,
    split_rows,
)
from feddraw.analysis.bootstrap import weighted_auc
from feddraw.analysis.coalitions import Game, leave_one_out, remembered, shapley_values
from feddraw.analysis.utility import POOLED, PatientGroup, Utility
from feddraw.cli.progress_bars import counting_bar
from feddraw.cli.terminal import console
from feddraw.core import Job, Model, Update
from feddraw.engines.serial import Serial
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.recombination import model_of
from feddraw.experiment.run_preparation import initial_model
from feddraw.federation import Federation, federate
from feddraw.results.kept_updates import KeptRound
from feddraw.server.collectors import Together
from feddraw.server.round import Round, RoundResult
from feddraw.system.file_reading import read_csv
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples
from feddraw.training.settings import Training

Floats = NDArray[np.float64]

# ------------------------------------------------------------------------------------- the design

SITES = 5  # of equal size, images at random, patients not in two
ROUNDS = 6
TRAINING = Training(epochs=1, batch_size=64, lr=3e-3, clip=5.0)
REPLICATES = 30  # draws of test patients
WRONG_LABELS = 0.3  # of each finding of each image at the site
BLUR = 3.0  # pixels of 160
SMALL = 0.25  # of the other sites' images
RARE = "Consolidation"
CONDITIONS = ("none", "wrong labels", "blurred", "copy", "empty", "small", "rare")
# With one site that is small, whose positives of the rare finding are as many as elsewhere
# ("small"), or all that there are ("rare").
WITH_SMALL_SITE = ("small", "rare")
ESTIMATORS = ("retrained", "rounds", "shapley", "cosine")
SPLITS = {"pilot": range(9500, 9501), "run": range(5000, 5040), "natural": range(6000, 6010)}


@dataclass(frozen=True, eq=False)
class Images:
    """Features of all images, as they are and blurred."""

    table: FeatureTable
    blurred: NDArray[np.float32]

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(self.table.labels.findings)


def open_images(labels: Path, progress: Any) -> Images:
    """Computed where the cache does not have them."""
    table = open_features(HEAD, labels, progress)
    blurred = open_features(HEAD, labels, progress, blur=BLUR)
    return Images(table, blurred.features)


@dataclass(frozen=True, eq=False)
class SiteData:
    """What the sites of a task train on."""

    examples: Examples
    rows: tuple[Rows, ...]  # by site, into the examples
    marked: tuple[int, ...]  # the sites that a condition is about
    idle: int | None = None  # a site that sends back what it was sent


def dealt_sites(images: Images, training: Rows, condition: str, split: int) -> SiteData:
    """The training images of a split dealt at random, and one site altered.

    A site with altered images or labels has copies of them at the end of the examples, so test
    images stay as they are.
    """
    rng = np.random.default_rng([split, 0])
    labels = images.table.labels
    patients = labels.patient_numbers()
    assert patients is not None
    everyone = rng.permutation(np.unique(patients[training]))
    shares = np.ones(SITES)
    marked = split % SITES
    if condition in WITH_SMALL_SITE:
        shares[marked] = SMALL
    ends = np.floor(np.cumsum(shares / shares.sum())[:-1] * len(everyone)).astype(np.intp)
    rows = [training[np.isin(patients[training], part)] for part in np.split(everyone, ends)]
    features = images.table.features
    targets = np.asarray(labels.targets())
    idle = None
    marked_sites = [marked]
    if condition == "wrong labels":
        own = rows[marked]
        turned = rng.random((len(own), targets.shape[1])) < WRONG_LABELS
        rows[marked] = len(features) + np.arange(len(own))
        features = np.concatenate([features, features[own]])
        targets = np.concatenate([targets, np.where(turned, 1 - targets[own], targets[own])])
    elif condition == "blurred":
        own = rows[marked]
        rows[marked] = len(features) + np.arange(len(own))
        features = np.concatenate([features, images.blurred[own]])
        targets = np.concatenate([targets, targets[own]])
    elif condition == "copy":
        original = (marked + 1) % SITES
        rows[marked] = rows[original]
        marked_sites.append(original)
    elif condition == "empty":
        idle = marked
    elif condition == "rare":
        has_it = targets[:, images.findings.index(RARE)] == 1
        every = training[has_it[training]]
        rows = [of_site[~has_it[of_site]] for of_site in rows]
        rows[marked] = np.sort(np.concatenate([rows[marked], every]))
    examples = Examples(features, targets.astype(np.float32))
    return SiteData(examples, tuple(rows), tuple(marked_sites), idle)


# --------------------------------------------------------------------------------- the federations


@dataclass(eq=False)
class _Kept:
    """A collector that keeps the rounds in memory; the engine overwrites its updates."""

    collect: Together = field(default_factory=Together)
    rounds: list[KeptRound] = field(default_factory=list)
    in_turn: ClassVar[bool] = False

    def __call__(self, round: Round, arriving: Iterable[Update]) -> RoundResult:
        updates = tuple(
            replace(
                update,
                model=replace(
                    update.model,
                    params=np.array(update.model.params),
                    buffers=np.array(update.model.buffers),
                ),
            )
            for update in arriving
        )
        self.rounds.append(KeptRound(round, updates))
        return self.collect(round, updates)


class _WithIdleSite(Serial):
    """One site does nothing, and sends back what it was sent, with the size of its images."""

    idle: int | None = None

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        for job, update in zip(jobs, super().train(jobs, in_turn=in_turn), strict=True):
            yield replace(update, model=job.model) if job.client == self.idle else update


@dataclass(frozen=True, eq=False)
class Task:
    """A federation whose sites' contributions are estimated."""

    images: Images
    sites: SiteData
    test: Rows
    seed: int

    def federation(self, collect: _Kept, sites: Collection[int]) -> tuple[Federation, Serial]:
        """FedAvg among some of the sites; who is there has the orders of images it always has."""
        method = combined_method("fedavg", {})
        trainer = Trainer(
            self.images.table.build, self.sites.examples, self.sites.rows, TRAINING, method.local
        )
        engine = _WithIdleSite(trainer)
        engine.idle = self.sites.idle
        names = [f"S{number + 1}" for number in range(len(self.sites.rows))]
        efforts = dict.fromkeys(sorted(sites), 1.0)
        federation = Federation(
            method=method,
            engine=engine,
            clients=names,
            rounds=ROUNDS,
            seed=self.seed,
            collect=collect,
            efforts=lambda _: efforts,
        )
        return federation, engine

    def trained(self, sites: Collection[int]) -> tuple[Model, list[KeptRound]]:
        """The last model, and all rounds."""
        collect = _Kept()
        federation, _ = self.federation(collect, sites)
        model = initial_model(self.images.table.build_initial, self.seed)
        for result in federate(federation, model):
            model = result.model
        return model, collect.rounds

    def utilities(self, replicates: int) -> tuple[Utility, Utility]:
        """The mean AUC over the findings, and that of the rare one."""
        labels = self.images.table.labels
        patients = labels.patient_numbers()
        assert patients is not None
        group = PatientGroup(POOLED, labels.truth(self.test), patients[self.test])
        rare = self.images.findings.index(RARE)
        return (
            Utility(weighted_auc, (group,), replicates=replicates),
            Utility(weighted_auc, (group,), finding=rare, replicates=replicates),
        )

    def values(self, models: Sequence[Model], replicates: int) -> Floats:
        """(models, 2, 1 + replicates): by the two utilities."""
        features = self.images.table.features[self.test]
        heads = [_head_of(model, features.shape[1]) for model in models]
        weights = np.concatenate([weight for weight, _ in heads])
        logits = (features @ weights.T).reshape(len(features), len(models), -1)
        scores = [{POOLED: logits[:, place] + bias} for place, (_, bias) in enumerate(heads)]
        nothing = [np.zeros(0)] * len(models)
        by_utility = [utility.of(scores, nothing)[:, 0] for utility in self.utilities(replicates)]
        return np.stack(by_utility, axis=1)


def _head_of(model: Model, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The linear classifier of flat parameters: its weight, then its bias."""
    outputs = len(model.params) // (width + 1)
    return model.params[: outputs * width].reshape(outputs, width), model.params[outputs * width :]


@dataclass(frozen=True, eq=False)
class Estimates:
    """What one estimator says of all sites."""

    values: Floats  # (sites, 1 + replicates)
    of_rare: Floats  # (sites,): of the AUC of the rare finding
    seconds: float  # of a processor


def all_estimates(task: Task, replicates: int) -> dict[str, Estimates]:
    """By estimator."""
    count = len(task.sites.rows)
    everybody = range(count)
    whole, rounds = task.trained(everybody)
    found = {}

    began = time.process_time()
    others = [task.trained([s for s in everybody if s != left_out])[0] for left_out in everybody]
    values = task.values([whole, *others], replicates)
    found["retrained"] = _estimates(values[0] - values[1:], began)
    for name, divide in (("rounds", leave_one_out), ("shapley", shapley_values)):
        began = time.process_time()
        games = [_game(task, kept, replicates) for kept in rounds]
        found[name] = _estimates(divide(count, games), began)
    began = time.process_time()
    cosines = mean_cosines(rounds)
    # a cosine has no patients, and no finding
    alike = np.broadcast_to(cosines[:, None, None], (count, 2, 1 + replicates))
    found["cosine"] = _estimates(alike, began)
    return found


def _estimates(contributions: Floats, began: float) -> Estimates:
    seconds = time.process_time() - began
    return Estimates(contributions[:, 0], contributions[:, 1, 0], seconds)


def _game(task: Task, kept: KeptRound, replicates: int) -> Game:
    def value(coalitions: Sequence[int]) -> Floats:
        models = [model_of(kept, Together(), each) for each in coalitions]
        return task.values(models, replicates)

    return Game(kept.present, remembered(value))


def mean_cosines(rounds: Sequence[KeptRound]) -> Floats:
    """(sites,): the mean over rounds of the cosine of a site's move with the sum of all moves,
    weighted by size, which some papers call a Shapley value.
    """
    by_round = []
    for kept in rounds:
        moves = np.stack([u.model.params - kept.round.sent.params for u in kept.updates])
        sizes = np.array([update.size for update in kept.updates])
        total = sizes @ moves
        lengths = np.linalg.norm(moves, axis=1) * np.linalg.norm(total)
        by_round.append(
            np.divide(moves @ total, lengths, out=np.zeros(len(moves)), where=lengths > 0)
        )
    return np.asarray(np.mean(by_round, axis=0))


# -------------------------------------------------------------------------------------- the tables


@dataclass(frozen=True)
class Row:
    """What one estimator said in one task."""

    split: int
    condition: str
    estimator: str
    marked: str  # the sites that the condition is about, as "0" or "0 1"
    values: str  # of all sites
    of_rare: str  # the same of the AUC of the rare finding
    errors: str  # by site, over patients: of its value minus the mean of the others'
    seconds: float  # of a processor

    @property
    def task(self) -> tuple[int, str]:
        return self.split, self.condition


COLUMNS = [column.name for column in fields(Row)]


def table_file(stage: str, folder: Path = DATA) -> Path:
    return folder / f"contribution-{stage}.csv"


def read_rows(stage: str, folder: Path = DATA) -> list[Row]:
    """All rows of a stage that are there."""
    file = table_file(stage, folder)
    if not file.is_file():
        return []
    return [
        Row(**{**row, "split": int(row["split"]), "seconds": float(row["seconds"])})
        for row in read_csv(file)
    ]


def rows_of_task(split: int, condition: str, marked: Sequence[int], task: Task) -> list[Row]:
    """A task carried out, as rows of the table."""
    rows = []
    for name, estimates in all_estimates(task, REPLICATES).items():
        values = estimates.values
        others = (values.sum(axis=0) - values) / (len(values) - 1)
        errors = (values - others)[:, 1:].std(axis=1, ddof=1)
        rows.append(
            Row(
                split=split,
                condition=condition,
                estimator=name,
                marked=" ".join(map(str, marked)),
                values=_as_text(values[:, 0]),
                of_rare=_as_text(estimates.of_rare),
                errors=_as_text(errors),
                seconds=round(estimates.seconds, 4),
            )
        )
    return rows


def _as_text(numbers: Floats) -> str:
    return " ".join(f"{number:.6g}" for number in numbers)


def planned_tasks(stage: str) -> list[tuple[int, str]]:
    conditions = ("natural",) if stage == "natural" else CONDITIONS
    return [(split, condition) for split in SPLITS[stage] for condition in conditions]


def make_task(images: Images, split: int, condition: str) -> Task:
    training, _, test = split_rows(images.table.labels, split)
    if condition == "natural":
        dealt = client_rows(images.table.labels, training, "natural", split)
        sites = SiteData(images.table.examples, tuple(dealt.values()), ())
    else:
        sites = dealt_sites(images, training, condition, split)
    return Task(images, sites, test, split)


def carry_out(images: Images, stage: str, progress: Any, folder: Path = DATA) -> None:
    """What is not in the table yet; the rows of a task are added together."""
    done = {row.task for row in read_rows(stage, folder)}
    left = [task for task in planned_tasks(stage) if task not in done]
    for ready, (split, condition) in enumerate(left):
        task = make_task(images, split, condition)
        append_rows(
            table_file(stage, folder), rows_of_task(split, condition, task.sites.marked, task)
        )
        progress("tasks", ready + 1, len(left))


def append_rows(file: Path, rows: Sequence[Row]) -> None:
    is_new = not file.is_file()
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def cost_of(images: Images, progress: Any) -> str:
    """Processor-seconds by estimator and task; writes nothing."""
    seconds: dict[str, list[float]] = {}
    tasks = [*planned_tasks("pilot"), (SPLITS["pilot"][0], "natural")]
    make_task(images, *tasks[0]).trained([0])  # the first chooses algorithms
    whole: dict[str, float] = {}
    for ready, (split, condition) in enumerate(tasks):
        began = time.process_time()
        task = make_task(images, split, condition)
        for row in rows_of_task(split, condition, task.sites.marked, task):
            seconds.setdefault(f"{condition}, {row.estimator}", []).append(row.seconds)
        whole[condition] = time.process_time() - began
        progress("tasks", ready + 1, len(tasks))
    lines = [f"{name}: {np.mean(each):.3f}" for name, each in seconds.items()]
    run = sum(whole[condition] for condition in CONDITIONS) * len(SPLITS["run"])
    natural = whole["natural"] * len(SPLITS["natural"])
    return "\n".join([*lines, f"run: {run:.0f} s", f"natural: {natural:.0f} s"])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.contribution_study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stage", choices=[*SPLITS, "tables"])
    parser.add_argument("labels", nargs="?", type=Path, help="labels.csv of the sample")
    options = parser.parse_args(words)
    if options.stage == "tables":
        from benchmarks.contribution_study_tables import all_tables

        print(all_tables(DATA))
        return
    if options.labels is None:
        parser.error("give labels.csv of the unpacked sample")
    torch.set_num_threads(1)
    with counting_bar(console(stderr=True), "") as progress:
        images = open_images(options.labels, progress)
        if options.stage == "pilot":
            print(cost_of(images, progress))
        else:
            carry_out(images, options.stage, progress)


if __name__ == "__main__":
    main()
