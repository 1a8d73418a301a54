"""Messages to several nodes and their answers as they come, so that a server need not hold all of them at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

SHORTEST, LONGEST = 0.1, 2.0  # seconds between two looks for answers, growing while none comes


def answers(grid: Grid, messages: Sequence[Message], timeout: float) -> Iterator[Message]:
    """Each answer once, until all are there or the time is over; a node that is gone answers with an error."""
    waiting = {identity for identity in grid.push_messages(messages) if identity}
    deadline, pause = time.monotonic() + timeout, SHORTEST
    while waiting and time.monotonic() < deadline:
        found = list(grid.pull_messages(waiting))
        waiting -= {message.metadata.reply_to_message_id for message in found}
        if not found:
            time.sleep(pause)
        pause = SHORTEST if found else min(LONGEST, 1.5 * pause)
        while found:
            yield found.pop(0)
