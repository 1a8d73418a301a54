"""`feddraw weights`: the schedule and the weights, round by round, for anyone's client sizes."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from feddraw.cli.terminal import console, print_json, table
from feddraw.core.schedules import BETA_MAX, ETA, LAM, ROUNDS, schedule
from feddraw.errors import UserError
from feddraw.system.file_reading import read_text


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
    how: dict[str, Any] = {
        "eta": eta,
        "lam": lam,
        "beta_max": beta_max,
        "reading": reading,
        "clients": names,
    }
    images = [int(n) if n.is_integer() else n for n in numbers]
    rows = schedule(rounds=rounds, sizes=images, similarities=parse_similarity(similarity), **how)
    if plot is not None:
        from feddraw.analysis.plots import save_figure, schedule_figure

        save_figure(schedule_figure(rows), plot)
    if json:
        print_json(rows)
    else:
        show_weights(rows)


def show_weights(rows: list[dict[str, Any]]) -> None:
    """The clients, then a table for each part that moves: weights, reputations, similarities."""
    first = rows[0]["clients"]
    similarities = [[client["similarity"] for client in row["clients"]] for row in rows]
    steady = all(row == similarities[0] for row in similarities)
    clients = [
        [c["client"], f"{c['size']:,}", f"{c['prior']:.4f}", f"{c['similarity']:.4f}"]
        for c in first
    ]
    out = console()
    shown = 4 if steady else 3
    out.print(
        table(
            ["client", "size", "prior p", "similarity s"][:shown], [row[:shown] for row in clients]
        )
    )
    titles = {
        "weight": "weight = softmax(beta xi)",
        "reputation": "reputation xi = gamma p + (1 - gamma) s",
    }
    for part, title in (titles if steady else titles | {"similarity": "similarity s"}).items():
        lines = []
        for row in rows:
            beta = "prior" if row["beta"] is None else f"{row['beta']:.4f}"
            numbers = [f"{client[part]:.4f}" for client in row["clients"]]
            lines.append([str(row["round"]), f"{row['gamma']:.4f}", beta, *numbers])
        out.print(title)
        out.print(table(["round", "gamma", "beta", *(c["client"] for c in first)], lines))


def parse_numbers(text: str, what: str) -> list[float]:
    try:
        return [float(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{what} takes numbers separated by commas, not '{text}'") from None


def parse_similarity(text: str) -> Any:
    if not text:
        return None
    path = Path(text)
    if not path.is_file():
        if path.suffix.lower() == ".csv":
            raise UserError(f"no file {path}")
        return parse_numbers(text, "--similarity")
    try:
        lines = [
            line for line in csv.reader(StringIO(read_text(path, 1 << 24), newline="")) if line
        ]
    except csv.Error as error:
        raise UserError(f"{path} is not a table of similarities: {error}") from None
    if lines and not _weights_similarity_line(lines[0]):
        lines = lines[1:]  # a header
    if not lines or not all(map(_weights_similarity_line, lines)):
        raise UserError(f"{path} must hold numbers: one row per round, one column per client")
    return [[float(cell) for cell in line] for line in lines]


def _weights_similarity_line(line: list[str]) -> bool:
    try:
        return bool([float(cell) for cell in line])
    except ValueError:
        return False
