"""How good a federation's model is, or each client's own: scores of images, and the metrics that
follow from them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis import metrics
from feddraw.core import Local, Method, Model
from feddraw.data.dataset import Dataset, Split
from feddraw.engines import Engine, Rows

Scores = NDArray[np.float32]  # (models, images, classes): one common model, or one per client
Arrays = dict[str, NDArray[Any]]  # by name, as predictions are kept
Thresholds = Sequence[Sequence[float]]  # of each model, a finding each
HoldoutScores = Mapping[
    int, NDArray[np.float32]
]  # by client that kept images back: its model's scores of them


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates models on the images of a data set."""

    dataset: Dataset
    clients: tuple[str, ...]
    holdout: tuple[Rows, ...]  # by client
    views: Mapping[str, Rows] = field(
        default_factory=dict
    )  # the test images as sites with other images have them

    def after_a_round(
        self, engine: Engine, models: Sequence[Model], splits: Sequence[Split]
    ) -> dict[str, Any]:
        """AUC and GM on validation data, and on other splits with the thresholds chosen there."""
        scores = {split: self._scores(engine, models, split) for split in splits}
        thresholds = self._thresholds(scores)
        found = {
            p: metrics.mean_of(self._evaluations(s, self.truth(p), thresholds))
            for p, s in scores.items()
        }
        kinds = ("auc", "gm", "undefined", "not_finite")
        kept: dict[str, Any] = {
            split: {kind: each[kind] for kind in kinds} for split, each in found.items()
        }
        if "test" in kept:
            kept["test"] |= self._test_auc_by_site(engine, models)
        return kept

    def at_the_end(
        self, engine: Engine, models: Sequence[Model], *, personal: bool
    ) -> tuple[dict[str, Any], Arrays]:
        """All metrics, with thresholds chosen on validation data; and the scores they come from."""
        splits: tuple[Split, ...] = ("validation", "test")
        scores = {split: self._scores(engine, models, split) for split in splits}
        thresholds = self._thresholds(scores)
        found: dict[str, Any] = {}
        for split, values in scores.items():
            each = self._evaluations(values, self.truth(split), thresholds)
            found[split] = metrics.mean_of(each) if personal else each[0]
            _warn_after_evaluation(found[split], split)
        found["test"] |= self._test_auc_by_site(engine, models)
        kept_back = {
            client: engine.predict(models[client if len(models) > 1 else 0], rows)
            for client, rows in enumerate(self.holdout)
            if len(rows)
        }
        found["clients"] = self._holdout_metrics(kept_back, thresholds)
        if personal:
            for client, one in zip(self.clients, each, strict=True):
                found["clients"].setdefault(client, {})["test"] = one
        return found, self._split_predictions(scores, personal) | self._holdout_predictions(
            kept_back
        )

    def _test_auc_by_site(self, engine: Engine, models: Sequence[Model]) -> dict[str, Any]:
        """The test AUC at each site whose images differ, on the test images as that site would have
        made them.
        """
        areas = {}
        for site, rows in self.views.items():
            truth = self.dataset.labels.truth(rows)
            own = models[self.clients.index(site)] if len(models) > 1 else models[0]
            scores = engine.predict(own, rows)
            areas[site] = metrics.macro(
                metrics.auc(scores[:, c], truth[:, c]) for c in range(truth.shape[1])
            )
        return {"sites": areas} if areas else {}

    def truth(self, split: Split) -> metrics.Truth:
        return self.dataset.labels.truth(self.dataset.rows[split])

    def _scores(self, engine: Engine, models: Sequence[Model], split: Split) -> Scores:
        return np.stack([engine.predict(model, self.dataset.rows[split]) for model in models])

    def _thresholds(self, scores: Mapping[Split, Scores]) -> list[list[float]]:
        return [
            metrics.choose_thresholds(one, self.truth("validation")) for one in scores["validation"]
        ]

    def _evaluations(
        self, scores: Scores, truth: metrics.Truth, thresholds: Thresholds
    ) -> list[dict[str, Any]]:
        pairs = zip(scores, thresholds, strict=True)
        return [metrics.evaluate(one, truth, self.dataset.findings, own) for one, own in pairs]

    def _holdout_metrics(
        self, kept_back: HoldoutScores, thresholds: Thresholds
    ) -> dict[str, dict[str, Any]]:
        """The model that each client would use, on the images that it kept back."""
        found = {}
        for client, scores in kept_back.items():
            own = thresholds[client if len(thresholds) > 1 else 0]
            truth = self.dataset.labels.truth(self.holdout[client])
            found[self.clients[client]] = {
                "holdout": metrics.evaluate(scores, truth, self.dataset.findings, own)
            }
        return found

    def _split_predictions(self, scores: Mapping[Split, Scores], personal: bool) -> Arrays:
        """Scores and truth by image, and which images are of one patient: what paired comparisons
        need.
        """
        found: Arrays = {}
        codes = self.dataset.labels.patient_numbers()
        for split, values in scores.items():
            found[f"{split}.scores"] = values if personal else values[0]
            found[f"{split}.truth"] = self.truth(split)
            if codes is not None:
                found[f"{split}.patients"] = codes[self.dataset.rows[split]]
        return found

    def _holdout_predictions(self, kept_back: HoldoutScores) -> Arrays:
        """The same for the images that clients kept back, each with its client's number."""
        if not kept_back:
            return {}
        rows = np.concatenate([self.holdout[client] for client in kept_back])
        found: Arrays = {
            "holdout.scores": np.concatenate(list(kept_back.values())),
            "holdout.truth": self.dataset.labels.truth(rows),
            "holdout.client": np.repeat(
                list(kept_back), [len(scores) for scores in kept_back.values()]
            ),
            "holdout.rows": rows.astype(np.int64),
        }
        codes = self.dataset.labels.patient_numbers()
        return found if codes is None else found | {"holdout.patients": codes[rows]}


def has_personal_models(method: Method) -> bool:
    """Whether each client ends with a model of its own."""
    return type(method.local).personal is not Local.personal


def models_to_evaluate(
    method: Method, engine: Engine, shown: Model, clients: int
) -> tuple[list[Model], bool]:
    """The common model, or each client's own; and whether they are the clients' own."""
    own = [method.local.personal(shown, engine.memory.get(client, {})) for client in range(clients)]
    personal = [model for model in own if model is not None]
    return (personal, True) if len(personal) == clients else ([shown], False)


def _warn_after_evaluation(found: Mapping[str, Any], split: str) -> None:
    broken = found["not_finite"]
    rest = [name for name in found["undefined"] if name not in broken]
    alike = [name for name in rest if math.isnan(found["auc"]["per_class"][name])]
    without_threshold = [name for name in rest if name not in alike]
    for what, names, why in (
        ("AUC or GM", alike, f"only positives or only negatives in {split} data"),
        (
            "GM",
            without_threshold,
            "only positives or only negatives in validation data, so there is no threshold",
        ),
        ("AUC or GM", broken, "the model's scores are not finite numbers"),
    ):
        if names:
            warnings.warn(
                f"no {what} for {', '.join(names)}: {why}; left out of the mean", stacklevel=2
            )
