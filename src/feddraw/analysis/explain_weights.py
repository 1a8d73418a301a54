"""A run's weights in words and numbers, from its ledger: who counted how much, when, and why.

Where weights are a softmax of a score for size plus a score for similarity (FedDRAW: beta gamma p
and beta (1 - gamma) s; FedAdp: log p and its angle score; a round that takes the prior: log p and
nothing), what a client counts above or below an equal share is split between the two: the effect of
adding one score, averaged over adding it first and adding it second (Shapley's value of two
players). The two parts add up to the difference exactly. Where a policy limits weights, what it
moved is a third part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.site_heterogeneity import (
    number_or_none,
    site_distances_in_ledger,
    site_distances_in_words,
)
from feddraw.core.schedules import softmax
from feddraw.errors import UserError
from feddraw.results.ledger_table import LedgerTable
from feddraw.results.recorded_run import RecordedRun
from feddraw.server.policy import EASED
from feddraw.system.file_writing import json_values
from feddraw.text import join_names

Floats = NDArray[np.float64]
RoundSpan = tuple[int, int]  # first and last round

NEARLY_EQUAL = 0.01  # weights this close to an equal share, as a part of it, are called equal
EXACTLY_EQUAL = 1e-9

HOW_WEIGHTS_SPLIT = (
    "A weight is the softmax of a score for size plus a score for similarity. What a client counted"
    " above (+) or below (-) an equal share is split between the two: the effect of adding one"
    " score, averaged over adding it first and adding it second. The parts of a round add up"
    " exactly; the table has their mean over the rounds."
)
WHY_NO_SPLIT = (
    "The ledger of this method does not say how size and similarity made the weights, so they are"
    " compared with what size alone would give: each client's share of the images."
)


@dataclass(frozen=True, eq=False)
class WeightExplanation:
    """What a ledger says; arrays are (rounds × clients)."""

    run: RecordedRun
    shares: Floats  # of the weights of a round, as they may not add up to 1
    rescaled: bool  # they did not
    image_shares: Floats  # (clients,)
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
        """Clients below the mean size."""
        sizes = self.run.ledger.sizes
        return np.asarray(sizes < sizes.mean())

    @property
    def ahead(self) -> list[RoundSpan]:
        """When the small clients counted more than the large ones, per client on average."""
        if not self.small.any():
            return []
        lead = self.shares[:, self.small].mean(axis=1) - self.shares[:, ~self.small].mean(axis=1)
        return spans_of_rounds(lead > EXACTLY_EQUAL)

    def equal(self, tolerance: float) -> list[RoundSpan]:
        """When no client was further from an equal share than this part of it."""
        fair = 1 / len(self.clients)
        return spans_of_rounds(np.abs(self.shares - fair).max(axis=1) <= tolerance * fair)

    @property
    def events(self) -> list[tuple[int, str, str]]:
        """Round, client and reason of everybody who was asked and did not count."""
        return [
            (t, client, status)
            for t, row in enumerate(self.run.ledger.status)
            for client, status in zip(self.clients, row, strict=True)
            if not status.startswith("counted") and status != "not asked"
        ]


def explain_run_weights(run: RecordedRun) -> WeightExplanation:
    """Account for the weights of a run with a ledger."""
    ledger = run.ledger
    weights = np.nan_to_num(ledger["weight"])
    if not weights.any():
        why = f" ({run.diverged[1]})" if run.diverged else ""
        raise UserError(
            f"no client counted in any round of {run.path}{why}: there is nothing to explain"
        )
    totals = np.abs(weights).sum(axis=1, keepdims=True)
    shares = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
    parts = [_size_and_similarity_parts(ledger, shares[t], t) for t in range(len(shares))]
    known = all(part is not None for part in parts)
    size, similarity = (
        np.stack([part[i] for part in parts if part]) if known else None for i in (0, 1)
    )
    rescaled = bool((np.abs(totals[totals > 0] - 1) > 1e-6).any())
    moved = (
        np.nan_to_num(ledger["allowed"] - ledger["proposed"])
        if ledger.has("proposed", "allowed")
        else None
    )
    return WeightExplanation(
        run, shares, rescaled, ledger.sizes / ledger.sizes.sum(), size, similarity, moved
    )


def _size_and_similarity_parts(
    ledger: LedgerTable, shares: Floats, round: int
) -> tuple[Floats, Floats] | None:
    """What size and similarity added to an equal share in one round; None where the scores do not
    give the weights.
    """
    counted = np.array([status.startswith("counted") for status in ledger.status[round]])
    if not counted.any():
        return np.zeros(len(counted)), np.zeros(len(counted))
    names = ("prior", "similarity", "gamma", "beta", "reputation")
    scores = _explained_scores(*(ledger[name][round, counted] for name in names))
    proposed = ledger["proposed"][round, counted]  # before a policy
    made = shares[counted] if np.isnan(proposed).any() else proposed
    if scores is None or not np.allclose(softmax(scores[0] + scores[1], 1.0), made, atol=1e-6):
        return None
    columns = np.zeros((2, len(counted)))
    columns[:, counted] = split_weights(*scores)
    return columns[0], columns[1]


def _explained_scores(
    prior: Floats, similarity: Floats, gamma: Floats, beta: Floats, reputation: Floats
) -> Any:
    """The score for size and the score for similarity whose softmax the weights are."""
    if not len(prior) or np.isnan(prior).any() or np.isnan(similarity).any():
        return None
    if np.isnan(gamma).any():
        return None if np.isnan(reputation).any() else (np.log(prior), reputation)
    if np.isnan(beta).any():
        return np.log(prior), np.zeros_like(prior)
    return beta * gamma * prior, beta * (1 - gamma) * similarity


def split_weights(size: Floats, similarity: Floats) -> tuple[Floats, Floats]:
    """Shapley's value of each score for softmax(size + similarity) - 1/K."""
    both, size_only, similarity_only = (
        softmax(score, 1.0) for score in (size + similarity, size, similarity)
    )
    fair = 1 / len(size)
    return ((size_only - fair) + (both - similarity_only)) / 2, (
        (similarity_only - fair) + (both - size_only)
    ) / 2


def spans_of_rounds(holds: NDArray[np.bool_]) -> list[RoundSpan]:
    """The runs of rounds in which something holds."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(int)))
    return [(int(start), int(end) - 1) for start, end in zip(edges[::2], edges[1::2], strict=True)]


# ----------------------------------------------------------------------------------------- in words


def weights_in_sentences(found: WeightExplanation) -> Iterator[str]:
    """What a reader should take home."""
    yield from _explain_most_weight(found)
    yield from _explain_small_clients(found)
    yield from _explain_equal_weights(found)
    yield from _explain_size_or_similarity(found)
    yield from _explain_policy_clauses(found)
    by_finding = found.run.by_class() if found.run.finished else {}
    yield from _explain_findings_taught(found, by_finding)
    yield from _explain_weights_by_finding(found, by_finding)
    yield from _explain_measured_distances(found)
    yield from _explain_not_counted(found)
    if found.run.diverged:
        yield f"The run diverged in round {found.run.diverged[0]}: {found.run.diverged[1]}."
    if found.rescaled:
        yield (
            "The coefficients of this method do not add up to 1; the shares here are their shares"
            " of the sum."
        )


def _explain_most_weight(found: WeightExplanation) -> Iterator[str]:
    mean = found.shares.mean(axis=0)
    most, least = int(mean.argmax()), int(mean.argmin())
    if np.ptp(mean) < EXACTLY_EQUAL:
        yield f"All {len(mean)} clients counted the same on average: {percent(mean[0])} each."
        return
    for place, word in ((most, "most"), (least, "least")):
        holds, counts = percent(found.image_shares[place]), percent(mean[place])
        yield (
            f"{found.clients[place]} counted {word}: {counts} on average, with {holds} of the"
            " images."
        )


def _explain_small_clients(found: WeightExplanation) -> Iterator[str]:
    if not found.small.any():
        yield "All clients have the same number of images, so none is small."
        return
    names = join_names(
        [name for name, small in zip(found.clients, found.small, strict=True) if small]
    )
    if not found.ahead:
        yield (
            f"The small clients ({names}) never counted more than the large ones, per client on"
            " average."
        )
        return
    when = rounds_in_words(found.ahead)
    yield (
        f"The small clients ({names}) counted more than the large ones, per client on average, in"
        f" {when}."
    )
    start = found.ahead[0][0]
    if start:
        small, large = (found.shares[start, group].mean() for group in (found.small, ~found.small))
        yield f"They overtook in round {start}: {small:.4f} vs {large:.4f} per client."


def _explain_equal_weights(found: WeightExplanation) -> Iterator[str]:
    fair, last = 1 / len(found.clients), len(found.shares) - 1
    near, exact = found.equal(NEARLY_EQUAL), found.equal(EXACTLY_EQUAL)
    if not near:
        gap = np.abs(found.shares - fair).max(axis=1)
        nearest = (
            f"they came nearest in round {gap.argmin()}, up to {percent(gap.min() / fair)} off an"
            " equal share"
        )
        yield f"The weights never became equal; {nearest}."
        return
    settled = near[-1][1] == last
    when = (
        f"from round {near[-1][0]} to the end"
        if settled and len(near) == 1
        else f"in {rounds_in_words(near)}"
    )
    exactly = f", and exactly equal in {rounds_in_words(exact)}" if exact else ""
    yield (
        f"All weights were within {percent(NEARLY_EQUAL)} of an equal share ({fair:.4f})"
        f" {when}{exactly}."
    )


def _explain_size_or_similarity(found: WeightExplanation) -> Iterator[str]:
    if found.from_size is None or found.from_similarity is None:
        mean = found.shares.mean(axis=0) - found.image_shares
        place = int(np.abs(mean).argmax())
        if abs(mean[place]) < 1e-6:
            yield "Every client counted by its share of the images: size is the whole reason."
        else:
            gained = (
                f"{'gained' if mean[place] > 0 else 'lost'} most: {100 * mean[place]:+.2f} points"
                " on average"
            )
            yield f"Compared with its share of the images, {found.clients[place]} {gained}."
        return
    size, similarity = (
        np.abs(part).sum(axis=1) for part in (found.from_size, found.from_similarity)
    )
    total = size.sum() + similarity.sum()
    if total > EXACTLY_EQUAL:
        yield (
            f"Size caused {percent(size.sum() / total)} of all differences between weights,"
            " similarity the rest."
        )
    for more, less, name, other in (
        (size, similarity, "Size", "similarity"),
        (similarity, size, "Similarity", "size"),
    ):
        if when := spans_of_rounds(more > less + EXACTLY_EQUAL):
            yield f"{name} caused more of the differences than {other} in {rounds_in_words(when)}."


def _explain_policy_clauses(found: WeightExplanation) -> Iterator[str]:
    """Where a policy decided, and its largest change."""
    ledger = found.run.ledger
    clauses = np.array(ledger.clauses, dtype=object).reshape(found.shares.shape)
    for clause in sorted({clause for row in ledger.clauses for clause in row if clause}):
        for place, client in enumerate(found.clients):
            here = clauses[:, place] == clause
            if not here.any():
                continue
            change = np.where(here, ledger["allowed"][:, place] - ledger["proposed"][:, place], 0.0)
            most = (
                int(np.abs(np.nan_to_num(change)).argmax()) if change.any() else int(here.argmax())
            )
            before, after = (percent(ledger[name][most, place]) for name in ("proposed", "allowed"))
            when = rounds_in_words(spans_of_rounds(here)) + (
                f", most in round {most}" if here.sum() > 1 else ""
            )
            yield (
                f"{_explain_policy(clause, client, change[most])} in {when}: from {before} to"
                f" {after}."
            )


def _explain_policy(clause: str, client: str, change: float) -> str:
    """What a setting of the policy did to a client."""
    if clause == "fixed":
        return f"policy.fixed set the weight of {client}"
    if clause.endswith(EASED):
        return f"With too few clients, policy.{clause.removesuffix(EASED)} was relaxed for {client}"
    return f"policy.{clause} {'lowered' if change < 0 else 'raised'} the weight of {client}"


def _explain_findings_taught(
    found: WeightExplanation, weights: Mapping[str, Floats]
) -> Iterator[str]:
    """Whose labels a finding was learnt from, where not all clients label it."""
    for finding, shares in weights.items():
        taught = np.asarray((np.nan_to_num(shares) > 0).any(axis=0))
        counted = np.isfinite(shares).any(axis=0)
        if not taught.any():
            yield (
                f"No client labels {finding}: its row of the classifier is as it was in the initial"
                " model."
            )
        elif (counted & ~taught).any():
            teachers = [client for client, does in zip(found.clients, taught, strict=True) if does]
            yield f"{finding} was learnt from the labels of {join_names(teachers)}."


def _explain_weights_by_finding(
    found: WeightExplanation, weights: Mapping[str, Floats]
) -> Iterator[str]:
    if not weights:
        return
    findings, stack = list(weights), np.stack(list(weights.values()))
    apart = np.nan_to_num(stack.max(axis=0) - stack.min(axis=0))
    round, client = np.unravel_index(apart.argmax(), apart.shape)
    if apart.max() < EXACTLY_EQUAL:
        yield "Each finding's weights are those of the whole model."
        return
    here = stack[:, round, client]
    said = [f"{percent(here[i])} for {findings[i]}" for i in (here.argmax(), here.argmin())]
    who = found.clients[client]
    yield (
        f"By finding, weights differed most in round {round}: {who} counted {said[0]} and"
        f" {said[1]}."
    )


def _explain_measured_distances(found: WeightExplanation) -> Iterator[str]:
    """How much the clients differed, where the method has measured it."""
    measured = site_distances_in_ledger(found.run.ledger, len(found.shares))
    for place in dict.fromkeys((0, len(measured) - 1)) if measured else ():
        yield (
            f"Measured in round {measured[place].round}:"
            f" {site_distances_in_words(measured[place].overall)}."
        )
    if len(measured) > 1:
        above = sum(one.overall.q > one.overall.expected for one in measured)
        yield f"Q was above its expectation in {above} of {len(measured)} measurements."
    if measured:
        far = max(
            measured[-1].sites, key=lambda site: -np.inf if site.distance is None else site.distance
        )
        yield f"In the last measurement {far.site} was farthest from the others."


def _explain_not_counted(found: WeightExplanation) -> Iterator[str]:
    events = found.events
    for round, client, status in events[:5]:
        yield f"{client} did not count in round {round}: {status}."
    if len(events) > 5:
        yield f"In {len(events) - 5} more cases a client did not count; the ledger has them."


def rounds_in_words(found: Sequence[RoundSpan]) -> str:
    """Spans as words: rounds 3 to 7 and 9."""
    said = [str(first) if first == last else f"{first} to {last}" for first, last in found]
    single = len(found) == 1 and found[0][0] == found[0][1]
    return ("round " if single else "rounds ") + join_names(said)


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


# ------------------------------------------------------------------------------------ as a document


def explanation_document(found: WeightExplanation) -> dict[str, Any]:
    """The explanation as JSON holds it; null where there is nothing to say."""
    run = found.run
    small = [name for name, small in zip(found.clients, found.small, strict=True) if small]
    near, exact = found.equal(NEARLY_EQUAL), found.equal(EXACTLY_EQUAL)
    table = {
        "run": str(run.path),
        "method": run.name,
        "scenario": run.settings["scenario"]["name"],
        "seed": run.settings["seed"],
        "rounds": len(found.shares),
        "finished": run.finished,
        "words": list(weights_in_sentences(found)),
        "clients": list(_client_explanations(found)),
        "small": {
            "clients": small,
            "overtook": found.ahead[0][0] if found.ahead else None,
            "ahead": [list(span) for span in found.ahead],
        },
        "equal": {
            "within": NEARLY_EQUAL,
            "rounds": [list(s) for s in near],
            "exactly": [list(s) for s in exact],
        },
        "split": None if found.from_size is None else HOW_WEIGHTS_SPLIT,
        "by_round": [_round_explanation(found, t) for t in range(len(found.shares))],
        "not_counted": [
            {"round": t, "client": client, "status": status} for t, client, status in found.events
        ],
    }
    return dict(json_values(table))


def _client_explanations(found: WeightExplanation) -> Iterator[dict[str, Any]]:
    for i, client in enumerate(found.clients):
        column = found.shares[:, i]
        yield {
            "client": client,
            "size": int(found.run.ledger.sizes[i]),
            "image_share": float(found.image_shares[i]),
            "first": float(column[0]),
            "mean": float(column.mean()),
            "last": float(column[-1]),
            "most": float(column.max()),
            "most_round": int(column.argmax()),
            "influence": float(np.nan_to_num(found.run.ledger["influence"][:, i]).mean()),
            **{
                name: None if part is None else float(part[:, i].mean())
                for name, part in found.parts.items()
            },
        }


def _round_explanation(found: WeightExplanation, round: int) -> dict[str, Any]:
    parts = {"share": found.shares, **found.parts}
    clients = [
        {"client": client}
        | {name: None if part is None else float(part[round, i]) for name, part in parts.items()}
        for i, client in enumerate(found.clients)
    ]
    shared = {
        name: found.run.ledger.common(name)[round]
        for name in ("gamma", "beta", "q", "q_expected", "rho")
    }
    schedules = {name: number_or_none(value) for name, value in shared.items()}
    return {"round": round, **schedules, "clients": clients}
