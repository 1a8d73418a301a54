"""The nodes that a SuperLink knows, under the names of the sites: who is connected, when the others
were last seen, and what each has done in a run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from feddraw.errors import UserError
from feddraw.flower.roster import node_fingerprint
from feddraw.flower.server_checkpoint import (
    listed_sites_in_checkpoint,
    name_owners_in_checkpoint,
)
from feddraw.results.find_runs import require_run
from feddraw.results.recorded_run import read_run
from feddraw.results.run_folder import RunFolder

UNKNOWN = "-"
FIND_CONFIGURATION = (
    "Flower reads the configuration that FLWR_HOME names: in every terminal of the server, type"
    " `export FLWR_HOME=/etc/feddraw/flwr` first"
)


@dataclass(frozen=True)
class RegisteredSite:
    """A node, and the site that it is."""

    name: str  # in the run, otherwise as it was registered; empty where neither has a name
    identity: str  # the fingerprint of its key, or the number of a node without one
    state: str  # online, offline, registered (never connected), not registered
    listed: bool | None  # whether the run's list of sites has it; None where there is no list
    last_seen: str  # in words
    rounds: int | None  # in which it counted; None where no run or name is known
    seconds: float | None  # that it worked in a round, on average


@dataclass(frozen=True)
class SiteRecord:
    """What a run's folder says about a site."""

    rounds: int | None
    seconds: float | None


def list_nodes(connection: str | None) -> list[Any]:
    """Flower's record of every node, asked of the SuperLink by the name of its connection in
    Flower's configuration.
    """
    try:
        from flwr.cli.flower_config import read_superlink_connection
        from flwr.cli.utils import flwr_cli_exc_handler, init_http_client_from_connection
        from flwr.proto.control_pb2 import ListNodesRequest
    except ImportError:
        raise UserError(
            "listing sites needs Flower 1.41: use `flwr supernode list` with older versions"
        ) from None
    try:
        with redirect_stdout(sys.stderr):  # Flower prints which connection it uses
            client = init_http_client_from_connection(read_superlink_connection(connection))
        with closing(client), flwr_cli_exc_handler():
            return list(client.ListNodes(ListNodesRequest()).nodes_info)
    except click.ClickException as error:
        why = " ".join(error.format_message().split())
        remedy = f" {FIND_CONFIGURATION}" if "Flower configuration" in why else ""
        raise UserError(f"the SuperLink does not say who is connected: {why}{remedy}") from None


def registered_sites(nodes: Sequence[Any], run: Path | None) -> list[RegisteredSite]:
    """The nodes with the names and numbers of a run's folder, if one is given; sites of that run
    that are not registered any more are at the end.
    """
    listed: dict[str, str] = {}
    owners: dict[str, str] = {}
    records: dict[str, SiteRecord] = {}
    if run is not None:
        require_run(run)
        listed = listed_sites_in_checkpoint(RunFolder(run))
        owners = name_owners_in_checkpoint(RunFolder(run))
        records = _site_records(run)
    known = listed or owners  # a list alone decides
    names = {identity: name for name, identity in known.items()}
    nobody = SiteRecord(rounds=None, seconds=None)
    sites = []
    for node in nodes:
        if node.status == "unregistered":
            continue
        key = bytes(node.public_key)
        number = f"node {node.node_id}"
        identity = node_fingerprint(key) if key else number
        in_run = names.pop(identity, "") or names.pop(number, "")
        record = records.get(in_run, nobody)
        sites.append(
            RegisteredSite(
                # before its first round a site has the name under which its key was registered
                name=in_run or node.name,
                identity=identity,
                state=node.status,
                listed=bool(in_run) if listed else None,
                last_seen=_last_seen(node),
                rounds=record.rounds,
                seconds=record.seconds,
            )
        )
    for identity, name in names.items():
        record = records.get(name, nobody)
        sites.append(
            RegisteredSite(
                name=name,
                identity=identity,
                state="not registered",
                listed=True if listed else None,
                last_seen=UNKNOWN,
                rounds=record.rounds,
                seconds=record.seconds,
            )
        )
    return sorted(sites, key=lambda site: (not site.name, site.name, site.identity))


def _site_records(run: Path) -> dict[str, SiteRecord]:
    recorded = read_run(run)
    counted = recorded.ledger.counted.sum(axis=0)
    records = {}
    for name, rounds in zip(recorded.ledger.clients, counted, strict=True):
        times = [
            line.client_seconds[name] for line in recorded.rounds if name in line.client_seconds
        ]
        records[name] = SiteRecord(int(rounds), fmean(times) if times else None)
    return records


def _last_seen(node: Any) -> str:
    if node.status == "online":
        return f"now, since {_time(node.last_activated_at)}"
    if node.status == "offline":
        return _time(node.last_deactivated_at)
    return "never"


def _time(text: str) -> str:
    if not text:
        return UNKNOWN
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
