"""A run's weights in words and numbers, from its ledger: who counted how much, when, and why.

Where weights are a softmax of a score for size plus a score for similarity (FedDRAW: beta gamma p and
beta (1 - gamma) s; FedAdp: log p and its angle score; a round that takes the prior: log p and nothing), what a client
counts above or below an equal share is split between the two: the effect of adding one score, averaged over adding it
first and adding it second (Shapley's value of two players). The two parts add up to the difference exactly. Where a
policy limits weights, what it moved is a third part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.site_distances import from_ledger, number_or_none, verdict
from feddraw.errors import UserError
from feddraw.results.ledger_table import Ledger
from feddraw.results.recorded_run import Run
from feddraw.schedules import softmax
from feddraw.server.policy import EASED
from feddraw.system.file_writing import json_values

Floats = NDArray[np.float64]
Span = tuple[int, int]  # first and last round

NEAR = 0.01  # weights this close to an equal share, as a part of it, are called equal
EXACT = 1e-9

SPLIT = (
    "A weight is the softmax of a score for size plus a score for similarity. What a client counted above (+) or below "
    "(-) an equal share is split between the two: the effect of adding one score, averaged over adding it first and "
    "adding it second. The parts of a round add up exactly; the table has their mean over the rounds."
)
NO_SPLIT = (
    "The ledger of this method does not say how size and similarity made the weights, so they are compared with what "
    "size alone would give: each client's share of the images."
)


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a ledger says; arrays are (rounds × clients)."""

    run: Run
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
        names = ("from_size", "from_similarity", "from_policy")
        return dict(zip(names, (self.from_size, self.from_similarity, self.from_policy), strict=True))

    @property
    def small(self) -> NDArray[np.bool_]:
        """Clients below the mean size."""
        sizes = self.run.ledger.sizes
        return np.asarray(sizes < sizes.mean())

    @property
    def ahead(self) -> list[Span]:
        """When the small clients counted more than the large ones, per client on average."""
        if not self.small.any():
            return []
        lead = self.shares[:, self.small].mean(axis=1) - self.shares[:, ~self.small].mean(axis=1)
        return spans(lead > EXACT)

    def equal(self, tolerance: float) -> list[Span]:
        """When no client was further from an equal share than this part of it."""
        fair = 1 / len(self.clients)
        return spans(np.abs(self.shares - fair).max(axis=1) <= tolerance * fair)

    @property
    def events(self) -> list[tuple[int, str, str]]:
        """Round, client and reason of everybody who was asked and did not count."""
        rounds = enumerate(self.run.ledger.status)
        return [
            (t, client, status)
            for t, row in rounds
            for client, status in zip(self.clients, row, strict=True)
            if not status.startswith("counted") and status != "not asked"
        ]


def explain(run: Run) -> Explanation:
    """Account for the weights of a run with a ledger."""
    ledger = run.ledger
    weights = np.nan_to_num(ledger["weight"])
    if not weights.any():
        why = f" ({run.diverged[1]})" if run.diverged else ""
        raise UserError(f"no client counted in any round of {run.path}{why}: there is nothing to explain")
    totals = np.abs(weights).sum(axis=1, keepdims=True)
    shares = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
    parts = [_contributions(ledger, shares[t], t) for t in range(len(shares))]
    known = all(part is not None for part in parts)
    size, similarity = (np.stack([part[i] for part in parts if part]) if known else None for i in (0, 1))
    rescaled = bool((np.abs(totals - 1) > 1e-6).any())
    moved = np.nan_to_num(ledger["allowed"] - ledger["proposed"]) if ledger.has("proposed", "allowed") else None
    return Explanation(run, shares, rescaled, ledger.sizes / ledger.sizes.sum(), size, similarity, moved)


def _contributions(ledger: Ledger, shares: Floats, round: int) -> tuple[Floats, Floats] | None:
    """What size and similarity added to an equal share in one round; None where the scores do not give the weights."""
    counted = np.array([status.startswith("counted") for status in ledger.status[round]])
    scores = _scores(*(ledger[name][round, counted] for name in ("prior", "similarity", "gamma", "beta", "reputation")))
    proposed = ledger["proposed"][round, counted]  # before a policy
    made = shares[counted] if np.isnan(proposed).any() else proposed
    if scores is None or not np.allclose(softmax(scores[0] + scores[1], 1.0), made, atol=1e-6):
        return None
    columns = np.zeros((2, len(counted)))
    columns[:, counted] = split(*scores)
    return columns[0], columns[1]


def _scores(prior: Floats, similarity: Floats, gamma: Floats, beta: Floats, reputation: Floats) -> Any:
    """The score for size and the score for similarity whose softmax the weights are."""
    if not len(prior) or np.isnan(prior).any() or np.isnan(similarity).any():
        return None
    if np.isnan(gamma).any():
        return None if np.isnan(reputation).any() else (np.log(prior), reputation)
    if np.isnan(beta).any():
        return np.log(prior), np.zeros_like(prior)
    return beta * gamma * prior, beta * (1 - gamma) * similarity


def split(size: Floats, similarity: Floats) -> tuple[Floats, Floats]:
    """Shapley's value of each score for softmax(size + similarity) - 1/K."""
    both, size_only, similarity_only = (softmax(score, 1.0) for score in (size + similarity, size, similarity))
    fair = 1 / len(size)
    return (
        ((size_only - fair) + (both - similarity_only)) / 2,
        ((similarity_only - fair) + (both - size_only)) / 2,
    )


def spans(holds: NDArray[np.bool_]) -> list[Span]:
    """The runs of rounds in which something holds."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(int)))
    return [(int(start), int(end) - 1) for start, end in zip(edges[::2], edges[1::2], strict=True)]


# ---------------------------------------------------------------------------------------------------- in words


def sentences(found: Explanation) -> Iterator[str]:
    """What a reader should take home."""
    yield from _who(found)
    yield from _small(found)
    yield from _equal(found)
    yield from _why(found)
    yield from _policy(found)
    by_finding = found.run.by_class() if found.run.finished else {}
    yield from _learnt_from(found, by_finding)
    yield from _by_finding(found, by_finding)
    yield from _measured(found)
    yield from _absent(found)
    if found.run.diverged:
        yield f"The run diverged in round {found.run.diverged[0]}: {found.run.diverged[1]}."
    if found.rescaled:
        yield "The coefficients of this method do not add up to 1; the shares here are their shares of the sum."


def _who(found: Explanation) -> Iterator[str]:
    mean = found.shares.mean(axis=0)
    most, least = int(mean.argmax()), int(mean.argmin())
    if np.ptp(mean) < EXACT:
        yield f"All {len(mean)} clients counted the same on average: {percent(mean[0])} each."
        return
    for place, word in ((most, "most"), (least, "least")):
        holds, counts = percent(found.image_shares[place]), percent(mean[place])
        yield f"{found.clients[place]} counted {word}: {counts} on average, with {holds} of the images."


def _small(found: Explanation) -> Iterator[str]:
    if not found.small.any():
        yield "All clients have the same number of images, so none is small."
        return
    names = listed([name for name, small in zip(found.clients, found.small, strict=True) if small])
    if not found.ahead:
        yield f"The small clients ({names}) never counted more than the large ones, per client on average."
        return
    when = rounds(found.ahead)
    yield f"The small clients ({names}) counted more than the large ones, per client on average, in {when}."
    start = found.ahead[0][0]
    if start:
        small, large = (found.shares[start, group].mean() for group in (found.small, ~found.small))
        yield f"They overtook in round {start}: {small:.4f} vs {large:.4f} per client."


def _equal(found: Explanation) -> Iterator[str]:
    fair, last = 1 / len(found.clients), len(found.shares) - 1
    near, exact = found.equal(NEAR), found.equal(EXACT)
    if not near:
        gap = np.abs(found.shares - fair).max(axis=1)
        off = percent(gap.min() / fair)
        nearest = f"they came nearest in round {gap.argmin()}, up to {off} off an equal share"
        yield f"The weights never became equal; {nearest}."
        return
    settled = near[-1][1] == last
    when = f"from round {near[-1][0]} to the end" if settled and len(near) == 1 else f"in {rounds(near)}"
    yield f"All weights were within {percent(NEAR)} of an equal share ({fair:.4f}) {when}" + (
        f", and exactly equal in {rounds(exact)}." if exact else "."
    )


def _why(found: Explanation) -> Iterator[str]:
    if found.from_size is None or found.from_similarity is None:
        mean = found.shares.mean(axis=0) - found.image_shares
        place = int(np.abs(mean).argmax())
        if abs(mean[place]) < 1e-6:
            yield "Every client counted by its share of the images: size is the whole reason."
        else:
            gained = f"{'gained' if mean[place] > 0 else 'lost'} most: {100 * mean[place]:+.2f} points on average"
            yield f"Compared with its share of the images, {found.clients[place]} {gained}."
        return
    size, similarity = (np.abs(part).sum(axis=1) for part in (found.from_size, found.from_similarity))
    by_size = spans(size > similarity + EXACT)
    total = size.sum() + similarity.sum()
    if total > EXACT:
        yield f"Size made {percent(size.sum() / total)} of all differences between weights, similarity the rest."
    if by_size:
        yield f"Size made more of the differences than similarity in {rounds(by_size)}."
    by_similarity = spans(similarity > size + EXACT)
    if by_similarity:
        yield f"Similarity made more of the differences than size in {rounds(by_similarity)}."


def _policy(found: Explanation) -> Iterator[str]:
    """Where a policy decided, and its largest change."""
    ledger = found.run.ledger
    clauses = np.array(ledger.clauses, dtype=object).reshape(found.shares.shape)
    for clause in sorted({clause for row in ledger.clauses for clause in row if clause}):
        for place, client in enumerate(found.clients):
            here = clauses[:, place] == clause
            if not here.any():
                continue
            change = np.where(here, ledger["allowed"][:, place] - ledger["proposed"][:, place], 0.0)
            most = int(np.abs(np.nan_to_num(change)).argmax()) if change.any() else int(here.argmax())
            before, after = (percent(ledger[name][most, place]) for name in ("proposed", "allowed"))
            when = rounds(spans(here)) + (f", most in round {most}" if here.sum() > 1 else "")
            yield f"{_decided(clause, client, change[most])} in {when}: from {before} to {after}."


def _decided(clause: str, client: str, change: float) -> str:
    """What a setting of the policy did to a client."""
    if clause == "fixed":
        return f"policy.fixed set the weight of {client}"
    if clause.endswith(EASED):
        return f"Too few clients were there for policy.{clause.removesuffix(EASED)}, which was eased for {client}"
    return f"policy.{clause} held {client} down" if change < 0 else f"policy.{clause} raised {client}"


def _learnt_from(found: Explanation, weights: Mapping[str, Floats]) -> Iterator[str]:
    """Whose labels a finding was learnt from, where not all clients label it."""
    for finding, shares in weights.items():
        taught = np.asarray((np.nan_to_num(shares) > 0).any(axis=0))
        counted = np.isfinite(shares).any(axis=0)
        if not taught.any():
            yield f"No client labels {finding}: its row of the classifier is as it was in the initial model."
        elif (counted & ~taught).any():
            teachers = [client for client, does in zip(found.clients, taught, strict=True) if does]
            yield f"{finding} was learnt from the labels of {listed(teachers)}."


def _by_finding(found: Explanation, weights: Mapping[str, Floats]) -> Iterator[str]:
    if not weights:
        return
    findings, stack = list(weights), np.stack(list(weights.values()))
    apart = np.nan_to_num(stack.max(axis=0) - stack.min(axis=0))
    round, client = np.unravel_index(apart.argmax(), apart.shape)
    if apart.max() < EXACT:
        yield "Each finding's weights are those of the whole model."
        return
    here = stack[:, round, client]
    said = [f"{percent(here[i])} for {findings[i]}" for i in (here.argmax(), here.argmin())]
    who = found.clients[client]
    yield f"By finding, weights differed most in round {round}: {who} counted {said[0]} and {said[1]}."


def _measured(found: Explanation) -> Iterator[str]:
    """How much the clients differed, where the method has measured it."""
    measured = from_ledger(found.run.ledger, len(found.shares))
    for place in dict.fromkeys((0, len(measured) - 1)) if measured else ():
        yield f"Measured in round {measured[place].round}: {verdict(measured[place].overall)}."
    if len(measured) > 1:
        above = sum(one.overall.q > one.overall.expected for one in measured)
        yield f"Q was above its expectation in {above} of {len(measured)} measurements."
    if measured:
        far = max(measured[-1].sites, key=lambda site: -np.inf if site.distance is None else site.distance)
        yield f"In the last measurement {far.site} was farthest from the others."


def _absent(found: Explanation) -> Iterator[str]:
    events = found.events
    for round, client, status in events[:5]:
        yield f"{client} did not count in round {round}: {status}."
    if len(events) > 5:
        yield f"In {len(events) - 5} more cases a client did not count; the ledger has them."


def rounds(found: Sequence[Span]) -> str:
    """Spans as words: rounds 3 to 7 and 9."""
    said = [str(first) if first == last else f"{first} to {last}" for first, last in found]
    single = len(found) == 1 and found[0][0] == found[0][1]
    return ("round " if single else "rounds ") + listed(said)


def listed(names: Sequence[str]) -> str:
    """a, b and c; long lists are cut."""
    if len(names) > 8:
        names = [*names[:6], f"{len(names) - 6} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


# ---------------------------------------------------------------------------------------------------- as a document


def document(found: Explanation) -> dict[str, Any]:
    """The explanation as JSON holds it; null where there is nothing to say."""
    run = found.run
    small = [name for name, small in zip(found.clients, found.small, strict=True) if small]
    near, exact = found.equal(NEAR), found.equal(EXACT)
    table = {
        "run": str(run.path),
        "method": run.name,
        "scenario": run.settings["scenario"]["name"],
        "seed": run.settings["seed"],
        "rounds": len(found.shares),
        "finished": run.finished,
        "words": list(sentences(found)),
        "clients": list(_clients(found)),
        "small": {
            "clients": small,
            "overtook": found.ahead[0][0] if found.ahead else None,
            "ahead": [list(span) for span in found.ahead],
        },
        "equal": {"within": NEAR, "rounds": [list(s) for s in near], "exactly": [list(s) for s in exact]},
        "split": None if found.from_size is None else SPLIT,
        "by_round": [_round(found, t) for t in range(len(found.shares))],
        "not_counted": [{"round": t, "client": client, "status": status} for t, client, status in found.events],
    }
    return dict(json_values(table))


def _clients(found: Explanation) -> Iterator[dict[str, Any]]:
    sizes = found.run.ledger.sizes
    for i, client in enumerate(found.clients):
        column = found.shares[:, i]
        yield {
            "client": client,
            "size": int(sizes[i]),
            "image_share": float(found.image_shares[i]),
            "first": float(column[0]),
            "mean": float(column.mean()),
            "last": float(column[-1]),
            "most": float(column.max()),
            "most_round": int(column.argmax()),
            "influence": float(np.nan_to_num(found.run.ledger["influence"][:, i]).mean()),
            **{name: None if part is None else float(part[:, i].mean()) for name, part in found.parts.items()},
        }


def _round(found: Explanation, round: int) -> dict[str, Any]:
    parts = {"share": found.shares, **found.parts}
    clients = [
        {"client": client} | {name: None if part is None else float(part[round, i]) for name, part in parts.items()}
        for i, client in enumerate(found.clients)
    ]
    shared = {name: found.run.ledger.common(name)[round] for name in ("gamma", "beta", "q", "q_expected", "rho")}
    schedules = {name: number_or_none(value) for name, value in shared.items()}
    return {"round": round, **schedules, "clients": clients}
