"""How good a federation's model is, or each client's own: scores of images, and the metrics that
follow from them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis import metrics
from feddraw.core import Local, Method, Model
from feddraw.data.dataset import Dataset, Split
from feddraw.engines import Engine, Rows
from feddraw.results.metrics import ClientMetrics, RunMetrics, SplitMetrics
from feddraw.tasks import Task
from feddraw.tasks.findings import Findings

Scores = NDArray[np.float32]  # (models, images, classes): one common model, or one per client
Arrays = dict[str, NDArray[Any]]  # by name, as predictions are kept
Thresholds = Sequence[Sequence[float]]  # of each model, a finding each
# by client that kept images back: its model's scores of them
HoldoutScores = Mapping[int, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates models on the images of a data set."""

    dataset: Dataset
    clients: tuple[str, ...]
    holdout: tuple[Rows, ...]  # by client
    # the test images as sites with other images have them
    views: Mapping[str, Rows] = field(default_factory=dict)
    task: Task = field(default_factory=Findings)
    # by client, the findings that it has a label of (None: all)
    labelled: Sequence[NDArray[np.bool_] | None] = ()

    def after_a_round(
        self, engine: Engine, models: Sequence[Model], splits: Sequence[Split]
    ) -> RunMetrics:
        """The compared metrics on validation data, and on other splits with the thresholds chosen
        there.
        """
        scores = {split: self._scores(engine, models, split) for split in splits}
        thresholds = self._thresholds(scores)
        evaluated = {}
        for split, values in scores.items():
            each = self._evaluations(values, self.truth(split), thresholds)
            whole = self._mean_over_clients(each) if len(each) > 1 else each[0]
            evaluated[split] = SplitMetrics(
                auc=whole.auc,
                gm=whole.gm,
                undefined=whole.undefined,
                not_finite=whole.not_finite,
                sites=self._test_auc_by_site(engine, models) if split == "test" else {},
                by_site=self._auc_of_sites(values, split),
                more=whole.more,
            )
        return RunMetrics(
            validation=evaluated["validation"], test=evaluated.get("test", SplitMetrics())
        )

    def at_the_end(
        self, engine: Engine, models: Sequence[Model], *, personal: bool
    ) -> tuple[RunMetrics, Arrays]:
        """All metrics, with thresholds chosen on validation data; and the scores they come from."""
        splits: tuple[Split, ...] = ("validation", "test")
        scores = {split: self._scores(engine, models, split) for split in splits}
        thresholds = self._thresholds(scores)
        by_model = {
            split: self._evaluations(values, self.truth(split), thresholds)
            for split, values in scores.items()
        }
        evaluated = {}
        for split, each in by_model.items():
            evaluated[split] = self._mean_over_clients(each) if personal else each[0]
            self._warn_of_undefined(evaluated[split], split)
        holdout_scores = {
            client: engine.predict(models[client if len(models) > 1 else 0], rows)
            for client, rows in enumerate(self.holdout)
            if len(rows)
        }
        clients = self._holdout_metrics(holdout_scores, thresholds)
        if personal:
            for client, tested in zip(self.clients, by_model["test"], strict=True):
                clients[client] = replace(clients.get(client, ClientMetrics()), test=tested)
        run_metrics = RunMetrics(
            validation=replace(
                evaluated["validation"],
                by_site=self._auc_of_sites(scores["validation"], "validation"),
            ),
            test=replace(
                evaluated["test"],
                sites=self._test_auc_by_site(engine, models),
                by_site=self._auc_of_sites(scores["test"], "test"),
            ),
            clients=clients,
        )
        predictions = self._split_predictions(scores, personal)
        return run_metrics, predictions | self._holdout_predictions(holdout_scores)

    def _mean_over_clients(self, each: Sequence[SplitMetrics]) -> SplitMetrics:
        """Of the clients' own models; a finding counts for those of the clients that label it."""
        return metrics.mean_of(each, self.labelled)

    def _warn_of_undefined(self, split_metrics: SplitMetrics, split: str) -> None:
        areas = split_metrics.auc.per_class
        broken = split_metrics.not_finite
        others = [name for name in split_metrics.undefined if name not in broken]
        one_label = [name for name in others if math.isnan(areas[name])]
        no_threshold = [name for name in others if name not in one_label]
        metrics_in_words = " or ".join(self.task.labels.values())
        one_kind = self.task.words.labels.one_kind
        _warn(metrics_in_words, one_label, f"{one_kind} in {split} data")
        if self.task.has_thresholds:
            why = f"{one_kind} in validation data, so there is no threshold"
            _warn("GM", no_threshold, why)
        _warn(metrics_in_words, broken, "the model's scores are not finite numbers")

    def _test_auc_by_site(self, engine: Engine, models: Sequence[Model]) -> dict[str, float]:
        """The test AUC at each site whose images differ, on the test images as that site would have
        made them.
        """
        areas = {}
        for site, rows in self.views.items():
            truth = self.dataset.labels.truth(rows)
            model = models[self.clients.index(site)] if len(models) > 1 else models[0]
            scores = engine.predict(model, rows)
            areas[site] = metrics.macro(
                metrics.auc(scores[:, c], truth[:, c]) for c in range(truth.shape[1])
            )
        return areas

    def _auc_of_sites(self, scores: Scores, split: Split) -> dict[str, float]:
        """The AUC of each site's own images of a split, where sites are known and it is defined; of
        the site's own model where each client has one.
        """
        if self.dataset.labels.sites is None:
            return {}
        site_of_image = self.dataset.labels.sites[self.dataset.rows[split]]
        truth = self.truth(split)
        areas = {}
        for site in np.unique(site_of_image).tolist():
            if len(scores) > 1 and site not in self.clients:
                continue
            of_model = scores[self.clients.index(site) if len(scores) > 1 else 0]
            here = site_of_image == site
            areas[site] = metrics.macro(
                metrics.auc(of_model[here, c], truth[here, c]) for c in range(truth.shape[1])
            )
        return {site: area for site, area in areas.items() if math.isfinite(area)}

    def truth(self, split: Split) -> metrics.Truth:
        return self.dataset.labels.truth(self.dataset.rows[split])

    def _scores(self, engine: Engine, models: Sequence[Model], split: Split) -> Scores:
        return np.stack([engine.predict(model, self.dataset.rows[split]) for model in models])

    def _thresholds(self, scores: Mapping[Split, Scores]) -> list[list[float]]:
        truth = self.truth("validation")
        return [self.task.choose_thresholds(of_model, truth) for of_model in scores["validation"]]

    def _evaluations(
        self, scores: Scores, truth: metrics.Truth, thresholds: Thresholds
    ) -> list[SplitMetrics]:
        """By model."""
        return [
            self.task.evaluate(of_model, truth, self.dataset.findings, limits)
            for of_model, limits in zip(scores, thresholds, strict=True)
        ]

    def _holdout_metrics(
        self, holdout_scores: HoldoutScores, thresholds: Thresholds
    ) -> dict[str, ClientMetrics]:
        """The model that each client would use, on the images that it kept back."""
        clients = {}
        for client, scores in holdout_scores.items():
            limits = thresholds[client if len(thresholds) > 1 else 0]
            truth = self.dataset.labels.truth(self.holdout[client])
            evaluated = self.task.evaluate(scores, truth, self.dataset.findings, limits)
            clients[self.clients[client]] = ClientMetrics(holdout=evaluated)
        return clients

    def _split_predictions(self, scores: Mapping[Split, Scores], personal: bool) -> Arrays:
        """Scores and truth by image, which images are of one patient, and each image's site and
        subgroups: what comparisons need.
        """
        arrays: Arrays = {}
        patients = self.dataset.labels.patient_numbers()
        for split, values in scores.items():
            arrays[f"{split}.scores"] = values if personal else values[0]
            arrays[f"{split}.truth"] = self.truth(split)
            if patients is not None:
                arrays[f"{split}.patients"] = patients[self.dataset.rows[split]]
            for number, grouping in enumerate(self.dataset.labels.groupings()):
                arrays[f"{split}.group.{number}"] = grouping.of_image[self.dataset.rows[split]]
        return arrays

    def _holdout_predictions(self, holdout_scores: HoldoutScores) -> Arrays:
        """The same for the images that clients kept back, each with its client's number."""
        if not holdout_scores:
            return {}
        rows = np.concatenate([self.holdout[client] for client in holdout_scores])
        images = [len(scores) for scores in holdout_scores.values()]
        arrays: Arrays = {
            "holdout.scores": np.concatenate(list(holdout_scores.values())),
            "holdout.truth": self.dataset.labels.truth(rows),
            "holdout.client": np.repeat(list(holdout_scores), images),
            "holdout.rows": rows.astype(np.int64),
        }
        patients = self.dataset.labels.patient_numbers()
        if patients is not None:
            arrays["holdout.patients"] = patients[rows]
        return arrays


def has_personal_models(method: Method) -> bool:
    """Whether each client ends with a model of its own."""
    return type(method.local).personal is not Local.personal


def models_to_evaluate(
    method: Method, engine: Engine, shown: Model, clients: int
) -> tuple[list[Model], bool]:
    """The common model, or each client's own; and whether they are the clients' own."""
    of_clients = [
        method.local.personal(shown, engine.memory.get(client, {})) for client in range(clients)
    ]
    personal = [model for model in of_clients if model is not None]
    return (personal, True) if len(personal) == clients else ([shown], False)


def _warn(metric: str, names: Sequence[str], why: str) -> None:
    if names:
        warnings.warn(
            f"no {metric} for {', '.join(names)}: {why}; left out of the mean", stacklevel=4
        )
