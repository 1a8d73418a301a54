"""A run's weights in words and numbers, from its ledger: who counted how much, when, and why.

Where weights are a softmax of a score for size plus a score for similarity (FedDRAW: beta gamma p
and beta (1 - gamma) s; FedAdp: log p and its angle score; a round that takes the prior: log p and
nothing), what a client counts above or below an equal share is split between the two: the effect of
adding one score, averaged over adding it first and adding it second (Shapley's value of two
players). The two parts add up to the difference exactly. Where a policy limits weights, what it
moved is a third part.

A run has faults: clients join late, do not answer, are refused. An equal share is therefore that of
the clients that counted in the round, and a client's means are over the rounds in which it counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.events_in_words import (
    Event,
    RoundSpan,
    spans_of_rounds,
)
from feddraw.core.schedules import softmax
from feddraw.errors import UserError
from feddraw.results.ledger_table import LedgerTable
from feddraw.results.recorded_run import RecordedRun
from feddraw.server.status import StatusKind

Floats = NDArray[np.float64]

NEARLY_EQUAL = 0.01  # weights this close to an equal share, as a part of it, are called equal
EXACTLY_EQUAL = 1e-9


@dataclass(frozen=True, eq=False)
class WeightExplanation:
    """What a ledger says; arrays are (rounds × clients)."""

    run: RecordedRun
    counted: NDArray[np.bool_]
    known: NDArray[np.bool_]  # counted with a weight that is not hidden (secure sums)
    shares: Floats  # of the weights of a round, as they may not add up to 1
    rescaled: bool  # they did not
    image_shares: Floats  # (clients,)
    size_shares: Floats  # of the images of those that counted in the round
    from_size: Floats | None  # parts of share - 1/K; none where the ledger does not tell
    from_similarity: Floats | None
    from_policy: Floats | None  # what a policy moved; none where there is no policy

    @property
    def clients(self) -> tuple[str, ...]:
        return self.run.ledger.clients

    @property
    def parts(self) -> dict[str, Floats | None]:
        """What made a share differ from 1/K, by name."""
        return {
            "from_size": self.from_size,
            "from_similarity": self.from_similarity,
            "from_policy": self.from_policy,
        }

    @property
    def small(self) -> NDArray[np.bool_]:
        """Clients below the mean size; one that never reported its size is neither small nor
        large.
        """
        sizes = self.run.ledger.sizes
        known = sizes > 0
        return np.asarray(known & (sizes < sizes[known].mean()))

    @property
    def small_names(self) -> list[str]:
        return list(compress(self.clients, self.small))

    @property
    def fair(self) -> Floats:
        """(rounds,): an equal share of the clients that counted; not a number where none did."""
        number = self.known.sum(axis=1)
        return _divided(np.ones(len(number)), number)

    @property
    def distance_from_fair(self) -> Floats:
        """(rounds,): how far a client that counted was from an equal share, at most, as a part of
        it; not a number where none counted.
        """
        fair = self.fair[:, None]
        distance = np.where(self.known, np.abs(self.shares - fair), 0.0).max(axis=1)
        return np.asarray(distance / self.fair)

    @property
    def ahead(self) -> list[RoundSpan]:
        """When the small clients counted more than the large ones, per client on average of those
        that counted.
        """
        lead = self.mean_share(self.small) - self.mean_share(~self.small)
        return spans_of_rounds(lead > EXACTLY_EQUAL)

    def mean_share(self, which: NDArray[np.bool_]) -> Floats:
        """(rounds,): the mean share of some of the clients; not a number where none counted."""
        known = self.known & which
        number = known.sum(axis=1)
        total = np.where(known, self.shares, 0.0).sum(axis=1)
        return _divided(total, number)

    def mean_when_counted(self, column: Floats) -> Floats:
        """(clients,): the mean over the rounds in which the client counted; not a number for one
        that never did.
        """
        number = self.known.sum(axis=0)
        total = np.where(self.known, np.nan_to_num(column), 0.0).sum(axis=0)
        return _divided(total, number)

    def equal(self, tolerance: float) -> list[RoundSpan]:
        """When no client was further from an equal share than this part of it."""
        return spans_of_rounds(self.distance_from_fair <= tolerance)

    @property
    def events(self) -> list[Event]:
        """Everybody who was asked or not connected and did not count, nodes without a name among
        them.
        """
        return [
            Event(entry.round, entry.client, entry.status)
            for entry in self.run.entries
            if entry.kind not in (StatusKind.WEIGHTED, StatusKind.NOT_SAMPLED)
        ]

    @property
    def unnamed_nodes(self) -> list[str]:
        """Nodes in the ledger that are not among the clients."""
        names = dict.fromkeys(entry.client for entry in self.run.entries)
        return [name for name in names if name not in self.clients]


def _divided(total: Floats, number: NDArray[np.int64]) -> Floats:
    """Not a number where the number is 0."""
    unknown = np.full(len(number), np.nan)
    return np.asarray(np.divide(total, number, out=unknown, where=number > 0))


def explain_run_weights(run: RecordedRun) -> WeightExplanation:
    """Account for the weights of a run with a ledger."""
    ledger = run.ledger
    weights = np.nan_to_num(ledger["weight"])
    counted = ledger.counted
    hidden = ledger.hidden("weight")
    known = counted & ~hidden
    if hidden.any() and not known.any():
        raise UserError(
            f"the weights in {run.path} are hidden by secure sums, which clear_weights = true would"
            " show: there is nothing to explain"
        )
    if not weights.any():
        reason = run.diverged.why if run.diverged else run.stopped
        why = f" ({reason})" if reason else ""
        raise UserError(
            f"no client counted in any round of {run.path}{why}: there is nothing to explain"
        )
    if run.not_averaged:
        return _without_average(run)
    totals = np.abs(weights).sum(axis=1, keepdims=True)
    shares = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
    shares[counted & ~known] = np.nan
    parts = [
        _size_and_similarity_parts(ledger, shares[round], round, known[round])
        for round in range(ledger.rounds)
    ]
    known_parts = [part for part in parts if part is not None]
    split = len(known_parts) == len(parts)
    limited = ledger.has("proposed", "allowed")
    images = counted * ledger.sizes
    counted_images = images.sum(axis=1, keepdims=True)
    return WeightExplanation(
        run=run,
        counted=counted,
        known=known,
        shares=shares,
        rescaled=bool((np.abs(totals[totals > 0] - 1) > 1e-6).any()),
        image_shares=ledger.sizes / ledger.sizes.sum(),
        size_shares=np.divide(
            images, counted_images, out=np.zeros_like(weights), where=counted_images > 0
        ),
        from_size=np.stack([size for size, _ in known_parts]) if split else None,
        from_similarity=np.stack([similarity for _, similarity in known_parts]) if split else None,
        from_policy=np.nan_to_num(ledger["allowed"] - ledger["proposed"]) if limited else None,
    )


def _without_average(run: RecordedRun) -> WeightExplanation:
    """Of a method that averages no models: what its ledger has for weights was used for nothing, so
    none is known.
    """
    counted = run.ledger.counted
    nothing = np.full(counted.shape, np.nan)
    return WeightExplanation(
        run=run,
        counted=counted,
        known=np.zeros_like(counted),
        shares=nothing,
        rescaled=False,
        image_shares=run.ledger.sizes / run.ledger.sizes.sum(),
        size_shares=nothing,
        from_size=None,
        from_similarity=None,
        from_policy=None,
    )


def _size_and_similarity_parts(
    ledger: LedgerTable, shares: Floats, round: int, weighted: NDArray[np.bool_]
) -> tuple[Floats, Floats] | None:
    """What size and similarity added to an equal share in one round; None where the scores do not
    give the weights.
    """
    if not weighted.any():
        return np.zeros(len(weighted)), np.zeros(len(weighted))
    scores = _size_and_similarity_scores(ledger, round, weighted)
    if scores is None:
        return None
    size_score, similarity_score = scores
    proposed = ledger["proposed"][round, weighted]  # before a policy
    weights = shares[weighted] if np.isnan(proposed).any() else proposed
    if not np.allclose(softmax(size_score + similarity_score, 1.0), weights, atol=1e-6):
        return None
    from_size = np.zeros(len(weighted))
    from_similarity = np.zeros(len(weighted))
    from_size[weighted], from_similarity[weighted] = split_weights(size_score, similarity_score)
    return from_size, from_similarity


def _size_and_similarity_scores(
    ledger: LedgerTable, round: int, weighted: NDArray[np.bool_]
) -> tuple[Floats, Floats] | None:
    """The two scores whose softmax the weights of a round are, as far as the ledger tells."""
    prior = ledger["prior"][round, weighted]
    similarity = ledger["similarity"][round, weighted]
    gamma = ledger["gamma"][round, weighted]
    beta = ledger["beta"][round, weighted]
    reputation = ledger["reputation"][round, weighted]
    if np.isnan(prior).any() or np.isnan(similarity).any():
        return None
    if np.isnan(gamma).any():
        return None if np.isnan(reputation).any() else (np.log(prior), reputation)
    if np.isnan(beta).any():
        return np.log(prior), np.zeros_like(prior)
    return beta * gamma * prior, beta * (1 - gamma) * similarity


def split_weights(size: Floats, similarity: Floats) -> tuple[Floats, Floats]:
    """Shapley's value of each score for softmax(size + similarity) - 1/K."""
    equal = 1 / len(size)
    both = softmax(size + similarity, 1.0)
    size_only = softmax(size, 1.0)
    similarity_only = softmax(similarity, 1.0)
    from_size = ((size_only - equal) + (both - similarity_only)) / 2
    from_similarity = ((similarity_only - equal) + (both - size_only)) / 2
    return from_size, from_similarity
