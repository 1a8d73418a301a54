"""The client's side: a site that trains by any of our methods, between `flare.receive()` and
`flare.send()`.

    site = Site(method, trainer, number=0)
    while flare.is_running():
        flare.send(site.train(flare.receive()))

What a method sends and gets beside the model travels in the models' `meta`. What a client remembers
(SCAFFOLD's control, FedDyn's gradient) stays in this process, which FLARE keeps for the whole job.
"""

from __future__ import annotations

from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from feddraw.core import Job, Memory, Method, Model
from feddraw.errors import UserError
from feddraw.federation import client_seed
from feddraw.nvflare.aggregator import STEPS_KEY
from feddraw.nvflare.model_meta import pack_meta, unpack_meta
from feddraw.server.state_dict import flatten_state_dict, plain_arrays, state_dict_like
from feddraw.training.client import Trainer


class Site:
    """One client.

    `number` is its own among all, for its seed; `shard` says which rows of the trainer it has.
    """

    def __init__(
        self,
        method: Method,
        trainer: Trainer,
        number: int,
        *,
        name: str = "",
        shard: int = 0,
        seed: int = 0,
    ) -> None:
        self.method, self.trainer, self.number, self.shard, self.seed = (
            method,
            trainer,
            number,
            shard,
            seed,
        )
        # by which the aggregator knows it, FLARE's name of the site; empty: every update has
        # counted
        self.name = name
        self._memory: Memory = {}
        self._learnt: tuple[int, Memory] | None = (
            None  # of the last round, until the aggregator has counted it
        )

    def train(self, received: FLModel) -> FLModel:
        """One client's part of a round."""
        layout = self.trainer.network.layout
        try:
            model = flatten_state_dict(plain_arrays(received.params), layout)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"the server's model is not this site's network: {error}") from None
        round, rounds = int(received.current_round or 0), int(received.total_rounds or 1)
        carried = unpack_meta(received.meta)
        self._settle_flare_memory(carried.get("counted"))
        seed, broadcast = (
            client_seed(self.seed, round, self.number),
            self._broadcast_to_site(carried, model),
        )
        job = Job(round, rounds, self.shard, seed, model, broadcast)
        update, memory = self.trainer.work(job, self._memory)
        self._learnt = round, memory
        beside: dict[str, Any] = {"extra": dict(update.extra)} if update.extra else {}
        if update.labelled is not None:
            beside["labelled"] = update.labelled.tolist()
        meta = {
            "num_examples": len(self.trainer.shards[self.shard]),
            STEPS_KEY: update.steps,
            **pack_meta(beside),
        }
        params = state_dict_like(update.model, received.params)
        return FLModel(
            ParamsType.FULL, params, metrics=dict(update.metrics), current_round=round, meta=meta
        )

    def _settle_flare_memory(self, counted: dict[str, int] | None) -> None:
        """Keep what the last round taught, if the aggregator counted it, or does not say."""
        if self._learnt is not None:
            round, memory = self._learnt
            if counted is None or not self.name or counted.get(self.name) == round:
                self._memory = memory
            self._learnt = None

    def _broadcast_to_site(self, carried: dict[str, Any], model: Model) -> dict[str, Any]:
        """What the server rule sends beside the model; in the first round, what it would begin
        with.
        """
        return dict(carried.get("broadcast") or self.method.broadcast(self.method.init(model)))
