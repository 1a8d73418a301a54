"""A run's ledger as lines of a table, and read back: who counted how much in which round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.server.ledger import HIDDEN, LEDGER_NUMBERS, LedgerEntry, PieceEntry
from feddraw.server.policy import POLICY_CLAUSES
from feddraw.system.file_reading import read_csv

Floats = NDArray[np.float64]

LARGEST_LEDGER_NUMBER = (
    1e18  # beyond it no number of a ledger can be, because the gate lets none in
)
MOST_LEDGER_CELLS = (
    10_000_000  # rounds times clients: a small file may name as many of both as it has lines
)
HIDDEN_CELL = "hidden"  # of a number that only the client knows, under secure sums
LEDGER_COLUMNS = tuple(field.name for field in fields(LedgerEntry))
PIECE_COLUMNS = tuple(field.name for field in fields(PieceEntry))
LATER_LEDGER_COLUMNS = LEDGER_COLUMNS[
    LEDGER_COLUMNS.index("proposed") :
]  # earlier versions lack some of them
# Numbers that early ledgers do not have.
LATER_LEDGER_NUMBERS = (
    "proposed",
    "allowed",
    "measured",
    "variance",
    "distance",
    "q",
    "q_expected",
    "rho",
)


@dataclass(frozen=True, eq=False)
class LedgerTable:
    """Who counted how much: for every column (rounds × clients), not a number where there is
    nothing.
    """

    clients: tuple[str, ...]
    columns: Mapping[str, Floats]
    status: tuple[tuple[str, ...], ...]  # by round
    clauses: tuple[
        tuple[str, ...], ...
    ]  # by round, the policy's setting that decided a client's weight

    @staticmethod
    def of(lines: Sequence[Mapping[str, str]]) -> LedgerTable:
        clients = tuple(dict.fromkeys(line["client"] for line in lines))
        rounds = 1 + max((int(line["round"]) for line in lines), default=-1)
        if not 0 <= rounds <= len(lines) or rounds * len(clients) > MOST_LEDGER_CELLS:
            raise ValueError(
                f"round {rounds - 1} and {len(clients)} clients in a ledger of {len(lines)} lines"
            )
        columns = {
            name: np.full((rounds, len(clients)), np.nan)
            for name in (*LEDGER_NUMBERS, *LATER_LEDGER_NUMBERS)
        }
        status = [["missing"] * len(clients) for _ in range(rounds)]
        clauses = [[""] * len(clients) for _ in range(rounds)]
        place = {client: i for i, client in enumerate(clients)}
        for line in lines:
            t, i = int(line["round"]), place[line["client"]]
            status[t][i], clauses[t][i] = line["status"], line.get("clause", "")
            if clauses[t][i] not in POLICY_CLAUSES:
                raise ValueError("a clause that no policy has")
            for name, column in columns.items():
                cell = line[name] if name in LEDGER_NUMBERS else line.get(name)
                column[t, i] = float(math.nan if cell == HIDDEN_CELL else cell or math.nan)
        for name, column in columns.items():
            if (np.abs(column) > LARGEST_LEDGER_NUMBER).any():
                raise ValueError(f"{name} beyond {LARGEST_LEDGER_NUMBER:g}")
        return LedgerTable(clients, columns, tuple(map(tuple, status)), tuple(map(tuple, clauses)))

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def common(self, name: str) -> list[float]:
        """By round, the number that all clients share, such as gamma; NaN where there is none."""
        return [
            float(row[np.isfinite(row)][0]) if np.isfinite(row).any() else math.nan
            for row in self[name]
        ]

    def has(self, *names: str) -> bool:
        return all(np.isfinite(self[name]).any() for name in names)

    @property
    def limited(self) -> bool:
        """Whether a policy decided any weight."""
        return any(any(row) for row in self.clauses)

    @property
    def sizes(self) -> Floats:
        """Each client's images: the most it reported, because a missing one reports none."""
        return np.asarray(np.nanmax(self["size"], axis=0, initial=0.0))


def ledger_lines_before(round: int, path: Path, columns: Sequence[str]) -> list[list[str]]:
    """In today's columns, of which ledgers of earlier versions lack some."""
    lines = [
        dict.fromkeys(LATER_LEDGER_COLUMNS, "") | line
        for line in read_csv(path)
        if int(line["round"]) < round
    ]
    return [[line[name] for name in columns] for line in lines]


def ledger_rows(entries: Sequence[LedgerEntry] | Sequence[PieceEntry]) -> list[list[Any]]:
    return [[_ledger_cell(value) for value in asdict(entry).values()] for entry in entries]


def _ledger_cell(value: Any) -> Any:
    if value is HIDDEN:
        return HIDDEN_CELL
    return "" if isinstance(value, float) and math.isnan(value) else value
