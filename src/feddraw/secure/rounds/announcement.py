"""What is said in clear around a secure sum: by the server to all clients, and by each client to
the server.

All clients of a sum are told the same, and sign a hash of it before they open the sum: a server
that tells one client of huge sizes or weights of the others, and them something else, gets no sum.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from feddraw.core import Facts, Model, Vector
from feddraw.errors import UserError
from feddraw.secure.sums.session import FEWEST_SUMMED
from feddraw.server.gate import MOST_IMAGES, MOST_STEPS
from feddraw.server.policy import Policy


class TooFewSummed(UserError):
    """Too few clients are left to hide each other: there is no sum."""


FIRST_SUM, MOVES_SUM = (
    "first",
    "moves",
)  # the names of a round's sums: some methods need one before that of the moves
ANNOUNCEMENT_VERSION = 1
MOST_ROUNDS = 10**6
LEAST_SHARE_SUMMED = 2.0**-16  # of the largest weight: a client with less hides nobody
Numbers = tuple[float, ...]


def announced_fingerprint(model: Model, broadcast: Mapping[str, Vector] | None = None) -> str:
    """A hash of what a client was sent: clients of one sum agree on it, so that nobody's model is
    made to stand out.
    """
    layout = model.layout
    digest = hashlib.sha256(
        repr([(e.name, e.kind, e.shape, e.dtype) for e in layout.entries]).encode()
    )
    vectors = {"params": model.params, "buffers": model.buffers, "counters": model.counters} | dict(
        broadcast or {}
    )
    frozen = {f"frozen.{name}": array for name, array in layout.frozen.items()}
    for name, vector in sorted((vectors | frozen).items()):
        digest.update(f"\0{name}\0{vector.dtype.str}\0{vector.shape}\0".encode())
        digest.update(np.ascontiguousarray(vector).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class AnnouncedParty:
    """A client that was asked, and what it said of itself before."""

    name: str
    size: float  # images
    labelled: tuple[bool, ...] | None = None  # which findings it labels; None = all


@dataclass(frozen=True)
class Announcement:
    """What all clients that were asked are told, the same for all."""

    sent: str  # the fingerprint of what all were sent to train on
    method: Mapping[str, Any]  # its name in the catalogue and its settings
    round: int
    rounds: int
    parties: tuple[AnnouncedParty, ...]
    policy: Mapping[str, Any] = field(default_factory=dict)  # settings that are not the default's
    told: Numbers = ()  # what the server made of the first of two sums
    proposed: Mapping[str, Numbers] = field(
        default_factory=dict
    )  # under a policy, how each client weighs itself
    weights: Mapping[str, Numbers] = field(default_factory=dict)  # and what the policy made of that

    def digest(self) -> bytes:
        """What clients agree on before they open the sum."""
        return hashlib.sha256(self.to_json().encode()).digest()

    def to_json(self) -> str:
        return json.dumps(
            asdict(self) | {"version": ANNOUNCEMENT_VERSION}, sort_keys=True, separators=(",", ":")
        )

    @staticmethod
    def of(text: str) -> Announcement:
        """From `to_json`; refuses what no honest server says."""
        try:
            table = json.loads(text)
            if table.pop("version") != ANNOUNCEMENT_VERSION or set(table) != {
                f.name for f in fields(Announcement)
            }:
                raise ValueError("another version")
            parties = tuple(_announced_party_from(**party) for party in table["parties"])
            both = ("proposed", "weights")
            numbers = {
                name: {client: _announced_numbers(row) for client, row in table[name].items()}
                for name in both
            }
            told = _announced_numbers(table["told"])
            found = Announcement(**table | {"parties": parties, "told": told} | numbers)
            found.check()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"the server's announcement cannot be read: {error!s:.80}") from None
        return found

    def check(self) -> None:
        """Refuse numbers and names that make no sense."""
        names = [party.name for party in self.parties]
        if len(set(names)) != len(names):
            raise UserError("the server's announcement names a client twice")
        if len(names) < FEWEST_SUMMED:
            raise UserError(
                f"a secure round needs at least {FEWEST_SUMMED} clients, not {len(names)}"
            )
        if not 0 <= self.round < self.rounds <= MOST_ROUNDS:
            raise UserError(f"round {self.round} of {self.rounds} in the server's announcement")
        for party in self.parties:
            if not 0 < party.size <= MOST_IMAGES:
                raise UserError(
                    f"size {party.size!s:.20} of {party.name} is not a positive number up to"
                    f" {MOST_IMAGES}"
                )
        if len({len(party.labelled) for party in self.parties if party.labelled is not None}) > 1:
            raise UserError("the server's announcement has lists of findings of several lengths")
        self.check_summed(names)

    def check_summed(self, names: Sequence[str]) -> None:
        """Refuse a sum that would be that of one or two clients, who label a finding or have all
        the weight.
        """
        there = [place for place, party in enumerate(self.parties) if party.name in names]
        labelled = self._labelled()
        for finding, count in enumerate(
            [] if labelled is None else labelled[there].sum(axis=0).tolist()
        ):
            if 0 < count < FEWEST_SUMMED:
                raise TooFewSummed(
                    f"finding {finding} is labelled by {count} client(s) only: "
                    f"a secure sum of its row needs {FEWEST_SUMMED}"
                )
        rows = [self.weights[name] for name in names if name in self.weights]
        for column in map(np.array, zip(*rows, strict=True)):
            count = int((column > LEAST_SHARE_SUMMED * column.max()).sum())
            if 0 < count < FEWEST_SUMMED:
                raise TooFewSummed(
                    f"under the policy {count} client(s) have all the weight: a secure sum needs"
                    f" {FEWEST_SUMMED}"
                )

    def limits(self) -> Policy:
        return Policy.of(self.policy)

    def place(self, name: str) -> int:
        for place, party in enumerate(self.parties):
            if party.name == name:
                return place
        raise UserError(f"{name} is not among the clients of the server's announcement")

    def facts(self) -> Facts:
        """As the weighting rules take them."""
        return Facts(
            self.round, self.rounds, self.sizes, self._labelled(), np.array(self.told, np.float64)
        )

    @property
    def sizes(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """As they count: within the policy's limits."""
        said = {place: party.size for place, party in enumerate(self.parties)}
        limited = self.limits().limited_sizes(said)
        return np.array(
            [limited[place][0] if place in limited else said[place] for place in said], np.float64
        )

    def _labelled(self) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        given = [party.labelled for party in self.parties if party.labelled is not None]
        if all(all(one) for one in given):
            return None
        return np.array(
            [[True] * len(given[0]) if p.labelled is None else p.labelled for p in self.parties],
            bool,
        )


def announce_secure_round(
    sent: str,
    method: Mapping[str, Any],
    round: int,
    rounds: int,
    parties: Sequence[AnnouncedParty],
    policy: Policy,
) -> Announcement:
    """What all clients of a round are told at first."""
    usual = asdict(Policy())
    limits = {name: value for name, value in asdict(policy).items() if value != usual[name]}
    found = Announcement(sent, dict(method), round, rounds, tuple(parties), limits)
    found.check()
    return found


def announced_party(
    name: str, size: float, labelled: np.ndarray[Any, np.dtype[np.bool_]] | None
) -> AnnouncedParty:
    return AnnouncedParty(name, size, None if labelled is None else tuple(labelled.tolist()))


@dataclass(frozen=True)
class ClientAnnouncement:
    """What a client says of itself in clear; `own` is how it weighs itself, then each output with
    its own weights.
    """

    size: float
    steps: int
    own: Numbers
    distance: float  # how far it moved
    metrics: Mapping[str, float] = field(
        default_factory=dict
    )  # those that are listed, the loss among them
    numbers: Mapping[str, float] = field(
        default_factory=dict
    )  # that the server rule takes in clear

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def of(text: str) -> ClientAnnouncement:
        try:
            table = json.loads(text)
            own, metrics, numbers = (
                _announced_numbers(table["own"]),
                dict(table["metrics"]),
                dict(table["numbers"]),
            )
            found = ClientAnnouncement(
                **table | {"own": own, "metrics": metrics, "numbers": numbers}
            )
            found.check()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"what the client announces cannot be read: {error!s:.80}") from None
        return found

    def check(self) -> None:
        """Refuse what no honest client says."""
        if not (_is_finite_number(self.size) and 0 < self.size <= MOST_IMAGES):
            raise UserError(f"size {self.size!s:.20} is not a positive number up to {MOST_IMAGES}")
        if not (isinstance(self.steps, int) and 0 < self.steps <= MOST_STEPS):
            raise UserError(f"{self.steps!s:.20} steps: it has not trained")
        if not (self.own and all(one >= 0 for one in self.own)):
            raise UserError("a weight below zero")
        if not (_is_finite_number(self.distance) and self.distance >= 0):
            raise UserError("the length of its move is not a number")
        for name, value in {**self.metrics, **self.numbers}.items():
            if not _is_finite_number(value):
                raise UserError(f"{name!s:.20} is not a finite number")
        if "loss" not in self.metrics:
            raise UserError("no training loss among its metrics")


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _announced_numbers(given: Sequence[Any]) -> Numbers:
    if not (isinstance(given, list) and all(map(_is_finite_number, given))):
        raise ValueError("a list of numbers is none")
    return tuple(map(float, given))


def _announced_party_from(
    name: str, size: float, labelled: Sequence[bool] | None
) -> AnnouncedParty:
    if not (isinstance(name, str) and _is_finite_number(size)):
        raise ValueError("a client without a name or a size")
    if labelled is not None and not (
        isinstance(labelled, list) and all(isinstance(one, bool) for one in labelled)
    ):
        raise ValueError("a list of labelled findings is none")
    return AnnouncedParty(name, size, None if labelled is None else tuple(labelled))
