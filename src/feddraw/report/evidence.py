"""What the runs show: means over repeats, ranks over scenarios, and paired differences over patients and trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.bootstrap import Interval, bootstrap, interval, weighted_auc, weighted_gm
from feddraw.analysis.metrics import macro
from feddraw.analysis.paired_differences import Difference, against, mean_of_last
from feddraw.analysis.statistics import Comparison, Table, compare, to_digits
from feddraw.grouping import grouped
from feddraw.results.recorded_run import METRICS, Predictions, Run, number
from feddraw.results.run_collection import Collection

Floats = NDArray[np.float64]
MEASURES = {"auc": weighted_auc, "gm": weighted_gm}
DIGITS = 4  # of every metric in a table; means that are printed alike share a rank


@dataclass(frozen=True)
class Mean:
    """Over repeats; the spread is the sample's (ddof 1), and not a number for one run."""

    value: float
    spread: float
    count: int  # repeats with a value
    runs: int

    @staticmethod
    def of(values: Sequence[float]) -> Mean:
        defined = [value for value in values if math.isfinite(value)]
        spread = float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan
        return Mean(float(np.mean(defined)) if defined else math.nan, spread, len(defined), len(values))


@dataclass(frozen=True, eq=False)
class Ranking:
    """The comparison over scenarios, or why there is none; and what had to be left out of it."""

    comparison: Comparison | None
    reason: str
    left_out: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Draws:
    """An estimate and its replicates for every model that was tested on the same images."""

    unit: str  # patients or images
    units: int
    repeats: tuple[str, ...]
    methods: Mapping[str, Mapping[str, Floats]]  # metric, method
    clients: Mapping[str, Mapping[str, Floats]]  # metric, client: models that clients trained alone
    left_out: tuple[str, ...]
    personal: Mapping[str, Mapping[str, Mapping[str, Floats]]] = field(default_factory=dict)  # metric, method, client

    def used_by(self, metric: str, method: str, client: str) -> Floats:
        """Of the model that a client would use: its own where the method has such, else the common one."""
        return self.personal.get(metric, {}).get(method, {}).get(client, self.methods[metric][method])

    def difference(self, metric: str, first: str, second: str) -> Interval:
        return interval(self.methods[metric][first] - self.methods[metric][second])

    def gain(self, metric: str, method: str, client: str) -> Interval:
        """Of the common model over the one that the client trained alone."""
        return interval(self.methods[metric][method] - self.clients[metric][client])


# ---------------------------------------------------------------------------------------------------- over scenarios


def mean(runs: Sequence[Run], metric: str, finding: str = "") -> Mean:
    return Mean.of([run.test(metric, finding) for run in runs])


def mean_over(runs: Sequence[Run], metric: str, findings: Sequence[str]) -> Mean:
    """The same for the mean over some of the findings, of those that have a value."""
    return Mean.of([macro([run.test(metric, finding) for finding in findings]) for run in runs])


def rank_methods(collection: Collection, metric: str, alpha: float) -> Ranking:
    """Means over the repeats that all methods have, ranked in every scenario where that is possible."""
    values = {
        (run.scenario, run.method, run.repeat): run.test(metric)
        for run in collection.runs
        if not run.reference and math.isfinite(run.test(metric))
    }
    there = {(scenario, method) for scenario, method, _ in values}
    scenarios = collection.scenarios
    rare = [m for m in collection.methods if sum((s, m) in there for s in scenarios) <= len(scenarios) / 2]
    methods = [m for m in collection.methods if m not in rare]
    common = {s: _common(values, s, methods) for s in scenarios}
    kept = [scenario for scenario in scenarios if common[scenario]]
    left_out = [f"{method}: it has results in at most half of the scenarios" for method in rare]
    left_out += [f"{s}: no seed in which all methods have a result" for s in scenarios if s not in kept]
    if len(kept) < 2 or len(methods) < 2:
        few = f"{len(methods)} method{'s' * (len(methods) != 1)} in {len(kept)} scenario{'s' * (len(kept) != 1)}"
        return Ranking(None, f"Ranks need two methods and two scenarios; there are {few}.", tuple(left_out))
    table = [[float(np.mean([values[s, m, repeat] for repeat in common[s]])) for m in methods] for s in kept]
    found = compare(to_digits(Table(tuple(kept), tuple(methods), np.array(table)), DIGITS), alpha=alpha)
    return Ranking(found, "", tuple(left_out))


def _common(values: Mapping[tuple[str, str, str], float], scenario: str, methods: Sequence[str]) -> set[str]:
    repeats = [{r for s, m, r in values if s == scenario and m == method} for method in methods]
    return set.intersection(*repeats) if repeats else set()


# ---------------------------------------------------------------------------------------------------- one scenario


def draw(runs: Sequence[Run], replicates: int) -> Draws | str:
    """Paired replicates for all methods of one scenario, or why there are none.

    Patients are drawn, or images where patients are not known; several seeds are several models, whose metrics are
    averaged, while a patient tested by all of them is drawn for all.
    """
    if not replicates:
        return "Not asked for (--replicates 0)."
    kept = {run: found for run in runs if (found := run.predictions()) is not None and _usable(run, found)}
    if not kept:
        return "These runs kept no scores of single images, so methods cannot be compared on the same patients."
    methods = list(dict.fromkeys(run.method for run in kept))
    repeats = [r for r in dict.fromkeys(run.repeat for run in kept) if _has_all(kept, r, methods)]
    if not repeats:
        return "There is no seed in which all methods kept the scores of the same test images."
    chosen = {m: [next(r for r in kept if (r.method, r.repeat) == (m, repeat)) for repeat in repeats] for m in methods}
    used = {run for members in chosen.values() for run in members}
    left_out = tuple(f"{run.method}, seed {run.repeat}" for run in runs if run not in used)
    tested = [kept[run] for run in next(iter(chosen.values()))]
    owners, unit = owners_of(tested)
    images = {
        "truth": np.concatenate([part.truth for part in tested]),
        "patients": owners,
        "folds": np.concatenate([np.full(len(part.truth), i) for i, part in enumerate(tested)]),
    }
    drawn = {}
    for metric, measure in MEASURES.items():
        outputs = {m: _outputs(metric, [(run, kept[run]) for run in members]) for m, members in chosen.items()}
        rng = np.random.default_rng(0)  # the same patients for both metrics
        flat = [model for models in outputs.values() for model in models]
        rows = iter(bootstrap(flat, rng=rng, measure=measure, replicates=replicates, **images))
        drawn[metric] = {method: np.stack([next(rows) for _ in models]) for method, models in outputs.items()}
    personal = {metric: _by_client(found, chosen) for metric, found in drawn.items()}
    return Draws(
        unit,
        len(np.unique(owners)),
        tuple(repeats),
        {metric: {method: models.mean(axis=0) for method, models in found.items()} for metric, found in drawn.items()},
        {metric: _alone(found, chosen) for metric, found in personal.items()},
        left_out,
        personal,
    )


def _by_client(drawn: Mapping[str, Floats], chosen: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, Floats]]:
    """The clients' own models, by method, where it has such."""
    return {
        method: dict(zip(chosen[method][0].ledger.clients, models, strict=True))
        for method, models in drawn.items()
        if len(models) > 1
    }


def _alone(personal: Mapping[str, Mapping[str, Floats]], chosen: Mapping[str, Sequence[Run]]) -> dict[str, Floats]:
    """Those that clients trained alone: personal models of other methods learn from all clients."""
    own = [models for method, models in personal.items() if chosen[method][0].name == "alone"]
    return {client: model for models in own for client, model in models.items()}


def _usable(run: Run, found: Predictions) -> bool:
    models, images, _ = found.by_model.shape
    own = models == 1 or models == len(run.ledger.clients)
    return own and found.classes == run.findings and images > 0


def _has_all(kept: Mapping[Run, Predictions], repeat: str, methods: Sequence[str]) -> bool:
    """Every method was tested on the same images in this repeat."""
    there = {
        run.method: (found.tested, found.classes, len(found.truth), found.patients is None)
        for run, found in kept.items()
        if run.repeat == repeat
    }
    return set(there) == set(methods) and len(set(there.values())) == 1


def owners_of(parts: Sequence[Predictions]) -> tuple[NDArray[np.int64], str]:
    """Whose image each one is, over all repeats; an image that several repeats test is one unit."""
    patients = [part.patients for part in parts if part.patients is not None]
    if len(patients) == len(parts):
        return np.concatenate(patients), "patients"
    tested = list(dict.fromkeys(part.tested for part in parts))
    room = max(len(part.truth) for part in parts)
    return np.concatenate([room * tested.index(part.tested) + np.arange(len(part.truth)) for part in parts]), "images"


def _outputs(metric: str, members: Sequence[tuple[Run, Predictions]]) -> list[Floats]:
    """Scores (for GM: calls at the chosen thresholds) of each of a method's models, over all repeats."""
    parts = [found.by_model if metric == "auc" else _calls(run, found) for run, found in members]
    return [np.concatenate([part[model] for part in parts]) for model in range(len(parts[0]))]


def _calls(run: Run, found: Predictions) -> Floats:
    models = found.by_model
    if len(models) == 1:
        tables = [run.metrics["test"].get("thresholds", {})]
    else:
        tables = [run.metrics["clients"].get(c, {}).get("test", {}).get("thresholds", {}) for c in run.ledger.clients]
    limits = np.array([[number(table.get(name)) for name in found.classes] for table in tables])[:, None, :]
    return np.where(np.isnan(limits) | np.isnan(models), np.nan, (models >= limits).astype(np.float64))


# ---------------------------------------------------------------------------------------------------- trainings

ByPair = Mapping[tuple[str, str], Difference]  # by scenario (empty: over all of them) and method


@dataclass(frozen=True, eq=False)
class Trainings:
    """A method minus each other one over repeats, and the same on other rounds than the last."""

    found: ByPair
    folds: int  # of how many the repeats are, and 0 where they share no training images by design
    split: str  # that was evaluated in every round; empty where none was
    last: ByPair  # on that split, after the last round
    last_five: ByPair

    @property
    def repeats(self) -> int:
        return max((one.repeats for one in self.found.values()), default=0)


def over_trainings(runs: Sequence[Run], metric: str, first: str) -> Trainings:
    """The first method minus every other one, over the repeats that both have."""
    folds = _folds(runs)
    methods = [run for run in runs if not run.reference]
    curves = {s: [mean_of_last(run.curve(s, metric)) for run in methods] for s in ("test", "validation")}
    split = next((s for s, means in curves.items() if np.isfinite(means).all()), "")
    last, last_five = (
        {run: value(run.curve(split, metric)) for run in runs} if split else {}
        for value in (lambda curve: curve[-1] if curve else math.nan, mean_of_last)
    )
    test = {run: run.test(metric) for run in runs}
    return Trainings(
        _minus_others(test, first, folds), folds, split, _minus_others(last, first), _minus_others(last_five, first)
    )


def _folds(runs: Sequence[Run]) -> int:
    """Of how many folds all runs are; 0 where they are not, or a file has something else there."""
    first = runs[0].flat.get("folds", 0)
    alike = isinstance(first, int) and all(run.flat.get("folds", 0) == first for run in runs)
    return first if alike and first > 1 else 0


def _minus_others(values: Mapping[Run, float], first: str, folds: int = 0) -> ByPair:
    """With all signs turned, the others minus the first are the first minus the others."""
    rows = [(run.scenario, run.method, run.repeat, -value) for run, value in values.items() if math.isfinite(value)]
    if not {first} < {method for _, method, *_ in rows}:
        return {}
    return {(one.scenario, one.method): one for one in against(rows, first, folds=folds)}


# ---------------------------------------------------------------------------------------------------- clients


@dataclass(frozen=True)
class Gain:
    """The metric of a method minus that of the model the client trained alone, over repeats that both have."""

    client: str
    method: str
    alone: Mean
    gain: Mean
    interval: Interval | None


def gains(runs: Sequence[Run], metric: str, draws: Draws | None, split: str = "test") -> Iterator[Gain]:
    """Of every client and method: on the common test images, or (`holdout`) on the client's own."""
    own = {run.repeat: run for run in runs if run.name == "alone"}
    clients = list(dict.fromkeys(client for run in own.values() for client in run.metrics["clients"]))
    methods = grouped((run.method, run) for run in runs if not run.reference and run.repeat in own)
    for client in clients:
        for method, members in methods.items():
            before = [own[run.repeat].test(metric, client=client, split=split) for run in members]
            after = [
                run.test(metric) if split == "test" else run.test(metric, client=client, split=split) for run in members
            ]
            change = Mean.of([a - b for a, b in zip(after, before, strict=True)])
            if change.count:
                yield Gain(client, method, Mean.of(before), change, _drawn(draws, metric, method, client, split))


def _drawn(draws: Draws | None, metric: str, method: str, client: str, split: str) -> Interval | None:
    if draws is None or split != "test" or client not in draws.clients[metric] or method not in draws.methods[metric]:
        return None
    return draws.gain(metric, method, client)


# ---------------------------------------------------------------------------------------------------- the whole

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Report:
    """All that is needed to write about a collection of runs."""

    collection: Collection
    rankings: Mapping[str, Ranking]  # by metric
    draws: Mapping[str, Draws | str]  # by scenario
    command: str
    margin: float = 0.0  # how far below another method still counts as no worse; 0: not asked
    folders: Sequence[Path] = ()  # where the runs were found
    replicates: int = 0  # of the bootstrap

    @cached_property
    def trainings(self) -> dict[str, Trainings]:
        """By metric: the method in focus minus each other, over repeats."""
        return {metric: over_trainings(self.collection.runs, metric, self.focus) for metric in METRICS}

    def over_repeats(self, scenario: str, metric: str, other: str) -> Difference | None:
        """The method in focus minus another over repeats, where there is more than one."""
        found = self.trainings[metric].found.get((scenario, other))
        return found if found is not None and found.repeats > 1 else None

    def gains(self, scenario: str, metric: str, split: str = "test") -> list[Gain]:
        draws = self.draws[scenario]
        return list(gains(self.collection.of(scenario), metric, draws if isinstance(draws, Draws) else None, split))

    @property
    def focus(self) -> str:
        """The method that others are compared with: FedDRAW, or else the first."""
        methods = self.collection.methods or self.collection.references
        return next((method for method in methods if method.split(" ")[0] == "feddraw"), methods[0])

    @property
    def shown(self) -> list[str]:
        """Methods, then references: the order of every table and the look of every line."""
        return self.collection.methods + self.collection.references


def examine(
    collection: Collection,
    *,
    alpha: float,
    replicates: int,
    command: str,
    say: Say,
    margin: float = 0.0,
    folders: Sequence[Path] = (),
) -> Report:
    """Do the statistics."""
    rankings = {metric: rank_methods(collection, metric, alpha) for metric in METRICS}
    draws = {}
    for scenario in collection.scenarios:
        say(f"comparing methods in {scenario}")
        draws[scenario] = draw(collection.of(scenario), replicates)
    return Report(collection, rankings, draws, command, margin, folders, replicates)
