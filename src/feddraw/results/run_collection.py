"""Many runs: found below any folder, each whole or named as broken, and told apart by their
settings.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from functools import cached_property
from pathlib import Path

from feddraw.data.synthetic import is_synthetic
from feddraw.errors import UserError
from feddraw.results.environment import table_in_environment
from feddraw.results.find_runs import find_run_folders
from feddraw.results.outcome_settings import (
    ARCHIVES,
    CONDITIONS,
    NOT_COMPARED,
    PRECISION_SETTINGS,
    REPEATS,
    outcome_device_kind,
)
from feddraw.results.recorded_run import RecordedRun, read_run
from feddraw.system.file_writing import json_values
from feddraw.text import distinct_ends, grouped

Runs = Sequence[RecordedRun]
Labels = Mapping[RecordedRun, str]


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
    """The runs with a scenario and a method as tables show them: a name, and in brackets the
    settings that differ under one name.

    Precision tells runs apart only where somebody compares it.
    """
    ignored_keys = {*REPEATS, *NOT_COMPARED, *_uncompared_precision(runs)}
    scenarios = _scenario_labels(runs, ignored_keys)
    methods = _method_labels(runs, scenarios, ignored_keys)
    return [replace(run, scenario=scenarios[run], method=methods[run]) for run in runs]


def _scenario_labels(runs: Runs, ignored_keys: Collection[str]) -> Labels:
    """Each run's scenario, with the settings that differ between the runs of that name.

    Settings of the data and the scenario describe a scenario. The others describe a method, but
    where all methods of a scenario were run with the same several values they are conditions, too.

    Two runs of `iid` with data.size 64 and 128 become "iid (size=64)" and "iid (size=128)".
    """
    labels: dict[RecordedRun, str] = {}
    for name, members in grouped((run.names.scenario, run) for run in runs).items():
        conditions = {
            key
            for key in _differing_keys(members, ignored_keys)
            if _describes_scenario(key) or _is_crossed(key, members)
        }
        for run in members:
            labels[run] = _name_with_settings(name, conditions, run)
    return _with_places_of_own_data(labels)


def _method_labels(runs: Runs, scenarios: Labels, ignored_keys: Collection[str]) -> Labels:
    """Each run's method, with the settings that differ between its runs in some scenario.

    Two runs of `fedprox` in one scenario with mu 0.1 and 1 become "fedprox (mu=0.1)" and
    "fedprox (mu=1)", in all other scenarios, too.
    """
    members_by_place = grouped(((scenarios[run], run.name), run) for run in runs)
    keys_of_method: dict[str, set[str]] = {run.name: set() for run in runs}
    for (_, method), members in members_by_place.items():
        keys_of_method[method].update(
            key for key in _differing_keys(members, ignored_keys) if not _describes_scenario(key)
        )
    return {run: _name_with_settings(run.name, keys_of_method[run.name], run) for run in runs}


def _with_places_of_own_data(labels: Labels) -> Labels:
    """The labels of scenarios, with the place of the data where own data of one name lie in
    several folders, unless the numbers of their images are equal.
    """
    first_places: dict[tuple[str, str], str] = {}  # by label and content of the data
    for run, label in labels.items():
        if _is_own_data(run):
            first_places.setdefault((label, _data_content(run)), _place_of_data(run))
    places_of_label = grouped((label, place) for (label, _), place in first_places.items())
    short_places = {
        label: distinct_ends({place: Path(place).parts for place in places})
        for label, places in places_of_label.items()
    }

    def label_with_place(run: RecordedRun, label: str) -> str:
        if not _is_own_data(run) or len(short_places[label]) == 1:
            return label
        first_place = first_places[label, _data_content(run)]
        return f"{label} ({short_places[label][first_place]})"

    return {run: label_with_place(run, label) for run, label in labels.items()}


def _is_own_data(run: RecordedRun) -> bool:
    name = str(run.flat.get("data.name"))
    return name not in ARCHIVES and not is_synthetic(name)


def _place_of_data(run: RecordedRun) -> str:
    return str(run.flat.get("data.path") or run.flat.get("data.name"))


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


def _differing_keys(runs: Runs, ignored_keys: Collection[str]) -> set[str]:
    """The settings with more than one value in these runs; a run of another version may lack a
    setting.
    """
    values = grouped((key, _setting(run, key)) for run in runs for key in run.flat)
    return {key for key, seen in values.items() if key not in ignored_keys and len(set(seen)) > 1}


def _is_crossed(key: str, runs: Runs) -> bool:
    """Whether all methods were run with the same several values of a setting."""
    values = grouped(
        (run.name, _setting(run, key)) for run in runs if not run.reference and key in run.flat
    )
    values_of_methods = [set(of_method) for of_method in values.values()]
    return (
        not key.startswith("method.")
        and len(values_of_methods) > 1
        and len(values_of_methods[0]) > 1
        and all(of_method == values_of_methods[0] for of_method in values_of_methods)
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
    ignored_keys = {*REPEATS, *NOT_COMPARED, *PRECISION_SETTINGS}
    for scenario, here in grouped((run.scenario, run) for run in methods).items():
        for key in _differing_keys(here, ignored_keys):
            if not key.startswith(("training.", "model.", "rounds")):
                continue
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
    packages = [table_in_environment(run.environment, "packages") for run in runs]
    versions = {str(recorded.get("feddraw", "unknown")) for recorded in packages}
    if len(versions) > 1:
        yield f"The runs come from different versions of feddraw: {', '.join(sorted(versions))}."


def findings_of_runs(runs: Sequence[RecordedRun]) -> tuple[str, ...]:
    return next((run.findings for run in runs if run.finished), ())
