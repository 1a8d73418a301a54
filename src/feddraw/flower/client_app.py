"""The ready ClientApp. A node trains on its partition of the run's scenario, or on a folder of its own.

feddraw site start … --node-config 'partition-id=0'
feddraw site start … --node-config 'data="/srv/xrays" client="North" memory="/srv/feddraw"'
With key="/srv/feddraw/north.key" sites="/srv/feddraw/sites.toml" it takes part in secure sums, and in nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from feddraw.errors import UserError
from feddraw.experiment.dataset_by_name import open_dataset
from feddraw.experiment.run_preparation import PreparedRun, make_trainer, prepare
from feddraw.experiment.settings import make_method
from feddraw.flower import settings
from feddraw.flower.client_memory import memory_folder
from feddraw.flower.site import Site, client
from feddraw.server.policy import Policy, read_policy


def open_site(context: Context) -> Site:
    """The site that a node is set up for."""
    node = context.node_config
    run = json.dumps(dict(context.run_config), sort_keys=True)
    if node.get("data"):
        own = json.dumps({name: value for name, value in node.items() if name != "partition-id"}, sort_keys=True)
        return _site_with_own_folder(run, own, context.node_id)
    if "partition-id" not in node:
        raise UserError('this node has no data: start it with --node-config \'data="FOLDER"\' or "partition-id=0"')
    return _site_of_partition(_client_app_setup(run, node.get("trust") is True), int(node["partition-id"]), node)


@lru_cache(maxsize=1)
def _client_app_setup(run: str, trust: bool) -> PreparedRun:
    """The whole scenario, once per process: in a simulation one process serves several clients."""
    experiment, _ = settings.read_run_config(json.loads(run), trust=trust, permit=settings.AT_A_SITE)
    return prepare(experiment)


def _site_of_partition(setup: PreparedRun, number: int, node: Mapping[str, Any]) -> Site:
    if settings.own_folders(setup.experiment):
        raise UserError("the run asks for a folder of this site's own: start its node with 'data=\"FOLDER\"'")
    if not 0 <= number < len(setup.clients):
        raise UserError(f"partition {number} is not among the scenario's {len(setup.clients)} clients")
    holdout = {"validation": setup.evaluator.holdout[number]}
    name, memory = setup.clients[number], memory_folder(node)
    return Site(setup.trainer, name, number, number, memory, holdout, _policy_of_node(node))


@lru_cache(maxsize=1)
def _site_with_own_folder(run: str, own: str, node_id: int) -> Site:
    """A site with a folder of its own; nothing but its path is the site's to set."""
    node = json.loads(own)
    trust = node.get("trust") is True
    experiment, _ = settings.read_run_config(json.loads(run), trust=trust, permit=settings.AT_A_SITE)
    findings = settings.findings_of_own_folders(experiment)
    options = experiment.section("data")[1] | {"path": node["data"]}
    dataset = open_dataset("folder", size=options.pop("size"), options=options)
    if list(dataset.findings) != findings:
        raise UserError(f"{node['data']} has the findings {', '.join(dataset.findings)}, not {', '.join(findings)}")
    trainer = make_trainer(experiment, dataset, [np.sort(dataset.rows["train"])], make_method(experiment))
    name = str(node.get("client") or f"node {node_id}")
    holdout = {"validation": dataset.rows["validation"], "test": dataset.rows["test"]}
    return Site(trainer, name, memory=memory_folder(node), holdout=holdout, policy=_policy_of_node(node))


def _policy_of_node(node: Mapping[str, Any]) -> Policy | None:
    """The policy that the site agreed to, where it has a file of it."""
    return read_policy(Path(str(node["policy"]))) if node.get("policy") else None


app = client(open_site)
