"""Which nodes take part in a round: wait until enough are connected, then draw some by a seed.

Only nodes that the roster admits are waited for, drawn and sent anything.

Flower draws from Python's global random state; here the same seed, round and nodes give the same
sample.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.serverapp import Grid

from feddraw.errors import UserError
from feddraw.flower.roster import Roster
from feddraw.flower.run_ending import TooFewNodes

log = logging.getLogger("flwr")


@dataclass(frozen=True, eq=False)
class Request:
    """A message that is out: over which grid, to which nodes, and when it went."""

    grid: Grid | None
    nodes: Sequence[int]
    connected: Sequence[int]  # all that could have been asked
    timeout: float  # seconds for the replies
    sent_at: float = field(default_factory=time.perf_counter)


def check_list_of_sites(sites: Sequence[str], least: int) -> None:
    """Refuse to wait for more nodes than are on the list, where there is one."""
    if sites and len(sites) < least:
        raise UserError(
            f"a round waits for {least} nodes, and only {len(sites)} are on the list of sites:"
            " list the others, or wait for fewer (min_available_nodes, min_train_nodes,"
            " min_evaluate_nodes and policy.min_sites; in the ready app: nodes and"
            " policy.min_sites)"
        )


def wait_for_nodes(grid: Grid, roster: Roster, least: int, seconds: float) -> list[int]:
    """The connected nodes that may take part, once there are at least so many; waits at most so
    many seconds.
    """
    began = time.monotonic()
    logged = -1
    while len(nodes := _connected_nodes(grid, roster)) < least:
        if time.monotonic() - began > seconds:
            raise TooFewNodes(len(nodes), least, seconds)
        if len(nodes) != logged:
            logged = len(nodes)
            log.info("waiting for nodes: %d of %d are connected", logged, least)
        time.sleep(min(1.0, seconds / 10))
    return nodes


def _connected_nodes(grid: Grid, roster: Roster) -> list[int]:
    """The nodes that are connected now and may take part."""
    roster.meet(grid)
    return roster.admitted(grid.get_node_ids())


def sample_nodes(
    nodes: Sequence[int], count: int, roster: Roster, entropy: Sequence[int]
) -> list[int]:
    """`count` of the nodes by chance, or all; in the order of their names in the roster."""
    ordered = sorted(nodes, key=lambda node: (roster.name_of(node) or "", node))
    if count >= len(ordered):
        return ordered
    chosen = np.random.default_rng(entropy).choice(len(ordered), count, replace=False)
    return [ordered[index] for index in sorted(chosen)]


def log_request(request: Request, server_round: int, task: str) -> None:
    """Say how many nodes are at work now, and at what: `train` or `evaluate`."""
    asked = len(request.nodes)
    connected = len(request.connected)
    log.info(
        "server round %d: %d of %d nodes are asked to %s", server_round, asked, connected, task
    )


def warn_of_strangers(nodes: Sequence[int], roster: Roster) -> None:
    """Say so where none of the nodes took part before: names would be refused to all of them."""
    if not roster.knows_any(nodes):
        log.warning(
            "none of the %d connected nodes is one that took part before: a node without a"
            " registered key gets a new id when it or the SuperLink restarts; give sites=…, or"
            " go on with rebind=True if you know them",
            len(nodes),
        )
