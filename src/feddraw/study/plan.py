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

from feddraw.data.synthetic import is_synthetic
from feddraw.errors import UserError, unknown
from feddraw.experiment.completion import complete_settings, data_name
from feddraw.experiment.settings import Experiment
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
    def completed(self) -> Experiment:
        """The experiment with every default written out."""
        return complete_settings(self.experiment)

    def is_finished(self, out: Path) -> bool:
        """Whether its folder in `out` has all files; one that holds another run is refused."""
        return not RunFolder(out / self.name).begin(self.completed.table(), resume=True)

    @property
    def key(self) -> str:
        """A digest of what was asked for: every setting that is not the default, so that a new one
        changes no old key.

        Where an archive lies on this machine and how the run is carried out are no part of it.
        """
        defaults = dotted_settings(Experiment().table())
        settings = dotted_settings(self.experiment.table())
        chosen = {name: value for name, value in settings.items() if defaults.get(name) != value}
        if "data.name" in chosen:
            chosen["data.name"] = data_name(self.experiment)
        table = without_execution(chosen)
        for name in ("data.name", "data.path"):
            if isinstance(table.get(name), str):
                table[name] = Path(table[name]).as_posix()  # ./x is x
        text = json.dumps(table, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def is_file_data(planned: PlannedRun) -> bool:
    """Whether its images lie in files, and are prepared before the first run."""
    name = planned.completed.section("data")[0]
    return not is_synthetic(name) and ":" not in name


def data_key(experiment: Experiment) -> str:
    """Equal for experiments on the same data set with the same settings of it."""
    name, settings = experiment.dataset_section()
    return json.dumps({"name": name, **settings}, sort_keys=True)


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
    file_paths = read_archive_paths(table.pop("paths", {}), path)
    file_families = read_family_settings(table.pop("only", {}), path)
    for_all, typed_families = changes_by_family(changes or {})
    base = Experiment.preset(table.pop("preset", "laptop"))
    runs = []
    for settings, label in _choices(table, path):
        written = base.with_settings(_dotted_settings(settings))
        written = with_family_settings(written, file_families)
        written.trusted(trust, f"{path} names")
        changed = with_family_settings(written.with_settings(for_all), typed_families)
        runs.append(planned_run(with_archive_path(changed, paths or {}, file_paths), label))
    runs.sort(key=lambda planned: planned.experiment.seed)
    families = [*file_families, *typed_families]
    require_family_members(families, [planned.experiment for planned in runs], path)
    _require_different_names(runs, path)
    return runs


def _choices(table: dict[str, Any], path: Path) -> list[Choice]:
    """Every combination of a file's lists, in each of its cases."""
    cases = table.pop("case", [{}])
    if not (isinstance(cases, list) and all(isinstance(case, dict) for case in cases)):
        raise UserError(f"{path}: write a case as a table with two brackets: [[case]]")
    choices: list[Choice] = []
    for case in cases:
        case_label = {"scenario": str(case.pop("label"))} if "label" in case else {}
        combinations = _combinations(table | case)
        choices += [(settings, label | case_label) for settings, label in combinations]
        _require_few_runs(len(choices))
    return choices


def _combinations(table: Mapping[str, Any]) -> list[Choice]:
    """Every choice of one element from each list, with words for what was chosen."""
    combinations: list[Choice] = [({}, {})]
    for name, value in table.items():
        items = value if isinstance(value, list) else [value]
        if not items:
            raise UserError(f"{name} is an empty list: a study of it has no runs")
        choices: list[Choice] = []
        for item in items:
            inner: list[tuple[Any, dict[str, str]]] = [(item, {})]
            if isinstance(item, Mapping):
                inner = list(_combinations(item))
            choices += [
                ({name: chosen}, _choice_label(name, chosen, label, len(items) > 1))
                for chosen, label in inner
            ]
        _require_few_runs(len(combinations) * len(choices))
        combinations = [
            (settings | more, label | more_label)
            for settings, label in combinations
            for more, more_label in choices
        ]
    return combinations


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
    settings = dotted_settings(chosen)
    shown = settings if several else {key: settings[key] for key in inner}
    words = [f"{key}={value}" for key, value in shown.items() if key != "name"]
    return {name: ",".join([str(chosen.get("name", "")), *words])}


def _dotted_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted paths, a section's name before what belongs to it."""
    dotted: dict[str, Any] = {}
    for name, value in settings.items():
        table = value if isinstance(value, Mapping) else {"name": value}
        if "name" in table:
            dotted[name] = table["name"]
        dotted |= {f"{name}.{key}": item for key, item in table.items() if key != "name"}
    return dotted


def planned_run(experiment: Experiment, label: dict[str, str]) -> PlannedRun:
    """A run with the name of its folder; `label` is what tells it from others."""
    label = {name: label.get(name, experiment.section(name)[0]) for name in ALWAYS_NAMED} | label
    others = {key: value for key, value in label.items() if key not in (*ALWAYS_NAMED, "seed")}
    last_names = Counter(map(_last_name, others))
    words = [label[name] for name in ALWAYS_NAMED]
    for key, value in others.items():
        is_unique = last_names[_last_name(key)] == 1
        words.append(f"{_last_name(key) if is_unique else key}={value}")
    words.append(f"seed={experiment.seed}")
    return PlannedRun(re.sub(r"[^\w.=,+-]+", "-", "_".join(words)), experiment, label)


def _last_name(setting: str) -> str:
    """`lr` of training.lr."""
    return setting.rpartition(".")[2]


def _require_different_names(runs: Sequence[PlannedRun], path: Path) -> None:
    names: set[str] = set()
    firsts: dict[str, PlannedRun] = {}  # by key
    for planned in runs:
        if planned.name in names:
            raise UserError(f"{path} asks for {planned.name} more than once")
        names.add(planned.name)
        first = firsts.setdefault(planned.key, planned)
        if first is planned:
            continue
        if first.experiment == planned.experiment:
            why = (
                "are the same run, because --set replaced the settings in which they differed:"
                " change the file"
            )
        else:
            why = (
                "give the same results, they differ only in how they are computed: keep one of them"
            )
        raise UserError(f"{path}: {first.name} and {planned.name} {why}")


def shard_of(runs: Sequence[PlannedRun], shard: str) -> list[PlannedRun]:
    """`i/n`: every n-th run, beginning with the i-th."""
    parts = re.fullmatch(r"(\d+)/(\d+)", shard)
    if parts is None or not 1 <= int(parts[1]) <= int(parts[2]):
        raise UserError(f"--shard takes i/n with i from 1 to n, not '{shard}'")
    return list(runs[int(parts[1]) - 1 :: int(parts[2])])


Settings = Mapping[str, Any]  # by dotted path
SETTING_NAMES = frozenset(field.name for field in fields(Experiment))


def belongs_to_family(experiment: Experiment, family: str) -> bool:
    """Whether an experiment's scenario or data set has this name, or fits a pattern like CHX-*."""
    names = (experiment.section("scenario")[0], data_name(experiment))
    return any(fnmatchcase(name.lower(), family.lower()) for name in names)


def changes_by_family(changes: Settings) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Changes to every run, and those whose key begins with a family: {"CHX-7.scenario.scale":
    0.9}.
    """
    for_all: dict[str, Any] = {}
    families: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        family, _, rest = key.partition(".")
        if family in SETTING_NAMES or rest.partition(".")[0] not in SETTING_NAMES:
            for_all[key] = value
        else:
            families.setdefault(family, {})[rest] = value
    return for_all, families


def read_family_settings(table: Any, path: Path) -> dict[str, dict[str, Any]]:
    """The tables `[only.FAMILY]` of a study's file, each with settings by dotted path."""
    if not isinstance(table, dict) or not all(isinstance(part, dict) for part in table.values()):
        raise UserError(
            f"{path}: write settings of a family as a table: [only.chexpert] or [only.'CHX-7']"
        )
    return {family: dotted_settings(part) for family, part in table.items()}


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
        if belongs_to_family(experiment, family):
            experiment = experiment.with_settings(settings)
    return experiment


def with_archive_path(
    experiment: Experiment, typed: Mapping[str, str], usual: Mapping[str, str]
) -> Experiment:
    """With the path of its archive: as typed; else its own setting; else the file's."""
    name = data_name(experiment)
    setting = experiment.section("data")[1].get("path", "")
    path = typed.get(name) or setting or usual.get(name, "")
    if not path or path == setting:
        return experiment
    return experiment.with_settings({"data.path": path})


def require_family_members(
    families: Sequence[str], experiments: Sequence[Experiment], path: Path
) -> None:
    """Refuse a family that no run is of: a setting that is quietly lost would be found out days
    later.
    """
    for family in families:
        if not any(belongs_to_family(experiment, family) for experiment in experiments):
            raise UserError(
                f"{path} has no run with a scenario or data set '{family}': correct or remove it"
            )


def unfinished_runs(runs: Sequence[PlannedRun], out: Path) -> list[PlannedRun]:
    """Those without metrics in their folder in `out`."""
    return [planned for planned in runs if not RunFolder(out / planned.name).metrics.is_file()]


def method_of(planned: PlannedRun) -> str:
    """What tables call the method of a run."""
    return planned.label["method"]
