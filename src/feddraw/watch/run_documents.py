"""What the page shows of a run, as JSON holds it: a line of the overview, and all of one run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from feddraw.results.round_log import RoundLine
from feddraw.system.file_writing import finite_or_none
from feddraw.text import safe_line
from feddraw.watch.followed_run import FollowedRun, shown_client, shown_name, shown_status

T = TypeVar("T")

MOST_TROUBLE = 200  # refused or missing updates that are shown
SHOWN_CLIENTS = 12  # on the page
MOST_POINTS = 80  # of a curve in the overview


def run_summary(run: FollowedRun) -> dict[str, Any]:
    """A line of the overview."""
    validation = [
        (line.round, area)
        for line in run.rounds
        if (area := finite_or_none(line.validation.auc.macro)) is not None
    ]
    spent = [line.whole_seconds for line in run.rounds]
    diverged = next((line.diverged for line in run.rounds if line.diverged), "")
    metrics = run.metrics
    return {
        "id": run.number,
        "name": run.name,
        "state": run.state,
        "why": run.why,
        "method": run.method,
        "scenario": run.scenario,
        "seed": run.names.seed,
        "done": run.done,
        "rounds": run.total,
        "round_seconds": run.round_seconds,
        "spent": sum(seconds for seconds in spent if math.isfinite(seconds)),
        "updated": run.updated,
        "curve": _points_for_chart(validation),
        "trouble": len(run.trouble),
        "diverged": safe_line(diverged)[:200],
        "test": None if metrics is None else finite_or_none(metrics.test.auc.macro),
    }


def run_detail(run: FollowedRun) -> dict[str, Any]:
    """All that the page shows of one run; of very many clients those that count most."""
    ledger = run.ledger
    clients = ledger.most_weighted(SHOWN_CLIENTS)
    rounds = _points_for_chart(range(run.done))
    by_round = {line.round: line for line in run.rounds}
    lines = [by_round.get(t) for t in rounds]
    times = [_seconds_by_client(line) for line in lines]
    at_sites = [_auc_by_client(line) for line in lines]
    return {
        "summary": run_summary(run),
        "server": run.of_server,
        "unlocked": run.unlocked,
        "at": rounds,
        "clients": clients,
        "all_clients": len(ledger.clients),
        "sizes": [ledger.clients[name] for name in clients],
        "weights": [[ledger.weights.get(t, {}).get(name) for t in rounds] for name in clients],
        "influence": [ledger.influence.get(name) for name in clients],
        "client_seconds": [[by_client.get(name) for by_client in times] for name in clients],
        "site_auc": [[by_client.get(name) for by_client in at_sites] for name in clients],
        "validation": [line and finite_or_none(line.validation.auc.macro) for line in lines],
        "loss": [line and finite_or_none(line.loss) for line in lines],
        "seconds": [line and _finite_numbers(line.seconds) for line in lines],
        "trouble": [asdict(trouble) for trouble in run.trouble[-MOST_TROUBLE:]],
        "evaluations": _evaluations(run.rounds[-1]) if run.rounds else [],
        "data": shown_name(run.names.data),
        "model": shown_name(run.names.model),
    }


def _seconds_by_client(line: RoundLine | None) -> dict[str, float]:
    """How long each client worked in a round, under the name that the page shows."""
    if line is None:
        return {}
    return _finite_numbers(
        {shown_client(name): seconds for name, seconds in line.client_seconds.items()}
    )


def _auc_by_client(line: RoundLine | None) -> dict[str, float]:
    """The validation AUC at each site, under the name that the page shows."""
    areas = {} if line is None else line.auc_of_sites()
    return _finite_numbers({shown_client(name): area for name, area in areas.items()})


def _evaluations(line: RoundLine) -> list[dict[str, Any]]:
    """What each site said of the model of a round, or why it did not."""
    return [
        {
            "client": shown_client(site.client),
            "status": shown_status(site.status),
            "images": finite_or_none(site.images),
            "seconds": finite_or_none(site.seconds),
            "auc": finite_or_none(site.metrics.get("validation-auc", math.nan)),
        }
        for site in line.evaluations[:MOST_TROUBLE]
    ]


def _finite_numbers(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _points_for_chart(points: Sequence[T]) -> list[T]:
    """Not more points than a chart can show, the last one always."""
    every = math.ceil(len(points) / MOST_POINTS) or 1
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]
