"""A client's side of a secure round: it weighs itself, says what is said in clear, and makes the
words that it masks.

It needs the model that it was sent, its own trained one, and what all clients were told. It
refuses, in one line, to take part with a move that is not finite or too long for the sum, and under
weights that the policy does not give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from feddraw.core import Cohort, Method, Model, Update, Vector
from feddraw.errors import UserError
from feddraw.secure.rounds import round_weights
from feddraw.secure.rounds.announcement import (
    Announcement,
    ClientAnnouncement,
    Numbers,
    announced_fingerprint,
)
from feddraw.secure.rounds.round_weights import WEIGHT_ROUNDING, secure_weights_under_policy
from feddraw.secure.rounds.word_layout import WordLayout
from feddraw.secure.sums.fixed_point import Words, to_fixed_point
from feddraw.server.gate import Gate, check_update

LISTED_METRICS = ("loss",)  # metrics that leave the client

_BLOCK = 1 << 16  # parameters at a time: no second model in float64


class SecureRoundClient:
    """What one client adds to the sums of one round.

    Each step takes the announcement as it is by then.
    """

    def __init__(
        self,
        method: Method,
        announcement: Announcement,
        name: str,
        sent: Model,
        update: Update,
        gate: Gate | None = None,
        listed: Sequence[str] = LISTED_METRICS,
        received: str = "",
    ) -> None:
        """`received` is the fingerprint of what this client was sent; left out, it is that of the
        model alone.
        """
        if why := method.secure.why_not:
            raise UserError(f"this method cannot run under secure sums: {why}")
        announcement.check()
        self.method, self.name, self.sent, self._listed = method, name, sent, tuple(listed)
        self.place = announcement.place(name)
        self.clients = len(announcement.parties)
        party = announcement.parties[self.place]
        if (received or announced_fingerprint(sent)) != announcement.sent:
            raise UserError(
                "this client was sent another model than the server says that all were sent"
            )
        if update.size != party.size:
            raise UserError(f"size {update.size} where {party.size} was announced")
        if (None if update.labelled is None else tuple(update.labelled.tolist())) != party.labelled:
            raise UserError("the findings that it labels are not those that were announced")
        round_weights.check_weights_fit_sum(method, announcement.facts())
        verdict = check_update(update, sent, method.sends, (gate or Gate()).max_size)
        if verdict.reason:
            raise UserError(verdict.reason)
        self.distance = verdict.distance
        size = float(announcement.facts().sizes[self.place])
        about = (announcement.round, announcement.rounds, sent)
        self._cohort = Cohort(*about, [replace(update, size=size)], self.clients)
        self._said = update.size
        self._own: Numbers = ()

    def first(self, announcement: Announcement) -> Words:
        """The words of the first sum, for methods that need two."""
        values = self.method.weighting.first_sum(self._cohort, announcement.facts(), self.place)
        return to_fixed_point(values, self.clients)

    def weigh(self, announcement: Announcement) -> ClientAnnouncement:
        """How this client weighs itself, and all that it says in clear."""
        facts, weighting, update = (
            announcement.facts(),
            self.method.weighting,
            self._cohort.updates[0],
        )
        body = weighting.own_weight(self._cohort, facts, self.place)
        rows = weighting.own_rows(self._cohort, facts, self.place)
        if not rows:
            labelled = (
                np.ones(self.sent.layout.outputs, bool)
                if update.labelled is None
                else update.labelled
            )
            rows = {output: body * bool(labelled[output]) for output in range(len(labelled))}
        outputs = round_weights.secure_outputs_with_own_weight(self.method, self.sent.layout, facts)
        self._own = tuple(
            map(round_weights.exact_weight, (body, *(rows[output] for output in outputs)))
        )
        metrics = {
            name: float(update.metrics[name]) for name in self._listed if name in update.metrics
        }
        numbers = {name: float(update.extra[name][0]) for name in self.method.server.announced}
        return ClientAnnouncement(
            self._said, update.steps, self._own, self.distance, metrics, numbers
        )

    def words(self, announcement: Announcement) -> Words:
        """The vector that is masked: the weighted move and all that is summed with it (see
        `WordLayout`).
        """
        own = self._weights(announcement)
        update, sent = self._cohort.updates[0], self.sent
        form = WordLayout.of(self.method, sent.layout, announcement.facts())
        spans, words = form.spans(), np.empty(form.length, np.uint64)
        factor = float(self.method.server.factors(self._cohort)[0])
        moves = words[spans["params"]]
        self._encode(update.model.params, sent.params, own[0] * factor, moves)
        for output, weight in zip(form.outputs, own[1:], strict=True):
            for row in sent.layout.rows_of(output):
                self._encode(
                    update.model.params[row], sent.params[row], weight * factor, moves[row]
                )
        self._encode(update.model.buffers, sent.buffers, own[0], words[spans["buffers"]])
        for name in form.extras:
            self._encode(update.extra[name], None, own[0], words[spans[f"extra.{name}"]])
        if form.terms:
            term = float(self.method.server.terms(self._cohort)[0])
            to_fixed_point(
                np.array([own[0] * factor, own[0] * term]), self.clients, words[spans["terms"]]
            )
        # Noise for differential privacy would be added to `words` here: whole numbers, before the
        # mask, so that the sum holds the noise of all clients and no message without it ever leaves
        # a site. There is none today.
        to_fixed_point(np.array(own), self.clients, words[spans["weights"]])
        return words

    def _encode(self, end: Vector, start: Vector | None, weight: float, out: Words) -> None:
        """weight · (end - start), block by block."""
        for first in range(0, len(end), _BLOCK):
            block = slice(first, first + _BLOCK)
            values = end[block].astype(np.float64)
            if start is not None:
                values -= start[block]
            to_fixed_point(np.multiply(values, weight, out=values), self.clients, out[block])

    def _weights(self, announcement: Announcement) -> Numbers:
        """This client's own, or what the policy made of it, after checking that it is what the
        policy makes of it.
        """
        own = self._own or self.weigh(announcement).own
        if not announcement.limits().limits_weights:
            return own
        if announcement.proposed.get(self.name) != own:
            raise UserError("the server passes on another weight than this client proposed")
        right, given = (
            secure_weights_under_policy(self.method, announcement, self.sent.layout),
            announcement.weights,
        )
        if given.keys() != right.keys() or not all(
            np.allclose(given[n], right[n], 0, WEIGHT_ROUNDING) for n in right
        ):
            raise UserError(
                "the server's weights are not those that the policy gives: this client takes no"
                " part"
            )
        return given[self.name]
