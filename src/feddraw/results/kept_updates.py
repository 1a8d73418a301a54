"""The updates of every round, kept on disk (`keep.updates`), and read back to be aggregated again.

A file per round: the model that was sent, the rules' state before the round, and what each site
sent back, with a digest of all. The sites' whole models are kept and not their moves, so that all
of them together give the run's next model to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Layout, Method, Model, State, Update
from feddraw.errors import UserError
from feddraw.results.checkpoint import array_tree_bytes, extract_arrays, read_array_tree
from feddraw.results.run_reader import damage_told
from feddraw.server.round import Collector, Round, RoundResult
from feddraw.system.file_writing import make_subfolder, write_errors_told, write_whole
from feddraw.text import bytes_in_words

VECTORS = ("params", "buffers", "counters")


def round_file(folder: Path, round: int) -> Path:
    return folder / f"round-{round:05d}.safetensors"


def check_room_for_updates(
    method: Method, initial: Model, asked: Sequence[int], most_gb: float
) -> None:
    """Refuse, before the first round, to keep more than `keep.gb`; `asked` are the sites of each
    round.
    """
    needed = bytes_of_updates(method, initial, asked)
    if needed > most_gb * 1e9:
        raise UserError(
            f"the updates of {len(asked)} rounds take {bytes_in_words(needed)}, more than keep.gb ="
            f" {most_gb:g}: raise keep.gb, or set keep.updates = false"
        )


def bytes_of_updates(method: Method, initial: Model, asked: Sequence[int]) -> int:
    """What the updates of all rounds take; `asked` are the sites of each round."""
    model = sum(getattr(initial, name).nbytes for name in VECTORS)
    extra = 4 * sum(map(initial.layout.extent, method.sends.values()))
    arrays: dict[str, NDArray[Any]] = {}
    extract_arrays(method.init(initial), "state", arrays)
    state = sum(array.nbytes for array in arrays.values())
    return sum(model + state + sites * (model + extra) for sites in asked)


@dataclass(frozen=True, eq=False)
class KeepingUpdates:
    """A collector that also writes down what it was given."""

    collect: Collector
    folder: Path
    in_turn: ClassVar[bool] = False

    def __call__(self, round: Round, arriving: Iterable[Update]) -> RoundResult:
        updates = list(arriving)
        result = self.collect(round, updates)
        with write_errors_told(self.folder):
            make_subfolder(self.folder, private=True)
        content = array_tree_bytes(_round_as_tree(round, updates))
        write_whole(round_file(self.folder, round.number), content, private=True)
        return result


@dataclass(frozen=True, eq=False)
class KeptRound:
    """A round as it was before it was aggregated."""

    round: Round
    updates: tuple[Update, ...]  # of the sites whose numbers were finite, in client order

    @property
    def present(self) -> tuple[int, ...]:
        """The sites whose updates are there."""
        return tuple(update.client for update in self.updates)

    def model_before(self) -> Model:
        """The model to evaluate if nobody sends anything."""
        return self.round.method.shown(self.round.sent, self.round.state)

    def aggregated(self, collect: Collector, members: Collection[int]) -> RoundResult:
        """What the method makes of the updates of some sites, as if no other had been asked."""
        sampled = [client for client in self.round.sampled if client in members]
        updates = [update for update in self.updates if update.client in members]
        part = Round(
            number=self.round.number,
            rounds=self.round.rounds,
            sent=self.round.sent,
            method=self.round.method,
            state=self.round.state,
            clients=self.round.clients,
            sampled=sampled,
        )
        return collect(part, updates)


def read_kept_round(
    folder: Path, number: int, rounds: int, method: Method, layout: Layout, clients: Sequence[str]
) -> KeptRound:
    """A round of a run that kept its updates."""
    path = round_file(folder, number)
    tree = read_array_tree(path)
    with damage_told(path):
        if tree["round"] != number:
            raise ValueError(f"round {tree['round']}")
        sent = _model_of(tree["sent"], layout)
        updates = tuple(_update_of(site, layout) for site in tree["updates"].values())
        round = Round(
            number=number,
            rounds=rounds,
            sent=sent,
            method=method,
            state=_as_state(tree["state"]),
            clients=clients,
            sampled=[int(client) for client in tree["sampled"]],
        )
    return KeptRound(round, updates)


def _round_as_tree(round: Round, updates: Sequence[Update]) -> dict[str, Any]:
    finite = [update for update in updates if _is_finite(update)]
    in_order = sorted(finite, key=lambda update: update.client)
    return {
        "round": round.number,
        "sampled": np.array(list(round.sampled), np.int64),
        "sent": _vectors_of(round.sent),
        "state": round.state,
        "updates": {str(update.client): _update_as_tree(update) for update in in_order},
    }


def _is_finite(update: Update) -> bool:
    """An update that is not was refused, and would be again."""
    vectors = [update.model.params, update.model.buffers, *update.extra.values()]
    return all(bool(np.isfinite(vector).all()) for vector in vectors)


def _vectors_of(model: Model) -> dict[str, NDArray[Any]]:
    return {name: getattr(model, name) for name in VECTORS}


def _update_as_tree(update: Update) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "client": update.client,
        "model": _vectors_of(update.model),
        "size": update.size,
        "metrics": {name: float(v) for name, v in update.metrics.items() if math.isfinite(v)},
        "extra": dict(update.extra),
    }
    if update.steps is not None:
        tree["steps"] = update.steps
    if update.labelled is not None:
        tree["labelled"] = update.labelled
    return tree


def _model_of(tree: Mapping[str, Any], layout: Layout) -> Model:
    model = Model(tree["params"], tree["buffers"], tree["counters"], layout)
    kinds = {"param": model.params, "buffer": model.buffers, "counter": model.counters}
    for kind, vector in kinds.items():
        if vector.shape != (layout.length(kind),):
            raise ValueError("it is of another network")
    return model


def _update_of(tree: Mapping[str, Any], layout: Layout) -> Update:
    return Update(
        client=int(tree["client"]),
        model=_model_of(tree["model"], layout),
        size=tree["size"],
        steps=tree.get("steps"),
        metrics={"loss": math.nan} | dict(tree["metrics"]),
        extra=dict(tree["extra"]),
        labelled=tree.get("labelled"),
    )


def _as_state(tree: Any) -> State:
    if not isinstance(tree, dict):
        raise TypeError("no state")
    return tree
