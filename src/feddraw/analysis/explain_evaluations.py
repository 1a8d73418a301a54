"""Whose evaluation of the model is absent, when and why, in words: from a federation's log."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.analysis.events_in_words import Event, causes_in_words
from feddraw.results.recorded_run import RecordedRun

AS_IN_TRAINING = "as in training"


def absent_evaluations(run: RecordedRun) -> list[Event]:
    """Evaluations that were wanted and are not there."""
    return [
        Event(line.round, site.client, site.status)
        for line in run.rounds
        for site in line.evaluations
        if site.absent
    ]


def absent_evaluations_in_words(run: RecordedRun) -> Iterator[str]:
    """A sentence for each cause; what the ledger says of the same round is not said again."""
    in_ledger = {(entry.round, entry.client): entry.status for entry in run.entries}
    events = []
    for event in absent_evaluations(run):
        same = event.status != "missing" and in_ledger.get(event[:2]) == event.status
        events.append(event._replace(status=AS_IN_TRAINING) if same else event)
    yield from causes_in_words(events, _status_in_words)


def _status_in_words(status: str, such_as: str) -> str:
    if status == AS_IN_TRAINING:
        return "No evaluation either, for the same reason as no training"
    if status == "missing":
        return "Asked to evaluate, but did not answer"
    kind, _, reason = status.partition(": ")
    return f"Evaluation {kind}{such_as} ({reason})" if reason else f"Evaluation: {kind}"
