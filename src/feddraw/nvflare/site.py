"""The client's side: a site that trains by any of our methods, between `flare.receive()` and
`flare.send()`.

    site = Site(method, trainer, number=0)
    while flare.is_running():
        flare.send(site.train(flare.receive()))

What a method sends and gets beside the model travels in the models' `meta`. What a client remembers
(SCAFFOLD's control, FedDyn's gradient) stays in this process, which FLARE keeps for the whole job.

Only what is trained goes back, with the digest of what is frozen. Frozen tensors come with the
first model, if the job's initial model has them; otherwise every site's network has them from a
file.
"""

from __future__ import annotations

from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from feddraw.core import Job, Memory, Method, Model
from feddraw.errors import UserError
from feddraw.federation import client_seed
from feddraw.nvflare.model_meta import FROZEN, pack_meta, unpack_meta
from feddraw.nvflare.site_numbers import STEPS_KEY
from feddraw.server.state_dict import Arrays, flatten_state_dict, plain_arrays, state_dict_like
from feddraw.text import one_line
from feddraw.training.client import Trainer
from feddraw.training.own_frozen_layers import OwnLayers, check_frozen_shapes, frozen_digest


class Site:
    """One client.

    `number` is its own among all, for its seed; `shard` says which rows of the trainer it has.
    `backbone` is the file from which the trainer's network has its frozen layers: where the job's
    are others, the site does not train. Left out, it takes those of the job's first model.
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
        backbone: str = "",
    ) -> None:
        self.method = method
        self.trainer = trainer
        self.number = number
        # FLARE's name of the site, by which the aggregator knows it; empty: every update counts
        self.name = name
        self.shard = shard
        self.seed = seed
        self.backbone = backbone
        self._memory: Memory = {}
        # round and memory, until the aggregator has said whether the round's update counted
        self._learnt: tuple[int, Memory] | None = None

    def train(self, received: FLModel) -> FLModel:
        """One client's part of a round."""
        carried = unpack_meta(received.meta)
        model = self._model_sent(received, str(carried.get(FROZEN, "")))
        self._settle_memory(carried.get("weighted"))
        round = int(received.current_round or 0)
        job = Job(
            round=round,
            rounds=int(received.total_rounds or 1),
            client=self.shard,
            seed=client_seed(self.seed, round, self.number),
            model=model,
            broadcast=self._broadcast(carried, model),
        )
        update, memory = self.trainer.work(job, self._memory)
        self._learnt = round, memory
        beside: dict[str, Any] = {}
        frozen = model.layout.frozen
        if frozen:
            beside[FROZEN] = frozen_digest(frozen)
        if update.extra:
            beside["extra"] = dict(update.extra)
        if update.labelled is not None:
            beside["labelled"] = update.labelled.tolist()
        images = len(self.trainer.shards[self.shard])
        sizes = {"num_examples": images, STEPS_KEY: update.known_steps}
        trained = {name: value for name, value in received.params.items() if name not in frozen}
        return FLModel(
            ParamsType.FULL,
            state_dict_like(update.model, trained),
            metrics=dict(update.metrics),
            current_round=round,
            meta=sizes | pack_meta(beside),
        )

    def _model_sent(self, received: FLModel, agreed: str) -> Model:
        """What is trained of the model that came; `agreed` is the digest of the frozen layers, once
        the aggregator knows it.
        """
        try:
            arrays = plain_arrays(received.params)
            self._take_frozen(arrays, agreed)
            layout = self.trainer.network.layout
            trained = {name: array for name, array in arrays.items() if name not in layout.frozen}
            return flatten_state_dict(trained, layout)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"the server's model is not this site's network: {error}") from None

    def _take_frozen(self, arrays: Arrays, agreed: str) -> None:
        """Let the network have the job's frozen layers, from the model that came or from its own
        file.
        """
        frozen = self.trainer.network.layout.frozen
        sent = {name: arrays[name] for name in frozen if name in arrays}
        if sent:
            check_frozen_shapes(sent, frozen)
            agreed = frozen_digest(sent)
        if not agreed or agreed == frozen_digest(frozen):
            return
        if self.backbone:
            OwnLayers(self.backbone, lambda: frozen).check(agreed)
        if not sent:
            raise UserError(
                f"the job's frozen layers (SHA-256 {one_line(agreed, 64)}) went out with its first"
                " model, which this process did not get: build the network from the file that has"
                " them, and name it (backbone)"
            )
        self.trainer.freeze(sent)

    def _settle_memory(self, last_weighted: dict[str, int] | None) -> None:
        """Keep what the last round taught, if the aggregator weighted it, or does not say."""
        if self._learnt is None:
            return
        round, memory = self._learnt
        if last_weighted is None or not self.name or last_weighted.get(self.name) == round:
            self._memory = memory
        self._learnt = None

    def _broadcast(self, carried: dict[str, Any], model: Model) -> dict[str, Any]:
        """What the server rule sends beside the model; in the first round, what it would begin
        with.
        """
        return dict(carried.get("broadcast") or self.method.broadcast(self.method.init(model)))
