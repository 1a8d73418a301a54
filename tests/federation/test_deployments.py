"""Real federations on this machine, killed, starved and interrupted.

`make test-federation`; many minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from needed import LONG, PATIENCE, wait_until_connected
from safetensors.numpy import load_file

from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import run
from feddraw.federation import Federation, federate
from feddraw.system.file_reading import read_csv, read_json
from small import small
from test_flower_deployment import EXAMPLE, FILES, script, settings
from test_lost_updates import Losing

pytestmark = LONG


def expect_bits(folder: Path, reference: Path, **changes: Any) -> None:
    list(run(small(**changes), reference))
    for name in FILES:
        assert (folder / name).read_bytes() == (reference / name).read_bytes(), name


def nodes(made: Any, count: int = 3) -> None:
    names = [f"node{number}" for number in range(count)]
    for number, name in enumerate(names):
        made.supernode(name, f"partition-id={number}")
    wait_until_connected(made, *names)


def test_client_memory_crosses_rounds_and_processes(tmp_path: Path) -> None:
    """Every round is a new process at the node: what SCAFFOLD remembers lies in the site's
    folder.
    """
    with script().federation(tmp_path / "federation", secure=False) as made:
        nodes(made)
        made.run(f'{settings(rounds=2, method="scaffold")} nodes=3 out="run"', timeout=1800)
    expect_bits(tmp_path / "federation" / "run", tmp_path / "serial", rounds=2, method="scaffold")


def test_a_node_killed_in_mid_round_is_missing_and_the_round_goes_on(tmp_path: Path) -> None:
    with script().federation(tmp_path / "federation", secure=False) as made:
        nodes(made)

        def kill_when_training() -> None:
            while "ClientApp" not in made.log("node2") and "clientapp" not in made.log("node2"):
                time.sleep(0.1)
            os.killpg(made.processes["node2"].pid, signal.SIGKILL)

        threading.Thread(target=kill_when_training, daemon=True).start()
        made.run(f'{settings(rounds=2)} nodes=2 timeout=240.0 out="run"', timeout=1800)
    status = {
        (line["round"], line["client"]): line["status"]
        for line in read_csv(made.folder / "run" / "weights.csv")
    }
    assert [status[r, c] for r in "01" for c in ("C1", "C2")] == ["weighted"] * 4
    assert "missing" in {state for (round, _), state in status.items() if round == "0"}


@pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="no openssl or ssh-keygen"
)
def test_a_node_killed_in_training_and_restarted_goes_on_from_the_memory_that_counted(
    tmp_path: Path,
) -> None:
    """With its key it keeps its id.

    The bits are those of a run in which the same updates are lost on their way.
    """
    local, experiment = script(), {"rounds": 4, "method": "scaffold"}
    with local.federation(tmp_path / "federation") as made:
        nodes(made)
        ledger = made.folder / "run" / "weights.csv"

        def kill_in_the_second_round() -> None:
            local.wait_for(
                (made.folder / "run" / "checkpoint" / "state.safetensors").is_file, 900, "no round"
            )
            began = made.log("node2").count("Received")
            while made.log("node2").count("Received") == began:
                time.sleep(0.05)
            time.sleep(3)  # its app is under way, and outlives it: it may even write its memory
            os.killpg(made.processes["node2"].pid, signal.SIGKILL)
            made.processes["node2"].wait()
            while (
                made.processes["node2"].poll() is not None
            ):  # its key is in use until Flower has missed it
                made.supernode("node2", "partition-id=2", register=False)
                time.sleep(30)

        threading.Thread(target=kill_in_the_second_round, daemon=True).start()
        made.run(f'{settings(**experiment)} nodes=3 timeout=120.0 out="run"', timeout=1800)
    counted = {
        (int(line["round"]), line["client"])
        for line in read_csv(ledger)
        if line["status"] == "weighted"
    }
    assert len(counted) < 12
    assert (0, "C3") in counted
    assert any(round > 1 for round, client in counted if client == "C3")
    setup = prepare(small(**experiment))
    engine = Losing(
        setup.trainer, lambda round, client: (round, setup.clients[client]) not in counted
    )
    federation = Federation(
        setup.method, engine, setup.clients, rounds=4, seed=setup.experiment.seed
    )
    *_, last = federate(federation, setup.initial)
    kept = load_file(made.folder / "run" / "model.safetensors")
    assert all(
        kept[name].tobytes() == array.tobytes() for name, array in last.model.arrays().items()
    )


@pytest.mark.parametrize(
    ("secure", "resumed"), [(True, "resume=true"), (False, "resume=true rebind=true")]
)
def test_a_server_killed_between_rounds_and_restarted_gives_the_same_bits(
    secure: bool, resumed: str, tmp_path: Path
) -> None:
    """Registered keys keep their names; nodes without keys have new ids, and the operator says that
    they are known.
    """
    local, folder = script(), tmp_path / "federation"
    how = {"secure": secure, "behind_nginx": local.NGINX is not None}
    said = f'{settings(rounds=3, method="scaffold")} nodes=3 out="run"'

    def run_and_lose() -> None:
        with pytest.raises(SystemExit):
            made.run(said, timeout=1800)

    with local.federation(folder, **how) as made:
        nodes(made)
        threading.Thread(target=run_and_lose, daemon=True).start()
        local.wait_for(
            (folder / "run" / "checkpoint" / "state.safetensors").is_file,
            900,
            "no round was finished",
        )
        for process in local.descendants(
            [made.processes["superlink"].pid]
        ):  # as a machine takes them all with it
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    with local.federation(folder, **how) as made:
        nodes(made)
        log = made.run(f"{said} {resumed}", timeout=1800)
    assert (folder / "run" / "model.safetensors").is_file(), log
    expect_bits(folder / "run", tmp_path / "serial", rounds=3, method="scaffold")


def test_too_few_nodes_are_a_clear_line_and_not_a_wait_for_ever(tmp_path: Path) -> None:
    with script().federation(tmp_path / "federation", secure=False) as made:
        nodes(made, 1)
        said = made.run(f'{settings(rounds=1)} nodes=3 wait=15.0 out="run"', timeout=1800)
        command = [sys.executable, "-m", "feddraw", "operator", "sites", "--json"]
        listed = subprocess.run(
            command, capture_output=True, check=True, env=made.environment, text=True
        )
    assert "only 1 of 3 nodes were connected within 15 s" in said
    assert "Traceback" not in said
    reason = read_json(tmp_path / "federation" / "run" / "stopped.json")["reason"]
    assert reason in said
    (site,) = json.loads(listed.stdout)
    assert site["state"] == "online"


def test_ctrl_c_stops_everything_that_the_script_started(tmp_path: Path) -> None:
    local = script()
    command = [sys.executable, str(EXAMPLE), "--insecure", "--folder", str(tmp_path / "federation")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().split(",")[0].rpartition(":")[2]
        assert "SuperNodes started" in process.stdout.readline()
        local.wait_for(lambda: runs_under_way(port), PATIENCE, "no run")
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert "everything that was started is stopped" in rest
    local.wait_for(lambda: not started(port), PATIENCE, f"still there: {started(port)}")


def runs_under_way(port: str) -> list[str]:
    return [command for command in started(port) if "flwr-serverapp" in command]


def started(port: str) -> list[str]:
    """Commands on this machine that talk to a SuperLink's port."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [
        " ".join(command)
        for command in found
        if any(f"127.0.0.1:{port}" in part for part in command)
    ]


needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="no ray")
one_at_a_time = pytest.mark.xdist_group("ray")  # Ray's own files are the machine's


def simulate(method: str, folder: Path, **environment: str) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom feddraw.experiment.running import run;"
        " from small import small\nif __name__ == '__main__':\n   "
        " list(run(small(method=sys.argv[2], rounds=2, engine='flower', workers=2), sys.argv[3]))\n"
    )
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent.parent), method, str(folder)]
    subprocess.run(arguments, check=True, timeout=900, env=os.environ | environment)


@needs_ray
@one_at_a_time
@pytest.mark.parametrize("method", ["feddraw", "scaffold"])
def test_flowers_simulation_on_ray_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    simulate(method, tmp_path / "ray")
    expect_bits(tmp_path / "ray", tmp_path / "serial", rounds=2, method=method)


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """The address of a Ray cluster whose nodes, all on this machine, have one processor each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    said = ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--disable-usage-stats", "--block"]
    ray, port = Path(sys.executable).with_name("ray"), address.rpartition(":")[2]
    places = [
        ["--head", f"--port={port}", "--include-dashboard=false"],
        *([f"--address={address}"] for _ in range(nodes - 1)),
    ]
    with ExitStack() as started:
        for place in places:
            node = started.enter_context(
                subprocess.Popen([ray, "start", *place, *said], stdout=subprocess.DEVNULL)
            )
            started.callback(node.terminate)
            time.sleep(10)
        yield address


@needs_ray
@one_at_a_time
def test_flowers_simulation_over_a_cluster_that_is_there_gives_the_same_bits(
    tmp_path: Path,
) -> None:
    with cluster(nodes=2) as address:
        simulate("feddraw", tmp_path / "ray", RAY_ADDRESS=address)
    expect_bits(tmp_path / "ray", tmp_path / "serial", rounds=2, method="feddraw")
