"""An experiment as one value, to and from TOML, with every default written out."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from feddraw import catalog
from feddraw.core import Method, secure_sums, why_not_secure, why_not_streaming
from feddraw.core.participation import Participation
from feddraw.core.schedules import ROUNDS
from feddraw.data.corruption import Corruption
from feddraw.data.dataset_by_name import dataset_defaults
from feddraw.data.scenarios.paper_scenarios import paper_dataset_of, paper_scenario_images
from feddraw.data.scenarios.scenario_by_name import complete_scenario_options
from feddraw.data.synthetic import is_synthetic
from feddraw.errors import UserError, at_least, not_negative, one_of, unknown
from feddraw.experiment.method_by_name import (
    Section,
    combined_method,
    method_section,
    method_with_defaults,
)
from feddraw.results.kept_models import Keep
from feddraw.server.collectors import check_stream_limits
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from feddraw.system.file_reading import read_toml
from feddraw.training.devices import device_names
from feddraw.training.network_by_name import find_model, model_defaults
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
    for kind in (Training, Participation, Corruption, Gate, Policy, Keep)
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
    tensorboard: bool = False  # show the rounds to TensorBoard as well, in the run's folder
    # Whether `complete` has checked it and written out every default.
    is_complete: ClassVar[bool] = False

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
        """The data set's name and its own settings, without those of features."""
        name, settings = self.section("data")
        return name, {key: v for key, v in settings.items() if key not in FEATURE_SETTINGS}

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
                raise unknown("settings", path, [f.name for f in fields(Experiment)])
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
        for name, value in table.items():
            if name not in known:
                raise unknown("settings", name, known)
            if name in NAMED_SECTIONS and not isinstance(value, str | Mapping):
                raise UserError(f"{name} must be a name or a table with a name, not {value!r}")
            if name in NAMED_SECTIONS and not isinstance(
                value if isinstance(value, str) else value.get("name"), str
            ):
                raise UserError(
                    f"{name} needs a name, such as {name}.name = '{known[name].default}'"
                )
            if name in SETTINGS_SECTIONS and not isinstance(value, Mapping):
                raise UserError(f"{name} must be a table of settings, not {value!r}")
        numbers = {n: v for n, v in table.items() if n not in (*NAMED_SECTIONS, *SETTINGS_SECTIONS)}
        catalog.check_setting_types(numbers, {n: known[n].default for n in numbers}, "")
        return Experiment(**table)

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
        check once, before `complete` or anything else imports what they name; making an
        `Experiment` imports nothing.
        """
        named = {section: self.section(section)[0] for section in NAMED_SECTIONS} | {
            "engine": self.engine
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


def complete(experiment: Experiment) -> Experiment:
    """With every default written out, as it is recorded with a run; checks the numbers on the way.

    What it returns is marked, so that only the first of several calls in a run does the work.
    """
    if experiment.is_complete:
        return experiment
    at_least("rounds", experiment.rounds, 1)
    if experiment.rounds > MOST_ROUNDS:
        raise UserError(f"rounds must be at most {MOST_ROUNDS:,}, not {experiment.rounds}")
    not_negative("seed", experiment.seed)
    if max(experiment.seed, experiment.partition_seed) >= 2**63:
        raise UserError("seed and partition_seed must be less than 2 to the power of 63")
    if not 0 <= experiment.holdout < 1:
        raise UserError(f"holdout must be a share from 0 to below 1, not {experiment.holdout}")
    if experiment.folds < 0 or experiment.folds == 1:
        raise UserError(
            f"folds must be 0 (the data's own split) or at least 2, not {experiment.folds}"
        )
    if experiment.proxy < 2:
        raise UserError(f"proxy must be at least 2 images, not {experiment.proxy}")
    not_negative("workers", experiment.workers)
    device_names(experiment.devices)
    if ":" not in experiment.engine and experiment.engine not in catalog.names("engines"):
        raise unknown("engines", experiment.engine, catalog.names("engines"))
    for section in (experiment.training, experiment.corruption, experiment.policy):
        section.check()
    experiment.keep.check(experiment.rounds)
    method = make_method(experiment)  # its mistakes come first, they cost no time
    experiment.policy.check_method(method)
    experiment.gate.check_method(method)
    if experiment.secure:
        _check_secure_settings(experiment, method)
    elif experiment.stream:
        _check_stream_settings(experiment, method)
    model, settings = experiment.section("model")
    completed = replace(
        experiment,
        data={**_data_defaults(experiment), **_feature_settings(experiment)},
        scenario=_scenario_defaults(experiment),
        method=method_with_defaults(*experiment.section("method")),
        model={"name": model} | model_defaults(find_model(model)) | settings,
        partition_seed=(
            experiment.seed if experiment.partition_seed < 0 else experiment.partition_seed
        ),
    )
    object.__setattr__(completed, "is_complete", True)
    return completed


def _check_stream_settings(experiment: Experiment, method: Method) -> None:
    if why := why_not_streaming(method):
        name = experiment.section("method")[0]
        raise UserError(f"{name} cannot stream: {why} (`feddraw list methods` shows which can)")
    check_stream_limits(experiment.gate, experiment.policy)


def _check_secure_settings(experiment: Experiment, method: Method) -> None:
    import feddraw.secure.sums  # noqa: F401 - says so if cryptography is not installed
    from feddraw.secure.rounds import rules_of_method

    name = experiment.section("method")[0]
    if why := why_not_secure(method):
        raise UserError(
            f"{name} cannot run under secure sums: {why} (`feddraw list methods` shows which can)"
        )
    rules_of_method.check_policy(method, experiment.policy, clear_weights=experiment.clear_weights)
    if experiment.gate.norm == "refuse" or experiment.gate.clip:
        instead = "set gate.norm to off or warn, and gate.clip to 0"
        raise UserError(f"a secure sum cannot leave out or clip single updates: {instead}")
    if experiment.engine == "flower":
        raise UserError(
            "secure = true is for engine serial or processes; over Flower, give the strategy"
            " secure=True"
        )
    if experiment.stream and (secure_sums(method) > 1 or experiment.policy.limits_weights):
        raise UserError(f"{name} needs more than one exchange per round here: set stream = false")


def data_name(experiment: Experiment) -> str:
    """The data set of an experiment, also where it follows the scenario."""
    name, _ = experiment.section("data")
    return (
        (paper_dataset_of(experiment.section("scenario")[0]) or "chestmnist")
        if name == DATA_OF_SCENARIO
        else name
    )


def _data_defaults(experiment: Experiment) -> Section:
    """Synthetic images have no natural number or mix: they follow the scenario, as the preset
    `paper` does.
    """
    name = data_name(experiment)
    settings = experiment.dataset_section()[1]
    defaults = dataset_defaults(name)
    if is_synthetic(name):
        scenario, options = experiment.section("scenario")
        of_scenario = {
            "train": paper_scenario_images(scenario, options.get("scale", 1.0)),
            "mix": paper_dataset_of(scenario),
        }
        defaults |= {key: value for key, value in of_scenario.items() if value and key in defaults}
        if settings.get("seed") == SEED_OF_EXPERIMENT:
            settings["seed"] = experiment.seed
    return {"name": name} | defaults | settings


def _feature_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings of features, checked; none where nothing of the network is frozen."""
    data = experiment.section("data")[1]
    chosen = {key: data[key] for key in FEATURE_SETTINGS if key in data}
    if not experiment.frozen:
        if chosen:
            raise UserError(
                f"data.{next(iter(chosen))} is for a network with a frozen part: set model.frozen"
                " (body, or the name of a layer), or leave it out"
            )
        return {}
    catalog.check_setting_types(chosen, FEATURE_SETTINGS, "data")
    settings = {**FEATURE_SETTINGS, **chosen}
    one_of("data.features", settings["features"], FEATURE_KINDS)
    copies = settings["copies"]
    if not 0 <= copies <= MOST_COPIES:
        raise UserError(f"data.copies must be from 0 to {MOST_COPIES}, not {copies}")
    _check_augmentation(experiment.training.augment, copies, settings["features"] == "off")
    return settings


def _check_augmentation(augment: bool, copies: int, every_batch: bool) -> None:
    """Features cannot be augmented: copies of the images are, before they pass the frozen part."""
    if augment and not copies and not every_batch:
        raise UserError(
            "features of a frozen part cannot be augmented: set data.copies to a number of"
            " augmented copies per image, data.features = off, or training.augment = false"
        )
    if copies and (every_batch or not augment):
        why = "data.features = off augments every batch" if every_batch else "it is false"
        raise UserError(f"data.copies goes with training.augment = true on features: {why}")


def _scenario_defaults(experiment: Experiment) -> Section:
    name, settings = experiment.section("scenario")
    scale = settings.pop("scale", 1.0)
    return {"name": name, "scale": scale} | complete_scenario_options(name, settings)


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
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # .5, which TOML does not know
    except ValueError:
        return text
