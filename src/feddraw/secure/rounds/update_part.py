"""A client's part of a secure round of training: how it weighs itself, and the words that it masks.

It needs the model that it was sent, its own trained one, and what was announced to all. It
refuses, in one line, to take part with a move that is not finite or too long for the sum, and under
weights that the policy does not give. What it refuses with holds no number of its update.
"""

from __future__ import annotations

import numpy as np

from feddraw.core import AfterFirstSum, ClientView, Method, Model, Update, Vector
from feddraw.errors import UserError
from feddraw.secure.rounds import rules_of_method
from feddraw.secure.rounds.round_weights import (
    WEIGHT_ROUNDING,
    exact_weight,
    weights_under_policy,
)
from feddraw.secure.rounds.terms import Announcement, Numbers, Statement
from feddraw.secure.rounds.word_layout import WordLayout
from feddraw.secure.sums.fixed_point import Words, fixed_point_limit, to_fixed_point
from feddraw.server.gate import Gate, check_update

_BLOCK = 1 << 16  # parameters at a time: no second model in float64
REFUSED_HERE = "its own gate refuses its update: not finite, out of bounds, or of another form"
TOO_LARGE = "its update has numbers that are not finite, or too large for a secure sum"


class UpdatePart:
    """What one client adds to the sums of one round (`site.Part`).

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
    ) -> None:
        terms = announcement.terms
        rules_of_method.check_method(method)
        rules_of_method.check_policy(method, terms.limits, clear_weights=terms.clear_weights)
        rules_of_method.check_weights_fit_sum(method, announcement)
        max_size = (gate or Gate()).max_size
        verdict = check_update(update, sent, method, max_size)
        if verdict.reason:  # its words may hold a number of the update
            raise UserError(REFUSED_HERE)
        self._method = method
        self._name = name
        self._client = ClientView(sent, update)
        self._length = verdict.distance
        self._clients = len(announcement.parties)
        self._place = announcement.place(name)

    def first(self, announcement: Announcement) -> Words:
        """The words of the first sum, for methods that need two."""
        rule = rules_of_method.weighting_of(self._method)
        assert isinstance(rule, AfterFirstSum)  # by the terms' sums
        return self._encoded(rule.contribute(self._client, announcement.facts, self._place))

    def state(self, announcement: Announcement) -> Statement:
        """How many steps this client took, and how it weighs itself where that may be known."""
        in_clear = rules_of_method.weights_in_clear(self._method, announcement)
        steps = self._client.update.steps
        return Statement(
            own_weights=self._own_weights(announcement) if in_clear else (),
            steps=None if steps is None else int(steps),
        )

    def words(self, announcement: Announcement) -> Words:
        """The vector that is masked: the weighted move and all that is summed with it (see
        `WordLayout`).
        """
        weights = self._weights(announcement)
        update = self._client.update
        sent = self._client.sent
        form = WordLayout.of(self._method, sent.layout, announcement.facts)
        spans = form.spans()
        words = np.empty(form.length, np.uint64)
        server = rules_of_method.factored_server(self._method)
        factor = 1.0 if server is None else server.factor(self._client)
        moves = words[spans["params"]]
        self._encode_difference(update.model.params, sent.params, weights[0] * factor, moves)
        for output, weight in zip(form.outputs, weights[1:], strict=True):
            for row in sent.layout.rows_of(output):
                self._encode_difference(
                    update.model.params[row], sent.params[row], weight * factor, moves[row]
                )
        self._encode_difference(
            update.model.buffers, sent.buffers, weights[0], words[spans["buffers"]]
        )
        if server is not None:
            term = server.term(self._client)
            words[spans["factor"]] = self._encoded(np.array([weights[0] * factor]))
            words[spans["term"]] = self._encoded(np.array([weights[0] * term]))
        words[spans["loss"]] = self._encoded(np.array([self._loss()]))
        words[spans["length"]] = self._encoded(np.array([max(weights) * factor * self._length]))
        # Noise for differential privacy would be added to `words` here: whole numbers, before the
        # mask, so that the sum holds the noise of all clients and no message without it ever leaves
        # a site. There is none today.
        words[spans["weights"]] = self._encoded(np.array(weights))
        return words

    def _loss(self) -> float:
        """The training loss, cut where a sum could not hold it."""
        largest = fixed_point_limit(self._clients)
        return float(np.clip(self._client.update.metrics["loss"], -largest, largest))

    def _encoded(self, values: Vector) -> Words:
        words = np.empty(len(values), np.uint64)
        self._into_fixed_point(values, words)
        return words

    def _encode_difference(self, end: Vector, start: Vector, weight: float, out: Words) -> None:
        """weight · (end - start), block by block."""
        for first in range(0, len(end), _BLOCK):
            block = slice(first, first + _BLOCK)
            values = end[block].astype(np.float64)
            values -= start[block]
            self._into_fixed_point(np.multiply(values, weight, out=values), out[block])

    def _into_fixed_point(self, values: Vector, out: Words) -> None:
        try:
            to_fixed_point(values, self._clients, out)
        except UserError:  # its text has a number of the update
            raise UserError(TOO_LARGE) from None

    def _own_weights(self, announcement: Announcement) -> Numbers:
        """How this client weighs itself."""
        facts = announcement.facts
        layout = self._client.sent.layout
        outputs = rules_of_method.separate_outputs(self._method, layout, facts)
        weights = rules_of_method.weights_of_client(
            self._method, self._client, facts, self._place, outputs
        )
        return tuple(map(exact_weight, weights))

    def _weights(self, announcement: Announcement) -> Numbers:
        """This client's own, or what the policy made of it, after checking that it is what the
        policy makes of it.
        """
        proposed = self._own_weights(announcement)
        if not announcement.terms.limits.limits_weights:
            return proposed
        if announcement.proposed.get(self._name) != proposed:
            raise UserError("the server passes on another weight than this client proposed")
        right = weights_under_policy(self._method, announcement, self._client.sent.layout)
        given = announcement.weights
        if given.keys() != right.keys() or not all(
            np.allclose(given[name], right[name], 0, WEIGHT_ROUNDING) for name in right
        ):
            raise UserError(
                "the server's weights are not those that the policy gives: this client takes no"
                " part"
            )
        return given[self._name]
