"""`--engine flower` gives the bits of the serial engine, and checkpoints that any engine can go on
from.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import ServerApp

from feddraw.errors import RunFailed
from feddraw.experiment.running import iterate, run
from feddraw.flower.in_process_grid import InProcessGrid
from small import small

FILES = ("model.safetensors", "weights.csv", "metrics.json")


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients in this process; the same on Ray is in tests/federation."""
    monkeypatch.setattr("feddraw.flower.engine.installed", lambda name: False)


@pytest.mark.parametrize("method", ["feddraw", "scaffold", "moon", "fednova"])
def test_the_flower_engine_gives_the_bits_of_the_serial_engine(method: str, tmp_path: Path) -> None:
    for engine in ("serial", "flower"):
        list(run(small(method=method, rounds=2, engine=engine), tmp_path / engine))
    for name in FILES:
        assert (tmp_path / "serial" / name).read_bytes() == (
            tmp_path / "flower" / name
        ).read_bytes()


def test_another_engine_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    list(run(small(method="scaffold"), tmp_path / "whole"))
    begun = iterate(small(method="scaffold", engine="flower"), tmp_path / "part")
    next(begun)
    begun.close()
    list(run(small(method="scaffold"), tmp_path / "part", resume=True))
    for name in FILES:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "part" / name).read_bytes()


def test_sampled_clients_and_stragglers_are_asked_for_their_share(tmp_path: Path) -> None:
    some = {
        "participation.sampler": "uniform",
        "participation.fraction": 0.67,
        "participation.stragglers": 0.5,
    }
    for engine in ("serial", "flower"):
        list(
            run(small(rounds=2, engine=engine, **some, **{"training.epochs": 4}), tmp_path / engine)
        )
    for name in FILES:
        assert (tmp_path / "serial" / name).read_bytes() == (
            tmp_path / "flower" / name
        ).read_bytes()


def test_an_error_at_a_client_names_it() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    with pytest.raises(
        RunFailed, match=r"training client C\d failed: its app failed: ValueError: no more"
    ):
        list(run(small(model="test_engines:failing", engine="flower")))


class Deaf(InProcessGrid):
    """Nodes that are there and never answer."""

    asked = threading.Event()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.asked.set()
        return [f"message {number}" for number, _ in enumerate(messages)]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return []


def test_a_simulation_that_crashes_after_its_start_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = []

    def crashing(server: ServerApp, app: Any, nodes: int, **_: Any) -> None:
        grid = Deaf(app, [{"partition-id": number} for number in range(nodes)])
        servers.append(
            threading.Thread(target=server, args=(grid, Context(1, 1, {}, RecordDict(), {})))
        )
        servers[0].start()
        grid.asked.wait(timeout=60)
        try:
            raise OSError("no space left for\nRay's object store")
        except OSError as error:
            raise RuntimeError("An error was encountered. Ending simulation.") from error

    monkeypatch.setattr("feddraw.flower.engine.installed", lambda name: True)
    monkeypatch.setattr("feddraw.flower.ray_simulation.run_simulation", crashing)
    said = "Flower's simulation on Ray crashed: OSError: no space left for Ray's object store"
    with pytest.raises(RunFailed, match=said):
        list(run(small(engine="flower")))
    servers[0].join(timeout=10)
    assert not servers[0].is_alive()


def test_without_flower_the_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from feddraw.errors import UserError

    for name in [name for name in sys.modules if name.startswith("feddraw.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("feddraw.system.machine.installed", lambda name: name != "flwr")
    with pytest.raises(UserError, match=r"pip install 'feddraw\[flower\]'"):
        list(run(small(engine="flower")))
