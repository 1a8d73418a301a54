"""Our methods as Flower Strategies: `FedDRAW` wherever `FedAvg` stands, `MethodStrategy` for any
other.

Sampling, messages and records follow Flower's FedAvg; replies are aggregated by
`server.collectors.Together`, as in every other engine. Unlike in FedAvg, sampling has its own
seed, waiting for nodes has an end, replies are taken in client order, a broken one is left out, and
integer tensors stay integers.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from numpy.typing import NDArray

from feddraw.core import Layout, Method, Model, Proxy, State
from feddraw.core.classifier_layer import classifier_in_words, looks_at_classifier
from feddraw.core.schedules import BETA_MAX, ETA, LAM, Reading
from feddraw.errors import RunFailed, UserError, positive
from feddraw.flower import reply_intake
from feddraw.flower.array_records import arrays_to_model, model_to_arrays, vectors_to_arrays
from feddraw.flower.client_memory import client_alias
from feddraw.flower.frozen_layers import FROZEN, FrozenLayers
from feddraw.flower.job_orders import add_orders
from feddraw.flower.metric_means import size_in_metrics, weighted_metric_means
from feddraw.flower.reply_intake import Reply
from feddraw.flower.roster import Roster
from feddraw.flower.secure_server import FlowerSecureServer, SecureServerAnswers
from feddraw.methods.feddraw import feddraw
from feddraw.naming import safe_line
from feddraw.results.checkpoint import Checkpoint
from feddraw.results.run_folder import RunFolder
from feddraw.secure.sums.session import FEWEST_SUMMED
from feddraw.secure.sums.signing_keys import SiteDirectory, site_directory_from
from feddraw.server.collectors import Together
from feddraw.server.gate import Gate
from feddraw.server.ledger import LEDGER_NUMBERS, LedgerEntry, pieces_by_finding
from feddraw.server.policy import FEWEST_FOR_MEDIAN, Policy, policy_of
from feddraw.server.round import Round, RoundRecord, RoundResult
from feddraw.server.state_dict import layout_of_arrays
from feddraw.system.file_reading import read_jsonl

log = logging.getLogger("flwr")

RoundOutcome = tuple[
    RoundResult, dict[str, str], dict[str, float]
]  # by client, why it is refused, how long it worked
Aggregated = tuple[ArrayRecord | None, MetricRecord | None]
MetricsMerge = Callable[[list[RecordDict], str], MetricRecord]

MOST_SECONDS = 1e9  # beyond it a client's own word about its time is nonsense
SUSPECT_SIZE_TIMES = (
    1000.0  # a client that says it has so many times the median's images is pointed out
)
TRAINING_DRAW, EVALUATION_DRAW = (), (1,)  # so that a round draws other nodes for each
LEDGER_PARTS = (*LEDGER_NUMBERS, "measured", "variance", "distance", "q", "q_expected", "rho")


class MethodStrategy(FedAvg):
    """Any of our methods as a Flower Strategy.

    Methods with a local rule of their own, and those that ask clients for more than a model
    (`method.sends`), need clients that answer: see `feddraw.flower.client`. `folder` is where
    `weights.csv` and a checkpoint are written after every round; with it a server that was killed
    goes on by the same call with `resume=True`.
    """

    def __init__(
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
        classifier: (
            str | Sequence[str]
        ) = "",  # its layer, or several in the order of the findings; empty: found
        round_offset: int = 0,  # rounds done before this start
        # T, where it is not round_offset + num_rounds, and where another loop than ours calls
        rounds: int = 0,
        seed: int = 0,  # of sampling, and of local training where the clients are ours
        wait: float = 600.0,  # seconds for enough nodes to connect
        size_cap: float = 0.0,  # another name for the policy's max_size_times
        gate: Gate | None = None,  # which updates are let in
        policy: (
            Policy | Mapping[str, Any] | Path | str | None
        ) = None,  # limits on weights and sizes, or their file
        proxy: Proxy | None = None,  # labelled images at the server, for the methods that need some
        folder: Path | str | RunFolder | None = None,
        resume: bool = False,
        keep_replies: (
            bool | None
        ) = None,  # leave tensors in the replies; None: where others may look at them
        sites: (
            Mapping[str, str | int] | None
        ) = None,  # name to key's fingerprint or node id; left out: first come
        rebind: bool = False,  # on resume, give names to whoever answers under them first
        on_round: Callable[[RoundRecord], None] | None = None,
        findings: Sequence[
            str
        ] = (),  # names of the classifier's outputs, for the ledger and to check it
        frozen: (
            Mapping[str, NDArray[Any]] | None
        ) = None,  # tensors that nobody trains: sent to each site once
        # see sums of updates only, never one; clients need `secure_mod` and keys
        secure: bool = False,
        site_keys: (
            SiteDirectory | Path | str | None
        ) = None,  # with it: the sites' public keys by name, or their file
        # with it: evaluations are counts (`score_histograms`), added up under masks too
        masked_counts: bool = False,
    ) -> None:
        least = FEWEST_SUMMED if secure else 0
        super().__init__(
            fraction_train,
            fraction_evaluate,
            max(min_train_nodes, least),
            max(min_evaluate_nodes, least) if masked_counts else min_evaluate_nodes,
            max(min_available_nodes, least),
            weighted_by_key,
            arrayrecord_key,
            configrecord_key,
            train_metrics_aggr_fn or weighted_metric_means,
            evaluate_metrics_aggr_fn or weighted_metric_means,
        )
        if method.needs.server_images and proxy is None:
            raise UserError("this weighting needs labelled images at the server: give proxy=")
        if round_offset < 0 or rounds < 0 or (rounds and rounds <= round_offset):
            raise UserError(
                f"rounds = {rounds} must be more than round_offset = {round_offset}, neither"
                " negative"
            )
        self.method, self.classifier, self.round_offset, self.seed = (
            method,
            classifier,
            round_offset,
            seed,
        )
        self.wait, self.on_round, self.findings = positive("wait", wait), on_round, tuple(findings)
        self._frozen = FrozenLayers(frozen or {})
        limits = policy_of(policy)
        self.policy = policy_of(replace(limits, max_size_times=size_cap or limits.max_size_times))
        self.policy.check_method(method)
        self.gate, self.proxy = gate or Gate(), proxy
        self.secure: FlowerSecureServer | None = None
        if secure:
            directory, record_keys = (
                site_directory_from(site_keys),
                (weighted_by_key, arrayrecord_key),
            )
            self.secure = FlowerSecureServer(
                method, self.policy, self.gate, directory, *record_keys
            )
        self._masked_counts = secure and masked_counts
        self.folder = RunFolder(Path(folder)) if isinstance(folder, Path | str) else folder
        self.resume, self.rounds, self._given_rounds = resume, rounds, rounds
        self.history: list[RoundRecord] = []
        self.model: Model | None = None  # the one that is sent next
        self.state: State | None = None
        self.run = secrets.token_hex(
            8
        )  # by which clients tell the memory of one run from that of another
        self.roster, self.rebind = Roster(sites), rebind
        self._counted: dict[str, int] = {}  # by client, the last round in which it counted
        self._keep_replies, self._own_metrics = keep_replies, train_metrics_aggr_fn is None
        self._tensors: list[str] | None = (
            None  # those that clients share, where they keep some to themselves
        )
        self._population = 0  # most nodes that were ever connected at once
        self._asked, self._evaluating = list[int](), list[int]()  # nodes
        self._grid: Grid | None = (
            None  # where the last orders went, for the later messages of secure rounds
        )
        self._timeout = 3600.0  # seconds for the answers to a message
        self._driving = False  # our own loop calls us, and counts rounds over all restarts
        self._through: Strategy | None = None  # a wrapper between that loop and us
        self._other_loops_lock = ExitStack()  # a loop of another's: the folder's lock
        self._sent = time.perf_counter()  # when the last orders went out
        self.logs_rounds = (
            True  # whether `rounds.jsonl` is written here, and not by whoever evaluates
        )
        self._ready = False  # the folder has been looked into
        self._unsaved: int | None = None  # rounds done that no checkpoint holds yet
        self._idle = 0  # rounds in a row in which nobody counted
        self._room: Model | None = None  # where the replies of a round are laid out, a row each
        self._arrays: ArrayRecord | None = None  # what `model` is on the wire
        self._made: ArrayRecord | None = None  # the same, where it is our own work

    @property
    def clients(self) -> list[str]:
        """Names of those that have answered so far; the index is the client's number."""
        return self.roster.names

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        through: Strategy | None = None,
    ) -> Result:
        """As FedAvg's; `num_rounds` is T. After a restart from `folder` it is the same T, and only
        the rest is done.

        Rounds are counted over all restarts. `through` is a wrapper around this strategy, such as
        Flower's for differential privacy: give it here instead of calling its own `start`, which
        cannot resume.
        """
        self._driving, self._through, self._timeout = True, through, timeout
        try:
            with nullcontext() if self.folder is None else self.folder.locked():
                given = (grid, initial_arrays, num_rounds)
                return self._run_rounds(*given, timeout, train_config, evaluate_config, evaluate_fn)
        finally:
            self._driving, self._through = False, None

    def _run_rounds(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, *arguments: Any
    ) -> Result:
        self._adopt_model(initial_arrays)
        resumed = self._restore_checkpoint()
        self.rounds = self._given_rounds or (
            num_rounds if resumed else self.round_offset + num_rounds
        )
        done = self.round_offset
        left = min(num_rounds, self.rounds - done)
        if resumed and left <= 0:
            log.info("all %d rounds are done: no training is left to do", self.rounds)
            if self.folder is not None and not self.folder.metrics.is_file():
                self._evaluate_again(grid, resumed, self.rounds)
            return Result(arrays=resumed)
        first = resumed or initial_arrays
        if done:
            logged = (
                []
                if self.folder is None
                else [line["round"] for line in read_jsonl(self.folder.rounds)]
            )
            if done - 1 not in logged:
                self._evaluate_again(grid, first, done)
            result = RenumberedStrategy(self._through or self, done).go_on(
                grid, first, left, *arguments
            )
        elif self._through is not None:
            result = self._through.start(grid, first, left, *arguments)
        else:
            result = super().start(grid, first, left, *arguments)
        return result if result.arrays else replace(result, arrays=first)

    def _evaluate_again(self, grid: Grid, arrays: ArrayRecord, done: int) -> None:
        """The evaluation after a round, which was cut off with the server; only for whoever writes
        it down.
        """
        if self.fraction_evaluate and not self.logs_rounds:
            asked = self.configure_evaluate(done, arrays, ConfigRecord(), grid)
            self.aggregate_evaluate(done, grid.send_and_receive(asked, timeout=self._timeout))

    def restore(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """For a loop of one's own: what to begin with. `round_offset` rounds of `rounds` are done;
        count on from 1.

        The arrays are those of the folder's checkpoint, if `resume` is set and there is one.
        """
        self._lock_for_other_loop()
        self._adopt_model(initial_arrays)
        return self._restore_checkpoint() or initial_arrays

    def _lock_for_other_loop(self) -> None:
        """For a loop that is not ours, what `start` does first: know the number of rounds, lock the
        folder.
        """
        if not self.rounds:
            why = (
                "the number of rounds is unknown, because a wrapper or your own loop starts the"
                " rounds"
            )
            lead = "strategy.start(grid, arrays, num_rounds=…, through=wrapper)"
            raise UserError(f"{why}. Pass rounds=… to this strategy, or start with {lead}")
        if self.folder is not None and not self._ready:
            self._other_loops_lock.enter_context(self.folder.locked())

    def _join_other_loop(self, arrays: ArrayRecord) -> None:
        """The first round of a loop that is not ours."""
        self._lock_for_other_loop()
        if self.folder is not None and not self._ready:
            self._adopt_model(arrays)
            if self._restore_checkpoint() is not None:
                why = (
                    f"{self.folder.path} holds {self.round_offset} rounds that this loop does not"
                    " know of"
                )
                ours, own = "strategy.start(…, through=wrapper)", "strategy.restore(initial_arrays)"
                raise UserError(f"{why}: go on with {ours}, or begin your own loop with {own}")

    def _rounds_with_this(self, server_round: int) -> int:
        """Rounds with this one, over all restarts; a loop that is not ours begins at 1."""
        count = server_round if self._driving else self.round_offset + server_round
        if count > self.rounds > 0:
            raise UserError(
                f"round {count} of {self.rounds}: give more rounds=…, or begin with a new folder"
            )
        return count

    @property
    def _unwrapped(self) -> bool:
        """No wrapper or subclass sees the replies or can change the new model."""
        own = type(self).aggregate_train is MethodStrategy.aggregate_train
        return self._driving and self._through is None and own

    def _adopt_model(self, arrays: ArrayRecord) -> None:
        """Take over a model that we did not make; with the first one, the state starts."""
        layout = self._model_layout(arrays)
        if self.model is None or self.state is None:
            self.method.check(layout)
            log.info("classifier: %s", classifier_in_words(layout.classifier, layout.outputs))
        self.model, self._arrays = arrays_to_model(arrays, layout), arrays
        if self.state is None:
            self.state = self.method.init(self.model)

    def _model_layout(self, arrays: ArrayRecord) -> Layout:
        ask = looks_at_classifier(self.method)
        found = layout_of_arrays(arrays, self.classifier, outputs=len(self.findings), ask=ask)
        return replace(found, frozen=self._frozen.arrays)

    def _restore_checkpoint(self) -> ArrayRecord | None:
        """Continue from the folder's checkpoint, if there is one; start its ledger."""
        if self.folder is None:
            return None
        assert self.model is not None
        self._ready = True
        if not self.resume and self.folder.ledger.exists():
            raise UserError(
                f"{self.folder.path} is already used: choose another folder, or go on with"
                " resume=True"
            )
        if self.resume and (
            tensors := self.folder.checkpoint_notes().get("flower", {}).get("tensors")
        ):
            self._tensors = [name for name in self._arrays or () if name in tensors]
            self._cut_model_to_shared_tensors(self._arrays or ArrayRecord())
        checkpoint = self.folder.load_checkpoint(self.model.layout) if self.resume else None
        self.folder.forget_from(checkpoint.next_round if checkpoint else self.round_offset)
        if checkpoint is None:
            return None
        self.model, self.round_offset = checkpoint.model, checkpoint.next_round
        about = checkpoint.state["flower"]
        self.state = {rule: state for rule, state in checkpoint.state.items() if rule != "flower"}
        self.roster.restore(about, rebind=self.rebind)
        self.run, self._population, self._counted = (
            about["run"],
            about["population"],
            dict(about["counted"]),
        )
        self._arrays = self._made = model_to_arrays(self.model)
        log.info("continuing after %d rounds from %s", self.round_offset, self.folder.path)
        return self._arrays

    def _save_checkpoint(self) -> None:
        """A checkpoint of the last round, with the model that is sent next."""
        if self.folder is None or self._unsaved is None:
            return
        assert self.model is not None
        assert self.state is not None
        about = self.roster.for_checkpoint() | {"run": self.run, "population": self._population}
        about |= {"counted": self._counted, "tensors": self._tensors}
        self.folder.save_checkpoint(
            Checkpoint(self.model, self.state | {"flower": about}, self._unsaved, {})
        )
        if self._unsaved == self.rounds:
            self._other_loops_lock.close()
        self._unsaved = None

    def summary(self) -> None:
        super().summary()
        log.info(
            "\t└──> %s, server rounds %d to %d", self.method, self.round_offset + 1, self.rounds
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self.fraction_train == 0.0:
            return []
        if not self._driving:
            self._join_other_loop(arrays)
        count = self._rounds_with_this(server_round)
        self._adopt_next_model(arrays)
        assert self.model is not None
        assert self.state is not None
        self._grid = grid
        self._asked = self._choose_nodes(
            grid, self.fraction_train, self.min_train_nodes, count, TRAINING_DRAW
        )
        self._sent = time.perf_counter()  # waiting for nodes is not training
        config["server-round"] = count
        numbers = {"round": count - 1, "rounds": self.rounds, "seed": self.seed}
        limits = (
            {} if self.policy == Policy() else {"policy": asdict(self.policy)}
        )  # sites may hold it against theirs
        called = self.roster.called
        counted = {
            client_alias(self.run, called.get(name, name)): last
            for name, last in self._counted.items()
        }
        ours = numbers | limits | self._frozen.order | {"run": self.run, "counted": counted}
        if self.secure is not None:
            ours |= self.secure.to_train(self.run, count - 1, self.model.layout.classifier)
        content = RecordDict(
            {self.arrayrecord_key: arrays, self.configrecord_key: add_orders(config, ours)}
        )
        if broadcast := self.method.broadcast(self.state):
            content["broadcast"] = vectors_to_arrays(broadcast)
        return self._messages_to(content, MessageType.TRAIN, server_round, self._asked)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._adopt_next_model(arrays)
        if self.fraction_evaluate == 0.0:
            return []
        count = self._rounds_with_this(server_round)
        nodes = self._choose_nodes(
            grid, self.fraction_evaluate, self.min_evaluate_nodes, count, EVALUATION_DRAW
        )
        self._grid, self._evaluating = grid, nodes
        config["server-round"] = count
        ours: dict[str, Any] = {"final": count == self.rounds} | self._frozen.order
        if self.secure is not None and self._masked_counts:
            ours |= self.secure.to_count(self.run, count - 1, len(self.findings))
        shown = self.shown_arrays(arrays)
        content = RecordDict(
            {self.arrayrecord_key: shown, self.configrecord_key: add_orders(config, ours)}
        )
        return self._messages_to(content, MessageType.EVALUATE, server_round, nodes)

    def _adopt_next_model(self, arrays: ArrayRecord) -> None:
        """The model of the next round, which a wrapper or a subclass may have changed; only now it
        can be saved.
        """
        if arrays is not self._arrays:
            self._adopt_model(arrays)
        self._save_checkpoint()

    def shown_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        """The model to evaluate and to keep, where it is not the one that is sent next."""
        if self.model is None or self.state is None or arrays is not self._made:
            return arrays
        shown = self.method.shown(self.model, self.state)
        return arrays if shown is self.model else model_to_arrays(shown)

    def _messages_to(
        self, content: RecordDict, kind: str, server_round: int, nodes: Sequence[int]
    ) -> list[Message]:
        group, with_layers = str(server_round), self._frozen.with_layers
        return [Message(with_layers(content, node), node, kind, group_id=group) for node in nodes]

    def _choose_nodes(
        self, grid: Grid, share: float, least: int, round: int, draw: Sequence[int]
    ) -> list[int]:
        """A random sample of the nodes with our own seed; the same nodes give the same sample."""
        nodes = self._wait_for_nodes(grid, max(self.min_available_nodes, least))
        self._population = max(self._population, len(nodes))
        count = max(int(len(nodes) * share), least)
        self.roster.meet(grid)
        if not self.roster.knows_any(nodes):
            log.warning(
                "none of the %d connected nodes is one that took part before: a node without a"
                " registered key gets a new id when it or the SuperLink restarts; give sites=…, or"
                " go on with rebind=True if you know them",
                len(nodes),
            )
        ordered = sorted(nodes, key=lambda node: (self.roster.name_of(node) or "", node))
        rng = np.random.default_rng([self.seed, round, *draw])
        chosen = (
            rng.choice(len(ordered), count, replace=False)
            if count < len(ordered)
            else range(len(ordered))
        )
        log.info("server round %d: %d of %d nodes are asked", round, count, len(nodes))
        return [ordered[index] for index in sorted(chosen)]

    def _wait_for_nodes(self, grid: Grid, count: int) -> list[int]:
        began, logged = time.monotonic(), -1
        while len(nodes := list(grid.get_node_ids())) < count:
            if time.monotonic() - began > self.wait:
                why = f"only {len(nodes)} of {count} nodes were connected within {self.wait:g} s"
                remedy = (
                    "start the others, or lower min_available_nodes and min_train_nodes (wait= sets"
                    " the limit)"
                )
                raise RunFailed(f"{why}: {remedy}")
            if len(nodes) != logged:
                log.info("waiting for nodes: %d of %d are connected", logged := len(nodes), count)
            time.sleep(min(1.0, self.wait / 10))
        return nodes

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        if self.fraction_train == 0.0:
            return None, None
        if self.model is None or self.state is None:
            raise UserError(
                "aggregate_train before configure_train: there is no model to compare the replies"
                " with"
            )
        began = time.perf_counter()
        round = self._rounds_with_this(server_round) - 1
        answers, failures = reply_intake.read_replies(replies, self._asked, str(server_round))
        self._frozen.note_holders(self._asked, answers)
        answers, impostors = self.roster.recognize(answers)
        if self.secure is None:
            result, refused, took = self._aggregate_in_clear(round, answers)
        else:
            result, refused, took = self._aggregate_secure_sums(round, answers, server_round)
        counted = {entry.client for entry in result.ledger if entry.counted}
        contents = [answer.content for answer in answers if answer.name in counted]
        if counted:
            self.model, self.state = result.next_model, result.state
            self._counted |= dict.fromkeys(counted, round)
            self._arrays = self._made = model_to_arrays(result.next_model)
        ledger = self._complete_ledger(round, result.ledger, refused, failures | impostors)
        metrics = self._metrics_of_round(ledger, contents)
        took = {name: seconds for name, seconds in took.items() if 0 <= seconds < MOST_SECONDS}
        seconds = {"training": began - self._sent, "aggregation": time.perf_counter() - began}
        about: dict[str, Any] = {
            "metrics": dict(metrics),
            "seconds": seconds,
            "client_seconds": took,
        }
        pieces = pieces_by_finding(result.pieces, self.findings)
        self._record_round(
            RoundRecord(round=round, ledger=ledger, loss=result.loss, pieces=pieces, **about)
        )
        self._stop_without_clients(round, ledger)
        return self._arrays if counted else None, metrics

    def _aggregate_in_clear(self, round: int, answers: list[Reply]) -> RoundOutcome:
        assert self.model is not None
        assert self.state is not None
        self._leave_out_private_tensors(answers)
        known = {name: number for number, name in enumerate(self.clients)}
        answers.sort(
            key=lambda answer: known[answer.name]
        )  # a row of the matrix each, in the order of their numbers
        format = reply_intake.ReplyFormat(
            self.method.sends, self.weighted_by_key, self.arrayrecord_key
        )
        keep = (
            not (self._unwrapped and self._own_metrics)
            if self._keep_replies is None
            else self._keep_replies
        )
        given = (answers, known, self.model, format)
        updates, refused, self._room = reply_intake.decode_replies(
            *given, keep=keep, room=self._room
        )
        self._warn_of_sizes({self.clients[update.client]: update.size for update in updates})
        asked = [number for node in self._asked if (number := self.roster.number(node)) is not None]
        this_round = Round(
            number=round,
            rounds=self.rounds,
            sent=self.model,
            method=self.method,
            state=self.state,
            clients=self._all_client_names,
            sampled=asked,
        )
        collect = Together(gate=self.gate, policy=self.policy, proxy=self.proxy)
        result = collect(this_round, updates)
        return result, refused, {self.clients[update.client]: update.seconds for update in updates}

    def _aggregate_secure_sums(
        self, round: int, answers: list[Reply], server_round: int
    ) -> RoundOutcome:
        """The round from sums of masked updates, with what the clients say in clear."""
        assert self.secure is not None
        assert self.model is not None
        assert self.state is not None
        table = self._secure_table(answers, self._asked)
        this = (
            self.rounds,
            self.model,
            self.state,
            self._all_client_names,
            self._frozen.order.get(FROZEN, ""),
        )
        result, refused = self.secure.train(self.run, round, table, str(server_round), *this)
        self._warn_of_sizes({entry.client: entry.size for entry in result.ledger if entry.counted})
        return (
            result,
            refused,
            {answer.name: reply_intake.seconds_in_reply(answer.content) for answer in answers},
        )

    def _secure_table(self, answers: Sequence[Reply], asked: list[int]) -> SecureServerAnswers:
        if self._grid is None:
            raise UserError(
                "secure sums take several messages: this strategy must have sent the first one"
                " itself"
            )
        return SecureServerAnswers(answers, asked, self.roster, self._grid, self._timeout)

    @property
    def _all_client_names(self) -> list[str]:
        """The population: also those that never answered."""
        return [
            *self.clients,
            *(f"absent {number}" for number in range(self._population - len(self.clients))),
        ]

    def _leave_out_private_tensors(self, answers: Sequence[Reply]) -> None:
        """If all clients keep the same tensors private, as with FedBN, the other tensors are the
        model from now on.

        Only before anything was averaged, and only if most of those asked agree: one client cannot
        cut the model.
        """
        assert self._arrays is not None
        assert self.model is not None
        if (
            any(done.weights for done in self.history)
            or self.round_offset
            or 2 * len(answers) <= len(self._asked)
        ):
            return
        shared = {reply_intake.tensors_in_reply(answer, self.arrayrecord_key) for answer in answers}
        there, layout = set(self._arrays), self.model.layout
        part: frozenset[str] = next(iter(shared)) if len(shared) == 1 else frozenset()
        if not part or not part < there:
            return
        if not part.issuperset(name for name in there if layout.in_classifier(name)):
            return
        kept = sorted(there - part)
        log.warning(
            "all replies hold %d of %d tensors, without %s: only these are averaged, and sent from"
            " now on",
            *(
                len(part),
                len(there),
                safe_line(", ".join(kept[:3])) + (" and others" if len(kept) > 3 else ""),
            ),
        )
        self._tensors = [name for name in self._arrays if name in part]
        self._cut_model_to_shared_tensors(self._arrays)

    def _cut_model_to_shared_tensors(self, arrays: ArrayRecord) -> None:
        self.classifier = self.model.layout.classifier if self.model else self.classifier
        shared = ArrayRecord({name: arrays[name] for name in self._tensors or arrays})
        layout = self._model_layout(shared)
        self.method.check(layout)
        self.model, self._arrays, self._room = arrays_to_model(shared, layout), shared, None
        self.state = self.method.init(self.model)

    def _stop_without_clients(self, round: int, ledger: Sequence[LedgerEntry]) -> None:
        """Stop after two rounds in a row in which nobody counts: one may be an accident."""
        self._idle = 0 if any(entry.counted for entry in ledger) else self._idle + 1
        if not self._idle:
            return
        several = Counter(entry.status for entry in ledger).most_common(3)
        reasons = (
            "; ".join(f"{count} {safe_line(status)}" for status, count in several)
            or "no node was asked"
        )
        log.error(
            "server round %d: no update counted, the model stays as it was (%s)", round + 1, reasons
        )
        if self._idle > 1:
            raise RunFailed(
                f"no update counted in rounds {round} and {round + 1} ({reasons}): fix this, then"
                " resume"
            )

    def _warn_of_sizes(self, sizes: Mapping[str, float]) -> None:
        if len(sizes) < FEWEST_FOR_MEDIAN:
            return
        middle = median(sizes.values())
        for client, size in sizes.items():
            if size > SUSPECT_SIZE_TIMES * middle:
                log.warning(
                    "%s reports %s images, %.0f × the median",
                    safe_line(client),
                    size,
                    size / middle,
                )

    def _complete_ledger(
        self,
        round: int,
        entries: Sequence[LedgerEntry],
        refused: dict[str, str],
        failures: dict[int, str],
    ) -> tuple[LedgerEntry, ...]:
        """One line per known client, per node that was asked, and per stranger that answered."""
        reasons = dict(refused)
        for node, why in failures.items():
            reasons.setdefault(self.roster.label(node), why)
        asked = {self.roster.label(node) for node in self._asked} | reasons.keys()
        lines = {
            entry.client: entry for entry in entries[: len(self.clients)]
        }  # those after them never answered
        missing = {
            name: LedgerEntry(round, name, 0, 0, status="missing")
            for name in sorted(asked - lines.keys())
        }
        statuses = {name: f"refused: {why}" for name, why in reasons.items()}
        whole = (lines | missing).items()
        return tuple(
            replace(entry, status=statuses.get(name, entry.status)) for name, entry in whole
        )

    def _metrics_of_round(
        self, ledger: Sequence[LedgerEntry], contents: list[RecordDict]
    ) -> MetricRecord:
        """The mean of the clients' metrics, and the ledger's columns as lists."""
        metrics = MetricRecord()
        if contents:
            metrics.update(self.train_metrics_aggr_fn(contents, self.weighted_by_key))
        for status in ("counted", "refused", "missing"):
            metrics[f"clients-{status}"] = sum(entry.status.startswith(status) for entry in ledger)
        if counted := [entry for entry in ledger if entry.counted]:
            metrics["ledger-client"] = [self.clients.index(entry.client) for entry in counted]
            columns = {
                part: [float(getattr(entry, part)) for entry in counted] for part in LEDGER_PARTS
            }
            there = {
                part: column for part, column in columns.items() if not all(map(math.isnan, column))
            }
            metrics.update({f"ledger-{part}": column for part, column in there.items()})
        return metrics

    def _record_round(self, done: RoundRecord) -> None:
        shares = "  ".join(
            f"{safe_line(client)} {weight:.3f}" for client, weight in done.weights.items()
        )
        log.info(
            "server round %d/%d: %s", done.round + 1, self.rounds, shares or "no update counted"
        )
        if measured := [entry for entry in done.ledger if math.isfinite(entry.q)]:
            said = (done.round + 1, measured[0].q, measured[0].q_expected, measured[0].rho)
            log.info("server round %d: Q %.1f, %.1f expected of alike clients, rho %.3g", *said)
        for entry in done.ledger:
            if entry.status != "counted":
                log.warning(
                    "server round %d: %s %s",
                    done.round + 1,
                    safe_line(entry.client),
                    safe_line(entry.status),
                )
        self.history.append(done)
        self._unsaved = done.round + 1
        if self.folder is not None:
            if self.logs_rounds:
                loss = next(
                    (done.metrics[name] for name in reply_intake.LOSSES if name in done.metrics),
                    None,
                )
                loss = float(loss) if isinstance(loss, int | float) else math.nan
                self.folder.add_line(
                    done.round, loss, {}, done.seconds, done.client_seconds, rounds=self.rounds
                )
            self.folder.add_to_ledger(done.ledger, done.pieces)
        if self._unwrapped:
            self._save_checkpoint()
        if self.on_round is not None:
            self.on_round(done)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        messages = list(replies)
        contents = [message.content for message in messages if not message.has_error()]
        if self.secure is not None and self._masked_counts:
            contents = self._summed_counts(self.secure, server_round, messages) if contents else []
        usable = [
            content for content in contents if size_in_metrics(content, self.weighted_by_key) > 0
        ]
        if len(usable) < len(contents):
            log.warning(
                "%d evaluations without %s are left out",
                len(contents) - len(usable),
                self.weighted_by_key,
            )
        return self.evaluate_metrics_aggr_fn(usable, self.weighted_by_key) if usable else None

    def _summed_counts(
        self, secure: FlowerSecureServer, server_round: int, replies: list[Message]
    ) -> list[RecordDict]:
        """All sites' counts as those of one site."""
        answers, _ = reply_intake.read_replies(replies, self._evaluating, str(server_round))
        table = self._secure_table(self.roster.recognize(answers)[0], self._evaluating)
        round = self._rounds_with_this(server_round) - 1
        found = secure.count(self.run, round, table, str(server_round), len(self.findings))
        return [] if found is None else [found]


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


class RenumberedStrategy(Strategy):
    """Another strategy, whose rounds go on after those that are done: Flower's own loop begins at 1
    every time.
    """

    def __init__(self, strategy: Strategy, done: int) -> None:
        self.strategy, self.done = strategy, done

    def configure_train(self, server_round: int, *given: Any, **named: Any) -> Iterable[Message]:
        return self.strategy.configure_train(self.done + server_round, *given, **named)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        return self.strategy.aggregate_train(self.done + server_round, replies)

    def configure_evaluate(self, server_round: int, *given: Any, **named: Any) -> Iterable[Message]:
        return self.strategy.configure_evaluate(self.done + server_round, *given, **named)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(self.done + server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def go_on(self, *arguments: Any) -> Result:
        """Flower's loop over the rounds left, with all arguments of `start`; it first evaluates the
        last round done.
        """
        *others, evaluate = arguments
        counted = evaluate and (
            lambda server_round, arrays: evaluate(self.done + server_round, arrays)
        )
        given: tuple[Any, ...] = (*others, counted)
        found = self.start(*given)
        parts = (
            found.train_metrics_clientapp,
            found.evaluate_metrics_clientapp,
            found.evaluate_metrics_serverapp,
        )
        return Result(
            found.arrays, *({self.done + round: part[round] for round in part} for part in parts)
        )
