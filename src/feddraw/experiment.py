"""An experiment as one value, to and from TOML; `run` carries it out, `iterate` does so round by round."""

from __future__ import annotations

import inspect
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from feddraw import catalog, models, scenarios
from feddraw.board import board, check_installed
from feddraw.core import Method, Model, Update, brings_training, brings_weighting
from feddraw.data import Dataset, Labels, Part
from feddraw.data.catalog import defaults as dataset_defaults
from feddraw.data.catalog import open_dataset
from feddraw.data.crew import cores, limited
from feddraw.data.folds import refold
from feddraw.engines import Engine
from feddraw.engines.processes import Processes
from feddraw.engines.serial import Serial
from feddraw.errors import UserError, one_of, unknown
from feddraw.evaluation import Jury, models_to_judge
from feddraw.federation import STREAM_WEIGHTS, PieceEntry, RoundResult, federate
from feddraw.gate import Gate
from feddraw.participation import Participation
from feddraw.policy import Policy
from feddraw.results import Checkpoint, RunFolder, read_json, read_toml
from feddraw.scenarios import Partition
from feddraw.training import Examples, Network, ServerImages, Trainer, Training, steps_per_epoch

Section = Mapping[str, Any]  # a name and its settings
Rows = NDArray[np.intp]
Progress = Callable[[str, int, int], None]  # what is done, how many are ready, of how many
OnUpdate = Callable[[int, Update], None]  # the round, and what a client sent back

NAMED = ("data", "scenario", "model", "method")
SETTINGS = {"training": Training, "participation": Participation, "gate": Gate, "policy": Policy}  # no name
ENGINES = ("serial", "processes", "flower")
MOST_ROUNDS = 100_000
HOW = ("engine", "workers", "tensorboard")  # settings that change how a run is carried out, but not its outcome


@dataclass(frozen=True)
class Experiment:
    """What to run. `data`, `scenario`, `model` and `method` are a name, or a mapping with a name and settings."""

    data: str | Section = "phantom"
    scenario: str | Section = "CHM-2"
    model: str | Section = "compact"
    method: str | Section = "feddraw"
    training: Training = field(default_factory=Training)
    participation: Participation = field(default_factory=Participation)
    gate: Gate = field(default_factory=Gate)  # which updates are let in
    policy: Policy = field(default_factory=Policy)  # limits on how much a client may count, whatever the method says
    rounds: int = 15
    seed: int = 0
    partition_seed: int = -1  # -1: the same as seed
    folds: int = 0  # 0: the data's own split; else patients in so many parts, tested on the one of the seed
    holdout: float = 0.0  # share of each client's images kept back to test the global model on
    stream: bool = False  # sum updates as they come, in client order: one model of memory, however many clients
    test_every_round: bool = False  # the test AUC in every round's line, for curves; never used to choose anything
    proxy: int = 200  # validation images that the server weighs clients by, for the methods that need some
    engine: Literal["serial", "processes", "flower"] = "processes"
    workers: int = 0  # 0: one a core, but not more than clients
    tensorboard: bool = False  # show the rounds to TensorBoard as well, in the run's folder

    def __post_init__(self) -> None:
        for name in NAMED:
            value = getattr(self, name)
            section = {"name": value} if isinstance(value, str) else dict(value)
            section = _section_defaults(name, section) | section
            object.__setattr__(self, name, _by_half(section) if name == "method" else section)
        for name, kind in SETTINGS.items():
            if isinstance(getattr(self, name), Mapping):
                object.__setattr__(self, name, _settings(kind, getattr(self, name), name))

    def section(self, name: str) -> tuple[str, dict[str, Any]]:
        """A section's name and its settings."""
        settings = dict(getattr(self, name))
        return settings.pop("name"), settings

    def with_settings(self, changes: Mapping[str, Any]) -> Experiment:
        """The same with some settings changed, by their dotted path in `experiment.toml`: {"method.mu": 0.1}."""
        table = self.table()
        for path, value in changes.items():
            head, _, rest = path.partition(".")
            if head not in table:
                raise unknown("settings", path, [f.name for f in fields(Experiment)])
            if not rest:
                table[head] = _changed(path, table[head], value)
            elif not isinstance(table[head], dict):
                raise UserError(f"'{head}' is a single value: there is no setting '{path}'")
            else:
                table[head] = _without(table[head], rest) | {rest: value}
        return Experiment.of(table)

    def table(self) -> dict[str, Any]:
        """As nested dicts, the way a file holds it."""
        sections = {name: asdict(getattr(self, name)) for name in SETTINGS}
        return {f.name: getattr(self, f.name) for f in fields(self)} | sections

    @staticmethod
    def of(table: Mapping[str, Any]) -> Experiment:
        """From nested dicts; anything unknown or of the wrong type is refused."""
        known = {f.name: f for f in fields(Experiment)}
        for name, value in table.items():
            if name not in known:
                raise unknown("settings", name, known)
            if name in NAMED and not isinstance(value, str | Mapping):
                raise UserError(f"{name} must be a name or a table with a name, not {value!r}")
            if name in NAMED and not isinstance(value if isinstance(value, str) else value.get("name"), str):
                raise UserError(f"{name} needs a name, such as {name}.name = '{known[name].default}'")
            if name in SETTINGS and not isinstance(value, Mapping):
                raise UserError(f"{name} must be a table of settings, not {value!r}")
        numbers = {n: v for n, v in table.items() if n not in (*NAMED, *SETTINGS)}
        catalog.check(numbers, {n: known[n].default for n in numbers}, "")
        return Experiment(**table)

    @staticmethod
    def read(path: Path, *, trust: bool = False) -> Experiment:
        """From a TOML file, also the one in a run's folder. Code that it names is refused unless trusted."""
        table = read_toml(path)
        table.pop("partition", None)  # what came of the settings, not one of them
        experiment = Experiment.of(table)
        return experiment.trusted(trust, f"{path} names")

    def trusted(self, trust: bool, source: str, permit: str = "add --trust if you trust it") -> Experiment:
        """Itself, unless it names code and nobody here has allowed that.

        Every way in for settings that nobody typed here (files, run folders, Flower's run settings) asks this once,
        before `complete` or anything else imports what a name says; making an `Experiment` imports nothing.
        """
        for section in NAMED:
            name = self.section(section)[0]
            if ":" in name and not trust:
                raise UserError(f"{source} code to import ({section} = {name}): {permit}")
        return self

    @staticmethod
    def preset(name: str) -> Experiment:
        if not isinstance(name, str) or name not in PRESETS:
            raise unknown("presets", str(name), PRESETS)
        return Experiment().with_settings(PRESETS[name])


def _section_defaults(section: str, settings: Section) -> dict[str, Any]:
    """Defaults beyond the functions' own: the laptop preset. The paper's scenarios are scaled down, others are not."""
    if section == "scenario":
        return {"scale": 0.045 if scenarios.dataset_of(settings.get("name", "")) else 1.0}
    return {"size": 32} if section == "data" else {}


PRESETS: dict[str, dict[str, Any]] = {
    "laptop": {},
    "paper": {
        "data": "chestmnist",
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


def _changed(path: str, old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping):
        return new
    if path in SETTINGS:
        raise UserError(f"{path} is a table: set one of its values, such as {path}.{next(iter(old))}")
    if not isinstance(new, str):
        raise UserError(f"{path} must be a name, not {new!r}")
    return {"name": new} | {key: value for key, value in old.items() if key in _kept(path, old["name"], new)}


def _by_half(section: Section) -> dict[str, Any]:
    """A method's settings with dotted names: in TOML `fedadp.alpha = 4` is a table inside the table."""
    halves = str(section.get("name", "")).split("+")
    inside = {key: table for key, table in section.items() if key in halves and isinstance(table, Mapping)}
    dotted = {f"{half}.{key}": value for half, table in inside.items() for key, value in table.items()}
    return {key: value for key, value in section.items() if key not in inside} | dotted


def _without(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Leave out what a new value replaces: the setting with or without a method's name before it."""
    return {old: v for old, v in table.items() if old != key.rpartition(".")[2] and old.rpartition(".")[2] != key}


def _kept(section: str, old: str, new: str) -> tuple[str, ...]:
    """Settings that stay when a section gets another name; the others belonged to the old one."""
    if section == "data":
        return ("size",) if new == "phantom" else ("size", "clahe")
    both_of_the_paper = section == "scenario" and scenarios.dataset_of(old) and scenarios.dataset_of(new)
    return ("scale",) if both_of_the_paper else ()


def _settings(kind: type[Any], table: Mapping[str, Any], section: str) -> Any:
    catalog.check(table, {f.name: f.default for f in fields(kind)}, section)
    return kind(**table)


# ---------------------------------------------------------------------------------------------------- the parts


def make_method(experiment: Experiment) -> Method:
    """An experiment's method. `A+B` takes the weighting of A, the local and server rules of B."""
    return replace(_method(*experiment.section("method")), limited=experiment.policy.limits_weights)


def _method(name: str, settings: Section) -> Method:
    halves = _halves(name)
    shares = _shares(halves, settings)
    parts = [half.make(share) for half, share in zip(halves, shares, strict=True)]
    if len(parts) == 1:
        return parts[0]
    mixture = _mixed([half.name for half in halves], *parts)
    _require_effect(halves[0], shares[0], lambda method: method.weighting, name)
    _require_effect(halves[1], shares[1], lambda method: (method.local, method.server), name)
    return mixture


@dataclass(frozen=True, eq=False)
class Half:
    """One of the two methods of a mixture, or the only one: its name, its function and that function's defaults."""

    name: str
    function: Callable[..., Any]
    defaults: Mapping[str, Any]

    def own(self, key: str) -> str | None:
        """What it calls a setting, which may have the method's name before it (`fedadp.alpha`); None if not its own."""
        plain = key.removeprefix(f"{self.name}.")
        return plain if plain in self.defaults else None

    def make(self, settings: Section) -> Method:
        method = catalog.call(self.function, settings, "method")
        if not isinstance(method, Method):
            raise UserError(f"'{self.name}' does not give a Method")
        return method


def _halves(name: str) -> list[Half]:
    names = name.split("+")
    if len(names) > 2:
        raise UserError(f"'{name}' mixes more than two methods: give weighting+training")
    if len(names) == 2 and names[0] == names[1]:
        raise UserError(f"'{name}' mixes a method with itself: write {names[0]}")
    functions = [catalog.find("methods", half) for half in names]
    return [Half(half, function, _defaults(function)) for half, function in zip(names, functions, strict=True)]


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def _shares(halves: Sequence[Half], settings: Section) -> list[dict[str, Any]]:
    """Each half's settings under its own names; a setting that none has, or that both could mean, is refused."""
    shares: list[dict[str, Any]] = [{} for _ in halves]
    name = "+".join(half.name for half in halves)
    for key, value in settings.items():
        owners = [(half, share, own) for half, share in zip(halves, shares, strict=True) if (own := half.own(key))]
        if not owners:
            known = sorted({own for half in halves for own in half.defaults})
            raise UserError(f"{name} has no setting '{key}'" + (f": it has {', '.join(known)}" if known else ""))
        if len(owners) > 1:
            ways = " or ".join(f"{half.name}.{key}" for half in halves)
            raise UserError(f"both halves of {name} have a setting '{key}': write {ways}")
        half, share, own = owners[0]
        if own in share:
            raise UserError(f"{half.name}'s setting '{own}' is given twice, with and without '{half.name}.' before it")
        share[own] = value
    return shares


def _require_effect(half: Half, share: Section, kept: Callable[[Method], Any], name: str) -> None:
    """Refuse a setting of what the mixture does not take from a half: it would be recorded and do nothing."""
    for own, value in share.items():
        if value != half.defaults[own] and half.defaults[own] is not inspect.Parameter.empty:
            usual = {**share, own: half.defaults[own]}
            if kept(half.make(usual)) == kept(half.make(share)):
                raise UserError(f"{half.name}'s setting '{own}' changes nothing in {name}: leave it out")


def _mixed(names: Sequence[str], first: Method, second: Method) -> Method:
    """The weighting of one with the local and server rules of the other, unless that loses what either is named for."""
    for name, reason in zip(names, (brings_weighting(first), brings_training(second)), strict=True):
        if reason:
            raise UserError(f"{'+'.join(names)}: {name} {reason} (`feddraw list methods` shows what combines)")
    return Method(second.local, first.weighting, second.server)


def _share(name: str, function: Callable[..., Any], settings: Section) -> dict[str, str]:
    """Which settings are for one half of a mixture: its own name may stand before them (`fedadp.alpha`)."""
    parameters = inspect.signature(function).parameters
    plain = {key: key for key in settings if key in parameters}
    return plain | {key.removeprefix(f"{name}."): key for key in settings if key.startswith(f"{name}.")}


def complete(experiment: Experiment) -> Experiment:
    """With every default written out, as it is recorded with a run; checks the numbers on the way."""
    if experiment.rounds < 1:
        raise UserError(f"rounds must be at least 1, not {experiment.rounds}")
    if experiment.rounds > MOST_ROUNDS:
        raise UserError(f"rounds must be at most {MOST_ROUNDS:,}, not {experiment.rounds}")
    if experiment.seed < 0:
        raise UserError(f"seed must be zero or more, not {experiment.seed}")
    if max(experiment.seed, experiment.partition_seed) >= 2**63:
        raise UserError("seed and partition_seed must be less than 2 to the power of 63")
    if not 0 <= experiment.holdout < 1:
        raise UserError(f"holdout must be a share from 0 to below 1, not {experiment.holdout}")
    if experiment.folds < 0 or experiment.folds == 1:
        raise UserError(f"folds must be 0 (the data's own split) or at least 2, not {experiment.folds}")
    if experiment.proxy < 2:
        raise UserError(f"proxy must be at least 2 images, not {experiment.proxy}")
    if experiment.workers < 0:
        raise UserError(f"workers must be zero or more, not {experiment.workers}")
    one_of("engine", experiment.engine, ENGINES)
    experiment.training.check()
    experiment.gate.check()
    experiment.policy.check()
    method = make_method(experiment)  # its mistakes come first, they cost no time
    experiment.policy.check_method(method)
    if experiment.stream:
        _require_streaming(experiment, method)
    partition_seed = experiment.seed if experiment.partition_seed < 0 else experiment.partition_seed
    return replace(
        experiment,
        data=_data_defaults(experiment),
        scenario=_scenario_defaults(experiment),
        method=_method_defaults(experiment),
        model=_with_defaults(experiment.model, models.find(experiment.section("model")[0])),
        partition_seed=partition_seed,
    )


def _require_streaming(experiment: Experiment, method: Method) -> None:
    if not method.streams:
        raise UserError(f"{experiment.section('method')[0]} cannot stream (`feddraw list methods` shows which can)")
    if experiment.gate.norm == "refuse" or experiment.gate.clip:
        raise UserError("a stream cannot wait for the median of all moves: gate.norm = off or warn, and no gate.clip")
    if experiment.policy.limits_weights:
        raise UserError(STREAM_WEIGHTS)


def _with_defaults(section: str | Section, function: Callable[..., Any]) -> Section:
    assert not isinstance(section, str)
    return {"name": section["name"]} | _given(_defaults(function)) | dict(section)


def _method_defaults(experiment: Experiment) -> Section:
    """Every setting of a method; one that both halves of a mixture have stands under each half's name."""
    name, settings = experiment.section("method")
    halves = _halves(name)
    count = Counter(own for half in halves for own in half.defaults)
    recorded = {"name": name}
    for half, share in zip(halves, _shares(halves, settings), strict=True):
        whole = _given(half.defaults) | share
        recorded |= {f"{half.name}.{own}" if count[own] > 1 else own: value for own, value in whole.items()}
    return recorded


def _given(defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: default for name, default in defaults.items() if default is not inspect.Parameter.empty}


def _data_defaults(experiment: Experiment) -> Section:
    """Phantoms have no natural number or mix: they follow the scenario."""
    name, settings = experiment.section("data")
    if name != "phantom":
        return {"name": name} | dataset_defaults(name) | settings
    scenario, options = experiment.section("scenario")
    scale = options.pop("scale", 1.0)
    mix = scenarios.dataset_of(scenario) or "chestmnist"
    wanted = {"train": scenarios.wanted(scenario, scale, options) or 4000, "mix": mix}
    return {"name": name} | dataset_defaults(name) | wanted | settings


def _scenario_defaults(experiment: Experiment) -> Section:
    name, settings = experiment.section("scenario")
    scale = settings.pop("scale", 1.0)
    return {"name": name, "scale": scale} | scenarios.complete_options(name, settings)


# ---------------------------------------------------------------------------------------------------- the run


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything an experiment needs before its first round."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    clients: tuple[str, ...]
    training_rows: tuple[Rows, ...]  # by client, into the data set
    jury: Jury
    trainer: Trainer
    initial: Model
    method: Method
    proxy: ServerImages | None = None

    @property
    def numbers(self) -> int:
        """Parameters in all updates that are summed at once."""
        return len(self.initial.params) * (1 if self.experiment.stream else len(self.clients))

    def efforts(self, round: int) -> dict[int, float]:
        """The clients asked in a round, and the share of its steps that each takes."""
        if self.method.pooled:
            return {0: 1.0}
        sizes = [len(rows) for rows in self.training_rows]
        return self.experiment.participation.efforts(self.experiment.seed, round, self.clients, sizes)


def prepare(experiment: Experiment, *, dataset: Dataset | None = None, progress: Progress | None = None) -> Setting:
    """Open the data, deal it to the clients, build the network."""
    experiment = complete(experiment)
    method = make_method(experiment)
    dataset = dataset or open_data(experiment, progress)
    if experiment.folds:
        dataset = refold(dataset, experiment.folds, experiment.seed % experiment.folds)
    scenario, options = experiment.section("scenario")
    scale = options.pop("scale", 1.0)
    dealing = {"seed": experiment.partition_seed, "scale": scale, "options": options}
    partition = scenarios.deal(scenario, dataset.training_labels(), **dealing)
    training_rows, heldout_rows = _hold_out(experiment, dataset, partition)
    if method.pooled:
        training_rows, heldout_rows = _together(training_rows), _together(heldout_rows)
    trainer = make_trainer(experiment, dataset, training_rows, method)
    initial = initial_model(partial(builder(experiment, len(dataset.classes)), pretrained=True), experiment.seed)
    method.weighting.check(initial.layout)
    clients = ("all",) if method.pooled else tuple(shard.client for shard in partition.shards)
    if not method.pooled:
        experiment.participation.check(clients, experiment.rounds)
        experiment.policy.check_clients(clients)
    jury = Jury(dataset, clients, heldout_rows)
    proxy = server_images(experiment, dataset, trainer) if method.weighting.proxy else None
    return Setting(experiment, dataset, partition, clients, training_rows, jury, trainer, initial, method, proxy)


def server_images(experiment: Experiment, dataset: Dataset, trainer: Trainer) -> ServerImages:
    """Some validation images, for a server that weighs clients by them."""
    rows = balanced(dataset.labels, dataset.rows["validation"], experiment.proxy, experiment.seed)
    return ServerImages(trainer.build, trainer.examples, rows, experiment.training.batch_size)


def balanced(labels: Labels, rows: Rows, images: int, seed: int) -> Rows:
    """Some of the rows: equally many with each finding and with none, as far as there are, the rarest chosen first."""
    kinds = np.column_stack([labels.values[rows] > 0, ~labels.values[rows].any(axis=1)])
    order = np.random.default_rng([seed, images]).permutation(len(rows))
    taken: list[int] = []
    for kind in np.argsort(kinds.sum(axis=0), kind="stable"):
        fresh = [place for place in order if kinds[place, kind] and place not in taken]
        missing = images // kinds.shape[1] - int(kinds[taken, kind].sum())
        taken += fresh[: max(0, missing)]
    if len(taken) < 2:
        raise UserError(f"{images} validation image(s) for the server are too few: raise proxy")
    return np.asarray(rows[np.sort(taken)])


def make_trainer(experiment: Experiment, dataset: Dataset, rows: Sequence[Rows], method: Method) -> Trainer:
    """The bench of some clients, by their rows in the data set."""
    targets = dataset.labels.values.astype(np.float32)
    groups = two_groups(dataset.labels) if "groups" in method.asks else None
    examples = Examples(dataset.images, targets, dataset.mean, dataset.std, groups)
    return Trainer(
        builder(experiment, len(dataset.classes)), examples, rows, experiment.training, method.local, asks=method.asks
    )


def two_groups(labels: Labels) -> NDArray[np.int8] | None:
    """Each image's group as 0 or 1, the two most common in the order of their names; -1 for others."""
    if labels.groups is None:
        return None
    counts = Counter(word for word in labels.groups.tolist() if word)
    names = sorted(word for word, _ in counts.most_common(2))
    return np.array([names.index(word) if word in names else -1 for word in labels.groups.tolist()], np.int8)


def builder(experiment: Experiment, classes: int) -> Callable[..., tuple[torch.nn.Module, str]]:
    """A function that makes the experiment's network and names its classifier."""
    name, settings = experiment.section("model")
    return partial(models.build, name, classes, settings)


def open_data(experiment: Experiment, progress: Progress | None = None) -> Dataset:
    name, settings = complete(experiment).section("data")
    return open_dataset(name, size=settings.pop("size"), options=settings, progress=progress)


def initial_model(build: Callable[[], tuple[torch.nn.Module, str]], seed: int) -> Model:
    """The model that every method starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network(*build()).read()


def _hold_out(experiment: Experiment, dataset: Dataset, partition: Partition) -> tuple[tuple[Rows, ...], ...]:
    """Each client's rows in the data set, split into what it trains on and what it keeps back."""
    train, held = [], []
    for number, shard in enumerate(partition.shards):
        rows = dataset.rows["train"][shard.rows]
        order = np.random.default_rng([experiment.partition_seed, number]).permutation(len(rows))
        kept_back = math.floor(experiment.holdout * len(rows))
        train.append(np.sort(rows[order[kept_back:]]))
        held.append(np.sort(rows[order[:kept_back]]))
        if not steps_per_epoch(len(train[-1]), experiment.training.batch_size):
            raise UserError(f"client {shard.client} has {len(train[-1])} image(s): too few for a training step")
    return tuple(train), tuple(held)


def _together(rows: tuple[Rows, ...]) -> tuple[Rows, ...]:
    return (np.sort(np.concatenate(rows)),)


@dataclass(frozen=True, eq=False)
class RunResult:
    """A run that has been carried out: its rounds in order, and what came of it."""

    rounds: tuple[RoundResult, ...]  # that were carried out now; a resumed run did the others before
    metrics: Mapping[str, Any]  # of the model after the last round: validation, test, each client's own
    folder: Path | None  # where everything was written, if anywhere

    @property
    def last(self) -> RoundResult:
        """The last round, with the model."""
        if not self.rounds:
            raise UserError(f"{self.folder} was finished before: its model and metrics are in that folder")
        return self.rounds[-1]

    def __iter__(self) -> Iterator[RoundResult]:
        return iter(self.rounds)

    def __len__(self) -> int:
        return len(self.rounds)


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    dataset: Dataset | None = None,
    progress: Progress | None = None,
    on_update: OnUpdate | None = None,
) -> RunResult:
    """Carry out an experiment to its end; gives its rounds, the last one with the test metrics.

    With `out`, everything is written to that folder as it happens, and a killed run goes on with `resume`. The result
    holds every round's model: for many rounds of a large network, or to see each round when it is done, use `iterate`.
    """
    rounds = tuple(iterate(experiment, out, resume=resume, dataset=dataset, progress=progress, on_update=on_update))
    folder = None if out is None else Path(out)
    metrics = rounds[-1].metrics if rounds or folder is None else read_json(RunFolder(folder).metrics)
    return RunResult(rounds, metrics, folder)


def iterate(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    dataset: Dataset | None = None,
    progress: Progress | None = None,
    on_update: OnUpdate | None = None,
) -> Iterator[RoundResult]:
    """Carry out an experiment round by round: each is trained when it is asked for, and nothing happens before.

    Takes what `run` takes. To stop before the end, stop asking; with `out` and `resume` it goes on later.
    """
    folder = None if out is None else RunFolder(Path(out))
    wanted = complete(experiment).table()
    if experiment.tensorboard:
        check_installed()
    looked = partial(_finished, folder, wanted, resume)
    if looked():  # before the data are opened, which may take long
        return
    setting = prepare(experiment, dataset=dataset, progress=progress)
    with nullcontext() if folder is None else folder.locked():
        if looked():  # another process may have used the folder in the meantime
            return
        checkpoint = None
        if folder is not None:
            folder.write_settings(wanted, partition=setting.partition, numbers=setting.numbers, dataset=setting.dataset)
            checkpoint = folder.load_checkpoint(setting.initial.layout) if resume else None
            if checkpoint is not None and checkpoint.next_round > setting.experiment.rounds:
                raise UserError(f"{folder.checkpoint} is of a longer run than {folder.settings} says")
        start = 0 if checkpoint is None else checkpoint.next_round
        shown = folder.path if folder is not None and experiment.tensorboard else None
        with opened_engine(setting) as engine, board(shown, start) as show:
            told = _counting(setting, progress, on_update, start)
            for result in _rounds(setting, engine, folder, checkpoint, told):
                show(result)
                yield result


def _finished(folder: RunFolder | None, wanted: Mapping[str, Any], resume: bool) -> bool:
    """Whether there is nothing left to do; refuses a folder that is not free for this run."""
    if folder is None:
        return False
    return folder.begin(wanted, resume=resume, how=HOW, defaults=unnamed_defaults()) == "finished"


def unnamed_defaults() -> dict[str, Any]:
    """The defaults of all settings that do not depend on a name."""
    return {key: value for key, value in Experiment().table().items() if key not in NAMED}


def _counting(setting: Setting, progress: Progress | None, on_update: OnUpdate | None, start: int) -> OnUpdate:
    """Tell of every client that has trained, and how many are left in all rounds together."""
    rounds = setting.experiment.rounds
    jobs = [len(setting.efforts(round)) for round in range(rounds)]
    done = sum(jobs[:start])
    if progress is not None and start < rounds:
        progress(f"round {start}", done, sum(jobs))

    def told(round: int, update: Update) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(f"round {round}", done, sum(jobs))
        if on_update is not None:
            on_update(round, update)

    return told


def _rounds(
    setting: Setting, engine: Engine, folder: RunFolder | None, checkpoint: Checkpoint | None, on_update: OnUpdate
) -> Iterator[RoundResult]:
    experiment, method = setting.experiment, setting.method
    model, state, start = setting.initial, None, 0
    if checkpoint is not None:
        model, state, start, engine.memory = (
            checkpoint.model,
            checkpoint.state,
            checkpoint.next_round,
            checkpoint.memory,
        )
    if folder is not None:
        folder.forget_from(start)
    rounds = federate(
        model,
        method,
        engine,
        setting.clients,
        rounds=experiment.rounds,
        seed=experiment.seed,
        start=start,
        state=state,
        gate=experiment.gate,
        policy=None if method.pooled else experiment.policy,
        efforts=setting.efforts,
        proxy=setting.proxy,
        sizes=[len(rows) for rows in setting.training_rows] if experiment.stream else None,
        on_update=on_update,
    )
    for plain in rounds:
        last = plain.round == experiment.rounds - 1
        scored, predictions = evaluate(setting, engine, plain.model, final=last)
        result = replace(plain, metrics=scored, pieces=_with_classes(plain.pieces, setting.dataset.classes))
        if folder is not None:
            folder.add_round(result)
            folder.save_checkpoint(Checkpoint(result.next_model, result.state, result.round + 1, engine.memory))
            if last:
                folder.finish(result.model, {"round": result.round} | scored, predictions, setting.dataset)
        yield result
    if folder is not None and start == experiment.rounds:  # killed after its last round, before its last file
        shown = method.shown(model, state or {})
        scored, predictions = evaluate(setting, engine, shown, final=True)
        folder.finish(shown, {"round": start - 1} | scored, predictions, setting.dataset)


def evaluate(
    setting: Setting, engine: Engine, model: Model, *, final: bool
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Validation AUC after every round; after the last one thresholds, test metrics, each client's own, and scores."""
    models, personal = models_to_judge(setting.method, engine, model, len(setting.clients))
    if final:
        return setting.jury.at_the_end(engine, models, personal=personal)
    parts: tuple[Part, ...] = ("validation", "test") if setting.experiment.test_every_round else ("validation",)
    return setting.jury.after_a_round(engine, models, parts), {}


def _with_classes(pieces: tuple[PieceEntry, ...], classes: Sequence[str]) -> tuple[PieceEntry, ...]:
    """The classifier's rows under the names of their findings."""
    names = {f"class {number}": name for number, name in enumerate(classes)}
    return tuple(replace(entry, piece=names.get(entry.piece, entry.piece)) for entry in pieces)


def _workers(wanted: int, clients: int) -> int:
    """As many processes as there is work for; a number that makes no sense is lowered, and it is said."""
    if wanted > clients:
        warnings.warn(f"{wanted} workers for {clients} client(s): one for each client starts", stacklevel=2)
    return limited(min(wanted or cores(), clients))


class opened_engine:
    """The engine that an experiment asks for, closed whatever happens."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def __enter__(self) -> Engine:
        experiment, trainer = self._setting.experiment, self._setting.trainer
        workers = _workers(experiment.workers, len(self._setting.clients))
        self._engine: Engine
        if experiment.engine == "serial":
            self._engine = Serial(trainer)
        elif experiment.engine == "flower":  # found by name, because it stands above and may not be installed
            self._engine = import_module("feddraw.flower.engine").open_engine(self._setting, workers)
        else:
            self._engine = Processes(trainer, workers, self._setting.clients, in_turn=experiment.stream)
        return self._engine

    def __exit__(self, *_: object) -> None:
        self._engine.close()
