"""Our methods as NVIDIA FLARE's aggregators: `FedDRAW(rounds=15)` wherever it takes one,
`MethodAggregator` for others.

FLARE has two kinds. The newer one is asked for a model (`FedAvgRecipe(aggregator=…)`), the older
one for a Shareable (`ScatterAndGather`, and `SwarmClientController`, where a site aggregates,
another one in every round). This is both.

FLARE rebuilds an aggregator from its arguments, by name and as JSON, so each is kept under its own
name; and it does not tell an aggregator how many rounds there will be, so T is an argument.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ProcessType, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from feddraw.aggregation import (
    AggregationState,
    ClientUpdate,
    aggregate,
    check_aggregation_suffices,
    method_to_aggregate,
)
from feddraw.core import Layout, Method
from feddraw.core.classifier_layer import classifier_in_words, looks_at_classifier
from feddraw.core.schedules import BETA_MAX, ETA, LAM, Reading
from feddraw.errors import RunFailed, UserError, in_one_line
from feddraw.nvflare.model_meta import pack_meta, unpack_meta
from feddraw.results.run_folder import RunFolder
from feddraw.server.gate import Gate
from feddraw.server.ledger import LedgerEntry
from feddraw.server.policy import policy_of
from feddraw.server.state_dict import Arrays, layout_of_arrays, plain_arrays
from feddraw.system.file_writing import make_folder
from feddraw.text import safe_line

log = logging.getLogger("feddraw.nvflare")

STEPS_KEY = "NUM_STEPS_CURRENT_ROUND"
# seconds before a swarm's next round: FLARE stops a site that still tidies up the last one then
SWARM_PAUSE = 3.0
UNREADABLE_MODEL = (KeyError, ValueError, TypeError, AttributeError, OverflowError, UserError)

LedgerHistory = list[tuple[LedgerEntry, ...]]


class MethodAggregator(ModelAggregator):  # type: ignore[misc,unused-ignore]
    """Any of our methods as a FLARE aggregator.

    `folder` is where `weights.csv` is written: on the server, and in a swarm at every site, in a
    folder of its name. Methods that change local training need clients that do so: see
    `feddraw.nvflare.Site`.
    """

    def __init__(
        self,
        method: str,
        rounds: int,
        settings: dict[str, Any] | None = None,  # of the method
        classifier: (
            str | list[str]
        ) = "",  # its layer, or several in the order of the findings; empty: found
        size_key: str = "num_examples",  # in a model's `meta`; without it a client's steps count
        folder: str = "",
        policy: (
            dict[str, Any] | str
        ) = "",  # limits on weights and sizes, or the file that holds them
        gate: dict[str, Any] | None = None,  # which updates are let in
        # the number of findings, against which the classifier is checked; 0: not known
        outputs: int = 0,
    ) -> None:
        super().__init__()
        self.method, self.rounds, self.settings, self.classifier = (
            method,
            rounds,
            settings,
            classifier,
        )
        self.size_key, self.folder, self.policy, self.gate, self.outputs = (
            size_key,
            folder,
            policy,
            gate,
            outputs,
        )
        self._method_table = {"name": method, **(settings or {})}
        self._rule: Method = method_to_aggregate(self._method_table)[0]
        check_aggregation_suffices(self._rule, method, ())
        self._policy = policy_of(policy)
        self._policy.check_method(self._rule)
        try:
            self._gate = Gate(**(gate or {}))
        except TypeError as error:
            raise UserError(f"gate: {in_one_line(error)}") from None
        self.history: LedgerHistory = []
        self._state: AggregationState | None = None
        self._known_layout: Layout | None = None
        self._clients: list[str] = []
        self._rounds_written = 0  # rounds that are in the folder's ledger
        self.reset_stats()

    def reset_stats(self) -> None:
        """At the start of each round."""
        self._models: dict[str, FLModel] = {}
        self._refused: dict[str, str] = {}

    def accept_model(self, model: FLModel) -> None:
        """Called once per client, in order of arrival, which must not matter."""
        name = str(model.meta["client_name"])
        if name in self._models:
            self._refused[name] = "it answered twice"
        self._models[name] = model

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """The older way: called by ScatterAndGather and by the site that gathers a swarm's
        round.
        """
        self.fl_ctx = fl_ctx
        own, peer = (
            shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, None),
            fl_ctx.get_peer_context(),
        )
        name = str(own or (peer.get_identity_name() if peer else "?"))
        trained, current = (
            shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND),
            self._current_round(),
        )
        if trained is not None and int(trained) != current:
            log.warning(
                "%s answers round %s, not round %d: left out", safe_line(name), trained, current
            )
            return False
        try:
            model = FLModelUtils.from_shareable(shareable, fl_ctx)
        except Exception as error:  # whatever FLARE stumbles over in what a site sent
            model = FLModel(params={}, meta={})
            self._refused[name] = f"no model: {in_one_line(error)}"
        model.meta = dict(model.meta or {}) | {
            "client_name": name
        }  # by FLARE's word, not the site's
        self.accept_model(model)
        return name not in self._refused

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        super().handle_event(event_type, fl_ctx)
        if event_type in (AppEventType.ROUND_STARTED, EventType.END_RUN) and _in_swarm(fl_ctx):
            self._copy_swarms_ledger(fl_ctx)

    def aggregate_model(self) -> FLModel:
        """The next model, once all are there; forgets them, as a swarm does not ask for that."""
        round, learnable = self._current_round(), self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        sent, swarm = plain_arrays(learnable["weights"]), _in_swarm(self.fl_ctx)
        if swarm:
            self._take_over_from_last_aggregator(learnable.get("meta"))
        self._stop_without_sizes()
        self._stop_without_extras()
        classifier = self._model_layout(sent).classifier
        self._clients += sorted(self._models.keys() - set(self._clients))
        sound = sorted(self._models.keys() - self._refused.keys())
        updates = [one for name in sound if (one := self._client_update(name, sent)) is not None]
        given: dict[str, Any] = {
            "method": self._method_table,
            "state": self._state,
            "clients": self._clients,
        }
        given |= {
            "classifier": classifier,
            "everyone": False,
            "gate": self._gate,
            "policy": self._policy,
        }
        result = aggregate(sent, updates, round=round, rounds=self.rounds, **given)
        self._state = result.state
        statuses = {name: f"refused: {why}" for name, why in self._refused.items()}
        ledger = tuple(
            replace(entry, status=statuses.get(entry.client, entry.status))
            for entry in result.ledger
        )
        self.history.append(ledger)
        self._log_ledger(round, ledger)
        self._write_ledger()
        self._stop_without_clients(round, ledger)
        self.reset_stats()
        carried: dict[str, Any] = {"broadcast": result.broadcast} if result.broadcast else {}
        if self._rule.local.keeps:
            carried["counted"] = {
                entry.client: entry.round
                for done in self.history
                for entry in done
                if entry.counted
            }
        if swarm:
            carried |= self._for_next_aggregator()
            time.sleep(SWARM_PAUSE)
        return FLModel(
            params_type=ParamsType.FULL, params=result.next_model, meta=pack_meta(carried)
        )

    def _current_round(self) -> int:
        return int(self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND))

    def _model_layout(self, sent: Arrays) -> Layout:
        if self._known_layout is None:
            ask = looks_at_classifier(self._rule)
            self._known_layout = layout_of_arrays(
                sent, self.classifier, outputs=self.outputs, ask=ask
            )
            log.info(
                "classifier: %s",
                classifier_in_words(self._known_layout.classifier, self._known_layout.outputs),
            )
        return self._known_layout

    def _client_update(self, name: str, sent: Arrays) -> ClientUpdate | None:
        """A client's update, or nothing if its model cannot be read."""
        model = self._models[name]
        try:
            if not self._has_size(model):
                raise ValueError(f"no size: {self._how_to_send_sizes()}")
            size, steps = (
                model.meta.get(key, model.meta.get(STEPS_KEY, 0))
                for key in (self.size_key, STEPS_KEY)
            )
            params, beside = plain_arrays(model.params or {}), unpack_meta(model.meta)
            if model.params_type == ParamsType.DIFF:
                params = {
                    key: (sent[key] + value).astype(sent[key].dtype)
                    for key, value in params.items()
                }
            extra, labelled = beside.get("extra", {}), beside.get("labelled")
            return ClientUpdate(params, int(size), name, int(steps) or 1, extra, labelled)
        except UNREADABLE_MODEL as error:
            self._refused[name] = in_one_line(error)
            return None

    def _has_size(self, model: FLModel) -> bool:
        return self.size_key in model.meta or STEPS_KEY in model.meta

    def _how_to_send_sizes(self) -> str:
        meta = f"{{'{self.size_key}': number of its images, '{STEPS_KEY}': optimiser steps}}"
        return f"let the client's script send FLModel(params=…, meta={meta})"

    def _stop_without_sizes(self) -> None:
        """Stop in the first round if the clients' script sends no sizes: later rounds would not
        either.
        """
        if self._models and not any(self._has_size(model) for model in self._models.values()):
            missing = (
                f"no site sends {self.size_key} or {STEPS_KEY} in its model's meta, so none can be"
                " weighed"
            )
            raise self._failure(f"{missing}: {self._how_to_send_sizes()}")

    def _stop_without_extras(self) -> None:
        wanted, models = list(self._rule.sends), self._models.values()
        if (
            wanted
            and models
            and not any(_extra_in_meta(model).keys() & set(wanted) for model in models)
        ):
            why = (
                f"{self.method} needs '{wanted[0]}' from its clients beside the model, and no site"
                " sends it"
            )
            remedy = "let the client's script train with feddraw.nvflare.Site"
            raise self._failure(f"{why}: {remedy}, or choose a method that weighs plain models")

    def _stop_without_clients(self, round: int, ledger: tuple[LedgerEntry, ...]) -> None:
        """Stop after two rounds in a row in which nobody counts: one may be an accident."""
        if any(entry.counted for entry in ledger):
            return
        reasons = (
            "; ".join(safe_line(f"{entry.client}: {entry.status}") for entry in ledger[:3])
            or "no site answered"
        )
        log.error("round %d: no update counted, the model stays as it was (%s)", round + 1, reasons)
        if len(self.history) > 1 and not any(entry.counted for entry in self.history[-2]):
            raise self._failure(
                f"no update counted in two rounds in a row ({reasons}): fix this, then start again"
            )

    def _failure(self, why: str) -> RunFailed:
        """In FLARE's log too: some of its workflows show only the kind of an error."""
        log.error("%s", why)
        return RunFailed(why)

    def _for_next_aggregator(self) -> dict[str, Any]:
        """What the site that aggregates the next round needs: it may be another."""
        assert self._state is not None
        state = {
            "method": self._state.method,
            "next_round": self._state.next_round,
            "values": self._state.values,
        }
        ledger = json.dumps([[asdict(entry) for entry in round] for round in self.history])
        return {"state": state, "clients": json.dumps(self._clients), "ledger": ledger}

    def _take_over_from_last_aggregator(self, meta: Mapping[str, Any] | None) -> None:
        """Continue from what the site that aggregated the round before has handed on."""
        carried = unpack_meta(meta)
        if "state" not in carried:
            return
        try:
            self._clients = [str(name) for name in json.loads(carried["clients"])]
            self.history = _swarms_history(carried["ledger"])
            about, names = carried["state"], tuple(self._clients)
            self._state = AggregationState(
                about["method"], names, int(about["next_round"]), dict(about["values"])
            )
        except (KeyError, TypeError, ValueError):
            raise RunFailed(
                "what the swarm's last aggregating site has handed on cannot be read"
            ) from None

    def _copy_swarms_ledger(self, fl_ctx: FLContext) -> None:
        """Every site of a swarm has the whole ledger, whoever aggregated."""
        learnable = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        ledger = unpack_meta(learnable.get("meta")).get("ledger") if learnable else None
        if ledger is not None:
            self.fl_ctx = fl_ctx
            self.history = max(self.history, _swarms_history(ledger), key=len)
            self._write_ledger()

    def _log_ledger(self, round: int, ledger: tuple[LedgerEntry, ...]) -> None:
        for entry in ledger:
            level = logging.INFO if entry.counted else logging.WARNING
            said = (round + 1, safe_line(entry.client), entry.weight, safe_line(entry.status))
            log.log(level, "round %d: %s %.4f (%s)", *said)

    def _write_ledger(self) -> None:
        """Add the rounds that are not in the folder's ledger yet."""
        new = [ledger for ledger in self.history[self._rounds_written :] if ledger]
        if not self.folder or not new:
            return
        swarm = _in_swarm(self.fl_ctx)
        folder = RunFolder(
            Path(self.folder) / self.fl_ctx.get_identity_name() if swarm else Path(self.folder)
        )
        make_folder(folder.path, private=True)
        folder.forget_from(new[0][0].round)
        for ledger in new:
            folder.add_to_ledger(ledger)
        self._rounds_written = len(self.history)


class FedDRAW(MethodAggregator):
    """Weighs the clients' models by FedDRAW; `folder` is where `weights.csv` is written."""

    def __init__(
        self,
        rounds: int,
        eta: float = ETA,
        lam: float = LAM,
        beta_max: float = BETA_MAX,
        reading: Reading = "reported",
        classifier: str | list[str] = "",
        size_key: str = "num_examples",  # in a model's `meta`; without it a client's steps count
        folder: str = "",
        policy: (
            dict[str, Any] | str
        ) = "",  # limits on weights and sizes, or the file that holds them
        gate: dict[str, Any] | None = None,  # which updates are let in
        # the number of findings, against which the classifier is checked; 0: not known
        outputs: int = 0,
    ) -> None:
        settings = {"eta": eta, "lam": lam, "beta_max": beta_max, "reading": reading}
        super().__init__(
            "feddraw", rounds, settings, classifier, size_key, folder, policy, gate, outputs
        )
        self.eta, self.lam, self.beta_max, self.reading = eta, lam, beta_max, reading


def _in_swarm(fl_ctx: FLContext) -> bool:
    """Whether a site aggregates, and not the server."""
    return bool(fl_ctx.get_prop(ReservedKey.PROCESS_TYPE) == ProcessType.CLIENT_JOB)


def _extra_in_meta(model: FLModel) -> dict[str, Any]:
    try:
        return dict(unpack_meta(model.meta).get("extra", {}))
    except (UserError, TypeError, ValueError):
        return {}


def _swarms_history(ledger: str) -> LedgerHistory:
    return [tuple(LedgerEntry(**entry) for entry in round) for round in json.loads(ledger)]
