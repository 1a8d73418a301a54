"""What each reading of FedDRAW asks for: how many printed statements it can give, and how similar
the client must be whose weights the text follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from feddraw.core.schedules import READINGS, ROUNDS, Reading, beta
from feddraw.paper.published_tables import client_sizes
from feddraw.paper.weight_claims import JudgedClaim, Quantity, published_claims
from feddraw.paper.weight_ranges import similarity_gap

FOLLOWED_CLIENT = {"CHX-4": 9, "CHX-1": 0}  # whose weights the text follows, counted from 0
CROSSING_ROUND = {"CHX-4": 4, "CHX-1": 5}  # the first round in which it is beyond the equal weight
EXTREME_ROUND = 6  # in which it is at its largest or smallest


def printed_extreme_weight(scenario: str) -> float:
    """The printed maximum or minimum over the rounds of the client that the text follows."""
    extremes = (Quantity.LARGEST_WEIGHT, Quantity.SMALLEST_WEIGHT)
    for claim in published_claims():
        if claim.scenario == scenario and claim.quantity in extremes:
            return claim.number
    raise KeyError(scenario)


def similarity_gap_needed(scenario: str, round: int, weight: float, reading: Reading) -> float:
    """How much more similar than the others the followed client must be for this weight."""
    client = FOLLOWED_CLIENT[scenario]
    gap = similarity_gap(round, client_sizes()[scenario], client, weight, reading)
    return math.nan if gap is None else gap


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
