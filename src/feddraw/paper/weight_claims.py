"""Which printed statements about weights can each reading of FedDRAW give?

The paper prints weights but not the similarities behind them, so a statement about a round can hold
if some similarities give it (`weight_ranges`). Rounds are free of one another, so statements about
different rounds do not interfere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from feddraw.core.schedules import READINGS, ROUNDS, Reading
from feddraw.paper.published_tables import client_sizes, read_published
from feddraw.paper.weight_ranges import (
    Range,
    Sizes,
    deviation_range,
    similarity_gap,
    similarity_range,
    spread_range,
    weight_range,
)

# Whatever the similarities; for some similarities; for none.
Outcome = Literal["always", "can", "never"]

ALL_CLIENTS = "all"
ALL_ROUNDS = "every round"
BOTH_SCENARIOS = "both"


class Quantity(StrEnum):
    """What a statement is about, as `dynamics_claims.csv` calls it."""

    WEIGHT = "weight"
    LARGEST_WEIGHT = "weight (maximum over rounds)"
    SMALLEST_WEIGHT = "weight (minimum over rounds)"
    FIRST_OVERTAKEN = "weight (first round overtaken by all small clients)"
    SPREAD = "max-min of weights"
    DEVIATION = "deviation from mean of C1-C9"


class Relation(StrEnum):
    """How the quantity stands to the printed value."""

    EQUAL = "=="
    BELOW = "<"
    ABOVE = ">"
    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True)
class WeightClaim:
    """A row of `dynamics_claims.csv`: what is printed about some clients in some rounds."""

    scenario: str
    client: str  # "C10", "C1-C9", "all"
    round: str  # "6", "4-10", "every round"
    quantity: Quantity
    relation: Relation
    value: str  # as printed: its digits say how exactly

    @staticmethod
    def of(row: Mapping[str, str]) -> WeightClaim:
        """From the row's cells; refuses a quantity or a relation that is not known."""
        return WeightClaim(
            scenario=row["scenario"],
            client=row["client"],
            round=row["round"],
            quantity=Quantity(row["quantity"]),
            relation=Relation(row["relation"]),
            value=row["value"],
        )

    def clients_among(self, sizes: Sizes) -> Sequence[int]:
        """Which of a scenario's clients it is about, counted from 0."""
        if self.client == ALL_CLIENTS:
            return range(len(sizes))
        numbers = [int(name.strip().removeprefix("C")) for name in self.client.split("-")]
        return range(numbers[0] - 1, numbers[-1])

    @property
    def rounds(self) -> Sequence[int]:
        """Counted from 0."""
        if self.round == ALL_ROUNDS:
            return range(ROUNDS)
        ends = [int(end) for end in self.round.split("-")]
        return range(ends[0], ends[-1] + 1)

    @property
    def relations(self) -> dict[int, Relation]:
        """By round, how the quantity stands to the printed value, for all rounds that the statement
        says something about.
        """
        every_round = {round: self._relation_in(round) for round in range(ROUNDS)}
        return {round: relation for round, relation in every_round.items() if relation is not None}

    def _relation_in(self, round: int) -> Relation | None:
        """A maximum is nowhere exceeded, and what happens for the first time did not before."""
        if round in self.rounds:
            return self.relation
        match self.quantity:
            case Quantity.LARGEST_WEIGHT:
                return Relation.AT_MOST
            case Quantity.SMALLEST_WEIGHT:
                return Relation.AT_LEAST
            case Quantity.FIRST_OVERTAKEN if round < self.rounds[0]:
                return Relation.AT_LEAST
        return None

    @property
    def number(self) -> float:
        return float(self.value)

    @property
    def tolerance(self) -> float:
        """Half a unit of the last printed digit; 0 is meant exactly."""
        decimals = len(self.value.partition(".")[2])
        return 0.5 * 10.0**-decimals if decimals else 0.0

    def reach(self, round: int, sizes: Sizes, reading: Reading) -> Range:
        """What its quantity can be in a round."""
        clients = self.clients_among(sizes)
        if self.quantity is Quantity.SPREAD:
            return spread_range(round, sizes, clients, reading)
        if self.quantity is Quantity.DEVIATION:
            group = [client for client, size in enumerate(sizes) if size == sizes[clients[0]]]
            return deviation_range(round, sizes, clients, group, reading)
        return weight_range(round, sizes, clients[0], reading)

    def similarity_needed(self, round: int, sizes: Sizes, reading: Reading) -> float | None:
        """For a weight, the gap of similarity to all others that gives the printed value; for a
        spread, about the range of similarities within the clients.
        """
        if self.quantity is Quantity.DEVIATION:
            return None
        if self.quantity is Quantity.SPREAD:
            return similarity_range(round, sizes, self.number, reading)
        client = self.clients_among(sizes)[0]
        return similarity_gap(round, sizes, client, self.number, reading)

    def is_possible(self, relation: Relation, reach: Range) -> bool:
        """Whether some value within reach is in this relation to the printed one."""
        low, high = reach
        match relation:
            case Relation.EQUAL:
                return low <= self.number + self.tolerance and high >= self.number - self.tolerance
            case Relation.BELOW:
                return low < self.number
            case Relation.ABOVE:
                return high > self.number
            case Relation.AT_MOST:
                return low <= self.number + self.tolerance
            case Relation.AT_LEAST:
                return high >= self.number - self.tolerance

    def is_certain(self, relation: Relation, reach: Range) -> bool:
        """Whether every value within reach is in this relation to the printed one."""
        low, high = reach
        match relation:
            case Relation.EQUAL:
                return low >= self.number - self.tolerance and high <= self.number + self.tolerance
            case Relation.BELOW:
                return high < self.number
            case Relation.ABOVE:
                return low > self.number
            case Relation.AT_MOST:
                return high <= self.number + self.tolerance
            case Relation.AT_LEAST:
                return low >= self.number - self.tolerance


@dataclass(frozen=True)
class ClaimVerdict:
    """What one reading makes of a claim, in one scenario."""

    outcome: Outcome
    low: float  # what similarities in [-1, 1] can give, in the claim's (worst) round
    high: float
    failing: tuple[int, ...]  # rounds in which it cannot hold
    needs: Mapping[int, float]  # by round: the gap of similarities that gives the printed value


JudgedClaim = tuple[WeightClaim, dict[Reading, dict[str, ClaimVerdict]]]  # by reading and scenario


def judge_claim(claim: WeightClaim, sizes: Sizes, reading: Reading) -> ClaimVerdict:
    """Whether the claim can hold under the reading, and what it would take."""
    relations = claim.relations
    reaches = {round: claim.reach(round, sizes, reading) for round in relations}
    failing = tuple(
        round
        for round, relation in relations.items()
        if not claim.is_possible(relation, reaches[round])
    )
    certain = all(
        claim.is_certain(relation, reaches[round]) for round, relation in relations.items()
    )
    outcome: Outcome = "can"
    needs = {}
    if failing:
        outcome = "never"
    elif certain:
        outcome = "always"
    else:
        for round in claim.rounds:
            needed = claim.similarity_needed(round, sizes, reading)
            if needed is not None:
                needs[round] = needed
    worst = next((round for round in failing if round in claim.rounds), claim.rounds[0])
    low, high = reaches[worst]
    return ClaimVerdict(outcome, low, high, failing, needs)


def judge_claims(claims: Sequence[WeightClaim], sizes: Mapping[str, Sizes]) -> list[JudgedClaim]:
    """Each claim under each reading, in each scenario that it is about."""
    every_scenario = sorted({claim.scenario for claim in claims} & set(sizes))
    judged: list[JudgedClaim] = []
    for claim in claims:
        scenarios = every_scenario if claim.scenario == BOTH_SCENARIOS else [claim.scenario]
        verdicts = {}
        for reading in READINGS:
            verdicts[reading] = {
                scenario: judge_claim(claim, sizes[scenario], reading) for scenario in scenarios
            }
        judged.append((claim, verdicts))
    return judged


def published_claims() -> list[WeightClaim]:
    """What the text says about the weights over the rounds."""
    return [WeightClaim.of(row) for row in read_published("dynamics_claims")]


def claims_by_reading() -> list[JudgedClaim]:
    """Which of the printed statements about weights each reading can give."""
    return judge_claims(published_claims(), client_sizes())
