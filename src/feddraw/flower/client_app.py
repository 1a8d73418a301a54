"""The client's side: a ClientApp that trains by any of our methods, in the one training loop of the
package.

`client` makes one for a site that your own function opens. `app` is ready: a node trains on its
partition of the run's scenario, or on a folder of its own.

    feddraw site start … --node-config 'partition-id=0'
    feddraw site start … --node-config 'data="/srv/xrays" client="North" memory="/srv/feddraw"'

With key="/srv/feddraw/north.key" sites="/srv/feddraw/sites.toml" it takes part in secure sums, and
in nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from feddraw.analysis.metrics import not_finite
from feddraw.core import GRADIENT_MEANS, Job, Memory, Model, Vector
from feddraw.engines import Rows
from feddraw.engines.serial import Serial
from feddraw.errors import UserError
from feddraw.experiment.dataset_by_name import open_dataset
from feddraw.experiment.run_preparation import PreparedRun, make_trainer, prepare
from feddraw.experiment.settings import make_method
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
from feddraw.flower.reply_intake import SECONDS
from feddraw.flower.score_histograms import count_by_score, histograms_to_metrics
from feddraw.flower.secure_site import secure_where_keyed
from feddraw.server.policy import Policy, read_policy
from feddraw.text import one_line
from feddraw.training.client import Trainer

BESIDE_THE_MODEL = (
    "broadcast",
    "memory",
    frozen_layers.FROZEN,
)  # records of tensors that are not the model


@dataclass(frozen=True, eq=False)
class Site:
    """What a client brings: its trainer, its name, and the holdout that it evaluates on."""

    trainer: Trainer
    name: str
    number: int = (
        -1
    )  # its number among the clients, where it has one; else the name decides the seed
    shard: int = 0  # which of the trainer's shards is its own
    memory: Path = field(default_factory=default_memory_folder)
    holdout: Mapping[str, Rows] = field(default_factory=dict)  # "validation" and "test"
    policy: Policy | None = (
        None  # the one that was agreed on: under another the site does not train
    )

    @property
    def seed_number(self) -> int:
        if self.number >= 0:
            return self.number
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big")


def client(open_site: Callable[[Context], Site]) -> ClientApp:
    """A ClientApp for the site that a function opens; a node's process may ask for it again in
    every round.

    At a node with a key it takes part in secure sums only (`secure_mod`).
    """
    app = ClientApp(mods=[secure_where_keyed])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(train_at_site(open_site(context), message.content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(evaluate_at_site(open_site(context), message.content), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"client": about_site(open_site(context))}), reply_to=message)

    return app


def about_site(site: Site) -> ConfigRecord:
    """How a client calls itself, and which findings it labels where these are not all."""
    record = ConfigRecord({"name": site.name})
    if site.number >= 0:
        record["number"] = site.number
    if (labelled := site.trainer.labelled[site.shard]) is not None:
        record["labelled"] = labelled.tolist()
    return record


def train_at_site(site: Site, content: RecordDict) -> RecordDict:
    """One client's part of a round."""
    held = frozen_layers.take_frozen(site.trainer, content, site.memory)
    job = read_site_job(site, content)
    run = str(job_orders.read_orders(content).get("run", ""))
    kept = ClientMemory(site.memory, run, site.name)
    counted = job_orders.last_counted_in_orders(content, client_alias(run, one_line(site.name)))
    carried = "memory" in content  # in a simulation, where the server's process keeps it
    memory: Memory = (
        _vectors_sent_to_site(content, "memory") if carried else kept.load(job.round, counted)
    )
    update, memory = site.trainer.work(job, memory)
    if not carried:
        kept.save(job.round, memory, counted)
    metrics: dict[str, Any] = {"num-examples": update.size, "num-steps": update.steps} | dict(
        update.metrics
    )
    metrics[SECONDS] = update.seconds
    about = about_site(site)
    if held:
        about[frozen_layers.FROZEN] = held
    reply = RecordDict(
        {"arrays": model_to_arrays(update.model), "metrics": MetricRecord(metrics), "client": about}
    )
    extra = {
        name: vector
        for name, vector in update.extra.items()
        if name not in GRADIENT_MEANS or vector.any()
    }
    if extra:  # without the mean of nothing, in rounds and at sites that measure none
        reply["extra"] = vectors_to_arrays(extra)
    if carried:
        reply["memory"] = vectors_to_arrays(memory)
    return reply


def read_site_job(site: Site, content: RecordDict) -> Job:
    """What the server asks for."""
    ordered = job_orders.read_orders(content)
    config: Mapping[str, Any] = next(iter(content.config_records.values()), {})
    if site.policy is not None:
        _check_site_agrees(site.policy, ordered.get("policy", {}))
    try:
        round = int(ordered.get("round", config.get("server-round", 1) - 1))
        seed = int(
            ordered.get("client-seed")
            or client_seed(int(ordered.get("seed", 0)), round, site.seed_number)
        )
        rounds, effort = int(ordered.get("rounds", round + 1)), float(ordered.get("effort", 1.0))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"the server's settings cannot be read: {one_line(error)}") from None
    model, broadcast = (
        _model_sent_to_site(site, content),
        _vectors_sent_to_site(content, "broadcast"),
    )
    return Job(round, rounds, site.shard, seed, model, broadcast, effort)


def _check_site_agrees(agreed: Policy, servers: Any) -> None:
    """Stop if the server's policy differs from the site's."""
    theirs = asdict(Policy()) | (servers if isinstance(servers, dict) else {})
    if other := [name for name, value in asdict(agreed).items() if theirs[name] != value]:
        said = ", ".join(
            f"{name} = {one_line(theirs[name])}, here {asdict(agreed)[name]}" for name in other
        )
        raise UserError(
            f"another policy than agreed: {said}"
        )  # short, as a log of the server's will cut it


def evaluate_at_site(site: Site, content: RecordDict) -> RecordDict:
    """Counts of the site's own images by score; the test split only when the server says that it is
    the last time.
    """
    frozen_layers.take_frozen(site.trainer, content, site.memory)
    model, engine, examples = (
        _model_sent_to_site(site, content),
        Serial(site.trainer),
        site.trainer.examples,
    )
    metrics: dict[str, Any] = {"num-examples": 0}
    for part, rows in site.holdout.items():
        if len(rows) and (part != "test" or job_orders.read_orders(content).get("final")):
            scores = engine.predict(model, rows)
            metrics |= histograms_to_metrics(
                part, count_by_score(scores, examples.targets[rows]), not_finite(scores)
            )
            metrics["num-examples"] += len(rows) if part == "validation" else 0
    return RecordDict({"metrics": MetricRecord(metrics), "client": about_site(site)})


def _vectors_sent_to_site(content: RecordDict, name: str) -> dict[str, Vector]:
    """A record of vectors beside the model; none where it is not there."""
    try:
        return (
            arrays_to_vectors(content.array_records[name]) if name in content.array_records else {}
        )
    except Refused as error:
        raise UserError(
            f"what the server sends as {name} cannot be read: {one_line(error)}"
        ) from None


def _model_sent_to_site(site: Site, content: RecordDict) -> Model:
    names = [name for name in content.array_records if name not in BESIDE_THE_MODEL]
    try:
        return arrays_to_model(content.array_records[names[0]], site.trainer.network.layout)
    except (Refused, IndexError) as error:
        raise UserError(
            f"the server's model is not this site's network: {one_line(error)}"
        ) from None


def open_site(context: Context) -> Site:
    """The site that a node is set up for."""
    node = context.node_config
    run = json.dumps(dict(context.run_config), sort_keys=True)
    if node.get("data"):
        own = json.dumps(
            {name: value for name, value in node.items() if name != "partition-id"}, sort_keys=True
        )
        return _site_with_own_folder(run, own, context.node_id)
    if "partition-id" not in node:
        raise UserError(
            "this node has no data: start it with --node-config 'data=\"FOLDER\"' or"
            ' "partition-id=0"'
        )
    return _site_of_partition(
        _client_app_setup(run, node.get("trust") is True), int(node["partition-id"]), node
    )


@lru_cache(maxsize=1)
def _client_app_setup(run: str, trust: bool) -> PreparedRun:
    """The whole scenario, once per process: in a simulation one process serves several clients."""
    experiment, _ = settings.read_run_config(
        json.loads(run), trust=trust, permit=settings.AT_A_SITE
    )
    return prepare(experiment)


def _site_of_partition(setup: PreparedRun, number: int, node: Mapping[str, Any]) -> Site:
    if settings.own_folders(setup.experiment):
        raise UserError(
            "the run asks for a folder of this site's own: start its node with 'data=\"FOLDER\"'"
        )
    if not 0 <= number < len(setup.clients):
        raise UserError(
            f"partition {number} is not among the scenario's {len(setup.clients)} clients"
        )
    holdout = {"validation": setup.evaluator.holdout[number]}
    name, memory = setup.clients[number], memory_folder(node)
    return Site(setup.trainer, name, number, number, memory, holdout, _policy_of_node(node))


@lru_cache(maxsize=1)
def _site_with_own_folder(run: str, own: str, node_id: int) -> Site:
    """A site with a folder of its own; nothing but its path is the site's to set."""
    node = json.loads(own)
    trust = node.get("trust") is True
    experiment, _ = settings.read_run_config(
        json.loads(run), trust=trust, permit=settings.AT_A_SITE
    )
    findings = settings.findings_of_own_folders(experiment)
    options = experiment.section("data")[1] | {"path": node["data"]}
    dataset = open_dataset("folder", size=options.pop("size"), options=options)
    if list(dataset.findings) != findings:
        raise UserError(
            f"{node['data']} has the findings {', '.join(dataset.findings)}, not"
            f" {', '.join(findings)}"
        )
    trainer = make_trainer(
        experiment, dataset, [np.sort(dataset.rows["train"])], make_method(experiment)
    )
    name = str(node.get("client") or f"node {node_id}")
    holdout = {"validation": dataset.rows["validation"], "test": dataset.rows["test"]}
    return Site(
        trainer, name, memory=memory_folder(node), holdout=holdout, policy=_policy_of_node(node)
    )


def _policy_of_node(node: Mapping[str, Any]) -> Policy | None:
    """The policy that the site agreed to, where it has a file of it."""
    return read_policy(Path(str(node["policy"]))) if node.get("policy") else None


app = client(open_site)
