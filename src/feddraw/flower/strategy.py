"""Our methods as Flower Strategies: `FedDRAW` wherever `FedAvg` stands, `MethodStrategy` for any
other.

Sampling, messages and records follow Flower's FedAvg; replies are aggregated by
`server.collectors.Together`, as in every other engine. Unlike in FedAvg, sampling has its own seed,
waiting for nodes has an end, replies are taken in client order, a broken one is left out, and
integer tensors stay integers.

In a round Flower's loop calls `configure_train`, `aggregate_train`, `configure_evaluate` and
`aggregate_evaluate`, which stand here in this order. `rounds` has the loop, `global_model` the
model, `server_checkpoint` what is needed to resume, `sampling` the nodes, `reply_intake` the
replies, `roster` the names, `round_report` what is said about a round, `evaluation_record` what the
sites say of its model.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from numpy.typing import NDArray

from feddraw.core import Method, Model, Proxy, State
from feddraw.core.schedules import BETA_MAX, ETA, LAM, Reading
from feddraw.errors import UserError
from feddraw.flower import evaluation_record, reply_intake, round_report
from feddraw.flower.array_records import model_to_arrays, vectors_to_arrays
from feddraw.flower.client_memory import client_alias
from feddraw.flower.evaluation_record import TakenEvaluations
from feddraw.flower.flat_exchange import flat_grid
from feddraw.flower.frozen_layers import FrozenLayers
from feddraw.flower.global_model import GlobalModel, tensors_that_all_share
from feddraw.flower.job_orders import add_orders
from feddraw.flower.metric_means import weighted_metric_means
from feddraw.flower.reply_intake import Reply, ReplyFormat
from feddraw.flower.roster import Roster
from feddraw.flower.rounds import DEFAULT_TIMEOUT, Aggregated, Caller, EvaluateFn, FlowerLoop
from feddraw.flower.run_ending import absent_sites_in_words, reason_kept
from feddraw.flower.sampling import (
    Request,
    check_list_of_sites,
    log_request,
    sample_nodes,
    wait_for_nodes,
    warn_of_strangers,
)
from feddraw.flower.secure_server import FlowerSecureServer, SecureAnswers
from feddraw.flower.server_checkpoint import ServerCheckpoint, shared_tensors_in_checkpoint
from feddraw.flower.strategy_options import StrategyOptions, run_folder_from
from feddraw.methods.feddraw import feddraw
from feddraw.results.round_log import RoundLine
from feddraw.results.run_folder import RunFolder
from feddraw.results.site_evaluations import RoundEvaluation, SiteEvaluation
from feddraw.secure.sums.session import FEWEST_SUMMED
from feddraw.secure.sums.signing_keys import SiteDirectory, site_directory_from
from feddraw.server.collectors import Together
from feddraw.server.gate import Gate
from feddraw.server.ledger import pieces_by_finding
from feddraw.server.policy import Policy, policy_of
from feddraw.server.round import Round, RoundRecord, RoundResult
from feddraw.text import safe_line

log = logging.getLogger("flwr")

MetricsMerge = Callable[[list[RecordDict], str], MetricRecord]

EVALUATION_DRAW = 1  # in the seed of a round's second sample, so that it is another


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """What a round's replies gave, with what each client's reply says beside its update."""

    result: RoundResult
    refused: Mapping[str, str]  # by client, why its reply could not be used
    client_seconds: Mapping[str, float]  # by client, how long it worked
    reports: list[RecordDict]  # whose metrics are averaged: replies that count, or their sum


class MethodStrategy(FedAvg):
    """Any of our methods as a Flower Strategy.

    After FedAvg's own arguments come keywords, which `StrategyOptions` explains. `folder` is where
    `weights.csv` and a checkpoint are written after every round; with it a server that was killed
    resumes by the same call with `resume=True`. `policy` may be the file that holds it, `site_keys`
    too. Methods with a local rule of their own, and those that ask clients for more than a model
    (`method.sends`), need clients that answer: see `feddraw.flower.client`.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - Flower's own, then ours
        self,
        method: Method,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsMerge | None = None,
        evaluate_metrics_aggr_fn: MetricsMerge | None = None,
        *,
        classifier: str | Sequence[str] = "",
        findings: Sequence[str] = (),
        frozen: Mapping[str, NDArray[Any]] | None = None,
        proxy: Proxy | None = None,
        round_offset: int = 0,
        rounds: int = 0,
        seed: int = 0,
        wait: float = 600.0,
        gate: Gate | None = None,
        policy: Policy | Mapping[str, Any] | Path | str | None = None,
        sites: Mapping[str, str | int] | None = None,
        rebind: bool = False,
        folder: Path | str | RunFolder | None = None,
        resume: bool = False,
        keep_replies: bool | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        ledger_in_metrics: bool = False,
        secure: bool = False,
        clear_weights: bool = False,
        site_keys: SiteDirectory | Path | str | None = None,
        masked_counts: bool = False,
    ) -> None:
        options = StrategyOptions(
            method=method,
            classifier=classifier,
            findings=tuple(findings),
            frozen=frozen or {},
            proxy=proxy,
            round_offset=round_offset,
            rounds=rounds,
            seed=seed,
            wait=wait,
            gate=gate or Gate(),
            policy=policy_of(policy),
            sites=sites or {},
            rebind=rebind,
            folder=run_folder_from(folder),
            resume=resume,
            keep_replies=keep_replies,
            on_round=on_round,
            ledger_in_metrics=ledger_in_metrics,
            secure=secure,
            clear_weights=clear_weights,
            site_keys=site_directory_from(site_keys) if secure else None,
            masked_counts=secure and masked_counts,
        )
        # what the collector keeps to; sites are told the policy as it was agreed
        self._limits = options.policy.of_federation()
        fewest_trained = max(self._limits.min_sites, FEWEST_SUMMED if secure else 0)
        fewest_evaluated = FEWEST_SUMMED if options.masked_counts else 0
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=max(min_train_nodes, fewest_trained),
            min_evaluate_nodes=max(min_evaluate_nodes, fewest_evaluated),
            min_available_nodes=max(min_available_nodes, fewest_trained),
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn or weighted_metric_means,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or weighted_metric_means,
        )
        self.options = options
        self.secure = self._secure_server() if secure else None

        # How far the federation has come; the first five lines are what a checkpoint holds.
        self._global: GlobalModel | None = None  # from the first model on
        self.run = secrets.token_hex(8)  # by which clients tell one run's memory from another's
        self.roster = Roster(options.sites)
        check_list_of_sites(self.roster.listed_names, self._least_nodes)
        self._population = 0  # most nodes that were ever connected at once
        self._last_weighted: dict[str, int] = {}  # by client, the last round in which it counted
        self._shared_tensors: list[str] | None = None  # where clients keep some to themselves
        self._unsaved: int | None = None  # rounds done that no checkpoint holds yet
        self.history: list[RoundRecord] = []

        # The loop that calls us.
        self.round_offset = round_offset  # rounds that were done before it began
        self.rounds = rounds  # T; 0 before it is known
        self._caller = Caller()
        self._folder_begun = False  # the folder was looked into, and its ledger begun
        self._folder_lock = ExitStack()  # held for a loop that is not ours
        # whether `rounds.jsonl` is written here, and not by whoever evaluates
        self.logs_rounds = True

        # The round under way.
        self._frozen = FrozenLayers(options.frozen)
        self._training = Request(grid=None, nodes=(), connected=())
        self._evaluation = self._training
        # what the sites said of the model of the last round, where they were asked
        self.evaluation: RoundEvaluation | None = None
        self._last_line: RoundLine | None = None  # of the log, where it is written here
        self._matrices: Model | None = None  # where the replies of a round are laid out, a row each

    def _secure_server(self) -> FlowerSecureServer:
        return FlowerSecureServer(
            self.options.method,
            self.options.policy,
            self.options.gate,
            self.options.site_keys,
            self.weighted_by_key,
            self.options.clear_weights,
        )

    @property
    def _least_nodes(self) -> int:
        """How many nodes a round waits for."""
        training = self.min_train_nodes if self.fraction_train else 0
        evaluating = self.min_evaluate_nodes if self.fraction_evaluate else 0
        return max(self.min_available_nodes, training, evaluating)

    @property
    def method(self) -> Method:
        return self.options.method

    @property
    def policy(self) -> Policy:
        return self.options.policy

    @property
    def model(self) -> Model | None:
        """The model that is sent next; None before the first round."""
        return None if self._global is None else self._global.model

    @property
    def state(self) -> State | None:
        """What the method's rules remember; None before the first round."""
        return None if self._global is None else self._global.state

    @property
    def clients(self) -> list[str]:
        """Names of those that have answered so far; the index is the client's number."""
        return self.roster.names

    # --------------------------------------------------------------------------- our loop of rounds

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = DEFAULT_TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        through: Strategy | None = None,
    ) -> Result:
        """As FedAvg's; `num_rounds` is T. After a restart from `folder` it is the same T, and only
        the rest is done.

        Rounds are counted over all restarts. `through` is a wrapper around this strategy, such as
        Flower's for differential privacy: give it here instead of calling its own `start`, which
        cannot resume.
        """
        grid = flat_grid(grid, self.arrayrecord_key)
        loop = FlowerLoop(
            grid,
            initial_arrays,
            num_rounds,
            timeout,
            train_config,
            evaluate_config,
            evaluate_fn,
        )
        self._caller = Caller(ours=True, through=through, timeout=timeout)
        try:
            with (
                self._locked_folder(),
                reason_kept(self.options.folder, partial(self._absent_sites_in_words, grid)),
            ):
                return self._run_rounds(loop)
        finally:
            self._caller = Caller()

    def _absent_sites_in_words(self, grid: Grid) -> str:
        sites = [*self.options.sites, *self.clients]
        return absent_sites_in_words(
            grid, sites, self.roster, self._last_weighted, self.options.folder
        )

    def _locked_folder(self) -> AbstractContextManager[None]:
        folder = self.options.folder
        return nullcontext() if folder is None else folder.locked()

    def _run_rounds(self, loop: FlowerLoop) -> Result:
        """Restore, then do the rounds that are left."""
        self._adopt_model(loop.arrays)
        restored = self._restore_checkpoint()
        done = self.round_offset
        self.rounds = self.options.rounds or (loop.rounds if restored else done + loop.rounds)
        loop = replace(
            loop, arrays=restored or loop.arrays, rounds=min(loop.rounds, self.rounds - done)
        )
        if restored and loop.rounds <= 0:
            return self._finish_without_training(loop)
        if done:
            self._evaluate_last_round_if_cut_off(loop)
            result = loop.run_after(done, self._caller.through or self)
        elif self._caller.through is not None:
            result = loop.run(self._caller.through.start)
        else:
            result = loop.run(super().start)
        return result if result.arrays else replace(result, arrays=loop.arrays)

    def _finish_without_training(self, loop: FlowerLoop) -> Result:
        """A server that was killed after its last round; it may not have evaluated that one."""
        log.info("all %d rounds are done: no training is left to do", self.rounds)
        folder = self.options.folder
        if folder is not None and not folder.metrics.is_file():
            self._evaluate_again(loop, self.rounds)
        return Result(arrays=loop.arrays)

    def _evaluate_last_round_if_cut_off(self, loop: FlowerLoop) -> None:
        folder = self.options.folder
        if folder is None or not folder.logged(self.round_offset - 1):
            self._evaluate_again(loop, self.round_offset)

    def _evaluate_again(self, loop: FlowerLoop, server_round: int) -> None:
        """The evaluation after a round, which was cut off with the server; only for whoever writes
        it down.
        """
        if self.logs_rounds or not self.fraction_evaluate:
            return
        messages = self.configure_evaluate(server_round, loop.arrays, ConfigRecord(), loop.grid)
        replies = loop.grid.send_and_receive(messages, timeout=loop.timeout)
        self.aggregate_evaluate(server_round, replies)

    # --------------------------------------------------------------------------- the loop of others

    def restore(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """For a loop of one's own: what to begin with. `round_offset` rounds of `rounds` are done;
        count from 1.

        The arrays are those of the folder's checkpoint, if `resume` is set and there is one.
        """
        self._prepare_for_other_loop()
        self._adopt_model(initial_arrays)
        return self._restore_checkpoint() or initial_arrays

    def _prepare_for_other_loop(self) -> None:
        """For a loop that is not ours, what `start` does first: know the number of rounds, lock the
        folder.
        """
        if not self.rounds:
            raise UserError(
                "the number of rounds is unknown, because a wrapper or your own loop starts the"
                " rounds. Pass rounds=… to this strategy, or start with strategy.start(grid,"
                " arrays, num_rounds=…, through=wrapper)"
            )
        if self.options.folder is not None and not self._folder_begun:
            self._folder_lock.enter_context(self.options.folder.locked())

    def _join_other_loop(self, arrays: ArrayRecord) -> None:
        """The first round of a loop that is not ours: it must begin where the folder is."""
        self._prepare_for_other_loop()
        folder = self.options.folder
        if folder is None or self._folder_begun:
            return
        self._adopt_model(arrays)
        if self._restore_checkpoint() is not None:
            raise UserError(
                f"{folder.path} holds {self.round_offset} rounds that this loop does not know of:"
                " go on with strategy.start(…, through=wrapper), or begin your own loop with"
                " strategy.restore(initial_arrays)"
            )

    def _round_count(self, server_round: int) -> int:
        """Rounds with this one, over all restarts: our loop counts so, others begin at 1."""
        count = server_round if self._caller.ours else self.round_offset + server_round
        if count > self.rounds > 0:
            raise UserError(
                f"round {count} of {self.rounds}: give more rounds=…, or begin with a new folder"
            )
        return count

    @property
    def _is_unwrapped(self) -> bool:
        """No wrapper or subclass sees the replies or can change the new model."""
        overridden = type(self).aggregate_train is not MethodStrategy.aggregate_train
        return self._caller.ours and self._caller.through is None and not overridden

    # --------------------------------------------------------------------- the model and its folder

    def _adopt_model(self, arrays: ArrayRecord) -> GlobalModel:
        """Take over a model that we did not make; with the first one, the rules' state begins."""
        if self._global is None:
            self._global = GlobalModel.first(arrays, self.options)
        else:
            self._global = self._global.replaced_by(arrays, self.options)
        return self._global

    def _adopt_next_model(self, arrays: ArrayRecord) -> GlobalModel:
        """The model of the next round, which a wrapper or a subclass may have changed; only now it
        can be saved.
        """
        if self._global is None or arrays is not self._global.arrays:
            self._adopt_model(arrays)
        self._save_checkpoint()
        assert self._global is not None
        return self._global

    def _restore_checkpoint(self) -> ArrayRecord | None:
        """Continue from the folder's checkpoint, if there is one; begin its ledger."""
        folder = self.options.folder
        if folder is None:
            return None
        assert self._global is not None
        self._folder_begun = True
        if not self.options.resume and folder.ledger.exists():
            raise UserError(
                f"{folder.path} is already used: choose another folder, or go on with resume=True"
            )
        checkpoint = self._read_checkpoint(folder) if self.options.resume else None
        folder.forget_from(checkpoint.rounds_done if checkpoint else self.round_offset)
        if checkpoint is None:
            return None
        self._global = self._global.stepped_to(checkpoint.model, checkpoint.state)
        self.round_offset = checkpoint.rounds_done
        self.run = checkpoint.run
        self.roster.restore(checkpoint.roster, rebind=self.options.rebind)
        self._population = checkpoint.population
        self._last_weighted = dict(checkpoint.last_weighted)
        log.info("continuing after %d rounds from %s", self.round_offset, folder.path)
        return self._global.arrays

    def _read_checkpoint(self, folder: RunFolder) -> ServerCheckpoint | None:
        """The checkpoint; before that, the model is cut to the tensors that it holds."""
        assert self._global is not None
        shared = shared_tensors_in_checkpoint(folder)
        if shared is not None:
            self._share_only(shared)
        return ServerCheckpoint.read(folder, self._global.model.layout)

    def _save_checkpoint(self) -> None:
        """A checkpoint of the last round, with the model that is sent next."""
        folder = self.options.folder
        if folder is None or self._unsaved is None:
            return
        assert self._global is not None
        checkpoint = ServerCheckpoint(
            model=self._global.model,
            state=self._global.state,
            rounds_done=self._unsaved,
            run=self.run,
            roster=self.roster.record(),
            population=self._population,
            last_weighted=self._last_weighted,
            shared_tensors=self._shared_tensors,
        )
        checkpoint.write(folder)
        if self._unsaved == self.rounds:
            self._folder_lock.close()
        self._unsaved = None

    def _share_only(self, tensors: Iterable[str]) -> None:
        """From now on only these tensors are the model."""
        assert self._global is not None
        self._global = self._global.cut_to(frozenset(tensors), self.options)
        self._shared_tensors = list(self._global.arrays)
        self._matrices = None

    # ---------------------------------------------------------------------------- training is asked

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes, and send them the model and what to do."""
        if self.fraction_train == 0.0:
            return []
        if not self._caller.ours:
            self._join_other_loop(arrays)
        count = self._round_count(server_round)
        current = self._adopt_next_model(arrays)
        self._training = self._sample(grid, self.fraction_train, self.min_train_nodes, [count])
        log_request(self._training, count, MessageType.TRAIN)
        config["server-round"] = count
        orders = self._training_orders(count - 1, current)
        content = RecordDict(
            {self.arrayrecord_key: arrays, self.configrecord_key: add_orders(config, orders)}
        )
        broadcast = self.method.broadcast(current.state)
        if broadcast:
            content["broadcast"] = vectors_to_arrays(broadcast)
        return self._messages(content, MessageType.TRAIN, server_round, self._training.nodes)

    def _training_orders(self, round: int, current: GlobalModel) -> dict[str, Any]:
        """What our own clients are told beside the user's configuration."""
        orders: dict[str, Any] = {
            "round": round,
            "rounds": self.rounds,
            "seed": self.options.seed,
            "run": self.run,
            "weighted": self._last_weighted_by_alias(),
        }
        if self.policy != Policy():
            orders["policy"] = asdict(self.policy)  # sites may compare it with the one agreed on
        orders |= self._frozen.order
        if self.secure is not None:
            classifier = current.model.layout.classifier
            orders |= self.secure.offer_to_train(round, self.rounds, classifier)
        return orders

    def _last_weighted_by_alias(self) -> dict[str, int]:
        """By a hash of what each client calls itself, so that none reads the others' names."""
        called = self.roster.called
        return {
            client_alias(self.run, called.get(name, name)): round
            for name, round in self._last_weighted.items()
        }

    def _sample(self, grid: Grid, share: float, least: int, draw: Sequence[int]) -> Request:
        """A request to a share of the connected nodes that may take part, by chance; `draw` begins
        with the round, counted from 1.

        Its clock begins at the end: waiting for nodes and asking what they hold is not training.
        """
        least_connected = max(self.min_available_nodes, least)
        nodes = wait_for_nodes(grid, self.roster, least_connected, self.options.wait)
        self._population = max(self._population, len(nodes))
        warn_of_strangers(nodes, self.roster)
        count = max(int(len(nodes) * share), least)
        sampled = sample_nodes(nodes, count, self.roster, [self.options.seed, *draw])
        self._frozen.ask(grid, sampled, self._caller.timeout)
        return Request(grid, sampled, connected=nodes)

    def _messages(
        self, content: RecordDict, kind: str, server_round: int, nodes: Sequence[int]
    ) -> list[Message]:
        return [
            Message(self._frozen.with_layers(content, node), node, kind, group_id=str(server_round))
            for node in nodes
        ]

    # -------------------------------------------------------------------------- replies to training

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        """Read the replies, aggregate, and write down who counted how much."""
        if self.fraction_train == 0.0:
            return None, None
        if self._global is None:
            raise UserError(
                "aggregate_train before configure_train: there is no model to compare the replies"
                " with"
            )
        began = time.perf_counter()
        round = self._round_count(server_round) - 1
        received, failed_nodes = self._read(replies, self._training, server_round)
        self._frozen.note_holders(self._training.nodes, received)
        recognized, impostors = self.roster.recognize(received)
        self.roster.enroll(recognized)
        if self.secure is None:
            outcome = self._aggregate_in_clear(round, recognized)
        else:
            outcome = self._aggregate_secure_sums(self.secure, round, recognized, server_round)
        result = outcome.result
        if result.weights:
            self._global = self._global.stepped_to(result.next_model, result.state)
            self._last_weighted |= dict.fromkeys(result.weights, round)
        record = self._round_record(outcome, failed_nodes | impostors, began)
        self._record_round(record)
        round_report.stop_if_idle(self.history)
        next_arrays = self._global.arrays if result.weights else None
        return next_arrays, MetricRecord(dict(record.reported))

    def _read(
        self, messages: Iterable[Message], request: Request, server_round: int
    ) -> tuple[list[Reply], dict[int, str]]:
        """Valid replies to a request, and, by node, why others are not."""
        most_bytes = None if self._global is None else reply_intake.most_bytes(self._global.arrays)
        return reply_intake.read_replies(messages, request.nodes, str(server_round), most_bytes)

    def _round_record(
        self, outcome: RoundOutcome, failed_nodes: Mapping[int, str], began: float
    ) -> RoundRecord:
        """All that is written down about a round; aggregation `began` at that time."""
        result = outcome.result
        ledger = round_report.complete_ledger(
            result.round,
            result.ledger,
            self.roster,
            self._training,
            outcome.refused,
            failed_nodes,
        )
        means: Mapping[str, Any] = {}
        if outcome.reports:
            means = self.train_metrics_aggr_fn(outcome.reports, self.weighted_by_key)
        reported = round_report.metrics_of_round(ledger, means)
        if self.options.ledger_in_metrics:
            reported |= round_report.ledger_as_metrics(ledger, self.clients)
        return RoundRecord(
            round=result.round,
            ledger=ledger,
            loss=result.loss,
            pieces=pieces_by_finding(result.pieces, self.options.findings),
            reported=reported,
            client_seconds={
                client: seconds
                for client, seconds in outcome.client_seconds.items()
                if 0 <= seconds < reply_intake.MOST_SECONDS
            },
            seconds={
                "training": began - self._training.sent_at,
                "aggregation": time.perf_counter() - began,
            },
        )

    def _aggregate_in_clear(self, round: int, replies: list[Reply]) -> RoundOutcome:
        """The round from the updates themselves."""
        self._leave_out_private_tensors(replies)
        assert self._global is not None
        numbers = {name: number for number, name in enumerate(self.clients)}
        # a row of the matrices each, in the order of the clients' numbers
        replies.sort(key=lambda reply: numbers[reply.name])
        decoded = reply_intake.decode_replies(
            replies,
            numbers,
            self._global.model,
            ReplyFormat(
                extras=self.method.extras,
                size_key=self.weighted_by_key,
                arrays_key=self.arrayrecord_key,
                needs_steps=self.method.needs.steps,
            ),
            keep=self._keeps_replies,
            reuse=self._matrices,
        )
        self._matrices = decoded.matrices
        names = {update.client: self.clients[update.client] for update in decoded.updates}
        round_report.warn_of_sizes(
            {names[update.client]: update.size for update in decoded.updates}
        )
        collect = Together(gate=self.options.gate, policy=self._limits, proxy=self.options.proxy)
        result = collect(self._round(round), decoded.updates)
        return RoundOutcome(
            result=result,
            refused=decoded.refused,
            client_seconds={names[update.client]: update.seconds for update in decoded.updates},
            reports=[reply.content for reply in replies if reply.name in result.weights],
        )

    def _round(self, number: int) -> Round:
        """A round before its updates are collected."""
        assert self._global is not None
        sampled = map(self.roster.number, self._training.nodes)
        return Round(
            number=number,
            rounds=self.rounds,
            sent=self._global.model,
            method=self.method,
            state=self._global.state,
            clients=self._population_names,
            sampled=[client for client in sampled if client is not None],
        )

    @property
    def _keeps_replies(self) -> bool:
        """Whether tensors stay in the replies: only where somebody else may look at them."""
        if self.options.keep_replies is not None:
            return self.options.keep_replies
        own_metrics = self.train_metrics_aggr_fn is weighted_metric_means
        return not (self._is_unwrapped and own_metrics)

    @property
    def _population_names(self) -> list[str]:
        """The population: the known clients, and one for every node that never answered."""
        absent = range(self._population - len(self.clients))
        return [*self.clients, *(f"absent {number}" for number in absent)]

    def _leave_out_private_tensors(self, replies: Sequence[Reply]) -> None:
        """If all clients keep the same tensors private, as with FedBN, the other tensors are the
        model from now on.

        Only before anything was averaged, and only if most of those asked agree: one client cannot
        cut the model.
        """
        assert self._global is not None
        averaged_before = self.round_offset or any(done.weights for done in self.history)
        if averaged_before or 2 * len(replies) <= len(self._training.nodes):
            return
        shared = tensors_that_all_share(replies, self.arrayrecord_key, self._global)
        if shared is not None:
            self._share_only(shared)

    def _aggregate_secure_sums(
        self, secure: FlowerSecureServer, round: int, replies: list[Reply], server_round: int
    ) -> RoundOutcome:
        """The round from sums of masked updates, with what the clients say in clear."""
        answers = self._secure_answers(replies, self._training)
        training = secure.train(self._round(round), answers, str(server_round))
        self._frozen.holding |= training.holding
        ledger = training.result.ledger
        round_report.warn_of_sizes({entry.client: entry.size for entry in ledger if entry.weighted})
        return RoundOutcome(
            result=training.result,
            refused=training.refused,
            client_seconds=training.seconds,
            reports=training.contents,
        )

    def _secure_answers(self, replies: Sequence[Reply], request: Request) -> SecureAnswers:
        if request.grid is None:
            raise UserError(
                "secure sums take several messages: this strategy must have sent the first one"
                " itself"
            )
        return SecureAnswers.of(
            replies, request.nodes, self.roster, request.grid, self._caller.timeout
        )

    def _record_round(self, done: RoundRecord) -> None:
        """Log a round, write it to the folder, and tell the user's function."""
        round_report.log_round(done, self.rounds)
        self.history.append(done)
        self._unsaved = done.round + 1
        folder = self.options.folder
        if folder is not None and self.logs_rounds:
            self._last_line = RoundLine(
                round=done.round,
                loss=round_report.loss_in_metrics(done.reported),
                seconds=done.seconds,
                client_seconds=done.client_seconds,
                rounds=self.rounds,
            )
            folder.add_line(self._last_line)
        if folder is not None:
            folder.add_to_ledger(done.ledger, done.pieces)
        if self._is_unwrapped:
            self._save_checkpoint()
        if self.options.on_round is not None:
            self.options.on_round(done)

    # ----------------------------------------------------------------------------------- evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes, and send them the model to evaluate."""
        self._adopt_next_model(arrays)
        if self.fraction_evaluate == 0.0:
            return []
        count = self._round_count(server_round)
        self._evaluation = self._sample(
            grid, self.fraction_evaluate, self.min_evaluate_nodes, [count, EVALUATION_DRAW]
        )
        log_request(self._evaluation, count, MessageType.EVALUATE)
        config["server-round"] = count
        orders: dict[str, Any] = {"final": count == self.rounds} | self._frozen.order
        if self.secure is not None and self.options.masked_counts:
            findings = len(self.options.findings)
            orders |= self.secure.offer_to_count(count - 1, self.rounds, findings)
        content = RecordDict(
            {
                self.arrayrecord_key: self.shown_arrays(arrays),
                self.configrecord_key: add_orders(config, orders),
            }
        )
        return self._messages(content, MessageType.EVALUATE, server_round, self._evaluation.nodes)

    def shown_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        """The model to evaluate and to keep, where it is not the one that is sent next."""
        current = self._global
        if current is None or arrays is not current.arrays or not current.made_here:
            return arrays
        shown = self.method.shown(current.model, current.state)
        return arrays if shown is current.model else model_to_arrays(shown)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Merge the clients' metrics; those without a size, or too large, are left out. Write down
        who evaluated, and who did not.
        """
        if self.fraction_evaluate == 0.0:
            return None
        received, failed_nodes = self._read(replies, self._evaluation, server_round)
        recognized, impostors = self.roster.recognize(received)
        if self.secure is not None and self.options.masked_counts:
            taken = self._summed_counts(self.secure, server_round, recognized)
        else:
            taken = evaluation_record.evaluations_in_clear(
                recognized,
                self.weighted_by_key,
                self.options.findings,
                hidden=self.secure is not None,
            )
        sites = evaluation_record.complete_evaluations(
            taken, self.roster, self._evaluation, failed_nodes | impostors
        )
        metrics = None
        if taken.contents:
            metrics = self.evaluate_metrics_aggr_fn(taken.contents, self.weighted_by_key)
        self._record_evaluation(self._round_count(server_round), sites)
        return metrics

    def _record_evaluation(self, count: int, sites: tuple[SiteEvaluation, ...]) -> None:
        """Log who evaluated after so many rounds, and add it to the round's line."""
        evaluation_record.log_evaluations(count, sites)
        seconds = time.perf_counter() - self._evaluation.sent_at
        self.evaluation = RoundEvaluation(count - 1, sites, seconds)
        line = self._last_line
        if line is not None and line.round == count - 1 and self.options.folder is not None:
            self._last_line = line.evaluated_by(self.evaluation)
            self.options.folder.replace_line(self._last_line)

    def _summed_counts(
        self, secure: FlowerSecureServer, server_round: int, replies: list[Reply]
    ) -> TakenEvaluations:
        """All sites' counts as those of one site; none if the sum fails or nobody answered."""
        if not replies:
            return TakenEvaluations([], [])
        answers = self._secure_answers(replies, self._evaluation)
        counts = secure.count(answers, str(server_round))
        return evaluation_record.evaluations_in_sum(counts.content, counts.summed, counts.refused)

    def summary(self) -> None:
        super().summary()
        first_round = self.round_offset + 1
        log.info("\t└──> %s, server rounds %d to %d", self.method, first_round, self.rounds)
        listed = self.roster.listed_names
        if listed:
            log.info("\t└──> sites: %s; nobody else is sent anything", safe_line(", ".join(listed)))
        else:
            log.info(
                "\t└──> no list of sites: anyone who is registered at the SuperLink may take part,"
                " and a name belongs to the key that first answers under it (sites=… lists them)"
            )


class FedDRAW(MethodStrategy):
    """FedDRAW in place of Flower's FedAvg: the same arguments, no change at the clients, T from
    `start(num_rounds=…)`.

    What it adds is keyword-only, and so are the arguments of `MethodStrategy`.
    """

    def __init__(
        self,
        *arguments: Any,
        eta: float = ETA,
        lam: float = LAM,
        beta_max: float = BETA_MAX,
        reading: Reading = "reported",
        **others: Any,
    ) -> None:
        super().__init__(feddraw(eta, lam, beta_max, reading), *arguments, **others)
