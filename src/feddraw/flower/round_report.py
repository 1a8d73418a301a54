"""What a Flower server says about a round: the whole ledger, Flower's metrics record, the log."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import median
from typing import Any

from feddraw.errors import RunFailed
from feddraw.flower.reply_intake import LOSSES, MOST_SECONDS
from feddraw.flower.roster import Roster, name_in_log
from feddraw.flower.sampling import Request
from feddraw.results.ledger_table import NUMBER_COLUMNS
from feddraw.server.ledger import LedgerEntry, with_refusals
from feddraw.server.policy import FEWEST_FOR_MEDIAN
from feddraw.server.round import RoundRecord
from feddraw.server.status import StatusKind
from feddraw.text import safe_line

log = logging.getLogger("flwr")

# a client that says it has so many times the median's images is pointed out
SUSPECT_SIZE_TIMES = 1000.0
# columns of the ledger that a round may report to Flower: numbers, but for those of a policy
LEDGER_COLUMNS = tuple(name for name in NUMBER_COLUMNS if name not in ("proposed", "allowed"))
# what became of clients, which a round's metrics count
COUNTED_KINDS = (
    StatusKind.WEIGHTED,
    StatusKind.REFUSED,
    StatusKind.UNUSED,
    StatusKind.MISSING,
)
MOST_IDLE_ROUNDS = 1  # in a row: one may be an accident


def reasons_of_refusal(
    roster: Roster, refused: Mapping[str, str], failed_nodes: Mapping[int, str]
) -> dict[str, str]:
    """By name, why replies could not be used: those `refused`, by name, and of failed nodes."""
    reasons = dict(refused)
    for node, why in failed_nodes.items():
        reasons.setdefault(roster.label(node), why)
    return reasons


def complete_ledger(
    round: int,
    entries: Sequence[LedgerEntry],
    roster: Roster,
    request: Request,
    reasons: Mapping[str, str],
    unused: Mapping[str, str],
) -> tuple[LedgerEntry, ...]:
    """One line per known client and listed site, per node that was asked, and per stranger that
    answered.

    `entries` are those of the round; `reasons` has by name why a reply could not be used, `unused`
    why none was made of a reply that could.
    """
    # entries beyond the known clients stand for those that never answered, without a name
    lines = {entry.client: entry for entry in entries[: len(roster.names)]}
    expected = {roster.label(node) for node in request.nodes} | reasons.keys() | unused.keys()
    for name in sorted(expected - lines.keys()):
        lines[name] = LedgerEntry(round, name, 0, 0, status=StatusKind.MISSING.value)
    for name in roster.listed_names:
        lines.setdefault(name, LedgerEntry(round, name, 0, 0, status=StatusKind.NOT_SAMPLED.value))
    connected = {roster.label(node) for node in request.connected}
    for name, entry in lines.items():
        if entry.kind is StatusKind.NOT_SAMPLED and name not in connected:
            lines[name] = replace(entry, status=StatusKind.NOT_CONNECTED.value)
    ledger = with_refusals(tuple(lines.values()), unused, StatusKind.UNUSED)
    return with_refusals(ledger, reasons)


def metrics_of_round(ledger: Sequence[LedgerEntry], means: Mapping[str, Any]) -> dict[str, Any]:
    """For Flower's own log: the means of the clients' metrics, and how many counted."""
    metrics = dict(means)
    counts = Counter(entry.kind for entry in ledger)
    for kind in COUNTED_KINDS:
        metrics[f"clients-{kind}"] = counts[kind]
    return metrics


def ledger_as_metrics(
    ledger: Sequence[LedgerEntry], clients: Sequence[str]
) -> dict[str, list[int] | list[float]]:
    """For those who want it in Flower's log as well: the columns of the ledger as lists over the
    clients that counted, with these by their numbers; columns without any number are left out.
    """
    weighted = [entry for entry in ledger if entry.weighted]
    if not weighted:
        return {}
    metrics: dict[str, list[int] | list[float]] = {
        "ledger-client": [clients.index(entry.client) for entry in weighted]
    }
    for name in LEDGER_COLUMNS:
        values = [getattr(entry, name) for entry in weighted]
        column = [math.nan if value is None else float(value) for value in values]
        if not all(map(math.isnan, column)):
            metrics[f"ledger-{name}"] = column
    return metrics


def loss_in_metrics(metrics: Mapping[str, Any]) -> float:
    """The clients' mean loss, under whichever of its names they report it; NaN without one."""
    for name in LOSSES:
        if name in metrics:
            return float(metrics[name]) if isinstance(metrics[name], int | float) else math.nan
    return math.nan


def credible_seconds(seconds: Mapping[str, float]) -> dict[str, float]:
    """How long clients say that they worked, without nonsense."""
    return {client: taken for client, taken in seconds.items() if 0 <= taken < MOST_SECONDS}


def log_round(done: RoundRecord, rounds: int) -> None:
    """The weights, what was measured of the sites' differences, and who did not simply count."""
    shares = "  ".join(
        f"{name_in_log(entry.client)}"
        f" {'hidden' if 'weight' in entry.hidden else f'{entry.weight:.3f}'}"
        for entry in done.ledger
        if entry.weighted
    )
    log.info("server round %d/%d: %s", done.round + 1, rounds, shares or "no update counted")
    measured = [entry for entry in done.ledger if math.isfinite(entry.q)]
    if measured:
        log.info(
            "server round %d: Q %.1f, %.1f expected of alike clients, rho %.3g",
            done.round + 1,
            measured[0].q,
            measured[0].q_expected,
            measured[0].rho,
        )
    for entry in done.ledger:
        if entry.noteworthy:
            log.warning(
                "server round %d: %s %s",
                done.round + 1,
                name_in_log(entry.client),
                safe_line(entry.status),
            )


def warn_of_sizes(sizes: Mapping[str, float]) -> None:
    """Point clients out that report far more images than the others."""
    if len(sizes) < FEWEST_FOR_MEDIAN:
        return
    middle = median(sizes.values())
    for client, size in sizes.items():
        if size > SUSPECT_SIZE_TIMES * middle:
            times = size / middle
            log.warning("%s reports %s images, %.0f × the median", name_in_log(client), size, times)


def stop_if_idle(history: Sequence[RoundRecord]) -> None:
    """End the run after a second round in a row in which no update counted."""
    idle = len(list(takewhile(lambda done: not done.weights, reversed(history))))
    if not idle:
        return
    last = history[-1]
    statuses = Counter(entry.status for entry in last.ledger).most_common(3)
    reasons = "; ".join(f"{count} {safe_line(status)}" for status, count in statuses)
    reasons = reasons or "no node was asked"
    log.error(
        "server round %d: no update counted, the model stays as it was (%s)",
        last.round + 1,
        reasons,
    )
    if idle > MOST_IDLE_ROUNDS:
        raise RunFailed(
            f"no update counted in rounds {last.round - 1} and {last.round} ({reasons}): fix this,"
            " then resume"
        )
