"""Run folders read back: found below any folder, each whole or named as broken, and told apart by their settings.

Nothing that a file names is imported, and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from feddraw.errors import UserError
from feddraw.results.folder import EXECUTION_SETTINGS, RunFolder, first_divergence
from feddraw.results.kept import KEPT
from feddraw.results.reading import as_written, flat, read_csv, read_json, read_jsonl, read_toml
from feddraw.server.ledger import NUMBERS
from feddraw.server.policy import CLAUSES

Floats = NDArray[np.float64]

REFERENCES = {
    "centralised": "all clients' images in one place, no federation",
    "alone": "each client for itself, no federation; mean over the clients",
}
METRICS = {"auc": "AUC", "gm": "GM"}
REPEATS = ("seed", "partition_seed", "data.seed", "data.fold")  # runs that differ in these alone are repeats
NOT_COMPARED = (*EXECUTION_SETTINGS, "test_every_round", "data.path", "keep.best", "keep.tail")  # no effect on results
MAX_SCORES = 2**30  # bytes of a file of predictions, which is read whole
CONDITIONS = ("data", "scenario", "folds", "holdout")  # settings that describe a scenario; all others describe a method
RATES = ("sensitivity", "specificity", "thresholds")
UNTESTED: dict[str, Any] = {
    metric: {"macro": None, "per_class": {}} for metric in METRICS
}  # a federation without test images
CLIENT_SPLITS = ("holdout", "test")  # on the client's own images; a model of its own on the common test images
HUGE = 1e18  # beyond it no number of a ledger can be, because the gate lets none in
MOST_CELLS = 10_000_000  # rounds times clients: a small file may name as many of both as it has lines
LATER = ("proposed", "allowed", "measured", "variance", "distance", "q", "q_expected", "rho")  # not in early ledgers


# ---------------------------------------------------------------------------------------------------- one run


@dataclass(frozen=True, eq=False)
class Ledger:
    """Who counted how much: for every column (rounds × clients), not a number where there is nothing."""

    clients: tuple[str, ...]
    columns: Mapping[str, Floats]
    status: tuple[tuple[str, ...], ...]  # by round
    clauses: tuple[tuple[str, ...], ...]  # by round, the policy's setting that decided a client's weight

    @staticmethod
    def of(lines: Sequence[Mapping[str, str]]) -> Ledger:
        clients = tuple(dict.fromkeys(line["client"] for line in lines))
        rounds = 1 + max((int(line["round"]) for line in lines), default=-1)
        if not 0 <= rounds <= len(lines) or rounds * len(clients) > MOST_CELLS:
            raise ValueError(f"round {rounds - 1} and {len(clients)} clients in a ledger of {len(lines)} lines")
        columns = {name: np.full((rounds, len(clients)), np.nan) for name in (*NUMBERS, *LATER)}
        status = [["missing"] * len(clients) for _ in range(rounds)]
        clauses = [[""] * len(clients) for _ in range(rounds)]
        place = {client: i for i, client in enumerate(clients)}
        for line in lines:
            t, i = int(line["round"]), place[line["client"]]
            status[t][i], clauses[t][i] = line["status"], line.get("clause", "")
            for name in NUMBERS:
                columns[name][t, i] = float(line[name]) if line[name] else math.nan
            if clauses[t][i] not in CLAUSES:
                raise ValueError("a clause that no policy has")
            for name in LATER:
                columns[name][t, i] = float(line.get(name) or math.nan)
        for name, column in columns.items():
            if (np.abs(column) > HUGE).any():
                raise ValueError(f"{name} beyond {HUGE:g}")
        return Ledger(clients, columns, tuple(map(tuple, status)), tuple(map(tuple, clauses)))

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def by_client(self, name: str) -> dict[str, list[float]]:
        return {client: self[name][:, i].tolist() for i, client in enumerate(self.clients)}

    def has(self, *names: str) -> bool:
        return all(np.isfinite(self[name]).any() for name in names)

    @property
    def limited(self) -> bool:
        """Whether a policy decided any weight."""
        return any(any(row) for row in self.clauses)

    @property
    def sizes(self) -> Floats:
        """Each client's images: the most it reported, because a missing one reports none."""
        return np.asarray(np.nanmax(self["size"], axis=0, initial=0.0))


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
        return {name: value for name, value in flat(self.settings).items() if not name.startswith("partition.")}

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
        with as_written(self.path / "pieces.csv"):
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

    def predictions(self) -> Predictions | None:
        """The scores of every test image, where the run kept them."""
        path = self.path / "predictions.safetensors"
        if not path.is_file() or path.stat().st_size > MAX_SCORES:
            return None
        try:
            with safe_open(path, "np") as file:
                names = set(file.keys())
                about = json.loads(file.metadata()["feddraw"])
                prefix = "" if self.model == "last" else f"{self.model}."
                scores = file.get_tensor(f"{prefix}test.scores").astype(np.float64)
                truth = file.get_tensor("test.truth")
                patients = file.get_tensor("test.patients") if "test.patients" in names else None
            found = Predictions(scores, truth, patients, tuple(map(str, about["classes"])), str(about["test"]))
            return found if found.whole else None
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError):
            return None


def read_holdout(run: Run) -> Holdout | None:
    """The scores of the images that clients kept back, where the run has such."""
    path = run.path / "predictions.safetensors"
    if not path.is_file() or path.stat().st_size > MAX_SCORES:
        return None
    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys() if name.startswith("holdout.")}  # noqa: SIM118
        found = Holdout(
            arrays["holdout.scores"].astype(np.float64),
            arrays["holdout.truth"],
            arrays["holdout.client"],
            arrays["holdout.rows"],
            arrays.get("holdout.patients"),
        )
        return found if found.whole else None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None


def number(value: Any) -> float:
    """As metrics.json has numbers: null is undefined, and infinity is a word."""
    return math.nan if value is None else float(value)


def read_run(path: Path) -> Run:
    """A run's folder, finished or not; a file in it that is not as a run writes it is named."""
    folder = RunFolder(path)
    settings = read_toml(folder.settings)
    with as_written(folder.settings):
        _ = [str(settings[section]["name"]) for section in ("data", "scenario", "model", "method")]
        _ = int(settings["seed"]), int(settings["rounds"])
    with as_written(folder.ledger):
        ledger = Ledger.of(read_csv(folder.ledger))
    with as_written(folder.rounds):
        rounds = [dict(entry) for entry in read_jsonl(folder.rounds)]
    environment, metrics = _json(folder.environment), _json(folder.metrics)
    if "validation" in metrics:
        metrics.setdefault("test", UNTESTED)
    if metrics:
        with as_written(folder.metrics):
            _read_old_names(metrics)
            _check(metrics)
    run = Run(path, settings, environment, {"clients": {}} | metrics if metrics else {}, rounds, ledger)
    with as_written(folder.rounds):
        _ = run.curve("validation"), run.curve("test"), run.diverged
    _ = run.by_class() if run.finished else {}
    return run


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with as_written(path):
        return read_json(path)


def _read_old_names(metrics: Mapping[str, Any]) -> None:
    """Clients' holdout images were called `held_out` up to version 0.1."""
    for client in metrics.get("clients", {}).values():
        if "held_out" in client:
            client["holdout"] = client.pop("held_out")


def _check(metrics: Mapping[str, Any]) -> None:
    """Everything that is read of the metrics later can be read."""
    for name, found in metrics.get("models", {}).items():
        if name not in KEPT or not found["rounds"] or not all(type(round) is int for round in found["rounds"]):
            raise ValueError("a model that no run keeps")
        _ = str(found["chosen_by"]), number(found.get("validation", UNTESTED)["auc"]["macro"])
        _check({"test": UNTESTED} | found | {"models": {}})
    clients = metrics.get("clients", {}).values()
    for scores in (
        metrics["test"],
        *(client[split] for client in clients for split in CLIENT_SPLITS if split in client),
    ):
        for metric in METRICS:
            values = [number(scores[metric]["macro"]), *map(number, scores[metric]["per_class"].values())]
            if not all(math.isnan(value) or 0 <= value <= 1 for value in values):
                raise ValueError(f"{metric} outside 0 to 1")
        for rate in RATES:
            _ = list(map(number, scores.get(rate, {}).values()))


# ---------------------------------------------------------------------------------------------------- many runs


@dataclass(frozen=True)
class Problem:
    """A folder whose results are not in the tables, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class Collection:
    """Finished runs under labels that tell them apart, what could not be used, and what a reader should know."""

    runs: tuple[Run, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def scenarios(self) -> list[str]:
        return list(dict.fromkeys(run.scenario for run in self.runs))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(run.method for run in self.runs if not run.reference))

    @property
    def references(self) -> list[str]:
        return list(dict.fromkeys(run.method for run in self.runs if run.reference))

    def of(self, scenario: str, method: str = "") -> list[Run]:
        return [run for run in self.runs if run.scenario == scenario and method in ("", run.method)]


def find(folders: Iterable[Path]) -> list[Path]:
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


def collect(folders: Sequence[Path]) -> Collection:
    """All runs below the folders; what is broken or not finished is named, never fatal."""
    paths = find(folders)
    if not paths:
        raise UserError(f"no run in {', '.join(map(str, folders))}: a run's folder has an experiment.toml")
    runs, problems = [], []
    for path in paths:
        try:
            run = read_run(path)
        except UserError as mistake:
            problems.append(Problem(path, f"broken: {mistake}"))
            continue
        if run.finished:
            runs.append(run)
        else:
            problems.append(Problem(path, unfinished(run)))
    if not runs:
        raise UserError(f"no finished run in {', '.join(map(str, folders))}; {problems[0].path}: {problems[0].reason}")
    labelled = _in_order(_label(runs))
    once, twice = _once(labelled)
    return Collection(tuple(once), tuple(problems + twice), tuple(_notes(once)))


def unfinished(run: Run) -> str:
    """How far a run has come, how good it is there, and when it last wrote a round."""
    said = f"not finished: {len(run.rounds)} of {run.settings['rounds']} rounds"
    if not run.rounds:
        return said
    area, written = run.curve("validation")[-1], str(run.rounds[-1].get("time", ""))
    said += f", validation AUC {area:.3f}" if math.isfinite(area) else ""
    try:
        return f"{said}, last written {datetime.fromisoformat(written).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError):  # an earlier version does not say when
        return said


def _in_order(runs: Sequence[Run]) -> list[Run]:
    """As they were found, but FedDRAW first, references last, and by seed."""
    return sorted(runs, key=lambda run: (run.reference, run.name != "feddraw", run.flat["seed"]))


def _once(runs: Sequence[Run]) -> tuple[list[Run], list[Problem]]:
    """One run for each scenario, method and repeat: shards and copies of a study may hold it again."""
    kept: dict[tuple[str, str, str], Run] = {}
    again = []
    for run in runs:
        first = kept.setdefault((run.scenario, run.method, run.repeat), run)
        if first is not run:
            same = "the same run as" if first.metrics == run.metrics else "the settings, but not the results, of"
            again.append(Problem(run.path, f"left out: {same} {first.path}"))
    return list(kept.values()), again


# ---------------------------------------------------------------------------------------------------- labels

Key = Callable[[Run], Any]


def _label(runs: Sequence[Run]) -> list[Run]:
    """Names, and in brackets the settings that differ under one name.

    Settings of the data and the scenario describe a scenario. The others describe a method, but where all methods of
    a scenario were run with the same several values they are conditions, too.
    """
    named = [replace(run, scenario=str(run.settings["scenario"]["name"]), method=run.name) for run in runs]
    conditions = _differing(named, lambda run: run.scenario, _describes_scenario)
    others = _differing(named, lambda run: run.scenario, lambda key: not _describes_scenario(key))
    crossed = {
        scenario: {key for key in keys if _is_crossed(key, [run for run in named if run.scenario == scenario])}
        for scenario, keys in others.items()
    }
    named = [
        replace(run, scenario=_bracketed(run.scenario, conditions[run.scenario] | crossed[run.scenario], run))
        for run in named
    ]
    own = _differing(named, lambda run: (run.scenario, run.method), lambda key: not _describes_scenario(key))
    by_method: dict[str, set[str]] = {}
    for (_, method), keys in own.items():
        by_method.setdefault(method, set()).update(keys)
    return [replace(run, method=_bracketed(run.method, by_method[run.method], run)) for run in named]


def _describes_scenario(key: str) -> bool:
    return key.partition(".")[0] in CONDITIONS


def _differing(runs: Sequence[Run], group: Key, which: Callable[[str], bool]) -> dict[Any, set[str]]:
    """By group, the settings with more than one value in it; a run of an older version may lack a setting."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(group(run), []).append(run)
    found = {}
    for name, members in groups.items():
        keys = {key for run in members for key in run.flat if which(key) and key not in (*REPEATS, *NOT_COMPARED)}
        found[name] = {key for key in keys if len({_text(run, key) for run in members if key in run.flat}) > 1}
    return found


def _is_crossed(key: str, runs: Sequence[Run]) -> bool:
    values: dict[str, set[str]] = {}
    for run in runs:
        if not run.reference and key in run.flat:
            values.setdefault(run.method, set()).add(_text(run, key))
    sets = list(values.values())
    return not key.startswith("method.") and len(sets) > 1 and len(sets[0]) > 1 and all(one == sets[0] for one in sets)


def _bracketed(name: str, keys: Iterable[str], run: Run) -> str:
    inside = ", ".join(f"{key.partition('.')[2] or key}={_text(run, key)}" for key in sorted(keys))
    return f"{name} ({inside})" if inside else name


def _text(run: Run, key: str) -> str:
    value = run.flat.get(key, "not set")
    if isinstance(value, str) and "/" in value:
        value = Path(value).name  # somebody's own data may lie elsewhere on another machine
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------------------------------------- notes


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    """What makes runs less comparable than their names suggest."""
    yield from _unequal_settings(runs)
    yield from _unequal_partitions(runs)
    yield from _missing_repeats(runs)
    common = {key for run in runs for key in run.flat if key.partition(".")[0] not in ("data", "scenario", "method")}
    unsaid = sorted(key for key in common if any(key not in run.flat for run in runs))
    if unsaid:
        yield f"Some runs do not record {', '.join(unsaid)}, as others do: they were made by another version."
    versions = {str(run.environment.get("packages", {}).get("feddraw", "unknown")) for run in runs}
    if len(versions) > 1:
        yield f"The runs come from different versions of feddraw: {', '.join(sorted(versions))}."


def _unequal_settings(runs: Sequence[Run]) -> Iterator[str]:
    methods = [run for run in runs if not run.reference]
    found: dict[str, list[str]] = {}
    kinds = ("training.", "model.", "rounds")
    for scenario, keys in _differing(methods, lambda run: run.scenario, lambda key: key.startswith(kinds)).items():
        for key in keys:
            values: dict[str, set[str]] = {}
            for run in methods:
                if run.scenario == scenario:
                    values.setdefault(_text(run, key), set()).add(run.method)
            if not all(f"{key.partition('.')[2] or key}=" in run.method for run in methods if run.scenario == scenario):
                said = "; ".join(f"{value}: {', '.join(sorted(names))}" for value, names in sorted(values.items()))
                found.setdefault(f"{key} ({said})", []).append(scenario)
    for what, where in sorted(found.items()):
        yield f"Not all methods were run with the same {what} in {', '.join(where)}."


def _unequal_partitions(runs: Sequence[Run]) -> Iterator[str]:
    hashes: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        hashes.setdefault((run.scenario, run.repeat), set()).add(str(run.partition.get("sha256", "unknown")))
    for (scenario, repeat), found in hashes.items():
        if len(found) > 1:
            yield f"In {scenario}, seed {repeat}, the methods did not have the same images at the same clients."


def _missing_repeats(runs: Sequence[Run]) -> Iterator[str]:
    there: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        there.setdefault(run.scenario, {}).setdefault(run.method, set()).add(run.repeat)
    for scenario, by_method in there.items():
        every = set().union(*by_method.values())
        for method, repeats in by_method.items():
            if repeats != every:
                missing = ", ".join(sorted(every - repeats))
                yield f"{method} has no finished run in {scenario} for seed {missing}."
