"""Rounds of training in which the server reads every client's update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import RecordDict

from feddraw.core import Model
from feddraw.flower import reply_intake, round_report
from feddraw.flower.reply_intake import Reply, ReplyFormat
from feddraw.flower.strategy_options import StrategyOptions
from feddraw.server.collectors import Together
from feddraw.server.round import Round, RoundResult


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """What a round's replies gave, with what each client's reply says beside its update."""

    result: RoundResult
    refused: Mapping[str, str]  # by client, why its reply could not be used
    client_seconds: Mapping[str, float]  # by client, how long it worked
    reports: list[RecordDict]  # whose metrics are averaged: replies that count, or their sum
    # by client, why no use was made of a reply with which nothing was wrong
    unused: Mapping[str, str] = field(default_factory=dict)
    holding: frozenset[int] = frozenset()  # nodes that said only now that they have frozen layers


class ClearRounds:
    """From replies to a model; the memory of one round is used again in the next."""

    def __init__(self, options: StrategyOptions, size_key: str, arrays_key: str) -> None:
        self._collect = Together(
            gate=options.gate, policy=options.policy.of_federation(), proxy=options.proxy
        )
        self._format = ReplyFormat(
            extras=options.method.extras,
            size_key=size_key,
            arrays_key=arrays_key,
            needs_steps=options.method.needs.steps,
        )
        self._matrices: Model | None = None  # where the replies are laid out, a row each

    def collect(
        self, round: Round, replies: list[Reply], numbers: Mapping[str, int], *, keep: bool
    ) -> RoundOutcome:
        """The round from its replies; `numbers` are those of the clients by name. With `keep`
        tensors stay in the replies.
        """
        # a row of the matrices each, in the order of the clients' numbers
        ordered = sorted(replies, key=lambda reply: numbers[reply.name])
        decoded = reply_intake.decode_replies(
            ordered, numbers, round.sent, self._format, keep=keep, reuse=self._matrices
        )
        self._matrices = decoded.matrices
        names = {update.client: round.clients[update.client] for update in decoded.updates}
        sizes = {names[update.client]: update.size for update in decoded.updates}
        round_report.warn_of_sizes(sizes)
        result = self._collect(round, decoded.updates)
        return RoundOutcome(
            result=result,
            refused=decoded.refused,
            client_seconds={names[update.client]: update.seconds for update in decoded.updates},
            reports=[reply.content for reply in ordered if reply.name in result.weights],
        )
