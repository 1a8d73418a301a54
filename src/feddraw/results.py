"""A run's folder: written as it happens, each file whole or not at all, and read back.

A round is in the folder when its checkpoint is; lines of the ledger behind the checkpoint belong to a round that was
cut off and are dropped on resume. A run is finished when `metrics.json` is there.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from feddraw.core import Layout, Memory, Model, State
from feddraw.data import Dataset
from feddraw.errors import UserError
from feddraw.federation import LedgerEntry, PieceEntry, RoundResult
from feddraw.files import append, make_folder, make_subfolder, refuse_link, reporting, write_whole
from feddraw.fused import summed_by
from feddraw.locks import lock_folder
from feddraw.naming import csv_text, from_cell
from feddraw.policy import Policy
from feddraw.scenarios import Partition

LEDGER = tuple(field.name for field in fields(LedgerEntry))
PIECES = tuple(field.name for field in fields(PieceEntry))
OF_POLICY = ("proposed", "allowed", "clause")  # columns of a ledger that those of earlier versions lack
MAX_SETTINGS, MAX_JSON, MAX_LOG = 1 << 20, 1 << 26, 1 << 28  # bytes of a file that is read whole
MAX_CHECKPOINT = 1 << 34
MAX_DEPTH = 30  # of tables within tables
PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
LONG_NAME = re.compile(rf"(?<![\w-])(?:{PART}){{{MAX_DEPTH}}}")  # a.b.c and so on


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that the next round needs."""

    model: Model
    state: State
    next_round: int
    memory: dict[int, Memory]


class RunFolder:
    """Where a run's files are, and how they are written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "experiment.toml"
        self.environment = path / "environment.json"
        self.rounds = path / "rounds.jsonl"
        self.ledger = path / "weights.csv"
        self.pieces = path / "pieces.csv"  # only where a rule weighs layers or classes by themselves
        self.metrics = path / "metrics.json"
        self.model = path / "model.safetensors"
        self.predictions = path / "predictions.safetensors"
        self.checkpoint = path / "checkpoint" / "state.safetensors"
        self._held = False  # whether this object has the folder's lock

    # ------------------------------------------------------------------------------------------ beginning

    def begin(
        self, table: Mapping[str, Any], *, resume: bool, how: Sequence[str], defaults: Mapping[str, Any]
    ) -> Literal["new", "goes on", "finished"]:
        """Say whether there is something to do; refuse a folder that holds another run, or cannot be written to.

        Only what it says under `locked` holds: before that another process may still write to the folder.
        """
        used = self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))
        if used and not resume:
            raise UserError(f"{self.path} is already used: choose another folder with --out, or go on with --resume")
        if used and not self.settings.is_file() and not self.checkpoint.is_file() and self._foreign():
            raise UserError(f"{self.path} holds something other than a run: choose another folder with --out")
        if self.settings.is_file():
            self._compare(table, how, defaults)
        if self.metrics.is_file():
            return "finished"
        self._refuse_links()
        self._check_writable()
        return "goes on" if self.checkpoint.is_file() else "new"

    def _foreign(self) -> bool:
        own = {p.name for p in vars(self).values() if isinstance(p, Path)} | {"checkpoint"}
        return any(child.name not in own and not child.name.endswith(".part") for child in self.path.iterdir())

    def _compare(self, table: Mapping[str, Any], how: Sequence[str], defaults: Mapping[str, Any]) -> None:
        """A setting that came after the run was written is at its default there."""
        written = {k: v for k, v in read_toml(self.settings).items() if k not in (*how, "partition")}
        there = flat({k: v for k, v in defaults.items() if k not in how}) | flat(written)
        here = flat({k: v for k, v in table.items() if k not in how})
        for name in sorted(there.keys() | here.keys()):
            if there.get(name) != here.get(name):
                had, has = there.get(name, "not set"), here.get(name, "not set")
                raise UserError(f"{self.path} was run with {name} = {had}, not {has}: resume with the same settings")

    def _refuse_links(self) -> None:
        """The folder itself may be a link, because the user named it; nothing in it may lead out."""
        inside = [path for path in vars(self).values() if isinstance(path, Path) and path != self.path]
        for path in (self.checkpoint.parent, self.path / "tensorboard", *inside):
            refuse_link(path)

    def _check_writable(self) -> None:
        parent = self.path
        while not parent.exists():
            parent = parent.parent
        if not os.access(parent, os.W_OK) or not parent.is_dir():
            raise UserError(f"cannot write to {self.path}: {parent} is not a folder that you may write to")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder. What was found before the lock must be looked up again under it."""
        if self._held:  # by a caller further up
            yield
            return
        with reporting(self.path):
            make_folder(self.path, private=True)
        with lock_folder(self.path):
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def write_settings(
        self, table: Mapping[str, Any], *, partition: Partition, numbers: int, dataset: Dataset | None = None
    ) -> None:
        """The settings, and the environment: `numbers` are in all updates together, by which they are summed."""
        with reporting(self.path):
            make_folder(self.path, private=True)
        document = plain({**table, "partition": _described(partition, dataset)})
        if not self.settings.exists():
            write_whole(self.settings, tomli_w.dumps(document).encode())
        elif read_toml(self.settings).get("partition", {}).get("sha256") != partition.sha256:
            raise UserError(f"{self.path} was run on other data: the clients' images are not the same now")
        about = environment() | {"sums": summed_by(numbers)}
        write_whole(self.environment, (json.dumps(about, indent=2) + "\n").encode())

    # ------------------------------------------------------------------------------------------ each round

    def forget_from(self, round: int) -> None:
        """Drop what was logged of rounds that no checkpoint holds; begin the ledger if there is none."""
        try:
            kept = [entry for entry in read_jsonl(self.rounds) if entry["round"] < round]
            ledger = _before(round, self.ledger, LEDGER)
            pieces = _before(round, self.pieces, PIECES)
        except (KeyError, TypeError, ValueError):
            raise UserError(f"the log or ledger in {self.path} is damaged: delete the folder, start again") from None
        write_whole(self.rounds, "".join(json.dumps(entry) + "\n" for entry in kept).encode())
        write_whole(self.ledger, csv_text([LEDGER, *ledger]).encode())
        if self.pieces.is_file():
            write_whole(self.pieces, csv_text([PIECES, *pieces]).encode())

    def add_round(self, result: RoundResult) -> None:
        outcome = (result.round, result.loss, result.metrics, result.seconds)
        self.add_line(*outcome, digest=model_digest(result.model), diverged=result.diverged)
        self.add_to_ledger(result.ledger, result.pieces)

    def add_line(
        self,
        round: int,
        loss: float,
        metrics: Mapping[str, Any],
        seconds: Mapping[str, float],
        *,
        digest: str = "",
        diverged: str = "",
    ) -> None:
        parts = {part: _by_part(metrics[part]) for part in ("validation", "test") if part in metrics}
        line = {"round": round, "loss": loss, **parts, "model": digest, "seconds": dict(seconds)}
        line |= {"diverged": diverged} if diverged else {}
        append(self.rounds, json.dumps(clean(line)) + "\n")

    def add_to_ledger(self, entries: Sequence[LedgerEntry], pieces: Sequence[PieceEntry] = ()) -> None:
        append(self.ledger, csv_text(_rows(entries)))
        if pieces:
            header = [] if self.pieces.is_file() else [PIECES]
            append(self.pieces, csv_text([*header, *_rows(pieces)]))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        with reporting(self.checkpoint):
            make_subfolder(self.checkpoint.parent, private=True)
        arrays: dict[str, NDArray[Any]] = {}
        document = {
            "next_round": checkpoint.next_round,
            "state": _unpack(checkpoint.state, "state", arrays),
            "memory": _unpack({str(k): v for k, v in sorted(checkpoint.memory.items())}, "memory", arrays),
        }
        arrays |= {f"model.{name}": getattr(checkpoint.model, name) for name in ("params", "buffers", "counters")}
        document["blake2"] = _digest(arrays, document)
        write_whole(self.checkpoint, save(arrays, {"feddraw": json.dumps(document)}), private=True)

    def checkpoint_notes(self) -> dict[str, Any]:
        """What the checkpoint's state says in words and numbers, before its arrays can be read; unchecked."""
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
            return _read_checkpoint(self.checkpoint, layout)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise UserError(f"{self.checkpoint} is damaged: delete {self.path} and start again") from None

    # ------------------------------------------------------------------------------------------ the end

    def finish(
        self, model: Model, scores: Mapping[str, Any], predictions: Mapping[str, NDArray[Any]], dataset: Dataset | None
    ) -> None:
        """The last files; without a data set of the server's own there are no predictions to keep."""
        write_whole(self.model, save({name: np.ascontiguousarray(a) for name, a in model.arrays().items()}))
        if dataset is not None:
            self._keep(predictions, dataset)
        diverged = first_divergence(read_jsonl(self.rounds))
        document = _without_nothing({**scores, "diverged": diverged})
        write_whole(self.metrics, (json.dumps(clean(document), indent=2) + "\n").encode())

    def _keep(self, predictions: Mapping[str, NDArray[Any]], dataset: Dataset) -> None:
        tested = "\n".join(dataset.labels.names[dataset.rows["test"]])
        about = {"classes": dataset.classes, "test": hashlib.sha256(tested.encode()).hexdigest()}
        arrays = {name: np.ascontiguousarray(array) for name, array in predictions.items()}
        write_whole(self.predictions, save(arrays, {"feddraw": json.dumps(about)}), private=True)


def first_divergence(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first round of a log that shows divergence, and why; empty if none does."""
    found = ({"round": line["round"], "why": str(line["diverged"])} for line in rounds if line.get("diverged"))
    return next(found, {})


def _without_nothing(scores: Any) -> Any:
    """Without the words that only a diverged run needs, where they would be empty."""
    if not isinstance(scores, Mapping):
        return scores
    kept = {name: value for name, value in scores.items() if value or name not in ("not_finite", "diverged")}
    return {name: _without_nothing(value) for name, value in kept.items()}


def _by_part(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a round's line has of one part of the data: the AUC, the GM where there is one, and what is undefined."""
    more = {name: found[name] for name in ("gm", "undefined") if found.get(name)}
    return {**found["auc"], **more}


def _described(partition: Partition, dataset: Dataset | None) -> dict[str, Any]:
    """Who was dealt what: a hash, and, where the data is at hand, how many images of each finding every client has."""
    found: dict[str, Any] = {"scenario": partition.scenario, "sha256": partition.sha256}
    if dataset is not None:
        labels = dataset.training_labels().values
        found["findings"] = list(dataset.classes)
        found["sizes"] = {shard.client: len(shard) for shard in partition.shards}
        found["positives"] = {shard.client: labels[shard.rows].sum(axis=0).tolist() for shard in partition.shards}
    return found


# ---------------------------------------------------------------------------------------------------- files


def read_text(path: Path, limit: int) -> str:
    """A file of text that is not larger than it should be; what is no regular file is not opened."""
    try:
        if not path.is_file():
            raise UserError(f"cannot read {path}: {'it is no file' if path.exists() else 'No such file or directory'}")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > limit:
        raise UserError(f"{path} is larger than {limit >> 20} MB: not a file of this kind")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """A small TOML file, or the one line that says why not."""
    try:
        text = read_text(path, MAX_SETTINGS)
        if LONG_NAME.search(text):  # the parser's time and memory grow with the square of their parts
            raise RecursionError
        table = tomllib.loads(text)
        if _depth(table) > MAX_DEPTH:
            raise RecursionError
        return table
    except ValueError as error:  # wrong TOML, or a number with more digits than Python reads
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is not valid TOML: it is nested too deeply") from None


def _depth(table: Any) -> int:
    """How deeply tables and lists are nested; dotted names nest without a bracket."""
    depth, level = 0, [table]
    while level := [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]:
        depth += 1
        level = [inner for inner in level if isinstance(inner, dict | list)]
    return depth


def read_policy(path: Path) -> Policy:
    """The `[policy]` of a TOML file, such as one that all sites of a federation have."""
    table = read_toml(path).get("policy")
    if not isinstance(table, dict):
        raise UserError(f"{path} has no section [policy]")
    return policy_of(table)


def policy_of(given: Policy | Mapping[str, Any] | Path | str | None) -> Policy:
    """A policy as code may give it: itself, its settings, a file with a section [policy], or nothing."""
    if isinstance(given, Path | str) and str(given):
        return read_policy(Path(given))
    policy = given if isinstance(given, Policy) else Policy.of(given) if isinstance(given, Mapping) else Policy()
    policy.check()
    return policy


def read_json(path: Path, limit: int = MAX_JSON) -> dict[str, Any]:
    """A JSON object from a file, or the one line that says why not."""
    text = read_text(path, limit)
    found = parse_json(text)
    if not isinstance(found, dict) or (SURROGATE.search(text) and not _is_text(found)):
        raise UserError(f"{path} is not valid JSON with a name for every value")
    return found


def _is_text(found: Any) -> bool:
    """Whether all of its characters exist: half of a pair cannot be printed or written."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_json(text: str | bytes) -> Any:
    """What the text says; None if it is not JSON, or nested too deeply, or has numbers that are too long."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Whatever goes wrong with what a file holds is said in one line."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, OSError) as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path.name} is not as a run writes it ({detail[:80]})") from None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The lines of a log up to the first that is torn."""
    lines = read_text(path, MAX_LOG).split("\n") if path.is_file() else []
    entries = (parse_json(line) for line in lines)
    return list(takewhile(lambda entry: isinstance(entry, dict), entries))


def read_csv(path: Path) -> list[dict[str, str]]:
    """The lines of a ledger as dicts; a torn last line is passed over."""
    if not path.is_file():
        return []
    text = read_text(path, MAX_LOG)
    whole = text[: text.rfind("\n") + 1]
    try:
        rows = list(csv.DictReader(io.StringIO(whole, newline="")))
    except csv.Error as error:
        raise UserError(f"{path} is not a table: {error}") from None
    whole_rows = [row for row in rows if None not in row and None not in row.values()]
    return [{from_cell(name): from_cell(value) for name, value in row.items()} for row in whole_rows]


def _before(round: int, path: Path, columns: Sequence[str]) -> list[list[str]]:
    """In today's columns: those of the policy are missing in ledgers of earlier versions."""
    lines = [dict.fromkeys(OF_POLICY, "") | line for line in read_csv(path) if int(line["round"]) < round]
    return [[line[name] for name in columns] for line in lines]


def _rows(entries: Sequence[LedgerEntry] | Sequence[PieceEntry]) -> list[list[Any]]:
    return [[_cell(value) for value in asdict(entry).values()] for entry in entries]


def _cell(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value


# ---------------------------------------------------------------------------------------------------- values


def plain(value: Any) -> Any:
    """Without None, as TOML has no word for it, and with lists for tuples."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def clean(value: Any) -> Any:
    """For JSON, which has no NaN or infinity: undefined numbers become null, infinite thresholds words."""
    if isinstance(value, Mapping):
        return {key: clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as dotted names."""
    found: dict[str, Any] = {}
    for key, value in plain(table).items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _read_checkpoint(path: Path, layout: Layout) -> Checkpoint:
    """Raises whatever it stumbles over in a file that `save_checkpoint` did not write."""
    if path.stat().st_size > MAX_CHECKPOINT:
        raise ValueError(f"it is larger than {MAX_CHECKPOINT >> 30} GB")
    with safe_open(path, "np") as file:
        document = json.loads(file.metadata()["feddraw"])
        arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (not a dict)
    if document.pop("blake2") != _digest(arrays, document):
        raise ValueError("it was changed after it was written")
    model = Model(arrays["model.params"], arrays["model.buffers"], arrays["model.counters"], layout)
    for vector, kind, number in zip(
        (model.params, model.buffers, model.counters), ("param", "buffer", "counter"), "ffi", strict=True
    ):
        if vector.shape != (layout.length(kind),) or vector.dtype.kind != number:
            raise ValueError("it is of another network")
    if type(document["next_round"]) is not int or document["next_round"] < 0:
        raise ValueError("it has no round")
    memory = {int(client): dict(vectors) for client, vectors in _repack(document["memory"], arrays).items()}
    if not _finite([*arrays.values(), document]):
        raise UserError(
            f"{path} holds numbers that are not finite: the run diverged, or the file was changed; "
            "start again in another folder, with a lower training.lr if it diverged"
        )
    return Checkpoint(model, dict(_repack(document["state"], arrays)), document["next_round"], memory)


def _finite(tree: Any) -> bool:
    """Whether every number in it is one."""
    if isinstance(tree, np.ndarray):
        return tree.dtype.kind != "f" or bool(np.isfinite(tree).all())
    if isinstance(tree, Mapping):
        return all(_finite(value) for value in tree.values())
    if isinstance(tree, list):
        return all(_finite(value) for value in tree)
    return not isinstance(tree, float) or math.isfinite(tree)


def _unpack(tree: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """A tree whose arrays have gone to `arrays` and left their names behind."""
    if isinstance(tree, Mapping):
        return {key: _unpack(value, f"{path}.{key}", arrays) for key, value in tree.items()}
    if isinstance(tree, np.ndarray):
        arrays[path] = np.ascontiguousarray(tree)
        return {"array": path}
    return tree


def _repack(tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(tree, dict) and tree.keys() == {"array"} and isinstance(tree["array"], str):
        return arrays[tree["array"]]
    return {key: _repack(value, arrays) for key, value in tree.items()} if isinstance(tree, dict) else tree


def model_digest(model: Model) -> str:
    """The same for the same bits."""
    return _digest({"params": model.params, "buffers": model.buffers, "counters": model.counters}, None)


def _digest(arrays: Mapping[str, NDArray[Any]], document: Any) -> str:
    digest = hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def environment() -> dict[str, Any]:
    """Versions and machine, so that a result can be understood later."""
    packages = ("feddraw", "numpy", "scipy", "torch", "monai", "safetensors", "scikit-image")
    return {
        "python": platform.python_version(),
        "packages": {name: found for name in packages if (found := _version(name))},
        "commit": _commit(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit of a source checkout, empty elsewhere."""
    here = Path(__file__).parent
    if not (here.parent.parent / ".git").exists():
        return ""
    git = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return git.stdout.strip()


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
