"""A run's folder read back: settings, ledger, metrics and predictions.

Nothing that a file names is imported, and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from feddraw.results.kept_models import KEPT
from feddraw.results.ledger_table import MOST_CELLS, Ledger
from feddraw.results.outcome_settings import dotted_settings
from feddraw.results.run_folder import RunFolder, first_divergence
from feddraw.system.file_reading import damage_told, read_csv, read_json, read_jsonl, read_toml

Floats = NDArray[np.float64]

REFERENCES = {
    "centralised": "all clients' images in one place, no federation",
    "alone": "each client for itself, no federation; mean over the clients",
}
METRICS = {"auc": "AUC", "gm": "GM"}
MAX_SCORES = 2**30  # bytes of a file of predictions, which is read whole
RATES = ("sensitivity", "specificity", "thresholds")
# What a federation without test images has of each metric.
UNTESTED: dict[str, Any] = {metric: {"macro": None, "per_class": {}} for metric in METRICS}
CLIENT_SPLITS = ("holdout", "test")  # on the client's own images; a model of its own on the common test images


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a run's model said about the test images."""

    scores: Floats  # (images, classes), or (clients, images, classes) where every client has a model of its own
    truth: NDArray[np.integer[Any]]  # 1, 0, and -1 where a label is not known
    patients: NDArray[np.int64] | None
    classes: tuple[str, ...]
    tested: str  # a hash of what was tested: equal for the same images

    @property
    def whole(self) -> bool:
        """Whether the arrays belong together."""
        images, classes = self.truth.shape if self.truth.ndim == 2 else (0, 0)
        owned = self.patients is None or (self.patients.shape == (images,) and self.patients.dtype.kind in "iu")
        scored = self.scores.ndim in (2, 3) and self.scores.shape[-2:] == (images, classes) and len(self.scores) > 0
        return scored and owned and classes == len(self.classes) and set(np.unique(self.truth)) <= {-1, 0, 1}

    @property
    def by_model(self) -> Floats:
        """(models, images, classes)"""
        return self.scores if self.scores.ndim == 3 else self.scores[None]


@dataclass(frozen=True, eq=False)
class Holdout:
    """What the model that each client would use said about the images that the client kept back."""

    scores: Floats  # (images, findings)
    truth: NDArray[np.integer[Any]]  # 1, 0, and -1 where a label is not known
    clients: NDArray[np.int64]  # (images,), the number of each image's client
    rows: NDArray[np.int64]  # (images,), where each image is in the data set
    patients: NDArray[np.int64] | None

    @property
    def whole(self) -> bool:
        """Whether the arrays belong together."""
        images = len(self.rows)
        columns = [self.clients, self.rows, *([] if self.patients is None else [self.patients])]
        flat = all(column.shape == (images,) and column.dtype.kind in "iu" for column in columns)
        return flat and self.truth.ndim == 2 and self.truth.shape == self.scores.shape and len(self.truth) == images


@dataclass(frozen=True, eq=False)
class Run:
    """A run's folder, read back."""

    path: Path
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Mapping[str, Any]  # empty while the run is not finished
    rounds: Sequence[Mapping[str, Any]]
    ledger: Ledger
    model: str = "last"  # or another that was kept, whose metrics and predictions these are
    scenario: str = ""  # labels, which tell apart what has the same name but other settings
    method: str = ""

    @property
    def name(self) -> str:
        return str(self.settings["method"]["name"])

    @property
    def reference(self) -> bool:
        return self.name in REFERENCES

    @property
    def finished(self) -> bool:
        return bool(self.metrics)

    @property
    def diverged(self) -> tuple[int, str] | None:
        """The first round that shows it, and why."""
        found = first_divergence(self.rounds)
        return (int(found["round"]), str(found["why"])) if found else None

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(self.metrics["test"]["auc"]["per_class"])

    @property
    def partition(self) -> Mapping[str, Any]:
        return dict(self.settings.get("partition", {}))

    @cached_property
    def flat(self) -> dict[str, Any]:
        return {
            name: value for name, value in dotted_settings(self.settings).items() if not name.startswith("partition.")
        }

    @property
    def repeat(self) -> str:
        """The seed, and what else of its kind differs from it."""
        seed = self.flat["seed"]
        words = {"partition_seed": "partition", "data.seed": "data", "data.fold": "fold"}
        more = [f"{word} {self.flat[key]}" for key, word in words.items() if self.flat.get(key, seed) not in (seed, -1)]
        return " ".join([str(seed), *(m for m in more if m != "data 0")])

    def test(self, metric: str, finding: str = "", client: str = "", split: str = "test") -> float:
        """A test metric, macro or of a finding, of the global model or of a client's; NaN where it is undefined."""
        scores = self.metrics["clients"].get(client, {}).get(split) if client else self.metrics["test"]
        if not scores:
            return math.nan
        return number(scores[metric]["per_class"].get(finding) if finding else scores[metric]["macro"])

    def curve(self, split: str, metric: str = "auc") -> list[float]:
        """A macro metric by round, NaN where there is none."""
        entries = [entry.get(split) or {} for entry in self.rounds]
        return [number((entry if metric == "auc" else entry.get(metric) or {}).get("macro")) for entry in entries]

    def by_class(self) -> dict[str, Floats]:
        """Weights (rounds × clients) of each finding's row of the classifier, where the method has such weights."""
        lines = read_csv(self.path / "pieces.csv")
        place = {client: i for i, client in enumerate(self.ledger.clients)}
        pieces, shape = {line.get("piece") for line in lines}, (len(self.ledger.status), len(place))
        names = [name for name in self.findings if name in pieces]
        with damage_told(self.path / "pieces.csv"):
            if len(names) * math.prod(shape) > MOST_CELLS:
                raise ValueError(f"{len(names)} findings")
            found = {name: np.full(shape, np.nan) for name in names}
            for line in lines:
                if line["piece"] in found:
                    found[line["piece"]][int(line["round"]), place[line["client"]]] = float(line["weight"])
        return {name: weights for name, weights in found.items() if np.isfinite(weights).any()}

    @property
    def models(self) -> dict[str, Run]:
        """This run with the metrics and predictions of each of its models, where it kept others than the last."""
        kept = {
            name: replace(self, model=name, metrics={"clients": {}, "test": UNTESTED} | dict(found))
            for name, found in self.metrics.get("models", {}).items()
        }
        return {self.model: self} | kept if kept else {}

    def predictions(self, split: str = "test") -> Predictions | None:
        """The scores of every image of a split, where the run kept them."""
        with _unless_damaged():
            notes, arrays = _kept_scores(self, split)
            about, prefix = json.loads(notes["feddraw"]), "" if self.model == "last" else f"{self.model}."
            scores, truth = arrays[f"{prefix}{split}.scores"].astype(np.float64), arrays[f"{split}.truth"]
            patients, findings = arrays.get(f"{split}.patients"), tuple(map(str, about["classes"]))
            found = Predictions(scores, truth, patients, findings, str(about["test"]))
            return found if found.whole else None
        return None


def read_holdout(run: Run) -> Holdout | None:
    """The scores of the images that clients kept back, where the run has such."""
    with _unless_damaged():
        _, arrays = _kept_scores(run, "holdout")
        scores, truth, clients, rows = (arrays[f"holdout.{name}"] for name in ("scores", "truth", "client", "rows"))
        found = Holdout(scores.astype(np.float64), truth, clients, rows, arrays.get("holdout.patients"))
        return found if found.whole else None
    return None


def _unless_damaged() -> suppress:
    """A file of scores that is missing, or not as a run writes it, is as good as none."""
    return suppress(SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError)


def _kept_scores(run: Run, split: str) -> tuple[Any, dict[str, NDArray[Any]]]:
    """What a run's file of predictions says about itself, and its arrays of one split."""
    path = RunFolder(run.path).predictions
    if not path.is_file() or path.stat().st_size > MAX_SCORES:
        raise ValueError("no file of predictions")
    with safe_open(path, "np") as file:
        names = [name for name in file.keys() if f"{split}." in name]  # noqa: SIM118
        return file.metadata(), {name: file.get_tensor(name) for name in names}


def number(value: Any) -> float:
    """As metrics.json has numbers: null is undefined, and infinity is a word."""
    return math.nan if value is None else float(value)


def read_run(path: Path) -> Run:
    """A run's folder, finished or not; a file in it that is not as a run writes it is named."""
    folder = RunFolder(path)
    settings = read_toml(folder.settings)
    with damage_told(folder.settings):
        _ = [str(settings[section]["name"]) for section in ("data", "scenario", "model", "method")]
        _ = int(settings["seed"]), int(settings["rounds"])
    with damage_told(folder.ledger):
        ledger = Ledger.of(read_csv(folder.ledger))
    rounds = read_jsonl(folder.rounds)
    environment, metrics = (read_json(file) if file.is_file() else {} for file in (folder.environment, folder.metrics))
    if "validation" in metrics:
        metrics.setdefault("test", UNTESTED)
    if metrics:
        with damage_told(folder.metrics):
            for client in metrics.get("clients", {}).values():
                if "held_out" in client:  # what holdout images were called up to version 0.1
                    client["holdout"] = client.pop("held_out")
            _check(metrics)
    run = Run(path, settings, environment, {"clients": {}} | metrics if metrics else {}, rounds, ledger)
    with damage_told(folder.rounds):
        _ = run.curve("validation"), run.curve("test"), run.diverged
    _ = run.by_class() if run.finished else {}
    return run


def _check(metrics: Mapping[str, Any]) -> None:
    """Everything that is read of the metrics later can be read."""
    for name, found in metrics.get("models", {}).items():
        if name not in KEPT or not found["rounds"] or not all(type(round) is int for round in found["rounds"]):
            raise ValueError("a model that no run keeps")
        _ = str(found["chosen_by"]), number(found.get("validation", UNTESTED)["auc"]["macro"])
        _check({"test": UNTESTED} | found | {"models": {}})
    clients = metrics.get("clients", {}).values()
    own = [client[split] for client in clients for split in CLIENT_SPLITS if split in client]
    for scores in (metrics["test"], *own):
        for metric in METRICS:
            values = [number(scores[metric]["macro"]), *map(number, scores[metric]["per_class"].values())]
            if not all(math.isnan(value) or 0 <= value <= 1 for value in values):
                raise ValueError(f"{metric} outside 0 to 1")
        for rate in RATES:
            _ = list(map(number, scores.get(rate, {}).values()))
