"""Everything an experiment needs before its first round: data, clients, network, method."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feddraw.core import Method, Model
from feddraw.data.corruption import corrupt_dataset
from feddraw.data.dataset import FINDINGS_TASK, Dataset, Labels
from feddraw.data.dataset_by_name import open_dataset
from feddraw.data.finding_counts import ClientCounts, class_notes
from feddraw.data.image_settings import PreparationEstimate
from feddraw.data.image_summary import ImageSummary, summary_of
from feddraw.data.scenarios.partition import Partition
from feddraw.data.scenarios.scenario_by_name import make_partition
from feddraw.data.splits import refold, stratified_split
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.device_placement import devices_of, on_device, places_for_clients
from feddraw.experiment.evaluation import Evaluator
from feddraw.experiment.frozen_features import backbone_of, dataset_of_features, rows_of_features
from feddraw.experiment.settings import Experiment, make_method
from feddraw.system.progress import Progress
from feddraw.text import join_names
from feddraw.training.client import Trainer
from feddraw.training.devices import WorkerPlace
from feddraw.training.loop import Examples, Rows, steps_per_epoch, with_number_of_steps
from feddraw.training.network import Build, Network
from feddraw.training.network_by_name import build_network, with_frozen_layers
from feddraw.training.partly_frozen_by_trial import build_partly_frozen
from feddraw.training.server_images import ServerImages, choose_server_images
from feddraw.training.settings import Training


@dataclass(frozen=True, eq=False)
class PreparedTask:
    """Who trains on what, and by which method: all that decides how much work a run is."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    clients: tuple[str, ...]
    training_rows: tuple[Rows, ...]  # by client, into the data set
    holdout_rows: tuple[Rows, ...]
    method: Method

    @property
    def training(self) -> Training:
        """How every client trains, with the number of steps where all take equally many."""
        sizes = [len(rows) for rows in self.training_rows]
        return with_number_of_steps(self.experiment.training, sizes)

    def class_notes(self) -> list[str]:
        """What users should know of clients that lack a class, of all findings or of some."""
        counts = [
            ClientCounts.of(client, self.dataset.labels, rows)
            for client, rows in zip(self.clients, self.training_rows, strict=True)
        ]
        return class_notes(counts, self.dataset.findings, self.experiment.task.words.labels)

    def efforts(self, round: int) -> dict[int, float]:
        """The clients asked in a round, and the share of its steps that each takes."""
        if self.method.centralised:
            return {0: 1.0}
        sizes = [len(rows) for rows in self.training_rows]
        return self.experiment.participation.efforts(
            self.experiment.seed, round, self.clients, sizes
        )


@dataclass(frozen=True, eq=False)
class PreparedRun(PreparedTask):
    """Everything an experiment needs before its first round."""

    evaluator: Evaluator
    trainer: Trainer
    initial: Model
    proxy: ServerImages | None = None
    summary: ImageSummary | None = None  # of the images that clients train on
    places: tuple[WorkerPlace, ...] = (WorkerPlace(),)  # of its workers

    @property
    def summed_parameters(self) -> int:
        """Parameters in all updates that are summed at once."""
        return len(self.initial.params) * (1 if self.experiment.stream else len(self.clients))


@dataclass(frozen=True, eq=False)
class PreparedData:
    """A data set, and which of its images each client trains on and keeps back."""

    dataset: Dataset
    partition: Partition
    training_rows: tuple[Rows, ...]  # by client, into the data set
    holdout_rows: tuple[Rows, ...]
    # The test images as sites with other images have them.
    views: Mapping[str, Rows] = field(default_factory=dict)

    def evaluated_rows(self) -> list[Rows]:
        """All images that a run may evaluate on."""
        splits = [self.dataset.rows["validation"], self.dataset.rows["test"]]
        return [*splits, *self.views.values(), *self.holdout_rows]


def prepare_client_data(experiment: Experiment, dataset: Dataset) -> PreparedData:
    """Split a data set between the clients as an experiment's settings say."""
    experiment = complete_settings(experiment)
    if experiment.folds:
        dataset = refold(dataset, experiment.folds, experiment.seed % experiment.folds)
    scenario, options = experiment.section("scenario")
    scale = options.pop("scale", 1.0)
    partition = make_partition(
        scenario,
        dataset.training_labels(),
        seed=experiment.partition_seed,
        scale=scale,
        options=options,
    )
    training, kept_back = _hold_out(experiment, dataset, partition)
    sites = [shard.client for shard in partition.shards]
    trained_on = dict(zip(sites, training, strict=True))
    all_rows = {
        site: np.concatenate([train_rows, holdout_rows])
        for site, train_rows, holdout_rows in zip(sites, training, kept_back, strict=True)
    }
    alterations = experiment.corruption.alterations(sites)
    altered = corrupt_dataset(dataset, alterations, all_rows, trained_on, experiment.partition_seed)
    return PreparedData(
        dataset=altered.dataset,
        partition=partition,
        training_rows=training,
        holdout_rows=kept_back,
        views=altered.views,
    )


def _require_evaluation_images(dataset: Dataset) -> None:
    for split in ("validation", "test"):
        if not len(dataset.rows[split]):
            raise UserError(
                f"{dataset.name} has no {split} images: thresholds and metrics need some"
                f" (data.{split})"
            )


def prepare(
    experiment: Experiment, *, dataset: Dataset | None = None, progress: Progress | None = None
) -> PreparedRun:
    """Open the data, deal it to the clients, build the network."""
    experiment = complete_settings(experiment)
    # Refuses devices that are not here, before the data are opened.
    device = devices_of(experiment)[0]
    data = prepare_client_data(experiment, dataset or open_experiment_data(experiment, progress))
    _require_evaluation_images(data.dataset)
    task = prepare_task(experiment, data)
    experiment = task.experiment
    method = task.method
    for note in experiment.task.training_notes(data.dataset.labels, task.training_rows):
        warnings.warn(note, stacklevel=2)
    build = trained_builder(experiment, len(data.dataset.findings))
    initial = initial_model(partial(build, pretrained=True), experiment.seed)
    method.check(initial.layout)
    placed = on_device(experiment, device)
    used_dataset = data.dataset  # what clients train on: images, or features of them
    if experiment.trains_on_features:
        used_dataset = with_features(
            placed,
            data.dataset,
            initial.layout.frozen,
            trained_on=task.training_rows,
            evaluated=data.evaluated_rows(),
            progress=progress,
        )
    trainer = make_trainer(placed, used_dataset, task.training_rows, method, initial.layout.frozen)
    proxy = None
    if method.needs.server_images:
        proxy = prepare_server_images(experiment, used_dataset, trainer)
    setup = PreparedRun(
        experiment=task.experiment,
        dataset=used_dataset,
        partition=task.partition,
        clients=task.clients,
        training_rows=task.training_rows,
        holdout_rows=task.holdout_rows,
        method=method,
        evaluator=Evaluator(
            dataset=used_dataset,
            clients=task.clients,
            holdout=task.holdout_rows,
            views=data.views,
            task=experiment.task,
            labelled=trainer.labelled,
        ),
        trainer=trainer,
        initial=initial,
        proxy=proxy,
        summary=summary_of(data.dataset, pooled_rows(task.training_rows)),
        places=tuple(places_for_clients(experiment, len(task.clients))),
    )
    if experiment.secure:
        _check_secure_rounds(setup)
    return setup


def prepare_task(experiment: Experiment, data: PreparedData) -> PreparedTask:
    """Who trains on what, with the task that the data say, and with the settings that name clients
    or count rounds checked.
    """
    experiment = with_task_of_data(experiment, data.dataset.labels)
    experiment.task.check(data.dataset.labels)
    method = make_method(experiment)
    rows = data.training_rows
    holdout = data.holdout_rows
    clients = tuple(shard.client for shard in data.partition.shards)
    if method.centralised:
        clients = ("all",)
        rows = (pooled_rows(rows),)
        holdout = (pooled_rows(holdout),)
    else:
        experiment.participation.check(clients, experiment.rounds)
        experiment.policy.check_clients(clients)
    task = PreparedTask(
        experiment=experiment,
        dataset=data.dataset,
        partition=data.partition,
        clients=clients,
        training_rows=rows,
        holdout_rows=holdout,
        method=method,
    )
    if experiment.policy.min_sites > 1 and not method.centralised:
        asked = [len(task.efforts(round)) for round in range(experiment.rounds)]
        experiment.policy.check_number(max(asked))
    return task


def _check_secure_rounds(setup: PreparedRun) -> None:
    """Refuse rounds that no secure sum can hold, before the first of them."""
    from feddraw.secure.rounds import rules_of_method
    from feddraw.secure.rounds.terms import Announcement, Party, terms_of_training

    experiment = setup.experiment
    method = setup.method
    labels = zip(setup.clients, setup.training_rows, setup.trainer.labelled, strict=True)
    everyone = [Party.of(name, len(rows), labelled) for name, rows, labelled in labels]
    sums = rules_of_method.sums_of(method)
    for round in range(experiment.rounds):
        terms = terms_of_training(
            {},
            sums,
            round,
            experiment.rounds,
            experiment.policy,
            clear_weights=experiment.clear_weights,
        )
        sampled = tuple(everyone[client] for client in setup.efforts(round))
        announcement = Announcement(terms, sampled)
        announcement.check()
        rules_of_method.check_weights_fit_sum(method, announcement)


def prepare_server_images(
    experiment: Experiment, dataset: Dataset, trainer: Trainer
) -> ServerImages:
    """Some validation images, for a server that weighs clients by them."""
    rows = choose_server_images(
        dataset.labels, dataset.rows["validation"], experiment.proxy, experiment.seed
    )
    return ServerImages(
        trainer.build,
        trainer.examples,
        rows,
        experiment.training.batch_size,
        trainer.objective,
    )


def make_trainer(
    experiment: Experiment,
    dataset: Dataset,
    rows: Sequence[Rows],
    method: Method,
    frozen: Mapping[str, NDArray[Any]] = MappingProxyType({}),
) -> Trainer:
    """What trains some clients, by their rows in the data set; `frozen` are the initial model's
    frozen layers.
    """
    examples = examples_of(experiment, dataset, method)
    build = with_frozen_layers(trained_builder(experiment, len(dataset.findings)), frozen)
    sizes = [len(of_client) for of_client in rows]
    training = with_number_of_steps(experiment.training, sizes)
    return Trainer(
        build,
        examples,
        rows,
        training,
        method.local,
        objective=with_task_of_data(experiment, dataset.labels).task.objective,
        asks=method.asks,
    )


def with_task_of_data(experiment: Experiment, labels: Labels) -> Experiment:
    """The experiment with the task that its data say, where its settings name none."""
    if experiment.task_section()[0] or labels.task == FINDINGS_TASK:
        return experiment
    return experiment.with_settings({"data.task": labels.task})


def examples_of(experiment: Experiment, dataset: Dataset, method: Method) -> Examples:
    """A data set as the training loop reads it."""
    copies = 0
    if experiment.trains_on_features:
        copies = int(experiment.section("data")[1]["copies"])
    return Examples(
        images=dataset.images,
        targets=with_task_of_data(experiment, dataset.labels).task.targets(dataset.labels),
        mean=dataset.mean,
        std=dataset.std,
        groups=dataset.labels.two_groups() if "groups" in method.asks else None,
        patients=dataset.labels.patient_numbers() if "gradient spread" in method.asks else None,
        copies=copies,
    )


def with_features(
    experiment: Experiment,
    dataset: Dataset,
    frozen: Mapping[str, NDArray[Any]],
    *,
    trained_on: Sequence[Rows],
    evaluated: Sequence[Rows],
    progress: Progress | None = None,
) -> Dataset:
    """The data set with what comes out of the network's frozen part, of which `frozen` are the
    tensors, in place of images.
    """
    build = network_builder(experiment, len(dataset.findings))
    needed = rows_of_features(experiment, len(dataset.images), trained_on, evaluated)
    backbone = backbone_of(experiment, build, frozen)
    return dataset_of_features(experiment, dataset, backbone, needed, progress)


def features_for_evaluation(
    experiment: Experiment, dataset: Dataset, frozen: Mapping[str, NDArray[Any]]
) -> Dataset:
    """The same for a server that evaluates on images of its own and trains on none."""
    rows = [dataset.rows["validation"], dataset.rows["test"]]
    nothing = [np.zeros(0, np.intp)]
    return with_features(experiment, dataset, frozen, trained_on=nothing, evaluated=rows)


def examples_on_features(
    experiment: Experiment,
    dataset: Dataset,
    trained_on: Sequence[Rows],
    frozen: Mapping[str, NDArray[Any]],
) -> Examples:
    """What a site trains on, once it knows the frozen part's tensors."""
    rows = [dataset.rows["validation"], dataset.rows["test"]]
    features = with_features(experiment, dataset, frozen, trained_on=trained_on, evaluated=rows)
    return examples_of(experiment, features, make_method(experiment))


def trained_builder(experiment: Experiment, classes: int) -> Build:
    """A function that makes the network as clients train it: without its frozen part, if it is cut,
    and images do not pass that in every batch.
    """
    build = network_builder(experiment, classes)
    if not experiment.frozen:
        return build
    _, settings = experiment.section("model")
    return partial(
        build_partly_frozen,
        build,
        experiment.frozen,
        int(experiment.section("data")[1]["size"]),
        channels=experiment.channels,
        projection=bool(settings.get("projection", 0)),
        from_features=experiment.trains_on_features,
    )


def network_builder(experiment: Experiment, classes: int) -> Build:
    """A function that makes the experiment's whole network and names its classifier."""
    name, settings = experiment.section("model")
    return partial(
        build_network,
        name,
        classes,
        settings,
        side=int(experiment.section("data")[1].get("size", 0)),
        channels=experiment.channels,
    )


def open_experiment_data(
    experiment: Experiment,
    progress: Progress | None = None,
    estimate: PreparationEstimate | None = None,
) -> Dataset:
    name, settings = complete_settings(experiment).dataset_section()
    return open_dataset(
        name, size=settings.pop("size"), options=settings, progress=progress, estimate=estimate
    )


def initial_model(build: Build, seed: int) -> Model:
    """The model that every method starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network(*build()).read()


def _hold_out(
    experiment: Experiment, dataset: Dataset, partition: Partition
) -> tuple[tuple[Rows, ...], ...]:
    """Each client's rows in the data set, split into what it trains on and what it keeps back."""
    train = []
    held = []
    if not dataset.labels.known_counts(dataset.rows["train"]).any():
        raise UserError(
            f"no training image has a known label of {join_names(dataset.findings)}: choose other"
            " findings with data.findings, or say with data.blank what a blank means"
        )
    dealt = [dataset.rows["train"][shard.rows] for shard in partition.shards]
    masks = _prepared_holdout(experiment, dataset.labels, dealt)
    for shard, rows, kept_back in zip(partition.shards, dealt, masks, strict=True):
        train.append(np.sort(rows[~kept_back]))
        held.append(np.sort(rows[kept_back]))
        if not steps_per_epoch(len(train[-1]), experiment.training.batch_size):
            few = (
                f"client {shard.client} has {len(train[-1])} image(s), too few for a training step"
            )
            raise UserError(f"{few}: use more images or fewer clients")
        if not dataset.labels.known_counts(train[-1]).any():
            raise UserError(
                f"client {shard.client} has no known label in {len(train[-1])} images: leave it out"
            )
    return tuple(train), tuple(held)


def _prepared_holdout(
    experiment: Experiment, labels: Labels, dealt: Sequence[Rows]
) -> list[NDArray[np.bool_]]:
    """Which of its images each client keeps back: whole patients, each finding in proportion, where
    they are known.
    """
    seed = experiment.partition_seed
    share = experiment.holdout
    if labels.patients is None or not share:
        orders = [
            np.random.default_rng([seed, number]).permutation(len(rows))
            for number, rows in enumerate(dealt)
        ]
        return [
            np.isin(np.arange(len(order)), order[: math.floor(share * len(order))])
            for order in orders
        ]
    patients = [np.unique(labels.patients[rows]) for rows in dealt]
    if len(np.unique(np.concatenate(patients))) == sum(map(len, patients)):
        return [
            np.equal(stratified_split(labels, rows, [1 - share, share], seed), 1) for rows in dealt
        ]
    # a patient of several clients is kept back by all of them or by none: else the others would
    # train on the test
    sizes = [len(rows) for rows in dealt]
    sites = np.repeat(np.arange(len(sizes)).astype(np.str_), sizes)
    everyone = replace(labels.take(np.concatenate(dealt)), sites=sites)
    kept_back = np.equal(
        stratified_split(everyone, np.arange(len(everyone)), [1 - share, share], seed), 1
    )
    return np.split(kept_back, np.cumsum(sizes)[:-1])


def pooled_rows(rows: Sequence[Rows]) -> Rows:
    """All clients' rows together."""
    return np.sort(np.concatenate(rows))
