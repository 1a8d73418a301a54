"""What one hostile client among five does to each method, with and without the gate.

    python benchmarks/hostile.py [--seeds 3] [--rounds 6] [--methods feddraw,krum]

Prints the macro test AUC on phantoms, mean over seeds, as a table in Markdown. The poison is put
between the clients and the server here; the package has no such switch. Everything is synthetic.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from feddraw.core import Job, Memory, Model, Update
from feddraw.data.dataset import Dataset
from feddraw.data.datasets.phantom import phantom
from feddraw.engines.serial import Serial
from feddraw.experiment.run_preparation import PreparedRun, prepare
from feddraw.experiment.running import evaluate_round
from feddraw.experiment.settings import Experiment
from feddraw.federation import Federation, federate
from feddraw.server.collectors import Together
from feddraw.server.gate import Gate

PAPER = (
    "feddraw",
    "fedavg",
    "uniform",
    "fedprox",
    "fednova",
    "fedadp",
    "scaffold",
    "moon",
    "feddyn",
)
ROBUST = ("median", "trimmed_mean", "krum")
VILLAIN = 1  # the second largest of five
GATES = {"off": Gate(norm="off"), "on": Gate(norm="refuse", factor=5.0, clip=2.0)}


def moved(times: float) -> Callable[[Update, Model], Update]:
    """So many times the honest move, from the model that was sent."""

    def change(update: Update, sent: Model) -> Update:
        params = sent.params + np.float32(times) * (update.model.params - sent.params)
        return replace(update, model=replace(update.model, params=params))

    return change


ATTACKS: dict[str, Callable[[Update, Model], Update]] = {
    "none": moved(1),
    "sign-flipped": moved(-1),
    "scaled × 100": moved(100),
    "labels flipped": moved(1),
    "hugging": moved(0.01),
}


class Hostile:
    """An engine with one client that does not send what it trained."""

    def __init__(self, engine: Serial, attack: str) -> None:
        self.engine = engine
        self.change = ATTACKS[attack]

    @property
    def memory(self) -> dict[int, Memory]:
        return self.engine.memory

    def commit(self, clients: Collection[int]) -> None:
        self.engine.commit(clients)

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        for update in self.engine.train(jobs, in_turn=in_turn):
            yield self.change(update, jobs[0].model) if update.client == VILLAIN else update


@cache
def phantoms() -> Dataset:
    return phantom(size=28, train=800, validation=200, test=600)


def setup_of(method: str, seed: int, rounds: int, attack: str) -> PreparedRun:
    experiment = Experiment(
        data={"name": "phantom", "size": 28, "train": 800, "validation": 200, "test": 600},
        scenario={"name": "quantity", "clients": 5, "power": 0.5, "scale": 1.0},
        model={"name": "compact", "growth": 8},
        method=method,
        rounds=rounds,
        seed=seed,
        engine="serial",
    ).with_settings({"training.batch_size": 32, "training.lr": 3e-3, "training.epochs": 1})
    setup = prepare(experiment, dataset=phantoms())
    if attack == "labels flipped":
        rows = setup.training_rows[VILLAIN]
        setup.trainer.examples.targets[rows] = 1 - setup.trainer.examples.targets[rows]
    return setup


def final_auc(
    method: str, seed: int, rounds: int, attack: str, gate: Gate
) -> tuple[float, float, bool]:
    """The test AUC after the last round, the hostile client's mean weight, and whether the gate did
    anything.
    """
    setup = setup_of(method, seed, rounds, attack)
    serial = Serial(setup.trainer)
    federation = Federation(
        setup.method,
        Hostile(serial, attack),
        setup.clients,
        rounds,
        seed,
        collect=Together(gate),
    )
    results = list(federate(federation, setup.initial))
    scored, _ = evaluate_round(setup, serial, results[-1].model, final=True)
    weight = float(np.mean([result.ledger[VILLAIN].weight for result in results]))
    acted = any(entry.status != "weighted" for result in results for entry in result.ledger)
    return scored.test.auc.macro, weight, acted


def both(method: str, seed: int, rounds: int, attack: str) -> tuple[float, float, float]:
    """The AUC without and with the gate, and the hostile client's weight without; where the gate
    only looks on, the two are the same run."""
    shut = final_auc(method, seed, rounds, attack, GATES["on"])
    open_ = final_auc(method, seed, rounds, attack, GATES["off"]) if shut[2] else shut
    return open_[0], shut[0], open_[1]


def cell(aucs: Sequence[float]) -> str:
    found = [auc for auc in aucs if np.isfinite(auc)]
    return f"{np.mean(found):.3f}" if found else "none"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--methods", default=",".join((*PAPER, *ROBUST)), help="names with commas between"
    )
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    heads = [f"{attack}, gate {gate}" for attack in ATTACKS for gate in GATES]
    print(f"| method | {' | '.join(heads)} | weight when hugging |")
    print("|---" * (len(heads) + 2) + "|", flush=True)
    for method in chosen.methods.split(","):
        cells: list[str] = []
        for attack in ATTACKS:
            found = [both(method, seed, chosen.rounds, attack) for seed in range(chosen.seeds)]
            cells += [cell([one[column] for one in found]) for column in (0, 1)]
        hugging = float(np.mean([one[2] for one in found]))  # the last attack
        print(f"| {method} | {' | '.join(cells)} | {hugging:.3f} |", flush=True)


if __name__ == "__main__":
    main()
