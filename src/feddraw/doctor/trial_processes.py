"""Processes on devices that are asked the same questions at the same time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from feddraw.doctor.device_trial import serve
from feddraw.errors import RunFailed
from feddraw.system.workers import cause_of_death, start_worker, stop_workers
from feddraw.training.devices import Place


class TooSlow(RunFailed):
    """No answer in the time that there was."""


class Team:
    """Processes, one at each place."""

    def __init__(self, places: Sequence[Place], target: Any = serve) -> None:
        self.places, self._asked = places, 0
        self._members = [start_worker(target, place) for place in places]

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *exception: object) -> None:
        stop_workers(self._members)

    def ask(self, question: str, *arguments: Any, patience: float = 60.0) -> list[dict[str, Any]]:
        """All answers, one a process; a process that dies or fails is an error, and so is one that takes too long."""
        self._asked += 1
        for place, (pipe, process) in zip(self.places, self._members, strict=True):
            try:
                pipe.send((self._asked, question, arguments))
            except OSError:
                raise RunFailed(f"{place.device}: a process {cause_of_death(process)[0]}") from None
        return [self._answer(member, patience) for member in range(len(self._members))]

    def _answer(self, member: int, patience: float) -> dict[str, Any]:
        device, (pipe, process) = self.places[member].device, self._members[member]
        number, until = 0, time.monotonic() + patience
        answer: dict[str, Any] = {}
        try:
            while number != self._asked:  # what was asked before may be answered late
                if not pipe.poll(max(0.0, until - time.monotonic())):
                    raise TooSlow(f"{device}: no answer within {patience:.0f} s")
                number, answer = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise RunFailed(f"{device}: a process {''.join(cause_of_death(process))}") from None
        if "error" in answer:
            raise RunFailed(f"{device}: {answer['error']}")
        return answer
