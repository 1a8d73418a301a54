"""The process of a site's node: Flower's SuperNode, with the check of signatures, and with a client
that keeps the connection.

`feddraw site start` starts this module, restarts it where its connection is lost, and passes its
order as the first line of standard input. When standard input ends, so does the node. What Flower
1.41 does by itself, and what is done here instead:

- activation refused (also because a crashed node still counts as connected): exit -> try again
- 401 because a restarted server has forgotten the node: exit -> end with FORGOTTEN, start again
- a heartbeat answered with 500: no further heartbeats, silently -> try again
- a request for messages answered with 500: the node stays, unconnected -> try again
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import httpx
import numpy as np
from flwr.supercore import log
from flwr.supercore.exit.exit_handler import trigger_exit_handlers
from flwr.supernode import fleet_http_connection
from flwr.supernode import start_client_internal as loop
from flwr.supernode.fleet_http_client import FleetHttpClient

from feddraw.flower.app_signatures import Signatures
from feddraw.flower.reconnection import (
    Clock,
    MustBeMended,
    Outage,
    ServerAddress,
    Trouble,
    Waiting,
    backoff,
    trouble_of,
)
from feddraw.flower.supernode import SUPERNODE_COMMAND, guarded_pull, refuse_unknown_flower
from feddraw.secure.sums.signing_keys import read_operator_public_key
from feddraw.system.service_manager import ServiceManager

# How the process ends, for the one that started it.
STOPPED = 0
MUST_BE_MENDED = 78  # a person must do something; the file REASON says what
FORGOTTEN = 75  # the server does not know the node's id any more
CONNECTION_BROKEN = 76  # Flower has given up, and has logged why

CONNECTED = "connected"  # files in the process's folder: exists once the node was connected,
REASON = "reason"  # and why it ended
# requests that have their own way to fail
COMING_AND_GOING = ("/v1/fleet/activate-node", "/v1/fleet/deactivate-node")
# Flower's lines about a connection do not say to what, or since when.
FLOWERS_OWN_WORDS = ("Connection attempt failed, retrying", "Connection successful after")

Response = TypeVar("Response")


@dataclass(frozen=True)
class NodeOrder:
    """What a node's process is to do."""

    signatures: str  # a signature, or a folder of them
    operator: str  # the operator's public key
    arguments: list[str]  # of flower-supernode
    superlink: str
    key_fingerprint: str
    folder: str = ""  # private; apps are unpacked here, and the process says here how it went
    connected_before: bool = False  # by an earlier process of this node

    def in_folder(self, folder: Path, connected_before: bool) -> NodeOrder:
        """The order of one process of this node."""
        return replace(self, folder=str(folder), connected_before=connected_before)

    def as_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


class Link:
    """The node's connection as its process sees it."""

    def __init__(
        self, order: NodeOrder, waiting: Waiting, manager: ServiceManager, clock: Clock
    ) -> None:
        self.server = ServerAddress(order.superlink, order.key_fingerprint)
        self.waiting = waiting
        self.manager = manager
        self.clock = clock
        self.folder = Path(order.folder)

    def activate(self, attempt: Callable[[], Response]) -> Response:
        """Ask until the server lets the node in."""
        answer = self.waiting.until_it_succeeds(attempt, self.judge)
        (self.folder / CONNECTED).touch()
        line = f"Connected to {self.server.superlink}"
        self.manager.status(line)
        log(INFO, "%s: this node waits for runs; Ctrl-C ends it", line)
        return answer

    def judge(self, error: Exception) -> Trouble:
        self.manager.alive()
        return trouble_of(error, self.server, self.clock.now())

    def ask(self, request: Callable[[], Response]) -> Response:
        """The answer to a request of an active node. Errors of the server that pass become those
        that Flower repeats by itself.
        """
        try:
            answer = self._ask_with_new_signature(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                self.forgotten()
            if error.response.status_code < 500:
                raise  # an answer to this request; 403 is Flower's word for a run that has ended
            self.waiting.outage.lasts(self.judge(error))
            raise httpx.ReadError(str(error), request=error.request) from error
        except httpx.TransportError as error:
            self.waiting.outage.lasts(self.judge(error))
            raise
        self.manager.alive()
        self.waiting.outage.over()
        return answer

    def _ask_with_new_signature(self, request: Callable[[], Response]) -> Response:
        """Once more after a 401: a signature has a time, and the machine may have slept."""
        try:
            return request()
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.UNAUTHORIZED:
                raise
            return request()

    def forgotten(self) -> NoReturn:
        """From whichever thread: what the node was doing was for a run that is gone."""
        log(
            WARNING,
            "The server does not know this node any more, as after a restart without its database:"
            " the node starts anew",
        )
        os._exit(FORGOTTEN)


def lasting_client(link: Link) -> type[FleetHttpClient]:
    """Flower's client of a SuperLink, for a node that is to stay connected."""

    class LastingFleetClient(FleetHttpClient):
        def ActivateNode(self, request: Any) -> Any:
            return link.activate(partial(super().ActivateNode, request))

        def SendNodeHeartbeat(self, request: Any) -> Any:
            answer = super().SendNodeHeartbeat(request)
            if not answer.success:
                link.forgotten()
            return answer

        def _unary_unary(self, *, path: str, **call: Any) -> Any:
            ask = partial(super()._unary_unary, path=path, **call)
            if path in COMING_AND_GOING:
                return ask()
            return link.ask(ask)

    return LastingFleetClient


def without_flowers_own_words(record: logging.LogRecord) -> bool:
    """Our lines say the same with a reason."""
    return not str(record.msg).startswith(FLOWERS_OWN_WORDS)


def make_link(order: NodeOrder, manager: ServiceManager) -> Link:
    """The connection that an order describes."""

    def say(line: str) -> None:
        log(WARNING, line)
        manager.status(line)

    clock = Clock()
    waiting = Waiting(
        clock=clock,
        delays=partial(backoff, np.random.default_rng()),
        outage=Outage(clock, say, "the server"),
        without_limit=order.connected_before,
    )
    return Link(order, waiting, manager, clock)


def take_order() -> tuple[NodeOrder, int]:
    """The order on standard input, and a descriptor that ends when the starter does. Processes that
    this one starts have an empty standard input.
    """
    starter = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(starter, 1)):
            os._exit(STOPPED)
        line += byte
    return NodeOrder(**json.loads(line)), starter


def end_with_starter(starter: int) -> None:
    """When the process that started this one is gone, leave the federation in order."""
    while os.read(starter, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def run_node(order: NodeOrder, link: Link) -> int:
    """Carry the order out; returns the code to exit with."""
    from flwr.supernode.cli import flower_supernode

    signatures = Signatures(
        path=Path(order.signatures), operator=read_operator_public_key(Path(order.operator))
    )
    loop._pull_and_store_message = guarded_pull(loop._pull_and_store_message, signatures)
    fleet_http_connection.FleetHttpClient = lasting_client(link)  # type: ignore[attr-defined]
    logging.getLogger("flwr").addFilter(without_flowers_own_words)
    sys.argv = [SUPERNODE_COMMAND, *order.arguments]
    try:
        flower_supernode()
    except MustBeMended as trouble:
        (link.folder / REASON).write_text(trouble.reason)
        return MUST_BE_MENDED
    except SystemExit as ending:
        if ending.code in (0, None):
            return STOPPED
        (link.folder / REASON).write_text("Flower does not start this node: its message is above")
        return MUST_BE_MENDED
    return CONNECTION_BROKEN


def main() -> NoReturn:
    refuse_unknown_flower()
    manager = ServiceManager.of_this_process()
    order, starter = take_order()
    threading.Thread(target=end_with_starter, args=[starter], daemon=True).start()
    code = 1
    try:
        link = make_link(order, manager)
        manager.ready()
        code = run_node(order, link)
    except Exception:
        traceback.print_exc()
    # Flower's own server is a thread that would keep the process.
    for early in (True, False):
        trigger_exit_handlers(run_before_force_exit=early)
    with suppress(OSError):  # the starter, which reads this, may be gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
