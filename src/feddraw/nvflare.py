"""FedDRAW as NVIDIA FLARE's aggregator: `FedAvgRecipe(aggregator=FedDRAW(rounds=15), …)`. Same rule, same ledger.

FLARE rebuilds an aggregator from its arguments, by name and as JSON, so each is kept under its own name; and it does
not tell an aggregator how many rounds there will be, so T is an argument.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from feddraw.core import Layout, State, Update
from feddraw.errors import RunFailed, UserError
from feddraw.methods.feddraw import feddraw
from feddraw.naming import line
from feddraw.results.folder import RunFolder, policy_of
from feddraw.schedules import BETA_MAX, ETA, LAM, Reading
from feddraw.server.ledger import LedgerEntry
from feddraw.server.round import aggregate_round
from feddraw.server.state_dict import Arrays, doubt, flatten, layout_of_arrays, plain
from feddraw.system.files import make_folder

try:
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
    from nvflare.app_common.app_constant import AppConstants
except ImportError:
    raise UserError("feddraw.nvflare needs NVIDIA FLARE: pip install 'feddraw[nvflare]'") from None

log = logging.getLogger(__name__)

STEPS = "NUM_STEPS_CURRENT_ROUND"


class FedDRAW(ModelAggregator):  # type: ignore[misc,unused-ignore]
    """Weighs the clients' models by FedDRAW; `folder` is where `weights.csv` is written, on the server."""

    def __init__(
        self,
        rounds: int,
        eta: float = ETA,
        lam: float = LAM,
        beta_max: float = BETA_MAX,
        reading: Reading = "reported",
        classifier: str = "",
        size_key: str = "num_examples",  # in a model's `meta`; without it a client's steps count
        folder: str = "",
        policy: dict[str, Any] | str = "",  # limits on weights and sizes, or the file that holds them
    ) -> None:
        super().__init__()
        self.rounds, self.eta, self.lam, self.beta_max, self.reading = rounds, eta, lam, beta_max, reading
        self.classifier, self.size_key, self.folder = classifier, size_key, folder
        self.policy = policy
        self._policy = policy_of(policy)
        self.history: list[tuple[LedgerEntry, ...]] = []
        self._method = feddraw(eta, lam, beta_max, reading)
        self._state: State | None = None
        self._clients: list[str] = []
        self._models: dict[str, FLModel] = {}
        self._twice: set[str] = set()
        self._refused: dict[str, str] = {}

    def reset_stats(self) -> None:
        """At the start of each round."""
        self._models, self._twice, self._refused = {}, set(), {}

    def accept_model(self, model: FLModel) -> None:
        """Called once per client, in order of arrival, which must not matter."""
        name = str(model.meta["client_name"])
        if name in self._models:
            self._twice.add(name)
        self._models[name] = model

    def aggregate_model(self) -> FLModel:
        round = int(self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND))
        sent = plain(self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)["weights"])
        layout = layout_of_arrays(sent, self.classifier)
        self._stop_without_sizes()
        if self._state is None and not self.classifier and (unsure := doubt(layout)):
            log.warning("%s", unsure)
        model = flatten(sent, layout)
        self._state = self._state or self._method.init(model)
        self._clients += sorted(self._models.keys() - set(self._clients))
        updates = [u for name in sorted(self._models) if (u := self._update(name, sent, layout)) is not None]
        result = aggregate_round(
            round, self.rounds, model, self._method, self._state, updates, self._clients, policy=self._policy
        )
        self._state = result.state
        ledger = tuple(
            replace(entry, status=f"refused: {self._refused[entry.client]}") if entry.client in self._refused else entry
            for entry in result.ledger
        )
        self.history.append(ledger)
        self._write(round, ledger)
        self._stop_without_clients(round, ledger)
        return FLModel(params_type=ParamsType.FULL, params=result.next_model.arrays())

    def _stop_without_sizes(self) -> None:
        """Stop in the first round if the clients' script sends no sizes: later rounds would not either."""
        if self._models and not any(self._has_size(model) for model in self._models.values()):
            raise RunFailed(
                f"no site sends {self.size_key} or {STEPS} in its model's meta, so none can be weighed: let the "
                f"client's script send FLModel(params=…, meta={{'{self.size_key}': number of its images, "
                f"'{STEPS}': optimiser steps}})"
            )

    def _has_size(self, model: FLModel) -> bool:
        return self.size_key in model.meta or STEPS in model.meta

    def _stop_without_clients(self, round: int, ledger: tuple[LedgerEntry, ...]) -> None:
        """Stop after two rounds in a row in which nobody counts: one may be an accident."""
        if any(entry.counted for entry in ledger):
            return
        reasons = "; ".join(line(f"{entry.client}: {entry.status}") for entry in ledger[:3]) or "no site answered"
        log.error("round %d: no update counted, the model stays as it was (%s)", round + 1, reasons)
        if len(self.history) > 1 and not any(entry.counted for entry in self.history[-2]):
            raise RunFailed(f"no update counted in two rounds in a row ({reasons}): fix this, then start again")

    def _update(self, name: str, sent: Arrays, layout: Layout) -> Update | None:
        """A client's update, or nothing if its model cannot be read."""
        model = self._models[name]
        size, steps = (model.meta.get(key, model.meta.get(STEPS, 0)) for key in (self.size_key, STEPS))
        client = self._clients.index(name)
        try:
            if name in self._twice:
                raise ValueError("it answered twice")
            if not self._has_size(model):
                raise ValueError(f"no {self.size_key} or {STEPS} in its model's meta")
            params = plain(model.params)
            if model.params_type == ParamsType.DIFF:
                params = {key: (sent[key] + value).astype(sent[key].dtype) for key, value in params.items()}
            return Update(client, flatten(params, layout), int(size), int(steps) or 1, {"loss": 0.0})
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            self._refused[name] = " ".join(str(error).split())[:200]
            return None

    def _write(self, round: int, ledger: tuple[LedgerEntry, ...]) -> None:
        for entry in ledger:
            level = logging.INFO if entry.counted else logging.WARNING
            log.log(level, "round %d: %s %.4f (%s)", round + 1, line(entry.client), entry.weight, line(entry.status))
        if self.folder:
            folder = RunFolder(Path(self.folder))
            make_folder(folder.path, private=True)
            folder.forget_from(round)
            folder.add_to_ledger(ledger)
