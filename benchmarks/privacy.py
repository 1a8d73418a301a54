"""The numbers of docs/privacy.md.

    python benchmarks/privacy.py distance [--clients 10] [--parameters 6900000]
    python benchmarks/privacy.py lies RUN         (the folder of a run of feddraw without `secure`)
    python benchmarks/privacy.py lengths [--scenario CHM-2]

`distance`: how far a secure round is from the plain one, with the stated bound. `lies`: by what a
client multiplies its weight that says its similarity is 1. `lengths`: how much the sum points to
each client's move, and how many times longer than it says a client's hidden move can be before the
sum is longer than all announced lengths allow.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from feddraw.core import Entry, Layout, Model, Update
from feddraw.experiment.running import iterate
from feddraw.experiment.settings import Experiment
from feddraw.methods.feddraw import feddraw
from feddraw.secure.rounds.in_process import Secure
from feddraw.secure.rounds.round_weights import SECURE_PRECISION
from feddraw.server.collectors import Together
from feddraw.server.round import Round


def distance(clients: int, parameters: int) -> None:
    """One round of FedDRAW over random moves, plain and secure."""
    rng = np.random.default_rng(0)
    sent = random_model(parameters, rng)
    sizes = rng.integers(200, 20_000, clients).tolist()
    updates = []
    for client, size in enumerate(sizes):
        params = sent.params + 1e-3 * rng.standard_normal(parameters, np.float32)
        updates.append(Update(client, replace(sent, params=params), size, 9, {"loss": 1.0}))
    names = [f"C{client}" for client in range(clients)]
    method = feddraw()
    round = Round(
        number=7,
        rounds=15,
        sent=sent,
        method=method,
        state=method.init(sent),
        clients=names,
        sampled=range(clients),
    )
    in_clear = Together()(round, updates)
    plain = in_clear.model.params
    hidden = Secure(names, sizes, section={"name": "feddraw"})(round, updates).model.params
    exact = sent.params.astype(np.float64)
    moved = np.zeros(parameters)
    longest = np.zeros(parameters)
    for update, name in zip(updates, names, strict=True):
        move = update.model.params.astype(np.float64) - sent.params
        moved += in_clear.weights[name] * move
        np.maximum(longest, np.abs(move), out=longest)
    allowed = SECURE_PRECISION + 2.0**-24 * ((clients + 4) * longest + 2 * np.abs(sent.params))
    away = np.abs(plain.astype(np.float64) - hidden)
    print(f"{clients} clients, {parameters:,} parameters")
    print(
        f"secure - plain: largest {away.max():.2e}, mean {away.mean():.2e}, equal bits"
        f" {np.mean(away == 0):.1%}"
    )
    print(
        f"stated bound: smallest {allowed.min():.2e}; largest part of it used"
        f" {np.max(away / allowed):.2f}"
    )
    for name, params in (("plain", plain), ("secure", hidden)):
        off = np.abs(params - (exact + moved))
        print(f"{name} - real numbers: largest {off.max():.2e}, mean {off.mean():.2e}")


def random_model(parameters: int, rng: np.random.Generator) -> Model:
    """A model of so many numbers whose classifier has fourteen outputs of 1,024 features."""
    outputs, features = 14, 1024
    body = parameters - outputs * (features + 1)
    entries = (
        Entry("body", "param", (body,), 0),
        Entry("classifier.weight", "param", (outputs, features), body),
        Entry("classifier.bias", "param", (outputs,), body + outputs * features),
    )
    return Model(
        params=0.05 * rng.standard_normal(parameters, np.float32),
        buffers=np.zeros(0, np.float32),
        counters=np.zeros(0, np.int64),
        layout=Layout(entries, "classifier"),
    )


def lies(run: Path) -> None:
    """exp(beta (1 - gamma) (1 - s)) in the rounds whose weights depend on s."""
    ledger = pd.read_csv(run / "weights.csv")
    ledger = ledger[ledger["beta"] > 0]
    times = np.exp(ledger["beta"] * (1 - ledger["gamma"]) * (1 - ledger["similarity"]))
    by_round = times.groupby(ledger["round"]).agg(["min", "max"])
    print(by_round.round(3).to_string())
    print(f"largest {times.max():.3f} (1 - s = {1 - ledger['similarity'][times.idxmax()]:.3f})")


def lengths(scenario: str) -> None:
    """From the real moves of each round."""
    sent: list[Model] = []
    moves: dict[int, dict[int, NDArray[np.float64]]] = {}

    def keep(round: int, update: Update) -> None:
        moves.setdefault(round, {})[update.client] = update.model.params.astype(np.float64)

    settings: dict[str, Any] = {"scenario": scenario, "rounds": 5, "engine": "serial"}
    for result in iterate(
        Experiment().with_settings(settings),
        on_update=keep,
        on_setup=lambda s: sent.append(s.initial),
    ):
        rows = np.stack(list(moves.pop(result.round).values())) - sent[-1].params
        sent.append(result.next_model)
        weights = np.array([entry.weight for entry in result.ledger])
        norms = np.linalg.norm(rows, axis=1)
        cosines = rows @ rows.T / np.outer(norms, norms)
        mean = cosines[~np.eye(len(rows), dtype=bool)].mean()
        found = " ".join(f"{_hideable(rows, weights, norms, k):.1f}" for k in range(len(rows)))
        together = weights @ rows
        shown = " ".join(f"{one:.2f}" for one in rows @ together / norms / np.linalg.norm(together))
        print(f"round {result.round}: weights {' '.join(f'{one:.2f}' for one in weights)}")
        print(
            f"  cosine between two moves, mean {mean:.2f}; of the sum with each client's move"
            f" {shown}"
        )
        print(f"  times the announced length that each could hide {found}")


def _hideable(
    rows: NDArray[np.float64], weights: NDArray[np.float64], norms: NDArray[np.float64], liar: int
) -> float:
    """The largest L with |sum of the others + L w m| <= sum of w |m|."""
    own = weights[liar] * rows[liar]
    others = weights @ rows - own
    limit = float(weights @ norms)
    a, b, c = own @ own, 2 * own @ others, others @ others - limit**2
    return float((-b + np.sqrt(b * b - 4 * a * c)) / (2 * a))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["distance", "lies", "lengths"])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=6_900_000)
    parser.add_argument("--scenario", default="CHM-2")
    given = parser.parse_args()
    if given.what == "distance":
        distance(given.clients, given.parameters)
    elif given.what == "lies":
        lies(given.run)
    else:
        lengths(given.scenario)


if __name__ == "__main__":
    main()
