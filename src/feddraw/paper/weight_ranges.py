"""Which weights can FedDRAW give in a round, if nothing is known of the similarities but that they
lie within [-1, 1]?

A weight rises with its own similarity and falls with every other one: its range is reached where
one client is at one end and all others at the other, and every value between is possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feddraw.core.schedules import (
    ROUNDS,
    Reading,
    beta,
    gamma,
    gamma_and_beta,
    size_prior,
    weights_and_parts,
)

Floats = NDArray[np.float64]
Sizes = Sequence[float]  # by client, images
Range = tuple[float, float]


def weights_of_round(round: int, sizes: Sizes, similarity: Floats, reading: Reading) -> Floats:
    """(clients,): FedDRAW's weights under a reading."""
    trust, sharpness = gamma_and_beta(round, ROUNDS, reading=reading)
    return weights_and_parts(sizes, similarity, trust, sharpness).weight


def weight_range(round: int, sizes: Sizes, client: int, reading: Reading) -> Range:
    """The least and the most a client can count."""
    most_similar = np.full(len(sizes), -1.0)
    most_similar[client] = 1.0
    least = weights_of_round(round, sizes, -most_similar, reading)[client]
    most = weights_of_round(round, sizes, most_similar, reading)[client]
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
        weights = weights_of_round(round, sizes, similarity, reading)[list(clients)]
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
        weights = weights_of_round(round, sizes, similarity, reading)
        return np.asarray(weights[list(members)] - weights[list(group)].mean())

    below = float(deviations(least_similar).max())
    above = float(deviations(-least_similar).min())
    return _without_rounding_error(below), _without_rounding_error(above)


def _without_rounding_error(value: float) -> float:
    return 0.0 if abs(value) < 1e-12 else value  # equal weights differ by a rounding error at most


# ----------------------------------------------------------------------- from weights to similarity


def similarity_gap(
    round: int, sizes: Sizes, client: int, weight: float, reading: Reading
) -> float | None:
    """How much more similar than all others, equal in size and similarity, a client must be to have
    this weight; None in a round in which similarity does not count.
    """
    trust = gamma(round, reading=reading)
    sharpness = beta(round, ROUNDS, reading=reading)
    if not sharpness or trust == 1:
        return None
    prior = size_prior(sizes)
    others = len(sizes) - 1
    lead = math.log(weight * others / (1 - weight)) / sharpness  # of the client's reputation
    return (lead - trust * float(prior[client] - prior[client - 1])) / (1 - trust)


def similarity_range(round: int, sizes: Sizes, spread: float, reading: Reading) -> float | None:
    """By about how much similarities must differ for this spread of weights; None in a round in
    which similarity does not count.
    """
    trust = gamma(round, reading=reading)
    sharpness = beta(round, ROUNDS, reading=reading)
    if not sharpness or trust == 1:
        return None
    if spread == 0:  # equal weights of unequal clients: similarity must undo size
        return trust / (1 - trust) * float(np.ptp(size_prior(sizes)))
    return spread * len(sizes) / (sharpness * (1 - trust))  # weights are near 1 / K
