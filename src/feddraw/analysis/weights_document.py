"""A run's weights and their explanation as JSON holds them, and as the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feddraw.analysis.events_in_words import absent_evaluations
from feddraw.analysis.explain_weights import EXACTLY_EQUAL, NEARLY_EQUAL, WeightExplanation
from feddraw.analysis.weights_in_words import HOW_WEIGHTS_SPLIT, percent, weights_in_sentences
from feddraw.system.file_writing import finite_or_none, json_values


def explanation_document(explained: WeightExplanation) -> dict[str, Any]:
    """The explanation as JSON holds it; null where there is nothing to say."""
    run = explained.run
    ahead = explained.ahead
    document = {
        "run": str(run.path),
        "method": run.names.method or None,
        "scenario": run.names.scenario or None,
        "seed": run.names.seed,
        "rounds": len(explained.shares),
        "finished": run.finished,
        "not_averaged": run.not_averaged or None,
        "not_held": run.not_held(),
        "words": list(weights_in_sentences(explained)),
        "clients": [_client_document(explained, place) for place in range(len(explained.clients))],
        "small": {
            "clients": explained.small_names,
            "overtook": ahead[0][0] if ahead else None,
            "ahead": [list(span) for span in ahead],
        },
        "equal": {
            "within": NEARLY_EQUAL,
            "rounds": [list(span) for span in explained.equal(NEARLY_EQUAL)],
            "exactly": [list(span) for span in explained.equal(EXACTLY_EQUAL)],
        },
        "split": None if explained.from_size is None else HOW_WEIGHTS_SPLIT,
        "by_round": [_round_document(explained, t) for t in range(len(explained.shares))],
        "not_weighted": [
            {"round": t, "client": client, "status": status}
            for t, client, status in explained.events
        ],
        "not_evaluated": [
            {"round": t, "client": client, "status": status}
            for t, client, status in absent_evaluations(run)
        ],
    }
    return dict(json_values(document))


def _client_document(explained: WeightExplanation, place: int) -> dict[str, Any]:
    """A client's numbers, of the rounds in which it counted and its weight is known; null where
    there are none.
    """
    ledger = explained.run.ledger
    rounds = np.flatnonzero(explained.known[:, place])
    document = {
        "client": explained.clients[place],
        "size": int(ledger.sizes[place]),
        "image_share": float(explained.image_shares[place]),
        "rounds": int(explained.counted[:, place].sum()),
    }
    names = ("first", "mean", "last", "most", "most_round", "influence", *explained.parts)
    if not len(rounds):
        return document | dict.fromkeys(names)
    shares = explained.shares[rounds, place]
    influence = np.nan_to_num(ledger["influence"][rounds, place])
    parts = {
        name: None if part is None else float(part[rounds, place].mean())
        for name, part in explained.parts.items()
    }
    return {
        **document,
        "first": float(shares[0]),
        "mean": float(shares.mean()),
        "last": float(shares[-1]),
        "most": float(shares.max()),
        "most_round": int(rounds[shares.argmax()]),
        "influence": float(influence.mean()) if ledger.knows_influence else None,
        **parts,
    }


COLUMNS_WITHOUT_WEIGHTS = ("client", "images", "share", "rounds")  # where nothing was averaged
WEIGHT_COLUMNS = (
    *COLUMNS_WITHOUT_WEIGHTS,
    "first",
    "mean",
    "last",
    "largest (round)",
    "influence",
)
WEIGHT_COLUMNS_EXPLAINED = (
    "Share: part of all images. Rounds: in how many the client counted. First, mean, last, largest:"
    " its aggregation weight over these rounds. Influence: its part of the total length of the"
    " weighted updates, mean over these rounds."
)


def weight_row(client: Mapping[str, Any]) -> list[str]:
    """A client of the document as a row of the table with these columns."""
    counted = client["rounds"] > 0
    hidden = counted and client["influence"] is None
    return [
        str(client["client"]),
        f"{client['size']:,}",
        percent(client["image_share"]),
        str(client["rounds"]),
        percent(client["first"]),
        percent(client["mean"]),
        percent(client["last"]),
        "-" if client["most"] is None else f"{percent(client['most'])} ({client['most_round']})",
        "hidden" if hidden else percent(client["influence"]),
    ]


def _round_document(explained: WeightExplanation, round: int) -> dict[str, Any]:
    ledger = explained.run.ledger
    common = {
        name: finite_or_none(ledger.common(name)[round])
        for name in ("gamma", "beta", "q", "q_expected", "rho")
    }
    columns = {"share": explained.shares, **explained.parts}
    clients = []
    for place, client in enumerate(explained.clients):
        numbers = {
            name: None if column is None else float(column[round, place])
            for name, column in columns.items()
        }
        clients.append({"client": client, **numbers})
    return {"round": round, **common, "clients": clients}
