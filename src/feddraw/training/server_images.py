"""Labelled images at the server, for rules that weigh clients by their results on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from feddraw.core import Model, Vector
from feddraw.data.dataset import Labels
from feddraw.errors import UserError
from feddraw.training import loop
from feddraw.training.loop import Examples, Rows
from feddraw.training.network import Build, Network
from feddraw.training.objective import PRESENCE, Objective
from feddraw.training.reproducibility import one_thread


@dataclass(eq=False)
class ServerImages:
    """Labelled images at the server (see `core.Proxy`)."""

    build: Build
    examples: Examples
    rows: Rows
    batch_size: int
    objective: Objective = PRESENCE

    @cached_property
    def network(self) -> Network:
        return Network(*self.build())

    def loss(self, model: Model) -> float:
        self.network.load(model)
        with one_thread():
            logits = loop.logits_of(self.network, self.examples, self.rows)
            return float(
                loop.loss_over_known(
                    self._loss, logits, torch.from_numpy(self.examples.targets[self.rows])
                )
            )

    def gradients(self, seed: int) -> Iterator[Callable[[Vector], Vector]]:
        for batch in loop.epoch_batches(self.rows, self.batch_size, np.random.default_rng(seed)):
            if not np.isnan(self.examples.targets[batch]).all():
                yield partial(self._gradient, batch)

    def _gradient(self, batch: Rows, params: Vector) -> Vector:
        network = self.network
        network.params.copy_(network.vector(params))
        network.module.train()
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # for dropout and the like
            loop.loss_and_gradient(network, *self.examples.batch(batch), self._loss)
        return network.values(network.grads)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Against the labels as they are: smoothing belongs to the clients' training."""
        return self.objective.loss(logits, targets, 0.0)


def choose_server_images(labels: Labels, rows: Rows, images: int, seed: int) -> Rows:
    """Some of the rows: equally many with each finding and with none, as far as there are, the
    rarest chosen first.
    """
    truth = labels.truth(rows)
    kinds = np.column_stack([truth == 1, (truth == 0).all(axis=1)])
    order = np.random.default_rng([seed, images]).permutation(len(rows))
    taken: list[int] = []
    for kind in np.argsort(kinds.sum(axis=0), kind="stable"):
        fresh = [place for place in order if kinds[place, kind] and place not in taken]
        missing = images // kinds.shape[1] - int(kinds[taken, kind].sum())
        taken += fresh[: max(0, missing)]
    if len(taken) < 2:
        raise UserError(
            f"{images} validation image(s) for the server are too few: set a larger proxy"
        )
    return np.asarray(rows[np.sort(taken)])
