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
from collections import Counter
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
from feddraw.errors import RunFailed, UserError, in_one_line
from feddraw.nvflare.model_meta import FROZEN, pack_meta, unpack_meta
from feddraw.nvflare.swarm_handover import LedgerHistory, SwarmHandover, read_history
from feddraw.results.run_folder import RunFolder
from feddraw.server.gate import NO_STEPS, Gate
from feddraw.server.ledger import LedgerEntry, with_notes, with_refusals
from feddraw.server.policy import policy_of
from feddraw.server.state_dict import Arrays, layout_of_arrays, plain_arrays
from feddraw.system.file_writing import make_folder
from feddraw.text import one_line, safe_line
from feddraw.training.own_frozen_layers import frozen_digest

log = logging.getLogger("feddraw.nvflare")

STEPS_KEY = "NUM_STEPS_CURRENT_ROUND"
# seconds before a swarm's next round: FLARE stops a site that still tidies up the last one then
SWARM_PAUSE = 3.0
UNREADABLE_MODEL = (KeyError, ValueError, TypeError, AttributeError, OverflowError, UserError)


class MethodAggregator(ModelAggregator):  # type: ignore[misc,unused-ignore]
    """Any of our methods as a FLARE aggregator.

    `settings` are the method's. `classifier` names the layer that gives the scores, or several in
    the order of the findings; left out, it is found by its shape and by `outputs`, the number of
    findings (0: not known). `size_key` is where a model's `meta` has the number of images; without
    it a client's steps count, as many as in its first answer (`_size_by_steps`). `folder` is where
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
        # how far the job has come
        self.history: LedgerHistory = []
        self._state: AggregationState | None = None
        self._frozen = ""  # the digest of what the sites do not train, once most of them agree
        self._layout: Layout | None = None
        self._clients: list[str] = []
        self._first_steps: dict[str, int] = {}  # by client, the first that were taken as its size
        self._told_to_send_sizes: set[str] = set()  # clients, so that each is logged once
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
            self._frozen = str(unpack_meta(learnable.get("meta")).get(FROZEN, ""))
            self._take_over(SwarmHandover.of(learnable.get("meta")))
        self._stop_without_sizes()
        self._stop_without_steps()
        self._stop_without_extras()
        result = self._aggregate(round, self._trained_part(sent))
        self._state = result.state
        ledger = with_notes(with_refusals(result.ledger, self._refused), self._notes)
        self.history.append(ledger)
        self._log_ledger(round, ledger)
        self._write_ledger()
        self._stop_without_clients(round, ledger)
        self.reset_stats()
        carried = self._carried_to_clients(result)
        if swarm:
            handover = SwarmHandover(
                state=result.state,
                clients=self._clients,
                history=self.history,
                first_steps=self._first_steps,
            )
            carried |= handover.carried()
            time.sleep(SWARM_PAUSE)
        return FLModel(
            params_type=ParamsType.FULL, params=result.next_model, meta=pack_meta(carried)
        )

    def _aggregate(self, round: int, sent: Arrays) -> AggregationResult:
        """The round from the models that can be read; why others cannot goes to `_refused`."""
        classifier = self._layout_of(sent).classifier
        self._clients += sorted(self._models.keys() - set(self._clients))
        updates: list[ClientUpdate] = []
        for name in sorted(self._models.keys() - self._refused.keys()):
            try:
                updates.append(self._client_update(name, sent))
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
        except (
            NoUpdateUsed
        ) as error:  # one such round may be an accident: see _stop_without_clients
            return error.result

    def _trained_part(self, sent: Arrays) -> Arrays:
        """The tensors of the sent model that are trained.

        `Site` sends these only, with a digest of its frozen layers. What more than half of the
        sites say is the job's, so that one site cannot cut the model; those that say something
        else are refused. The first round decides, with the names too where the sent model still
        has the frozen layers; the next model goes out without them.
        """
        digests = {name: _frozen_in_meta(model) for name, model in self._models.items()}
        if not self._frozen:
            self._frozen = self._majority_digest(digests)
        if not self._frozen:
            return sent
        for name, digest in digests.items():
            if digest != self._frozen:
                stated = f"of SHA-256 {digest}" if digest else "not named"
                self._refused.setdefault(
                    name, f"its frozen layers are {stated}, the job's are of {self._frozen}"
                )
        return self._without_frozen(sent)

    def _majority_digest(self, digests: Mapping[str, str]) -> str:
        """What more than half of the sites name; empty where they name none."""
        if not digests:
            return ""
        digest, sites = Counter(digests.values()).most_common(1)[0]
        if 2 * sites > len(digests):
            if digest:
                log.info("frozen layers: SHA-256 %s at %d of %d", digest, sites, len(digests))
            return digest
        naming = [name for name in sorted(digests) if digests[name]]
        if 2 * len(naming) <= len(digests):
            return ""
        shown = ", ".join(f"{name} {digests[name]}" for name in naming[:3])
        raise self._failure(
            "the sites' networks have different frozen layers, so their models cannot be averaged"
            f" ({safe_line(shown)}): build all from the same file, or begin with a model that has"
            " the frozen tensors"
        )

    def _without_frozen(self, sent: Arrays) -> Arrays:
        """The sent model without the tensors that some site leaves out and whose digest is the
        job's; all of it where the frozen layers are not in it.
        """
        for name in sorted(self._models.keys() - self._refused.keys()):
            params = self._models[name].params
            trained = set(params) if isinstance(params, Mapping) else set(sent)
            frozen = {key: array for key, array in sent.items() if key not in trained}
            if frozen and frozen_digest(frozen) == self._frozen:
                return {key: array for key, array in sent.items() if key in trained}
        return sent

    def _current_round(self) -> int:
        return int(self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND))

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

    def _client_update(self, name: str, sent: Arrays) -> ClientUpdate:
        """A client's update; raises one of `UNREADABLE_MODEL` if its model cannot be read."""
        model = self._models[name]
        if not self._has_size(model):
            raise ValueError(f"no size: {self._how_to_send_sizes()}")
        steps = int(model.meta[STEPS_KEY]) if STEPS_KEY in model.meta else None
        if self.size_key in model.meta:
            size = int(model.meta[self.size_key])
        else:
            assert steps is not None  # it has a size
            size = self._size_by_steps(name, steps)
            if steps > size:
                self._refuse_grown_steps(size, steps)
                steps = None  # how many of them are of this round is not known
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

    def _size_by_steps(self, name: str, steps: int) -> int:
        """The size of a site that tells its steps only: those of its first answer, at most.

        A site has as many images in every round, so steps that grow say nothing about its size.
        Before FLARE 2.9 a Lightning client sends the steps of all rounds so far (20, 40, 60 for 20
        in each), so a site that restarts would fall behind the others: with three sites of 20 steps
        from 1/3 to 1/9 in the fourth round. Its first answer has the steps of one round, before and
        after a restart. That is why it is held there, and not refused: every Lightning job with an
        older FLARE would end in its third round, although what it needs is known. The ledger and
        the log say so, with the line that sends a true size. Fewer steps count as they are.
        """
        first = self._first_steps.get(name)
        if first is None:
            if steps > 0:
                self._first_steps[name] = steps
            return steps
        if steps <= first:
            return steps
        self._notes[name] = (
            f"says {steps} steps after {first} in its first answer, {first} count as its size"
        )
        if name not in self._told_to_send_sizes:
            self._told_to_send_sizes.add(name)
            log.warning(
                "%s sends no %s, and its steps (%s) have grown from %d to %d, which its images have"
                " not: %d stay its size. Before FLARE 2.9 Lightning clients send the steps of all"
                " rounds so far. In a LightningModule, set self.__fl_meta__ = %s; else %s",
                safe_line(name),
                self.size_key,
                STEPS_KEY,
                first,
                steps,
                first,
                self._meta_to_send(),
                self._how_to_send_sizes(),
            )
        return first

    def _refuse_grown_steps(self, first: int, steps: int) -> None:
        """Where the method computes with steps, it must know which are of this round."""
        if self._method.needs.steps:
            raise ValueError(
                f"its steps grew from {first} to {steps}, and this method needs those of one round:"
                f" send {self.size_key} and, as {STEPS_KEY}, these steps in its model's meta"
                " (in Lightning: self.__fl_meta__)"
            )

    def _has_size(self, model: FLModel) -> bool:
        return self.size_key in model.meta or STEPS_KEY in model.meta

    def _how_to_send_sizes(self) -> str:
        return f"let the client's script send FLModel(params=…, meta={self._meta_to_send()})"

    def _meta_to_send(self) -> str:
        return f"{{'{self.size_key}': number of its images, '{STEPS_KEY}': optimiser steps}}"

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

    # ------------------------------------------------------------------------- when a job must stop

    def _stop_without_sizes(self) -> None:
        """Stop in the first round if the clients' script sends no sizes: later rounds would not
        either.
        """
        if self._models and not any(self._has_size(model) for model in self._models.values()):
            raise self._failure(
                f"no site sends {self.size_key} or {STEPS_KEY} in its model's meta, so none can be"
                f" weighed: {self._how_to_send_sizes()}"
            )

    def _stop_without_steps(self) -> None:
        """Stop if the method computes with steps, and no client tells them."""
        models = self._models.values()
        steps_known = any(STEPS_KEY in model.meta for model in models)
        if self._method.needs.steps and models and not steps_known:
            raise self._failure(
                f"{self.method} needs the clients' optimiser steps, and no site sends {STEPS_KEY}"
                f" in its model's meta: {self._how_to_send_sizes()}"
            )

    def _stop_without_extras(self) -> None:
        """Stop if the method needs vectors beside the model, and no client sends any."""
        wanted = self._method.extras
        models = self._models.values()
        sent = any(_extra_in_meta(model).keys() & wanted.keys() for model in models)
        if wanted and models and not sent:
            first = next(iter(wanted.values()))
            meaning = f" ({first.meaning})" if first.meaning else ""
            raise self._failure(
                f"{self.method} needs '{first.name}'{meaning} from its clients beside the model,"
                " and no site sends it: let the client's script train with feddraw.nvflare.Site, or"
                " choose a method that weighs plain models"
            )

    def _stop_without_clients(self, round: int, ledger: tuple[LedgerEntry, ...]) -> None:
        """Stop after two rounds in a row in which nobody counts: one may be an accident."""
        if any(entry.weighted for entry in ledger):
            return
        reasons = "; ".join(safe_line(f"{entry.client}: {entry.status}") for entry in ledger[:3])
        reasons = reasons or "no site answered"
        log.error("round %d: no update counted, the model stays as it was (%s)", round, reasons)
        if len(self.history) > 1 and not any(entry.weighted for entry in self.history[-2]):
            raise self._failure(
                f"no update counted in two rounds in a row ({reasons}): fix this, then start again"
            )

    def _failure(self, why: str) -> RunFailed:
        """In FLARE's log too: some of its workflows show only the kind of an error."""
        log.error("%s", why)
        return RunFailed(why)

    # ----------------------------------------------------------------------------- ledger and swarm

    def _take_over(self, handover: SwarmHandover | None) -> None:
        """Continue from what the site that aggregated the round before has handed on."""
        if handover is not None:
            self._state = handover.state
            self._clients = list(handover.clients)
            self.history = handover.history
            self._first_steps = dict(handover.first_steps)

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


def _frozen_in_meta(model: FLModel) -> str:
    """The digest of the frozen layers that a site names; empty where it names none."""
    try:
        return one_line(unpack_meta(model.meta).get(FROZEN, ""), 64)
    except UserError:
        return ""


def _extra_in_meta(model: FLModel) -> dict[str, Any]:
    try:
        return dict(unpack_meta(model.meta).get("extra", {}))
    except (UserError, TypeError, ValueError):
        return {}
