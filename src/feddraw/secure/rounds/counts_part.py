"""A site's part of an evaluation's sum: counts, which are whole numbers already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feddraw.errors import UserError
from feddraw.secure.rounds.messages import Joined
from feddraw.secure.rounds.terms import Announcement, Party, Statement
from feddraw.secure.sums.fixed_point import Words


@dataclass(frozen=True, eq=False)
class CountsPart:
    """What a site counted; nothing of it is said in clear."""

    counts: Words

    def first(self, announcement: Announcement) -> Words:
        raise UserError("an evaluation has one sum only")

    def state(self, announcement: Announcement) -> Statement | None:
        return None

    def words(self, announcement: Announcement) -> Words:
        return self.counts.copy()


@dataclass(frozen=True)
class CountingRules:
    """What a server must know of an evaluation (`driver.Rules`)."""

    findings: int

    def party(self, name: str, joined: Joined) -> Party:
        """Which findings a site labels."""
        if joined.labelled is not None and len(joined.labelled) != self.findings:
            raise UserError(
                f"{len(joined.labelled)} labelled findings where there are {self.findings}"
            )
        return Party.of(name, 0.0, joined.labelled)

    def misfits(self, announcement: Announcement) -> Mapping[str, str]:
        return {}

    def conclude(
        self, announcement: Announcement, total: Words, summed: Sequence[str]
    ) -> Announcement:
        raise UserError("an evaluation has one sum only")

    def check_statement(
        self, announcement: Announcement, name: str, statement: Statement | None
    ) -> None:
        if statement is not None:
            raise UserError("it says more than an evaluation asks for")

    def limit(self, announcement: Announcement, proposals: Mapping[str, Statement]) -> Announcement:
        raise UserError("an evaluation has no weights")
