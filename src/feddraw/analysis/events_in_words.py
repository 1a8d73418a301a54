"""What happened to clients in rounds, in words: each cause once, with all whom it met and when."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feddraw.results.recorded_run import RecordedRun
from feddraw.server.status import Status, StatusKind
from feddraw.text import grouped, join_names

RoundSpan = tuple[int, int]  # first and last round

NUMBERS = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")  # in which statuses of one cause may differ
MOST_NAMED = 40  # clients of one cause, and spans of rounds, that are written out
AS_IN_TRAINING = "as in training"


class Event(NamedTuple):
    """What a ledger or a log says of a client in a round, other than that it counted."""

    round: int
    client: str
    status: str


def causes_in_words(events: Sequence[Event], words_of: Callable[[str, str], str]) -> Iterator[str]:
    """A sentence for each cause, with whom it met and when.

    `words_of` takes a status and the words that are to stand before its reason.
    """
    causes = grouped((NUMBERS.sub("#", event.status), event) for event in events)
    for met in causes.values():
        differ = len({event.status for event in met}) > 1
        cause = words_of(met[0].status, ", such as" if differ else "")
        yield f"{cause}: {_clients_and_rounds(met)}."


def status_in_words(text: str, such_as: str) -> str:
    """A status of the ledger."""
    status = Status.read(text)
    if status.kind is StatusKind.MISSING:
        return "Asked, but did not answer"
    if status.kind is StatusKind.OTHER:
        return text.capitalize()
    word = status.kind.capitalize()
    return f"{word}{such_as} ({status.note})" if status.note else word


def _clients_and_rounds(events: Sequence[Event]) -> str:
    """North in rounds 1 to 3, South in round 5."""
    rounds_of = grouped((event.client, event.round) for event in events)
    words = []
    for client, rounds in rounds_of.items():
        met = np.zeros(max(rounds) + 1, dtype=bool)
        met[rounds] = True
        words.append(f"{client} in {rounds_in_words(spans_of_rounds(met), MOST_NAMED)}")
    return join_names(words, MOST_NAMED)


def spans_of_rounds(holds: NDArray[np.bool_]) -> list[RoundSpan]:
    """The runs of rounds in which something holds."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(int)))
    return [(int(start), int(end) - 1) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def rounds_in_words(spans: Sequence[RoundSpan], most: int = 8) -> str:
    """Spans as words, at most so many: rounds 3 to 7 and 9."""
    words = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    single = len(spans) == 1 and spans[0][0] == spans[0][1]
    return ("round " if single else "rounds ") + join_names(words, most)


# --------------------------------------------------------------------------- absent evaluations


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
        silent = Status.read(event.status).kind is StatusKind.MISSING
        same = not silent and in_ledger.get(event[:2]) == event.status
        events.append(event._replace(status=AS_IN_TRAINING) if same else event)
    yield from causes_in_words(events, _evaluation_status_in_words)


def _evaluation_status_in_words(status: str, such_as: str) -> str:
    if status == AS_IN_TRAINING:
        return "No evaluation either, for the same reason as no training"
    kind, reason = Status.read(status)
    if kind is StatusKind.MISSING:
        return "Asked to evaluate, but did not answer"
    if kind is StatusKind.OTHER:
        return f"Evaluation: {status}"
    return f"Evaluation {kind}{such_as} ({reason})" if reason else f"Evaluation: {kind}"
