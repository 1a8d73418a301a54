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
FOLLOWED_CLIENT = {
    "CHX-4": 9,
    "CHX-1": 0,
}  # the client whose weights the text follows, counted from 0
CROSSING_ROUND = {"CHX-4": 4, "CHX-1": 5}  # the first round in which it is beyond the equal weight


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
        ends = [
            int(name.strip().removeprefix("C")) - 1
            for name in self.client.split("-")
            if self.client != "all"
        ]
        return list(range(ends[0], ends[-1] + 1)) if ends else []

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
    needs: Mapping[
        int, float
    ]  # by round: the difference of similarities that gives the printed value


JudgedClaim = tuple[WeightClaim, dict[Reading, dict[str, ClaimVerdict]]]  # by reading and scenario


def judge_claim(claim: WeightClaim, sizes: Sizes, reading: Reading) -> ClaimVerdict:
    """Whether the claim can hold under the reading, and what it would take."""
    ranges = {t: _claim_range(claim, t, sizes, reading) for t in claim.rounds}
    value, margin = float(claim.value), claim.tolerance
    failing = [
        t
        for t, reach in ranges.items()
        if not _claim_possible(reach, claim.relation, value, margin)
    ]
    for t, relation in _claim_in_other_rounds(claim):
        failing += (
            []
            if _claim_possible(_claim_range(claim, t, sizes, reading), relation, value, margin)
            else [t]
        )
    certain = all(_claim_certain(reach, claim.relation, value, margin) for reach in ranges.values())
    low, high = ranges[failing[0] if failing and failing[0] in ranges else claim.rounds[0]]
    outcome: Outcome = (
        "never" if failing else "always" if certain and not _claim_in_other_rounds(claim) else "can"
    )
    needs = (
        {t: _similarity_needed(claim, t, sizes, reading) for t in claim.rounds}
        if outcome == "can"
        else {}
    )
    return ClaimVerdict(
        outcome,
        low,
        high,
        tuple(sorted(failing)),
        {t: n for t, n in needs.items() if n is not None},
    )


def judge_claims(claims: Sequence[WeightClaim], sizes: Mapping[str, Sizes]) -> list[JudgedClaim]:
    """Each claim under each reading, in each scenario that it is about."""
    judged: list[JudgedClaim] = []
    named = sorted({claim.scenario for claim in claims} & set(sizes))
    for claim in claims:
        about = named if claim.scenario == "both" else [claim.scenario]
        verdicts = {
            r: {name: judge_claim(claim, sizes[name], r) for name in about} for r in READINGS
        }
        judged.append((claim, verdicts))
    return judged


def claimed_weight_range(round: int, sizes: Sizes, client: int, reading: Reading) -> Range:
    """The least and the most a client can count."""
    alone = np.full(len(sizes), -1.0)
    alone[client] = 1.0
    return tuple(float(_feddraw_weights(round, sizes, s, reading)[client]) for s in (-alone, alone))  # type: ignore[return-value]


def spread_range(round: int, sizes: Sizes, clients: Sequence[int], reading: Reading) -> Range:
    """The least and the most by which the largest and the smallest weight of these clients can
    differ.
    """
    prior, trust = size_prior(sizes), gamma(round, reading=reading)
    apart = np.full(len(sizes), -1.0)
    apart[max(clients, key=lambda client: float(prior[client]))] = 1.0
    level = (
        np.zeros(len(sizes))
        if trust == 1
        else np.clip(-trust / (1 - trust) * (prior - prior.mean()), -1, 1)
    )
    weights = [
        _feddraw_weights(round, sizes, similarity, reading)[list(clients)]
        for similarity in (level, apart)
    ]
    return tuple(_without_rounding_error(float(np.ptp(some))) for some in weights)  # type: ignore[return-value]


def deviation_range(
    round: int, sizes: Sizes, members: Sequence[int], group: Sequence[int], reading: Reading
) -> Range:
    """How far below and above the mean weight of their group of equal size all of these members
    together can be.
    """
    low = np.ones(len(sizes))
    low[list(members)] = -1.0
    found = []
    for similarity, worst in ((low, np.max), (-low, np.min)):
        weights = _feddraw_weights(round, sizes, similarity, reading)
        found.append(
            _without_rounding_error(
                float(worst(weights[list(members)] - weights[list(group)].mean()))
            )
        )
    return found[0], found[1]


def claimed_similarity_gap(
    round: int, sizes: Sizes, client: int, weight: float, reading: Reading
) -> float | None:
    """How much more similar than all others, equal in size and similarity, a client must be to have
    this weight.
    """
    trust, sharpness = gamma(round, reading=reading), beta(round, ROUNDS, reading=reading)
    if not sharpness or trust == 1:
        return None
    prior, others = size_prior(sizes), len(sizes) - 1
    lead = math.log(weight * others / (1 - weight)) / sharpness  # of the client's reputation
    return (lead - trust * float(prior[client] - prior[client - 1])) / (1 - trust)


def _feddraw_weights(round: int, sizes: Sizes, similarity: Floats, reading: Reading) -> Floats:
    return weights_and_parts(
        sizes, similarity, *gamma_and_beta(round, ROUNDS, reading=reading)
    ).weight


def _without_rounding_error(value: float) -> float:
    return 0.0 if abs(value) < 1e-12 else value  # equal weights differ by a rounding error at most


def _claim_range(claim: WeightClaim, round: int, sizes: Sizes, reading: Reading) -> Range:
    clients = claim.clients or list(range(len(sizes)))
    if claim.quantity.startswith("max-min"):
        return spread_range(round, sizes, clients, reading)
    if claim.quantity.startswith("deviation"):
        group = [i for i, size in enumerate(sizes) if size == sizes[clients[0]]]
        return deviation_range(round, sizes, clients, group, reading)
    return claimed_weight_range(round, sizes, clients[0], reading)


def _claim_in_other_rounds(claim: WeightClaim) -> list[tuple[int, str]]:
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


def _claim_possible(reach: Range, relation: str, value: float, margin: float) -> bool:
    low, high = reach
    return {
        "==": low <= value + margin and high >= value - margin,
        "<": low < value,
        ">": high > value,
        "<=": low <= value + margin,
        ">=": high >= value - margin,
    }[relation]


def _claim_certain(reach: Range, relation: str, value: float, margin: float) -> bool:
    low, high = reach
    return {
        "==": low >= value - margin and high <= value + margin,
        "<": high < value,
        ">": low > value,
    }[relation]


def _similarity_needed(
    claim: WeightClaim, round: int, sizes: Sizes, reading: Reading
) -> float | None:
    """For a weight, the gap to all others; for a spread, about the range of similarities within the
    clients.
    """
    if claim.quantity.startswith("weight"):
        return claimed_similarity_gap(round, sizes, claim.clients[0], float(claim.value), reading)
    if not claim.quantity.startswith("max-min"):
        return None
    trust, sharpness = gamma(round, reading=reading), beta(round, ROUNDS, reading=reading)
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
    return next(
        float(one.value)
        for one in published_claims()
        if one.scenario == scenario and "imum" in one.quantity
    )


def similarity_gap_needed(scenario: str, round: int, weight: float, reading: Reading) -> float:
    """How much more similar than the others the followed client must be for this weight."""
    gap = claimed_similarity_gap(
        round, client_sizes()[scenario], FOLLOWED_CLIENT[scenario], weight, reading
    )
    return math.nan if gap is None else gap


def claims_by_reading() -> list[JudgedClaim]:
    """Which of the printed statements about weights each reading can give."""
    return judge_claims(published_claims(), client_sizes())


def readings_in_words(judged: Sequence[JudgedClaim]) -> dict[Reading, str]:
    """For each reading, how many of the claims can hold and what they ask for, in words."""
    return {
        reading: f"{_claims_that_can_hold(judged, reading)} {_similarity_gap_in_words(reading)}"
        for reading in READINGS
    }


def _claims_that_can_hold(judged: Sequence[JudgedClaim], reading: Reading) -> str:
    verdicts = [list(by_reading[reading].values()) for _, by_reading in judged]
    possible = sum(all(one.outcome != "never" for one in some) for some in verdicts)
    last = beta(ROUNDS - 1, ROUNDS, reading=reading)
    end = (
        f"beta is {last:.4f} in the last round, so uniform only by chance"
        if last
        else "the last round is uniform"
    )
    return f"{possible} of {len(judged)} can hold; {end}."


def _similarity_gap_in_words(reading: Reading) -> str:
    """Whether the gap must grow: before the crossing it is below one bound, at the extreme it has
    one value.
    """
    said = []
    for scenario, crossing in CROSSING_ROUND.items():
        equal = 1 / len(client_sizes()[scenario])
        before = abs(similarity_gap_needed(scenario, crossing - 1, equal, reading))
        extreme = abs(similarity_gap_needed(scenario, 6, printed_extreme_weight(scenario), reading))
        path = "so it must grow" if extreme > before else "so it may shrink"
        said.append(
            f"in {scenario} at most {before:.4f} in round {crossing - 1} and {extreme:.4f} in round"
            f" 6, {path}"
        )
    return f"With the crossing where it is printed, the gap of similarities is {'; '.join(said)}."
