"""What all sites of a secure round agree on, and what is said about it in clear.

`Terms` are settled before anyone trains: they are part of the digest that sites sign with their
one-time keys. The `Announcement` grows with the round, from what sites say of themselves; sites
sign a hash of it before they open a sum, so a server that tells one site of huge sizes or weights
of the others, and them something else, gets no sum.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.core import MOST_IMAGES, MOST_STEPS, Facts, Model, Vector
from feddraw.errors import UserError
from feddraw.secure.sums.message_fields import pack_fields
from feddraw.secure.sums.session import FEWEST_SUMMED, session_threshold
from feddraw.server.policy import Policy


class TooFewSummed(UserError):
    """Too few clients are left to hide each other: there is no sum."""


TRAIN, EVALUATE = "train", "evaluate"  # kinds of rounds
# The names of sums: some methods need one of numbers before that of the moves.
FIRST_SUM, MOVES_SUM, COUNTS_SUM = "first", "moves", "counts"
SUMS_OF_KIND = {TRAIN: ((MOVES_SUM,), (FIRST_SUM, MOVES_SUM)), EVALUATE: ((COUNTS_SUM,),)}
MOST_ROUNDS = 10**6
MOST_FINDINGS = 1000  # of an evaluation: 64 MB of counts at every site
LEAST_SHARE_SUMMED = 2.0**-16  # of the largest weight: a client with less hides nobody
Numbers = tuple[float, ...]
Labels = NDArray[np.bool_] | None  # which findings a site labels; None = all


@dataclass(frozen=True)
class Terms:
    """What is known of a round before it begins, the same for all."""

    kind: str  # train or evaluate
    sums: tuple[str, ...]  # in their order
    round: int
    rounds: int
    method: Mapping[str, Any] = field(default_factory=dict)  # its rules by name, with settings
    policy: Mapping[str, Any] = field(default_factory=dict)  # settings that are not the default's
    # Clients say their own weights, also where these tell of their updates; else they are summed
    # under masks.
    clear_weights: bool = False
    findings: int = 0  # of an evaluation
    reading: Mapping[str, Any] = field(default_factory=dict)  # how an app's answer is read

    @cached_property
    def limits(self) -> Policy:
        """The policy that holds in this round."""
        return Policy.of(self.policy)

    def session_name(self, sum: str) -> str:
        """Under which one of the sums is signed."""
        return f"{self.kind}: {sum}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def of(table: Any) -> Terms:
        """From the table of `to_json`; refuses what no honest server says."""
        try:
            if set(table) != {entry.name for entry in fields(Terms)}:
                raise ValueError("other entries than those of this version")
            terms = Terms(**table | {"sums": tuple(table["sums"])})
            terms.check()
            terms.limits.check()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"the terms of a secure round cannot be read: {error!s:.80}") from None
        return terms

    def check(self) -> None:
        """Refuse kinds, sums and numbers that make no sense."""
        if self.sums not in SUMS_OF_KIND.get(self.kind, ()):
            raise UserError(f"there are no such sums of '{self.kind!s:.20}': {self.sums!s:.60}")
        tables = (self.method, self.policy, self.reading)
        if not all(isinstance(table, Mapping) for table in tables):
            raise UserError("method, policy and reading of a secure round are tables")
        whole = (self.round, self.rounds, self.findings)
        if any(type(number) is not int for number in whole):
            raise UserError("rounds and findings of a secure round are whole numbers")
        if type(self.clear_weights) is not bool:
            raise UserError("clear_weights of a secure round is true or false")
        if not 0 <= self.round < self.rounds <= MOST_ROUNDS:
            raise UserError(f"round {self.round} of {self.rounds} in the server's terms")
        if not 0 <= self.findings <= MOST_FINDINGS:
            raise UserError(f"{self.findings} findings in the server's terms")


def terms_of_training(
    method: Mapping[str, Any],
    sums: tuple[str, ...],
    round: int,
    rounds: int,
    policy: Policy,
    *,
    clear_weights: bool = False,
) -> Terms:
    """The terms of a round of training."""
    usual = asdict(Policy())
    limits = {name: value for name, value in asdict(policy).items() if value != usual[name]}
    return Terms(TRAIN, sums, round, rounds, dict(method), limits, clear_weights)


def digest_of_offer(terms: Terms, model: Model, broadcast: Mapping[str, Vector]) -> bytes:
    """What sites of one process agree on: the terms, the model with what is frozen in it, and the
    vectors beside it; each array under its name, with its type, shape and bytes.
    """
    digest = hashlib.sha256(pack_fields(b"feddraw offer", terms.to_json().encode()))
    entries = [(e.name, e.kind, e.shape, e.dtype) for e in model.layout.entries]
    digest.update(pack_fields(repr((entries, model.layout.classifier)).encode()))
    arrays = {"params": model.params, "buffers": model.buffers, "counters": model.counters}
    groups = {"model": arrays, "broadcast": broadcast, "frozen": model.layout.frozen}
    for group, vectors in groups.items():
        for name, vector in sorted(vectors.items()):
            add_array_to_digest(digest, f"{group}/{name}", vector)
    return digest.digest()


def add_array_to_digest(digest: Any, name: str, array: NDArray[Any]) -> None:
    """An array with its name, type and shape, each with its length before it."""
    contiguous = np.ascontiguousarray(array)
    facts = (name.encode(), contiguous.dtype.str.encode(), repr(array.shape).encode())
    digest.update(pack_fields(*facts, str(contiguous.nbytes).encode()))
    digest.update(contiguous.reshape(-1).view(np.uint8).data)


# ------------------------------------------------------------------------ what sites say in clear


@dataclass(frozen=True)
class Party:
    """A site that takes part, and what it says of itself once enough sites have agreed."""

    name: str
    size: float = 0.0  # images that it trains on; an evaluation has no use for them
    labelled: tuple[bool, ...] | None = None  # which findings it labels; None = all

    @staticmethod
    def of(name: str, size: float, labelled: Labels) -> Party:
        return Party(name, size, None if labelled is None else tuple(labelled.tolist()))

    def check(self, kind: str) -> None:
        """Refuse what no honest site says."""
        if not isinstance(self.name, str) or not self.name:
            raise UserError("a client without a name")
        lowest = 0 if kind == TRAIN else -1
        if not (is_finite_number(self.size) and lowest < self.size <= MOST_IMAGES):
            raise UserError(
                f"size {self.size!s:.20} of {self.name} is not a positive number up to"
                f" {MOST_IMAGES}"
            )
        marks = () if self.labelled is None else self.labelled
        if not all(isinstance(mark, bool) for mark in marks):
            raise UserError(f"the list of findings that {self.name} labels is none")


@dataclass(frozen=True)
class Announcement:
    """What the server announces about the sums of a round, the same to all sites."""

    terms: Terms
    parties: tuple[Party, ...]
    concluded: Numbers = ()  # what the server made of the first of two sums
    # Under a policy, how each client weighs itself, and what the policy made of that.
    proposed: Mapping[str, Numbers] = field(default_factory=dict)
    weights: Mapping[str, Numbers] = field(default_factory=dict)

    @cached_property
    def digest(self) -> bytes:
        """What sites sign before they open a sum."""
        return hashlib.sha256(self.to_json().encode()).digest()

    def to_json(self) -> str:
        table = asdict(self) | {"terms": self.terms.to_json()}
        return json.dumps(table, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def of(text: str) -> Announcement:
        """From `to_json`; refuses what no honest server says."""
        try:
            table = json.loads(text)
            if set(table) != {entry.name for entry in fields(Announcement)}:
                raise ValueError("other entries than those of this version")
            tables = {
                name: {client: numbers_of(row) for client, row in table[name].items()}
                for name in ("proposed", "weights")
            }
            announcement = Announcement(
                terms=Terms.of(json.loads(table["terms"])),
                parties=tuple(_party_of(**party) for party in table["parties"]),
                concluded=numbers_of(table["concluded"]),
                **tables,
            )
            announcement.check()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"the server's announcement cannot be read: {error!s:.80}") from None
        return announcement

    def check(self) -> None:
        """Refuse numbers and names that make no sense."""
        names = [party.name for party in self.parties]
        if len(set(names)) != len(names):
            raise UserError("the server's announcement names a client twice")
        if len(names) < FEWEST_SUMMED:
            raise TooFewSummed(
                f"a secure round needs at least {FEWEST_SUMMED} clients, not {len(names)}"
            )
        for party in self.parties:
            party.check(self.terms.kind)
        if len({len(party.labelled) for party in self.parties if party.labelled is not None}) > 1:
            raise UserError("the server's announcement has lists of findings of several lengths")
        self.check_summed(names, members=len(names))

    def check_summed(self, names: Sequence[str], members: int) -> None:
        """Refuse a sum of a finding, or of all, that would be that of fewer than t of the members,
        who label the finding or have all the weight: colluding ones among them would take their own
        parts off, and be left with one other's.
        """
        needed = max(session_threshold(members), FEWEST_SUMMED)
        present = set(names)
        if not present <= self.places.keys():
            raise UserError("the sum is said to hold clients that were not announced")
        places = [place for place, party in enumerate(self.parties) if party.name in present]
        if self.labelled is not None:
            for finding, count in enumerate(self.labelled[places].sum(axis=0).tolist()):
                if 0 < count < needed:
                    raise TooFewSummed(
                        f"finding {finding} is labelled by {count} client(s) only: "
                        f"a secure sum of its row needs {needed} of {members}"
                    )
        rows = [self.weights[name] for name in names if name in self.weights]
        for column in map(np.array, zip(*rows, strict=True)):
            count = int((column > LEAST_SHARE_SUMMED * column.max()).sum())
            if 0 < count < needed:
                raise TooFewSummed(
                    f"under the policy {count} client(s) have all the weight: a secure sum needs"
                    f" {needed} of {members}"
                )

    def labelling_rare_findings(self, members: int) -> dict[str, str]:
        """By name, those who label a finding that too few of so many members label, and why they
        cannot be in one sum with the others.
        """
        if self.labelled is None:
            return {}
        needed = max(session_threshold(members), FEWEST_SUMMED)
        reasons: dict[str, str] = {}
        for finding, count in enumerate(self.labelled.sum(axis=0).tolist()):
            if 0 < count < needed:
                for place in np.flatnonzero(self.labelled[:, finding]).tolist():
                    reasons.setdefault(
                        self.parties[place].name,
                        f"it labels finding {finding}, which {count} of {members} clients label: a"
                        f" secure sum of its row needs {needed}",
                    )
        return reasons

    @cached_property
    def places(self) -> dict[str, int]:
        """By client, its index among the parties."""
        return {party.name: place for place, party in enumerate(self.parties)}

    def place(self, name: str) -> int:
        if name not in self.places:
            raise UserError(f"{name} is not among the clients of the server's announcement")
        return self.places[name]

    @cached_property
    def facts(self) -> Facts:
        """As the weighting rules take them."""
        concluded = np.array(self.concluded, np.float64)
        return Facts(self.terms.round, self.terms.rounds, self.sizes, self.labelled, concluded)

    @cached_property
    def sizes(self) -> NDArray[np.float64]:
        """As they count: within the policy's limits."""
        stated = [party.size for party in self.parties]
        limit = self.terms.limits.size_limit(stated)
        return np.array([limit.counted(size) for size in stated], np.float64)

    @cached_property
    def labelled(self) -> NDArray[np.bool_] | None:
        """(parties, findings); None where all label all."""
        given = [party.labelled for party in self.parties if party.labelled is not None]
        if all(all(marks) for marks in given):
            return None
        everything = (True,) * len(given[0])
        rows = [everything if party.labelled is None else party.labelled for party in self.parties]
        return np.array(rows, bool)


@dataclass(frozen=True)
class Statement:
    """What a client says in clear beside its masked move: its own weight for the whole model, then
    for each output that is weighted separately, or nothing where weights stay hidden; and its
    steps, where it knows them.
    """

    own_weights: Numbers
    steps: int | None

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def of(text: str) -> Statement:
        try:
            table = json.loads(text)
            statement = Statement(numbers_of(table.pop("own_weights")), **table)
            statement.check()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"what it says of itself cannot be read: {error!s:.80}") from None
        return statement

    def check(self) -> None:
        """Refuse what no honest client says."""
        trained = type(self.steps) is int and 0 < self.steps <= MOST_STEPS
        if self.steps is not None and not trained:
            raise UserError(f"{self.steps!s:.20} steps: it has not trained")
        if not all(weight >= 0 for weight in self.own_weights):
            raise UserError("a weight below zero")


def is_finite_number(value: Any) -> bool:
    """Whether it is a number that float64 holds; a whole number may have any number of digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def numbers_of(given: Any) -> Numbers:
    """A list of finite numbers; ValueError if it is none."""
    if not (isinstance(given, list) and all(map(is_finite_number, given))):
        raise ValueError("a list of numbers is none")
    return tuple(map(float, given))


def _party_of(name: str, size: float, labelled: Sequence[bool] | None) -> Party:
    return Party(name, size, None if labelled is None else tuple(labelled))
