"""FedCE: clients count more that move in another direction and that the others' model serves badly.
(Jiang et al., CVPR 2023)

In gradient space: one minus the cosine of a client's move to the sum of the others' moves, by the
weights of the round before, averaged over rounds. In data space: the share of the client's labels
that the model without it gets wrong, averaged over rounds. Both as shares of their sum, at least
0.001; weights are proportional to their sum (`join = "plus"`, as the authors' code runs it) or
their product ("times").

The model without a client is (x - w y) / (1 - w), which the client computes itself: y is the model
that it sent for x, and w how much it counted, which the server tells it in a table that all clients
get (`core.addressed`). Where it did not count in x, or alone made it, it takes x. So there is an
error in the first round too, of the initial model; the authors take 1. They measure one minus the
Dice coefficient on validation images; findings have no Dice coefficient, and we take the client's
training images. Where `gate.clip` shortened the move, and in the rows of a finding that some
clients do not label, what is taken out is not quite what counted.

The paper has everybody in every round. Here means are over a client's own rounds, but for those in
which it was alone, and a client without a weight before has the mean of the others'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from feddraw.core import (
    TAG,
    Client,
    Cohort,
    Column,
    Extra,
    Job,
    Local,
    Memory,
    Method,
    Model,
    Needs,
    Server,
    State,
    Sums,
    Update,
    Vector,
    Weighted,
    Weighting,
    Weights,
    addressed,
    drawn_tag,
    gram,
    normalize,
    of_present,
    own_row,
    with_present,
)
from feddraw.core.schedules import Floats
from feddraw.errors import one_of
from feddraw.methods.shapfed import shares_so_far

Join = Literal["plus", "times"]

LEAST = 1e-3  # of each share: nobody is left out
COEFFICIENTS = "coefficients"  # among what is sent beside the model

ERROR_WITHOUT = Extra(
    "error without",
    "number",
    0.0,
    1.0,
    meaning="the share of its labels that the model without its own part gets wrong",
)


def cosine_with_others(products: Floats, shares: Floats) -> Floats:
    """Of each move to the weighted sum of the others', from the scalar products of the moves."""
    parts = shares[:, None] * products * shares
    along = products @ shares - shares * np.diag(products)  # each move times the others' sum
    others = parts.sum() - 2 * parts.sum(axis=1) + np.diag(parts)  # that sum's squared length
    lengths = np.sqrt(np.diag(products) * np.maximum(others, 0.0))
    cosines = np.divide(along, lengths, out=np.zeros_like(along), where=lengths > 0)
    return np.asarray(np.clip(cosines, -1.0, 1.0))


def floored_shares(amounts: Floats) -> Floats:
    """Amounts as shares of their sum, none below `LEAST`; equal where there is nothing to share."""
    total = amounts.sum()
    shares = amounts / total if total > 0 else np.full(len(amounts), 1 / len(amounts))
    return np.asarray(np.maximum(shares, LEAST))


@dataclass(frozen=True)
class ContributionWeighting(Weighting):
    join: Join = "plus"

    needs = Needs(layers="all", asks=(ERROR_WITHOUT,), cost="O(K² d)")

    def init(self) -> State:
        return {"weight": {}, "rounds": {}, "cosine": {}, "error": {}}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        if len(cohort.updates) == 1:
            return Weights(np.ones(1)), state
        shares = shares_so_far(of_present(state["weight"], cohort))
        products = gram(cohort.params, cohort.sent.params)
        similarity = cosine_with_others(products, shares)
        error = cohort.number(ERROR_WITHOUT.name)
        rounds = of_present(state["rounds"], cohort, 0).astype(np.int64) + 1
        cosines = running_mean(of_present(state["cosine"], cohort, 0.0), similarity, rounds)
        errors = running_mean(of_present(state["error"], cohort, 0.0), error, rounds)
        direction = floored_shares(1 - cosines)
        need = floored_shares(errors)
        joined = direction + need if self.join == "plus" else direction * need
        values = normalize(floored_shares(joined)).values
        columns = {"weight": values, "rounds": rounds, "cosine": cosines, "error": errors}
        state = {
            key: with_present(state[key], cohort, column.tolist())
            for key, column in columns.items()
        }
        return Weights(values, {"similarity": similarity, "reputation": joined}), state


def running_mean(before: Column, now: Column, rounds: NDArray[np.int64]) -> Column:
    """Each client's mean over its rounds, of which the present one is the last."""
    return np.asarray(before + (now - before) / rounds)


@dataclass(frozen=True)
class TellsCoefficients(Server):
    """The plain server, which tells each client how much it counted in the model that it sends."""

    def init(self, model: Model) -> State:
        return {COEFFICIENTS: np.zeros(0, np.float32)}

    def broadcast(self, state: State) -> dict[str, Vector]:
        table = state[COEFFICIENTS]
        return {COEFFICIENTS: table} if len(table) else {}

    def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
        tags = sums.cohort.number(TAG.name)
        table = addressed(tags, sums.coefficients, room=sums.cohort.population)
        return sums.total, {COEFFICIENTS: table}


@dataclass(frozen=True)
class MeasuresItsAbsence(Local):
    """A client that says how badly the received model does without the client's own part."""

    keeps = {"last": "model", "tag": "number"}

    @property
    def sends(self) -> tuple[Extra, ...]:
        return (TAG, ERROR_WITHOUT)

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        error = 1 - client.accuracy_of(model_without(job, memory))
        tag = drawn_tag(job)
        answers = {TAG.name: tag, ERROR_WITHOUT.name: np.array([error], np.float32)}
        return answers, {"last": update.model.joined(), "tag": tag.copy()}


def model_without(job: Job, memory: Memory) -> Model:
    """The received model without what the client put into it."""
    received = job.model
    if "tag" not in memory or COEFFICIENTS not in job.broadcast:
        return received
    told = own_row(job.broadcast[COEFFICIENTS], memory["tag"], length=1)
    share = 0.0 if told is None else float(told[0])
    if not 0 < share < 1:
        return received
    without = received.with_joined((received.joined() - share * memory["last"]) / (1 - share))
    # rounding must not make a variance negative
    without.buffers[received.layout.variances] = np.maximum(
        without.buffers[received.layout.variances], 0
    )
    return without


def fedce(join: Join = "plus") -> Method:
    """Weights rise with another direction and with the others' error."""
    weighting = ContributionWeighting(one_of("join", join, get_args(Join)))
    return Method(Weighted(weighting, TellsCoefficients()), MeasuresItsAbsence())
