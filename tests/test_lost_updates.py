"""An update that was trained but did not count leaves nothing behind: not at the server, and not at
its client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from feddraw import catalog
from feddraw.core import Job, Method, Update, why_not_streaming
from feddraw.engines.serial import Serial
from feddraw.errors import RunFailed
from feddraw.experiment.running import iterate, run
from feddraw.federation import Federation, federate
from feddraw.flower.client_memory import ClientMemory
from feddraw.flower.in_process_grid import FIRST_NODE
from feddraw.methods.feddyn import feddyn
from feddraw.methods.scaffold import scaffold
from feddraw.server.collectors import Streaming, Together
from feddraw.training.client import Trainer, client_memory_extents
from feddraw.training.settings import Training
from quadratics import Bowl, optimum, play
from small import small
from test_engines import final, same_bits
from test_flower import trained
from tiny import (
    NAMES,
    SIZES,
    TRAINING,
    build,
    examples,
    initial,
    made_of,
    same,
    server_of,
    shards,
    weighting_of,
)

TWO = [Bowl(1.0, 0.0, images=6), Bowl(4.0, 1.0, images=2)]
FEDDYN = {"steps": 20, "lr": 0.2}
OPTIMA = {
    "scaffold": (scaffold(), {"steps": 10}, (0.5, 0.5)),
    "scaffold by size": (scaffold(weights="samples"), {"steps": 10}, (0.75, 0.25)),
    "feddyn": (feddyn(alpha=1.0), FEDDYN, (0.5, 0.5)),
    "feddyn by size": (
        made_of(
            feddyn(1.0).local, weighting_of(scaffold(weights="samples")), server_of(feddyn(1.0))
        ),
        FEDDYN,
        (0.75, 0.25),
    ),
}
REMEMBERING = [
    name for name in catalog.names("methods") if catalog.find("methods", name)().local.keeps
]

# -------------------------------------------------------------------------------------- the optimum


@pytest.mark.parametrize(
    ("name", "lost"),
    [(name, (place % 3, place % 2)) for place in range(6) for name in list(OPTIMA)[place % 2 :: 2]],
)
def test_with_any_one_update_lost_training_still_comes_to_the_optimum(name, lost):
    method, training, weights = OPTIMA[name]
    found = play(method, TWO, 0.3, rounds=40, lose=lambda *which: which == lost, **training)[-1]
    assert found.x == pytest.approx(optimum(TWO, weights), abs=2e-3)


@pytest.mark.parametrize("name", ["scaffold by size", "feddyn by size"])
def test_with_every_third_update_lost_training_still_comes_to_the_optimum(name):
    method, training, weights = OPTIMA[name]
    found = play(
        method,
        TWO,
        0.3,
        rounds=90,
        lose=lambda round, client: (2 * round + client) % 3 == 0,
        **training,
    )[-1]
    assert found.x == pytest.approx(optimum(TWO, weights), abs=2e-3)


# -------------------------------------------------------------------------------------- the engines


class Losing(Serial):
    """The serial engine, with some updates lost or spoilt on their way to the server."""

    def __init__(
        self, trainer: Trainer, lost: Callable[[int, int], bool], spoilt: bool = False
    ) -> None:
        super().__init__(trainer)
        self.lost, self.spoilt = lost, spoilt

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        for update in super().train(jobs, in_turn=in_turn):
            if not self.lost(jobs[0].round, update.client):
                yield update
            elif self.spoilt:
                yield replace(
                    update, model=replace(update.model, params=update.model.params * np.nan)
                )


def losing(
    method: Method, lost: Callable[[int, int], bool], training: Training = TRAINING, **options: Any
) -> Losing:
    return Losing(
        Trainer(build, examples(), shards(), training, method.local, asks=method.asks),
        lost,
        **options,
    )


@pytest.mark.parametrize("name", [*REMEMBERING, "persistent"])
@pytest.mark.parametrize("how", ["lost", "refused", "refused in a stream"])
def test_a_client_whose_update_did_not_count_remembers_what_it_did_before(name, how):
    method = catalog.find("methods", "fedavg" if name == "persistent" else name)()
    if how == "refused in a stream" and why_not_streaming(method):
        return
    training = replace(TRAINING, persist_optimizer=name == "persistent")
    engine = losing(
        method, lambda round, client: (round, client) == (1, 2), training, spoilt=how != "lost"
    )
    collect = Streaming(SIZES) if how == "refused in a stream" else Together()
    federation = Federation(method, engine, NAMES, rounds=2, seed=0, collect=collect)
    rounds = federate(federation, initial())
    next(rounds)
    before = deepcopy(engine.memory)
    assert before[2].keys() == client_memory_extents(method.local, training).keys()
    assert not next(rounds).ledger[2].weighted
    assert all(np.array_equal(before[2][key], engine.memory[2][key]) for key in before[2])
    assert not all(np.array_equal(before[1][key], engine.memory[1][key]) for key in before[1])


REFUSING = {"gate.norm": "refuse", "gate.factor": 1.0}  # whoever moved further than the median


@pytest.mark.parametrize(
    "settings",
    [{"method": "scaffold"}, {"method": "ditto"}, {"training.persist_optimizer": True}],
    ids=lambda settings: "+".join(map(str, settings.values())),
)
def test_with_refused_updates_every_engine_gives_the_same_bits(settings, monkeypatch):
    monkeypatch.setattr(
        "feddraw.flower.engine.installed", lambda name: False
    )  # clients in this process
    serial, *others = (
        final(small(rounds=3, engine=engine, workers=2, **settings, **REFUSING))
        for engine in ("serial", "processes", "flower")
    )
    assert any(entry.status.startswith("refused") for entry in serial.ledger)
    assert all(same_bits(other.next_model, serial.next_model) for other in others)
    assert all(other.metrics == serial.metrics for other in others)


@pytest.mark.parametrize(
    ("method", "engine"),
    [("scaffold", "serial"), ("feddyn", "serial"), ("ditto", "serial"), ("scaffold", "processes")],
)
def test_a_run_killed_after_a_refusal_goes_on_to_the_same_bits(method, engine, tmp_path):
    settings = {"method": method, "engine": engine, "workers": 2, **REFUSING}
    list(run(small(**settings | {"engine": "serial"}), tmp_path / "whole"))
    begun = iterate(small(**settings), tmp_path / "part")
    assert any(entry.status.startswith("refused") for entry in next(begun).ledger)
    begun.close()
    list(run(small(**settings), tmp_path / "part", resume=True))
    for name in ("model.safetensors", "weights.csv", "metrics.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "part" / name).read_bytes()


# -------------------------------------------------------------------------------------- over Flower


def without(lost: Callable[[int, int], bool]) -> Callable[[list[Message]], list[Message]]:
    """A network on which some replies are lost."""

    def arrive(replies: list[Message]) -> list[Message]:
        return [
            reply
            for reply in replies
            if not lost(int(reply.metadata.group_id) - 1, reply.metadata.src_node_id - FIRST_NODE)
        ]

    return arrive


def one_lost_a_round(round: int, client: int) -> bool:
    """But for the first round, in which the clients get their numbers."""
    return round > 0 and client == round % 4


@pytest.mark.parametrize("name", REMEMBERING)
def test_over_flower_lost_replies_give_the_bits_of_the_serial_engine(
    name: str, tmp_path: Path
) -> None:
    method = catalog.find("methods", name)()
    engine = losing(method, one_lost_a_round)
    *_, last = federate(Federation(method, engine, NAMES, rounds=5, seed=0), initial())
    strategy = trained(method, tmp_path, 5, without(one_lost_a_round))
    assert same(strategy.model, last.next_model)


def test_over_flower_a_server_killed_after_a_loss_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """It is killed when all have trained the third round: all go back, the lost one further than
    the others.
    """
    whole = trained(scaffold(), tmp_path / "memory", 4, without(one_lost_a_round))
    lossy = without(one_lost_a_round)

    def killed(replies: list[Message]) -> list[Message]:
        if int(replies[0].metadata.group_id) == 3:
            raise RunFailed("killed")
        return lossy(replies)

    with pytest.raises(RunFailed):
        trained(scaffold(), tmp_path / "memory", 4, killed, folder=tmp_path / "run")
    resumed = trained(
        scaffold(), tmp_path / "memory", 4, lossy, folder=tmp_path / "run", resume=True
    )
    assert [done.round for done in resumed.history] == [2, 3]
    assert same(resumed.model, whole.model)


def test_a_site_keeps_two_memories_and_goes_on_from_the_one_that_counted(tmp_path: Path) -> None:
    shelf = ClientMemory(tmp_path, "run", "North")
    for round, counted in ((0, -1), (1, 0), (2, 0), (5, 0), (6, 5), (7, 5)):
        assert shelf.load(round, counted).get("last", [-1])[0] == counted
        shelf.save(round, {"last": np.array([round], np.float32)}, counted)
        assert len(list(shelf.path.iterdir())) <= 2
    assert shelf.load(8, -1) == {}
    assert shelf.load(8)["last"] == [7]  # a server that does not say
