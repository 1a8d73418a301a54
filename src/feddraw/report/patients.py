"""Bootstrap over the patients of recorded runs: each replicate draws the same patients for all
methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.bootstrap import (
    Interval,
    Measure,
    Truth,
    bootstrap,
    interval,
    weighted_auc,
    weighted_gm,
)
from feddraw.analysis.diagnostic_measures import DiagnosticTest, Measured, ModelScores
from feddraw.report.runs import HoldoutPredictions, Predictions, RecordedRun, thresholds
from feddraw.text import grouped, join_names

Floats = NDArray[np.float64]
MEASURES = {"auc": weighted_auc, "gm": weighted_gm}
RunsByMethod = Mapping[str, Sequence[RecordedRun]]
PredictionsByRun = Mapping[RecordedRun, Predictions]


@dataclass(frozen=True, eq=False)
class PooledImages:
    """The test images of several repeats, one after another; a metric is the mean over repeats."""

    truth: Truth  # (images, findings)
    owners: NDArray[np.int64]  # whose image each is; an image that several repeats test is one unit
    repeat: NDArray[np.int64]  # the number of the repeat that tested it
    unit: str = "patients"  # or images

    def bootstrap(
        self,
        outputs: Sequence[Floats],
        replicates: int,
        measure: Measure = weighted_auc,
        on_drawn: Callable[[int], None] = lambda drawn: None,
    ) -> Floats:
        """(models, 1 + replicates): the metric of each model's outputs, then its replicates."""
        return bootstrap(
            outputs,
            self.truth,
            np.random.default_rng(0),  # the same patients for every measure and every model
            measure=measure,
            patients=self.owners,
            folds=self.repeat,
            replicates=replicates,
            on_drawn=on_drawn,
        )


def pooled_images(repeats: Sequence[Predictions]) -> PooledImages:
    """The images of these repeats; images are drawn by themselves unless all patients are known."""
    truth = np.concatenate([part.truth for part in repeats])
    sizes = [len(part.truth) for part in repeats]
    repeat = np.repeat(np.arange(len(repeats)), sizes)
    patients = [part.patients for part in repeats if part.patients is not None]
    if len(patients) == len(repeats):
        return PooledImages(truth, np.concatenate(patients), repeat)
    tests = list(dict.fromkeys(part.tested for part in repeats))
    numbers = [
        max(sizes) * tests.index(part.tested) + np.arange(size)
        for part, size in zip(repeats, sizes, strict=True)
    ]
    return PooledImages(truth, np.concatenate(numbers), repeat, unit="images")


# ---------------------------------------------------------------------- all methods of one scenario


@dataclass(frozen=True, eq=False)
class PatientBootstrap:
    """Every model that was tested on the same images: a metric and its replicates, as one row of
    `analysis.bootstrap`.
    """

    unit: str  # patients or images
    units: int
    repeats: tuple[str, ...]
    methods: Mapping[str, Mapping[str, Floats]]  # by metric and method
    alone: Mapping[str, Mapping[str, Floats]]  # by metric and client: models trained alone
    left_out: tuple[str, ...]
    # by metric, method and client: where every client has a model of its own
    personal: Mapping[str, Mapping[str, Mapping[str, Floats]]] = field(default_factory=dict)
    why_none: str = ""  # why there is nothing in it; empty where there is

    @staticmethod
    def none_because(reason: str) -> PatientBootstrap:
        nothing: dict[str, dict[str, Floats]] = {metric: {} for metric in MEASURES}
        return PatientBootstrap(
            unit="",
            units=0,
            repeats=(),
            methods=nothing,
            alone=nothing,
            left_out=(),
            why_none=reason,
        )

    def used_by(self, metric: str, method: str, client: str) -> Floats:
        """Of the model that a client would use: its own where the method has such, else the common
        one.
        """
        own_models = self.personal.get(metric, {}).get(method, {})
        return own_models.get(client, self.methods[metric][method])

    def difference(self, metric: str, first: str, second: str) -> Interval:
        """The first method minus the second."""
        return interval(self.methods[metric][first] - self.methods[metric][second])

    def gain(self, metric: str, method: str, client: str) -> Interval:
        """Of the model that the client would use over the one that it trained alone."""
        return interval(self.used_by(metric, method, client) - self.alone[metric][client])


def bootstrap_methods(
    runs: Sequence[RecordedRun],
    replicates: int,
    on_drawn: Callable[[int, int], None] = lambda drawn, total: None,
) -> PatientBootstrap:
    """Paired replicates for all methods of one scenario that kept their scores in every repeat, or
    why there are none.

    Patients are drawn, or images where patients are not known; several seeds are several models,
    whose metrics are averaged, while a patient tested by all of them is drawn for all. `on_drawn`
    is told how many replicates are drawn, of how many.
    """
    if not replicates:
        return PatientBootstrap.none_because(
            "No bootstrap intervals were computed (--replicates 0)."
        )
    if not runs:
        return PatientBootstrap.none_because("There is no seed that all methods have.")
    kept = _usable_predictions(runs)
    if not kept:
        return PatientBootstrap.none_because(
            "These runs kept no scores of single images, so methods cannot be compared on the same"
            " patients."
        )
    repeats = list(dict.fromkeys(run.repeat for run in runs))
    tested = grouped((run.method, run.repeat) for run in kept)
    methods = [method for method, of_method in tested.items() if set(of_method) == set(repeats)]
    if not methods:
        return PatientBootstrap.none_because(
            "There is no method that kept the scores of single images in every seed."
        )
    if not all(_all_tested_the_same(kept, repeat, methods) for repeat in repeats):
        return PatientBootstrap.none_because(
            "The methods were not tested on the same images, so they cannot be compared on the same"
            " patients."
        )
    run_of = {(run.method, run.repeat): run for run in kept}
    compared = {method: [run_of[method, repeat] for repeat in repeats] for method in methods}
    used = {run for members in compared.values() for run in members}
    images = pooled_images([kept[run] for run in compared[methods[0]]])
    common: dict[str, dict[str, Floats]] = {}
    personal: dict[str, dict[str, dict[str, Floats]]] = {}
    alone: dict[str, dict[str, Floats]] = {}
    total = len(MEASURES) * replicates
    for number, (metric, measure) in enumerate(MEASURES.items()):
        outputs = {
            method: _outputs_by_model(metric, members, kept) for method, members in compared.items()
        }

        def count_replicates(drawn: int, before: int = number * replicates) -> None:
            on_drawn(before + drawn, total)

        models = [model for of_method in outputs.values() for model in of_method]
        of_models = images.bootstrap(models, replicates, measure, count_replicates)
        by_method = _by_method(of_models, outputs)
        common[metric] = {method: models.mean(axis=0) for method, models in by_method.items()}
        personal[metric] = _by_client(by_method, compared)
        alone[metric] = _trained_alone(personal[metric], compared)
    return PatientBootstrap(
        unit=images.unit,
        units=len(np.unique(images.owners)),
        repeats=tuple(repeats),
        methods=common,
        alone=alone,
        left_out=tuple(f"{run.method}, seed {run.repeat}" for run in runs if run not in used),
        personal=personal,
    )


def _usable_predictions(runs: Sequence[RecordedRun]) -> dict[RecordedRun, Predictions]:
    """The test scores of the runs that kept them: of one model, or of one per client."""
    kept = {}
    for run in runs:
        predictions = run.predictions()
        if predictions is None or predictions.classes != run.findings:
            continue
        models, images, _ = predictions.by_model.shape
        if images and models in (1, len(run.ledger.clients)):
            kept[run] = predictions
    return kept


def _all_tested_the_same(kept: PredictionsByRun, repeat: str, methods: Sequence[str]) -> bool:
    """Whether every method was tested on the same images in this repeat."""
    tests = {
        run.method: (part.tested, part.classes, len(part.truth), part.patients is None)
        for run, part in kept.items()
        if run.repeat == repeat and run.method in methods
    }
    return len(set(tests.values())) == 1


def _by_method(of_models: Floats, outputs: Mapping[str, Sequence[Floats]]) -> dict[str, Floats]:
    """The rows of all models, (models, 1 + replicates), by method, in the order of `outputs`."""
    rows = iter(of_models)
    return {
        method: np.stack([next(rows) for _ in of_method]) for method, of_method in outputs.items()
    }


def _outputs_by_model(
    metric: str, runs: Sequence[RecordedRun], kept: PredictionsByRun
) -> list[Floats]:
    """Of each of a method's models, over all repeats: scores, or for GM calls at the thresholds."""
    if metric == "auc":
        by_repeat = [kept[run].by_model for run in runs]
    else:
        by_repeat = [_calls_at_thresholds(run, kept[run]) for run in runs]
    return [
        np.concatenate([repeat[model] for repeat in by_repeat])
        for model in range(len(by_repeat[0]))
    ]


def _calls_at_thresholds(run: RecordedRun, predictions: Predictions) -> Floats:
    """(models, images, findings): 1 where a score reaches the threshold; NaN where there is no
    threshold or no score.
    """
    scores = predictions.by_model
    clients = [""] if len(scores) == 1 else run.ledger.clients
    limits = np.array([thresholds(run, client) for client in clients])[:, None, :]
    called = (scores >= limits).astype(np.float64)
    return np.where(np.isnan(limits) | np.isnan(scores), np.nan, called)


def _by_client(
    by_method: Mapping[str, Floats], compared: RunsByMethod
) -> dict[str, dict[str, Floats]]:
    """The clients' own models, by method, where it has such."""
    return {
        method: dict(zip(compared[method][0].ledger.clients, models, strict=True))
        for method, models in by_method.items()
        if len(models) > 1
    }


def _trained_alone(
    personal: Mapping[str, Mapping[str, Floats]], compared: RunsByMethod
) -> dict[str, Floats]:
    """By client. Personal models of other methods learn from all clients, so they are not these."""
    alone: dict[str, Floats] = {}
    for method, models in personal.items():
        if compared[method][0].name == "alone":
            alone |= models
    return alone


def interval_over_patients(draws: PatientBootstrap) -> str:
    """What an interval is, in words."""
    return f"95 % bootstrap CI over {draws.units:,} test {draws.unit}"


def note_on_patients(draws: PatientBootstrap) -> str:
    """What the intervals of a table are made of."""
    if len(draws.repeats) > 1:
        seeds = f"averaged over seeds {join_names(draws.repeats)}"
    else:
        seeds = f"of seed {draws.repeats[0]}"
    return (
        f"{interval_over_patients(draws)}, paired, {seeds}; noise between trainings is not"
        " included."
    )


# ---------------------------------------------------------------------------------- other questions


def auc_intervals_by_finding(
    runs: Sequence[RecordedRun], findings: Sequence[str]
) -> Iterator[tuple[str, Measured]]:
    """The AUC of each finding with its interval, the mean over seeds: the numbers that the table
    of each finding as a diagnostic test has.
    """
    repeats = []
    for run in runs:
        predictions = run.predictions()
        if predictions is None or predictions.scores.ndim != 2:
            continue
        if predictions.classes == tuple(findings):
            repeats.append(predictions)
    if not repeats:
        return
    images = pooled_images(repeats)
    for column, finding in enumerate(findings):
        models = []
        for place, predictions in enumerate(repeats):
            model = ModelScores.of_known(
                scores=predictions.scores[:, column],
                truth=predictions.truth[:, column],
                patients=images.owners[images.repeat == place],
                threshold=math.nan,
            )
            if 0 < model.labels.sum() < len(model.labels):
                models.append(model)
        if models:
            yield finding, DiagnosticTest(models).auc()


def bootstrap_of_holdout(
    by_method: Sequence[Sequence[HoldoutPredictions]], client: int, replicates: int
) -> tuple[Floats, int]:
    """The macro AUC of every method on the images that one client kept back: (methods, 1 +
    replicates), and how many images these are.

    `by_method` has the scores of each method by repeat; all methods have the same images.
    """
    repeats = by_method[0]
    chosen = [part.clients == client for part in repeats]
    images = sum(int(rows.sum()) for rows in chosen)
    if not images:
        return np.full((len(by_method), 1 + replicates), np.nan), 0
    owners = [part.rows if part.patients is None else part.patients for part in repeats]
    pooled = PooledImages(
        truth=_pooled([part.truth for part in repeats], chosen),
        owners=_pooled(owners, chosen),
        repeat=np.repeat(np.arange(len(repeats)), [int(rows.sum()) for rows in chosen]),
    )
    outputs = [_pooled([part.scores for part in method], chosen) for method in by_method]
    return pooled.bootstrap(outputs, replicates), images


def _pooled(by_repeat: Sequence[NDArray], chosen: Sequence[NDArray[np.bool_]]) -> NDArray:  # type: ignore[type-arg]
    """The chosen rows of each repeat, one after another."""
    return np.concatenate([rows[mask] for rows, mask in zip(by_repeat, chosen, strict=True)])
