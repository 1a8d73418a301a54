"""What a server must know of a round of training while it drives it: whether what sites say of
themselves makes sense, and what comes of their first sum and of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from feddraw.core import AfterFirstSum, Layout, Method, Parts, State
from feddraw.errors import UserError
from feddraw.secure.rounds import rules_of_method
from feddraw.secure.rounds.messages import Joined
from feddraw.secure.rounds.round_weights import WEIGHT_ROUNDING, announce_weights_under_policy
from feddraw.secure.rounds.terms import Announcement, Party, Statement
from feddraw.secure.sums.fixed_point import Words, from_fixed_point
from feddraw.secure.sums.session import FEWEST_SUMMED
from feddraw.server.gate import Gate
from feddraw.server.policy import size_as_int_if_whole

WIDEST_SIZES = 2.0**40  # largest size over smallest, beyond which no rule weighs them
TINY_OR_HUGE = "its size is too far from the others' for one secure sum with them"


@dataclass(eq=False)
class TrainingRules:
    """What the driver must know of a round of training (`driver.Rules`)."""

    method: Method
    gate: Gate
    layout: Layout
    state: State  # of the method's rules; the first of two sums changes that of the weighting
    parts: Parts = field(default_factory=dict)  # for the ledger, from the first of two sums

    def party(self, name: str, joined: Joined) -> Party:
        """What a site says of itself."""
        party = Party.of(name, joined.size, joined.labelled)
        party.check("train")
        if party.size > self.gate.max_size:
            raise UserError(f"more images than gate.max_size = {self.gate.max_size:,}")
        outputs = self.layout.outputs
        if party.labelled is not None and len(party.labelled) != outputs:
            raise UserError(
                f"{len(party.labelled)} labelled findings where the model has {outputs}"
            )
        if party.labelled is not None and not any(party.labelled):
            raise UserError("it labels none of the findings")
        return replace(party, size=size_as_int_if_whole(party.size))

    def misfits(self, announcement: Announcement) -> dict[str, str]:
        """Those whose findings do not fit the method, and those whose size, farthest from the
        median, would make every site's check fail.
        """
        left_out: dict[str, str] = {}
        if why := rules_of_method.why_all_labels_are_needed(self.method):
            for party in announcement.parties:
                if not all(party.labelled or ()):
                    left_out[party.name] = why
        for name in rules_of_method.labelling_unlike_most(self.method, announcement):
            left_out.setdefault(name, rules_of_method.SAME_LABELS)
        parties = [party for party in announcement.parties if party.name not in left_out]
        while len(parties) >= FEWEST_SUMMED and not self._fit(announcement, parties):
            sizes = np.log([party.size for party in parties])
            farthest = int(np.abs(sizes - np.median(sizes)).argmax())
            left_out[parties.pop(farthest).name] = TINY_OR_HUGE
        # Where nobody is left to fit, the settings are to blame, and every site says so.
        return left_out if len(parties) >= FEWEST_SUMMED else {}

    def _fit(self, announcement: Announcement, parties: Sequence[Party]) -> bool:
        among = Announcement(announcement.terms, tuple(parties))
        if among.sizes.max() > WIDEST_SIZES * among.sizes.min():
            return False
        return not rules_of_method.why_weights_do_not_fit(self.method, among.facts)

    def conclude(
        self, announcement: Announcement, total: Words, summed: Sequence[str]
    ) -> Announcement:
        """With what comes of the first of two sums, which is over some clients."""
        rule = rules_of_method.weighting_of(self.method)
        assert isinstance(rule, AfterFirstSum)  # by the terms' sums
        places = [announcement.place(name) for name in summed]
        concluded, self.parts, weighting = rule.conclude(
            from_fixed_point(total), announcement.facts, places, self.state["weighting"]
        )
        self.state = self.state | {"weighting": weighting}
        return replace(announcement, concluded=tuple(concluded.tolist()))

    def check_statement(
        self, announcement: Announcement, name: str, statement: Statement | None
    ) -> None:
        """Refuse what a client says if its size and the method do not allow it."""
        if statement is None:
            raise UserError("it does not say how it weighs itself")
        statement.check()
        facts = announcement.facts
        place = announcement.place(name)
        outputs = rules_of_method.separate_outputs(self.method, self.layout, facts)
        weights = statement.own_weights
        if not rules_of_method.weights_in_clear(self.method, announcement):
            if weights:
                raise UserError("it says its weight, which stays hidden in this round")
            return
        if len(weights) != 1 + len(outputs):
            raise UserError(f"{len(weights)} weights where {1 + len(outputs)} are needed")
        ranges = rules_of_method.ranges_of_client(self.method, weights, facts, place, outputs)
        for weight, (low, high) in zip(weights, ranges, strict=True):
            if not low - WEIGHT_ROUNDING <= weight <= high + WEIGHT_ROUNDING:
                raise UserError(
                    f"it weighs itself {weight:.6g}, and its size allows from {low:.6g} to"
                    f" {high:.6g}"
                )
        proposed = announcement.proposed.get(name)
        if proposed is not None and proposed != weights:
            raise UserError("it proposed another weight before")

    def limit(self, announcement: Announcement, proposals: Mapping[str, Statement]) -> Announcement:
        """With the weights that the policy makes of those that sites propose."""
        return announce_weights_under_policy(self.method, announcement, self.layout, proposals)
