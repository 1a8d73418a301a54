"""A real federation on this machine, with TLS, keys and signatures: the bits of the serial
engine.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from feddraw.experiment.running import run
from feddraw.results.outcome_settings import dotted_settings
from small import small

EXAMPLE = Path(__file__).parent.parent / "examples" / "flower" / "local_federation.py"
FILES = ("model.safetensors", "weights.csv", "metrics.json")


def script() -> Any:
    spec = importlib.util.spec_from_file_location("local_federation", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(**changes: Any) -> str:
    """The tests' small experiment as a `--run-config`; all of it but what the app's file names goes
    into `set`.
    """
    table = dotted_settings(small(**changes).table())
    named = {"rounds": table.pop("rounds"), "data.name": table.pop("data.name")}
    named |= {f"{part}.name": table.pop(f"{part}.name") for part in ("scenario", "model", "method")}
    others = {
        key: value
        for key, value in table.items()
        if key not in ("engine", "workers") and not isinstance(value, list)
    }
    more = " ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in others.items()
        if value != ""
    )
    quoted = {
        key: f'"{value}"' if isinstance(value, str) else value
        for key, value in (named | {"set": more}).items()
    }
    return " ".join(f"{key}={value}" for key, value in quoted.items())


@pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="no openssl or ssh-keygen"
)
def test_three_registered_nodes_give_the_bits_of_the_serial_engine_and_a_stranger_is_refused(
    tmp_path: Path,
) -> None:
    local = script()
    with local.federation(tmp_path / "federation", behind_nginx=local.NGINX is not None) as made:
        for number in range(3):
            made.supernode(f"node{number}", f"partition-id={number}")
        made.stranger()
        said = made.run(
            f'{settings(rounds=2)} nodes=3 wait=300.0 timeout=300.0 out="run"', timeout=1800
        )
        assert local.REFUSED in made.log("stranger")
        assert "SuperNode ID" not in made.log("stranger")
    assert "round 2/2: C1 0.333  C2 0.333  C3 0.333" in said
    list(run(small(rounds=2), tmp_path / "serial"))
    for name in FILES:
        assert (tmp_path / "federation" / "run" / name).read_bytes() == (
            tmp_path / "serial" / name
        ).read_bytes()
    assert all(process.poll() is not None for process in made.processes.values())


def test_the_example_has_a_node_for_every_client_of_the_scenario_or_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = script()
    assert local.clients("") == 4  # CHM-2
    assert local.clients('scenario.name="CHM-3" rounds=2') == 6
    with pytest.raises(SystemExit, match="2"):
        local.main(["--nodes", "3", "--folder", str(tmp_path / "federation")])
    assert (
        "the run's scenario has 4 clients, so there are 4 nodes, not 3" in capsys.readouterr().err
    )
    assert not (tmp_path / "federation").exists()


def test_the_example_shows_a_runs_lines_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    local = script()
    made = object.__new__(local.Federation)
    made.folder = tmp_path
    made.environment = dict(os.environ)
    command = tmp_path / "flwr"
    command.write_text('#!/bin/sh\necho "server round 1/2"\nread -r _ < go\nexit "$1"\n')
    command.chmod(0o755)
    monkeypatch.setattr(local.sys, "executable", str(tmp_path / "python"))
    os.mkfifo(tmp_path / "go")  # the command goes on when it is written to
    shown: list[str] = []

    def watch() -> None:
        while "server round 1/2" not in "".join(shown):
            shown.append(capsys.readouterr().out)
        (tmp_path / "go").write_text("\n")

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert made.flwr("0", show=True, timeout=60) == "server round 1/2\n"
    watcher.join()
    quiet = threading.Thread(target=lambda: (tmp_path / "go").write_text("\n"))
    quiet.start()
    with pytest.raises(SystemExit, match="server round 1/2"):
        made.flwr("1", timeout=60)
    quiet.join()
    assert capsys.readouterr().out == ""


def test_the_example_does_not_play_hospitals_with_folders(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"follow docs/federation\.md"):
        script().clients('data.name="folder" data.findings="Edema,Pneumonia"')


def test_the_tutorials_federation_and_its_command_in_one_process_are_one_experiment() -> None:
    text = (EXAMPLE.parent.parent.parent / "docs" / "tutorial" / "5-federation.md").read_text()
    (line,) = re.findall(r"^feddraw run .*", text, re.MULTILINE)
    (settings,) = re.findall(r"local_federation\.py .*--run-config '(.*)'", text)
    assert (
        line
        == "feddraw run --method feddraw --scenario CHM-2 --rounds 2 --set policy.cap_times=1.5"
        " --out plain"
    )
    assert settings == 'rounds=2 out="run"'
