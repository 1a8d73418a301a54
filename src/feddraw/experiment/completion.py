"""An experiment's settings checked, and completed with every default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from feddraw import catalog
from feddraw.core import (
    Method,
    secure_sums,
    why_not_recombined,
    why_not_secure,
    why_not_streaming,
)
from feddraw.data.dataset import CLASSES_TASK
from feddraw.data.dataset_by_name import dataset_defaults
from feddraw.data.scenarios.paper_scenarios import paper_dataset_of, paper_scenario_images
from feddraw.data.scenarios.scenario_by_name import complete_scenario_options
from feddraw.data.synthetic import is_synthetic
from feddraw.errors import UserError, at_least, not_negative, one_of, unknown
from feddraw.experiment.method_by_name import (
    Section,
    method_with_defaults,
)
from feddraw.experiment.settings import (
    DATA_OF_SCENARIO,
    FEATURE_KINDS,
    FEATURE_SETTINGS,
    MOST_COPIES,
    MOST_ROUNDS,
    SEED_OF_EXPERIMENT,
    Experiment,
    make_method,
)
from feddraw.results.trackers import check_tracker
from feddraw.server.collectors import check_stream_limits
from feddraw.tasks import make_task
from feddraw.training.devices import device_names
from feddraw.training.network_by_name import find_model, model_defaults


def complete_settings(experiment: Experiment) -> Experiment:
    """The experiment with every default written out, as it is recorded with a run; settings that
    cannot be carried out are refused.

    A complete experiment stays as it is. Whoever needs one calls this: it takes less than a
    millisecond.
    """
    _check_numbers(experiment)
    device_names(experiment.devices)
    if ":" not in experiment.engine and experiment.engine not in catalog.names("engines"):
        raise unknown("engines", experiment.engine, catalog.names("engines"))
    check_tracker(experiment.track)
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
    if experiment.keep.updates:
        check_updates_can_be_kept(experiment, method)
    model, settings = experiment.section("model")
    return replace(
        experiment,
        data={
            **_data_defaults(experiment),
            **_task_settings(experiment),
            **_feature_settings(experiment),
        },
        scenario=_scenario_defaults(experiment),
        method=method_with_defaults(*experiment.section("method")),
        model={"name": model} | model_defaults(find_model(model)) | settings,
        partition_seed=(
            experiment.seed if experiment.partition_seed < 0 else experiment.partition_seed
        ),
    )


def _check_numbers(experiment: Experiment) -> None:
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
    size = experiment.section("data")[1].get("size", 0)
    if type(size) is not int:  # True is no number of pixels
        raise UserError(f"data.size must be a whole number of pixels, not {size!r}")
    if experiment.proxy < 2:
        raise UserError(f"proxy must be at least 2 images, not {experiment.proxy}")
    not_negative("workers", experiment.workers)


def check_updates_can_be_kept(experiment: Experiment, method: Method) -> None:
    """Refuse to keep updates that are not there, or of which no other model could be made."""
    why = why_not_recombined(method)
    if experiment.secure:
        why = (
            "under secure sums the server sees no single update; what can be measured is a training"
            " without a site (feddraw contribution RUN --retrain)"
        )
    elif experiment.stream:
        why = "a stream forgets each update when it is added: set stream = false"
    if why:
        raise UserError(
            f"keep.updates = true cannot be had for {experiment.section('method')[0]}: {why}"
        )


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


def _task_settings(experiment: Experiment) -> dict[str, Any]:
    """The task and its settings, checked; none where the data decide. A column of classes says what
    the task is before they are opened.
    """
    name, options = experiment.task_section()
    if not name and experiment.section("data")[1].get("class_column"):
        name = CLASSES_TASK
    if not name:
        return {}
    make_task(name, options)
    return {"task": name, **options}


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
