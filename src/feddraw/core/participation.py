"""Who is asked in a round: all clients, some drawn by chance, or those of a plan; who is there; who
cannot keep up.

Draws depend on the run's seed and the round only, so that every method and every engine asks the
same clients, and a resumed run continues with them. Keys come from the raw bits of PCG64, which are
the same in every version of numpy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError, one_of, unknown
from feddraw.text import parse_pairs

Sampler = Literal["all", "uniform", "by_size", "plan"]


@dataclass(frozen=True)
class Participation:
    """Which clients take part when.

    Client names stand in text, as `--set` and study files can hold it.
    """

    sampler: Sampler = "all"
    # Of the clients that are there, drawn uniformly or by size; never fewer than one.
    fraction: float = 1.0
    plan: str = ""  # "C1, C2; C3": the clients of each round in turn, begun again at its end
    joins: str = ""  # "C4=5": the first round in which a client is there, counted from 0
    leaves: str = ""  # "C1=10": the first round in which it is there no more
    stragglers: float = 0.0  # share of the clients asked that cannot keep up in a round
    effort: float = 0.5  # share of its steps that such a client takes

    def check(self, clients: Sequence[str], rounds: int) -> None:
        """Refuse names and numbers that do not fit, and rounds that nobody is in."""
        one_of("participation.sampler", self.sampler, get_args(Sampler))
        for name, lowest in (("fraction", False), ("effort", False), ("stragglers", True)):
            value = getattr(self, name)
            if not (0 < value <= 1 or (lowest and value == 0)):
                raise UserError(
                    f"participation.{name} must be a share {'from' if lowest else 'above'} 0 to 1:"
                    f" {value}"
                )
        if (self.sampler == "plan") != bool(self.plan.strip()):
            raise UserError(
                'participation.plan and participation.sampler = "plan" go together: set both or'
                " none"
            )
        joins = _rounds_by_client("joins", self.joins)
        leaves = _rounds_by_client("leaves", self.leaves)
        for client in chain(*_turns_of_plan(self.plan), joins, leaves):
            if client not in clients:
                raise unknown("clients", client, clients)
        for round in range(rounds):
            if not self._clients_there(clients, round):
                raise UserError(
                    f"no client takes part in round {round}: change participation.plan, joins or"
                    " leaves"
                )

    def _clients_there(self, clients: Sequence[str], round: int) -> list[int]:
        """Clients that could be asked: those that have joined and not left, in a plan those whose
        turn it is.
        """
        joins = _rounds_by_client("joins", self.joins)
        leaves = _rounds_by_client("leaves", self.leaves)
        turns = _turns_of_plan(self.plan)
        turn = set(turns[round % len(turns)] if turns else clients)
        there = [
            name in turn and joins.get(name, 0) <= round < leaves.get(name, math.inf)
            for name in clients
        ]
        return [client for client, present in enumerate(there) if present]

    def efforts(
        self, seed: int, round: int, clients: Sequence[str], sizes: Sequence[int]
    ) -> dict[int, float]:
        """The clients asked in a round, and the share of its steps that each will take."""
        asked = there = self._clients_there(clients, round)
        chance, pace = _client_chances(seed, round, len(clients))
        if self.sampler in ("uniform", "by_size"):
            weights = (
                np.asarray(sizes, np.float64)
                if self.sampler == "by_size"
                else np.ones(len(clients))
            )
            # The largest are a draw without replacement, by these weights.
            keys = np.log(chance) / weights
            asked = sorted(
                _clients_with_largest(
                    keys, there, max(1, math.floor(self.fraction * len(there) + 0.5))
                )
            )
        slow = set(
            _clients_with_largest(pace, asked, math.floor(self.stragglers * len(asked) + 0.5))
        )
        return {client: self.effort if client in slow else 1.0 for client in asked}


def _client_chances(seed: int, round: int, clients: int) -> NDArray[np.float64]:
    """(2, clients) in (0, 1)."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, round])).random_raw((2, clients))
    return np.asarray(((bits >> np.uint64(11)) + 0.5) / 2**53)


def _clients_with_largest(
    keys: NDArray[np.float64], among: Sequence[int], number: int
) -> list[int]:
    return sorted(among, key=lambda client: -keys[client])[:number]


def _turns_of_plan(plan: str) -> list[list[str]]:
    turns = [[name.strip() for name in turn.split(",") if name.strip()] for turn in plan.split(";")]
    return turns if plan.strip() else []


def _rounds_by_client(what: str, text: str) -> dict[str, int]:
    setting = f"participation.{what}"
    return parse_pairs(text, _round, setting=setting, example="'C4=5, C2=3' (client = round)")


def _round(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ValueError(text)
    return int(text)
