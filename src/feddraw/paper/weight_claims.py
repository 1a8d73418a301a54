"""Which printed statements about weights can each reading of FedDRAW give? Computed for any
similarities at all.

The paper prints weights but not the similarities behind them, so a statement about a round can hold
if some similarities within [-1, 1] give it. A weight rises with its own similarity and falls with
every other one: its range is reached where one client is at one end and all others at the other,
and every value between is possible. Rounds are free of one another, so statements about different
rounds do not interfere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from feddraw.core.schedules import (
    READINGS,
    ROUNDS,
    Reading,
    beta,
    gamma,
    gamma_and_beta,
    size_prior,
    weights_and_parts,
)
from feddraw.paper.published_tables import client_sizes, read_published

Floats = NDArray[np.float64]
Sizes = Sequence[float]
Range = tuple[float, float]
Outcome = Literal["always", "can", "never"]
FOLLOWED_CLIENT = {"CHX-4": 9, "CHX-1": 0}  # whose weights the text follows, counted from 0
CROSSING_ROUND = {"CHX-4": 4, "CHX-1": 5}  # the first round in which it is beyond the equal weight
EXTREME_ROUND = 6  # in which it is at its largest or smallest


@dataclass(frozen=True)
class WeightClaim:
    """A row of `dynamics_claims.csv`: what is printed about some clients in some rounds."""

    scenario: str
    client: str  # "C10", "C1-C9", "all"
    round: str  # "6", "4-10", "every round"
    quantity: str
    relation: str
    value: str  # as printed: its digits say how exactly

    @property
    def clients(self) -> list[int]:
        """Counted from 0; none for "all"."""
        if self.client == "all":
            return []
        ends = [int(name.strip().removeprefix("C")) for name in self.client.split("-")]
        return list(range(ends[0] - 1, ends[-1]))

    @property
    def rounds(self) -> list[int]:
        if self.round == "every round":
            return list(range(ROUNDS))
        ends = [int(end) for end in self.round.split("-")]
        return list(range(ends[0], ends[-1] + 1))

    @property
    def tolerance(self) -> float:
        """Half a unit of the last printed digit; 0 is meant exactly."""
        decimals = len(self.value.partition(".")[2])
        return 0.5 * 10.0**-decimals if decimals else 0.0


@dataclass(frozen=True)
class ClaimVerdict:
    """What one reading makes of a claim, in one scenario."""

    outcome: Outcome  # whatever the similarities; for some similarities; for none
    low: float  # what similarities in [-1, 1] can give, in the claim's (worst) round
    high: float
    failing: tuple[int, ...]  # rounds in which it cannot hold
    needs: Mapping[int, float]  # by round: the gap of similarities that gives the printed value


JudgedClaim = tuple[WeightClaim, dict[Reading, dict[str, ClaimVerdict]]]  # by reading and scenario


def judge_claim(claim: WeightClaim, sizes: Sizes, reading: Reading) -> ClaimVerdict:
    """Whether the claim can hold under the reading, and what it would take."""
    ranges = {t: _reachable(claim, t, sizes, reading) for t in claim.rounds}
    failing = [t for t, reach in ranges.items() if not _is_possible(reach, claim, claim.relation)]
    others = _in_other_rounds(claim)
    for t, relation in others:
        if not _is_possible(_reachable(claim, t, sizes, reading), claim, relation):
            failing.append(t)
    outcome: Outcome = "can"
    if failing:
        outcome = "never"
    elif not others and all(_is_certain(reach, claim) for reach in ranges.values()):
        outcome = "always"
    needs = {}
    if outcome == "can":
        for t in claim.rounds:
            gap = _similarity_needed(claim, t, sizes, reading)
            if gap is not None:
                needs[t] = gap
    shown = failing[0] if failing and failing[0] in ranges else claim.rounds[0]
    low, high = ranges[shown]
    return ClaimVerdict(outcome, low, high, tuple(sorted(failing)), needs)


def judge_claims(claims: Sequence[WeightClaim], sizes: Mapping[str, Sizes]) -> list[JudgedClaim]:
    """Each claim under each reading, in each scenario that it is about."""
    every_scenario = sorted({claim.scenario for claim in claims} & set(sizes))
    judged: list[JudgedClaim] = []
    for claim in claims:
        scenarios = every_scenario if claim.scenario == "both" else [claim.scenario]
        verdicts = {}
        for reading in READINGS:
            verdicts[reading] = {
                scenario: judge_claim(claim, sizes[scenario], reading) for scenario in scenarios
            }
        judged.append((claim, verdicts))
    return judged


def weight_range(round: int, sizes: Sizes, client: int, reading: Reading) -> Range:
    """The least and the most a client can count."""
    most_similar = np.full(len(sizes), -1.0)
    most_similar[client] = 1.0
    least = _weights(round, sizes, -most_similar, reading)[client]
    most = _weights(round, sizes, most_similar, reading)[client]
    return float(least), float(most)


def spread_range(round: int, sizes: Sizes, clients: Sequence[int], reading: Reading) -> Range:
    """The least and the most by which the largest and the smallest weight of these clients can
    differ.
    """
    prior = size_prior(sizes)
    trust = gamma(round, reading=reading)
    levelling = np.zeros(len(sizes))  # similarities that undo the effect of size
    if trust != 1:
        levelling = np.clip(-trust / (1 - trust) * (prior - prior.mean()), -1, 1)
    parting = np.full(len(sizes), -1.0)  # the largest of these clients is most similar
    parting[max(clients, key=lambda client: float(prior[client]))] = 1.0

    def spread(similarity: Floats) -> float:
        weights = _weights(round, sizes, similarity, reading)[list(clients)]
        return _without_rounding_error(float(np.ptp(weights)))

    return spread(levelling), spread(parting)


def deviation_range(
    round: int, sizes: Sizes, members: Sequence[int], group: Sequence[int], reading: Reading
) -> Range:
    """How far below and above the mean weight of their group of equal size all of these members
    together can be.
    """
    least_similar = np.ones(len(sizes))
    least_similar[list(members)] = -1.0

    def deviations(similarity: Floats) -> Floats:
        weights = _weights(round, sizes, similarity, reading)
        return np.asarray(weights[list(members)] - weights[list(group)].mean())

    below = float(deviations(least_similar).max())
    above = float(deviations(-least_similar).min())
    return _without_rounding_error(below), _without_rounding_error(above)


def similarity_gap(
    round: int, sizes: Sizes, client: int, weight: float, reading: Reading
) -> float | None:
    """How much more similar than all others, equal in size and similarity, a client must be to have
    this weight.
    """
    trust = gamma(round, reading=reading)
    sharpness = beta(round, ROUNDS, reading=reading)
    if not sharpness or trust == 1:
        return None
    prior = size_prior(sizes)
    others = len(sizes) - 1
    lead = math.log(weight * others / (1 - weight)) / sharpness  # of the client's reputation
    return (lead - trust * float(prior[client] - prior[client - 1])) / (1 - trust)


def _weights(round: int, sizes: Sizes, similarity: Floats, reading: Reading) -> Floats:
    trust, sharpness = gamma_and_beta(round, ROUNDS, reading=reading)
    return weights_and_parts(sizes, similarity, trust, sharpness).weight


def _without_rounding_error(value: float) -> float:
    return 0.0 if abs(value) < 1e-12 else value  # equal weights differ by a rounding error at most


def _reachable(claim: WeightClaim, round: int, sizes: Sizes, reading: Reading) -> Range:
    """What the claimed quantity can be in a round."""
    clients = claim.clients or list(range(len(sizes)))
    if claim.quantity.startswith("max-min"):
        return spread_range(round, sizes, clients, reading)
    if claim.quantity.startswith("deviation"):
        group = [i for i, size in enumerate(sizes) if size == sizes[clients[0]]]
        return deviation_range(round, sizes, clients, group, reading)
    return weight_range(round, sizes, clients[0], reading)


def _in_other_rounds(claim: WeightClaim) -> list[tuple[int, str]]:
    """What a claim says about the other rounds: a maximum is nowhere exceeded, a first time was not
    before.
    """
    others = [t for t in range(ROUNDS) if t not in claim.rounds]
    if "maximum over rounds" in claim.quantity:
        return [(t, "<=") for t in others]
    if "minimum over rounds" in claim.quantity:
        return [(t, ">=") for t in others]
    if "first round" in claim.quantity:
        return [(t, ">=") for t in others if t < claim.rounds[0]]
    return []


def _is_possible(reach: Range, claim: WeightClaim, relation: str) -> bool:
    """Whether some value within reach is in this relation to the claimed one."""
    low, high = reach
    value = float(claim.value)
    margin = claim.tolerance
    return {
        "==": low <= value + margin and high >= value - margin,
        "<": low < value,
        ">": high > value,
        "<=": low <= value + margin,
        ">=": high >= value - margin,
    }[relation]


def _is_certain(reach: Range, claim: WeightClaim) -> bool:
    """Whether every value within reach is as claimed."""
    low, high = reach
    value = float(claim.value)
    margin = claim.tolerance
    return {
        "==": low >= value - margin and high <= value + margin,
        "<": high < value,
        ">": low > value,
    }[claim.relation]


def _similarity_needed(
    claim: WeightClaim, round: int, sizes: Sizes, reading: Reading
) -> float | None:
    """For a weight, the gap to all others; for a spread, about the range of similarities within the
    clients.
    """
    if claim.quantity.startswith("weight"):
        return similarity_gap(round, sizes, claim.clients[0], float(claim.value), reading)
    if not claim.quantity.startswith("max-min"):
        return None
    trust = gamma(round, reading=reading)
    sharpness = beta(round, ROUNDS, reading=reading)
    if not sharpness or trust == 1:
        return None
    if float(claim.value) == 0:  # equal weights of unequal clients: similarity must undo size
        return trust / (1 - trust) * float(np.ptp(size_prior(sizes)))
    return float(claim.value) * len(sizes) / (sharpness * (1 - trust))  # weights are near 1 / K


def published_claims() -> list[WeightClaim]:
    """What the text says about the weights over the rounds."""
    return [WeightClaim(**row) for row in read_published("dynamics_claims")]


def printed_extreme_weight(scenario: str) -> float:
    """The printed maximum or minimum over the rounds of the client that the text follows."""
    for claim in published_claims():
        if claim.scenario == scenario and re.search("maximum|minimum", claim.quantity):
            return float(claim.value)
    raise KeyError(scenario)


def similarity_gap_needed(scenario: str, round: int, weight: float, reading: Reading) -> float:
    """How much more similar than the others the followed client must be for this weight."""
    client = FOLLOWED_CLIENT[scenario]
    gap = similarity_gap(round, client_sizes()[scenario], client, weight, reading)
    return math.nan if gap is None else gap


def claims_by_reading() -> list[JudgedClaim]:
    """Which of the printed statements about weights each reading can give."""
    return judge_claims(published_claims(), client_sizes())


def readings_in_words(judged: Sequence[JudgedClaim]) -> dict[Reading, str]:
    """For each reading, how many of the claims can hold and what they ask for, in words."""
    return {
        reading: f"{_how_many_can_hold(judged, reading)} {_gap_over_rounds(reading)}"
        for reading in READINGS
    }


def _how_many_can_hold(judged: Sequence[JudgedClaim], reading: Reading) -> str:
    possible = 0
    for _, by_reading in judged:
        verdicts = by_reading[reading].values()
        possible += all(verdict.outcome != "never" for verdict in verdicts)
    last_beta = beta(ROUNDS - 1, ROUNDS, reading=reading)
    end = "the last round is uniform"
    if last_beta:
        end = f"beta is {last_beta:.4f} in the last round, so uniform only by chance"
    return f"{possible} of {len(judged)} can hold; {end}."


def _gap_over_rounds(reading: Reading) -> str:
    """Whether the gap must grow: before the crossing it is below one bound, at the extreme it has
    one value.
    """
    parts = []
    for scenario, crossing in CROSSING_ROUND.items():
        equal_weight = 1 / len(client_sizes()[scenario])
        extreme_weight = printed_extreme_weight(scenario)
        before = abs(similarity_gap_needed(scenario, crossing - 1, equal_weight, reading))
        extreme = abs(similarity_gap_needed(scenario, EXTREME_ROUND, extreme_weight, reading))
        change = "so it must grow" if extreme > before else "so it may shrink"
        parts.append(
            f"in {scenario} at most {before:.4f} in round {crossing - 1} and {extreme:.4f} in round"
            f" {EXTREME_ROUND}, {change}"
        )
    return f"With the crossing where it is printed, the gap of similarities is {'; '.join(parts)}."
