"""Many runs: found below any folder, each whole or named as broken, and told apart by their
settings.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.results.outcome_settings import (
    ARCHIVES,
    CONDITIONS,
    NOT_COMPARED,
    PRECISION_SETTINGS,
    REPEATS,
    outcome_device_kind,
)
from feddraw.results.recorded_run import RecordedRun, read_run
from feddraw.results.run_folder import find_run_folders
from feddraw.system.file_writing import json_values
from feddraw.text import grouped

Runs = Sequence[RecordedRun]
Key = Callable[[RecordedRun], Any]


@dataclass(frozen=True)
class UnusedRun:
    """A folder whose results are not in the tables, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class RunCollection:
    """Finished runs under labels that tell them apart, what could not be used, and what a reader
    should know.

    `servers` are folders of servers on Flower or FLARE, finished or not: they have weights, but no
    settings and no metrics, so no table and no test has them.
    """

    runs: tuple[RecordedRun, ...]
    problems: tuple[UnusedRun, ...]
    notes: tuple[str, ...]
    servers: tuple[RecordedRun, ...] = ()

    @cached_property
    def scenarios(self) -> list[str]:
        return list(dict.fromkeys(run.scenario for run in self.runs))

    @cached_property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(run.method for run in self.runs if not run.reference))

    @cached_property
    def references(self) -> list[str]:
        return list(dict.fromkeys(run.method for run in self.runs if run.reference))

    def of(self, scenario: str, method: str = "") -> list[RecordedRun]:
        return [run for run in self.runs if run.scenario == scenario and method in ("", run.method)]


def collect_runs(folders: Sequence[Path]) -> RunCollection:
    """All runs below the folders; what is broken or not finished is named, never fatal."""
    places = ", ".join(map(str, folders))
    paths = find_run_folders(folders)
    if not paths:
        raise UserError(
            f"no run in {places}: a run's folder has an experiment.toml, a server's a weights.csv"
        )
    runs: list[RecordedRun] = []
    servers: list[RecordedRun] = []
    problems: list[UnusedRun] = []
    for path in paths:
        try:
            run = read_run(path)
        except UserError as mistake:
            problems.append(UnusedRun(path, f"broken: {mistake}"))
            continue
        if run.of_server and run.ledger.rounds:
            servers.append(run)
        elif run.finished:
            runs.append(run)
        else:
            problems.append(UnusedRun(path, how_far_in_words(run)))
    if not runs and not servers:
        first = problems[0]
        raise UserError(f"no finished run in {places}; {first.path}: {first.reason}")
    # as they were found, but FedDRAW first, references last, and by seed
    ordered = sorted(
        _labelled_runs(runs),
        key=lambda run: (run.reference, run.name != "feddraw", run.flat["seed"]),
    )
    once, copies = _without_copies(ordered)
    return RunCollection(
        runs=tuple(once),
        problems=(*problems, *copies),
        notes=tuple(_notes(once)),
        servers=tuple(servers),
    )


def how_far_in_words(run: RecordedRun) -> str:
    """How far a run has come, how good it is there, and when it last wrote a round."""
    of_all = f" of {run.planned}" if run.planned else ""
    words = f"not finished: {run.done}{of_all} rounds"
    if not run.rounds:
        return words
    area = run.curve("validation")[-1]
    if math.isfinite(area):
        words += f", validation AUC {area:.3f}"
    return f"{words}, last written {run.rounds[-1].time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _without_copies(runs: Runs) -> tuple[list[RecordedRun], list[UnusedRun]]:
    """One run for each scenario, method and repeat: shards and copies of a study may hold
    it again.
    """
    kept: dict[tuple[str, str, str], RecordedRun] = {}
    copies = []
    for run in runs:
        first = kept.setdefault((run.scenario, run.method, run.repeat), run)
        if first is not run:
            same = json_values(first.metrics.document()) == json_values(run.metrics.document())
            words = "the same run as" if same else "the settings, but not the results, of"
            copies.append(UnusedRun(run.path, f"left out: {words} {first.path}"))
    return list(kept.values()), copies


# ------------------------------------------------------------------------------------------ labels


def _labelled_runs(runs: Runs) -> list[RecordedRun]:
    """Names, and in brackets the settings that differ under one name.

    Settings of the data and the scenario describe a scenario. The others describe a method, but
    where all methods of a scenario were run with the same several values they are conditions, too.
    Precision tells runs apart only where somebody compares it.
    """
    same = _uncompared_precision(runs)
    by_scenario = attrgetter("scenario")
    named = [replace(run, scenario=run.names.scenario, method=run.name) for run in runs]
    conditions = _differing_settings(named, by_scenario, _describes_scenario, same)
    for scenario, keys in _differing_settings(named, by_scenario, _describes_method, same).items():
        here = [run for run in named if run.scenario == scenario]
        conditions[scenario] |= {key for key in keys if _is_crossed(key, here)}
    named = [
        replace(run, scenario=_name_with_settings(run.scenario, conditions[run.scenario], run))
        for run in named
    ]
    named = _with_data_told_apart(named)
    by_method = attrgetter("scenario", "method")
    differing = _differing_settings(named, by_method, _describes_method, same)
    settings = grouped((method, key) for (_, method), keys in differing.items() for key in keys)
    return [
        replace(run, method=_name_with_settings(run.method, {*settings.get(run.method, ())}, run))
        for run in named
    ]


def _with_data_told_apart(runs: Runs) -> list[RecordedRun]:
    """Own data of one name in several folders are several scenarios, unless the numbers of their
    images are equal.
    """
    first: dict[tuple[str, str], str] = {}  # by scenario and content, where the data lay first
    for run in runs:
        if _is_own_data(run):
            first.setdefault((run.scenario, _data_content(run)), _place_of_data(run))
    places = grouped((scenario, place) for (scenario, _), place in first.items())
    short = {scenario: _shortest_distinct(where) for scenario, where in places.items()}

    def name(run: RecordedRun) -> str:
        if not _is_own_data(run) or len(short[run.scenario]) == 1:
            return run.scenario
        return f"{run.scenario} ({short[run.scenario][first[run.scenario, _data_content(run)]]})"

    return [replace(run, scenario=name(run)) for run in runs]


def _is_own_data(run: RecordedRun) -> bool:
    return run.flat.get("data.name") not in (*ARCHIVES, "phantom")


def _place_of_data(run: RecordedRun) -> str:
    return str(run.flat.get("data.path") or run.flat.get("data.name"))


def _shortest_distinct(places: Sequence[str]) -> dict[str, str]:
    """The ends of paths, as long as it takes to tell them apart."""
    parts = {place: Path(place).parts for place in places}
    for depth in range(1, max(map(len, parts.values())) + 1):
        ends = {place: "/".join(names[-depth:]) for place, names in parts.items()}
        if len(set(ends.values())) == len(ends):
            return ends
    return {place: place for place in places}


def _data_content(run: RecordedRun) -> str:
    """How many images there are of each finding in all splits together, which depends on no seed
    and no fold.
    """
    splits = run.partition.get("splits")
    parts = list(splits.values()) if isinstance(splits, dict) else []
    try:
        images = sum(part["images"] for part in parts)
        positives = map(sum, zip(*(part["positives"] for part in parts), strict=True))
        return repr([images, *positives])
    except (KeyError, TypeError, ValueError):  # not as a run writes it
        return ""


def _describes_scenario(key: str) -> bool:
    return key.partition(".")[0] in CONDITIONS


def _describes_method(key: str) -> bool:
    return not _describes_scenario(key)


def _uncompared_precision(runs: Runs) -> tuple[str, ...]:
    """The settings of precision that no two runs, alike in all else, differ in."""

    def rest(run: RecordedRun) -> str:
        chosen = {
            k: v for k, v in run.flat.items() if k not in (*NOT_COMPARED, *PRECISION_SETTINGS)
        }
        return json.dumps(chosen, sort_keys=True, default=str)

    alike = grouped((rest(run), run) for run in runs).values()
    several = [group for group in alike if len(group) > 1]
    values = {
        key: [{_setting(run, key) for run in group} for group in several]
        for key in PRECISION_SETTINGS
    }
    return tuple(
        key for key, by_group in values.items() if all(len(group) == 1 for group in by_group)
    )


def _differing_settings(
    runs: Runs, by: Key, which: Callable[[str], bool], apart: Sequence[str]
) -> dict[Any, set[str]]:
    """By group, the settings with more than one value in it; a run of another version may lack a
    setting.
    """
    differing = {}
    unseen = {*REPEATS, *NOT_COMPARED, *apart}
    for name, members in grouped((by(run), run) for run in runs).items():
        keys = {key for run in members for key in run.flat if which(key) and key not in unseen}
        differing[name] = {
            key
            for key in keys
            if len({_setting(run, key) for run in members if key in run.flat}) > 1
        }
    return differing


def _is_crossed(key: str, runs: Runs) -> bool:
    """Whether all methods were run with the same several values of a setting."""
    values = grouped(
        (run.method, _setting(run, key)) for run in runs if not run.reference and key in run.flat
    )
    sets = [set(by_method) for by_method in values.values()]
    return (
        not key.startswith("method.")
        and len(sets) > 1
        and len(sets[0]) > 1
        and all(some == sets[0] for some in sets)
    )


def _name_with_settings(name: str, keys: Iterable[str], run: RecordedRun) -> str:
    inside = ", ".join(
        f"{key.partition('.')[2] or key}={_setting(run, key)}" for key in sorted(keys)
    )
    return f"{name} ({inside})" if inside else name


def _setting(run: RecordedRun, key: str) -> str:
    value = run.flat.get(key, "not set")
    if isinstance(value, str) and "/" in value:
        value = Path(value).name  # somebody's own data may lie elsewhere on another machine
    return f"{value:g}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------------- notes


def _notes(runs: Runs) -> Iterator[str]:
    """What makes runs less comparable than their names suggest."""
    yield from _unequal_settings(runs)
    yield from _unequal_precision(runs)
    yield from _unequal_partitions(runs)
    yield from _missing_repeats(runs)
    yield from _unequal_versions(runs)


def _unequal_settings(runs: Runs) -> Iterator[str]:
    methods = [run for run in runs if not run.reference]
    scenarios: dict[str, list[str]] = {}  # by setting and its values

    def compared(key: str) -> bool:
        return key.startswith(("training.", "model.", "rounds"))

    differing = _differing_settings(methods, attrgetter("scenario"), compared, PRECISION_SETTINGS)
    for scenario, keys in differing.items():
        here = [run for run in methods if run.scenario == scenario]
        for key in keys:
            if all(f"{key.partition('.')[2] or key}=" in run.method for run in here):
                continue  # the names tell them apart
            values = grouped((_setting(run, key), run.method) for run in here)
            words = "; ".join(
                f"{value}: {', '.join(sorted({*names}))}" for value, names in sorted(values.items())
            )
            scenarios.setdefault(f"{key} ({words})", []).append(scenario)
    for what, where in sorted(scenarios.items()):
        yield f"Not all methods were run with the same {what} in {', '.join(where)}."


def _unequal_precision(runs: Runs) -> Iterator[str]:
    """Other devices and precisions round differently: runs stay repeats of one another, and the
    reader is told.
    """
    values = {
        "kind of device": [outcome_device_kind(run.flat, run.environment) for run in runs],
        **{
            key: [_setting(run, key) for run in runs if key in run.flat]
            for key in PRECISION_SETTINGS
        },
    }
    for what, by_run in values.items():
        counts = Counter(by_run)
        if len(counts) > 1:
            words = ", ".join(f"{value}: {count} runs" for value, count in sorted(counts.items()))
            yield (
                f"Not all runs were computed with the same {what} ({words}): they differ by"
                " rounding, too."
            )


def _unequal_partitions(runs: Runs) -> Iterator[str]:
    hashes = grouped(
        ((run.scenario, run.repeat), str(run.partition.get("sha256", "unknown"))) for run in runs
    )
    for (scenario, repeat), by_run in hashes.items():
        if len(set(by_run)) > 1:
            yield (
                f"In {scenario}, seed {repeat}, the methods did not have the same images at the"
                " same clients."
            )


def _missing_repeats(runs: Runs) -> Iterator[str]:
    for scenario, here in grouped((run.scenario, run) for run in runs).items():
        every = {run.repeat for run in here}
        for method, repeats in grouped((run.method, run.repeat) for run in here).items():
            if missing := sorted(every - {*repeats}):
                yield f"{method} has no finished run in {scenario} for seed {', '.join(missing)}."


def _unequal_versions(runs: Runs) -> Iterator[str]:
    common = {
        key
        for run in runs
        for key in run.flat
        if key.partition(".")[0] not in ("data", "scenario", "method")
    }
    unrecorded = sorted(key for key in common if any(key not in run.flat for run in runs))
    if unrecorded:
        yield (
            f"Some runs do not record {', '.join(unrecorded)}, as others do: they were made by"
            " another version."
        )
    versions = {str(run.environment.get("packages", {}).get("feddraw", "unknown")) for run in runs}
    if len(versions) > 1:
        yield f"The runs come from different versions of feddraw: {', '.join(sorted(versions))}."


def findings_of_runs(runs: Sequence[RecordedRun]) -> tuple[str, ...]:
    return next((run.findings for run in runs if run.finished), ())
