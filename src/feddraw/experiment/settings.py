"""An experiment as one value, to and from TOML, with every default written out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from feddraw import catalog
from feddraw.core import Method
from feddraw.core.participation import Participation
from feddraw.core.schedules import ROUNDS
from feddraw.data.corruption import Corruption
from feddraw.data.dataset import FINDINGS_TASK
from feddraw.data.scenarios.paper_scenarios import paper_dataset_of
from feddraw.data.synthetic import is_synthetic
from feddraw.errors import UserError, unknown
from feddraw.experiment.method_by_name import (
    Section,
    combined_method,
    method_section,
)
from feddraw.results.about import About
from feddraw.results.kept_models import Keep
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from feddraw.system.file_reading import parse_toml, read_toml
from feddraw.tasks import Task, make_task, settings_of_task
from feddraw.training.settings import Training

# A name and its settings; the others have settings only.
NAMED_SECTIONS = (
    "data",
    "scenario",
    "model",
    "method",
)
SETTINGS_SECTIONS = {
    kind.__name__.lower(): kind
    for kind in (Training, Participation, Corruption, Gate, Policy, Keep, About)
}
MOST_ROUNDS = 100_000
# As data.seed of synthetic images: the experiment's seed, so that every seed has images of its own.
SEED_OF_EXPERIMENT = -1
DATA_OF_SCENARIO = "as-scenario"  # as data: the data set that the paper made the scenario of
# Settings of the data section that belong to a frozen part of the network (model.frozen): how its
# features are kept, and how many augmented copies of each training image pass it.
FEATURE_SETTINGS = {"features": "float32", "copies": 0}
FEATURE_KINDS = ("float32", "float16", "off")  # off: computed anew for every batch
MOST_COPIES = 100


@dataclass(frozen=True)
class Experiment:
    """What to run.

    `data`, `scenario`, `model` and `method` are a name, or a mapping with a name and settings.
    """

    data: str | Section = "phantom"
    scenario: str | Section = "CHM-2"
    model: str | Section = "compact"
    method: str | Section = "feddraw"
    training: Training = field(default_factory=Training)
    participation: Participation = field(default_factory=Participation)
    # Sites whose data are worse, or made otherwise.
    corruption: Corruption = field(default_factory=Corruption)
    gate: Gate = field(default_factory=Gate)  # which updates are let in
    # Limits on how much a client may count, whatever the method says.
    policy: Policy = field(default_factory=Policy)
    keep: Keep = field(default_factory=Keep)  # models to keep beside that of the last round
    about: About = field(default_factory=About)  # in the user's words, for report and model card
    rounds: int = ROUNDS
    seed: int = 0
    partition_seed: int = -1  # -1: the same as seed
    # 0: the data's own split; else cross-validation with this many folds of patients.
    folds: int = 0
    holdout: float = 0.0  # share of each client's images kept back to test the global model on
    # sum updates as they come, in client order: one model of memory, however many clients
    stream: bool = False
    secure: bool = False  # the server sees sums over clients only, under masks: docs/privacy.md
    # With it: the server also sees each client's weight, which tells something of its update.
    clear_weights: bool = False
    # The test AUC in every round's line, for curves; never used to choose anything.
    test_every_round: bool = False
    # Validation images that the server weighs clients by, for the methods that need some.
    proxy: int = 200
    engine: str = "processes"  # serial, processes, flower, or anyone's package.module:function
    # 0: one per core, at most one per client; on GPUs as many as their memory holds.
    workers: int = 0
    devices: str = ""  # where workers train: cuda:0,cuda:1 or all; "": training.device
    # show the run to a tracker as well: tensorboard, mlflow, wandb, or package.module:function
    track: str = ""

    def __post_init__(self) -> None:
        for name in NAMED_SECTIONS:
            value = getattr(self, name)
            section = {"name": value} if isinstance(value, str) else dict(value)
            section = _section_defaults(name, section) | section
            object.__setattr__(self, name, method_section(section) if name == "method" else section)
        for name, kind in SETTINGS_SECTIONS.items():
            if isinstance(getattr(self, name), Mapping):
                catalog.check_setting_types(
                    getattr(self, name), {f.name: f.default for f in fields(kind)}, name
                )
                object.__setattr__(self, name, kind(**getattr(self, name)))

    def section(self, name: str) -> tuple[str, dict[str, Any]]:
        """A section's name and its settings."""
        settings = dict(getattr(self, name))
        return settings.pop("name"), settings

    def dataset_section(self) -> tuple[str, dict[str, Any]]:
        """The data set's name and its own settings, without those of features and of the task."""
        name, settings = self.section("data")
        task, options = self.task_section()
        apart = {"task", *options} if task else set()
        return name, {
            key: v for key, v in settings.items() if key not in {*FEATURE_SETTINGS, *apart}
        }

    def task_section(self) -> tuple[str, dict[str, Any]]:
        """The task's name, empty where the data decide, and its settings."""
        settings = self.section("data")[1]
        name = settings.get("task", "")
        if not isinstance(name, str):
            raise UserError(f"data.task must be a name, not {name!r}")
        if ":" in name:  # reports read it from a run's folder, which imports no code
            raise UserError(f"data.task = {name}: put a task of your own into feddraw/tasks")
        options = settings_of_task(name) if name else ()
        return name, {key: settings[key] for key in options if key in settings}

    @property
    def task(self) -> Task:
        """What the network's outputs say: findings, where neither settings nor data say more."""
        name, options = self.task_section()
        return make_task(name or FINDINGS_TASK, options)

    @property
    def channels(self) -> int:
        """Of its images: 1 if they are grey, 3 in colour."""
        return 3 if self.section("data")[1].get("channels") == 3 else 1

    @property
    def frozen(self) -> str:
        """Where the network is cut: everything before this layer is frozen; empty: nowhere."""
        return str(self.section("model")[1].get("frozen", ""))

    @property
    def trains_on_features(self) -> bool:
        """Whether clients get what comes out of the frozen part in place of images."""
        return bool(self.frozen) and self.section("data")[1].get("features") != "off"

    def with_settings(self, changes: Mapping[str, Any]) -> Experiment:
        """The same with some settings changed, by their dotted path in `experiment.toml`:
        {"method.mu": 0.1}.
        """
        table = self.table()
        # Names, then their settings.
        for path, value in sorted(changes.items(), key=lambda change: "." in change[0]):
            head, _, rest = path.partition(".")
            if head not in table:
                raise _unknown_setting(path)
            if not rest:
                table[head] = _changed_setting(path, table[head], value)
            elif not isinstance(table[head], dict):
                raise UserError(f"'{head}' is a single value: there is no setting '{path}'")
            else:
                table[head] = _without_setting(table[head], rest) | {rest: value}
        return Experiment.of(table)

    def table(self) -> dict[str, Any]:
        """As nested dicts, the way a file holds it."""
        sections = {name: asdict(getattr(self, name)) for name in SETTINGS_SECTIONS}
        return {f.name: getattr(self, f.name) for f in fields(self)} | sections

    @staticmethod
    def of(table: Mapping[str, Any]) -> Experiment:
        """From nested dicts; anything unknown or of the wrong type is refused."""
        known = {f.name: f for f in fields(Experiment)}
        named: dict[str, Section] = {}
        for name, value in table.items():
            if name not in known:
                raise _unknown_setting(name)
            if name in NAMED_SECTIONS and not isinstance(value, str | Mapping):
                raise UserError(f"{name} must be a name or a table with a name, not {value!r}")
            if name in NAMED_SECTIONS and isinstance(value, Mapping):
                # One without a name has that of a section that is left out.
                section = {"name": known[name].default} | dict(value)
                if not isinstance(section["name"], str):
                    raise UserError(f"{name}.name must be a name, not {section['name']!r}")
                if _has_none_in_list(section):
                    raise UserError(f"{name} has a list with None in it, which no file can hold")
                named[name] = section
            if name in SETTINGS_SECTIONS and not isinstance(value, Mapping):
                raise UserError(f"{name} must be a table of settings, not {value!r}")
        numbers = {n: v for n, v in table.items() if n not in (*NAMED_SECTIONS, *SETTINGS_SECTIONS)}
        catalog.check_setting_types(numbers, {n: known[n].default for n in numbers}, "")
        return Experiment(**{**table, **named})

    @staticmethod
    def read(path: Path, *, trust: bool = False) -> Experiment:
        """From a TOML file, also the one in a run's folder.

        Code that it names is refused unless trusted.
        """
        table = read_toml(path)
        table.pop("partition", None)  # what came of the settings, not one of them
        return Experiment.of(table).trusted(trust, f"{path} names")

    def trusted(
        self, trust: bool, source: str, permit: str = "add --trust if you trust it"
    ) -> Experiment:
        """The experiment itself, unless it names code that the user has not allowed.

        Settings that were not typed here (files, run folders, Flower's run settings) pass this
        check once, before `complete_settings` or anything else imports what they name; making an
        `Experiment` imports nothing.
        """
        named = {section: self.section(section)[0] for section in NAMED_SECTIONS} | {
            "engine": self.engine,
            "track": self.track,
        }
        for section, name in named.items():
            if ":" in name and not trust:
                raise UserError(f"{source} code to import ({section} = {name}): {permit}")
        return self

    @staticmethod
    def preset(name: str) -> Experiment:
        if not isinstance(name, str) or name not in PRESETS:
            raise unknown("presets", str(name), PRESETS)
        return Experiment().with_settings(PRESETS[name])


def _section_defaults(section: str, settings: Section) -> dict[str, Any]:
    """Defaults beyond the functions' own: the laptop preset.

    The paper's scenarios are scaled down, others are not.
    """
    if section == "scenario":
        return {"scale": 0.045 if paper_dataset_of(settings.get("name", "")) else 1.0}
    return {"size": 32} if section == "data" else {}


PRESETS: dict[str, dict[str, Any]] = {
    "laptop": {},
    "paper": {
        "data": DATA_OF_SCENARIO,
        "data.size": 224,
        "data.clahe": True,
        "scenario.scale": 1.0,
        "model": "densenet121",
        "training.lr": 1e-5,
        "training.weight_decay": 5e-3,
        "training.label_smoothing": 0.05,
        "training.clip": 5.0,
        "training.augment": True,
    },
}


def _unknown_setting(name: str) -> UserError:
    """The error for a name that is no setting: says in which section one of that name stands."""
    own_name = name.replace("-", "_")  # as an option of the command line has it
    places = [
        f"{section}.{own_name}"
        for section, kind in SETTINGS_SECTIONS.items()
        if own_name in {f.name for f in fields(kind)}
    ]
    places += [
        f"{section}.{own_name}"
        for section in NAMED_SECTIONS
        if own_name == "name" or own_name in _section_defaults(section, {})
    ]
    if places:
        return UserError(f"no '{name}' among the settings: write {' or '.join(places)}")
    return unknown("settings", name, [f.name for f in fields(Experiment)])


def _has_none_in_list(value: Any) -> bool:
    """Whether a list anywhere in a value has a None among its items."""
    if isinstance(value, Mapping):
        return any(map(_has_none_in_list, value.values()))
    if isinstance(value, list | tuple):
        return any(item is None or _has_none_in_list(item) for item in value)
    return False


def _changed_setting(path: str, old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping):
        return new
    if path in SETTINGS_SECTIONS:
        raise UserError(
            f"{path} is a table: set one of its values, such as {path}.{next(iter(old))}"
        )
    if not isinstance(new, str):
        raise UserError(f"{path} must be a name, not {new!r}")
    return {"name": new} | {
        key: value for key, value in old.items() if key in _kept_settings(path, old["name"], new)
    }


def _without_setting(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Leave out what a new value replaces: the setting with or without a method's name
    before it.
    """
    return {
        old: v
        for old, v in table.items()
        if old != key.rpartition(".")[2] and old.rpartition(".")[2] != key
    }


def _kept_settings(section: str, old: str, new: str) -> tuple[str, ...]:
    """Settings that stay when a section gets another name; the others belonged to the old one."""
    if section == "data":
        kept = ("size", *FEATURE_SETTINGS)
        return kept if is_synthetic(new) else (*kept, "clahe")
    both_of_the_paper = section == "scenario" and paper_dataset_of(old) and paper_dataset_of(new)
    return ("scale",) if both_of_the_paper else ()


def make_method(experiment: Experiment) -> Method:
    """An experiment's method. `A+B` takes the weighting of A, the local and server rules of B."""
    return replace(
        combined_method(*experiment.section("method")), limited=experiment.policy.limits_weights
    )


def parse_settings(assignments: list[str]) -> dict[str, Any]:
    """KEY=VALUE, where a value that is no number, truth value or list is taken as a word."""
    settings = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"--set takes KEY=VALUE, not '{assignment}'")
        settings[key.strip()] = parse_setting(text)
    return settings


def parse_setting(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        pass
    try:
        return float(text)  # .5, which TOML does not know
    except ValueError:
        return text
