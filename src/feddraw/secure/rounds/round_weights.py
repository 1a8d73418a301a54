"""The weights of a secure round: exact numbers that each client gives itself, and what the policy
makes of them.

A weight is a multiple of 2^-40, so weights and their sum are exact. Each product with a weight is
rounded to 2^-40: a mean over K clients is at most 2^-41 · K / (sum of the weights) away from that
of the real numbers. The sum of the weights must be at least K · `SMALLEST_WEIGHT`, so that this is
never more than `SECURE_PRECISION`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from feddraw.core import (
    Cohort,
    Column,
    Layout,
    Method,
    Model,
    Piece,
    ScoredByOutput,
    Update,
    Weights,
    output_name,
)
from feddraw.secure.rounds import rules_of_method
from feddraw.secure.rounds.rules_of_method import SMALLEST_WEIGHT
from feddraw.secure.rounds.terms import Announcement, Numbers, Statement, TooFewSummed
from feddraw.secure.sums.fixed_point import FRACTION_BITS
from feddraw.server.partial_labels import divided_among_labelling

WEIGHT_ROUNDING = 1e-9  # that weights may differ by which two machines compute
SECURE_PRECISION = 2.0 ** -(FRACTION_BITS + 1) / SMALLEST_WEIGHT  # of a mean over clients: 2^-25


def exact_weight(weight: float) -> float:
    """The nearest weight that fixed point can hold."""
    return math.ldexp(round(math.ldexp(weight, FRACTION_BITS)), -FRACTION_BITS)


def normalised_weights(
    own_weights: Sequence[Numbers], layout: Layout, outputs: tuple[int, ...]
) -> Weights:
    """The weights of some clients, which add up to one, from their own ones."""
    columns = np.array(own_weights, np.float64).T
    body, *rows = [column / total if (total := column.sum()) else column for column in columns]
    pieces = [
        Piece(output_name(output), layout.rows_of(output), row)
        for output, row in zip(outputs, rows, strict=True)
    ]
    return Weights(body, pieces=pieces)


def weights_too_small(weights: Column, clients: int) -> bool:
    """Whether sums of weights over so many clients are too small for the stated precision; a row
    may have none.
    """
    least = clients * SMALLEST_WEIGHT
    return bool(weights[0] < least or ((weights > 0) & (weights < least)).any())


def weights_under_policy(
    method: Method, announcement: Announcement, layout: Layout
) -> dict[str, Numbers]:
    """What the policy makes of the weights that the clients propose, by name; clients and server
    compute the same.
    """
    weights, names = proposals_under_policy(method, announcement, layout)
    outputs = rules_of_method.separate_outputs(method, layout, announcement.facts)
    starts = {layout.rows_of(output)[0].start: output for output in outputs}
    columns = dict.fromkeys(outputs, weights.values)
    columns |= {
        starts[span.start]: values for span, values in weights.segments if span.start in starts
    }
    table = np.stack([weights.values, *(columns[output] for output in outputs)], axis=1)
    return {
        name: tuple(map(exact_weight, row)) for name, row in zip(names, table.tolist(), strict=True)
    }


def proposals_under_policy(
    method: Method, announcement: Announcement, layout: Layout
) -> tuple[Weights, list[str]]:
    """The proposed weights within the policy, and whose they are."""
    facts = announcement.facts
    everyone = [party.name for party in announcement.parties]
    places = [place for place, name in enumerate(everyone) if name in announcement.proposed]
    names = [everyone[place] for place in places]
    outputs = rules_of_method.separate_outputs(method, layout, facts)
    proposed = normalised_weights([announcement.proposed[name] for name in names], layout, outputs)
    if not isinstance(rules_of_method.weighting_of(method), ScoredByOutput):
        proposed = replace(proposed, pieces=())
    nothing = np.zeros(0, np.float32)
    model = Model(nothing, nothing, np.zeros(0, np.int64), layout)
    updates = []
    for place in places:
        labelled = None if facts.labelled is None else facts.labelled[place]
        updates.append(Update(place, model, facts.sizes[place], 1, labelled=labelled))
    cohort = Cohort(facts.round, facts.rounds, model, updates, len(everyone))
    bounded = announcement.terms.limits.bounded(proposed, cohort, everyone)
    return divided_among_labelling(cohort, bounded), names


def announce_weights_under_policy(
    method: Method,
    announcement: Announcement,
    layout: Layout,
    proposals: Mapping[str, Statement],
) -> Announcement:
    """With the weights that the policy makes of those that clients propose."""
    if not proposals:
        raise TooFewSummed("no client takes part in the sum")
    own_weights = {name: statement.own_weights for name, statement in proposals.items()}
    proposed = replace(announcement, proposed=own_weights)
    return replace(proposed, weights=weights_under_policy(method, proposed, layout))
