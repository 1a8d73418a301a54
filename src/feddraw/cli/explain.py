"""`feddraw explain`: a run's weights in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from feddraw.cli.terminal import console, print_json, table
from feddraw.errors import UserError
from feddraw.text import safe_line

if TYPE_CHECKING:
    from feddraw.analysis.explain_weights import WeightExplanation


def explain(
    run: Annotated[Path, Argument(help="Folder of a run.", metavar="RUN")],
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Explain in words and numbers how much each client counted, when, and why."""
    from feddraw.analysis import explain_weights
    from feddraw.results.recorded_run import read_run
    from feddraw.results.run_folder import require_run

    require_run(run)
    try:
        read = read_run(run)
    except UserError as mistake:
        raise UserError(f"{run}: {mistake}") from None
    found = explain_weights.explain_run_weights(read)
    if json:
        print_json(explain_weights.explanation_document(found))
    else:
        show_explanation(found)


def show_explanation(found: WeightExplanation) -> None:
    """The sentences, the clients, and where their weights came from."""
    from feddraw.analysis import explain_weights

    settings, rounds = found.run.settings, len(found.shares)
    facts = (
        f"{found.run.name} in {settings['scenario']['name']}, {len(found.clients)} clients, seed"
        f" {settings['seed']}"
    )
    state = f"{rounds} round{'s' * (rounds > 1)}, counted from 0" + (
        "" if found.run.finished else ", not finished"
    )
    out = console()
    out.print(safe_line(f"{facts}; {state}"), "", sep="\n")
    for sentence in explain_weights.weights_in_sentences(found):
        out.print(f"- {safe_line(sentence)}")
    clients = explain_weights.explanation_document(found)["clients"]
    out.print("\nAggregation weights")
    columns = ["client", "images", "share", "first", "mean", "last", "largest (round)", "influence"]
    out.print(table(columns, [_explained_client(client) for client in clients]))
    out.print(
        "Share: part of all images. First, mean, last, largest: aggregation weight over the rounds."
    )
    out.print(
        "Influence: client's part of the total length of the weighted updates, mean over rounds.\n"
    )
    if found.from_size is None:
        out.print(explain_weights.WHY_NO_SPLIT)
        return
    equal = explain_weights.percent(1 / len(found.clients))
    out.print(f"Where the weights come from, compared with an equal share of {equal}")
    sources = ["size", "similarity", *(["policy"] if found.from_policy is not None else [])]
    parts = [_explained_contributions(client, sources) for client in clients]
    out.print(table(["client", "difference", *(f"from {source}" for source in sources)], parts))
    out.print(f"In percentage points. {explain_weights.HOW_WEIGHTS_SPLIT}")


def _explained_client(client: dict[str, float]) -> list[str]:
    from feddraw.analysis.explain_weights import percent

    most = f"{percent(client['most'])} ({client['most_round']})"
    weights = [percent(client[name]) for name in ("first", "mean", "last")]
    images = [f"{client['size']:,}", percent(client["image_share"])]
    return [str(client["client"]), *images, *weights, most, percent(client["influence"])]


def _explained_contributions(client: dict[str, float], sources: Sequence[str]) -> list[str]:
    parts = [client[f"from_{source}"] for source in sources]
    return [str(client["client"]), *(f"{100 * part:+.2f}" for part in (sum(parts), *parts))]
