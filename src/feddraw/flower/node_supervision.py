"""`feddraw site start`: a site's node in a process of its own, started again whenever it ends for a
reason that passes.

It ends where a person must do something, and says what in one line; or where it is stopped.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from logging import WARNING
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn

import numpy as np
from flwr.supercore import log
from flwr.supercore.logger import update_console_handler

from feddraw.errors import RunFailed
from feddraw.flower.exchange_files import FederationFile
from feddraw.flower.node_process import (
    CONNECTED,
    CONNECTION_BROKEN,
    FORGOTTEN,
    MUST_BE_MENDED,
    REASON,
    STOPPED,
    NodeOrder,
)
from feddraw.flower.reconnection import (
    PATIENCE_WITH_REFUSALS,
    Clock,
    MustBeMended,
    Outage,
    Trouble,
    Waiting,
    backoff,
)
from feddraw.flower.site_folder import SiteFolder
from feddraw.flower.supernode import node_key_fingerprint

MOST_STARTS = 5  # of processes that crash one after the other before any was connected
SECONDS_TO_END = 15.0  # for a node to leave the federation; Flower takes at most 5
SECONDS_FOR_APPS_TO_END = 3.0  # after their node
SECONDS_FOR_LAST_LINES = 2.0
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
ENDINGS = {
    FORGOTTEN: "the server has forgotten the node",
    CONNECTION_BROKEN: "its connection is broken",
}


@dataclass(frozen=True)
class NodeEnding:
    """How a node's process ended."""

    code: int  # negative: the signal that killed it
    connected: bool  # at some time
    reason: str = ""  # where a person must do something


class Stopped(BaseException):
    """A signal asks this process to end."""


def keep_running(
    launch: Callable[[bool], NodeEnding],
    clock: Clock,
    delays: Callable[[], Iterator[float]],
    say: Callable[[str], None],
) -> None:
    """Start the node, and start it again, until it is stopped.

    `launch` takes whether the node was connected before, and returns when its process has ended.
    Raises `RunFailed` with the reason where a person must do something.
    """
    connected_before = False
    crashes = 0
    series = delays()
    while True:
        ending = launch(connected_before)
        connected_before = connected_before or ending.connected
        if ending.code == STOPPED:
            return
        if ending.code == MUST_BE_MENDED:
            raise RunFailed(ending.reason)
        if ending.connected:
            series = delays()
        crashes = 0 if connected_before else crashes + 1
        if crashes == MOST_STARTS:
            raise RunFailed(
                f"the node's process crashed {crashes} times before it was connected"
                f" ({_in_words(ending.code)}): the lines above say why"
            )
        delay = next(series)
        say(
            f"The node's process has ended ({_in_words(ending.code)}): it starts again in"
            f" {delay:.0f} s"
        )
        clock.sleep(delay)


def _in_words(code: int) -> str:
    if code in ENDINGS:
        return ENDINGS[code]
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def node_order(
    federation: FederationFile, folder: SiteFolder, node_config: str, port: int
) -> NodeOrder:
    """How a site's node is started, by the operator's file and what is in the site's folder."""
    arguments = ["--superlink", federation.address, "--root-certificates", str(folder.certificate)]
    arguments += ["--auth-supernode-private-key", str(folder.node_key)]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--node-config", node_config]
    return NodeOrder(
        signatures=str(folder.signatures),
        operator=str(folder.operator),
        arguments=arguments,
        superlink=federation.address,
        key_fingerprint=node_key_fingerprint(folder.node_key),
    )


def start_supernode(order: NodeOrder, port: int) -> None:
    """Run a site's node until it is stopped by Ctrl-C or SIGTERM."""
    update_console_handler(colored=os.isatty(2))
    clock = Clock()
    delays = partial(backoff, np.random.default_rng())

    def say(line: str) -> None:
        log(WARNING, line)

    def launch(connected_before: bool) -> NodeEnding:
        waiting = Waiting(clock, delays, Outage(clock, say, "a free port"), connected_before)
        waiting.until_it_succeeds(partial(try_port, port), partial(port_trouble, port))
        return run_process(order, connected_before)

    with signals_raise_stopped():
        try:
            keep_running(launch, clock, delays, say)
        except Stopped:
            pass
        except MustBeMended as trouble:
            raise RunFailed(trouble.reason) from None


def try_port(port: int) -> None:
    """Raise `OSError` where another process listens on this port of the node's own address."""
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("127.0.0.1", port))


def port_trouble(port: int, _error: Exception) -> Trouble:
    in_use = f"port {port} of this machine is in use"
    return Trouble(
        "port",
        f"{in_use}, perhaps by a node that is about to end",
        f"{in_use}: stop the other node or program, or give another --port",
        PATIENCE_WITH_REFUSALS,
    )


def run_process(order: NodeOrder, connected_before: bool) -> NodeEnding:
    """Run the node's process to its end, in a new private folder."""
    with TemporaryDirectory(prefix="feddraw-site-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # Not the module's folder on the path (-P): a file there could be taken for a module.
        command = [sys.executable, "-P", "-m", "feddraw.flower.node_process"]
        with (
            output_without_colours() as output,
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=_environment(folder),
                text=True,
            ) as process,
        ):
            assert process.stdin is not None
            try:
                process.stdin.write(order.in_folder(folder, connected_before).as_line())
                process.stdin.flush()
                code = process.wait()
            except BrokenPipeError:
                code = process.wait()
            except Stopped:
                _end(process)
                raise
            finally:
                end_leftovers(folder, SECONDS_FOR_APPS_TO_END)
        reason = folder / REASON
        return NodeEnding(
            code=code,
            connected=(folder / CONNECTED).exists(),
            reason=reason.read_text() if reason.exists() else "",
        )


@contextmanager
def output_without_colours() -> Iterator[int | None]:
    """Where a node's processes write. All of Flower's colour every line, also for a log file: where
    this process does not write to a terminal, it passes on what they write without the colours.
    """
    if os.isatty(2):
        yield None
        return
    ours, theirs = os.pipe()
    copier = threading.Thread(target=_copy_without_colours, args=[ours], daemon=True)
    copier.start()
    try:
        yield theirs
    finally:
        os.close(theirs)
        copier.join(SECONDS_FOR_LAST_LINES)


def _copy_without_colours(source: int) -> None:
    with open(source, "rb") as lines, suppress(OSError):
        for line in lines:
            sys.stderr.buffer.write(COLOUR.sub(b"", line))
            sys.stderr.buffer.flush()


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()


def end_leftovers(folder: Path, seconds: float) -> None:
    """End the processes of a node's folder that are still there so many seconds after the node.

    Flower asks them to end by a signal that an app does not notice while it waits for its message.
    """
    deadline = time.monotonic() + seconds
    while (left := _processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _processes_of(folder: Path) -> list[int]:
    """Those whose environment names the folder; none where the system does not tell (not Linux)."""
    mark = f"FLWR_HOME={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _environment(folder: Path) -> dict[str, str]:
    environment = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    environment |= os.environ
    # Flower takes an app that lies in its folder under the first 8 digits of the hash for the one
    # that was sent.
    environment["FLWR_HOME"] = str(folder)
    # It starts its own commands by their bare names.
    tools = Path(sys.executable).parent
    environment["PATH"] = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"
    return environment


@contextmanager
def signals_raise_stopped() -> Iterator[None]:
    """Within the block the first Ctrl-C or SIGTERM raises `Stopped`; more change nothing."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
