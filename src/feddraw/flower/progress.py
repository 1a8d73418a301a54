"""How far a federation over Flower has come: what its server must know to go on, and what a
checkpoint holds of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field

from flwr.app import ArrayRecord

from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.client_memory import client_alias
from feddraw.flower.global_model import GlobalModel
from feddraw.flower.roster import Roster
from feddraw.flower.server_checkpoint import ServerCheckpoint
from feddraw.flower.strategy_options import StrategyOptions
from feddraw.server.round import RoundResult


def _new_run() -> str:
    return secrets.token_hex(8)


@dataclass(eq=False)
class Progress:
    """A federation between two rounds."""

    options: StrategyOptions
    roster: Roster
    rounds_before: int  # that were done before the server was started
    rounds_done: int = 0
    run: str = field(default_factory=_new_run)  # by which clients tell one run's memory from others
    model: GlobalModel | None = None  # the one that is sent next; None before the first is known
    population: int = 0  # most nodes that were ever connected at once
    # by client, the last round in which its update counted
    last_weighted: dict[str, int] = field(default_factory=dict)
    # the tensors that clients share, where they keep some to themselves; None: all
    shared_tensors: list[str] | None = None

    @property
    def current(self) -> GlobalModel:
        """The model, once there is one."""
        assert self.model is not None
        return self.model

    # --------------------------------------------------------------------------------- the model

    def adopt(self, arrays: ArrayRecord) -> None:
        """Take over a model that was not made here; with the first one, the rules' state begins."""
        if self.model is None:
            self.model = GlobalModel.first(arrays, self.options)
        else:
            self.model = self.model.replaced_by(arrays, self.options)

    def adopt_if_changed(self, arrays: ArrayRecord) -> None:
        """Take over the next round's model, if a wrapper or a subclass has changed it."""
        if self.model is None or arrays is not self.model.arrays:
            self.adopt(arrays)

    def share_only(self, tensors: Collection[str]) -> None:
        """From now on only these tensors are the model."""
        self.model = self.current.cut_to(frozenset(tensors), self.options)
        self.shared_tensors = list(self.model.arrays)

    def to_evaluate(self, arrays: ArrayRecord) -> ArrayRecord:
        """The model to evaluate, where a rule shows another one than it sends next."""
        if self.model is None or arrays is not self.model.arrays or not self.model.made_here:
            return arrays
        shown = self.options.method.shown(self.model.model, self.model.state)
        return arrays if shown is self.model.model else model_to_arrays(shown)

    # ---------------------------------------------------------------------------------- a round

    @property
    def averaged(self) -> bool:
        """Whether the model is one that was averaged before, as far as is known."""
        return self.rounds_before > 0 or bool(self.last_weighted)

    def take(self, result: RoundResult) -> None:
        """A round is done; where nobody counted, the model stays as it was."""
        self.rounds_done = result.round + 1
        if result.weights:
            self.model = self.current.stepped_to(result.next_model, result.state)
            self.last_weighted |= dict.fromkeys(result.weights, result.round)

    @property
    def population_names(self) -> list[str]:
        """The population: the known clients, and one for every node that never answered."""
        known = self.roster.names
        absent = range(self.population - len(known))
        return [*known, *(f"absent {number}" for number in absent)]

    def last_weighted_by_alias(self) -> dict[str, int]:
        """When each client last counted, by a hash of what it calls itself: none reads the others'
        names.
        """
        called = self.roster.called
        return {
            client_alias(self.run, called.get(name, name)): round
            for name, round in self.last_weighted.items()
        }

    # ------------------------------------------------------------------------------ a checkpoint

    def checkpoint(self) -> ServerCheckpoint:
        """All of it, to be written."""
        return ServerCheckpoint(
            model=self.current.model,
            state=self.current.state,
            rounds_done=self.rounds_done,
            run=self.run,
            roster=self.roster.record(),
            population=self.population,
            last_weighted=self.last_weighted,
            shared_tensors=self.shared_tensors,
        )

    def restore(self, checkpoint: ServerCheckpoint) -> None:
        """Go on from what was written."""
        self.model = self.current.stepped_to(checkpoint.model, checkpoint.state)
        self.rounds_before = checkpoint.rounds_done
        self.rounds_done = checkpoint.rounds_done
        self.run = checkpoint.run
        self.roster.restore(checkpoint.roster, rebind=self.options.rebind)
        self.population = checkpoint.population
        self.last_weighted = dict(checkpoint.last_weighted)
