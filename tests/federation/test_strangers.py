"""Who gets in: strangers at the door of a real federation, and apps at a site.

`make test-federation`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from needed import LONG, NGINX, PATIENCE, wait_until_connected

from test_flower_deployment import EXAMPLE, FILES, script

LOCAL = script()
pytestmark = [LONG, NGINX]

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "canary"
version = "1.0"
description = "writes a file where it runs"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "canary:server"
clientapp = "canary:client"
[tool.flwr.app.config]
seconds = 0
"""

CODE = """
import time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

HERE = Path({folder!r})
client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    (HERE / "ran-at-the-site").touch()
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    (HERE / "ran-at-the-server").touch()
    time.sleep(context.run_config["seconds"])
    asked = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(asked, timeout=120):
        print("the node says:", reply.error.reason if reply.has_error() else "done", flush=True)
"""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """An app that leaves a file beside itself wherever it runs."""
    app = tmp_path / "canary"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "canary.py").write_text(CODE.format(folder=str(tmp_path)))
    return app


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    """A federation with one node, behind its door."""
    with LOCAL.federation(tmp_path / "federation") as started:
        started.supernode("node0", "partition-id=0")
        wait_until_connected(started, "node0")
        yield started


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_stranger_with_the_address_and_ca_crt_can_neither_list_register_run_nor_stop(
    made: Any, canary: Path, tmp_path: Path
) -> None:
    def refused(*command: str | Path) -> None:
        found = LOCAL.knock(made, *command)
        assert found.returncode, found.stdout + found.stderr
        assert "404" in found.stdout + found.stderr

    key = tmp_path / "own.key"
    kind = ["-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", key]
    subprocess.run(["ssh-keygen", *kind], check=True)
    said = made.flwr(
        "run", canary, LOCAL.NAME, "--run-config", "seconds=60"
    )  # the operator's, under way
    (run,) = re.findall(r"started run (\d+)", said)
    LOCAL.wait_for(
        (tmp_path / "ran-at-the-server").exists, PATIENCE, "the operator's run does not begin"
    )
    (tmp_path / "ran-at-the-server").unlink()
    refused("supernode", "list")
    refused("supernode", "register", key.with_name("own.key.pub"))
    refused("run", canary)
    refused("list")
    refused("stop", run)
    refused("log", run)
    nodes = plain(made.flwr("supernode", "list", LOCAL.NAME, "--format", "json"))
    assert len(re.findall(r'"node-id"', nodes)) == 1
    runs = plain(made.flwr("list", LOCAL.NAME, "--format", "json"))
    assert re.findall(r'"run-id": "(\d+)"', runs) == [run]
    assert '"status": "running"' in runs
    assert not (tmp_path / "ran-at-the-server").exists()
    made.flwr("stop", run, LOCAL.NAME)  # as the operator can


def test_a_stranger_cannot_have_a_node_not_even_without_a_key(made: Any, tmp_path: Path) -> None:
    made.stranger()
    nameless = [
        "--superlink",
        f"127.0.0.1:{made.door}",
        "--root-certificates",
        made.server / "ca.crt",
        "--port",
        LOCAL.free_port(),
    ]
    made.start("nameless", "flower-supernode", *nameless)  # asks to be registered as what it is
    assert made.processes["nameless"].wait(timeout=PATIENCE)
    assert "Exit Code: 305" in made.log("nameless")
    assert made.processes["stranger"].wait(timeout=PATIENCE) == 1
    last = made.log("stranger").partition("feddraw: ")[2].partition("\n")[0]
    assert last.startswith(LOCAL.REFUSED)
    assert "ask the operator to register its public half" in last
    for name in ("stranger", "nameless"):
        assert "SuperNode ID" not in made.log(name)


def test_a_site_refuses_an_app_until_the_operator_has_signed_it_and_again_when_it_is_altered(
    made: Any, canary: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran-at-the-site"

    def run() -> str:
        return plain(made.run("seconds=0", app=canary, timeout=2 * PATIENCE))

    assert (
        "the node says: the site refuses the app: the operator has not signed this bundle" in run()
    )
    assert not ran.exists()
    assert "is refused, and nothing of it is unpacked: the operator has not signed" in made.log(
        "node0"
    )
    assert "Successfully installed" not in made.log("node0")

    made.sign(canary)
    made.invite()
    made.processes["node0"].terminate()
    made.processes["node0"].wait(timeout=PATIENCE)
    made.supernode("node0", "partition-id=0", register=False)  # with the operator's new file
    wait_until_connected(made, "node0")
    assert "the node says: done" in run()
    assert ran.exists()

    ran.unlink()
    with (canary / "canary.py").open("a") as file:
        file.write("# altered\n")
    assert "the operator has not signed this bundle" in run()
    assert not ran.exists()


def test_the_tutorials_federation_gives_the_bits_of_its_command_in_one_process(
    tmp_path: Path,
) -> None:
    """Four nodes for CHM-2's four clients: nobody is left out."""
    said = ["--folder", "federation", "--run-config", 'rounds=2 out="run"', "--stranger"]
    options: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True}
    shown = subprocess.run(
        [sys.executable, EXAMPLE, *said], check=True, timeout=4 * PATIENCE, **options
    ).stdout
    assert "4 SuperNodes started" in shown
    assert shown.count("stranger's flwr") == shown.count(": refused\n") == 3
    one = ["run", "--method", "feddraw", "--scenario", "CHM-2", "--rounds", "2"]
    one += ["--set", "policy.cap_times=1.5", "--out", "plain"]  # the ready app's own limit
    subprocess.run(
        [Path(sys.executable).with_name("feddraw"), *one],
        check=True,
        timeout=2 * PATIENCE,
        **options,
    )
    for name in FILES:
        assert (tmp_path / "federation" / "run" / name).read_bytes() == (
            tmp_path / "plain" / name
        ).read_bytes(), name
