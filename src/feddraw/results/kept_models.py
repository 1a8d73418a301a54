"""Models that a run keeps on request beside that of its last round: of the best validation round,
and a tail average.

The tail average is the mean of the last rounds' global models: rounds differ by noise, and a mean
has less of it. The test set chooses nothing here. What is kept so far lies beside the checkpoint,
so a run that is resumed ends with the same bits; to add a round a second time changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from feddraw.core import Layout, Model
from feddraw.errors import UserError
from feddraw.results.checkpoint import array_tree_bytes, read_array_tree
from feddraw.results.metrics import RunMetrics
from feddraw.results.round_log import read_round_log
from feddraw.results.run_folder import RunFolder
from feddraw.system.file_writing import make_subfolder, write_whole


@dataclass(frozen=True)
class Keep:
    """What to keep beside the model of the last round: other models, which are evaluated, too, and
    each round's updates.
    """

    best: bool = False  # the model of the round with the highest validation AUC
    tail: int = 0  # the mean of the models of so many last rounds; 0 = no such model
    # Every round's updates, for `feddraw contribution`: a copy of each site's model per round.
    updates: bool = False
    gb: float = 2.0  # the most room that they may take

    @property
    def models(self) -> bool:
        """Whether other models than the last are kept."""
        return self.best or bool(self.tail)

    def check(self, rounds: int) -> None:
        """Refuse a tail that is not made of some of the rounds, and no room for updates."""
        if not self.gb > 0:
            raise UserError(f"keep.gb must be a number of gigabytes above 0, not {self.gb}")
        if self.tail and not 2 <= self.tail <= rounds:
            raise UserError(
                f"keep.tail must be 0 (off) or from 2 to the {rounds} rounds of the run, not"
                f" {self.tail}"
            )


@dataclass(frozen=True, eq=False)
class KeptModel:
    """A model, the rounds that it comes from, and what chose them."""

    model: Model
    rounds: tuple[int, ...]
    chosen_by: str


class ModelKeeper:
    """Sees the model of every round, and keeps what is asked for; with a folder, also over a
    restart.
    """

    def __init__(self, keep: Keep, rounds: int, folder: RunFolder | None = None) -> None:
        self._keep = keep
        self._rounds = rounds
        self._folder = folder
        self._best: dict[str, Any] = {}  # round, AUC and the three vectors
        self._tail: dict[str, Any] = {}  # first and last round, sums in float64, highest counters

    def resume(self) -> None:
        """Take up what a run kept before it was interrupted."""
        assert self._folder is not None
        if not self._keep.models:
            return
        if self._folder.kept.is_file():
            tree = read_array_tree(self._folder.kept)
            self._best = dict(tree.get("best", {}))
            self._tail = dict(tree.get("tail", {}))
        lines = read_round_log(self._folder.rounds)
        areas = {line.round: line.validation.auc.macro for line in lines}
        if not (self._has_best_of(areas) and self._has_tail_of(len(areas))):
            raise UserError(
                f"{self._folder.kept} is missing or does not fit {self._folder.rounds.name}: start"
                " again in another folder"
            )

    def _has_best_of(self, areas: Mapping[int, float]) -> bool:
        """Whether the best round of those logged is kept; what is kept may be one round ahead."""
        finite = {round: auc for round, auc in areas.items() if math.isfinite(auc)}
        if not self._keep.best or not finite:
            return True
        best = max(finite, key=lambda round: (finite[round], -round))
        return self._best.get("round", -1) in (best, len(areas))

    def _has_tail_of(self, done: int) -> bool:
        """Whether the sum reaches to the last of the rounds done, or is one round ahead."""
        begun = self._keep.tail and done > self._rounds - self._keep.tail
        return not begun or self._tail.get("last", -1) in (done - 1, done)

    def add(self, round: int, model: Model, metrics: RunMetrics) -> None:
        """Look at the model after a round; `metrics` has its validation AUC."""
        changed = self._keep.best and self._take_if_best(round, model, metrics.validation.auc.macro)
        in_tail = self._keep.tail and round >= self._rounds - self._keep.tail
        if in_tail and round > self._tail.get("last", -1):
            self._add_to_tail(round, model)
            changed = True
        if changed and self._folder is not None:
            make_subfolder(self._folder.kept.parent, private=True)
            content = array_tree_bytes({"best": self._best, "tail": self._tail})
            write_whole(self._folder.kept, content, private=True)

    def _take_if_best(self, round: int, model: Model, auc: float) -> bool:
        if not math.isfinite(auc) or auc <= self._best.get("auc", -math.inf):
            return False
        vectors = {
            name: np.array(getattr(model, name)) for name in ("params", "buffers", "counters")
        }
        self._best = {"round": round, "auc": auc} | vectors
        return True

    def _add_to_tail(self, round: int, model: Model) -> None:
        if not self._tail:
            self._tail = {"first": round, "counters": np.array(model.counters)}
            self._tail |= {
                name: np.zeros(len(getattr(model, name))) for name in ("params", "buffers")
            }
        for name in ("params", "buffers"):
            self._tail[name] = self._tail[name] + getattr(model, name)
        self._tail["counters"] = np.maximum(self._tail["counters"], model.counters)
        self._tail["last"] = round

    def models(self, like: Model) -> dict[str, KeptModel]:
        """What there is at the end, by name; in the types of another model of the same network."""
        models = {}
        if self._best:
            models["best"] = KeptModel(
                model=_model_of_vectors(self._best, like.layout),
                rounds=(self._best["round"],),
                chosen_by="the highest validation AUC; of equal rounds the first",
            )
        if self._tail:
            rounds = tuple(range(self._tail["first"], self._tail["last"] + 1))
            means = {
                name: (self._tail[name] / len(rounds)).astype(like.params.dtype)
                for name in ("params", "buffers")
            }
            models["tail"] = KeptModel(
                model=_model_of_vectors(self._tail | means, like.layout),
                rounds=rounds,
                chosen_by=f"the settings, before training (keep.tail = {self._keep.tail})",
            )
        return models


def _model_of_vectors(vectors: Mapping[str, Any], layout: Layout) -> Model:
    return Model(vectors["params"], vectors["buffers"], vectors["counters"], layout)
