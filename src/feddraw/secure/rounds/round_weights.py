"""The weights of a secure round: exact numbers that each client gives itself, and what the policy
makes of them.

A weight is a multiple of 2^-40, so weights and their sum are exact. Each product with a weight is
rounded to 2^-40: a mean over K clients is at most 2^-41 · K / (sum of the weights) away from that
of the real numbers. The sum of the weights must be at least K · `SMALLEST_WEIGHT`, so that this is
never more than `SECURE_PRECISION`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from feddraw.core import (
    Cohort,
    Column,
    Facts,
    Layout,
    Method,
    Model,
    Piece,
    Update,
    Weights,
    class_row_name,
)
from feddraw.errors import UserError
from feddraw.secure.rounds import announcement
from feddraw.secure.rounds.announcement import Announcement, ClientAnnouncement, Numbers
from feddraw.secure.sums.fixed_point import FRACTION_BITS
from feddraw.server.partial_labels import bound_then_divide

WEIGHT_ROUNDING = 1e-9  # that weights may differ by which two machines compute
SMALLEST_WEIGHT = announcement.LEAST_SHARE_SUMMED  # mean weight
SECURE_PRECISION = 2.0 ** -(FRACTION_BITS + 1) / SMALLEST_WEIGHT  # of a mean over clients: 2^-25


def secure_outputs_with_own_weight(method: Method, layout: Layout, facts: Facts) -> tuple[int, ...]:
    """The outputs with a weight of their own: by the rule, or because not all who were asked label
    the finding.
    """
    if method.weighting.by_output:
        return tuple(range(layout.outputs))
    return (
        ()
        if facts.labelled is None
        else tuple(np.flatnonzero(~facts.labelled.all(axis=0)).tolist())
    )


def exact_weight(weight: float) -> float:
    """The nearest weight that fixed point can hold."""
    return math.ldexp(round(math.ldexp(weight, FRACTION_BITS)), -FRACTION_BITS)


def secure_weights_from_own(
    own: list[Numbers], layout: Layout, outputs: tuple[int, ...]
) -> Weights:
    """The weights of some clients from how each weighs itself."""
    columns = np.array(own, np.float64).T
    body, *rows = [column / total if (total := column.sum()) else column for column in columns]
    pairs = zip(outputs, rows, strict=True)
    return Weights(
        body,
        pieces=[
            Piece(class_row_name(output), layout.rows_of(output), row) for output, row in pairs
        ],
    )


def check_weights_fit_sum(method: Method, facts: Facts) -> None:
    """Refuse labels that do not fit the rule, and settings and sizes that allow weights too small
    to be exact.
    """
    if method.server.all_rows and facts.labelled is not None:
        raise UserError(
            "this method needs all clients' moves everywhere, and some do not label all findings"
        )
    try:
        low, high = method.weighting.scores(facts)
    except NotImplementedError:  # known only when the weights are
        return
    if math.isfinite(low) and low - high < math.log(SMALLEST_WEIGHT):
        raise UserError(
            f"in round {facts.round} a client may weigh {math.exp(low - high):.2g} of another: a"
            f" secure sum is exact to {SMALLEST_WEIGHT:.2g}; choose milder settings (FedDRAW: a"
            " smaller beta_max), or leave out tiny clients"
        )


def weights_too_small(weights: Column, clients: int) -> bool:
    """Whether sums of weights over so many clients are too small for the stated precision; a row
    may have none.
    """
    least = clients * SMALLEST_WEIGHT
    return bool(weights[0] < least or ((weights > 0) & (weights < least)).any())


def secure_weights_under_policy(
    method: Method, told: Announcement, layout: Layout
) -> dict[str, Numbers]:
    """What the policy makes of the weights that the clients propose, by name; clients and server
    compute the same.
    """
    weights, names = secure_proposals_under_policy(method, told, layout)
    outputs = secure_outputs_with_own_weight(method, layout, told.facts())
    starts = {layout.rows_of(output)[0].start: output for output in outputs}
    columns = dict.fromkeys(outputs, weights.values)
    columns |= {
        starts[span.start]: values for span, values in weights.segments if span.start in starts
    }
    table = np.stack([weights.values, *(columns[output] for output in outputs)], axis=1)
    return {
        name: tuple(map(exact_weight, row)) for name, row in zip(names, table.tolist(), strict=True)
    }


def secure_proposals_under_policy(
    method: Method, told: Announcement, layout: Layout
) -> tuple[Weights, list[str]]:
    """The proposed weights within the policy, and whose they are."""
    facts = told.facts()
    places = [place for place, party in enumerate(told.parties) if party.name in told.proposed]
    names = [told.parties[place].name for place in places]
    outputs = secure_outputs_with_own_weight(method, layout, facts)
    proposed = secure_weights_from_own([told.proposed[name] for name in names], layout, outputs)
    if not method.weighting.by_output:
        proposed = replace(proposed, pieces=())
    nothing = np.zeros(0, np.float32)
    model = Model(nothing, nothing, np.zeros(0, np.int64), layout)
    labelled = dict.fromkeys(places) if facts.labelled is None else dict(enumerate(facts.labelled))
    updates = [
        Update(place, model, facts.sizes[place], 1, labelled=labelled[place]) for place in places
    ]
    everyone = [party.name for party in told.parties]
    cohort = Cohort(facts.round, facts.rounds, model, updates, len(everyone))
    bound = bound_then_divide(told.limits().bound(everyone, method.server))
    return bound(cohort, proposed), names


def announce_weights_under_policy(
    method: Method, told: Announcement, layout: Layout, announced: Mapping[str, ClientAnnouncement]
) -> Announcement:
    """With the weights that the policy makes of those that clients propose."""
    if not announced:
        raise announcement.TooFewSummed("no client takes part in the sum")
    proposed = replace(told, proposed={name: one.own for name, one in announced.items()})
    return replace(proposed, weights=secure_weights_under_policy(method, proposed, layout))
