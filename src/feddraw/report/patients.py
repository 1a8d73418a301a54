"""Bootstrap over the patients of recorded runs: each replicate draws the same patients for all
methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.bootstrap import (
    Interval,
    Measure,
    Truth,
    bootstrap,
    interval,
    mean_of_defined,
    weighted_auc,
)
from feddraw.analysis.diagnostic_measures import DiagnosticTest, Measured, ModelScores
from feddraw.report.runs import HoldoutPredictions, Predictions, RecordedRun, thresholds
from feddraw.tasks import task_of_runs
from feddraw.text import grouped, join_names

Floats = NDArray[np.float64]
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
class MethodReplicates:
    """A metric of one method: the estimate and its replicates, as one row of `analysis.bootstrap`.

    Where every client has a model of its own, the common row is the mean over these; of a finding
    over those of the clients that label it.
    """

    common: Floats  # (1 + replicates,)
    by_client: Mapping[str, Floats]  # of each client's own model; empty where there is one model
    trained_alone: bool  # the clients' models saw their own images only


@dataclass(frozen=True, eq=False)
class MetricReplicates:
    """A metric of every model that was tested on the same images; each replicate draws the same
    patients for all of them.
    """

    by_method: Mapping[str, MethodReplicates]
    # By client that labels some findings only, then by method: of the model that the client would
    # use, over the findings that it labels.
    by_labels: Mapping[str, Mapping[str, Floats]] = field(default_factory=dict)

    @property
    def alone(self) -> dict[str, Floats]:
        """By client: of the model that it trained alone. Personal models of other methods learn
        from all clients, so they are not these.
        """
        alone: dict[str, Floats] = {}
        for method, rows in self.by_method.items():
            if rows.trained_alone:
                alone |= {client: self.used_by(method, client) for client in rows.by_client}
        return alone

    def used_by(self, method: str, client: str) -> Floats:
        """Of the model that a client would use: its own where the method has such, else the common
        one; over the findings that it labels.
        """
        if client in self.by_labels:
            return self.by_labels[client][method]
        rows = self.by_method[method]
        return rows.by_client.get(client, rows.common)


@dataclass(frozen=True, eq=False)
class PatientBootstrap:
    """The replicates of one scenario, or why there are none."""

    unit: str  # patients or images
    units: int
    repeats: tuple[str, ...]
    by_metric: Mapping[str, MetricReplicates]
    left_out: tuple[str, ...]
    why_none: str = ""  # why there is nothing in it; empty where there is

    @staticmethod
    def none_because(reason: str, runs: Sequence[RecordedRun] = ()) -> PatientBootstrap:
        nothing = {metric: MetricReplicates({}) for metric in task_of_runs(runs).metrics}
        return PatientBootstrap(
            unit="", units=0, repeats=(), by_metric=nothing, left_out=(), why_none=reason
        )

    def used_by(self, metric: str, method: str, client: str) -> Floats:
        """Of the model that a client would use with this method."""
        return self.by_metric[metric].used_by(method, client)

    def difference(self, metric: str, first: str, second: str) -> Interval:
        """The first method minus the second."""
        by_method = self.by_metric[metric].by_method
        return interval(by_method[first].common - by_method[second].common)

    def gain(self, metric: str, method: str, client: str) -> Interval:
        """Of the model that the client would use over the one that it trained alone."""
        replicates = self.by_metric[metric]
        return interval(replicates.used_by(method, client) - replicates.alone[client])


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
            "No bootstrap intervals were computed (--replicates 0).", runs
        )
    kept = _usable_predictions(runs)
    repeats = tuple(dict.fromkeys(run.repeat for run in runs))
    paired = _paired_runs(kept, repeats)
    if reason := _why_not_comparable(runs, kept, paired):
        return PatientBootstrap.none_because(reason, runs)
    metrics = task_of_runs(runs).metrics
    first_method = next(iter(paired.values()))
    images = pooled_images([kept[run] for run in first_method])
    by_metric = {}
    for number, metric in enumerate(metrics):
        count_replicates = _counting_on(
            on_drawn, before=number * replicates, total=len(metrics) * replicates
        )
        by_metric[metric] = _replicates_of_metric(
            metric, paired, kept, images, replicates, count_replicates
        )
    used = {run for of_method in paired.values() for run in of_method}
    return PatientBootstrap(
        unit=images.unit,
        units=len(np.unique(images.owners)),
        repeats=repeats,
        by_metric=by_metric,
        left_out=tuple(f"{run.method}, seed {run.repeat}" for run in runs if run not in used),
    )


def _why_not_comparable(
    runs: Sequence[RecordedRun], kept: PredictionsByRun, paired: RunsByMethod
) -> str:
    """Why methods cannot be compared on the same patients; empty where they can."""
    if not runs:
        return "There is no seed that all methods have."
    if not kept:
        return (
            "These runs kept no scores of single images, so methods cannot be compared on the same"
            " patients."
        )
    if not paired:
        return "There is no method that kept the scores of single images in every seed."
    if not all(
        _tested_the_same(kept, of_repeat) for of_repeat in zip(*paired.values(), strict=True)
    ):
        return (
            "The methods were not tested on the same images, so they cannot be compared on the same"
            " patients."
        )
    return ""


def _paired_runs(kept: PredictionsByRun, repeats: Sequence[str]) -> dict[str, list[RecordedRun]]:
    """The runs of each method that kept its scores in every repeat, in the order of the repeats."""
    by_method = grouped((run.method, run) for run in kept)
    paired = {}
    for method, of_method in by_method.items():
        by_repeat = {run.repeat: run for run in of_method}
        if by_repeat.keys() == set(repeats):
            paired[method] = [by_repeat[repeat] for repeat in repeats]
    return paired


def _tested_the_same(kept: PredictionsByRun, runs: Sequence[RecordedRun]) -> bool:
    """Whether these runs, each of another method, were tested on the same images."""
    tests = set()
    for run in runs:
        part = kept[run]
        tests.add((part.tested, part.classes, len(part.truth), part.patients is None))
    return len(tests) == 1


def _counting_on(
    on_drawn: Callable[[int, int], None], before: int, total: int
) -> Callable[[int], None]:
    """Tells how many of all replicates are drawn, those before these included."""
    return lambda drawn: on_drawn(before + drawn, total)


def _replicates_of_metric(
    metric: str,
    paired: RunsByMethod,
    kept: PredictionsByRun,
    images: PooledImages,
    replicates: int,
    on_drawn: Callable[[int], None],
) -> MetricReplicates:
    """One bootstrap of all methods' models, so that the same patients are drawn for each."""
    outputs = [_outputs_by_model(metric, runs, kept) for runs in paired.values()]
    all_models = list(chain.from_iterable(outputs))
    measure = _measure(metric, paired)
    rows = iter(images.bootstrap(all_models, replicates, measure, on_drawn))
    by_method = {}
    for (method, runs), of_method in zip(paired.items(), outputs, strict=True):
        of_models = _replicates_of_method(runs[0], list(islice(rows, len(of_method))))
        if _has_unlabelled_outputs(runs, models=len(of_method)):
            common = _mean_over_labelling_clients(measure, runs, of_method, images, replicates)
            of_models = replace(of_models, common=common)
        by_method[method] = of_models
    by_labels = _replicates_of_labels(metric, paired, kept, images, replicates)
    return MetricReplicates(by_method, by_labels)


def _measure(metric: str, paired: RunsByMethod) -> Measure:
    return task_of_runs([runs[0] for runs in paired.values()]).metrics[metric].measure


def _has_unlabelled_outputs(runs: Sequence[RecordedRun], models: int) -> bool:
    """Whether some of the clients' own models have an output that their client has no label for."""
    return models > 1 and any(
        run.labelled_by(client) != run.findings for run in runs for client in run.ledger.clients
    )


def _mean_over_labelling_clients(
    measure: Measure,
    runs: Sequence[RecordedRun],
    models: Sequence[Floats],
    images: PooledImages,
    replicates: int,
) -> Floats:
    """Of the clients' own models, repeat by repeat and finding by finding: the mean over those
    whose clients label the finding (over all where none does), as in the run's own metrics. The
    same patients are drawn as for the models one by one.
    """
    values = []
    for number, run in enumerate(runs):
        for column, finding in enumerate(run.findings):
            labelling = [
                model
                for client, model in zip(run.ledger.clients, models, strict=True)
                if finding in run.labelled_by(client)
            ]
            # the same owners draw the same patients; only the images of this repeat are measured
            here = np.where(images.repeat == number, images.truth[:, column], -1)
            of_finding = replace(images, truth=here[:, None])
            outputs = [model[:, [column]] for model in labelling or models]
            rows = of_finding.bootstrap(outputs, replicates, measure)
            values.append(mean_of_defined(rows, axis=0))
    return mean_of_defined(np.stack(values), axis=0)


def _replicates_of_labels(
    metric: str,
    paired: RunsByMethod,
    kept: PredictionsByRun,
    images: PooledImages,
    replicates: int,
) -> dict[str, dict[str, Floats]]:
    """By client that labels some findings only, and method: of the model that the client would use,
    over the findings that it labels; the same patients are drawn as for all findings.
    """
    clients = _clients_of_some_labels(paired)
    outputs = [
        np.concatenate(
            [
                _outputs_for_client(metric, run, kept[run], client, labelled)
                for run, labelled in zip(runs, _labelled_by_repeat(paired, client), strict=True)
            ]
        )
        for client in clients
        for runs in paired.values()
    ]
    if not outputs:
        return {}
    rows = iter(images.bootstrap(outputs, replicates, _measure(metric, paired)))
    return {client: dict(zip(paired, islice(rows, len(paired)), strict=True)) for client in clients}


def _clients_of_some_labels(paired: RunsByMethod) -> list[str]:
    """The clients that lack all labels of a finding in some repeat."""
    every_run = chain.from_iterable(paired.values())
    pairs = ((run, client) for run in every_run for client in run.ledger.clients)
    return list(dict.fromkeys(c for run, c in pairs if run.labelled_by(c) != run.findings))


def _labelled_by_repeat(paired: RunsByMethod, client: str) -> list[tuple[str, ...]]:
    """The findings that a client labels in each repeat, from a run that has the client:
    `centralised` has none.
    """
    return [
        next(run.labelled_by(client) for run in of_repeat if client in run.ledger.clients)
        for of_repeat in zip(*paired.values(), strict=True)
    ]


def _outputs_for_client(
    metric: str, run: RecordedRun, predictions: Predictions, client: str, labelled: Sequence[str]
) -> Floats:
    """(images, findings): of the model that the client would use, NaN for a finding that it does
    not label.
    """
    by_model = _outputs_of_run(metric, run, predictions)
    own = len(by_model) > 1 and client in run.ledger.clients
    outputs: Floats = by_model[run.ledger.clients.index(client) if own else 0].astype(np.float64)
    outputs[:, ~np.isin(run.findings, labelled)] = np.nan
    return outputs


def _replicates_of_method(run: RecordedRun, models: Sequence[Floats]) -> MethodReplicates:
    """Of one model, or of one for each client of the run."""
    by_client = {}
    if len(models) > 1:
        by_client = dict(zip(run.ledger.clients, models, strict=True))
    return MethodReplicates(
        common=np.mean(models, axis=0),
        by_client=by_client,
        trained_alone=run.name == "alone",
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


def _outputs_by_model(
    metric: str, runs: Sequence[RecordedRun], kept: PredictionsByRun
) -> list[Floats]:
    """Of each of a method's models, over all repeats: scores, or calls, as the metric needs."""
    by_repeat = [_outputs_of_run(metric, run, kept[run]) for run in runs]
    return [
        np.concatenate([repeat[model] for repeat in by_repeat])
        for model in range(len(by_repeat[0]))
    ]


def _outputs_of_run(metric: str, run: RecordedRun, predictions: Predictions) -> Floats:
    """(models, images, findings): scores, or 1 for what is called, 0 for what is not, and NaN where
    that cannot be said.
    """
    task = task_of_runs([run])
    scores = predictions.by_model
    if not task.metrics[metric].of_calls:
        return scores
    clients = [""] if len(scores) == 1 else run.ledger.clients
    limits = np.array([thresholds(run, client) for client in clients])[:, None, :]
    return task.call(scores, limits)


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
