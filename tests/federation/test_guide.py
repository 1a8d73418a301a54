"""The operator's guide, followed line by line on this machine: docs/federation.md, "Three sites,
step by step". Its commands are read from the page.

`make test-federation`; some minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from needed import LONG, NGINX, PATIENCE

from feddraw.results.recorded_run import read_run
from test_flower_deployment import script
from website import miniatures
from website.blocks import blocks, joined

pytestmark = [LONG, NGINX]

ROOT = Path(__file__).parent.parent.parent
SITES = ("North", "South", "West")
# What a reader does in another way on this machine, which has neither systemd nor a second machine.
ELSEWHERE = (
    "python -m venv",
    "pip ",
    "apt ",
    "ln -s",
    "nginx -t",
    "ssh ",
    "scp ",
    "cd ",
    "export ",
)
SERVERS = ("flower-superlink", "nginx -c", "feddraw site start")


def guide_lines() -> list[str]:
    """The commands of the section, in their order."""
    page = (ROOT / "docs" / "federation.md").read_text()
    section = page[page.index("## Three sites, step by step") : page.index("## A site without")]
    lines = []
    for block in blocks(section):
        if block.language == "sh":
            lines += [line.partition("  #")[0].strip() for line in joined(block.text)]
    return [line for line in lines if line]


class Reader:
    """Somebody who follows the guide: operator, server and three sites in one folder."""

    def __init__(self, folder: Path, local: Any, options: str) -> None:
        self.folder = folder
        self.local = local
        self.options = options  # more words for `feddraw operator init`
        self.rounds = 1 if "--secure" in options else 2  # a secure round is many messages
        self.server = folder / "etc"  # the guide's /etc/feddraw
        self.address = f"localhost:{local.free_port()}"
        self.superlink_port = local.free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.code = ""
        tools = Path(sys.executable).parent
        self.environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}:/usr/sbin",
            "FLWR_HOME": str(self.server / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def follow(self, line: str) -> None:
        """Type a line of the guide, and see that it does what the guide says."""
        if line.startswith("scp "):
            self.copy_server_folder()
        if line.startswith(ELSEWHERE):
            return
        line = self.adapted(line)
        if line.startswith("feddraw site start"):
            for site in SITES:
                self.start_site(line, site)
        elif line.startswith(SERVERS):
            self.start(line.split()[0], line)
        else:
            printed = self.shell(line)
            self.look_at(line, printed)

    def adapted(self, line: str) -> str:
        """The line with this machine's ports and folders."""
        line = line.replace("--address federation.example.org", f"--address {self.address}")
        line = line.replace("https://federation.example.org", f"https://{self.address}")
        line = line.replace("/etc/feddraw", str(self.server))
        line = line.replace("/var/lib/feddraw", str(self.folder / "database"))
        line = line.replace("--port 8000", f"--port {self.superlink_port}")
        line = re.sub(r"(\w+)\.site\.toml", r"\1/\1.site.toml", line)
        if line.startswith("feddraw operator init"):
            line += f" --server-folder {self.server} {self.options}"
        return line

    def copy_server_folder(self) -> None:
        """In place of scp; ports that are free here, on loopback only, and a small run."""
        shutil.copytree(self.folder / "federation" / "server", self.server)
        port = self.address.partition(":")[2]
        changes = {
            "nginx.conf": {
                "127.0.0.1:8000": f"127.0.0.1:{self.superlink_port}",
                f"listen {port} ssl": f"listen 127.0.0.1:{port} ssl",
            },
            "nginx-alone.conf": {"daemon off;": "user root;\ndaemon off;"},
            "flwr/config.toml": {"127.0.0.1:8000": f"127.0.0.1:{self.superlink_port}"},
            "run.toml": {
                "rounds = 15": f"rounds = {self.rounds}",
                "data.size = 224": "data.size = 32",
                "Edema,Cardiomegaly": "Atelectasis,Edema",
                "/srv/feddraw/first-run": str(self.folder / "first-run"),
            },
        }
        if os.geteuid() != 0:
            del changes["nginx-alone.conf"]
        for name, words in changes.items():
            file = self.server / name
            text = file.read_text()
            for before, after in words.items():
                assert text.count(before) == 1, (name, before)
                text = text.replace(before, after)
            file.write_text(text)

    def shell(self, line: str) -> str:
        folder = self.server if self.server.exists() else self.folder
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    def look_at(self, line: str, printed: str) -> None:
        if line.startswith("feddraw operator invite"):
            (self.code,) = re.findall(
                r"^ *((?:[0-9a-f]{4}-){9}[0-9a-f]{4})$", printed, re.MULTILINE
            )
        elif line.startswith("curl"):
            assert printed == "404"
        elif line.startswith("feddraw operator sites"):
            assert all(site in printed for site in SITES)
        elif line.startswith("flwr run"):
            for number in range(1, self.rounds + 1):
                assert f"server round {number}/{self.rounds}:" in printed, printed

    def start(self, name: str, line: str) -> None:
        log = (self.folder / f"{name}.log").open("wb")
        self.processes[name] = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.server if name in ("flower-superlink", "nginx") else self.folder,
            env=self.environment,
            start_new_session=True,
        )
        ports = {"flower-superlink": self.superlink_port, "nginx": self.address.partition(":")[2]}
        if name in ports:
            self.local.wait_for(
                lambda: self.local.answers(int(ports[name])), PATIENCE, f"no {name}"
            )

    def start_site(self, line: str, site: str) -> None:
        line = line.replace("federation.toml", "federation/federation.toml")
        line = line.replace("--site North", f"--site {site}")
        line = line.replace("/srv/xrays", f"xrays-{site}")
        port = self.local.free_port()
        self.start(site, f"{line} --confirm {self.code} --port {port}")

    def stop(self) -> None:
        self.local.Federation.stop(self)


@pytest.fixture
def data(tmp_path: Path) -> None:
    """A folder of images for each site."""
    dataset = miniatures.phantoms(90)
    names = [f"images/{number:04d}.png" for number in range(90)]
    for site in SITES:
        folder = tmp_path / f"xrays-{site}"
        miniatures.write_images(dataset, folder, names)
        rows = [
            [name, f"{site}{number // 2}", *map(int, row[:2])]
            for number, (name, row) in enumerate(zip(names, dataset.labels.values, strict=True))
        ]
        miniatures.write_table(
            folder / "labels.csv", ["path", "patient", "Atelectasis", "Edema"], rows
        )


@pytest.fixture
def reader(tmp_path: Path, data: None, request: pytest.FixtureRequest) -> Iterator[Reader]:
    made = Reader(tmp_path, script(), request.param)
    yield made
    made.stop()


@pytest.mark.parametrize("reader", ["", "--secure"], indirect=True)
def test_the_guide_leads_to_a_run_of_three_sites_whose_images_are_their_own(
    reader: Reader,
) -> None:
    lines = guide_lines()
    for needed in (*ELSEWHERE, *SERVERS, "feddraw operator init", "flwr run"):
        assert any(line.startswith(needed) for line in lines), needed
    began = time.monotonic()
    for line in lines:
        reader.follow(line)
        print(f"{time.monotonic() - began:6.1f} s  {line}")
    recorded = read_run(reader.folder / "first-run")
    assert list(recorded.ledger.clients) == list(SITES)
    assert recorded.ledger.counted.sum(axis=0).tolist() == [reader.rounds] * 3
    assert (reader.folder / "first-run" / "model.safetensors").exists()
