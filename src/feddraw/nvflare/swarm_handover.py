"""What the site that aggregates a swarm's round hands on: another site may aggregate the next one.

It travels in the meta of the global model, which every site gets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from feddraw.aggregation import AggregationState
from feddraw.errors import RunFailed
from feddraw.nvflare.model_meta import unpack_meta
from feddraw.server.ledger import LedgerEntry

LedgerHistory = list[tuple[LedgerEntry, ...]]  # a ledger for every round


@dataclass(frozen=True, eq=False)
class SwarmHandover:
    """The state of the method and the ledger of all rounds, with the clients in their order."""

    state: AggregationState
    clients: Sequence[str]
    history: LedgerHistory
    first_steps: Mapping[str, int]  # by client, the first steps that were taken as its size

    def carried(self) -> dict[str, Any]:
        """As a tree for `pack_meta`."""
        state = {
            "method": self.state.method,
            "next_round": self.state.next_round,
            "values": self.state.values,
        }
        ledger = [[_entry_document(entry) for entry in entries] for entries in self.history]
        return {
            "state": state,
            "clients": json.dumps(list(self.clients)),
            "ledger": json.dumps(ledger),
            "first_steps": json.dumps(dict(self.first_steps)),
        }

    @classmethod
    def of(cls, meta: Mapping[str, Any] | None) -> SwarmHandover | None:
        """What a model's meta holds; None before the first round."""
        carried = unpack_meta(meta)
        if "state" not in carried:
            return None
        try:
            clients = [str(name) for name in json.loads(carried["clients"])]
            state = AggregationState(
                method=carried["state"]["method"],
                clients=tuple(clients),
                next_round=int(carried["state"]["next_round"]),
                values=dict(carried["state"]["values"]),
            )
            first_steps = {
                str(name): int(steps) for name, steps in json.loads(carried["first_steps"]).items()
            }
            return cls(state, clients, read_history(carried["ledger"]), first_steps)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunFailed(
                "what the swarm's last aggregating site has handed on cannot be read"
            ) from None


def read_history(text: str) -> LedgerHistory:
    """The ledgers of all rounds, as `SwarmHandover.carried` writes them."""
    return [tuple(map(_read_entry, entries)) for entries in json.loads(text)]


def _entry_document(entry: LedgerEntry) -> dict[str, Any]:
    return asdict(entry) | {"hidden": sorted(entry.hidden)}


def _read_entry(document: Mapping[str, Any]) -> LedgerEntry:
    return LedgerEntry(**{**document, "hidden": frozenset(document["hidden"])})
