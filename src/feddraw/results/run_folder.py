"""A run's folder: written as it happens, each file whole or not at all, and read back.

A round is in the folder when its checkpoint is; lines of the ledger behind the checkpoint belong to
a round that was cut off and are dropped on resume. A run is finished when `metrics.json` is there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from feddraw.core import Layout, Model
from feddraw.core.classifier_layer import classifier_in_words
from feddraw.core.sums import summed_by
from feddraw.data.dataset import Dataset
from feddraw.data.finding_counts import findings_per_split
from feddraw.data.scenarios.partition import Partition
from feddraw.errors import UserError
from feddraw.results.checkpoint import Checkpoint, checkpoint_bytes, model_digest, read_checkpoint
from feddraw.results.environment import environment
from feddraw.results.ledger_table import (
    LEDGER_COLUMNS,
    PIECE_COLUMNS,
    ledger_lines_before,
    ledger_rows,
)
from feddraw.results.outcome_settings import dotted_settings, without_execution
from feddraw.server.ledger import LedgerEntry, PieceEntry
from feddraw.server.round import RoundResult
from feddraw.system.csv_cells import csv_text
from feddraw.system.file_reading import read_jsonl, read_toml
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
from feddraw.text import folder_name

CLOCK_FIELDS = (
    "seconds",
    "client_seconds",
    "time",
)  # what a round's line has that differs when it is run again


class RunFolder:
    """Where a run's files are, and how they are written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "experiment.toml"
        self.environment = path / "environment.json"
        self.rounds = path / "rounds.jsonl"
        self.ledger = path / "weights.csv"
        self.pieces = (
            path / "pieces.csv"
        )  # only where a rule weighs layers or classes by themselves
        self.metrics = path / "metrics.json"
        self.model = path / "model.safetensors"
        self.best = (
            path / "model-best.safetensors"
        )  # these two only where they are asked for (`keep`)
        self.tail = path / "model-tail.safetensors"
        self.predictions = path / "predictions.safetensors"
        self.checkpoint = path / "checkpoint" / "state.safetensors"
        self.kept = path / "checkpoint" / "kept.safetensors"
        self._held = False  # whether this object has the folder's lock

    def begin(self, table: Mapping[str, Any], *, resume: bool, defaults: Mapping[str, Any]) -> bool:
        """Whether there is something to do; a folder that holds another run, or cannot be written
        to, is refused.

        Only what it says under `locked` holds: before that another process may still write to the
        folder.
        """
        used = self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))
        if used and not resume:
            raise UserError(
                f"{self.path} is already used: choose another folder with --out, or continue with"
                " --resume"
            )
        if used and not self.settings.is_file() and not self.checkpoint.is_file():
            own = {p.name for p in vars(self).values() if isinstance(p, Path)} | {"checkpoint"}
            if any(
                child.name not in own and not child.name.endswith(".part")
                for child in self.path.iterdir()
            ):
                raise UserError(
                    f"{self.path} holds something other than a run: choose another folder with"
                    " --out"
                )
        if self.settings.is_file():
            self._refuse_other_settings(table, defaults)
        if self.metrics.is_file():
            return False
        self._refuse_links()
        self._refuse_unwritable()
        return True

    def _refuse_other_settings(self, table: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        """A setting that came after the run was written is at its default there."""
        written = read_toml(self.settings)
        written.pop("partition", None)
        usual, own, wanted = (
            without_execution(dotted_settings(one)) for one in (defaults, written, table)
        )
        there = usual | own
        for name in sorted(there.keys() | wanted.keys()):
            if there.get(name) != wanted.get(name):
                had, has = there.get(name, "not set"), wanted.get(name, "not set")
                raise UserError(
                    f"{self.path} was run with {name} = {had}, not {has}: resume with the same"
                    " settings"
                )

    def _refuse_links(self) -> None:
        """The folder itself may be a link, because the user named it; nothing in it may
        lead out.
        """
        inside = [
            path for path in vars(self).values() if isinstance(path, Path) and path != self.path
        ]
        for path in (self.checkpoint.parent, self.path / "tensorboard", *inside):
            refuse_link(path)

    def _refuse_unwritable(self) -> None:
        parent = nearest_existing(self.path)
        if not os.access(parent, os.W_OK) or not parent.is_dir():
            raise UserError(
                f"cannot write to {self.path}: {parent} is not a folder that you may write to"
            )

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
        with lock_folder(self.path):
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def write_settings(
        self,
        table: Mapping[str, Any],
        *,
        partition: Partition,
        parameters: int,
        layout: Layout,
        dataset: Dataset | None = None,
        devices: Mapping[str, Any] | None = None,
    ) -> None:
        """The settings, and the environment: `parameters` are in all updates together, by which
        they are summed.
        """
        document = toml_values({**table, "partition": _partition_in_run_folder(partition, dataset)})
        if not self.settings.exists():
            write_whole(self.settings, tomli_w.dumps(document).encode())
        elif read_toml(self.settings).get("partition", {}).get("sha256") != partition.sha256:
            raise UserError(
                f"{self.path} was run on other data: use the same images, or choose another folder"
            )
        about = (
            environment()
            | dict(devices or {})
            | {"sums": summed_by(parameters), "network": _network_in_run_folder(layout)}
        )
        write_json(self.environment, about)

    def forget_from(self, round: int) -> None:
        """Drop what was logged of rounds that no checkpoint holds; begin the ledger if there is
        none.
        """
        try:
            kept = [entry for entry in read_jsonl(self.rounds) if entry["round"] < round]
            ledger = ledger_lines_before(round, self.ledger, LEDGER_COLUMNS)
            pieces = ledger_lines_before(round, self.pieces, PIECE_COLUMNS)
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"the log or ledger in {self.path} is damaged: delete the folder and start again"
            ) from None
        write_whole(self.rounds, "".join(json.dumps(entry) + "\n" for entry in kept).encode())
        write_whole(self.ledger, csv_text([LEDGER_COLUMNS, *ledger]).encode())
        if self.pieces.is_file():
            write_whole(self.pieces, csv_text([PIECE_COLUMNS, *pieces]).encode())

    def add_round(self, result: RoundResult) -> None:
        outcome = (result.round, result.loss, result.metrics, result.seconds, result.client_seconds)
        self.add_line(*outcome, digest=model_digest(result.model), diverged=result.diverged)
        self.add_to_ledger(result.ledger, result.pieces)

    def add_line(
        self,
        round: int,
        loss: float,
        metrics: Mapping[str, Any],
        seconds: Mapping[str, float],
        client_seconds: Mapping[str, float],
        *,
        digest: str = "",
        diverged: str = "",
        rounds: int = 0,
    ) -> None:
        """A round's line of the log; `rounds` is T, for a folder that has no settings to say it."""
        splits = {
            split: _split_in_round_log(metrics[split])
            for split in ("validation", "test")
            if split in metrics
        }
        line = {"round": round, "loss": loss, **splits, "model": digest, "seconds": dict(seconds)}
        line |= {"diverged": diverged} if diverged else {}
        line |= {"rounds": rounds} if rounds else {}
        line |= {
            "client_seconds": dict(client_seconds),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        append_to_log(self.rounds, json.dumps(json_values(line)) + "\n")

    def add_to_ledger(
        self, entries: Sequence[LedgerEntry], pieces: Sequence[PieceEntry] = ()
    ) -> None:
        append_to_log(self.ledger, csv_text(ledger_rows(entries)))
        if pieces:
            header = [] if self.pieces.is_file() else [PIECE_COLUMNS]
            append_to_log(self.pieces, csv_text([*header, *ledger_rows(pieces)]))

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

    def finish(
        self,
        model: Model,
        scores: Mapping[str, Any],
        predictions: Mapping[str, NDArray[Any]],
        dataset: Dataset | None,
        kept: Mapping[str, Model] | None = None,
    ) -> None:
        """The last files; without a data set of the server's own there are no predictions
        to keep.
        """
        for name, one in {"last": model, **(kept or {})}.items():
            arrays = {name: np.ascontiguousarray(array) for name, array in one.arrays().items()}
            write_whole(self.model_file(name), save(arrays))
        if dataset is not None:
            self._write_predictions(predictions, dataset)
        document = _scores_in_run_folder(
            {**scores, "diverged": first_divergence(read_jsonl(self.rounds))}
        )
        write_json(self.metrics, json_values(document))

    def _write_predictions(self, predictions: Mapping[str, NDArray[Any]], dataset: Dataset) -> None:
        tested = "\n".join(dataset.labels.names[dataset.rows["test"]])
        about = {"classes": dataset.findings, "test": hashlib.sha256(tested.encode()).hexdigest()}
        arrays = {name: np.ascontiguousarray(array) for name, array in predictions.items()}
        write_whole(self.predictions, save(arrays, {"feddraw": json.dumps(about)}), private=True)


def run_folder_by_name(scenario: str, method: str, seed: int, *, resume: bool) -> Path:
    """runs/SCENARIO-METHOD-SEED; for a new run with a number behind it where that is taken."""
    names = [folder_name(name.replace(":", ".")) for name in (scenario, method)]
    base = Path("runs") / "-".join([*names, str(seed)])
    folder, number = base, 2
    while not resume and folder.exists() and any(folder.iterdir()):
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def first_divergence(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first round of a log that shows divergence, and why; empty if none does."""
    found = (
        {"round": line["round"], "why": str(line["diverged"])}
        for line in rounds
        if line.get("diverged")
    )
    return next(found, {})


def _scores_in_run_folder(scores: Any) -> Any:
    """Without the words that only a diverged run needs, where they would be empty."""
    if not isinstance(scores, Mapping):
        return scores
    kept = {
        name: value
        for name, value in scores.items()
        if value or name not in ("not_finite", "diverged")
    }
    return {name: _scores_in_run_folder(value) for name, value in kept.items()}


def _split_in_round_log(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a round's line has of one split: the AUC, also by site, the GM where there is one, what
    is undefined.
    """
    more = {name: found[name] for name in ("gm", "sites", "undefined") if found.get(name)}
    return {**found["auc"], **more}


def _network_in_run_folder(layout: Layout) -> dict[str, Any]:
    """What of the network follows from no setting: above all which layer was taken as the
    classifier.
    """
    frozen = sum(array.size for array in layout.frozen.values())
    about = {
        "classifier": classifier_in_words(layout.classifier, layout.outputs),
        "parameters": layout.length("param"),
    }
    return about | ({"frozen": frozen} if frozen else {})


def _partition_in_run_folder(partition: Partition, dataset: Dataset | None) -> dict[str, Any]:
    """Who was dealt what: a hash, and, where the data is at hand, how many images of each finding
    every client has.
    """
    found: dict[str, Any] = {"scenario": partition.scenario, "sha256": partition.sha256}
    if dataset is not None:
        labels = dataset.training_labels()
        found["findings"] = list(dataset.findings)
        found["normalization"] = [dataset.mean, dataset.std]
        found["sizes"] = {shard.client: len(shard) for shard in partition.shards}
        rows = {shard.client: shard.rows for shard in partition.shards}
        found["positives"] = {
            client: labels.values[own].sum(axis=0).tolist() for client, own in rows.items()
        }
        found["splits"] = findings_per_split(dataset)
        if labels.known is not None:
            found["known"] = {
                client: labels.known_counts(own).tolist() for client, own in rows.items()
            }
    return found


def find_run_folders(folders: Iterable[Path]) -> list[Path]:
    """Every run's folder at or below these, each once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"no folder {folder}: give the folder of a run or of a study")
        for place, below, files in os.walk(folder):
            below[:] = sorted(name for name in below if name != "checkpoint")
            if "experiment.toml" in files:
                found.setdefault(Path(place).resolve(), Path(place))
    return list(found.values())


def require_run(path: Path) -> None:
    """Refuse what is not the folder of a run; a study's folder is named as such."""
    if not RunFolder(path).settings.is_file():
        below = find_run_folders([path]) if path.is_dir() else []
        hint = f": there are {len(below)} below it, such as {below[0]}" if below else ""
        raise UserError(f"{path} is not the folder of a run{hint}")
