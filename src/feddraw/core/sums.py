"""The weighted sum of the clients' moves and the length of each move, in one pass over all updates.

Moves are differences from the sent model, so that float32 loses nothing that a float32 result could
show; beyond fifty clients, sums of fifty are added in float64. A matrix that is large enough to
matter goes through `sums.c`, compiled on first use where there is a C compiler (a quarter of a
second); numpy gives the same bits, more slowly.

Both add squares in one order, because float sums depend on it: the columns are cut into blocks of
`BLOCK`; in a block, column j belongs to lane j mod `LANES`, and each lane is summed in float32 from
its first column to its last; the lanes are added in float64, first to last, and so are the blocks,
and then the threads' parts.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from feddraw.system.threads import in_threads

Floats = NDArray[Any]  # one vector, or a matrix with one row per client
Column = NDArray[np.float64]  # (clients,)
# Some consecutive parameters, and the clients' coefficients for them.
Segment = tuple[slice, Column]
Own = TypeVar("Own")  # what holds for a slice of the parameters: coefficients, shares
Pass = Callable[[Floats, Floats, Floats, Floats | None], Column]

WORTH_COMPILING = 5_000_000  # numbers in all updates together
HAND = 50  # clients that are summed in float32, as in sums.c
BLOCK, LANES = 1 << 13, 8  # of the squares, as in sums.c
_MOVES_STRETCH = 1 << 19  # columns for one thread at a time
_MOVES_CACHED = 16 * BLOCK  # columns that numpy keeps in the processor's cache
# Columns of a plain weighted sum: for one thread, and at a time.
_SUM_STRETCH = 1 << 16
_SUM_BLOCK = 1 << 15
_GRAM_BLOCK = 1 << 14  # columns at a time: a block of ten clients stays in the processor's cache


def sum_moves(
    rows: Floats, sent: Floats, weights: NDArray[np.float64], out: Floats | None = None
) -> Column:
    """The squared length of each row's move from `sent`; into `out` goes `sent` plus the moves
    times their weights.

    The columns are cut at the same positions for any number of threads, so the bits do not depend
    on it.
    """
    spans = [slice(start, start + _MOVES_STRETCH) for start in range(0, len(sent), _MOVES_STRETCH)]
    single = weights.astype(rows.dtype)
    given = [rows, sent] if out is None else [rows, sent, out]
    plain = all(
        array.dtype == np.float32 and array.strides[-1] == array.itemsize for array in given
    )
    step = (
        compiled_sums() if plain and rows.size >= WORTH_COMPILING else None
    ) or _sum_moves_in_numpy

    def work(span: slice) -> Column:
        return step(rows[:, span], sent[span], single, None if out is None else out[span])

    squares = np.zeros(len(rows))
    for part in in_threads(work, spans):  # one after the other: `np.sum` has an order of its own
        squares += part
    return squares


def squared_distance(vector: Floats, origin: Floats) -> float:
    """|vector - origin|²; not finite where an element is not, or is too large to be squared."""
    return float(sum_moves(vector[None], origin, np.zeros(1))[0])


def _sum_moves_in_numpy(rows: Floats, sent: Floats, weights: Floats, out: Floats | None) -> Column:
    squares = np.zeros(len(rows))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(sent), _MOVES_CACHED):
            span = slice(start, start + _MOVES_CACHED)
            total = np.zeros(len(sent[span]))
            for first in range(0, len(rows), HAND):
                moves = np.zeros_like(sent[span])
                for k in range(first, min(first + HAND, len(rows))):
                    move = rows[k, span] - sent[span]
                    squares[k] = _plus_squares_of_move(squares[k], move)
                    moves += np.multiply(move, weights[k], out=move)
                total += moves
            if out is not None:
                out[span] = sent[span] + total
    return squares


def _plus_squares_of_move(total: float, move: Floats) -> float:
    """The total plus the squares of a move that starts at a block, added in the order of
    `sums.c`.
    """
    split = len(move) // BLOCK * BLOCK
    for part, blocks in ((move[:split], split // BLOCK), (move[split:], 1)):
        for square in _squares_of_blocks(part, blocks):
            total += square
    return total


def _squares_of_blocks(moves: Floats, blocks: int) -> list[float]:
    """The sum of squares of each block; zeros fill the last lanes of a block that is not full."""
    if not len(moves):
        return []
    squares = np.zeros(-(-len(moves) // LANES) * LANES, moves.dtype)
    np.multiply(moves, moves, out=squares[: len(moves)])
    # Eight lanes move as one item. A sum over rows adds row after row, and rows of all blocks
    # together are fast.
    items = squares.view(f"V{LANES * squares.itemsize}").reshape(blocks, -1)
    rows = np.ascontiguousarray(items.T).view(squares.dtype)
    lanes = np.add.reduce(rows, axis=0).reshape(blocks, LANES)
    ends: list[float] = np.add.accumulate(lanes, axis=1, dtype=np.float64)[:, -1].tolist()
    return ends


def segments_of_sum(
    length: int, column: Own, segments: Sequence[tuple[slice, Own]]
) -> Iterator[tuple[slice, Own]]:
    """The whole vector in order: the segments, and the slices between them with the coefficients of
    the rest.
    """
    end = 0
    for span, values in sorted(segments, key=lambda segment: segment[0].start):
        if span.start > end:
            yield slice(end, span.start), column
        yield span, values
        end = span.stop
    if end < length:
        yield slice(end, length), column


def weighted_sum(coefficients: Column, rows: Floats) -> Floats:
    """coefficients @ rows, summed in float64 block by block and returned in the rows' own
    precision.
    """
    total = np.empty(rows.shape[1], dtype=rows.dtype)

    def add(first: int) -> None:
        block = np.empty((len(rows), _SUM_BLOCK))
        for start in range(first, min(first + _SUM_STRETCH, len(total)), _SUM_BLOCK):
            span = slice(start, min(start + _SUM_BLOCK, len(total)))
            filled = block[:, : span.stop - start]
            np.copyto(filled, rows[:, span])
            total[span] = coefficients @ filled

    in_threads(add, range(0, len(total), _SUM_STRETCH))
    return total


def gram(rows: Floats, origin: Floats) -> Column:
    """(clients, clients): the scalar products of the rows' moves from the origin, summed in float64
    block by block.
    """
    total = np.zeros((len(rows), len(rows)))
    for start in range(0, rows.shape[1], _GRAM_BLOCK):
        block = (
            rows[:, start : start + _GRAM_BLOCK].astype(np.float64)
            - origin[start : start + _GRAM_BLOCK]
        )
        total += block @ block.T
    return total


def summed_by(numbers: int) -> str:
    """For the record, what sums updates of this many numbers here: `sums.c` and its compiler, or
    numpy and why.
    """
    if numbers < WORTH_COMPILING:
        return f"numpy: fewer than {WORTH_COMPILING:,} numbers"
    if shutil.which("cc") is None:
        return "numpy: no C compiler"
    if compiled_sums() is None:
        return "numpy: cc cannot compile sums.c"
    version = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=False)
    return f"sums.c: {(version.stdout.splitlines() or ['cc'])[0]}"


@cache
def compiled_sums() -> Pass | None:
    """`sums.c` as a function, if it can be compiled here."""
    compiler = shutil.which("cc")
    source = Path(__file__).with_name("sums.c")
    # No contraction: numpy rounds twice.
    options = (
        "-O3",
        "-march=native",
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
    )
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="feddraw-", ignore_cleanup_errors=True) as folder:
        library = Path(folder) / "sums.so"
        try:
            command = [compiler, *options, "-o", str(library), str(source)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            function = ctypes.CDLL(str(library)).fused  # stays loaded when the file is gone
        except (OSError, subprocess.SubprocessError):
            return None
    function.argtypes = [ctypes.c_long] * 3 + [ctypes.c_void_p] * 5
    function.restype = None

    def in_c(rows: Floats, sent: Floats, weights: Floats, out: Floats | None) -> Column:
        squares = np.zeros(len(rows))
        sizes = (*rows.shape, rows.strides[0] // rows.itemsize)
        written = None if out is None else out.ctypes.data
        function(
            *sizes,
            rows.ctypes.data,
            sent.ctypes.data,
            weights.ctypes.data,
            written,
            squares.ctypes.data,
        )
        return squares

    return in_c
