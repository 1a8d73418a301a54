"""Flower's own simulation on Ray, held open: its server side waits while our loop drives the
Grid.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from queue import Empty, Queue

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from feddraw.errors import RunFailed

POLL_SECONDS = 0.05  # between two looks for replies
RAY_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
}


class RaySimulation:
    """Nodes on Ray from the first call of `grid` until `close`."""

    def __init__(self, app: ClientApp, nodes: int, workers: int) -> None:
        self._app = app
        self._nodes = nodes
        self._workers = workers
        self._grids: Queue[Grid | BaseException] = Queue()
        self._crash: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run_simulation, daemon=True)

    def grid(self, seconds: float = 120.0) -> Grid:
        """Start the simulation, and wait at most so long for its Grid."""
        self._thread.start()
        try:
            grid = self._grids.get(timeout=seconds)
        except Empty:
            raise RunFailed(f"Flower's simulation did not start within {seconds:g} s") from None
        if isinstance(grid, BaseException):
            raise RunFailed(f"Flower's simulation did not start: {_cause(grid)}")
        return grid

    def send_and_receive(self, grid: Grid, messages: Sequence[Message]) -> list[Message]:
        """As the Grid's own, which would wait for ever for nodes that are gone with the
        simulation.
        """
        waiting = set(grid.push_messages(messages))
        replies: list[Message] = []
        while waiting:
            self.stop_if_over()
            arrived = list(grid.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            replies += arrived
            if not arrived:
                time.sleep(POLL_SECONDS)
        return replies

    def stop_if_over(self) -> None:
        """Raise if the simulation has ended, which it does only when it crashes or is closed."""
        if self._ended.is_set():
            why = "it ended early" if self._crash is None else _cause(self._crash)
            raise RunFailed(
                f"Flower's simulation on Ray crashed: {why}; run again with engine = serial, or see"
                " Ray's log in /tmp/ray/session_latest/logs"
            )

    def _run_simulation(self) -> None:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._grids.put(grid)
            self._ended.wait()

        for name, value in RAY_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        logging.getLogger("flwr").setLevel(logging.ERROR)  # it warns of its own age at every start
        # A cluster that is named has its own processors, and refuses to be told how many. Otherwise
        # Ray would join any whose address it finds on this machine, also of one that died.
        joined = bool(os.environ.get("RAY_ADDRESS"))
        resources = {
            "client_resources": {"num_cpus": 1},
            "init_args": {} if joined else {"address": "local", "num_cpus": self._workers},
        }
        try:
            run_simulation(server, self._app, self._nodes, backend_config=resources)  # type: ignore[arg-type]
        except BaseException as error:
            self._crash = error
            self._grids.put(error)  # read by `grid` if it still waits
        finally:
            self._ended.set()  # lets the server's thread end too

    def close(self) -> None:
        self._ended.set()
        self._thread.join(timeout=60)


def _cause(error: BaseException) -> str:
    """The first error of a chain, on one line: Flower's own only says that there was one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
