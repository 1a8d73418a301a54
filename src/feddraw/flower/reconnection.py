"""What keeps a node from its server, in words; how long to wait for the end of it; and when to try
again.

Nothing here starts a process or opens a connection: time, chance and the log are arguments.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, TypeVar

import httpx
import numpy as np

from feddraw.errors import in_one_line

Answer = TypeVar("Answer")

FIRST_DELAY = 1.0  # seconds
LONGEST_DELAY = 15.0
JITTER = 0.2  # sites that lost their server together do not come back in one moment
# A SuperLink keeps a connection for 60 s after its last heartbeat, and meanwhile refuses the same
# key with the code for keys that it does not know. Clocks after a start are set in less time, too.
PATIENCE_WITH_REFUSALS = 90.0
LEAST_LOG_GAP = 60.0
LONGEST_LOG_GAP = 3600.0
ACTIVATION_FAILED = 2004  # Flower's code: the key is not registered, or it is still connected
NOT_ACCEPTED = "the server does not accept this site's key"


@dataclass(frozen=True)
class Trouble:
    """Why a node is not connected."""

    sort: Literal["away", "certificate", "key", "clock", "address", "port"]
    words: str  # what is waited for
    ending: str = ""  # where a person must do something: the node's last line, which says what
    patience: float = math.inf  # seconds until a node that was never connected ends


class MustBeMended(SystemExit):
    """The node cannot connect before a person has done something. (Flower catches every
    `Exception` here, and would say something else.)
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class Clock:
    """The time, and waiting."""

    seconds: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class ServerAddress:
    """What a node knows about its server and itself, for messages."""

    superlink: str  # NAME:PORT
    key_fingerprint: str  # of the site's key


def backoff(chance: np.random.Generator) -> Iterator[float]:
    """Seconds to wait before each new attempt: 1, 2, 4, 8, then 15, each changed a little by
    chance.
    """
    delay = FIRST_DELAY
    while True:
        yield delay * chance.uniform(1 - JITTER, 1 + JITTER)
        delay = min(2 * delay, LONGEST_DELAY)


def trouble_of(error: Exception, server: ServerAddress, now: datetime) -> Trouble:
    """What a failed request of Flower's client means."""
    if isinstance(error, httpx.HTTPStatusError):
        return _trouble_of_status(error.response, server, now)
    words = in_one_line(error) or type(error).__name__
    if isinstance(error, httpx.TransportError):
        if any(term in words.lower() for term in ("certificate", "ssl", "tls")):
            refused = f"the certificate of {server.superlink} is not accepted ({words})"
            return Trouble(
                "certificate",
                refused,
                f"{refused}: check the clock of this machine, and ask the operator whether the"
                " certificate has expired, has this name, and is signed by the authority in the"
                " newest federation.toml",
                patience=0.0,
            )
        return Trouble("away", f"{server.superlink} does not answer ({words})")
    return _not_a_server(server, words)


def _trouble_of_status(response: httpx.Response, server: ServerAddress, now: datetime) -> Trouble:
    status = response.status_code
    if _flower_code(response) == ACTIVATION_FAILED:
        refused = f"{NOT_ACCEPTED} {server.key_fingerprint}"
        return Trouble(
            "key",
            f"{refused}: it still has the connection of a node that crashed (for up to 60 s), or"
            " another node runs with this key, or the key is not registered",
            f"{refused}: ask the operator to register its public half (flwr supernode register),"
            " and check that no other node runs with this key",
            PATIENCE_WITH_REFUSALS,
        )
    if status == httpx.codes.UNAUTHORIZED:
        refused = f"the server refuses this site's signature{_clock_in_words(response, now)}"
        remedy = "set the clock of this machine"
        return Trouble("clock", refused, f"{refused}: {remedy}", PATIENCE_WITH_REFUSALS)
    if status >= 500 or status == httpx.codes.TOO_MANY_REQUESTS:
        busy = f"{server.superlink} answers {status}: it is down, starting, or busy"
        return Trouble("away", busy)
    return _not_a_server(server, f"it answers {status}")


def _not_a_server(server: ServerAddress, words: str) -> Trouble:
    refused = f"{server.superlink} does not answer like the server of a federation ({words})"
    return Trouble(
        "address",
        refused,
        f"{refused}: ask the operator for the address, and check that no proxy of this network"
        " answers in its place",
        PATIENCE_WITH_REFUSALS,
    )


def _flower_code(response: httpx.Response) -> object:
    try:
        answer = response.json()
    except ValueError:
        return None
    return answer.get("code") if isinstance(answer, dict) else None


def _clock_in_words(response: httpx.Response, now: datetime) -> str:
    """How far this machine's clock is from the server's, by the date of its answer."""
    try:
        theirs = parsedate_to_datetime(response.headers.get("date", ""))
    except ValueError:
        return ""
    difference = (now - theirs).total_seconds()
    if abs(difference) < 5:
        return ""
    return f"; this clock is {in_words(abs(difference))} {'ahead' if difference > 0 else 'behind'}"


def in_words(seconds: float) -> str:
    """A length of time for people: 40 s, 7 min, 3 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


class Outage:
    """The time from an attempt that fails to the next that succeeds, with its lines in the log:
    what is waited for, and since when. Several threads may use it.
    """

    def __init__(self, clock: Clock, say: Callable[[str], None], awaited: str) -> None:
        self._clock = clock
        self._say = say
        self._awaited = awaited  # in words
        self._lock = threading.Lock()
        self._trouble: Trouble | None = None
        self._began = 0.0  # the outage, with whatever troubles
        self._began_at = ""
        self._changed = 0.0  # the trouble, last time
        self._said = 0.0

    def lasts(self, trouble: Trouble) -> float:
        """An attempt has failed. Returns for how many seconds trouble of this sort has lasted."""
        with self._lock:
            now = self._clock.seconds()
            if self._trouble is None:
                self._began = now
                self._began_at = f"{self._clock.now():%Y-%m-%d %H:%M:%S} UTC"
            is_new = self._trouble is None or self._trouble.sort != trouble.sort
            self._trouble = trouble
            if is_new:
                self._changed = now
            gap = min(max(LEAST_LOG_GAP, self._said - self._began), LONGEST_LOG_GAP)
            if is_new or now - self._said >= gap:
                self._said = now
                since = f"since {self._began_at} ({in_words(now - self._began)})"
                self._say(f"Waiting for {self._awaited} {since}: {trouble.words}")
            return now - self._changed

    def over(self) -> None:
        """An attempt has succeeded."""
        with self._lock:
            if self._trouble is not None:
                waited = in_words(self._clock.seconds() - self._began)
                self._trouble = None
                self._say(f"The wait for {self._awaited} is over, after {waited}")


@dataclass(frozen=True)
class Waiting:
    """How to go on after failures."""

    clock: Clock
    delays: Callable[[], Iterator[float]]  # a new series of seconds between attempts
    outage: Outage
    without_limit: bool  # a node that was connected once: whatever it is, the server has to mend it

    def until_it_succeeds(
        self, attempt: Callable[[], Answer], judge: Callable[[Exception], Trouble]
    ) -> Answer:
        """The answer of the first attempt that does not fail.

        Raises `MustBeMended` where a trouble that a person must end has lasted too long.
        """
        for delay in self.delays():
            try:
                answer = attempt()
            except (httpx.HTTPError, OSError, ValueError) as error:
                trouble = judge(error)
                lasted = self.outage.lasts(trouble)
                if not self.without_limit and lasted >= trouble.patience:
                    raise MustBeMended(trouble.ending) from None
                self.clock.sleep(delay)
            else:
                self.outage.over()
                return answer
        raise AssertionError("delays have no end")
