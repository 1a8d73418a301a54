"""A site's node comes back by itself, waits for what will pass, and ends for what a person must
mend. (The same with real processes that are killed: tests/federation/test_restarts.py.)
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr.supernode.fleet_http_client")

import httpx
import numpy as np
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

from feddraw.errors import RunFailed
from feddraw.flower import node_process
from feddraw.flower.node_process import (
    CONNECTED,
    CONNECTION_BROKEN,
    FORGOTTEN,
    MUST_BE_MENDED,
    STOPPED,
    Link,
    NodeOrder,
    lasting_client,
)
from feddraw.flower.node_supervision import (
    MOST_STARTS,
    NodeEnding,
    Stopped,
    end_leftovers,
    keep_running,
    output_without_colours,
    port_trouble,
    signals_raise_stopped,
    try_port,
)
from feddraw.flower.reconnection import (
    LONGEST_DELAY,
    Clock,
    MustBeMended,
    Outage,
    ServerAddress,
    Waiting,
    backoff,
    trouble_of,
)
from feddraw.system.service_manager import ServiceManager

SERVER = ServerAddress("federation.example.org:443", "SHA256:abc")
START = datetime(2026, 11, 17, 8, 0, tzinfo=UTC)
STILL_CONNECTED = json.dumps({"code": 2004, "detail": "Failed to activate SuperNode."})


class FakeTime:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.clock = Clock(
            seconds=lambda: self.passed,
            now=lambda: START + timedelta(seconds=self.passed),
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.passed += seconds


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def lines() -> list[str]:
    return []


def steady_delays() -> Iterator[float]:
    return backoff(np.random.default_rng(0))


def waiting(time: FakeTime, lines: list[str], *, connected_before: bool = False) -> Waiting:
    outage = Outage(time.clock, lines.append, "the server")
    return Waiting(time.clock, steady_delays, outage, connected_before)


def answer(status: int, text: str = "", **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://federation.example.org/v1/fleet/activate-node")
    response = httpx.Response(status, text=text, headers=headers, request=request)
    return httpx.HTTPStatusError(f"status {status}", request=request, response=response)


def failing(time: FakeTime, seconds: float, error: Exception) -> Callable[[], str]:
    """An attempt that fails for so many seconds."""

    def attempt() -> str:
        if time.passed < seconds:
            raise error
        return "connected"

    return attempt


def judge(time: FakeTime) -> Callable[[Exception], Any]:
    return lambda error: trouble_of(error, SERVER, time.clock.now())


# ------------------------------------------------------------------------------------- activation


def test_a_node_restarted_within_seconds_of_a_crash_waits_for_its_old_connection_to_end(
    time: FakeTime, lines: list[str]
) -> None:
    refused = failing(time, 60, answer(412, STILL_CONNECTED))
    assert waiting(time, lines).until_it_succeeds(refused, judge(time)) == "connected"
    assert 60 <= time.passed < 60 + 1.2 * LONGEST_DELAY
    assert lines[0].startswith("Waiting for the server since 2026-11-17 08:00:00 UTC (0 s):")
    assert "SHA256:abc: it still has the connection of a node that crashed" in lines[0]
    assert "or another node runs with this key" in lines[0]
    assert lines[-1] == f"The wait for the server is over, after {time.passed:.0f} s"


def test_a_key_that_nobody_registers_ends_a_new_node_with_what_to_do(
    time: FakeTime, lines: list[str]
) -> None:
    refused = failing(time, 1e9, answer(412, STILL_CONNECTED))
    with pytest.raises(MustBeMended, match="ask the operator to register") as ending:
        waiting(time, lines).until_it_succeeds(refused, judge(time))
    assert "\n" not in ending.value.reason
    assert 60 < time.passed < 150


def test_a_node_that_was_connected_waits_for_days_until_the_operator_has_registered_it_again(
    time: FakeTime, lines: list[str]
) -> None:
    refused = failing(time, 3 * 86400, answer(412, STILL_CONNECTED))
    patient = waiting(time, lines, connected_before=True)
    assert patient.until_it_succeeds(refused, judge(time)) == "connected"
    assert len(lines) < 100  # a line an hour, not one for each of 17,000 attempts
    assert "(71 h)" in lines[-2]


@pytest.mark.parametrize(
    "error",
    [httpx.ConnectError("Connection refused"), httpx.ReadTimeout(""), answer(502), answer(500)],
)
def test_a_server_that_is_away_is_waited_for_without_limit(
    error: Exception, time: FakeTime, lines: list[str]
) -> None:
    away = failing(time, 86400, error)
    assert waiting(time, lines).until_it_succeeds(away, judge(time)) == "connected"
    assert "federation.example.org:443" in lines[0]


def test_a_certificate_that_is_not_accepted_ends_a_new_node_at_once_and_a_known_one_never(
    time: FakeTime, lines: list[str]
) -> None:
    error = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired")
    with pytest.raises(MustBeMended, match="ask the operator whether the certificate has expired"):
        waiting(time, lines).until_it_succeeds(failing(time, 10, error), judge(time))
    assert time.passed == 0
    known = waiting(time, lines, connected_before=True)
    assert known.until_it_succeeds(failing(time, 1e4, error), judge(time)) == "connected"


def test_a_wrong_clock_is_named_with_how_wrong_it_is(time: FakeTime, lines: list[str]) -> None:
    ahead = {"date": format_datetime(START + timedelta(minutes=20), usegmt=True)}
    refused = failing(time, 1e9, answer(401, **ahead))
    with pytest.raises(MustBeMended, match="set the clock of this machine"):
        waiting(time, lines).until_it_succeeds(refused, judge(time))
    assert "refuses this site's signature; this clock is 20 min behind" in lines[0]


@pytest.mark.parametrize("error", [answer(404, "<html>"), answer(407), ValueError("no protobuf")])
def test_an_address_where_something_else_answers_is_named(
    error: Exception, time: FakeTime, lines: list[str]
) -> None:
    with pytest.raises(MustBeMended, match="ask the operator for the address"):
        waiting(time, lines).until_it_succeeds(failing(time, 1e9, error), judge(time))


def test_patience_with_a_refusal_begins_with_the_refusal_and_not_with_the_outage_before(
    time: FakeTime, lines: list[str]
) -> None:
    """A server that was away for a day comes back, and still has the node's old connection."""

    def attempt() -> str:
        if time.passed < 86400:
            raise httpx.ConnectError("Connection refused")
        return failing(time, 86400 + 60, answer(412, STILL_CONNECTED))()

    assert waiting(time, lines).until_it_succeeds(attempt, judge(time)) == "connected"
    assert sum("does not accept this site's key" in line for line in lines) == 1
    assert all("since 2026-11-17 08:00:00 UTC" in line for line in lines[:-1])


def test_a_log_file_has_no_colours_and_no_line_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with output_without_colours() as output:
        code = r"print('\x1b[92mINFO \x1b[0m:      Connected'); print('last', end='')"
        subprocess.run([sys.executable, "-c", code], stdout=output, check=True)
    assert capfd.readouterr().err == "INFO :      Connected\nlast"


def test_attempts_become_rarer_and_two_sites_do_not_come_back_together() -> None:
    one = [delay for delay, _ in zip(backoff(np.random.default_rng(1)), range(20), strict=False)]
    other = [delay for delay, _ in zip(backoff(np.random.default_rng(2)), range(20), strict=False)]
    for delay, usual in zip(one[:4], [1, 2, 4, 8], strict=True):
        assert 0.8 * usual <= delay <= 1.2 * usual
    assert max(one) <= 1.2 * LONGEST_DELAY
    assert all(mine != theirs for mine, theirs in zip(one, other, strict=True))


# ------------------------------------------------------------------------------ while it is active


class Forgotten(Exception):
    """In place of the end of the process."""


@pytest.fixture
def client(
    time: FakeTime, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A node's client whose server answers with `client.answers`, one after the other."""
    order = NodeOrder(
        signatures="",
        operator="",
        arguments=[],
        superlink=SERVER.superlink,
        key_fingerprint=SERVER.key_fingerprint,
        folder=str(tmp_path),
    )

    def forgotten(code: int) -> None:
        assert code == FORGOTTEN
        raise Forgotten

    monkeypatch.setattr(node_process.os, "_exit", forgotten)
    link = Link(order, waiting(time, lines), ServiceManager(None), time.clock)
    made = lasting_client(link)("https://federation.example.org")
    answers: list[Any] = []

    def respond(request: httpx.Request) -> httpx.Response:
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return httpx.Response(given[0], content=given[1], request=request)

    made._client = httpx.Client(transport=httpx.MockTransport(respond))
    made.answers = answers  # type: ignore[attr-defined]
    yield made
    made._client.close()


ALIVE = (200, b"\x08\x01")  # of a heartbeat: success
NOT_KNOWN = (200, b"")


def test_activation_goes_on_until_the_server_lets_the_node_in_and_says_so(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(node_process, "log", lambda _, line, *words: logged.append(line % words))
    client.answers += [httpx.ConnectError("refused"), (502, b""), (412, STILL_CONNECTED.encode())]
    client.answers.append((200, b"\x08\x2a"))
    assert client.ActivateNode(ActivateNodeRequest()).node_id == 42
    assert (tmp_path / CONNECTED).exists()
    assert f"Connected to {SERVER.superlink}: this node waits for runs" in logged[-1]


@pytest.mark.parametrize("answers", [[(401, b"")] * 2, [NOT_KNOWN]])
def test_a_server_that_has_forgotten_the_node_ends_its_process_to_start_anew(
    answers: list[Any], client: Any
) -> None:
    client.answers += answers
    with pytest.raises(Forgotten):
        client.SendNodeHeartbeat(SendNodeHeartbeatRequest())


def test_one_signature_that_came_too_late_does_not_end_the_node(client: Any) -> None:
    client.answers += [(401, b""), ALIVE]
    assert client.SendNodeHeartbeat(SendNodeHeartbeatRequest()).success


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_in_trouble_is_asked_again_by_flower_and_does_not_end_heartbeats_for_good(
    status: int, client: Any, lines: list[str]
) -> None:
    """Flower repeats transport errors; after a 500 it would stop its heartbeats or its loop."""
    client.answers += [(status, b""), (status, b"")]
    with pytest.raises(httpx.TransportError):
        client.SendNodeHeartbeat(SendNodeHeartbeatRequest())
    with pytest.raises(httpx.TransportError):
        client.PullMessages(PullMessagesRequest())
    assert f"answers {status}" in lines[0]
    assert len(lines) == 1


def test_flowers_lines_without_a_reason_are_left_out_and_others_stay() -> None:
    def shown(message: str) -> bool:
        record = logging.LogRecord("flwr", logging.WARNING, "", 0, message, (), None)
        return node_process.without_flowers_own_words(record)

    assert not shown("Connection attempt failed, retrying in %.2f seconds")
    assert not shown("Connection successful after %.2f seconds and %s tries.")
    assert shown("SSL/TLS handshake error detected.")


def test_a_run_that_has_ended_stays_flowers_403(client: Any) -> None:
    client.answers.append((403, b""))
    with pytest.raises(httpx.HTTPStatusError):
        client.PullMessages(PullMessagesRequest())


# ----------------------------------------------------------------------------- the node's processes


def run_endings(time: FakeTime, lines: list[str], *endings: NodeEnding) -> list[bool]:
    """Let processes end like this, one after the other; what each was told: connected before?"""
    told = []
    left = list(endings)

    def launch(connected_before: bool) -> NodeEnding:
        told.append(connected_before)
        return left.pop(0)

    keep_running(launch, time.clock, steady_delays, lines.append)
    assert not left
    return told


STOP = NodeEnding(STOPPED, connected=True)


@pytest.mark.parametrize("code", [FORGOTTEN, CONNECTION_BROKEN, -9, 1])
def test_a_process_that_was_connected_starts_again_and_knows_it(
    code: int, time: FakeTime, lines: list[str]
) -> None:
    endings = [NodeEnding(code, connected=True)] * 30
    assert run_endings(time, lines, *endings, STOP) == [False] + [True] * 30
    assert len(lines) == 30
    assert time.passed < 40  # each was connected: no growing delays


def test_a_node_that_crashes_at_every_start_ends_with_a_line(
    time: FakeTime, lines: list[str]
) -> None:
    endings = [NodeEnding(-11, connected=False)] * MOST_STARTS
    with pytest.raises(RunFailed, match=r"crashed 5 times .*killed by signal 11"):
        run_endings(time, lines, *endings)


def test_what_a_person_must_mend_ends_the_node_with_its_reason(
    time: FakeTime, lines: list[str]
) -> None:
    ending = NodeEnding(MUST_BE_MENDED, connected=False, reason="register the key")
    with pytest.raises(RunFailed, match=r"^register the key$"):
        run_endings(time, lines, ending)
    assert lines == []


def test_a_port_in_use_is_waited_for_and_then_named(time: FakeTime, lines: list[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(MustBeMended, match=f"port {port} .* give another --port"):
            waiting(time, lines).until_it_succeeds(
                partial(try_port, port), partial(port_trouble, port)
            )
    try_port(port)


def test_a_signal_stops_the_node_and_a_second_one_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with signals_raise_stopped():
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_app_that_does_not_notice_the_end_of_its_node_is_ended(tmp_path: Path) -> None:
    apps = []
    for name in ("ended", "running"):
        environment = {**os.environ, "FLWR_HOME": str(tmp_path / name)}
        command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
        app = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        assert app.stdout is not None
        app.stdout.readline()  # it has begun
        apps.append(app)
    of_the_node, of_another = apps
    end_leftovers(tmp_path / "ended", seconds=0.2)
    assert of_the_node.wait(timeout=20) == -signal.SIGKILL
    assert of_another.poll() is None
    of_another.kill()
    of_another.communicate()
    of_the_node.communicate()


# ------------------------------------------------------------------------------------- its reports


def test_the_service_manager_hears_how_the_node_is_and_apps_do_not_inherit_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        manager = ServiceManager.of_this_process()
        assert "NOTIFY_SOCKET" not in os.environ
        manager.ready()
        manager.status("Waiting for the server")
        manager.alive()
        heard = [listener.recv(100).decode() for _ in range(3)]
    assert heard == ["READY=1", "STATUS=Waiting for the server", "WATCHDOG=1"]
    manager.alive()  # nobody listens any more: no error


def test_a_service_manager_that_does_not_read_its_messages_holds_nobody_up(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        manager = ServiceManager(address)
        sender = threading.Thread(
            target=lambda: [manager.alive() for _ in range(2000)], daemon=True
        )
        sender.start()
        sender.join(timeout=20)
        assert not sender.is_alive()


def test_lines_of_several_threads_are_those_of_one_outage(time: FakeTime, lines: list[str]) -> None:
    outage = Outage(time.clock, lines.append, "the server")
    trouble = trouble_of(httpx.ConnectError("refused"), SERVER, START)
    threads = [threading.Thread(target=outage.lasts, args=[trouble]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines) == 1
