"""The size of a site that tells its steps only: those of its first answer, at most.

A site has as many images in every round, so steps that grow say nothing about its size. Before
FLARE 2.9 a Lightning client sends the steps of all rounds so far (20, 40, 60 for 20 in each), so a
site that restarts would fall behind the others: with three sites of 20 steps from 1/3 to 1/9 in the
fourth round. Its first answer has the steps of one round, before and after a restart.

That is why such a site is held at its first steps, and not refused: every Lightning job with an
older FLARE would end in its third round, although what it needs is known. The ledger and the log
say so, with the line that sends a true size. Only where the method computes with steps is it
refused, as it is not known how many of them are of the round.
"""

from __future__ import annotations

import logging

from feddraw.nvflare.site_numbers import STEPS_KEY, AskedNumbers
from feddraw.text import safe_line

log = logging.getLogger("feddraw.nvflare")


class SizesBySteps:
    """The first steps of every site, and which of them were told to send a size."""

    def __init__(self, asked: AskedNumbers) -> None:
        self.first_steps: dict[str, int] = {}
        self._asked = asked
        self._warned: set[str] = set()  # sites, so that each is logged once

    def size_of(self, site: str, steps: int) -> int:
        """Its first steps where it now says more; fewer count as they are."""
        if site not in self.first_steps and steps > 0:
            self.first_steps[site] = steps
        return min(steps, self.first_steps.get(site, steps))

    def warn_once(self, site: str, first: int, steps: int) -> None:
        """Say in the log that a site's steps have grown, and what its script should send."""
        if site in self._warned:
            return
        self._warned.add(site)
        log.warning(
            "%s sends no %s, and its steps (%s) have grown from %d to %d, which its images have"
            " not: %d stay its size. Before FLARE 2.9 Lightning clients send the steps of all"
            " rounds so far. In a LightningModule, set self.__fl_meta__ = %s; else %s",
            safe_line(site),
            self._asked.size_key,
            STEPS_KEY,
            first,
            steps,
            first,
            self._asked.meta_to_send,
            self._asked.how_to_send,
        )

    def why_refused(self, first: int, steps: int) -> str:
        """For a method that computes with steps."""
        return (
            f"its steps grew from {first} to {steps}, and this method needs those of one round:"
            f" send {self._asked.size_key} and, as {STEPS_KEY}, these steps in its model's meta"
            " (in Lightning: self.__fl_meta__)"
        )


def note_in_ledger(first: int, steps: int) -> str:
    return f"says {steps} steps after {first} in its first answer, {first} count as its size"
