"""`feddraw weights`: the schedule and the weights, round by round, for anyone's client sizes."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Option

from feddraw.cli.terminal import console, print_json, table
from feddraw.core.schedules import (
    BETA_MAX,
    ETA,
    LAM,
    ROUNDS,
    Reading,
    most_moved_by_similarity,
    schedule,
)
from feddraw.errors import UserError
from feddraw.system.file_reading import read_text

if TYPE_CHECKING:
    from rich.table import Table

MOST_BYTES = 1 << 24  # of a table of similarities
EXAMPLE_GAP = 0.1  # between similarities, where none is given


def weights(
    sizes: Annotated[str, Option(help="Images of each client, e.g. 20000,5000,5000,5000.")],
    similarity: Annotated[
        str,
        Option(
            help=(
                "One cosine per client (.91,.99,.99,.98), or a CSV with one row per round (default:"
                " all 1)."
            )
        ),
    ] = "",
    rounds: Annotated[int, Option(help="Number of rounds, T.")] = ROUNDS,
    eta: Annotated[
        float, Option(help="How fast the weights move from client size to similarity.")
    ] = ETA,
    lam: Annotated[float, Option(help="How late the weights become equal: larger is later.")] = LAM,
    beta_max: Annotated[
        float, Option(help="How strongly reputations separate the weights.")
    ] = BETA_MAX,
    reading: Annotated[
        str, Option(help="Reading of the paper: reported, algorithm1 or equation.")
    ] = "reported",
    clients: Annotated[str, Option(help="Client names, in the order of the sizes.")] = "",
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
    plot: Annotated[
        Path | None, Option(help="Draw the weights to this file (.png, .svg or .pdf).")
    ] = None,
) -> None:
    """Show how much each client counts in every round, and why."""
    numbers = parse_numbers(sizes, "--sizes")
    names = [name.strip() for name in clients.split(",")] if clients else None
    if names is not None and len(names) != len(numbers):
        raise UserError(
            f"--clients names {len(names)} clients and --sizes {len(numbers)}: give one name per"
            " size"
        )
    if names is not None and len(set(names)) < len(names):
        raise UserError("--clients gives one name to two clients: give each its own")
    rows = schedule(
        rounds=rounds,
        sizes=[int(size) if size.is_integer() else size for size in numbers],
        similarities=parse_similarity(similarity),
        eta=eta,
        lam=lam,
        beta_max=beta_max,
        reading=cast(Reading, reading),
        clients=names,
    )
    if plot is not None:
        from feddraw.analysis.plots import save_figure, schedule_figure

        save_figure(schedule_figure(rows), plot)
    if json:
        print_json(rows)
    else:
        show_weights(rows)


def show_weights(rows: list[dict[str, Any]]) -> None:
    """The clients, then a table for each part that moves: weights, reputations, similarities."""
    clients = rows[0]["clients"]
    similarities = [[client["similarity"] for client in row["clients"]] for row in rows]
    steady = all(by_client == similarities[0] for by_client in similarities)
    header = ["client", "size", "prior p"]
    lines = [
        [client["client"], f"{client['size']:,}", f"{client['prior']:.4f}"] for client in clients
    ]
    parts = {
        "weight": "weight = softmax(beta xi)",
        "reputation": "reputation xi = gamma p + (1 - gamma) s",
    }
    if steady:
        header.append("similarity s")
        for line, client in zip(lines, clients, strict=True):
            line.append(f"{client['similarity']:.4f}")
    else:
        parts["similarity"] = "similarity s"
    out = console()
    out.print(table(header, lines))
    for part, title in parts.items():
        out.print(title)
        out.print(_table_by_round(rows, part))
    out.print(_moved_by_similarity_in_words(rows))


def _moved_by_similarity_in_words(rows: list[dict[str, Any]]) -> str:
    """How much of the weight the similarities can have moved, at most, and in which round."""
    by_round = []
    for row in rows:
        similarities = [client["similarity"] for client in row["clients"]]
        gap = max(similarities) - min(similarities)
        share = most_moved_by_similarity(gap, row["gamma"], row["beta"])
        by_round.append((share, row["round"], gap))
    share, round, gap = max(by_round)
    if share > 0:
        return (
            f"Similarity can move at most {100 * share:.1f} % of the weight: in round {round},"
            f" where similarities differ by {gap:.4f} (docs/similarity.md)."
        )
    shares = [
        (most_moved_by_similarity(EXAMPLE_GAP, row["gamma"], row["beta"]), row["round"])
        for row in rows
    ]
    share, round = max(shares)
    if len(rows[0]["clients"]) == 1:
        return "One client has all the weight: similarity moves nothing."
    if share == 0:
        return (
            "In these rounds similarity moves nothing, whatever it is: each takes the sizes alone"
            " or ends in equal weights."
        )
    return (
        "All similarities are equal and move nothing. Similarities that differ by"
        f" {EXAMPLE_GAP:g} could move at most {100 * share:.1f} % of the weight, in round {round}"
        " (docs/similarity.md)."
    )


def _table_by_round(rows: list[dict[str, Any]], part: str) -> Table:
    """One part of the weights of every client, a line for each round."""
    lines = []
    for row in rows:
        beta = "prior" if row["beta"] is None else f"{row['beta']:.4f}"
        numbers = [f"{client[part]:.4f}" for client in row["clients"]]
        lines.append([str(row["round"]), f"{row['gamma']:.4f}", beta, *numbers])
    names = [client["client"] for client in rows[0]["clients"]]
    return table(["round", "gamma", "beta", *names], lines)


def parse_numbers(text: str, option: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} takes numbers separated by commas, not '{text}'") from None


def parse_similarity(text: str) -> list[float] | list[list[float]] | None:
    """One number per client, or from a CSV file one row per round; None where nothing is given."""
    if not text:
        return None
    path = Path(text)
    if not path.is_file():
        if path.suffix.lower() == ".csv":
            raise UserError(f"no file {path}")
        return parse_numbers(text, "--similarity")
    file = StringIO(read_text(path, MOST_BYTES), newline="")
    try:
        lines = [line for line in csv.reader(file) if line]
    except csv.Error as error:
        raise UserError(f"{path} is not a table of similarities: {error}") from None
    if lines and not _holds_numbers(lines[0]):
        lines = lines[1:]  # a header
    if not lines or not all(map(_holds_numbers, lines)):
        raise UserError(f"{path} must hold numbers: one row per round, one column per client")
    return [[float(cell) for cell in line] for line in lines]


def _holds_numbers(line: list[str]) -> bool:
    try:
        return bool([float(cell) for cell in line])
    except ValueError:
        return False
