"""Tasks: what a network's outputs say of an image. One file each, found by its name.

Nothing outside of this package asks which task it is: engines, methods, evaluation, reports and
exports ask the task what they need to know. A file has a function of its own name that returns a
`Task`; its arguments are settings of the data section beside `data.task`.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from feddraw import catalog
from feddraw.analysis.bootstrap import Measure
from feddraw.analysis.metrics import auc, not_finite, rates
from feddraw.data.dataset import FINDINGS_TASK, Labels
from feddraw.data.finding_counts import LabelWords
from feddraw.errors import UserError
from feddraw.results.metrics import SplitMetrics
from feddraw.results.recorded_run import RecordedRun
from feddraw.results.run_collection import RunCollection, UnusedRun
from feddraw.system.file_writing import json_values

if TYPE_CHECKING:
    from feddraw.training.objective import Objective

Scores = NDArray[np.floating[Any]]  # (images, outputs), probabilities
Truth = NDArray[np.integer[Any]]  # (images, outputs): 1, 0, and below zero where not known
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class ComparedMetric:
    """A metric by which methods are compared."""

    label: str
    measure: Measure  # of one output, in a bootstrap replicate
    of_calls: bool  # whether the measure looks at calls, or at scores


@dataclass(frozen=True)
class TaskWords:
    """How reports, model cards and commands speak of a task."""

    labels: LabelWords
    network: str  # what a network does, with {images} and {count} for the number of outputs
    rule: str  # how a probability becomes a call
    limits: str  # what else calls depend on
    results: str  # the heading of results in a model card
    counts: str  # what the columns of a table of images by site are
    metrics: str  # what the compared metrics are
    calls: str  # how calls are made, as a model card explains its results


@dataclass(frozen=True)
class MeasuredSplit:
    """What a task makes metrics of: the same from scores of images, and from sites' counts."""

    areas: Mapping[str, float]  # AUC by output, each against all others
    rates: Mapping[str, tuple[float, float]]  # sensitivity and specificity at the thresholds
    thresholds: Mapping[str, float]
    calls: Counts  # images by class and by the class that they are called; zeros if not of the task
    broken: Sequence[str]  # outputs with scores that are not finite numbers


@dataclass(frozen=True)
class Task(ABC):
    """What a network's outputs say, as a value: one output for each column of the labels."""

    metrics: ClassVar[Mapping[str, ComparedMetric]]  # the first one leads; by name in metrics.json
    more: ClassVar[Mapping[str, str]] = {}  # metrics of all calls together, by name, with labels
    words: ClassVar[TaskWords]
    has_thresholds: ClassVar[bool]  # whether a call is a score that reaches a chosen threshold
    # whether an output's probability depends on its own logit alone, which a line may then change
    can_be_recalibrated: ClassVar[bool] = False
    # Python for an exported bundle: `header(model)`, the columns of its table between the image and
    # the problem, and `cells(model, scores)`, the same of one image; `model` is `description`
    script: ClassVar[str]

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """What training makes small, and what probabilities are."""

    @abstractmethod
    def split_metrics(self, measured: MeasuredSplit) -> SplitMetrics:
        """All metrics of one split."""

    @abstractmethod
    def call(self, scores: Scores, thresholds: Scores) -> NDArray[np.float64]:
        """1 where an output is called, 0 where not, NaN where that cannot be said. Outputs are the
        last axis.
        """

    @abstractmethod
    def prediction_header(self, names: Sequence[str]) -> list[str]:
        """The columns of a table of predictions, between the image and the problem."""

    @abstractmethod
    def prediction_cells(
        self, names: Sequence[str], scores: Scores, calls: NDArray[np.float64]
    ) -> list[object]:
        """The same of one image, whose scores are NaN where it could not be read."""

    def calls_of_scores(self, scores: Scores) -> NDArray[np.float64] | None:
        """The calls, where they follow from the scores alone; None where thresholds make them."""
        if self.has_thresholds:
            return None
        return self.call(scores, np.full(scores.shape[-1], math.nan))

    def description(self, names: Sequence[str], thresholds: Sequence[float]) -> dict[str, Any]:
        """What a user of an exported model must know of its outputs, as JSON."""
        many = self.words.labels.many
        limits = {}
        if self.has_thresholds:
            limits["thresholds"] = json_values(dict(zip(names, thresholds, strict=True)))
        output = f"(n, {many}) probabilities; {self.words.rule}"
        return {many: list(names), **limits, "output": output}

    def check(self, labels: Labels) -> None:
        """Refuse labels that this task cannot learn from."""
        return

    def training_notes(self, labels: Labels, rows: Sequence[NDArray[np.intp]]) -> Iterator[str]:
        """What the model cannot learn, because no client has it; `rows` are the clients' images."""
        counts = sum(labels.known_counts(of_client) for of_client in rows)
        columns = zip(labels.findings, np.atleast_1d(counts), strict=True)
        if names := [name for name, count in columns if not count]:
            yield f"no client has labels for {', '.join(names)}: leave it out of data.findings"

    def targets(self, labels: Labels) -> NDArray[np.float32]:
        """(images, outputs): labels as training reads them; NaN where one is not known."""
        return labels.targets()

    def count_calls(self, scores: Scores, truth: NDArray[Any]) -> Counts:
        """(outputs, outputs): images by class and by the class that they are called, for tasks that
        call one class.
        """
        outputs = scores.shape[1]
        return np.zeros((outputs, outputs), np.int64)

    def choose_thresholds(self, scores: Scores, truth: Truth) -> list[float]:
        """One for each output, from validation data; NaN where the task has none."""
        return [math.nan] * truth.shape[1]

    @property
    def labels(self) -> dict[str, str]:
        """What the compared metrics are called, the first one first."""
        return {name: metric.label for name, metric in self.metrics.items()}

    def means_in_words(self, metrics: SplitMetrics) -> str:
        """Every metric over all outputs, three digits each."""
        values = {**self.labels, **self.more}
        return ", ".join(
            f"{label} {number_in_words(metrics.of(name).macro)}" for name, label in values.items()
        )

    def evaluate(
        self, scores: Scores, truth: Truth, names: Sequence[str], thresholds: Sequence[float]
    ) -> SplitMetrics:
        """All metrics of one model on one split."""
        columns = list(enumerate(names))
        measured = MeasuredSplit(
            areas={name: auc(scores[:, c], truth[:, c]) for c, name in columns},
            rates={name: rates(scores[:, c], truth[:, c], thresholds[c]) for c, name in columns},
            thresholds=dict(zip(names, map(float, thresholds), strict=True)),
            calls=self.count_calls(scores, truth),
            broken=[names[column] for column in not_finite(scores)],
        )
        return self.split_metrics(measured)


def number_in_words(value: float) -> str:
    """With three digits, or that there is none."""
    return "undefined" if math.isnan(value) else f"{value:.3f}"


def make_task(name: str, settings: Mapping[str, Any]) -> Task:
    """The task of this name, with its settings."""
    task = catalog.call_with_settings(catalog.find("tasks", name), settings, "task")
    assert isinstance(task, Task)
    return task


def task_of_run(run: RecordedRun) -> Task:
    """The task of a run that is read from its folder, which may not name code to import."""
    if ":" in run.task:
        raise UserError(
            f"{run.path} has a task of its own ({run.task}), and code that a folder names is not"
            " imported: put it into feddraw/tasks as a file"
        )
    return make_task(run.task, {})


def task_of_runs(runs: Sequence[RecordedRun]) -> Task:
    """The task of runs that have the same; findings where there are none."""
    return task_of_run(runs[0]) if runs else make_task(FINDINGS_TASK, {})


def runs_of_one_task(collection: RunCollection) -> RunCollection:
    """Without the runs whose task is not that of the first: no number of theirs is comparable."""
    runs = collection.runs
    others = [run for run in runs if run.task != runs[0].task]
    if not others:
        return collection
    problems = [
        UnusedRun(run.path, f"its task is {run.task}, that of the report is {runs[0].task}")
        for run in others
    ]
    kept = tuple(run for run in runs if run.task == runs[0].task)
    return replace(collection, runs=kept, problems=(*collection.problems, *problems))


def settings_of_task(name: str) -> tuple[str, ...]:
    """What a task's function takes: names of settings in the data section."""
    return tuple(inspect.signature(catalog.find("tasks", name)).parameters)
