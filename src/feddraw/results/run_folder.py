"""A run's folder: where its files are, written as it happens, each file whole or not at all.

A round is in the folder when its checkpoint is; lines of the ledger behind the checkpoint belong to
a round that was cut off and are dropped on resume. A run is finished when `metrics.json` is there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from feddraw.core import Layout, Model
from feddraw.core.sums import summed_by
from feddraw.data.dataset import Dataset
from feddraw.errors import UserError
from feddraw.results.checkpoint import Checkpoint, checkpoint_bytes, read_checkpoint
from feddraw.results.environment import environment
from feddraw.results.ledger_table import (
    LEDGER_COLUMNS,
    PIECE_COLUMNS,
    ledger_rows,
    piece_rows,
    read_ledger,
    read_pieces,
)
from feddraw.results.metrics import RunMetrics
from feddraw.results.outcome_settings import dotted_settings, without_execution
from feddraw.results.round_log import EvaluatedRound, RoundLine, first_divergence, read_round_log
from feddraw.results.run_facts import RunFacts
from feddraw.results.trackers import TRACKED_FILE, Tracking
from feddraw.server.ledger import LedgerEntry, PieceEntry
from feddraw.system.csv_cells import csv_text
from feddraw.system.file_reading import read_toml
from feddraw.system.file_writing import (
    append_to_log,
    json_values,
    make_folder,
    make_subfolder,
    nearest_existing,
    refuse_link,
    toml_values,
    write_errors_told,
    write_json,
    write_whole,
)
from feddraw.system.locks import lock_folder

TRACKER_FOLDERS = ("tensorboard", "wandb")  # that trackers make in a run's folder


@dataclass(frozen=True, eq=False)
class FinalScores:
    """What a run's last evaluation gives its folder beside the model of the last round."""

    metrics: RunMetrics
    kept: Mapping[str, Model] = field(default_factory=dict)  # other models, by name
    predictions: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    counts: bytes = b""  # a file of score counts, where sites evaluate


class RunFolder:
    """Where a run's files are, and how they are written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "experiment.toml"
        self.environment = path / "environment.json"
        self.rounds = path / "rounds.jsonl"
        self.ledger = path / "weights.csv"
        # only where a rule weighs layers or classes by themselves
        self.pieces = path / "pieces.csv"
        self.metrics = path / "metrics.json"
        self.model = path / "model.safetensors"
        # these two only where they are asked for (`keep`)
        self.best = path / "model-best.safetensors"
        self.tail = path / "model-tail.safetensors"
        self.predictions = path / "predictions.safetensors"
        # only where the sites of a federation evaluate
        self.counts = path / "counts.safetensors"
        # only where scores were recalibrated afterwards
        self.recalibration = path / "recalibration.json"
        # only after a run that ended before its last round, until it goes on
        self.stopped = path / "stopped.json"
        self.checkpoint = path / "checkpoint" / "state.safetensors"
        self.kept = path / "checkpoint" / "kept.safetensors"
        # only with `keep.updates`, and what `feddraw contribution` makes of them
        self.updates = path / "updates"
        self.contribution = path / "contribution"
        # only with `track`: under which number the tracker knows the run
        self.tracked = path / TRACKED_FILE
        self._held = False  # whether this object has the folder's lock
        self._tracking = Tracking("", path, {})

    @property
    def _files(self) -> list[Path]:
        return [path for path in vars(self).values() if isinstance(path, Path)]

    def begin(self, table: Mapping[str, Any], *, resume: bool) -> bool:
        """Whether there is something to do; a folder that holds another run, or cannot be written
        to, is refused.

        Only what it says under `locked` holds: before that another process may still write to the
        folder.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, not a folder: choose another one (out)")
        used = self.path.exists() and any(self.path.iterdir())
        if used and not resume:
            raise UserError(
                f"{self.path} is already used: choose another folder (out), or continue this run"
                " (resume = true)"
            )
        if used and not self.settings.is_file() and not self.checkpoint.is_file():
            self._refuse_strange_files()
        if self.settings.is_file():
            self._refuse_other_settings(table)
        if self.metrics.is_file():
            return False
        self._refuse_links()
        self._refuse_unwritable()
        return True

    def _refuse_strange_files(self) -> None:
        written = {file.name for file in self._files} | {self.checkpoint.parent.name}
        strange = [
            child
            for child in self.path.iterdir()
            if child.name not in written and not child.name.endswith(".part")
        ]
        if strange:
            raise UserError(
                f"{self.path} holds something other than a run: choose another folder with --out"
            )

    def _refuse_other_settings(self, table: Mapping[str, Any]) -> None:
        document = read_toml(self.settings)
        document.pop("partition", None)
        written = without_execution(dotted_settings(document))
        wanted = without_execution(dotted_settings(table))
        for name in sorted(written.keys() | wanted.keys()):
            if written.get(name) != wanted.get(name):
                had = written.get(name, "not set")
                has = wanted.get(name, "not set")
                raise UserError(
                    f"{self.path} was run with {name} = {had}, not {has}: resume with the same"
                    " settings"
                )

    def _refuse_links(self) -> None:
        """The folder itself may be a link, because the user named it; nothing in it may
        lead out.
        """
        files = [file for file in self._files if file != self.path]
        folders = [self.path / name for name in TRACKER_FOLDERS]
        for path in (self.checkpoint.parent, *folders, *files):
            refuse_link(path)

    def _refuse_unwritable(self) -> None:
        parent = nearest_existing(self.path)
        if not os.access(parent, os.W_OK) or not parent.is_dir():
            raise UserError(
                f"cannot write to {self.path}: {parent} is not a folder that you may write to"
            )

    def track(self, name: str, settings: Mapping[str, Any]) -> None:
        """Show what is written from now on to a tracker as well, until the lock is released."""
        self._tracking = Tracking(name, self.path, dotted_settings(settings))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder.

        What was found before the lock must be looked up again under it.
        """
        if self._held:  # by a caller further up
            yield
            return
        with write_errors_told(self.path):
            make_folder(self.path, private=True)
        with lock_folder(self.path), self._tracking:
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def write_settings(self, table: Mapping[str, Any], facts: RunFacts) -> None:
        """The settings, and the environment; other images than those of the run are refused."""
        document = toml_values({**table, "partition": facts.partition_record()})
        if not self.settings.exists():
            write_whole(self.settings, tomli_w.dumps(document).encode())
        elif read_toml(self.settings).get("partition", {}).get("sha256") != facts.partition.sha256:
            raise UserError(
                f"{self.path} was run on other data: use the same images, or choose another folder"
            )
        machine = environment() | dict(facts.devices)
        machine["sums"] = summed_by(facts.parameters)
        machine["network"] = facts.network_record()
        if facts.images is not None:
            machine["images"] = facts.images.record()
        if method := facts.method_record():
            machine["method"] = method
        write_json(self.environment, machine)

    def forget_from(self, round: int) -> None:
        """Drop what was logged of rounds that no checkpoint holds, and why the run stopped; begin
        the ledger if there is none.
        """
        try:
            lines = [line for line in read_round_log(self.rounds) if line.round < round]
            ledger = [entry for entry in read_ledger(self.ledger) if entry.round < round]
            pieces = [entry for entry in read_pieces(self.pieces) if entry.round < round]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise UserError(
                f"the log or ledger in {self.path} is damaged: delete the folder and start again"
            ) from None
        self.stopped.unlink(missing_ok=True)
        write_whole(self.rounds, "".join(line.text() for line in lines).encode())
        write_whole(self.ledger, csv_text([LEDGER_COLUMNS, *ledger_rows(ledger)]).encode())
        if self.pieces.is_file():
            write_whole(self.pieces, csv_text([PIECE_COLUMNS, *piece_rows(pieces)]).encode())

    def write_stop(self, reason: str) -> None:
        """Why the run ended before its last round."""
        stopped_at = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(self.stopped, {"time": stopped_at, "reason": reason})

    def add_round(self, result: EvaluatedRound) -> None:
        self.add_line(RoundLine.of(result))
        self.add_to_ledger(result.ledger, result.pieces)

    def add_line(self, line: RoundLine) -> None:
        append_to_log(self.rounds, line.text())
        self._tracking.add_line(line)

    def replace_line(self, line: RoundLine) -> None:
        """The same round's line again, now that more is known of it."""
        others = [other for other in read_round_log(self.rounds) if other.round != line.round]
        lines = [*others, line]
        write_whole(self.rounds, "".join(line.text() for line in lines).encode())
        self._tracking.add_line(line)

    def logged(self, round: int) -> bool:
        """Whether a round's line is in the log."""
        return any(line.round == round for line in read_round_log(self.rounds))

    def add_to_ledger(
        self, entries: Sequence[LedgerEntry], pieces: Sequence[PieceEntry] = ()
    ) -> None:
        append_to_log(self.ledger, csv_text(ledger_rows(entries)))
        if pieces:
            header = [] if self.pieces.is_file() else [PIECE_COLUMNS]
            append_to_log(self.pieces, csv_text([*header, *piece_rows(pieces)]))
        self._tracking.add_ledger(entries)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        with write_errors_told(self.checkpoint):
            make_subfolder(self.checkpoint.parent, private=True)
        write_whole(self.checkpoint, checkpoint_bytes(checkpoint), private=True)

    def checkpoint_notes(self) -> dict[str, Any]:
        """What the checkpoint's state says in words and numbers, before its arrays can be read;
        unchecked.
        """
        try:
            with safe_open(self.checkpoint, "np") as file:
                notes = json.loads(file.metadata()["feddraw"])["state"]
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError):
            return {}
        return notes if isinstance(notes, dict) else {}

    def load_checkpoint(self, layout: Layout) -> Checkpoint | None:
        """The last complete round, or None if there is none; a damaged file is refused."""
        if not self.checkpoint.is_file():
            return None
        try:
            return read_checkpoint(self.checkpoint, layout)
        except (
            SafetensorError,
            OSError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            RecursionError,
        ):
            raise UserError(
                f"{self.checkpoint} is damaged: delete {self.path} and start again"
            ) from None

    def model_file(self, name: str) -> Path:
        """Of the model of the last round, of the best validation round, or of the tail average."""
        return {"last": self.model, "best": self.best, "tail": self.tail}[name]

    def finish(self, model: Model, scores: FinalScores, dataset: Dataset | None) -> None:
        """The last files; without a data set of the server's own there are no predictions
        to keep.
        """
        for name, kept in {"last": model, **scores.kept}.items():
            arrays = {key: np.ascontiguousarray(array) for key, array in kept.arrays().items()}
            write_whole(self.model_file(name), save(arrays))
        if dataset is not None:
            self._write_predictions(scores.predictions, dataset)
        if scores.counts:
            write_whole(self.counts, scores.counts, private=True)
        diverged = first_divergence(read_round_log(self.rounds))
        metrics = replace(scores.metrics, diverged=diverged)
        write_json(self.metrics, json_values(metrics.document()))
        models = [self.model_file(name) for name in ("last", *scores.kept)]
        self._tracking.add_files("model", [*models, self.settings, self.metrics])

    def _write_predictions(self, predictions: Mapping[str, NDArray[Any]], dataset: Dataset) -> None:
        tested = "\n".join(dataset.labels.names[dataset.rows["test"]])
        groupings = dataset.labels.groupings()
        notes = {
            "classes": dataset.findings,
            "test": hashlib.sha256(tested.encode()).hexdigest(),
            "groups": [{"name": each.name, "values": each.values} for each in groupings],
        }
        arrays = {name: np.ascontiguousarray(array) for name, array in predictions.items()}
        write_whole(self.predictions, save(arrays, {"feddraw": json.dumps(notes)}), private=True)
