"""How good a run's models are, as values: what `metrics.json` and the lines of `rounds.jsonl` hold.

Every number is a float; one that is undefined is NaN here and null in a file. Readers raise a
KeyError, TypeError or ValueError for what a run does not write; who reads a file turns it into one
line (`damage_told`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from feddraw.system.file_reading import number_or_nan

KEPT_MODELS = ("best", "tail")  # that a run keeps on request beside the model of its last round


@dataclass(frozen=True)
class MacroMetric:
    """A metric of each finding or class, and its mean over those that have a value; or a metric of
    all together, which has none of each.
    """

    macro: float = math.nan
    per_class: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def read(document: Mapping[str, Any], name: str, lowest: float = 0.0) -> MacroMetric:
        metric = MacroMetric(
            macro=number_or_nan(document["macro"]), per_class=_numbers(document["per_class"])
        )
        values = (metric.macro, *metric.per_class.values())
        if not all(math.isnan(value) or lowest <= value <= 1 for value in values):
            raise ValueError(f"{name} outside {lowest:g} to 1")
        return metric

    def document(self) -> dict[str, Any]:
        return {"macro": self.macro, "per_class": dict(self.per_class)}


UNDEFINED = MacroMetric()


@dataclass(frozen=True)
class SplitMetrics:
    """All metrics of one model on the images of one split; without findings: not evaluated."""

    auc: MacroMetric = UNDEFINED
    gm: MacroMetric = UNDEFINED
    # by finding; of a round before the last only the two above are kept
    sensitivity: Mapping[str, float] = field(default_factory=dict)
    specificity: Mapping[str, float] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    undefined: tuple[str, ...] = ()  # findings without AUC or GM
    not_finite: tuple[str, ...] = ()  # those of them with a score that is not a finite number
    sites: Mapping[str, float] = field(default_factory=dict)  # AUC by site with altered images
    # AUC of each site's own images of the split, after every round, where sites are known
    by_site: Mapping[str, float] = field(default_factory=dict)
    # what the task measures beside these, by name; from -1 to 1
    more: Mapping[str, MacroMetric] = field(default_factory=dict)
    # images by class (rows) and by what they were called (columns), where a task calls one class
    confusion: tuple[tuple[int, ...], ...] = ()

    @property
    def evaluated(self) -> bool:
        return bool(self.auc.per_class)

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(self.auc.per_class)

    @property
    def by_name(self) -> dict[str, MacroMetric]:
        """`auc`, `gm`, and what the task adds; undefined where this one has no such metric."""
        return {"auc": self.auc, "gm": self.gm, **self.more}

    def of(self, metric: str) -> MacroMetric:
        """One of `by_name`; undefined where there is no such metric."""
        return self.by_name.get(metric, UNDEFINED)

    @staticmethod
    def read(document: Mapping[str, Any]) -> SplitMetrics:
        """What `document` wrote to metrics.json."""
        auc = MacroMetric.read(document["auc"], "auc")
        return SplitMetrics(
            auc=auc,
            gm=MacroMetric.read(document["gm"], "gm") if "gm" in document else UNDEFINED,
            sensitivity=_numbers(document["sensitivity"]),
            specificity=_numbers(document["specificity"]),
            thresholds=_numbers(document["thresholds"]),
            undefined=_names(document["undefined"]),
            not_finite=_names(document.get("not_finite", [])),
            sites=_numbers(document.get("sites", {})),
            more=_more_metrics(document),
            confusion=_confusion(document.get("confusion", []), len(auc.per_class)),
        )

    def document(self) -> dict[str, Any]:
        """As metrics.json has it; what only some runs have is left out where it is empty."""
        document: dict[str, Any] = {"auc": self.auc.document()}
        if self.gm.per_class:
            document["gm"] = self.gm.document()
        document |= {
            "sensitivity": dict(self.sensitivity),
            "specificity": dict(self.specificity),
            "thresholds": dict(self.thresholds),
            "undefined": list(self.undefined),
        }
        if self.more:
            document["more"] = _documents(self.more)
        if self.confusion:
            document["confusion"] = list(map(list, self.confusion))
        if self.not_finite:
            document["not_finite"] = list(self.not_finite)
        if self.sites:
            document["sites"] = dict(self.sites)
        return document

    @staticmethod
    def read_from_log(document: Mapping[str, Any]) -> SplitMetrics:
        """What `log_document` wrote to a line of rounds.jsonl."""
        return SplitMetrics(
            auc=MacroMetric.read(document, "auc"),
            gm=MacroMetric.read(document["gm"], "gm") if "gm" in document else UNDEFINED,
            undefined=_names(document.get("undefined", [])),
            sites=_numbers(document.get("sites", {})),
            by_site=_numbers(document.get("by_site", {})),
            more=_more_metrics(document),
        )

    def log_document(self) -> dict[str, Any]:
        """As a round's line has it: the AUC, the GM, the AUC by site, what is undefined, and what
        the task adds.
        """
        document = self.auc.document()
        if self.gm.per_class:
            document["gm"] = self.gm.document()
        if self.more:
            document["more"] = _documents(self.more)
        if self.sites:
            document["sites"] = dict(self.sites)
        if self.by_site:
            document["by_site"] = dict(self.by_site)
        if self.undefined:
            document["undefined"] = list(self.undefined)
        return document


NOT_EVALUATED = SplitMetrics()


@dataclass(frozen=True)
class ClientMetrics:
    """The model that one client would use, on its own images and on the common test images."""

    holdout: SplitMetrics = NOT_EVALUATED  # the images that the client kept back
    test: SplitMetrics = NOT_EVALUATED  # only where the client has a model of its own

    def on(self, split: str) -> SplitMetrics:
        """On `holdout` or `test`."""
        return {"holdout": self.holdout, "test": self.test}[split]

    @staticmethod
    def read(document: Mapping[str, Any]) -> ClientMetrics:
        return ClientMetrics(
            holdout=_split_in(document, "holdout"), test=_split_in(document, "test")
        )

    def document(self) -> dict[str, Any]:
        return _splits_document({"holdout": self.holdout, "test": self.test})


@dataclass(frozen=True)
class ModelMetrics:
    """One model of a run: the rounds that it comes from, what chose it, and how good it is."""

    rounds: tuple[int, ...] = (0,)
    chosen_by: str = ""  # empty for the model of the last round
    validation: SplitMetrics = NOT_EVALUATED
    test: SplitMetrics = NOT_EVALUATED
    clients: Mapping[str, ClientMetrics] = field(default_factory=dict)

    @property
    def evaluated(self) -> bool:
        return self.validation.evaluated or self.test.evaluated

    @staticmethod
    def read(document: Mapping[str, Any]) -> ModelMetrics:
        """A model that was kept beside that of the last round."""
        rounds = document["rounds"]
        if not rounds or not all(type(round) is int for round in rounds):
            raise ValueError("a model of no round")
        return ModelMetrics(
            rounds=tuple(rounds), chosen_by=str(document["chosen_by"]), **_model_fields(document)
        )

    def document(self) -> dict[str, Any]:
        head = {"rounds": list(self.rounds), "chosen_by": self.chosen_by}
        return head | (self._body() if self.evaluated else {})

    def _body(self) -> dict[str, Any]:
        splits = _splits_document({"validation": self.validation, "test": self.test})
        clients = {name: client.document() for name, client in self.clients.items()}
        return splits | {"clients": clients}


@dataclass(frozen=True)
class Divergence:
    """The first round that shows that a run has diverged, and how."""

    round: int
    why: str

    @staticmethod
    def read(document: Mapping[str, Any]) -> Divergence:
        return Divergence(int(document["round"]), str(document["why"]))

    def document(self) -> dict[str, Any]:
        return {"round": self.round, "why": self.why}


@dataclass(frozen=True)
class RunMetrics(ModelMetrics):
    """The model after a round, in metrics.json that after the last one, and other models kept."""

    models: Mapping[str, ModelMetrics] = field(default_factory=dict)  # by name: best, tail
    diverged: Divergence | None = None

    @property
    def round(self) -> int:
        return self.rounds[-1]

    def after(self, round: int) -> RunMetrics:
        """The same for the model after this round."""
        return replace(self, rounds=(round,))

    @staticmethod
    def read(document: Mapping[str, Any]) -> RunMetrics:
        """What metrics.json holds."""
        models = document.get("models", {})
        if not models.keys() <= set(KEPT_MODELS):
            raise ValueError("a model that no run keeps")
        return RunMetrics(
            rounds=(int(document["round"]),),
            **_model_fields(document),
            models={name: ModelMetrics.read(model) for name, model in models.items()},
            diverged=Divergence.read(document["diverged"]) if "diverged" in document else None,
        )

    def document(self) -> dict[str, Any]:
        document = {"round": self.round} | self._body()
        if self.models:
            document["models"] = {name: model.document() for name, model in self.models.items()}
        if self.diverged is not None:
            document["diverged"] = self.diverged.document()
        return document


def _model_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    clients = document.get("clients", {})
    return {
        "validation": _split_in(document, "validation"),
        "test": _split_in(document, "test"),
        "clients": {str(name): ClientMetrics.read(client) for name, client in clients.items()},
    }


def _split_in(document: Mapping[str, Any], split: str) -> SplitMetrics:
    return SplitMetrics.read(document[split]) if split in document else NOT_EVALUATED


def _splits_document(splits: Mapping[str, SplitMetrics]) -> dict[str, Any]:
    return {name: split.document() for name, split in splits.items() if split.evaluated}


def _numbers(document: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): number_or_nan(value) for name, value in document.items()}


def _documents(metrics: Mapping[str, MacroMetric]) -> dict[str, Any]:
    return {name: metric.document() for name, metric in metrics.items()}


def _more_metrics(document: Mapping[str, Any]) -> dict[str, MacroMetric]:
    """Such as kappa, which is below zero where calls are worse than chance."""
    return {
        str(name): MacroMetric.read(metric, str(name), lowest=-1.0)
        for name, metric in document.get("more", {}).items()
    }


def _confusion(document: Any, classes: int) -> tuple[tuple[int, ...], ...]:
    """A square of numbers of images, with a row for each class; or nothing."""
    rows = tuple(tuple(row) for row in document)
    if rows and [len(row) for row in rows] != [classes] * classes:
        raise ValueError("a confusion matrix of other classes")
    if not all(type(count) is int and count >= 0 for row in rows for count in row):
        raise ValueError("a confusion matrix of other than numbers of images")
    return rows


def _names(document: Any) -> tuple[str, ...]:
    if not isinstance(document, list):
        raise TypeError("findings that are no list")
    return tuple(str(name) for name in document)
