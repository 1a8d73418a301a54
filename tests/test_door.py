"""The server's door: nginx passes on what registered nodes need, and nothing else that a stranger
asks for.
"""

from __future__ import annotations

import http.client
import inspect
import re
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.supernode.fleet_http_client import FleetHttpClient

import feddraw
from feddraw.flower.operator_folder import OperatorFolder
from test_flower_deployment import script

LOCAL = script()
TEMPLATE = (Path(feddraw.__file__).parent / "flower" / "deployment" / "nginx.conf").read_text()
PASSED = re.findall(r"location = (\S+)", TEMPLATE)


def test_the_routes_are_those_of_flowers_own_client_without_registering() -> None:
    known = set(re.findall(r'path="(/v1/fleet/[a-z-]+)"', inspect.getsource(FleetHttpClient)))
    assert set(PASSED) == known - {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert len(PASSED) == len(set(PASSED)) == 10


def test_every_route_leads_to_itself() -> None:
    assert re.findall(r"location = (\S+) +\{ proxy_pass https://superlink(\S+); \}", TEMPLATE) == [
        (path, path) for path in PASSED
    ]


def test_a_piece_of_a_model_passes() -> None:
    (megabytes,) = re.findall(r"client_max_body_size (\d+)m;", TEMPLATE)
    assert int(megabytes) * 2**20 > 2 * FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE


def operators_rules(folder: Path, port: int) -> str:
    """The file that `feddraw operator init` writes for a server at this port of this machine."""
    operator = OperatorFolder(folder / "operator")
    LOCAL.make_operator(operator, port)
    return (operator.server / "nginx.conf").read_text()


def test_the_example_uses_the_operators_file_with_its_own_ports(tmp_path: Path) -> None:
    rules = operators_rules(tmp_path, 4433)
    text = LOCAL.door(rules, 4433, 8765)
    assert "server 127.0.0.1:8765;" in text
    assert "listen 127.0.0.1:4433 ssl;" in text
    assert "/etc/feddraw" not in text
    assert text.count("proxy_pass") == TEMPLATE.count("proxy_pass")
    with pytest.raises(SystemExit, match="listen 4433 ssl"):
        LOCAL.door(rules.replace("listen 4433", "listen 444"), 4433, 8765)


def test_every_value_that_the_operator_must_change_is_marked(tmp_path: Path) -> None:
    marked = [line for line in TEMPLATE.splitlines() if re.search(r"; +# <-", line)]
    text = LOCAL.door(operators_rules(tmp_path, 4433), 4433, 8765)
    assert set(marked) == set(TEMPLATE.splitlines()) - set(text.splitlines())


def test_where_nginx_is_missing_the_example_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOCAL, "NGINX", None)
    with pytest.raises(SystemExit, match="nginx is not installed: apt install nginx"):
        LOCAL.Federation(tmp_path / "federation")
    assert not (tmp_path / "federation").exists()


# ------------------------------------------------------------------------------------- a real nginx


@dataclass
class Door:
    port: int
    certificates: Path  # the folder with the authority's
    seen: list[tuple[str, int]]  # what came through: path, bytes

    def ask(self, path: str, method: str = "POST", body: bytes = b"") -> int:
        trust = ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))
        asked = http.client.HTTPSConnection("127.0.0.1", self.port, context=trust, timeout=20)
        try:
            asked.putrequest(method, path)  # exactly as it is written here
            asked.putheader("Content-Length", str(len(body)))
            asked.endheaders(body)
            return asked.getresponse().status
        finally:
            asked.close()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """nginx with the operator's file, before something that takes anything."""
    if LOCAL.NGINX is None:
        pytest.skip("no nginx on this machine: the door is only read, not tried")
    folder = tmp_path_factory.mktemp("door")
    seen: list[tuple[str, int]] = []

    class Everything(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append((self.path, len(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    door = LOCAL.free_port()
    operator = OperatorFolder(folder / "operator")
    LOCAL.make_operator(operator, door)
    behind = ThreadingHTTPServer(("127.0.0.1", 0), Everything)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(operator.server / "server.pem", operator.server / "server.key")
    behind.socket = context.wrap_socket(behind.socket, server_side=True)
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    made = LOCAL.Federation.__new__(
        LOCAL.Federation
    )  # its nginx only, without signing and SuperLink
    made.folder = folder
    made.port = behind.server_port
    made.door = door
    made.processes = {}
    made.environment = {"PATH": "/usr/sbin:/usr/bin:/bin"}
    try:
        made.nginx()
        yield Door(made.door, operator.server, seen)
    finally:
        made.stop()
        behind.shutdown()
        behind.server_close()


@pytest.mark.parametrize("path", PASSED)
def test_what_a_node_needs_passes_with_a_whole_piece_of_a_model(opened: Door, path: str) -> None:
    size = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 2**20
    assert opened.ask(path, body=bytes(size)) == 200
    assert opened.seen.pop() == (path, size)


def strangers_paths() -> list[str]:
    """All routes of the SuperLink's one port but those that nodes need."""
    from flwr.supercore.routers.runtime.router import router as runtime
    from flwr.superlink.routers.control.router import router as control
    from flwr.superlink.routers.fleet.router import router as fleet

    routes = {route.path for part in (control, runtime, fleet) for route in part.routes}  # type: ignore[attr-defined]
    return sorted(routes - set(PASSED))


def test_no_other_route_of_flowers_passes(opened: Door) -> None:
    paths = strangers_paths()
    assert {"/v1/control/list-nodes", "/v1/control/start-run", "/v1/control/stop-run"} <= set(paths)
    assert "/v1/fleet/register-node" in paths
    assert {opened.ask(path) for path in paths} == {404}
    assert opened.seen == []


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/openapi.json",
        "/v1/fleet/",
        "/v1/fleet/activate-node/",
        "/v1/fleet/activate-node/../register-node",
        "/v1/fleet/%72egister-node",
        "/V1/control/list-nodes",
        "/v1/control/list-nodes?x=/v1/fleet/activate-node",
        "/v1/control/list-nodes%3f/v1/fleet/activate-node",
        "/v1/fleet/activate-node%2f..%2f..%2fcontrol/list-nodes",
    ],
)
def test_no_trick_with_a_path_passes(opened: Door, path: str) -> None:
    assert opened.ask(path) in (400, 404)
    assert opened.seen == []


def test_a_path_that_only_leads_to_a_nodes_route_arrives_as_that_route(opened: Door) -> None:
    assert opened.ask("/v1/control/list-nodes/../../fleet//activate-node") == 200
    assert opened.seen.pop() == ("/v1/fleet/activate-node", 0)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_only_post_passes(opened: Door, method: str) -> None:
    assert opened.ask("/v1/fleet/activate-node", method) == 405
    assert opened.seen == []


def test_a_flood_is_cut_off(opened: Door) -> None:
    assert opened.ask("/v1/fleet/push-object", body=bytes(17 * 2**20)) == 413
    assert opened.seen == []
