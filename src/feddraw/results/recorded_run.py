"""A run's folder read back: settings, ledger, metrics and predictions.

Nothing that a file names is imported, and nothing is unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError
from feddraw.results.kept_models import KEPT_MODELS
from feddraw.results.ledger_table import MOST_LEDGER_CELLS, LedgerTable
from feddraw.results.outcome_settings import dotted_settings
from feddraw.results.predictions import Predictions, read_predictions
from feddraw.results.run_folder import RunFolder, first_divergence, require_run
from feddraw.system.file_reading import number_or_nan, read_csv, read_json, read_jsonl, read_toml

Floats = NDArray[np.float64]

REFERENCES = {
    "centralised": "all clients' images in one place, no federation",
    "alone": "each client for itself, no federation; mean over the clients",
}
METRICS = {"auc": "AUC", "gm": "GM"}
THRESHOLD_METRICS = ("sensitivity", "specificity", "thresholds")
# What a federation without test images has of each metric.
UNTESTED: dict[str, Any] = {metric: {"macro": None, "per_class": {}} for metric in METRICS}
CLIENT_SPLITS = (
    "holdout",
    "test",
)  # on the client's own images; a model of its own on the common test images


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run's folder, read back."""

    path: Path
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Mapping[str, Any]  # empty while the run is not finished
    rounds: Sequence[Mapping[str, Any]]
    ledger: LedgerTable
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
        every = dotted_settings(self.settings).items()
        return {name: value for name, value in every if not name.startswith("partition.")}

    @property
    def repeat(self) -> str:
        """The seed, and what else of its kind differs from it."""
        seed = self.flat["seed"]
        words = {"partition_seed": "partition", "data.seed": "data", "data.fold": "fold"}
        more = [
            f"{word} {self.flat[key]}"
            for key, word in words.items()
            if self.flat.get(key, seed) not in (seed, -1)
        ]
        return " ".join([str(seed), *(m for m in more if m != "data 0")])

    def test(self, metric: str, finding: str = "", client: str = "", split: str = "test") -> float:
        """A test metric, macro or of a finding, of the global model or of a client's; NaN where it
        is undefined.
        """
        scores = (
            self.metrics["clients"].get(client, {}).get(split) if client else self.metrics["test"]
        )
        if not scores:
            return math.nan
        return number_or_nan(
            scores[metric]["per_class"].get(finding) if finding else scores[metric]["macro"]
        )

    def curve(self, split: str, metric: str = "auc") -> list[float]:
        """A macro metric by round, NaN where there is none."""
        entries = [entry.get(split) or {} for entry in self.rounds]
        found = entries if metric == "auc" else [entry.get(metric) or {} for entry in entries]
        return [number_or_nan(one.get("macro")) for one in found]

    def by_class(self) -> dict[str, Floats]:
        """Weights (rounds × clients) of each finding's row of the classifier, where the method has
        such weights.
        """
        lines = read_csv(self.path / "pieces.csv")
        place = {client: i for i, client in enumerate(self.ledger.clients)}
        pieces, shape = {line.get("piece") for line in lines}, (len(self.ledger.status), len(place))
        names = [name for name in self.findings if name in pieces]
        with damage_told(self.path / "pieces.csv"):
            if len(names) * math.prod(shape) > MOST_LEDGER_CELLS:
                raise ValueError(f"{len(names)} findings")
            found = {name: np.full(shape, np.nan) for name in names}
            for line in lines:
                if line["piece"] in found:
                    found[line["piece"]][int(line["round"]), place[line["client"]]] = float(
                        line["weight"]
                    )
        return {name: weights for name, weights in found.items() if np.isfinite(weights).any()}

    @property
    def models(self) -> dict[str, RecordedRun]:
        """This run with the metrics and predictions of each of its models, where it kept others
        than the last.
        """
        untested, models = {"clients": {}, "test": UNTESTED}, self.metrics.get("models", {})
        kept = {
            name: replace(self, model=name, metrics=untested | found)
            for name, found in models.items()
        }
        return {self.model: self} | kept if kept else {}

    def predictions(self, split: str = "test") -> Predictions | None:
        """The scores of every image of a split, where the run kept them."""
        return read_predictions(self.path, split, self.model)


def read_run(path: Path) -> RecordedRun:
    """A run's folder, finished or not; a file in it that is not as a run writes it is named."""
    folder = RunFolder(path)
    settings = read_toml(folder.settings)
    with damage_told(folder.settings):
        _ = [str(settings[section]["name"]) for section in ("data", "scenario", "model", "method")]
        _ = int(settings["seed"]), int(settings["rounds"])
    with damage_told(folder.ledger):
        ledger = LedgerTable.of(read_csv(folder.ledger))
    rounds = read_jsonl(folder.rounds)
    environment, metrics = (
        read_json(file) if file.is_file() else {} for file in (folder.environment, folder.metrics)
    )
    if "validation" in metrics:
        metrics.setdefault("test", UNTESTED)
    if metrics:
        with damage_told(folder.metrics):
            for client in metrics.get("clients", {}).values():
                if "held_out" in client:  # what holdout images were called up to version 0.1
                    client["holdout"] = client.pop("held_out")
            _check_recorded_metrics(metrics)
    run = RecordedRun(
        path, settings, environment, {"clients": {}} | metrics if metrics else {}, rounds, ledger
    )
    with damage_told(folder.rounds):
        _ = run.curve("validation"), run.curve("test"), run.diverged
    _ = run.by_class() if run.finished else {}
    return run


def _check_recorded_metrics(metrics: Mapping[str, Any]) -> None:
    """Everything that is read of the metrics later can be read."""
    for name, found in metrics.get("models", {}).items():
        if (
            name not in KEPT_MODELS
            or not found["rounds"]
            or not all(type(round) is int for round in found["rounds"])
        ):
            raise ValueError("a model that no run keeps")
        _ = (
            str(found["chosen_by"]),
            number_or_nan(found.get("validation", UNTESTED)["auc"]["macro"]),
        )
        _check_recorded_metrics({"test": UNTESTED} | found | {"models": {}})
    clients = metrics.get("clients", {}).values()
    own = [client[split] for client in clients for split in CLIENT_SPLITS if split in client]
    for scores in (metrics["test"], *own):
        for metric in METRICS:
            values = [
                number_or_nan(scores[metric]["macro"]),
                *map(number_or_nan, scores[metric]["per_class"].values()),
            ]
            if not all(math.isnan(value) or 0 <= value <= 1 for value in values):
                raise ValueError(f"{metric} outside 0 to 1")
        for rate in THRESHOLD_METRICS:
            _ = list(map(number_or_nan, scores.get(rate, {}).values()))


def finished_run(path: Path) -> RecordedRun:
    """A run that has its last files."""
    require_run(path)
    run = read_run(path)
    if not run.finished:
        command = f"feddraw run {path}/experiment.toml --out {path} --resume"
        raise UserError(f"{path} is not finished: go on with `{command}`")
    return run


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Whatever goes wrong with what a file holds is said in one line."""
    try:
        yield
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        OverflowError,
        OSError,
    ) as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path.name} is not as a run writes it ({detail[:80]})") from None
