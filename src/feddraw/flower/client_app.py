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
from feddraw.experiment.run_preparation import Setup, make_trainer, prepare
from feddraw.experiment.settings import Experiment, make_method
from feddraw.flower import settings
from feddraw.flower.client_memory import folder_of
from feddraw.flower.site import Site, client
from feddraw.server.policy import Policy, read_policy


def open_site(context: Context) -> Site:
    """The site that a node is set up for."""
    node = context.node_config
    run = json.dumps(dict(context.run_config), sort_keys=True)
    if node.get("data"):
        own = json.dumps({name: value for name, value in node.items() if name != "partition-id"}, sort_keys=True)
        return _own(run, own, context.node_id)
    if "partition-id" not in node:
        raise UserError('this node has no data: start it with --node-config \'data="FOLDER"\' or "partition-id=0"')
    return _partition(_setup(run, node.get("trust") is True), int(node["partition-id"]), node)


@lru_cache(maxsize=1)
def _setup(run: str, trust: bool) -> Setup:
    """The whole scenario, once per process: in a simulation one process serves several clients."""
    return prepare(_experiment(run, trust))


def _experiment(run: str, trust: bool) -> Experiment:
    experiment, _ = settings.read(json.loads(run), trust=trust, permit=settings.AT_A_SITE)
    return experiment


def _partition(setup: Setup, number: int, node: Mapping[str, Any]) -> Site:
    if settings.own_folders(setup.experiment):
        raise UserError("the run asks for a folder of this site's own: start its node with 'data=\"FOLDER\"'")
    if not 0 <= number < len(setup.clients):
        raise UserError(f"partition {number} is not among the scenario's {len(setup.clients)} clients")
    holdout = {"validation": setup.evaluator.holdout[number]}
    return Site(setup.trainer, setup.clients[number], number, number, folder_of(node), holdout, _policy(node))


@lru_cache(maxsize=1)
def _own(run: str, own: str, node_id: int) -> Site:
    """A site with a folder of its own; nothing but its path is the site's to set."""
    node = json.loads(own)
    experiment = _experiment(run, node.get("trust") is True)
    findings = settings.findings(experiment)
    options = experiment.section("data")[1] | {"path": node["data"]}
    dataset = open_dataset("folder", size=options.pop("size"), options=options)
    if list(dataset.findings) != findings:
        raise UserError(f"{node['data']} has the findings {', '.join(dataset.findings)}, not {', '.join(findings)}")
    rows = np.sort(dataset.rows["train"])
    trainer = make_trainer(experiment, dataset, [rows], make_method(experiment))
    name = str(node.get("client") or f"node {node_id}")
    holdout = {"validation": dataset.rows["validation"], "test": dataset.rows["test"]}
    return Site(trainer, name, memory=folder_of(node), holdout=holdout, policy=_policy(node))


def _policy(node: Mapping[str, Any]) -> Policy | None:
    """The policy that the site agreed to, where it has a file of it."""
    return read_policy(Path(str(node["policy"]))) if node.get("policy") else None


app = client(open_site)
