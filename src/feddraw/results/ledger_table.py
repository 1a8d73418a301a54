"""A run's ledger in `weights.csv` and `pieces.csv`: entries as rows of a table and back, and all of
it as arrays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.server.ledger import LedgerEntry, PieceEntry
from feddraw.server.policy import read_clause
from feddraw.server.status import Status, StatusKind
from feddraw.system.file_reading import read_csv

Floats = NDArray[np.float64]

# Beyond it no number of a ledger can be, because the gate lets none in.
LARGEST_LEDGER_NUMBER = 1e18
# Rounds times clients: a small file may name as many of both as it has lines.
MOST_LEDGER_CELLS = 10_000_000
# The files say what is hidden in the column's own cell.
LEDGER_COLUMNS = tuple(field.name for field in fields(LedgerEntry) if field.name != "hidden")
PIECE_COLUMNS = tuple(field.name for field in fields(PieceEntry) if field.name != "hidden")
HIDDEN_CELL = "hidden"  # of a number that only the client knows, under secure sums
WORDS = ("client", "status", "clause", "piece")  # columns of words; all others are numbers
COUNTS = ("round", "steps")  # columns of whole numbers
# How a server calls a node that has not given its name: it may be one that did so later.
UNNAMED_NODE = re.compile(r"(node|stranger) \d+")
NUMBER_COLUMNS = tuple(name for name in LEDGER_COLUMNS if name not in (*WORDS, "round"))


def ledger_rows(entries: Sequence[LedgerEntry]) -> list[list[Any]]:
    """Entries as rows of a table; blank where a number is undefined or unknown."""
    return [[_to_cell(entry, name) for name in LEDGER_COLUMNS] for entry in entries]


def piece_rows(entries: Sequence[PieceEntry]) -> list[list[Any]]:
    """The same for `pieces.csv`."""
    return [[_to_cell(entry, name) for name in PIECE_COLUMNS] for entry in entries]


def _to_cell(entry: LedgerEntry | PieceEntry, name: str) -> Any:
    if name in entry.hidden:
        return HIDDEN_CELL
    value = getattr(entry, name)
    if value is None:
        return ""
    return "" if isinstance(value, float) and math.isnan(value) else value


def ledger_entry(row: Mapping[str, str]) -> LedgerEntry:
    """The entry of a row by column; raises what it stumbles over in what a run does not write."""
    values = {name: _from_cell(name, row[name]) for name in LEDGER_COLUMNS}
    entry = LedgerEntry(**values, hidden=_hidden(row, LEDGER_COLUMNS))
    if entry.round < 0:
        raise ValueError("a round below 0")
    read_clause(entry.clause)
    return entry


def piece_entry(row: Mapping[str, str]) -> PieceEntry:
    """The same for a row of `pieces.csv`."""
    values = {name: _from_cell(name, row[name]) for name in PIECE_COLUMNS}
    return PieceEntry(**values, hidden=_hidden(row, PIECE_COLUMNS))


def _hidden(row: Mapping[str, str], columns: Sequence[str]) -> frozenset[str]:
    """The columns whose numbers only the client knows."""
    return frozenset(name for name in columns if name not in WORDS and row[name] == HIDDEN_CELL)


def _from_cell(name: str, text: str) -> Any:
    """What `_to_cell` was given; sizes are written as whole numbers where they are such."""
    if name in WORDS:
        return text
    if text == HIDDEN_CELL and name != "round":
        return math.nan
    if name == "steps" and not text:
        return None
    if name in COUNTS or (name == "size" and text.isdecimal()):
        number: float = int(text)
    else:
        number = float(text) if text else math.nan
    if abs(number) > LARGEST_LEDGER_NUMBER:
        raise ValueError(f"{name} beyond {LARGEST_LEDGER_NUMBER:g}")
    return number


def read_ledger(path: Path) -> list[LedgerEntry]:
    """The entries of a ledger; a torn last line is passed over, and no file has none."""
    return [ledger_entry(row) for row in read_csv(path)]


def read_pieces(path: Path) -> list[PieceEntry]:
    """The same for `pieces.csv`."""
    return [piece_entry(row) for row in read_csv(path)]


@dataclass(frozen=True, eq=False)
class LedgerTable:
    """Who counted how much: for every column (rounds × clients), not a number where there is
    nothing, or nothing that the server knows (`hidden`).

    A node without a name that never counted is not a client: it may be a stranger, or a client that
    gave its name later.
    """

    clients: tuple[str, ...]
    columns: Mapping[str, Floats]
    status: tuple[tuple[str, ...], ...]  # by round
    clauses: tuple[tuple[str, ...], ...]  # by round, the policy's setting that decided a weight
    # By column that hides any: (rounds × clients), which numbers only their client knows.
    hidden_cells: Mapping[str, NDArray[np.bool_]]

    @staticmethod
    def of(entries: Sequence[LedgerEntry]) -> LedgerTable:
        clients = _clients(entries)
        rounds = 1 + max((entry.round for entry in entries), default=-1)
        if not 0 <= rounds <= len(entries) or rounds * len(clients) > MOST_LEDGER_CELLS:
            raise ValueError(
                f"round {rounds - 1} and {len(clients)} clients in a ledger of {len(entries)} lines"
            )
        columns = {name: np.full((rounds, len(clients)), np.nan) for name in NUMBER_COLUMNS}
        # whoever was asked has a line
        status = [[StatusKind.NOT_SAMPLED.value] * len(clients) for _ in range(rounds)]
        clauses = [[""] * len(clients) for _ in range(rounds)]
        hiding = frozenset[str]().union(*(entry.hidden for entry in entries))
        hidden = {name: np.zeros((rounds, len(clients)), dtype=bool) for name in sorted(hiding)}
        places = {client: place for place, client in enumerate(clients)}
        for entry in entries:
            if entry.client not in places:
                continue
            place = places[entry.client]
            status[entry.round][place] = entry.status
            clauses[entry.round][place] = entry.clause
            for name, column in columns.items():
                value = getattr(entry, name)
                column[entry.round, place] = math.nan if value is None else value
            for name in entry.hidden:
                hidden[name][entry.round, place] = True
        return LedgerTable(
            clients, columns, tuple(map(tuple, status)), tuple(map(tuple, clauses)), hidden
        )

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def hidden(self, name: str) -> NDArray[np.bool_]:
        """(rounds × clients): which numbers of a column only their client knows (secure sums)."""
        nothing = np.zeros((self.rounds, len(self.clients)), dtype=bool)
        return self.hidden_cells.get(name, nothing)

    @property
    def rounds(self) -> int:
        return len(self.status)

    def common(self, name: str) -> list[float]:
        """By round, the number that all clients share, such as gamma; NaN where there is none."""
        return [
            float(row[np.isfinite(row)][0]) if np.isfinite(row).any() else math.nan
            for row in self[name]
        ]

    def has(self, *names: str) -> bool:
        return all(np.isfinite(self[name]).any() for name in names)

    @property
    def knows_influence(self) -> bool:
        """Under secure sums only the client knows it. (It is 0 for those that do not count.)"""
        return self.has("influence") and not self.hidden("influence").any()

    @property
    def counted(self) -> NDArray[np.bool_]:
        """(rounds × clients): whether the client's update was weighted."""
        weighted = [
            [Status.read(text).kind is StatusKind.WEIGHTED for text in row] for row in self.status
        ]
        return np.array(weighted, dtype=bool).reshape(self.rounds, len(self.clients))

    @property
    def limited(self) -> bool:
        """Whether a policy decided any weight."""
        return any(any(row) for row in self.clauses)

    @property
    def sizes(self) -> Floats:
        """Each client's images: the most it reported, because a missing one reports none."""
        return np.asarray(np.nanmax(self["size"], axis=0, initial=0.0))


def _clients(entries: Sequence[LedgerEntry]) -> tuple[str, ...]:
    """The clients of a federation, in the order of the ledger."""
    weighted = {entry.client for entry in entries if entry.weighted}
    names = dict.fromkeys(entry.client for entry in entries)
    return tuple(name for name in names if name in weighted or not UNNAMED_NODE.fullmatch(name))
