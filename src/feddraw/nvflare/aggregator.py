"""Our methods as NVIDIA FLARE's aggregators: `FedDRAW(rounds=15)` wherever it takes one,
`MethodAggregator` for others.

FLARE has two kinds. The newer one is asked for a model (`FedAvgRecipe(aggregator=…)`), the older
one for a Shareable (`ScatterAndGather`, and `SwarmClientController`, where a site aggregates,
another one in every round). This is both.

FLARE rebuilds an aggregator from its arguments, by name and as JSON, so each is kept under its own
name; and it does not tell an aggregator how many rounds there will be, so T is an argument.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
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
    AggregationResult,
    AggregationState,
    ClientUpdate,
    NoUpdateUsed,
    aggregate,
    check_aggregation_suffices,
    method_to_aggregate,
)
from feddraw.core import Layout, Method
from feddraw.core.classifier_layer import classifier_in_words, looks_at_classifier
from feddraw.core.schedules import BETA_MAX, ETA, LAM, Reading
from feddraw.errors import UserError, in_one_line
from feddraw.nvflare import stop_rules
from feddraw.nvflare.frozen_vote import (
    majority_digest,
    named_digest,
    sites_with_others,
    without_frozen,
)
from feddraw.nvflare.model_meta import FROZEN, pack_meta, unpack_meta
from feddraw.nvflare.site_numbers import STEPS_KEY, AskedNumbers
from feddraw.nvflare.sizes_by_steps import SizesBySteps, note_in_ledger
from feddraw.nvflare.swarm_handover import LedgerHistory, SwarmHandover, read_history
from feddraw.results.run_folder import RunFolder
from feddraw.server.gate import NO_STEPS, Gate
from feddraw.server.ledger import LedgerEntry, with_notes, with_refusals
from feddraw.server.policy import policy_of
from feddraw.server.state_dict import Arrays, layout_of_arrays, plain_arrays
from feddraw.system.file_writing import make_folder
from feddraw.text import one_line, safe_line

log = logging.getLogger("feddraw.nvflare")

# seconds before a swarm's next round: FLARE stops a site that still tidies up the last one then
SWARM_PAUSE = 3.0
UNREADABLE_MODEL = (KeyError, ValueError, TypeError, AttributeError, OverflowError, UserError)


class MethodAggregator(ModelAggregator):  # type: ignore[misc,unused-ignore]
    """Any of our methods as a FLARE aggregator.

    `settings` are the method's. `classifier` names the layer that gives the scores, or several in
    the order of the findings; left out, it is found by its shape and by `outputs`, the number of
    findings (0: not known). `size_key` is where a model's `meta` has the number of images; without
    it a client's steps count, as many as in its first answer (`SizesBySteps`). `folder` is where
    `weights.csv` is written: on the server, and in a swarm at every site, in a folder of its name.
    `policy` limits weights and sizes, by its settings or by the file that holds them; `gate` says
    which updates are let in. Methods that change local training need clients that do so: see
    `feddraw.nvflare.Site`.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what FLARE's job files name
        self,
        method: str,
        rounds: int,
        settings: dict[str, Any] | None = None,
        classifier: str | list[str] = "",
        size_key: str = "num_examples",
        folder: str = "",
        policy: dict[str, Any] | str = "",
        gate: dict[str, Any] | None = None,
        outputs: int = 0,
    ) -> None:
        super().__init__()
        # the arguments, under their own names, as FLARE looks for them
        self.method = method
        self.rounds = rounds
        self.settings = settings
        self.classifier = classifier
        self.size_key = size_key
        self.folder = folder
        self.policy = policy
        self.gate = gate
        self.outputs = outputs
        # what they mean
        self._method_table = {"name": method, **(settings or {})}
        self._method: Method = method_to_aggregate(self._method_table)[0]
        check_aggregation_suffices(self._method, method, ())
        self._policy = policy_of(policy).of_federation()
        self._policy.check_method(self._method)
        self._gate = _gate_of(gate or {})
        self._gate.check_method(self._method)
        self._asked = AskedNumbers(size_key)
        # how far the job has come
        self.history: LedgerHistory = []
        self._state: AggregationState | None = None
        self._frozen = ""  # the digest of what the sites do not train, once most of them agree
        self._layout: Layout | None = None
        self._clients: list[str] = []
        self._sizes_by_steps = SizesBySteps(self._asked)
        self._rounds_written = 0  # rounds that are in the folder's ledger
        self.reset_stats()

    # ------------------------------------------------------------------------------- models come in

    def reset_stats(self) -> None:
        """At the start of each round."""
        self._models: dict[str, FLModel] = {}
        self._refused: dict[str, str] = {}
        self._notes: dict[str, str] = {}

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
        name = _sender(shareable, fl_ctx)
        trained = shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND)
        current = self._current_round()
        if trained is not None and str(trained) != str(current):  # whatever a site calls a round
            log.warning(
                "%s answers round %s, not round %d: left out",
                safe_line(name),
                one_line(trained),
                current,
            )
            return False
        try:
            model = FLModelUtils.from_shareable(shareable, fl_ctx)
        except Exception as error:  # whatever FLARE stumbles over in what a site sent
            model = FLModel(params={}, meta={})
            self._refused[name] = f"no model: {in_one_line(error)}"
        # by FLARE's word, not the site's
        model.meta = dict(model.meta or {}) | {"client_name": name}
        self.accept_model(model)
        return name not in self._refused

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        super().handle_event(event_type, fl_ctx)
        if event_type in (AppEventType.ROUND_STARTED, EventType.END_RUN) and _in_swarm(fl_ctx):
            self._copy_swarms_ledger(fl_ctx)

    # ----------------------------------------------------------------------------- a round's models

    def aggregate_model(self) -> FLModel:
        """The next model, once all are there; forgets them, as a swarm does not ask for that."""
        round = self._current_round()
        learnable = self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        sent = plain_arrays(learnable["weights"])
        swarm = _in_swarm(self.fl_ctx)
        if swarm:
            self._take_over(learnable.get("meta"))
        self._stop_if_too_little_was_sent()
        self._agree_on_frozen_layers()
        if self._frozen:
            sent = without_frozen(sent, self._models_to_read(), self._frozen)
        result = self._aggregate(round, sent)
        self._state = result.state
        ledger = with_notes(with_refusals(result.ledger, self._refused), self._notes)
        self.history.append(ledger)
        self._log_ledger(round, ledger)
        self._write_ledger()
        stop_rules.stop_without_clients(self.history, round)
        self.reset_stats()
        carried = self._carried_to_clients(result)
        if swarm:
            carried |= self._handed_on(result.state).carried()
            time.sleep(SWARM_PAUSE)
        return FLModel(
            params_type=ParamsType.FULL, params=result.next_model, meta=pack_meta(carried)
        )

    def _current_round(self) -> int:
        return int(self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND))

    def _stop_if_too_little_was_sent(self) -> None:
        models = list(self._models.values())
        stop_rules.stop_without_sizes(models, self._asked)
        stop_rules.stop_without_steps(models, self._asked, self._method, self.method)
        stop_rules.stop_without_extras(models, self._method, self.method)

    def _agree_on_frozen_layers(self) -> None:
        """Settle which the job's are, if no round has yet; refuse the sites that have others."""
        digests = {name: named_digest(model) for name, model in self._models.items()}
        if not self._frozen:
            self._frozen = majority_digest(digests)
        if self._frozen:
            for name, why in sites_with_others(digests, self._frozen).items():
                self._refused.setdefault(name, why)

    def _models_to_read(self) -> dict[str, FLModel]:
        """Those of the clients that are not refused, in the order of their names."""
        names = sorted(self._models.keys() - self._refused.keys())
        return {name: self._models[name] for name in names}

    def _aggregate(self, round: int, sent: Arrays) -> AggregationResult:
        """The round from the models that can be read; why others cannot goes to `_refused`."""
        classifier = self._layout_of(sent).classifier
        self._clients += sorted(self._models.keys() - set(self._clients))
        updates: list[ClientUpdate] = []
        for name, model in self._models_to_read().items():
            try:
                updates.append(self._client_update(name, model, sent))
            except UNREADABLE_MODEL as error:
                self._refused[name] = in_one_line(error)
        try:
            return aggregate(
                sent,
                updates,
                round=round,
                rounds=self.rounds,
                method=self._method_table,
                state=self._state,
                clients=self._clients,
                everyone=False,
                classifier=classifier,
                gate=self._gate,
                policy=self._policy,
            )
        except NoUpdateUsed as error:
            return error.result  # one such round may be an accident: see stop_without_clients

    def _layout_of(self, sent: Arrays) -> Layout:
        """The layout of the job's network, which is that of its first model."""
        if self._layout is None:
            self._layout = layout_of_arrays(
                sent,
                self.classifier,
                outputs=self.outputs,
                ask=looks_at_classifier(self._method),
            )
            words = classifier_in_words(self._layout.classifier, self._layout.outputs)
            log.info("classifier: %s", words)
        return self._layout

    def _client_update(self, name: str, model: FLModel, sent: Arrays) -> ClientUpdate:
        """A client's update; raises one of `UNREADABLE_MODEL` if its model cannot be read."""
        size, steps = self._size_and_steps(name, model.meta)
        if steps is None and self._method.needs.steps:
            raise ValueError(f"{NO_STEPS}: send it as '{STEPS_KEY}' in its model's meta")
        params = plain_arrays(model.params or {})
        beside = unpack_meta(model.meta)
        if model.params_type == ParamsType.DIFF:
            params = {
                key: (sent[key] + value).astype(sent[key].dtype) for key, value in params.items()
            }
        return ClientUpdate(
            model=params,
            size=size,
            client=name,
            steps=steps,
            extra=beside.get("extra", {}),
            labelled=beside.get("labelled"),
        )

    def _size_and_steps(self, name: str, meta: Mapping[str, Any]) -> tuple[int, int | None]:
        """A client's images, and its optimiser steps of this round if they are known."""
        if not self._asked.give_size(meta):
            raise ValueError(f"no size: {self._asked.how_to_send}")
        steps = int(meta[STEPS_KEY]) if STEPS_KEY in meta else None
        if self.size_key in meta:
            return int(meta[self.size_key]), steps
        assert steps is not None  # it has a size
        size = self._sizes_by_steps.size_of(name, steps)
        if steps <= size:
            return size, steps
        self._notes[name] = note_in_ledger(size, steps)
        self._sizes_by_steps.warn_once(name, size, steps)
        if self._method.needs.steps:
            raise ValueError(self._sizes_by_steps.why_refused(size, steps))
        return size, None

    def _carried_to_clients(self, result: AggregationResult) -> dict[str, Any]:
        """What the clients get beside the next model."""
        carried: dict[str, Any] = {}
        if self._frozen:
            carried[FROZEN] = self._frozen
        if result.broadcast:
            carried["broadcast"] = result.broadcast
        if self._method.local.keeps:
            carried["weighted"] = {
                entry.client: entry.round
                for ledger in self.history
                for entry in ledger
                if entry.weighted
            }
        return carried

    # ----------------------------------------------------------------------------- ledger and swarm

    def _take_over(self, meta: Mapping[str, Any] | None) -> None:
        """Continue from what the site that aggregated the round before has handed on."""
        self._frozen = str(unpack_meta(meta).get(FROZEN, ""))
        handover = SwarmHandover.of(meta)
        if handover is not None:
            self._state = handover.state
            self._clients = list(handover.clients)
            self.history = handover.history
            self._sizes_by_steps.first_steps = dict(handover.first_steps)

    def _handed_on(self, state: AggregationState) -> SwarmHandover:
        return SwarmHandover(
            state=state,
            clients=self._clients,
            history=self.history,
            first_steps=self._sizes_by_steps.first_steps,
        )

    def _copy_swarms_ledger(self, fl_ctx: FLContext) -> None:
        """Every site of a swarm has the whole ledger, whoever aggregated."""
        learnable = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        ledger = unpack_meta(learnable.get("meta")).get("ledger") if learnable else None
        if ledger is not None:
            self.fl_ctx = fl_ctx
            self.history = max(self.history, read_history(ledger), key=len)
            self._write_ledger()

    def _log_ledger(self, round: int, ledger: tuple[LedgerEntry, ...]) -> None:
        for entry in ledger:
            log.log(
                logging.INFO if entry.weighted else logging.WARNING,
                "round %d: %s %.4f (%s)",
                round,
                safe_line(entry.client),
                entry.weight,
                safe_line(entry.status),
            )

    def _write_ledger(self) -> None:
        """Add the rounds that are not in the folder's ledger yet."""
        new = [ledger for ledger in self.history[self._rounds_written :] if ledger]
        if not self.folder or not new:
            return
        path = Path(self.folder)
        if _in_swarm(self.fl_ctx):
            path /= self.fl_ctx.get_identity_name()
        folder = RunFolder(path)
        make_folder(path, private=True)
        folder.forget_from(new[0][0].round)
        for ledger in new:
            folder.add_to_ledger(ledger)
        self._rounds_written = len(self.history)


class FedDRAW(MethodAggregator):
    """Weighs the clients' models by FedDRAW; the other arguments are `MethodAggregator`'s."""

    def __init__(  # noqa: PLR0913, PLR0917 - what FLARE's job files name
        self,
        rounds: int,
        eta: float = ETA,
        lam: float = LAM,
        beta_max: float = BETA_MAX,
        reading: Reading = "reported",
        classifier: str | list[str] = "",
        size_key: str = "num_examples",
        folder: str = "",
        policy: dict[str, Any] | str = "",
        gate: dict[str, Any] | None = None,
        outputs: int = 0,
    ) -> None:
        super().__init__(
            method="feddraw",
            rounds=rounds,
            settings={"eta": eta, "lam": lam, "beta_max": beta_max, "reading": reading},
            classifier=classifier,
            size_key=size_key,
            folder=folder,
            policy=policy,
            gate=gate,
            outputs=outputs,
        )
        self.eta = eta
        self.lam = lam
        self.beta_max = beta_max
        self.reading = reading


def _gate_of(settings: Mapping[str, Any]) -> Gate:
    try:
        return Gate(**settings)
    except TypeError as error:
        raise UserError(f"gate: {in_one_line(error)}") from None


def _sender(shareable: Shareable, fl_ctx: FLContext) -> str:
    """The site that a result came from, by FLARE's word."""
    name = shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, None)
    peer = fl_ctx.get_peer_context()
    if not name and peer:
        name = peer.get_identity_name()
    return str(name or "?")


def _in_swarm(fl_ctx: FLContext) -> bool:
    """Whether a site aggregates, and not the server."""
    return bool(fl_ctx.get_prop(ReservedKey.PROCESS_TYPE) == ProcessType.CLIENT_JOB)
