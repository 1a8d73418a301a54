"""What a server needs to resume after it was killed: written after every round, and read again.

It is a checkpoint as every other run writes it, with one more table in its state, under `flower`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feddraw.core import Layout, Model, State
from feddraw.errors import UserError
from feddraw.flower.roster import RosterRecord
from feddraw.results.checkpoint import Checkpoint
from feddraw.results.run_folder import RunFolder

TABLE = "flower"  # in the checkpoint's state


@dataclass(frozen=True, eq=False)
class ServerCheckpoint:
    """A federation after a round."""

    model: Model  # the one that is sent next
    state: State  # of the method's rules
    rounds_done: int
    run: str  # by which clients tell the memory of one run from that of another
    roster: RosterRecord
    population: int  # most nodes that were ever connected at once
    last_weighted: Mapping[str, int]  # by client, the last round in which its update counted
    # the tensors that clients share, where they keep some to themselves; None: all
    shared_tensors: Sequence[str] | None

    def write(self, folder: RunFolder) -> None:
        """Replace the folder's checkpoint, whole or not at all."""
        table: dict[str, Any] = {
            "clients": self.roster.names,
            "owners": self.roster.owners,
            "called": self.roster.called,
            "listed": self.roster.listed,
            "run": self.run,
            "population": self.population,
            "weighted": self.last_weighted,
            "tensors": self.shared_tensors,
        }
        state = self.state | {TABLE: table}
        folder.save_checkpoint(Checkpoint(self.model, state, self.rounds_done, {}))

    @classmethod
    def read(cls, folder: RunFolder, layout: Layout) -> ServerCheckpoint | None:
        """The folder's checkpoint, None if it has none; a damaged one is refused."""
        checkpoint = folder.load_checkpoint(layout)
        if checkpoint is None:
            return None
        if TABLE not in checkpoint.state:
            raise UserError(
                f"{folder.path} holds a run that no Flower server has begun: choose another folder"
            )
        table = checkpoint.state[TABLE]
        return cls(
            model=checkpoint.model,
            state={rule: state for rule, state in checkpoint.state.items() if rule != TABLE},
            rounds_done=checkpoint.next_round,
            run=table["run"],
            roster=RosterRecord(
                table["clients"], table["owners"], table["called"], table["listed"]
            ),
            population=table["population"],
            last_weighted=table["weighted"],
            shared_tensors=table["tensors"],
        )


def shared_tensors_in_checkpoint(folder: RunFolder) -> Sequence[str] | None:
    """The tensors that clients share, by the folder's checkpoint: without them its arrays cannot be
    read. None: all, or there is no checkpoint.
    """
    return folder.checkpoint_notes().get(TABLE, {}).get("tensors") or None


def name_owners_in_checkpoint(folder: RunFolder) -> dict[str, str]:
    """By name, the identity of the node that it belongs to; empty where there is no checkpoint."""
    return _names_in_checkpoint(folder, "owners")


def listed_sites_in_checkpoint(folder: RunFolder) -> dict[str, str]:
    """The operator's list of sites, name to identity; empty where there is none."""
    return _names_in_checkpoint(folder, "listed")


def _names_in_checkpoint(folder: RunFolder, entry: str) -> dict[str, str]:
    names = folder.checkpoint_notes().get(TABLE, {}).get(entry, {})
    return {str(name): str(identity) for name, identity in names.items()}
