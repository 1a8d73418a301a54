"""The runs of a study: a file whose lists are multiplied out, every combination a run in a folder
of its own.

Seeds vary slowest, so a study that is stopped half-way has whole replicates. Some settings are said
of a part of the runs only: those of one family (a scenario or data set), and where an archive lies
on this machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from feddraw.errors import UserError, unknown
from feddraw.experiment.settings import Experiment, complete, data_name
from feddraw.results.outcome_settings import ARCHIVES, dotted_settings, without_execution
from feddraw.results.run_folder import RunFolder
from feddraw.system.file_reading import read_toml

Choice = tuple[dict[str, Any], dict[str, str]]  # settings, and what to call them
ALWAYS_NAMED = ("scenario", "method")
MOST_RUNS = 5_000  # of one file: a few short lists multiply to more than any memory holds


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run of a study."""

    name: str  # of its folder
    experiment: Experiment
    label: Mapping[str, str]  # what tells it from the others, by setting

    @cached_property
    def complete(self) -> Experiment:
        """The experiment with every default written out."""
        return complete(self.experiment)

    def is_finished(self, out: Path) -> bool:
        """Whether its folder in `out` has all files; one that holds another run is refused."""
        return not RunFolder(out / self.name).begin(self.complete.table(), resume=True)

    @property
    def key(self) -> str:
        """A digest of what was asked for: every setting that is not the default, so that a new one
        changes no old key.

        Where an archive lies on this machine and how the run is carried out are no part of it.
        """
        usual, own = (dotted_settings(one.table()) for one in (Experiment(), self.experiment))
        chosen = {name: value for name, value in own.items() if usual.get(name) != value}
        table = without_execution(
            chosen | ({"data.name": data_name(self.experiment)} if "data.name" in chosen else {})
        )
        for name in ("data.name", "data.path"):
            if isinstance(table.get(name), str):
                table[name] = Path(table[name]).as_posix()  # ./x is x
        return hashlib.blake2b(
            json.dumps(table, sort_keys=True).encode(), digest_size=8
        ).hexdigest()


def is_file_data(planned: PlannedRun) -> bool:
    """Whether its images lie in files, and are prepared before the first run."""
    name = planned.complete.section("data")[0]
    return name != "phantom" and ":" not in name


def data_key(experiment: Experiment) -> str:
    """Equal for experiments on the same data set with the same settings of it."""
    return json.dumps(experiment.data, sort_keys=True)


def read_study(
    path: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    trust: bool = False,
    paths: Mapping[str, str] | None = None,
) -> list[PlannedRun]:
    """All runs of a study's file: an experiment file in which any value may be a list.

    `[[case]]` tables are alternatives: each is combined with what stands outside of them, and its
    `label`, if it has one, is what tables call it in place of its scenario. `preset` names what the
    settings start from. A list inside a list is a value. `[only.FAMILY]` has settings of the runs
    with this scenario or data set, `[paths]` says where archives are; `changes` and `paths` are the
    same from the command line.
    """
    table = read_toml(path)
    places, only = (
        read_archive_paths(table.pop("paths", {}), path),
        read_family_settings(table.pop("only", {}), path),
    )
    for_all, families = changes_by_family(changes or {})
    preset = table.pop("preset", "laptop")
    cases = table.pop("case", [{}])
    if not (isinstance(cases, list) and all(isinstance(case, dict) for case in cases)):
        raise UserError(f"{path}: write a case as a table with two brackets: [[case]]")
    chosen: list[Choice] = []
    for case in cases:
        called = {"scenario": str(case.pop("label"))} if "label" in case else {}
        chosen += [(settings, label | called) for settings, label in _combinations(table | case)]
        _require_few_runs(len(chosen))
    base = Experiment.preset(preset)
    found = []
    for settings, label in chosen:
        written = with_family_settings(base.with_settings(_dotted_study_settings(settings)), only)
        written.trusted(trust, f"{path} names")
        meant = with_family_settings(written.with_settings(for_all), families)
        found.append(planned_run(with_archive_path(meant, paths or {}, places), label))
    found.sort(key=lambda planned: planned.experiment.seed)
    require_family_members([*only, *families], [planned.experiment for planned in found], path)
    _require_different_names(found, path)
    return found


def _combinations(table: Mapping[str, Any]) -> list[Choice]:
    """Every choice of one element from each list, with words for what was chosen."""
    found: list[Choice] = [({}, {})]
    for name, value in table.items():
        items = value if isinstance(value, list) else [value]
        nested: list[list[Any]] = [
            _combinations(item) if isinstance(item, Mapping) else [(item, {})] for item in items
        ]
        choices = [choice for some in nested for choice in some]
        _require_few_runs(len(found) * len(choices))
        more = [
            ({name: chosen}, _choice_label(name, chosen, inner, len(items) > 1))
            for chosen, inner in choices
        ]
        found = [
            (settings | one, label | words) for settings, label in found for one, words in more
        ]
    return found


def _require_few_runs(runs: int) -> None:
    if runs > MOST_RUNS:
        raise UserError(
            f"the study has {runs:,} runs or more, of {MOST_RUNS:,} allowed: split it into several"
            " files"
        )


def _choice_label(
    name: str, chosen: Any, inner: Mapping[str, str], several: bool
) -> dict[str, str]:
    """What to call a choice: a section by its name and its own settings, a number by its setting's
    name.
    """
    if not isinstance(chosen, Mapping):
        return {name: str(chosen)} if several or name in ALWAYS_NAMED else {}
    if name not in ALWAYS_NAMED and not several:
        return {f"{name}.{key}": value for key, value in inner.items()}
    whole = dotted_settings(chosen)
    shown = whole if several else {key: whole[key] for key in inner}
    own = [f"{key}={value}" for key, value in shown.items() if key != "name"]
    return {name: ",".join([str(chosen.get("name", "")), *own])}


def _dotted_study_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted paths, a section's name before what belongs to it."""
    dotted: dict[str, Any] = {}
    for name, value in settings.items():
        table = value if isinstance(value, Mapping) else {"name": value}
        dotted |= {name: table["name"]} if "name" in table else {}
        dotted |= {f"{name}.{key}": item for key, item in table.items() if key != "name"}
    return dotted


def planned_run(experiment: Experiment, label: dict[str, str]) -> PlannedRun:
    """A run with the name of its folder; `label` is what tells it from others."""
    label = {name: label.get(name, experiment.section(name)[0]) for name in ALWAYS_NAMED} | label
    own = {key: value for key, value in label.items() if key not in (*ALWAYS_NAMED, "seed")}
    ends = Counter(key.rpartition(".")[2] for key in own)
    others = {
        key if ends[end := key.rpartition(".")[2]] > 1 else end: value for key, value in own.items()
    }
    words = [label[name] for name in ALWAYS_NAMED] + [
        f"{key}={value}" for key, value in others.items()
    ]
    name = "_".join([*words, f"seed={experiment.seed}"])
    return PlannedRun(re.sub(r"[^\w.=,+-]+", "-", name), experiment, label)


def _require_different_names(runs: Sequence[PlannedRun], path: Path) -> None:
    seen, firsts = set[str](), dict[str, PlannedRun]()
    for planned in runs:
        if planned.name in seen:
            raise UserError(f"{path} asks for {planned.name} more than once")
        seen.add(planned.name)
        first = firsts.setdefault(planned.key, planned)
        if first is not planned:
            how = (
                "give the same results, they differ only in how they are computed: keep one of them"
            )
            replaced = (
                "are the same run, because --set replaced the settings in which they differed:"
                " change the file"
            )
            why = replaced if first.experiment == planned.experiment else how
            raise UserError(f"{path}: {first.name} and {planned.name} {why}")


def shard_of(runs: Sequence[PlannedRun], shard: str) -> list[PlannedRun]:
    """`i/n`: every n-th run, beginning with the i-th."""
    parts = re.fullmatch(r"(\d+)/(\d+)", shard)
    if parts is None or not 1 <= int(parts[1]) <= int(parts[2]):
        raise UserError(f"--shard takes i/n with i from 1 to n, not '{shard}'")
    return list(runs[int(parts[1]) - 1 :: int(parts[2])])


Settings = Mapping[str, Any]  # by dotted path
SETTING_NAMES = frozenset(field.name for field in fields(Experiment))


def run_belongs_to_family(experiment: Experiment, family: str) -> bool:
    """Whether an experiment's scenario or data set has this name, or fits a pattern like CHX-*."""
    names = (experiment.section("scenario")[0], data_name(experiment))
    return any(fnmatchcase(name.lower(), family.lower()) for name in names)


def changes_by_family(changes: Settings) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Changes to every run, and those whose key begins with a family: {"CHX-7.scenario.scale":
    0.9}.
    """
    for_all, families = {}, dict[str, dict[str, Any]]()
    for key, value in changes.items():
        family, _, rest = key.partition(".")
        if family in SETTING_NAMES or rest.partition(".")[0] not in SETTING_NAMES:
            for_all[key] = value
        else:
            families.setdefault(family, {})[rest] = value
    return for_all, families


def read_family_settings(table: Any, path: Path) -> dict[str, dict[str, Any]]:
    """The tables `[only.FAMILY]` of a study's file, each with settings by dotted path."""
    if not isinstance(table, dict) or not all(isinstance(own, dict) for own in table.values()):
        raise UserError(
            f"{path}: write settings of a family as a table: [only.chexpert] or [only.'CHX-7']"
        )
    return {family: dotted_settings(own) for family, own in table.items()}


def read_archive_paths(table: Any, path: Path) -> dict[str, str]:
    """The table `[paths]` of a study's file: data sets and where their archives are."""
    if not isinstance(table, dict) or not all(isinstance(place, str) for place in table.values()):
        raise UserError(f"{path}: [paths] has a line for each archive, such as chexpert = 'FOLDER'")
    for name in table:
        if name not in ARCHIVES:
            raise unknown("archives", name, ARCHIVES)
    return dict(table)


def with_family_settings(experiment: Experiment, families: Mapping[str, Settings]) -> Experiment:
    """With the settings of every family that it is of."""
    for family, settings in families.items():
        experiment = (
            experiment.with_settings(settings)
            if run_belongs_to_family(experiment, family)
            else experiment
        )
    return experiment


def with_archive_path(
    experiment: Experiment, typed: Mapping[str, str], usual: Mapping[str, str]
) -> Experiment:
    """With the path of its archive: as typed; else its own setting; else the file's."""
    name, own = data_name(experiment), experiment.section("data")[1].get("path", "")
    place = typed.get(name) or own or usual.get(name, "")
    return experiment.with_settings({"data.path": place}) if place and place != own else experiment


def require_family_members(
    families: Sequence[str], experiments: Sequence[Experiment], path: Path
) -> None:
    """Refuse a family that no run is of: a setting that is quietly lost would be found out days
    later.
    """
    for family in families:
        if not any(run_belongs_to_family(experiment, family) for experiment in experiments):
            raise UserError(
                f"{path} has no run with a scenario or data set '{family}': correct or remove it"
            )


def unfinished_runs(runs: Sequence[PlannedRun], out: Path) -> list[PlannedRun]:
    return [planned for planned in runs if not RunFolder(out / planned.name).metrics.is_file()]


def method_of(planned: PlannedRun) -> str:
    return planned.label["method"]
