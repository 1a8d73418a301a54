"""What a Tuesday does to a federation: nodes and servers that are killed and come back, with the
package's own service units as their supervisor.

`make test-federation`; some minutes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from needed import PATIENCE
from test_guide import SITES, Reader, data, guide_lines, pytestmark  # noqa: F401

from feddraw.results.recorded_run import read_run
from service_units import DEPLOYMENT, Service
from test_flower_deployment import script

LOCAL = script()


# --------------------------------------------------------------------------- a node and its server


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    """A federation with TLS and keys, without nginx; nodes are started by the tests."""
    with LOCAL.federation(tmp_path / "federation", behind_nginx=False) as started:
        yield started


def connections(made: Any, name: str = "node0") -> int:
    return int(made.log(name).count("SuperNode ID"))


def wait_for_connections(made: Any, number: int, name: str = "node0") -> None:
    LOCAL.wait_for(
        lambda: connections(made, name) >= number, PATIENCE, f"not connected: {made.log(name)}"
    )


def test_a_node_restarted_within_seconds_of_a_crash_comes_back(made: Any) -> None:
    """It starts while the server still has the old connection, also on a machine on which a start
    takes longer than the server keeps that.
    """
    made.supernode("node0", "partition-id=0")
    wait_for_connections(made, 1)
    crashing = made.processes["node0"]
    (made.folder / "node0.log").rename(made.folder / "crashing.log")
    made.supernode("node0", "partition-id=0", register=False)
    LOCAL.wait_for(
        lambda: "it still has the connection of a node that crashed" in made.log("node0"),
        PATIENCE,
        "the server does not refuse the key",
    )
    os.killpg(crashing.pid, signal.SIGKILL)
    crashing.wait()
    wait_for_connections(made, 1)
    assert re.search(r"Waiting for the server since \d{4}-\d\d-\d\d [\d:]+ UTC", made.log("node0"))


def test_a_node_comes_back_when_its_process_is_killed_and_when_a_server_lost_its_memory(
    made: Any,
) -> None:
    made.supernode("node0", "partition-id=0")
    wait_for_connections(made, 1)
    (process,) = [
        child
        for child in psutil.Process(made.processes["node0"].pid).children()
        if "feddraw.flower.node_process" in child.cmdline()
    ]
    process.kill()
    wait_for_connections(made, 2)
    assert "killed by signal 9" in made.log("node0")

    for pid in LOCAL.descendants([made.processes["superlink"].pid]):
        os.kill(pid, signal.SIGKILL)
    time.sleep(5)
    made.superlink()  # without its database: the key is not registered any more
    LOCAL.wait_for(
        lambda: "the server has forgotten the node" in made.log("node0"),
        PATIENCE,
        made.log("node0"),
    )
    LOCAL.wait_for(
        lambda: made.log("node0").count("does not accept this site's key") > 1, PATIENCE, "no line"
    )
    made.register("node0")
    wait_for_connections(made, 3)
    assert made.processes["node0"].poll() is None  # the hospital has done nothing

    made.processes["node0"].send_signal(signal.SIGTERM)
    assert made.processes["node0"].wait(timeout=PATIENCE) == 0


def test_a_node_ends_with_the_process_that_keeps_it(made: Any) -> None:
    """Killed alone, that process leaves no node behind that nobody supervises."""
    made.supernode("node0", "partition-id=0")
    wait_for_connections(made, 1)
    family = psutil.Process(made.processes["node0"].pid).children(recursive=True)
    made.processes["node0"].kill()
    gone, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert gone
    assert not alive


# ------------------------------------------------------------------------------ the service units


class Machines(Reader):
    """The guide's operator, server and sites, with services in place of terminals."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, LOCAL, "")
        self.services: dict[str, Service] = {}
        self.site_ports = {site: LOCAL.free_port() for site in SITES}

    def follow(self, line: str) -> None:
        if line.startswith("flower-superlink"):
            self.begin("superlink", "feddraw-superlink.service", self.server_paths())
            assert self.services["superlink"].run(self.start_post()) == 0
        elif line.startswith("feddraw site start"):
            for site in SITES:
                self.start_site(line, site)
        elif line.startswith("flwr run"):
            text = (self.server / "run.toml").read_text()
            text = text.replace("resume = false", "resume = true ").replace("= 2\n", "= 3\n", 1)
            (self.server / "run.toml").write_text(text)
            self.begin("run", "feddraw-run.service", self.server_paths())
        elif not line.startswith("feddraw operator sites"):
            super().follow(line)

    def server_paths(self) -> dict[str, str]:
        (self.folder / "state").mkdir(exist_ok=True)
        return {
            "/opt/feddraw/bin": str(Path(sys.executable).parent),
            "/etc/feddraw": str(self.server),
            "/var/lib/feddraw": str(self.folder / "state"),
            "/srv/feddraw": str(self.folder),
            "8000": str(self.superlink_port),
        }

    def is_healthy(self) -> bool:
        """Whether the health unit leaves the SuperLink alone."""
        asked = self.folder / "restart-asked"
        asked.unlink(missing_ok=True)
        action = {"systemctl try-restart feddraw-superlink.service": f"touch {asked}"}
        quickly = {"sleep 10": "sleep 1"}
        Service(
            "feddraw-health.service", self.server_paths() | action | quickly, self.folder
        ).run_once()
        return not asked.exists()

    def start_post(self) -> str:
        text = (DEPLOYMENT / "systemd" / "feddraw-superlink.service").read_text()
        (line,) = re.findall(r"^ExecStartPost=(.*)$", text, re.MULTILINE)
        return str(line).replace("8000", str(self.superlink_port))

    def start_site(self, line: str, site: str) -> None:
        """A person compares the code once; then the unit starts it."""
        folder = self.folder / site
        (folder / "federation.toml").write_bytes(
            (self.folder / "federation" / "federation.toml").read_bytes()
        )
        (folder / "confirmed-code").write_text(f"{self.code}\n")
        paths = {
            "/opt/feddraw/bin": str(Path(sys.executable).parent),
            "/srv/feddraw/North": str(folder),
            "--data /srv/xrays": f"--data {self.folder}/xrays-{site} --port {self.site_ports[site]}",
        }
        (self.folder / f"logs-{site}").mkdir()
        self.begin(site, "feddraw-site.service", paths, self.folder / f"logs-{site}")

    def begin(
        self, name: str, unit: str, paths: dict[str, str], folder: Path | None = None
    ) -> None:
        self.services[name] = Service(unit, paths, folder or self.folder)
        self.services[name].start()

    def stop(self) -> None:
        for service in reversed(self.services.values()):
            service.stop()
        super().stop()


@pytest.fixture
def machines(tmp_path: Path, data: None) -> Iterator[Machines]:  # noqa: F811
    started = Machines(tmp_path)
    yield started
    started.stop()


def container_health(name: str, changes: dict[str, str]) -> int:
    text = (DEPLOYMENT / "container" / name).read_text()
    (line,) = re.findall(r"^  CMD (\[.*\])$", text, re.MULTILINE)
    for before, after in changes.items():
        line = line.replace(before, after)
    _, *arguments = json.loads(line)
    return subprocess.run([sys.executable, *arguments], check=False).returncode


def test_a_federation_of_service_units_survives_kills_of_server_site_and_database_lock(
    machines: Machines,
) -> None:
    for line in guide_lines():
        if line.startswith("flwr run"):
            break
        machines.follow(line)
    sites = {name: machines.services[name] for name in SITES}
    for site in sites.values():
        LOCAL.wait_for(lambda site=site: "SuperNode ID" in site.log, PATIENCE, site.log)
        assert "READY=1" in site.messages()
    assert container_health("site.Containerfile", {"9094": str(machines.site_ports["North"])}) == 0
    server = {"8000": str(machines.superlink_port), "/etc/feddraw": str(machines.server)}
    assert container_health("server.Containerfile", server) == 0

    # A database that is locked for longer than Flower waits: nodes are told 500, and stay.
    with closing(sqlite3.connect(machines.folder / "state" / "superlink.db")) as database:
        database.execute("BEGIN IMMEDIATE")
        LOCAL.wait_for(lambda: "answers 500" in sites["North"].log, PATIENCE, sites["North"].log)
        database.rollback()
    LOCAL.wait_for(lambda: "is over, after" in sites["North"].log, PATIENCE, sites["North"].log)
    # The SuperLink's own SuperExec does not: without it no run begins, and the health check sees it.
    LOCAL.wait_for(lambda: not machines.is_healthy(), PATIENCE, "the health check sees nothing")
    machines.services["superlink"].kill()
    LOCAL.wait_for(machines.is_healthy, PATIENCE, machines.services["superlink"].log)

    machines.follow("flwr run")
    checkpoint = machines.folder / "first-run" / "checkpoint" / "state.safetensors"
    LOCAL.wait_for(checkpoint.is_file, 900, machines.services["run"].log)
    machines.services["superlink"].kill()
    machines.services["run"].restart()  # its unit is PartOf the SuperLink's
    sites["South"].kill()
    LOCAL.wait_for(lambda: machines.services["run"].finished, 1800, machines.services["run"].log)

    assert all(service.starts == 1 for name, service in sites.items() if name != "South")
    assert sites["South"].starts == 2
    assert machines.services["superlink"].starts == 3
    recorded = read_run(machines.folder / "first-run")
    assert len(recorded.rounds) == 3
    assert set(recorded.ledger.clients) == set(SITES)
    assert (machines.folder / "first-run" / "metrics.json").is_file()
    assert any(message == "WATCHDOG=1" for message in sites["North"].messages())
