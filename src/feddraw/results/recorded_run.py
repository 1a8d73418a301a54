"""A run's folder read back whole, finished or not; or the folder of a server on Flower or FLARE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import FINDINGS_TASK
from feddraw.data.finding_counts import FINDING_WORDS, ClientCounts, LabelWords, one_class_clients
from feddraw.errors import UserError
from feddraw.results.environment import table_in_environment
from feddraw.results.find_runs import require_run
from feddraw.results.ledger_table import MOST_LEDGER_CELLS, LedgerTable, read_pieces
from feddraw.results.metrics import ClientMetrics, Divergence, ModelMetrics
from feddraw.results.outcome_settings import dotted_settings
from feddraw.results.predictions import Predictions, read_predictions
from feddraw.results.round_log import RoundLine, first_divergence
from feddraw.results.run_folder import RunFolder
from feddraw.results.run_reader import RunNames, RunReader, damage_told, read_stop_reason
from feddraw.server.ledger import LedgerEntry
from feddraw.system.file_reading import read_json

Floats = NDArray[np.float64]

REFERENCES = {
    "centralised": "all clients' images in one place, no federation",
    "alone": "each client for itself, no federation; mean over the clients",
}
METRICS = {"auc": "AUC", "gm": "GM"}
# What a server's folder does not hold that a run's has.
NOT_IN_A_SERVERS_FOLDER = (
    "settings (method, scenario and seed are not known)",
    "metrics (no AUC or GM of the model)",
    "numbers of images by finding",
    "predictions",
)


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run's folder, read back."""

    path: Path
    settings: Mapping[str, Any]  # empty for a server's folder
    names: RunNames
    environment: Mapping[str, Any]
    metrics: ModelMetrics  # empty while the run is not finished
    finished: bool
    rounds: Sequence[RoundLine]
    entries: Sequence[LedgerEntry]
    ledger: LedgerTable  # the same by round and client
    model: str = "last"  # or another that was kept, whose metrics and predictions these are
    kept: Mapping[str, ModelMetrics] = field(default_factory=dict)  # of all other models, by name
    stopped: str = ""  # when and why it ended before its last round, where the folder says so
    scenario: str = ""  # labels, which tell apart what has the same name but other settings
    method: str = ""

    @property
    def name(self) -> str:
        """The method's name in the catalogue, empty for a server's folder."""
        return self.names.method

    @property
    def of_server(self) -> bool:
        """Whether a server on Flower or FLARE wrote the folder, without settings."""
        return not self.settings

    @property
    def planned(self) -> int:
        """The planned number of rounds, 0 where nothing says it."""
        return self.names.rounds or (self.rounds[-1].rounds if self.rounds else 0)

    @property
    def done(self) -> int:
        """The number of rounds that are in the log, or in the ledger where there is no log."""
        return len(self.rounds) or self.ledger.rounds

    def not_held(self) -> list[str]:
        """What the folder does not hold that a finished run's has, in words."""
        if not self.of_server:
            return []
        return [*NOT_IN_A_SERVERS_FOLDER, *([] if self.rounds else ["losses and times of rounds"])]

    @property
    def reference(self) -> bool:
        return self.name in REFERENCES

    @property
    def not_averaged(self) -> str:
        """Why no client got a model made of several clients'; empty where models were averaged."""
        return str(table_in_environment(self.environment, "method").get("not_averaged", ""))

    @property
    def diverged(self) -> Divergence | None:
        """The first round that shows it, and why."""
        return first_divergence(self.rounds)

    @property
    def task(self) -> str:
        """What the model's outputs say (`tasks/`), by the settings or else by the data."""
        data = self.settings.get("data", {})
        return str(data.get("task") or self.partition.get("task", FINDINGS_TASK))

    @property
    def findings(self) -> tuple[str, ...]:
        return self.metrics.test.findings

    @property
    def partition(self) -> Mapping[str, Any]:
        return dict(self.settings.get("partition", {}))

    @property
    def client_counts(self) -> dict[str, ClientCounts]:
        """What each client's images show, those held back included, where the run wrote it down."""
        partition = self.partition
        findings = partition.get("findings", ())
        positives = partition.get("positives", {})
        known = partition.get("known", {})
        return {
            client: ClientCounts(
                client, size, known.get(client, [size] * len(findings)), positives[client]
            )
            for client, size in partition.get("sizes", {}).items()
            if client in positives
        }

    def one_class_clients(self, words: LabelWords = FINDING_WORDS) -> list[str]:
        """A sentence for each client whose images all have the same labels, where the run wrote
        down what its clients have.
        """
        counts = list(self.client_counts.values())
        held_back = ", those held back included" if self.settings.get("holdout") else ""
        findings = self.partition.get("findings", ())
        return [sentence + held_back for sentence in one_class_clients(counts, findings, words)]

    def labelled_by(self, client: str) -> tuple[str, ...]:
        """The findings of which the client has a label; all where the run did not write it down."""
        counts = self.client_counts.get(client)
        if counts is None:
            return self.findings
        labelled = dict(zip(self.partition["findings"], counts.known, strict=False))
        return tuple(finding for finding in self.findings if labelled.get(finding, 0))

    def has_both_classes(self, client: str) -> bool:
        """Whether the client has a positive and a negative image of some finding, so that it could
        learn one at all; true where the run did not write it down.
        """
        counts = self.client_counts.get(client)
        if counts is None:
            return True
        images = zip(counts.positives, counts.known, strict=False)
        return any(0 < positives < known for positives, known in images)

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
        scores = self.metrics.test
        if client:
            scores = self.metrics.clients.get(client, ClientMetrics()).on(split)
        values = scores.of(metric)
        return values.per_class.get(finding, math.nan) if finding else values.macro

    def curve(self, split: str, metric: str = "auc") -> list[float]:
        """A macro metric by round, NaN where there is none."""
        splits = [line.test if split == "test" else line.validation for line in self.rounds]
        return [scores.of(metric).macro for scores in splits]

    def site_curves(self) -> dict[str, list[float]]:
        """The validation AUC of each site by round, NaN where there is none."""
        by_round = [line.auc_of_sites() for line in self.rounds]
        sites = dict.fromkeys(site for areas in by_round for site in areas)
        return {site: [areas.get(site, math.nan) for areas in by_round] for site in sites}

    def by_class(self) -> dict[str, Floats]:
        """Weights (rounds × clients) of each finding's row of the classifier, where the method has
        such weights.
        """
        path = RunFolder(self.path).pieces
        with damage_told(path):
            entries = read_pieces(path)
            places = {client: place for place, client in enumerate(self.ledger.clients)}
            pieces = {entry.piece for entry in entries}
            findings = [name for name in self.findings if name in pieces]
            shape = (self.ledger.rounds, len(places))
            if len(findings) * math.prod(shape) > MOST_LEDGER_CELLS:
                raise ValueError(f"{len(findings)} findings")
            weights = {name: np.full(shape, np.nan) for name in findings}
            for entry in entries:
                if entry.piece in weights:
                    weights[entry.piece][entry.round, places[entry.client]] = entry.weight
        return {name: rows for name, rows in weights.items() if np.isfinite(rows).any()}

    @property
    def models(self) -> dict[str, RecordedRun]:
        """This run with the metrics and predictions of each of its models, where it kept others
        than the last.
        """
        others = {
            name: replace(self, model=name, metrics=metrics) for name, metrics in self.kept.items()
        }
        return {self.model: self} | others if others else {}

    def predictions(self, split: str = "test") -> Predictions | None:
        """The scores of every image of a split, where the run kept them."""
        return read_predictions(self.path, split, self.model)


def read_run(path: Path) -> RecordedRun:
    """A run's folder, finished or not, or a server's; a file in it that is not as a run writes it
    is named.
    """
    reader = RunReader(path)
    content = reader.look()
    folder = reader.folder
    with damage_told(folder.ledger):
        ledger = LedgerTable.of(content.entries)
    run = RecordedRun(
        path=path,
        settings=reader.settings,
        names=reader.names,
        environment=read_json(folder.environment) if folder.environment.is_file() else {},
        metrics=reader.metrics or ModelMetrics(),
        finished=reader.metrics is not None,
        rounds=content.lines,
        entries=content.entries,
        ledger=ledger,
        kept=reader.metrics.models if reader.metrics is not None else {},
        stopped=read_stop_reason(path),
    )
    if run.finished:
        run.by_class()  # so that damage is found here and not in the middle of a report
    return run


def finished_run(path: Path) -> RecordedRun:
    """A run that has its last files."""
    require_run(path)
    run = read_run(path)
    if run.of_server:
        raise UserError(
            f"{path} is the folder of a server, without settings and model: give that of a run"
        )
    if not run.finished:
        command = f"feddraw run {path}/experiment.toml --out {path} --resume"
        raise UserError(f"{path} is not finished: go on with `{command}`")
    return run
