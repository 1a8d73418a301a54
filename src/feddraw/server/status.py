"""What became of a client in a round, as ledgers and logs write it: a word, and after a colon why,
or what was noted. Decisions ask for the word by its type, never for letters of the text.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class StatusKind(StrEnum):
    """The words."""

    WEIGHTED = "weighted"  # its update counted
    REFUSED = "refused"  # something was wrong with what it sent
    UNUSED = "unused"  # nothing was wrong with it, but the round was not aggregated
    MISSING = "missing"  # it was asked, and did not answer in time
    NOT_SAMPLED = "not sampled"  # it was not asked
    NOT_CONNECTED = "not connected"  # it was not there when the round began
    EVALUATED = "evaluated"  # of an evaluation: it said what it found
    OTHER = "other"  # any other text, which no server of ours writes

    @property
    def sent_nothing(self) -> bool:
        return self in (
            StatusKind.MISSING,
            StatusKind.NOT_SAMPLED,
            StatusKind.NOT_CONNECTED,
        )


class RefusalCause(StrEnum):
    """What was wrong where a client was refused. Decisions ask for it; the text is for readers."""

    NOT_FINITE_UPDATE = "not-finite update"  # numbers of its own: NaN, infinite, or too large
    NOT_FINITE_SUM = "not-finite sum"  # its update is finite, what the rules made of all is not
    OTHER = "other"

    @staticmethod
    def of_words(reason: str) -> RefusalCause:
        """The cause where a site refuses its own update: the server has its words only."""
        if "not finite" in reason:
            return RefusalCause.NOT_FINITE_UPDATE
        return RefusalCause.OTHER


class Status(NamedTuple):
    """A word with what follows it."""

    kind: StatusKind
    note: str = ""  # why, or what was noted

    @staticmethod
    def read(text: str) -> Status:
        """What `text` wrote."""
        word, _, note = text.partition(": ")
        try:
            return Status(StatusKind(word), note)
        except ValueError:
            return Status(StatusKind.OTHER, text)

    @property
    def text(self) -> str:
        """As ledgers and logs have it."""
        if self.kind is StatusKind.OTHER:
            return self.note
        return f"{self.kind}: {self.note}" if self.note else str(self.kind)

    @property
    def noteworthy(self) -> bool:
        """Whether it says more than that the update counted."""
        return self != Status(StatusKind.WEIGHTED)
