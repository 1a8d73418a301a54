"""The client's side: a ClientApp that trains by any of our methods, in the one training loop of the
package.

`client` makes one for a site that your own function opens. `app` is ready: a node trains on its
partition of the run's scenario, or on a folder of its own.

    feddraw site start … --node-config 'partition-id=0'
    feddraw site start … --node-config 'data="/srv/xrays" client="North" memory="/srv/feddraw"'

backbone="/srv/xrv.pt" names the site's own copy of the weights that the run's model.weights or
model.folder names at the server: frozen tensors are then not sent.

With key="/srv/feddraw/north.key" sites="/srv/feddraw/sites.toml" it takes part in secure sums, and
in nothing else.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from feddraw.analysis.metrics import not_finite
from feddraw.core import GRADIENT_MEANS, Job, Model, Update, Vector
from feddraw.data.dataset import Labels
from feddraw.data.dataset_by_name import open_dataset
from feddraw.engines import Rows
from feddraw.engines.serial import Serial
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import (
    PreparedRun,
    examples_on_features,
    initial_model,
    make_trainer,
    prepare,
    trained_builder,
    with_task_of_data,
)
from feddraw.experiment.settings import Experiment, make_method
from feddraw.federation import client_seed
from feddraw.flower import frozen_layers, job_orders, settings
from feddraw.flower.array_records import (
    Refused,
    arrays_to_model,
    arrays_to_vectors,
    model_to_arrays,
    vectors_to_arrays,
)
from feddraw.flower.client_memory import (
    ClientMemory,
    client_alias,
    default_memory_folder,
    memory_folder,
)
from feddraw.flower.flat_exchange import flat_mod
from feddraw.flower.reply_intake import EVALUATION_SECONDS, SECONDS
from feddraw.flower.score_histograms import (
    calls_to_metrics,
    count_by_score,
    histograms_to_metrics,
    subgroup_counts,
    subgroups_to_metrics,
)
from feddraw.flower.secure_site import secure_where_keyed
from feddraw.flower.site_errors import failure_in_one_line
from feddraw.server.policy import Policy, read_policy
from feddraw.tasks import Task
from feddraw.tasks.findings import Findings
from feddraw.text import one_line
from feddraw.training.client import Trainer
from feddraw.training.own_frozen_layers import Arrays, OwnLayers

# records of tensors that are not the model
BESIDE_THE_MODEL = ("broadcast", "memory", frozen_layers.FROZEN)


@dataclass(frozen=True, eq=False)
class Site:
    """What a client brings: its trainer, its name, and the holdout that it evaluates on."""

    trainer: Trainer
    name: str
    number: int = -1  # among all clients, where it has one; else its name decides the seed
    shard: int = 0  # which of the trainer's shards is its own
    memory: Path = field(default_factory=default_memory_folder)
    holdout: Mapping[str, Rows] = field(default_factory=dict)  # "validation" and "test"
    # the policy that was agreed on: under another the site does not train; None: under any
    policy: Policy | None = None
    labels: Labels | None = None  # of all its images, where it also counts subgroups
    task: Task = field(default_factory=Findings)  # what the network's outputs say

    @property
    def seed_number(self) -> int:
        """What tells this client's seeds from those of others."""
        if self.number >= 0:
            return self.number
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big")


def nothing_of_its_own(context: Context) -> None:
    """For sites without a file of frozen layers."""


def no_layers(context: Context) -> Arrays:
    """For sites whose network may have other frozen layers than the server's."""
    return {}


def client(
    open_site: Callable[[Context], Site],
    own_layers: Callable[[Context], OwnLayers | None] = nothing_of_its_own,
    shared_layers: Callable[[Context], Arrays] = no_layers,
) -> ClientApp:
    """A ClientApp for the site that a function opens; a node's process may ask for it again in
    every round. `own_layers` gives the frozen layers of a file that the site has, and opens no
    images. `shared_layers` gives those that a site has by the run's settings, as the server does.

    At a node with a key it takes part in secure sums only (`secure_mod`). Models travel flat where
    the server is ours (`flat_mod`). What fails is in one line for the server, and whole in a file
    at the site.
    """
    app = ClientApp(mods=[flat_mod, secure_where_keyed])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with failure_in_one_line(context.node_config):
            reply = train_at_site(open_site(context), message.content, own_layers(context))
        return Message(reply, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        with failure_in_one_line(context.node_config):
            reply = evaluate_at_site(open_site(context), message.content, own_layers(context))
        return Message(reply, reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"client": client_record(open_site(context))}), reply_to=message)

    @app.query(frozen_layers.ACTION)
    def query_frozen_layers(message: Message, context: Context) -> Message:
        with failure_in_one_line(context.node_config):
            folder = memory_folder(context.node_config)
            reply = frozen_layers.answer_question(
                message.content, folder, own_layers(context), shared_layers(context)
            )
        return Message(reply, reply_to=message)

    return app


def client_record(site: Site) -> ConfigRecord:
    """How a client calls itself, and which findings it labels where these are not all."""
    record = ConfigRecord({"name": site.name})
    if site.number >= 0:
        record["number"] = site.number
    labelled = site.trainer.labelled[site.shard]
    if labelled is not None:
        record["labelled"] = labelled.tolist()
    return record


# ----------------------------------------------------------------------------------------- training


def train_at_site(site: Site, content: RecordDict, own: OwnLayers | None = None) -> RecordDict:
    """One client's part of a round: the server's message in, the reply out."""
    frozen_digest = frozen_layers.take_frozen(site.trainer, content, site.memory, own)
    job = read_site_job(site, content)
    if "memory" in content:  # in a simulation, where the server's process keeps it
        memory = _vectors_sent(content, "memory")
        update, learnt = site.trainer.work(job, memory)
        reply = _training_reply(site, update, frozen_digest)
        reply["memory"] = vectors_to_arrays(learnt)
        return reply
    run = str(job_orders.read_orders(content).get("run", ""))
    alias = client_alias(run, one_line(site.name))
    last_weighted = job_orders.last_weighted_in_orders(content, alias)
    kept = ClientMemory(site.memory, run, site.name)
    update, learnt = site.trainer.work(job, kept.load(job.round, last_weighted))
    kept.save(job.round, learnt, last_weighted)
    return _training_reply(site, update, frozen_digest)


def _training_reply(site: Site, update: Update, frozen_digest: str) -> RecordDict:
    """An update as records; `frozen_digest` says that the site holds the frozen layers."""
    metrics: dict[str, Any] = {"num-examples": update.size, "num-steps": update.known_steps}
    metrics |= update.metrics
    metrics[SECONDS] = update.seconds
    client = client_record(site)
    if frozen_digest:
        client[frozen_layers.FROZEN] = frozen_digest
    reply = RecordDict(
        {
            "arrays": model_to_arrays(update.model),
            "metrics": MetricRecord(metrics),
            "client": client,
        }
    )
    # without the mean of nothing, in rounds and at sites that measure none
    extra = {
        name: vector
        for name, vector in update.extra.items()
        if name not in GRADIENT_MEANS or vector.any()
    }
    if extra:
        reply["extra"] = vectors_to_arrays(extra)
    return reply


def read_site_job(site: Site, content: RecordDict) -> Job:
    """What the server asks for."""
    orders = job_orders.read_orders(content)
    if site.policy is not None:
        _check_policy(site.policy, orders.get("policy", {}))
    config: Mapping[str, Any] = next(iter(content.config_records.values()), {})
    try:
        # a server that is not ours counts rounds from 1
        round = int(orders.get("round", config.get("server-round", 1) - 1))
        rounds = int(orders.get("rounds", round + 1))
        run_seed = int(orders.get("seed", 0))
        seed = int(orders.get("client-seed") or client_seed(run_seed, round, site.seed_number))
        effort = float(orders.get("effort", 1.0))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"the server's settings cannot be read: {one_line(error)}") from None
    return Job(
        round=round,
        rounds=rounds,
        client=site.shard,
        seed=seed,
        model=_model_sent(site, content),
        broadcast=_vectors_sent(content, "broadcast"),
        effort=effort,
    )


def _check_policy(agreed: Policy, servers: Any) -> None:
    """Stop if the server's policy differs from the site's."""
    ours = asdict(agreed)
    theirs = asdict(Policy()) | (servers if isinstance(servers, dict) else {})
    differences = [
        f"{name} = {one_line(theirs[name])}, here {value}"
        for name, value in ours.items()
        if theirs[name] != value
    ]
    if differences:
        raise UserError(f"another policy than agreed: {', '.join(differences)}")


def _vectors_sent(content: RecordDict, name: str) -> dict[str, Vector]:
    """A record of vectors beside the model; none where it is not there."""
    if name not in content.array_records:
        return {}
    try:
        return arrays_to_vectors(content.array_records[name])
    except Refused as error:
        raise UserError(
            f"what the server sends as {name} cannot be read: {one_line(error)}"
        ) from None


def _model_sent(site: Site, content: RecordDict) -> Model:
    names = [name for name in content.array_records if name not in BESIDE_THE_MODEL]
    try:
        return arrays_to_model(content.array_records[names[0]], site.trainer.network.layout)
    except (Refused, IndexError) as error:
        raise UserError(
            f"the server's model is not this site's network: {one_line(error)}"
        ) from None


# --------------------------------------------------------------------------------------- evaluation


def evaluate_at_site(site: Site, content: RecordDict, own: OwnLayers | None = None) -> RecordDict:
    """Counts of the site's own images by score; the test split only when the server says that it is
    the last time.
    """
    began = time.perf_counter()
    frozen_layers.take_frozen(site.trainer, content, site.memory, own)
    model = _model_sent(site, content)
    final = bool(job_orders.read_orders(content).get("final"))
    engine = Serial(site.trainer)
    targets = site.trainer.examples.targets
    metrics: dict[str, Any] = {"num-examples": 0}
    for split, rows in site.holdout.items():
        if len(rows) and (split != "test" or final):
            metrics["num-examples"] += len(rows)
            scores = engine.predict(model, rows)
            counts = count_by_score(scores, targets[rows])
            metrics |= histograms_to_metrics(split, counts, not_finite(scores))
            if final and site.labels is not None:
                labels = site.labels.take(rows)
                groups = subgroup_counts(
                    scores, targets[rows], labels.subgroups, patients_of(labels)
                )
                metrics |= subgroups_to_metrics(split, groups)
            metrics |= calls_to_metrics(split, site.task.count_calls(scores, targets[rows]))
    metrics[EVALUATION_SECONDS] = time.perf_counter() - began
    return RecordDict({"metrics": MetricRecord(metrics), "client": client_record(site)})


def patients_of(labels: Labels) -> NDArray[np.int64]:
    """Each image's patient as a number; where patients are not known, an image counts as one."""
    numbers = labels.patient_numbers()
    return np.arange(len(labels)) if numbers is None else numbers


# ------------------------------------------------------------------------------------ the ready app


def open_site(context: Context) -> Site:
    """The site that a node is set up for."""
    node = context.node_config
    run = json.dumps(dict(context.run_config), sort_keys=True)
    if node.get("data"):
        settings_of_node = {name: value for name, value in node.items() if name != "partition-id"}
        return _site_with_own_folder(
            run, json.dumps(settings_of_node, sort_keys=True), context.node_id
        )
    if "partition-id" in node:
        scenario = _prepared_scenario(run, node.get("trust") is True)
        return _site_of_partition(scenario, int(node["partition-id"]), node)
    raise UserError(
        'this node has no data: start it with --node-config \'data="FOLDER"\' or "partition-id=0"'
    )


@lru_cache(maxsize=1)
def _prepared_scenario(run: str, trust: bool) -> PreparedRun:
    """The whole scenario, once per process: in a simulation one process serves several clients."""
    experiment, _ = settings.read_run_config(
        json.loads(run), trust=trust, permit=settings.AT_A_SITE
    )
    return prepare(experiment)


def _site_of_partition(scenario: PreparedRun, number: int, node: Mapping[str, Any]) -> Site:
    """A site with one client's part of the scenario's images."""
    if node.get("backbone"):
        raise UserError(
            "a node of a partition reads the weights that the run's settings name: leave backbone"
            " out of its settings"
        )
    if settings.own_folders(scenario.experiment):
        raise UserError(
            "the run asks for a folder of this site's own: start its node with 'data=\"FOLDER\"'"
        )
    if not 0 <= number < len(scenario.clients):
        raise UserError(
            f"partition {number} is not among the scenario's {len(scenario.clients)} clients"
        )
    return Site(
        trainer=scenario.trainer,
        name=scenario.clients[number],
        number=number,
        shard=number,
        memory=memory_folder(node),
        holdout={"validation": scenario.evaluator.holdout[number]},
        policy=_policy_of_node(node),
        task=scenario.evaluator.task,
    )


@lru_cache(maxsize=1)
def _site_with_own_folder(run: str, settings_of_node: str, node_id: int) -> Site:
    """A site with a folder of its own; nothing but paths is the site's to set."""
    node = json.loads(settings_of_node)
    experiment = _experiment_at_site(run, str(node.get("backbone", "")), node.get("trust") is True)
    findings = settings.findings_of_own_folders(experiment)
    subgroups = settings.subgroups_of_own_folders(experiment)
    options = experiment.dataset_section()[1] | {"path": node["data"]}
    dataset = open_dataset("folder", size=options.pop("size"), options=options)
    if list(dataset.findings) != findings:
        many = with_task_of_data(experiment, dataset.labels).task.words.labels.many
        raise UserError(
            f"{node['data']} has the {many} {', '.join(dataset.findings)}, not"
            f" {', '.join(findings)}"
        )
    task = with_task_of_data(experiment, dataset.labels).task
    task.check(dataset.labels)
    shards = [np.sort(dataset.rows["train"])]
    trainer = make_trainer(experiment, dataset, shards, make_method(experiment))
    if experiment.trains_on_features:
        trainer.examples_behind = partial(examples_on_features, experiment, dataset, shards)
    return Site(
        trainer=trainer,
        name=str(node.get("client") or f"node {node_id}"),
        memory=memory_folder(node),
        holdout={"validation": dataset.rows["validation"], "test": dataset.rows["test"]},
        policy=_policy_of_node(node),
        labels=dataset.labels if subgroups else None,
        task=task,
    )


def _experiment_at_site(run: str, backbone: str, trust: bool) -> Experiment:
    """The run's experiment, with the weights where this site has them."""
    experiment, _ = settings.read_run_config(
        json.loads(run), trust=trust, permit=settings.AT_A_SITE
    )
    if not backbone:
        return experiment
    setting = "folder" if "folder" in experiment.section("model")[1] else "weights"
    return experiment.with_settings({f"model.{setting}": backbone})


def own_layers(context: Context) -> OwnLayers | None:
    """The frozen layers of the file or folder that a node with data of its own names."""
    node = context.node_config
    if not node.get("backbone") or not node.get("data"):
        return None
    run = json.dumps(dict(context.run_config), sort_keys=True)
    return _layers_of_backbone(run, str(node["backbone"]), node.get("trust") is True)


def shared_layers(context: Context) -> Arrays:
    """The frozen layers of a partition's network: the run's settings say where its weights are."""
    node = context.node_config
    if node.get("data") or "partition-id" not in node:
        return {}
    run = json.dumps(dict(context.run_config), sort_keys=True)
    scenario = _prepared_scenario(run, node.get("trust") is True)
    return scenario.trainer.network.layout.frozen


@lru_cache(maxsize=1)
def _layers_of_backbone(run: str, backbone: str, trust: bool) -> OwnLayers:
    """Once per process: a process that trains several clients would read the file for each."""
    return OwnLayers(backbone, partial(_read_layers, run, backbone, trust))


def _read_layers(run: str, backbone: str, trust: bool) -> Mapping[str, Any]:
    """The frozen layers of the run's network with this site's weights."""
    experiment = _experiment_at_site(run, backbone, trust)
    findings = settings.findings_of_own_folders(experiment)
    build = partial(trained_builder(experiment, len(findings)), pretrained=True)
    return initial_model(build, experiment.seed).layout.frozen


def _policy_of_node(node: Mapping[str, Any]) -> Policy | None:
    """The policy that the site agreed to, where it has a file of it."""
    return read_policy(Path(str(node["policy"]))) if node.get("policy") else None


app = client(open_site, own_layers, shared_layers)
