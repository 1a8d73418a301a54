"""The ledger of a round: one entry per client, with its weight and what explains it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from feddraw.core import Piece, Update, output_name
from feddraw.core.cohort import check_part_names
from feddraw.server.aggregate import Aggregate
from feddraw.server.gate import Verdict
from feddraw.server.policy import SizeLimit, remark_on_limit
from feddraw.server.status import Status, StatusKind


@dataclass(frozen=True)
class LedgerEntry:
    """One client's line of one round in the ledger of who counted how much."""

    round: int
    client: str
    size: float
    steps: int | None  # None where the client did not say
    prior: float = math.nan  # where the method has no such part, it is not a number
    similarity: float = math.nan
    gamma: float = math.nan
    beta: float = math.nan
    reputation: float = math.nan
    weight: float = 0.0  # the coefficient of the client's move
    influence: float = 0.0  # the weighted length of its move, as a share of all clients'
    status: str = StatusKind.WEIGHTED.value  # the text of a `Status`
    proposed: float = math.nan  # the rule's weight before the policy, where there is one
    allowed: float = math.nan  # and after it
    clause: str = ""  # the policy's setting that decided it
    measured: float = math.nan  # images whose gradients were measured, where a rule asks for it
    variance: float = math.nan  # of one image's gradient at the client
    # Squared, of the client's gradient from the others', in the unit of rho.
    distance: float = math.nan
    q: float = math.nan  # Cochran's Q over the clients
    q_expected: float = math.nan  # its expectation where the clients are alike
    rho: float = math.nan  # variance between clients over that of one image
    # Columns of numbers that only the client knows, because the server saw a sum; NaN here.
    hidden: frozenset[str] = frozenset()

    @property
    def kind(self) -> StatusKind:
        """What became of the client in this round."""
        return Status.read(self.status).kind

    @property
    def weighted(self) -> bool:
        return self.kind is StatusKind.WEIGHTED

    @property
    def noteworthy(self) -> bool:
        """Whether more is to be said than that its update counted."""
        return Status.read(self.status).noteworthy


@dataclass(frozen=True)
class PieceEntry:
    """One client's weight in one round for some parameters, where a rule has weights of their own
    for these.
    """

    round: int
    client: str
    piece: str  # a layer, or a finding
    similarity: float = math.nan
    reputation: float = math.nan
    weight: float = 0.0
    proposed: float = math.nan  # before the policy, where there is one
    clause: str = ""
    hidden: frozenset[str] = frozenset()  # columns that only the client knows, as in `LedgerEntry`


Entry = TypeVar("Entry", LedgerEntry, PieceEntry)


def with_hidden(entry: Entry, columns: Collection[str]) -> Entry:
    """The entry without the numbers of these columns, which only its client knows."""
    numbers: dict[str, Any] = dict.fromkeys(columns, math.nan)
    return replace(entry, **numbers, hidden=entry.hidden | frozenset(columns))


def remarks(
    verdicts: Mapping[int, Verdict],
    sizes: Mapping[int, float],
    size_limit: SizeLimit,
    accepted: Sequence[Update],
    aggregate: Aggregate | None,
) -> dict[int, Verdict]:
    """The verdicts; the gate's notes are followed by what the policy changed about a client's size
    and its weight.
    """
    limited = aggregate.weights.limited if aggregate is not None else None
    with_remarks = dict(verdicts)
    for index, client in enumerate(update.client for update in accepted):
        notes = [verdicts[client].note, size_limit.remark(sizes[client])]
        if limited is not None:
            notes.append(remark_on_limit(limited, index))
        with_remarks[client] = replace(verdicts[client], note="; ".join(filter(None, notes)))
    return with_remarks


def ledger_of(
    round: int,
    clients: Sequence[str],
    asked: Collection[int],
    updates: Sequence[Update],
    verdicts: Mapping[int, Verdict],
    aggregate: Aggregate | None,
) -> tuple[LedgerEntry, ...]:
    """One line per client of the federation, counted or not, and per stranger that answered."""
    received = {update.client: update for update in updates}
    shares = _weight_columns(
        [client for client in received if not verdicts[client].reason], verdicts, aggregate
    )
    names = dict(enumerate(clients))
    names |= {client: f"stranger {client}" for client in received if client not in names}
    lines = []
    for client, name in names.items():
        if client in received:
            update = received[client]
            status = verdicts[client].status
            lines.append(
                LedgerEntry(
                    round, name, update.size, update.steps, **shares.get(client, {}), status=status
                )
            )
        else:
            kind = StatusKind.MISSING if client in asked else StatusKind.NOT_SAMPLED
            lines.append(LedgerEntry(round, name, 0, 0, status=kind.value))
    return tuple(lines)


def _weight_columns(
    weighted: Sequence[int], verdicts: Mapping[int, Verdict], aggregate: Aggregate | None
) -> dict[int, dict[str, Any]]:
    """Weight, influence and the parts of the weight, by client."""
    if aggregate is None:
        return {}
    lengths = np.abs(aggregate.coefficients) * [verdicts[client].distance for client in weighted]
    total = lengths.sum()
    influence = lengths / total if total > 0 else math.nan
    columns: dict[str, Any] = {"weight": aggregate.coefficients, "influence": influence}
    parts = aggregate.weights.parts
    check_part_names(parts)
    columns |= {name: part for name, part in parts.items() if part is not None}
    if (limited := aggregate.weights.limited) is not None:
        columns |= {
            "proposed": limited.before,
            "allowed": limited.after,
            "clause": [limited.clause_text(index) for index in range(len(weighted))],
        }
    lists = {
        name: np.broadcast_to(column, len(weighted)).tolist() for name, column in columns.items()
    }
    return {
        client: {name: lists[name][index] for name in lists}
        for index, client in enumerate(weighted)
    }


def with_refusals(
    ledger: tuple[LedgerEntry, ...],
    reasons: Mapping[str, str],
    kind: StatusKind = StatusKind.REFUSED,
) -> tuple[LedgerEntry, ...]:
    """The ledger with clients, by name, whose updates could not even be read; or, of another
    `kind`, were not used.
    """
    return tuple(
        replace(entry, status=Status(kind, reasons[entry.client]).text)
        if entry.client in reasons
        else entry
        for entry in ledger
    )


def with_notes(
    ledger: tuple[LedgerEntry, ...], notes: Mapping[str, str]
) -> tuple[LedgerEntry, ...]:
    """The ledger with remarks, by name, on clients that counted; after what was noted before."""
    return tuple(
        replace(entry, status=_with_note(Status.read(entry.status), notes[entry.client]).text)
        if entry.weighted and entry.client in notes
        else entry
        for entry in ledger
    )


def _with_note(status: Status, note: str) -> Status:
    return Status(status.kind, f"{status.note}; {note}" if status.note else note)


def piece_entries(
    round: int, weighted: Sequence[str], aggregate: Aggregate | None
) -> tuple[PieceEntry, ...]:
    """One line per client and piece."""
    pieces = aggregate.weights.pieces if aggregate else ()
    return tuple(
        _piece_entry(round, name, piece, index)
        for piece in pieces
        for index, name in enumerate(weighted)
    )


def pieces_by_finding(
    pieces: tuple[PieceEntry, ...], findings: Sequence[str]
) -> tuple[PieceEntry, ...]:
    """The classifier's rows under the names of their findings, where these are known."""
    names = {output_name(number): name for number, name in enumerate(findings)}
    return tuple(replace(entry, piece=names.get(entry.piece, entry.piece)) for entry in pieces)


def _piece_entry(round: int, client: str, piece: Piece, index: int) -> PieceEntry:
    columns: dict[str, Any] = {name: float(column[index]) for name, column in piece.parts.items()}
    columns["weight"] = float(piece.values[index])
    if (limited := piece.limited) is not None:
        columns["proposed"] = float(limited.before[index])
        columns["clause"] = limited.clause_text(index)
    return PieceEntry(round, client, piece.name, **columns)
