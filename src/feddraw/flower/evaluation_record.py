"""The sites' evaluations as they arrive: which count, what each says, and who is absent and why.

An evaluation is checked like an update. Under secure sums the server knows who is in the sum and
what all of them say together, and nothing about one site.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, RecordDict

from feddraw.flower import score_histograms
from feddraw.flower.metric_means import NO_METRICS, size_in_metrics
from feddraw.flower.reply_intake import (
    EVALUATION_SECONDS,
    MOST_SECONDS,
    Reply,
    client_in_reply,
    metrics_in_reply,
)
from feddraw.flower.roster import Roster, name_in_log
from feddraw.flower.sampling import Request
from feddraw.results.site_evaluations import SiteEvaluation
from feddraw.server.gate import finite_number
from feddraw.server.status import Status, StatusKind
from feddraw.tasks import Task
from feddraw.text import one_line, safe_line

log = logging.getLogger("flwr")

MOST_SITE_METRICS = 100  # that are kept of one site


@dataclass(frozen=True, eq=False)
class TakenEvaluations:
    """The evaluations that count, and why others do not."""

    contents: list[RecordDict]  # to be merged: those of the sites, or their sum
    sites: Sequence[SiteEvaluation]
    refused: Mapping[str, str] = field(default_factory=dict)  # by the site's name in the ledger
    # where there is no sum because of other sites
    unused: Mapping[str, str] = field(default_factory=dict)


def evaluations_in_clear(
    replies: Sequence[Reply],
    size_key: str,
    findings: Sequence[str],
    *,
    task: Task,
    hidden: bool,
    subgroups: int = 0,
) -> TakenEvaluations:
    """Replies with a size count, unless their counts by score, with those of so many subgroups, are
    of more images. Where they are `hidden`, a site's own metrics are not kept.
    """
    contents = []
    sites = []
    refused: dict[str, str] = {}
    for reply in replies:
        size = size_in_metrics(reply.content, size_key)
        if size <= 0:
            refused[reply.name] = f"{size_key} among its metrics is not a positive number"
            continue
        why = score_histograms.why_implausible(reply.content, size, len(findings), subgroups)
        if why:
            refused[reply.name] = why
            continue
        contents.append(_under_its_name(reply))
        metrics = {} if hidden else site_metrics(reply.content, size_key, findings, task)
        seconds = _seconds(reply.content)
        sites.append(
            SiteEvaluation(client=reply.name, images=size, seconds=seconds, metrics=metrics)
        )
    return TakenEvaluations(contents, sites, refused)


def _under_its_name(reply: Reply) -> RecordDict:
    """What a site sent, with the name that belongs to its node in place of what it calls itself."""
    if not isinstance(reply.content.get("client", ConfigRecord()), ConfigRecord):
        return reply.content  # an app's own record, which names nobody
    client = ConfigRecord({**client_in_reply(reply.content), "name": reply.name})
    return RecordDict({**reply.content, "client": client})


def evaluations_in_sum(
    counts: RecordDict | None,
    summed: Collection[str],
    refused: Mapping[str, str],
    unused: Mapping[str, str],
) -> TakenEvaluations:
    """One sum over some sites, by name; None where there is no sum."""
    if counts is None:
        return TakenEvaluations([], [], refused, unused)
    sites = [SiteEvaluation(client=name) for name in summed]
    return TakenEvaluations([counts], sites, refused, unused)


def site_metrics(
    content: RecordDict, size_key: str, findings: Sequence[str], task: Task
) -> dict[str, float]:
    """What a site's reply says of the model: its numbers, or those that its counts by score give.

    Only finite ones, under names that are safe to show.
    """
    record = metrics_in_reply(content)
    if "validation-places" in record:
        merged = score_histograms.merged_histogram_metrics([content], findings, task)
        record = dict(score_histograms.histogram_metrics_for_log(merged, task))
    metrics: dict[str, float] = {}
    for name, value in record.items():
        if name in (size_key, *NO_METRICS) or not finite_number(value):
            continue
        if len(metrics) < MOST_SITE_METRICS:
            metrics[one_line(name)] = float(value)
    return metrics


def _seconds(content: RecordDict) -> float:
    """How long a site says that it evaluated; NaN where it does not say, or nonsense."""
    seconds = metrics_in_reply(content).get(EVALUATION_SECONDS, math.nan)
    if finite_number(seconds) and 0 <= seconds < MOST_SECONDS:
        return float(seconds)
    return math.nan


def complete_evaluations(
    taken: TakenEvaluations,
    roster: Roster,
    request: Request,
    failed_nodes: Mapping[int, str],
) -> tuple[SiteEvaluation, ...]:
    """One line per known site and per node that was asked: absence is a line too."""
    lines = {site.client: site for site in taken.sites}
    reasons = dict(taken.refused)
    for node, why in failed_nodes.items():
        reasons.setdefault(roster.label(node), why)
    for name, why in reasons.items():
        lines.setdefault(
            name, SiteEvaluation(client=name, status=Status(StatusKind.REFUSED, why).text)
        )
    for name, why in taken.unused.items():
        lines.setdefault(
            name, SiteEvaluation(client=name, status=Status(StatusKind.UNUSED, why).text)
        )
    for node in request.nodes:
        name = roster.label(node)
        lines.setdefault(name, SiteEvaluation(client=name, status=StatusKind.MISSING.value))
    there = {roster.label(node) for node in request.connected}
    for name in (*roster.names, *roster.listed_names):
        kind = StatusKind.NOT_SAMPLED if name in there else StatusKind.NOT_CONNECTED
        lines.setdefault(name, SiteEvaluation(client=name, status=kind.value))
    return tuple(lines.values())


def log_evaluations(server_round: int, sites: Sequence[SiteEvaluation]) -> None:
    """Who evaluated, in one line, and a line for each that is absent."""
    by_whom = [
        f"{name_in_log(site.client)} {site.images:g}"
        if math.isfinite(site.images)
        else name_in_log(site.client)
        for site in sites
        if site.evaluated
    ]
    if by_whom:
        log.info("server round %d: evaluated (images): %s", server_round, "  ".join(by_whom))
    for site in sites:
        if site.absent:
            log.warning(
                "server round %d: no evaluation of %s: %s",
                server_round,
                name_in_log(site.client),
                safe_line(site.status),
            )
