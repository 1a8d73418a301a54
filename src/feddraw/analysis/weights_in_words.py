"""What a reader should take home of a run's weights: sentences, from their explanation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.events_in_words import (
    absent_evaluations_in_words,
    causes_in_words,
    rounds_in_words,
    spans_of_rounds,
    status_in_words,
)
from feddraw.analysis.explain_weights import (
    EXACTLY_EQUAL,
    NEARLY_EQUAL,
    Floats,
    WeightExplanation,
)
from feddraw.analysis.site_heterogeneity import site_distances_in_ledger, site_distances_in_words
from feddraw.core import Clause, Effect
from feddraw.core.schedules import most_moved_by_similarity
from feddraw.results.ledger_table import LedgerTable
from feddraw.server.policy import FIXED, read_clause
from feddraw.text import join_names

LEAST_SHARE_SHOWN = 0.001  # smaller ones are printed as 0.0 %
HOW_WEIGHTS_SPLIT = (
    "A weight is the softmax of a score for size plus a score for similarity. What a client counted"
    " above (+) or below (-) an equal share is split between the two: the effect of adding one"
    " score, averaged over adding it first and adding it second. The parts of a round add up"
    " exactly; the table has their mean over the rounds in which the client counted."
)
WHY_NO_SPLIT = (
    "The ledger of this method does not say how size and similarity made the weights, so they are"
    " compared with what size alone would give: each client's share of the images."
)


def percent(value: float | None) -> str:
    """A share as a table has it; a dash where there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def weights_in_sentences(explained: WeightExplanation) -> Iterator[str]:
    """What a reader should take home."""
    run = explained.run
    if run.not_averaged:
        yield f"No models were averaged ({run.not_averaged}), so there are no weights to explain."
    else:
        yield from _what_weights_did(explained)
    yield from (f"{sentence}." for sentence in run.one_class_clients())
    if not run.not_averaged:
        yield from _weights_of_findings(explained)
        yield from _measured_distances(explained)
    yield from _joined_late(explained)
    if not run.not_averaged:
        yield from _rounds_of_few(explained)
    yield from _not_counted(explained)
    yield from absent_evaluations_in_words(run)
    if run.stopped:
        yield f"The run has stopped: {run.stopped}."
    if run.diverged:
        yield f"The run diverged in round {run.diverged.round}: {run.diverged.why}."
    if explained.rescaled:
        yield (
            "The coefficients of this method do not add up to 1; the shares here are their shares"
            " of the sum."
        )


def _what_weights_did(explained: WeightExplanation) -> Iterator[str]:
    yield from _hidden_weights(explained)
    yield from _most_and_least_weight(explained)
    yield from _small_clients(explained)
    yield from _equal_weights(explained)
    yield from _size_or_similarity(explained)
    yield from _policy_clauses(explained)


def _weights_of_findings(explained: WeightExplanation) -> Iterator[str]:
    by_finding = explained.run.by_class() if explained.run.finished else {}
    yield from _findings_taught(explained, by_finding)
    yield from _weights_by_finding(explained, by_finding)


def _hidden_weights(explained: WeightExplanation) -> Iterator[str]:
    hidden = np.asarray(explained.run.ledger.hidden("weight").any(axis=1))
    if hidden.any():
        rounds = rounds_in_words(spans_of_rounds(hidden))
        yield f"In {rounds} the weights are hidden by secure sums: what follows leaves these out."


def _most_and_least_weight(explained: WeightExplanation) -> Iterator[str]:
    mean = explained.mean_when_counted(explained.shares)
    number = int(np.isfinite(mean).sum())
    if np.nanmax(mean) - np.nanmin(mean) < EXACTLY_EQUAL:
        who = f"All {number} clients" if number == len(mean) else f"The {number} that counted"
        yield f"{who} counted the same on average: {percent(float(np.nanmax(mean)))} each."
        return
    for extreme, word in ((float(np.nanmax(mean)), "most"), (float(np.nanmin(mean)), "least")):
        level = np.flatnonzero(np.abs(mean - extreme) < EXACTLY_EQUAL).tolist()
        if len(level) > 1:
            names = join_names([explained.clients[place] for place in level])
            yield f"{names} counted {word}, the same on average: {percent(extreme)} each."
            continue
        (place,) = level
        yield (
            f"{explained.clients[place]} counted {word}: {percent(mean[place])} on average"
            f"{_rounds_counted(explained, place)}, with"
            f" {percent(explained.image_shares[place])} of the images."
        )


def _rounds_counted(explained: WeightExplanation, place: int) -> str:
    """Of how many rounds a client's average is; nothing where it counted in all."""
    rounds = explained.run.ledger.rounds
    known = int(explained.known[:, place].sum())
    if known < explained.counted[:, place].sum():
        return f" of the {known} of {rounds} rounds in which its weight is known"
    return "" if known == rounds else f" of the {known} of {rounds} rounds in which it counted"


def _small_clients(explained: WeightExplanation) -> Iterator[str]:
    small = explained.small
    ahead = explained.ahead
    if not small.any():
        yield "All clients have the same number of images, so none is small."
        return
    names = join_names(explained.small_names)
    if not ahead:
        yield (
            f"The small clients ({names}) never counted more than the large ones, per client on"
            " average."
        )
        return
    yield (
        f"The small clients ({names}) counted more than the large ones, per client on average, in"
        f" {rounds_in_words(ahead)}."
    )
    start = ahead[0][0]
    if start:
        small_mean = explained.mean_share(small)[start]
        large_mean = explained.mean_share(~small)[start]
        yield f"They overtook in round {start}: {small_mean:.4f} vs {large_mean:.4f} per client."


def _equal_weights(explained: WeightExplanation) -> Iterator[str]:
    near = explained.equal(NEARLY_EQUAL)
    exact = explained.equal(EXACTLY_EQUAL)
    if not near:
        distance = explained.distance_from_fair
        nearest = int(np.nanargmin(distance))
        yield (
            f"The weights never became equal; they came nearest in round {nearest}, up to"
            f" {percent(distance[nearest])} off an equal share."
        )
        return
    settled = len(near) == 1 and near[0][1] == len(explained.shares) - 1
    when = f"from round {near[0][0]} to the end" if settled else f"in {rounds_in_words(near)}"
    exactly = f", and exactly equal in {rounds_in_words(exact)}" if exact else ""
    yield (
        f"All weights were within {percent(NEARLY_EQUAL)} of an equal share"
        f" ({equal_share_in_words(explained)}) {when}{exactly}."
    )


def equal_share_in_words(explained: WeightExplanation) -> str:
    """Its number, where the same number of clients counted in all rounds in which any did."""
    shares = np.unique(explained.fair[np.isfinite(explained.fair)])
    if len(shares) == 1:
        return f"{shares[0]:.4f}"
    return "one part for each client that counted in the round"


def _size_or_similarity(explained: WeightExplanation) -> Iterator[str]:
    if explained.from_size is None or explained.from_similarity is None:
        yield from _compared_with_size(explained)
        return
    size = np.abs(explained.from_size).sum(axis=1)
    similarity = np.abs(explained.from_similarity).sum(axis=1)
    total = size.sum() + similarity.sum()
    if total > EXACTLY_EQUAL:
        yield (
            f"Size caused {percent(size.sum() / total)} of all differences between weights,"
            " similarity the rest."
        )
    yield from _most_moved_by_similarity(explained)
    if when := spans_of_rounds(size > similarity + EXACTLY_EQUAL):
        yield f"Size caused more of the differences than similarity in {rounds_in_words(when)}."
    if when := spans_of_rounds(similarity > size + EXACTLY_EQUAL):
        yield f"Similarity caused more of the differences than size in {rounds_in_words(when)}."


def _most_moved_by_similarity(explained: WeightExplanation) -> Iterator[str]:
    """How much of the weight the similarities of a round can have moved, at most."""
    ledger = explained.run.ledger
    bounds = []
    for round, counted in enumerate(explained.counted):
        gammas = ledger["gamma"][round, counted]
        betas = ledger["beta"][round, counted]
        similarities = ledger["similarity"][round, counted]
        if not counted.any() or np.isnan([*gammas, *betas, *similarities]).any():
            continue
        gap = float(similarities.max() - similarities.min())
        bounds.append((most_moved_by_similarity(gap, gammas[0], betas[0]), round, gap))
    if bounds:
        share, round, gap = max(bounds)
        if share < LEAST_SHARE_SHOWN:
            yield (
                f"Similarity can have moved less than {percent(LEAST_SHARE_SHOWN)} of the weight in"
                " every round."
            )
            return
        yield (
            f"Similarity can have moved at most {percent(share)} of the weight in any round (round"
            f" {round}, where similarities differed by {gap:.4f})."
        )


def _compared_with_size(explained: WeightExplanation) -> Iterator[str]:
    """For a method whose ledger does not say how size and similarity made the weights."""
    difference = explained.mean_when_counted(explained.shares - explained.size_shares)
    place = int(np.nanargmax(np.abs(difference)))
    if abs(difference[place]) < 1e-6:
        yield "Every client counted by its share of the images: size is the whole reason."
        return
    verb = "gained" if difference[place] > 0 else "lost"
    yield (
        f"Compared with its share of the images, {explained.clients[place]} {verb} most:"
        f" {100 * difference[place]:+.2f} points on average."
    )


def _policy_clauses(explained: WeightExplanation) -> Iterator[str]:
    """Where a policy decided, and its largest change."""
    ledger = explained.run.ledger
    clauses = np.array(ledger.clauses, dtype=object).reshape(explained.shares.shape)
    for text in sorted({text for row in ledger.clauses for text in row}):
        clause = read_clause(text)
        for place, client in enumerate(explained.clients):
            here = clauses[:, place] == text
            if clause is not None and here.any():
                yield _clause_in_words(ledger, clause, client, place, here)


def _clause_in_words(
    ledger: LedgerTable, clause: Clause, client: str, place: int, here: NDArray[np.bool_]
) -> str:
    """What a setting of the policy did to one client in the rounds in which it decided."""
    proposed = ledger["proposed"][:, place]
    allowed = ledger["allowed"][:, place]
    change = np.where(here, allowed - proposed, 0.0)
    most = int(np.abs(np.nan_to_num(change)).argmax()) if change.any() else int(here.argmax())
    when = rounds_in_words(spans_of_rounds(here))
    if clause.effect is Effect.UNMET:
        return (
            f"With too few clients, policy.{clause.setting} could not limit {client} in {when}: it"
            f" counted up to {percent(np.nanmax(np.where(here, allowed, np.nan)))}."
        )
    if here.sum() > 1:
        when += f", most in round {most}"
    return (
        f"{_clause_and_client(clause, client, change[most])} in {when}: from"
        f" {percent(proposed[most])} to {percent(allowed[most])}."
    )


def _clause_and_client(clause: Clause, client: str, change: float) -> str:
    if clause.effect is Effect.EASED:
        return f"With too few clients, policy.{clause.setting} was relaxed for {client}"
    if clause.setting == FIXED:
        return f"policy.{FIXED} set the weight of {client}"
    verb = "lowered" if change < 0 else "raised"
    return f"policy.{clause.setting} {verb} the weight of {client}"


def _findings_taught(explained: WeightExplanation, weights: Mapping[str, Floats]) -> Iterator[str]:
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
            teachers = list(compress(explained.clients, taught))
            yield f"{finding} was learnt from the labels of {join_names(teachers)}."


def _weights_by_finding(
    explained: WeightExplanation, weights: Mapping[str, Floats]
) -> Iterator[str]:
    if not weights:
        return
    findings = list(weights)
    stack = np.stack(list(weights.values()))
    spread = np.nan_to_num(stack.max(axis=0) - stack.min(axis=0))
    if spread.max() < EXACTLY_EQUAL:
        yield from _same_weights_for_findings(explained, findings, stack[0])
        return
    round, client = np.unravel_index(spread.argmax(), spread.shape)
    here = stack[:, round, client]
    highest = here.argmax()
    lowest = here.argmin()
    yield (
        f"By finding, weights differed most in round {round}: {explained.clients[client]} counted"
        f" {percent(here[highest])} for {findings[highest]} and {percent(here[lowest])} for"
        f" {findings[lowest]}."
    )


def _same_weights_for_findings(
    explained: WeightExplanation, findings: Sequence[str], weights: Floats
) -> Iterator[str]:
    """Where all these findings have the same weights (rounds × clients)."""
    of_model = explained.run.ledger["weight"]
    difference = np.abs(np.nan_to_num(weights - of_model))
    if difference.max() < EXACTLY_EQUAL:
        yield "Each finding's weights are those of the whole model."
        return
    round, client = np.unravel_index(difference.argmax(), difference.shape)
    yield (
        f"The weights of {join_names(findings)} differed most from those of the whole model in"
        f" round {round}: {explained.clients[client]} counted"
        f" {percent(weights[round, client])} instead of {percent(of_model[round, client])}."
    )


def _measured_distances(explained: WeightExplanation) -> Iterator[str]:
    """How much the clients differed, where the method has measured it."""
    measured = site_distances_in_ledger(explained.run.ledger, len(explained.shares))
    if not measured:
        return
    first = measured[0]
    last = measured[-1]
    for measurement in (first, last) if last is not first else (first,):
        words = site_distances_in_words(measurement.overall)
        yield f"Measured in round {measurement.round}: {words}."
    overall = [measurement.overall for measurement in measured]
    if len(overall) > 1:
        above = sum(group.q > group.expected for group in overall)
        yield f"Q was above its expectation in {above} of {len(measured)} measurements."
    farthest = max(last.sites, key=lambda site: -np.inf if site.distance is None else site.distance)
    yield f"In the last measurement {farthest.site} was farthest from the others."


def _joined_late(explained: WeightExplanation) -> Iterator[str]:
    """Clients whose first line is not that of the first round."""
    first_round: dict[str, int] = {}
    for entry in explained.run.entries:
        first_round.setdefault(entry.client, entry.round)
    for client in explained.clients:
        if first_round[client] > 0:
            yield (
                f"{client} joined in round {first_round[client]}; before that nobody was asked"
                " under this name."
            )


def _rounds_of_few(explained: WeightExplanation) -> Iterator[str]:
    """Rounds in which no client counted, or one alone."""
    number = explained.counted.sum(axis=1)
    if nobody := spans_of_rounds(number == 0):
        yield f"In {rounds_in_words(nobody)} no client counted: the model stayed as it was."
    if len(explained.clients) < 2:
        return
    for place, client in enumerate(explained.clients):
        if alone := spans_of_rounds((number == 1) & explained.counted[:, place]):
            yield f"In {rounds_in_words(alone)} only {client} counted."


def _not_counted(explained: WeightExplanation) -> Iterator[str]:
    """Every cause for which somebody was wanted and did not count, with whom and when it met."""
    yield from causes_in_words(explained.events, status_in_words)
    if nodes := explained.unnamed_nodes:
        yield (
            f"Not among the clients: {join_names(nodes)}. The ledger has no name for a node before"
            " its first valid answer, so it may be a client that answered later, or a stranger."
        )
    never = np.logical_not(explained.counted.any(axis=0)).tolist()
    if names := list(compress(explained.clients, never)):
        yield f"{join_names(names)} never counted."
