"""Classes: each image is exactly one of several (multi-class). A softmax over all, cross-entropy
against the class, and the class with the highest probability is called.

`class_weights` are the weights of the classes in the loss, in their order: the loss of a batch is
the weighted mean over its images, as in torch's `cross_entropy`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis import class_metrics
from feddraw.analysis.bootstrap import weighted_auc, weighted_sensitivity
from feddraw.analysis.metrics import macro
from feddraw.data.dataset import Labels
from feddraw.data.finding_counts import CLASS_WORDS
from feddraw.errors import UserError, is_list_of_numbers
from feddraw.results.metrics import MacroMetric, SplitMetrics
from feddraw.tasks import ComparedMetric, Counts, MeasuredSplit, Scores, Task, TaskWords
from feddraw.text import join_names

if TYPE_CHECKING:
    from torch import Tensor

    from feddraw.training.objective import Objective

LARGEST_WEIGHT = float(np.finfo(np.float32).max)  # what the numbers of the loss can hold
SCRIPT = """\
def header(model):
    return ["class", *model["classes"]]


def cells(model, scores):
    highest = max(range(len(scores)), key=scores.__getitem__)
    return [model["classes"][highest], *scores]
"""


@dataclass(frozen=True)
class OneOfSeveral:
    """Softmax and cross-entropy against the class of each image."""

    class_weights: tuple[float, ...] = ()

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """`smoothing` is spread evenly over all classes."""
        from torch.nn.functional import cross_entropy

        weights = logits.new_tensor(self.class_weights) if self.class_weights else None
        classes = targets.argmax(dim=1)
        return cross_entropy(logits, classes, weight=weights, label_smoothing=smoothing)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)

    def right(self, logits: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.bool_]:
        known = ~np.isnan(targets).any(axis=1)
        return np.asarray(logits[known].argmax(axis=1) == targets[known].argmax(axis=1))


@dataclass(frozen=True)
class Classes(Task):
    """One class per image; the one with the highest probability is called."""

    class_weights: tuple[float, ...] = ()

    metrics: ClassVar = {
        "auc": ComparedMetric("AUC", weighted_auc, of_calls=False),
        "balanced_accuracy": ComparedMetric(
            "balanced accuracy", weighted_sensitivity, of_calls=True
        ),
    }
    more: ClassVar = {"accuracy": "accuracy", "f1": "macro F1", "kappa": "Cohen's kappa"}
    words: ClassVar = TaskWords(
        labels=CLASS_WORDS,
        network="chooses one of {count} classes for {images}",
        rule="the class with the highest probability is called",
        limits="probabilities depend on how common a class is",
        results="Classes and test results",
        counts="Columns of classes: images of the class.",
        metrics=(
            "AUC: area under the ROC curve of each class against all others; 0.5 is chance."
            " Balanced accuracy: mean over the classes of the share of test images that are called"
            " what they are, the class with the highest probability."
        ),
        calls=(
            "An image is called the class with the highest probability. AUC, sensitivity,"
            " specificity, PPV and NPV are those of each class against all others; balanced"
            " accuracy is the mean sensitivity."
        ),
    )
    has_thresholds: ClassVar = False
    script: ClassVar = SCRIPT

    @property
    def objective(self) -> Objective:
        return OneOfSeveral(self.class_weights)

    def check(self, labels: Labels) -> None:
        classes = len(labels.findings)
        if classes < 2:
            raise UserError("data.task = classes needs at least two classes")
        known = (labels.truth(np.arange(len(labels))) >= 0).all(axis=1)
        wrong = int((labels.values[known].sum(axis=1) != 1).sum())
        partly = 0 if labels.known is None else int(labels.known[~known].any(axis=1).sum())
        if wrong or partly:
            raise UserError(
                f"data.task = classes needs exactly one class for each image: {wrong + partly:,} of"
                f" {len(labels):,} images have none or several of {', '.join(labels.findings)}; as"
                " data.task = findings each is there or not"
            )
        if self.class_weights and len(self.class_weights) != classes:
            raise UserError(
                f"data.class_weights has {len(self.class_weights)} numbers for {classes} classes:"
                f" {', '.join(labels.findings)}"
            )

    def training_notes(self, labels: Labels, rows: Sequence[NDArray[np.intp]]) -> Iterator[str]:
        """Classes of which the clients together have no image, or a single one."""
        everyone = np.concatenate([np.zeros(0, np.intp), *rows])
        counts = dict(zip(labels.findings, labels.values[everyone].sum(axis=0), strict=True))
        if none := [name for name, count in counts.items() if not count]:
            yield (
                f"no client has a training image of {join_names(none)}: the model cannot learn it;"
                " take it out of data.classes, or give a client such images"
            )
        if single := [name for name, count in counts.items() if count == 1]:
            yield f"the clients together have one training image only of {join_names(single)}"

    def count_calls(self, scores: Scores, truth: NDArray[Any]) -> Counts:
        called = self.call(scores, np.full(scores.shape[-1], math.nan))
        return class_metrics.confusion_matrix(called, truth)

    def split_metrics(self, measured: MeasuredSplit) -> SplitMetrics:
        names = list(measured.areas)
        calls = np.zeros_like(measured.calls) if measured.broken else measured.calls
        sensitivity = _by_class(names, class_metrics.sensitivities(calls))
        f1 = _by_class(names, class_metrics.f1_scores(calls))
        return SplitMetrics(
            auc=MacroMetric(macro(measured.areas.values()), measured.areas),
            sensitivity=sensitivity,
            specificity=_by_class(names, class_metrics.specificities(calls)),
            undefined=tuple(
                name
                for name in names
                if math.isnan(measured.areas[name]) or math.isnan(sensitivity[name])
            ),
            not_finite=tuple(measured.broken),
            more={
                "balanced_accuracy": MacroMetric(macro(sensitivity.values()), sensitivity),
                "accuracy": MacroMetric(class_metrics.accuracy(calls)),
                "f1": MacroMetric(macro(f1.values()), f1),
                "kappa": MacroMetric(class_metrics.cohens_kappa(calls)),
            },
            confusion=tuple(tuple(row) for row in calls.tolist()),
        )

    def call(self, scores: Scores, thresholds: Scores) -> NDArray[np.float64]:
        """The class with the highest score."""
        return class_metrics.called_classes(scores)

    def prediction_header(self, names: Sequence[str]) -> list[str]:
        return ["class", *names]

    def prediction_cells(
        self, names: Sequence[str], scores: Scores, calls: NDArray[np.float64]
    ) -> list[object]:
        if np.isnan(calls).any():
            return [""] * (1 + len(names))
        return [names[int(calls.argmax())], *map(str, scores)]


def classes(class_weights: Sequence[float] | None = None) -> Task:
    """Exactly one class per image (multi-class)."""
    weights = [] if class_weights is None else class_weights
    is_list = isinstance(weights, list | tuple) and is_list_of_numbers(weights, len(weights))
    if not is_list or not all(0 < weight <= LARGEST_WEIGHT for weight in weights):
        raise UserError(
            f"data.class_weights must be a list of finite numbers above 0, one for each class, not"
            f" {class_weights!r}"
        )
    return Classes(tuple(map(float, weights)))


def _by_class(names: Sequence[str], values: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))
