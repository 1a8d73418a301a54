"""How a server's run ends before its last round: who is missing, what to do, and one line in place
of a traceback. The reason is also written to the run's folder, where `watch` and `explain` find it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC

from flwr.serverapp import Grid

from feddraw.errors import RunFailed, UserError, in_one_line
from feddraw.flower.progress import Progress
from feddraw.results.round_log import read_round_log
from feddraw.results.run_folder import RunFolder
from feddraw.text import join_names, safe_line

WHAT_TO_DO = (
    "Start the missing nodes (`feddraw operator sites` shows who is connected) and go on with"
    " resume=true; or begin rounds with fewer: nodes=… of the ready app, min_available_nodes=… and"
    " min_train_nodes=… of your own strategy. wait=… sets the seconds to wait"
)


class TooFewNodes(RunFailed):
    """Nodes did not connect in time."""

    def __init__(self, connected: int, least: int, seconds: float) -> None:
        self.shortage = f"only {connected} of {least} nodes were connected within {seconds:g} s"
        super().__init__(f"{self.shortage}. {WHAT_TO_DO}")


def absent_sites_in_words(grid: Grid, progress: Progress, folder: RunFolder | None) -> str:
    """Which of the known sites are not connected, and since when; empty where none is missing."""
    roster = progress.roster
    roster.meet(grid)
    connected = {roster.name_of(node) for node in grid.get_node_ids()}
    log = [] if folder is None else read_round_log(folder.rounds)
    times = {line.round: line.time for line in log}
    absent = []
    for site in dict.fromkeys([*roster.listed_names, *roster.names]):
        if site in connected:
            continue
        round = progress.last_weighted.get(site)
        when = f" at {times[round].astimezone(UTC):%Y-%m-%d %H:%M} UTC" if round in times else ""
        seen = "has not counted yet" if round is None else f"last counted in round {round}{when}"
        absent.append(f"{safe_line(site)} ({seen})")
    return f"Missing: {join_names(absent)}. " if absent else ""


@contextmanager
def reason_kept(folder: RunFolder | None, absent_sites: Callable[[], str]) -> Iterator[None]:
    """A run that cannot go on leaves its reason in its folder; one that lacks nodes names the
    missing sites.
    """
    try:
        yield
    except TooFewNodes as failure:
        ending = RunFailed(f"{failure.shortage}. {absent_sites()}{WHAT_TO_DO}")
        _keep(folder, str(ending))
        raise ending from None
    except Exception as error:
        expected = isinstance(error, RunFailed | UserError)
        _keep(folder, str(error) if expected else f"{type(error).__name__}: {in_one_line(error)}")
        raise


def _keep(folder: RunFolder | None, reason: str) -> None:
    # Where not even this can be written, the error that is on its way says more.
    with suppress(OSError):
        if folder is not None:
            folder.write_stop(reason)


class OneLine(logging.Filter):
    """Flower logs the end of a ServerApp with a traceback: of our own errors, the message is
    enough.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, RunFailed | UserError):
            record.exc_info = None
            record.msg = "The run has ended: %s"
            record.args = (str(error),)
        return True


def end_in_one_line() -> None:
    """From now on, in this process."""
    flower_log = logging.getLogger("flwr")
    if not any(isinstance(known, OneLine) for known in flower_log.filters):
        flower_log.addFilter(OneLine())
