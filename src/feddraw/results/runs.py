"""Run folders read back: found below any folder, each whole or named as broken, and told apart by their settings.

Nothing that a file names is imported, and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from feddraw.errors import UserError
from feddraw.grouping import grouped
from feddraw.results.folder import RunFolder, first_divergence
from feddraw.results.kept_models import KEPT
from feddraw.results.outcome_settings import CONDITIONS, NOT_COMPARED, PRECISION_SETTINGS, REPEATS, device_kind
from feddraw.results.reading import as_written, flat, read_csv, read_json, read_jsonl, read_toml
from feddraw.server.ledger import NUMBERS
from feddraw.server.policy import CLAUSES

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
            if clauses[t][i] not in CLAUSES:
                raise ValueError("a clause that no policy has")
            for name, column in columns.items():
                column[t, i] = float((line[name] if name in NUMBERS else line.get(name)) or math.nan)
        for name, column in columns.items():
            if (np.abs(column) > HUGE).any():
                raise ValueError(f"{name} beyond {HUGE:g}")
        return Ledger(clients, columns, tuple(map(tuple, status)), tuple(map(tuple, clauses)))

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def common(self, name: str) -> list[float]:
        """By round, the number that all clients share, such as gamma; NaN where there is none."""
        return [float(row[np.isfinite(row)][0]) if np.isfinite(row).any() else math.nan for row in self[name]]

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


def require_run(path: Path) -> None:
    """Refuse what is not the folder of a run; a study's folder is named as such."""
    if not RunFolder(path).settings.is_file():
        below = find([path]) if path.is_dir() else []
        hint = f": there are {len(below)} below it, such as {below[0]}" if below else ""
        raise UserError(f"{path} is not the folder of a run{hint}")


def read_run(path: Path) -> Run:
    """A run's folder, finished or not; a file in it that is not as a run writes it is named."""
    folder = RunFolder(path)
    settings = read_toml(folder.settings)
    with as_written(folder.settings):
        _ = [str(settings[section]["name"]) for section in ("data", "scenario", "model", "method")]
        _ = int(settings["seed"]), int(settings["rounds"])
    with as_written(folder.ledger):
        ledger = Ledger.of(read_csv(folder.ledger))
    rounds = read_jsonl(folder.rounds)
    environment, metrics = (read_json(file) if file.is_file() else {} for file in (folder.environment, folder.metrics))
    if "validation" in metrics:
        metrics.setdefault("test", UNTESTED)
    if metrics:
        with as_written(folder.metrics):
            for client in metrics.get("clients", {}).values():
                if "held_out" in client:  # what holdout images were called up to version 0.1
                    client["holdout"] = client.pop("held_out")
            _check(metrics)
    run = Run(path, settings, environment, {"clients": {}} | metrics if metrics else {}, rounds, ledger)
    with as_written(folder.rounds):
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

    @cached_property
    def scenarios(self) -> list[str]:
        return list(dict.fromkeys(run.scenario for run in self.runs))

    @cached_property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(run.method for run in self.runs if not run.reference))

    @cached_property
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
    a scenario were run with the same several values they are conditions, too. Precision tells runs apart only where
    somebody compares it.
    """
    same = _not_compared_precision(runs)
    named = [replace(run, scenario=str(run.settings["scenario"]["name"]), method=run.name) for run in runs]
    conditions = _differing(named, lambda run: run.scenario, _describes_scenario, same)
    others = _differing(named, lambda run: run.scenario, lambda key: not _describes_scenario(key), same)
    crossed = {
        scenario: {key for key in keys if _is_crossed(key, [run for run in named if run.scenario == scenario])}
        for scenario, keys in others.items()
    }
    named = [
        replace(run, scenario=_bracketed(run.scenario, conditions[run.scenario] | crossed[run.scenario], run))
        for run in named
    ]
    own = _differing(named, lambda run: (run.scenario, run.method), lambda key: not _describes_scenario(key), same)
    by_method = grouped((method, key) for (_, method), keys in own.items() for key in keys)
    return [replace(run, method=_bracketed(run.method, {*by_method.get(run.method, ())}, run)) for run in named]


def _describes_scenario(key: str) -> bool:
    return key.partition(".")[0] in CONDITIONS


def _not_compared_precision(runs: Sequence[Run]) -> tuple[str, ...]:
    """The settings of precision that no two runs, alike in all else, differ in."""

    def rest(run: Run) -> str:
        chosen = {k: v for k, v in run.flat.items() if k not in (*NOT_COMPARED, *PRECISION_SETTINGS)}
        return json.dumps(chosen, sort_keys=True, default=str)

    several = [members for members in grouped((rest(run), run) for run in runs).values() if len(members) > 1]
    return tuple(
        key for key in PRECISION_SETTINGS if all(len({_text(run, key) for run in group}) == 1 for group in several)
    )


def _differing(
    runs: Sequence[Run], group: Key, which: Callable[[str], bool], ignored: Sequence[str] = ()
) -> dict[Any, set[str]]:
    """By group, the settings with more than one value in it; a run of an older version may lack a setting."""
    found = {}
    unseen = {*REPEATS, *NOT_COMPARED, *ignored}
    for name, members in grouped((group(run), run) for run in runs).items():
        keys = {key for run in members for key in run.flat if which(key) and key not in unseen}
        found[name] = {key for key in keys if len({_text(run, key) for run in members if key in run.flat}) > 1}
    return found


def _is_crossed(key: str, runs: Sequence[Run]) -> bool:
    values = grouped((run.method, _text(run, key)) for run in runs if not run.reference and key in run.flat)
    sets = [set(own) for own in values.values()]
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
    yield from _unequal_precision(runs)
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
    differing = _differing(methods, lambda run: run.scenario, lambda key: key.startswith(kinds), PRECISION_SETTINGS)
    for scenario, keys in differing.items():
        for key in keys:
            here = [run for run in methods if run.scenario == scenario]
            if not all(f"{key.partition('.')[2] or key}=" in run.method for run in here):
                values = grouped((_text(run, key), run.method) for run in here)
                said = "; ".join(f"{value}: {', '.join(sorted({*names}))}" for value, names in sorted(values.items()))
                found.setdefault(f"{key} ({said})", []).append(scenario)
    for what, where in sorted(found.items()):
        yield f"Not all methods were run with the same {what} in {', '.join(where)}."


def _unequal_precision(runs: Sequence[Run]) -> Iterator[str]:
    """Other devices and precisions round differently: runs stay repeats of one another, and the reader is told."""
    found = {"kind of device": {run.path: device_kind(run.flat, run.environment) for run in runs}}
    for key in PRECISION_SETTINGS:
        found[key] = {run.path: _text(run, key) for run in runs if key in run.flat}
    for what, by_run in found.items():
        counts = Counter(by_run.values())
        if len(counts) > 1:
            said = ", ".join(f"{value}: {count} runs" for value, count in sorted(counts.items()))
            yield f"Not all runs were computed with the same {what} ({said}): they differ by rounding, too."


def _unequal_partitions(runs: Sequence[Run]) -> Iterator[str]:
    hashes = grouped(((run.scenario, run.repeat), run.partition.get("sha256", "unknown")) for run in runs)
    for (scenario, repeat), found in hashes.items():
        if len({*map(str, found)}) > 1:
            yield f"In {scenario}, seed {repeat}, the methods did not have the same images at the same clients."


def _missing_repeats(runs: Sequence[Run]) -> Iterator[str]:
    for scenario, here in grouped((run.scenario, run) for run in runs).items():
        every = {run.repeat for run in here}
        for method, repeats in grouped((run.method, run.repeat) for run in here).items():
            if missing := sorted(every - {*repeats}):
                yield f"{method} has no finished run in {scenario} for seed {', '.join(missing)}."
