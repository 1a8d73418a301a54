"""`feddraw explain`: a run's weights in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from feddraw.cli.terminal import console, print_json, table
from feddraw.errors import UserError
from feddraw.text import join_names, safe_line

if TYPE_CHECKING:
    from feddraw.analysis.explain_weights import WeightExplanation


def explain(
    run: Annotated[
        Path, Argument(help="Folder of a run, or of a Flower or FLARE server.", metavar="RUN")
    ],
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Explain in words and numbers how much each client counted, when, and why."""
    from feddraw.analysis.explain_weights import explain_run_weights
    from feddraw.analysis.weights_document import explanation_document
    from feddraw.results.find_runs import require_run
    from feddraw.results.recorded_run import read_run

    require_run(run)
    try:
        recorded = read_run(run)
    except UserError as mistake:
        raise UserError(f"{run}: {mistake}") from None
    explained = explain_run_weights(recorded)
    if json:
        print_json(explanation_document(explained))
    else:
        show_explanation(explained)


def show_explanation(explained: WeightExplanation) -> None:
    """The sentences, the clients, and where their weights came from."""
    from feddraw.analysis import weights_document, weights_in_words

    out = console()
    out.print(safe_line(_headline(explained)))
    if missing := explained.run.not_held():
        out.print(f"This folder does not hold {join_names(missing)}.")
    out.print()
    for sentence in weights_in_words.weights_in_sentences(explained):
        out.print(f"- {safe_line(sentence)}")
    clients = weights_document.explanation_document(explained)["clients"]
    rows = [weights_document.weight_row(client) for client in clients]
    if explained.run.not_averaged:
        columns = weights_document.COLUMNS_WITHOUT_WEIGHTS
        out.print(table(columns, [row[: len(columns)] for row in rows]))
        return
    out.print("\nAggregation weights")
    out.print(table(weights_document.WEIGHT_COLUMNS, rows))
    out.print(f"{weights_document.WEIGHT_COLUMNS_EXPLAINED}\n")
    if explained.from_size is None:
        out.print(weights_in_words.WHY_NO_SPLIT)
        return
    equal = weights_in_words.equal_share_in_words(explained)
    out.print(f"Where the weights come from, compared with an equal share ({equal})")
    sources = ["size", "similarity"]
    if explained.from_policy is not None:
        sources.append("policy")
    header = ["client", "difference", *(f"from {source}" for source in sources)]
    counted = [client for client in clients if client["rounds"]]
    out.print(table(header, [_source_row(client, sources) for client in counted]))
    out.print(f"In percentage points. {weights_in_words.HOW_WEIGHTS_SPLIT}")


def _headline(explained: WeightExplanation) -> str:
    """What was run, and how far."""
    from feddraw.results.run_reader import OWN_FOLDERS

    run = explained.run
    rounds = len(explained.shares)
    state = f"{rounds} round{'s' * (rounds > 1)}, counted from 0"
    if run.of_server:
        if run.planned > rounds:
            state += f", of {run.planned} planned"
        return f"Folder of a Flower or FLARE server, {len(explained.clients)} clients; {state}"
    if not run.finished:
        state += ", not finished"
    names = run.names
    where = "on the sites' own folders" if names.scenario == OWN_FOLDERS else f"in {names.scenario}"
    return f"{names.method} {where}, {len(explained.clients)} clients, seed {names.seed}; {state}"


def _source_row(client: dict[str, float], sources: Sequence[str]) -> list[str]:
    parts = [client[f"from_{source}"] for source in sources]
    return [str(client["client"]), *(f"{100 * part:+.2f}" for part in (sum(parts), *parts))]
