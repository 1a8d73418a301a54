"""Service units and container files of the package: every command and option in them exists.
(Units are started, killed and restarted in tests/federation/test_restarts.py.)
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest
import typer

pytest.importorskip("flwr.superlink")

from feddraw.cli import app
from feddraw.flower.settings import FlowerSettings
from service_units import DEPLOYMENT, UNITS, read_unit

SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
CONTAINERS = sorted(path.name for path in (DEPLOYMENT / "container").iterdir())
BIN = "/opt/feddraw/bin/"
SYSTEM = {"/usr/bin/curl", "/usr/bin/test", "/bin/sh"}


def commands_of_packages() -> set[str]:
    return {entry.name for entry in metadata.entry_points(group="console_scripts")}


def check_options(words: list[str]) -> None:
    """Fail where a command does not have an option that it is given."""
    given = {word for word in words if word.startswith("--")}
    if words[:3] == ["feddraw", "site", "start"]:
        group = typer.main.get_command(app)
        context = click.Context(group)
        for name in words[1:3]:
            group = group.get_command(context, name)  # type: ignore[attr-defined]
        known = {option for parameter in group.params for option in parameter.opts}
    else:
        tool = Path(sys.executable).with_name(words[0])
        sub = words[1:2] if words[0] == "flwr" else []
        shown = subprocess.run(
            [tool, *sub, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={"COLUMNS": "200"},
        )
        known = set(re.findall(r"--[a-z-]+", shown.stdout))
    assert given <= known, (words[0], given - known)


def entrypoint(text: str) -> list[str]:
    (line,) = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    return [str(word) for word in json.loads(line)]


@pytest.mark.parametrize("name", SERVICES)
def test_a_unit_starts_commands_that_exist_with_options_that_they_have(name: str) -> None:
    unit = read_unit((UNITS / name).read_text())
    for line in unit["ExecStart"] + unit.get("ExecStartPost", []):
        tool, *rest = shlex.split(line)
        if tool in SYSTEM:
            continue
        assert tool.startswith(BIN), tool
        assert tool.removeprefix(BIN) in commands_of_packages()
        check_options([tool.removeprefix(BIN), *rest])


@pytest.mark.parametrize("name", SERVICES)
def test_a_unit_that_stays_is_restarted_for_ever(name: str) -> None:
    unit = read_unit((UNITS / name).read_text())
    if name == "feddraw-health.service":
        return
    assert unit["Restart"][0] in ("always", "on-failure")
    assert unit["StartLimitIntervalSec"] == ["0"]  # or systemd gives up after five failures


def test_the_run_unit_looks_for_the_file_that_ends_the_run_in_the_folder_of_run_toml() -> None:
    unit = read_unit((UNITS / "feddraw-run.service").read_text())
    (out,) = re.findall(r'^out = "(.*?)"', (DEPLOYMENT / "run.toml").read_text(), re.MULTILINE)
    assert unit["ConditionPathExists"] == [f"!{out}/metrics.json"]
    assert unit["ExecStart"][-1] == f"/usr/bin/test -f {out}/metrics.json"
    assert FlowerSettings(out=out, resume=True).resume


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_reads_the_units_without_a_complaint(tmp_path: Path) -> None:
    for path in UNITS.iterdir():
        text = path.read_text().replace(BIN, f"{Path(sys.executable).parent}/")
        (tmp_path / path.name).write_text(text)
    said = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not [line for line in said.stderr.splitlines() if "feddraw-" in line]


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_starts_what_the_unit_starts_and_its_health_check_is_a_program(
    name: str,
) -> None:
    text = (DEPLOYMENT / "container" / name).read_text()
    words = entrypoint(text)
    assert words[0] in commands_of_packages()
    check_options(words)
    unit = {"site": "feddraw-site", "server": "feddraw-superlink"}[name.split(".", maxsplit=1)[0]]
    started = read_unit((UNITS / f"{unit}.service").read_text())["ExecStart"][0]
    started = started.removeprefix(BIN)
    if unit == "feddraw-site":
        started = started.replace("/srv/feddraw/North", "/site").replace("/srv/xrays", "/images")
    assert " ".join(words) == started
    (check,) = re.findall(r"^  CMD (\[.*\])$", text, re.MULTILINE)
    tool, option, code = json.loads(check)
    assert (tool, option) == ("python", "-c")
    ast.parse(code)
