"""Where `feddraw` and `python -m feddraw` begin: they answer Ctrl-C already while the rest is
imported.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Import the command line, then hand over to it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # and not ignored, as a shell's & wants it
        signal.signal(signal.SIGINT, _stop_at_once)
    _open_missing_streams()
    from feddraw import cli

    signal.signal(signal.SIGINT, before)
    cli.main()


def _stop_at_once(_number: int, _frame: FrameType | None) -> None:
    """At once: modules that are half imported cannot be left in order."""
    os.write(2, b"feddraw: stopped\n")
    os._exit(130)


def _open_missing_streams() -> None:
    """Standard streams that the caller has closed lead nowhere, so that no file of ours gets their
    numbers.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _leave_working_folder() -> None:
    """Take the folder from the path that `-m` put there: a stranger's file in it would be taken for
    a module.
    """
    from pathlib import Path

    if Path(sys.path[0]).resolve() == Path.cwd() and not Path(__file__).is_relative_to(Path.cwd()):
        del sys.path[0]


if __name__ == "__main__":
    _leave_working_folder()
    main()
