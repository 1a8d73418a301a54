"""Our methods as Flower Strategies: `FedDRAW` wherever `FedAvg` stands, `MethodStrategy` for any
other.

Sampling, messages and records follow Flower's FedAvg; replies are aggregated by
`server.collectors.Together`, as in every other engine. Unlike in FedAvg, sampling has its own seed,
waiting for nodes has an end, replies are taken in client order, a broken one is left out, and
integer tensors stay integers.

After the constructor and the loop comes one round, in the order in which it happens:
`configure_train` asks, `aggregate_train` reads the replies, aggregates and writes down,
`configure_evaluate` and `aggregate_evaluate` do the same for the evaluation. What they use:

    strategy_options    what the strategy was told
    progress            how far the federation has come, which is what a checkpoint holds
    federation_folder   the ledger, the log and checkpoints
    rounds              the loop that calls
    sampling, roster    which nodes are asked, and whose they are
    frozen_layers       which layers a node holds already
    reply_intake        which replies are valid, and how they are read
    clear_rounds        from replies to a model
    secure_server       the same from sums of masked updates
    round_report        what is said about a round
    evaluation_record   what the sites say of its model
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
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
from feddraw.flower.array_records import vectors_to_arrays
from feddraw.flower.clear_rounds import ClearRounds, RoundOutcome
from feddraw.flower.evaluation_record import TakenEvaluations
from feddraw.flower.federation_folder import FederationFolder
from feddraw.flower.flat_exchange import flat_grid
from feddraw.flower.frozen_layers import FrozenLayers
from feddraw.flower.global_model import tensors_that_all_share
from feddraw.flower.job_orders import add_orders
from feddraw.flower.metric_means import weighted_metric_means
from feddraw.flower.progress import Progress
from feddraw.flower.reply_intake import Reply
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
from feddraw.flower.secure_server import SecureRounds
from feddraw.flower.strategy_options import StrategyOptions, run_folder_from
from feddraw.methods.feddraw import feddraw
from feddraw.results.run_folder import RunFolder
from feddraw.results.site_evaluations import RoundEvaluation, SiteEvaluation
from feddraw.secure.sums.session import FEWEST_SUMMED
from feddraw.secure.sums.signing_keys import SiteDirectory, site_directory_from
from feddraw.server.gate import Gate
from feddraw.server.ledger import pieces_by_finding
from feddraw.server.policy import Policy, policy_of
from feddraw.server.round import Round, RoundRecord
from feddraw.server.status import RefusalCause
from feddraw.tasks import Task
from feddraw.tasks.findings import Findings
from feddraw.text import safe_line

log = logging.getLogger("flwr")

MetricsMerge = Callable[[list[RecordDict], str], MetricRecord]

EVALUATION_DRAW = 1  # in the seed of a round's second sample, so that it is another
NOT_ASKED = Request(grid=None, nodes=(), connected=(), timeout=DEFAULT_TIMEOUT)


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
        task: Task | None = None,
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
        track: str = "",
        resume: bool = False,
        keep_replies: bool | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        ledger_in_metrics: bool = False,
        secure: bool = False,
        clear_weights: bool = False,
        site_keys: SiteDirectory | Path | str | None = None,
        masked_counts: bool = False,
        subgroups: int = 0,
    ) -> None:
        options = StrategyOptions(
            method=method,
            classifier=classifier,
            findings=tuple(findings),
            subgroups=subgroups,
            task=task or Findings(),
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
            track=track,
            resume=resume,
            keep_replies=keep_replies,
            on_round=on_round,
            ledger_in_metrics=ledger_in_metrics,
            secure=secure,
            clear_weights=clear_weights,
            site_keys=site_directory_from(site_keys) if secure else None,
            masked_counts=secure and masked_counts,
        )
        limits = options.policy.of_federation()
        fewest_trained = max(limits.min_sites, FEWEST_SUMMED if secure else 0)
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
        if options.folder is not None and track:
            told = {"method": str(method), "seed": seed, "secure": secure}
            options.folder.track(track, told)
        self.options = options
        self.rounds = rounds  # T; 0 before it is known
        self.history: list[RoundRecord] = []
        # what the sites said of the model of the last round, where they were asked
        self.evaluation: RoundEvaluation | None = None

        roster = Roster(options.sites)
        check_list_of_sites(roster.listed_names, self._least_nodes)
        self.progress = Progress(options, roster, rounds_before=round_offset)
        self.run_folder = FederationFolder(options.folder)
        self._caller = Caller()
        self._frozen = FrozenLayers(options.frozen)
        self._clear = ClearRounds(options, weighted_by_key, arrayrecord_key)
        self._secure = SecureRounds(options, roster, weighted_by_key) if secure else None
        self._training = NOT_ASKED  # the requests of the round under way
        self._evaluation = NOT_ASKED

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
        return None if self.progress.model is None else self.progress.model.model

    @property
    def state(self) -> State | None:
        """What the method's rules remember; None before the first round."""
        return None if self.progress.model is None else self.progress.model.state

    @property
    def roster(self) -> Roster:
        """Which client each node is."""
        return self.progress.roster

    @property
    def clients(self) -> list[str]:
        """Names of those that have answered so far; the index is the client's number."""
        return self.roster.names

    @property
    def round_offset(self) -> int:
        """Rounds that were done before this start."""
        return self.progress.rounds_before

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
        absent = partial(absent_sites_in_words, grid, self.progress, self.options.folder)
        self._caller = Caller(ours=True, through=through, timeout=timeout)
        try:
            with self.run_folder.locked(), reason_kept(self.options.folder, absent):
                return self._run_rounds(loop)
        finally:
            self._caller = Caller()

    def _run_rounds(self, loop: FlowerLoop) -> Result:
        """Restore, then do the rounds that are left."""
        self.progress.adopt(loop.arrays)
        restored = self.run_folder.begin(self.progress)
        done = self.round_offset
        self.rounds = self.options.rounds or (loop.rounds if restored else done + loop.rounds)
        loop = replace(
            loop,
            arrays=self.progress.current.arrays if restored else loop.arrays,
            rounds=min(loop.rounds, self.rounds - done),
        )
        if restored and loop.rounds <= 0:
            log.info("all %d rounds are done: no training is left to do", self.rounds)
            if not self.run_folder.finished:
                self._evaluate_again(loop, self.rounds)
            return Result(arrays=loop.arrays)
        if done:
            if not self.run_folder.logged(done):
                self._evaluate_again(loop, done)
            result = loop.run_after(done, self._caller.through or self)
        elif self._caller.through is not None:
            result = loop.run(self._caller.through.start)
        else:
            result = loop.run(super().start)
        return result if result.arrays else replace(result, arrays=loop.arrays)

    def _evaluate_again(self, loop: FlowerLoop, count: int) -> None:
        """The evaluation after so many rounds, which was cut off with the server; only for whoever
        writes it down.
        """
        if self.run_folder.logs_rounds or not self.fraction_evaluate:
            return
        messages = self.configure_evaluate(count, loop.arrays, ConfigRecord(), loop.grid)
        replies = loop.grid.send_and_receive(messages, timeout=loop.timeout)
        self.aggregate_evaluate(count, replies)

    def restore(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """For a loop of one's own: what to begin with. `round_offset` rounds of `rounds` are done;
        count from 1.

        The arrays are those of the folder's checkpoint, if `resume` is set and there is one.
        """
        self._require_rounds()
        self.run_folder.lock_until_done()
        self.progress.adopt(initial_arrays)
        restored = self.run_folder.begin(self.progress)
        return self.progress.current.arrays if restored else initial_arrays

    def _join_other_loop(self, arrays: ArrayRecord) -> None:
        """The first round of a loop that is not ours: it must begin where the folder is."""
        self._require_rounds()
        if self.run_folder.begun:
            return
        self.run_folder.lock_until_done()
        self.progress.adopt(arrays)
        if self.run_folder.begin(self.progress):
            raise UserError(
                f"{self.run_folder.path} holds {self.round_offset} rounds that this loop does not"
                " know of: go on with strategy.start(…, through=wrapper), or begin your own loop"
                " with strategy.restore(initial_arrays)"
            )

    def _require_rounds(self) -> None:
        """In a loop that is not ours, nobody says how many rounds there are."""
        if not self.rounds:
            raise UserError(
                "the number of rounds is unknown, because a wrapper or your own loop starts the"
                " rounds. Pass rounds=… to this strategy, or start with strategy.start(grid,"
                " arrays, num_rounds=…, through=wrapper)"
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

    # ------------------------------------------------------------------------------------ one round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes, and send them the model and what to do."""
        if self.fraction_train == 0.0:
            return []
        if not self._caller.ours:
            self._join_other_loop(arrays)
        count = self._round_count(server_round)
        self._adopt_next_model(arrays)
        self._training = self._sample(grid, self.fraction_train, self.min_train_nodes, [count])
        log_request(self._training, count, MessageType.TRAIN)
        config["server-round"] = count
        content = RecordDict(
            {
                self.arrayrecord_key: arrays,
                self.configrecord_key: add_orders(config, self._training_orders(count - 1)),
            }
        )
        broadcast = self.method.broadcast(self.progress.current.state)
        if broadcast:
            content["broadcast"] = vectors_to_arrays(broadcast)
        nodes = self._training.nodes
        return self._frozen.messages(content, nodes, MessageType.TRAIN, str(server_round))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        """Read the replies, aggregate, and write down who counted how much."""
        if self.fraction_train == 0.0:
            return None, None
        if self.progress.model is None:
            raise UserError(
                "aggregate_train before configure_train: there is no model to compare the replies"
                " with"
            )
        began = time.perf_counter()
        number = self._round_count(server_round) - 1
        received, failed_nodes = self._read(replies, self._training, server_round)
        self._frozen.note_holders(self._training.nodes, received)
        recognized, impostors = self.roster.recognize(received)
        self.roster.enroll(recognized)
        outcome = self._collect(number, recognized, str(server_round))
        self._frozen.holding |= outcome.holding
        self.progress.take(outcome.result)
        record = self._round_record(outcome, failed_nodes | impostors, began)
        self._record_round(record)
        round_report.stop_if_idle(self.history)
        next_arrays = self.progress.current.arrays if outcome.result.weights else None
        return next_arrays, MetricRecord(dict(record.reported))

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
        content = RecordDict(
            {
                self.arrayrecord_key: self.progress.to_evaluate(arrays),
                self.configrecord_key: add_orders(config, self._evaluation_orders(count - 1)),
            }
        )
        nodes = self._evaluation.nodes
        return self._frozen.messages(content, nodes, MessageType.EVALUATE, str(server_round))

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
        taken = self._take_evaluations(recognized, str(server_round))
        sites = evaluation_record.complete_evaluations(
            taken, self.roster, self._evaluation, failed_nodes | impostors
        )
        metrics = None
        if taken.contents:
            metrics = self.evaluate_metrics_aggr_fn(taken.contents, self.weighted_by_key)
        self._record_evaluation(self._round_count(server_round), sites)
        return metrics

    # ------------------------------------------------------------------------ what clients are sent

    def _adopt_next_model(self, arrays: ArrayRecord) -> None:
        """The model of the next round, which a wrapper or a subclass may have changed; only now it
        can be saved.
        """
        self.progress.adopt_if_changed(arrays)
        self._save_progress()

    def _sample(self, grid: Grid, share: float, least: int, draw: Sequence[int]) -> Request:
        """A request to a share of the connected nodes that may take part, by chance; `draw` begins
        with the round, counted from 1.

        Its clock begins at the end: waiting for nodes and asking what they hold is not training.
        """
        least_connected = max(self.min_available_nodes, least)
        nodes = wait_for_nodes(grid, self.roster, least_connected, self.options.wait)
        self.progress.population = max(self.progress.population, len(nodes))
        warn_of_strangers(nodes, self.roster)
        count = max(int(len(nodes) * share), least)
        sampled = sample_nodes(nodes, count, self.roster, [self.options.seed, *draw])
        self._frozen.ask(grid, sampled, self._caller.timeout)
        return Request(grid, sampled, connected=nodes, timeout=self._caller.timeout)

    def _training_orders(self, round: int) -> dict[str, Any]:
        """What our own clients are told beside the user's configuration."""
        orders: dict[str, Any] = {
            "round": round,
            "rounds": self.rounds,
            "seed": self.options.seed,
            "run": self.progress.run,
            "weighted": self.progress.last_weighted_by_alias(),
        }
        if self.policy != Policy():
            orders["policy"] = asdict(self.policy)  # sites may compare it with the one agreed on
        orders |= self._frozen.order
        if self._secure is not None:
            classifier = self.progress.current.model.layout.classifier
            orders |= self._secure.offer_to_train(round, self.rounds, classifier)
        return orders

    def _evaluation_orders(self, round: int) -> dict[str, Any]:
        """The same with a model to evaluate."""
        final = round == self.rounds - 1
        orders: dict[str, Any] = {"final": final} | self._frozen.order
        if self._secure is not None and self.options.masked_counts:
            findings = len(self.options.findings)
            orders |= self._secure.offer_to_count(round, self.rounds, findings)
        return orders

    # -------------------------------------------------------------------------- what clients answer

    def _read(
        self, messages: Iterable[Message], request: Request, server_round: int
    ) -> tuple[list[Reply], dict[int, str]]:
        """Valid replies to a request, and, by node, why others are not."""
        sent = self.progress.model
        most_bytes = None if sent is None else reply_intake.most_bytes(sent.arrays)
        return reply_intake.read_replies(messages, request.nodes, str(server_round), most_bytes)

    def _collect(self, number: int, replies: list[Reply], group: str) -> RoundOutcome:
        """The round of this number, from the updates themselves or from sums of masked ones."""
        if self._secure is not None:
            return self._secure.train(self._round(number), replies, self._training, group)
        self._leave_out_private_tensors(replies)
        numbers = {name: place for place, name in enumerate(self.clients)}
        return self._clear.collect(self._round(number), replies, numbers, keep=self._keeps_replies)

    def _round(self, number: int) -> Round:
        """A round before its updates are collected."""
        sampled = map(self.roster.number, self._training.nodes)
        return Round(
            number=number,
            rounds=self.rounds,
            sent=self.progress.current.model,
            method=self.method,
            state=self.progress.current.state,
            clients=self.progress.population_names,
            sampled=[client for client in sampled if client is not None],
        )

    def _leave_out_private_tensors(self, replies: Sequence[Reply]) -> None:
        """If all clients keep the same tensors private, as with FedBN, the other tensors are the
        model from now on.

        Only before anything was averaged, and only if most of those asked agree: one client cannot
        cut the model.
        """
        if self.progress.averaged or 2 * len(replies) <= len(self._training.nodes):
            return
        shared = tensors_that_all_share(replies, self.arrayrecord_key, self.progress.current)
        if shared is not None:
            self.progress.share_only(shared)

    @property
    def _keeps_replies(self) -> bool:
        """Whether tensors stay in the replies: only where somebody else may look at them."""
        if self.options.keep_replies is not None:
            return self.options.keep_replies
        own_metrics = self.train_metrics_aggr_fn is weighted_metric_means
        return not (self._is_unwrapped and own_metrics)

    def _take_evaluations(self, replies: list[Reply], group: str) -> TakenEvaluations:
        """What sites say of the model, or under masked counts what all of them say together."""
        if self._secure is not None and self.options.masked_counts:
            return self._secure.count(replies, self._evaluation, group)
        return evaluation_record.evaluations_in_clear(
            replies,
            self.weighted_by_key,
            self.options.findings,
            task=self.options.task,
            hidden=self.options.secure,
            subgroups=self.options.subgroups,
        )

    # ------------------------------------------------------------------------- what is written down

    def _round_record(
        self, outcome: RoundOutcome, failed_nodes: Mapping[int, str], began: float
    ) -> RoundRecord:
        """All that is written down about a round; aggregation `began` at that time."""
        result = outcome.result
        reasons = round_report.reasons_of_refusal(self.roster, outcome.refused, failed_nodes)
        ledger = round_report.complete_ledger(
            result.round, result.ledger, self.roster, self._training, reasons, outcome.unused
        )
        in_words = {name: RefusalCause.of_words(reason) for name, reason in reasons.items()}
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
            refusals={**result.refusals, **in_words},
            client_seconds=round_report.credible_seconds(outcome.client_seconds),
            seconds={
                "training": began - self._training.sent_at,
                "aggregation": time.perf_counter() - began,
            },
        )

    def _record_round(self, done: RoundRecord) -> None:
        """Log a round, write it to the folder, and tell the user's function."""
        round_report.log_round(done, self.rounds)
        self.history.append(done)
        self.run_folder.write_round(done, self.rounds)
        if self._is_unwrapped:
            self._save_progress()
        if self.options.on_round is not None:
            self.options.on_round(done)

    def _save_progress(self) -> None:
        """A checkpoint, where a round was done since the last one."""
        self.run_folder.save(self.progress, last=self.progress.rounds_done == self.rounds)

    def _record_evaluation(self, count: int, sites: tuple[SiteEvaluation, ...]) -> None:
        """Log who evaluated after so many rounds, and add it to the round's line."""
        evaluation_record.log_evaluations(count, sites)
        seconds = time.perf_counter() - self._evaluation.sent_at
        self.evaluation = RoundEvaluation(count - 1, sites, seconds)
        self.run_folder.write_evaluation(self.evaluation)

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
