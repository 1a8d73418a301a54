"""Worker processes for tests that do not begin with two seconds of imports each.

The package starts its workers fresh ("spawn"). In tests they are forks of a server process that
has imported torch and the package and done nothing else. What crosses the border of a process is
the same: arguments are pickled, memory is shared by name, a death is seen by its exit code.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import SimpleNamespace
from typing import Any

PRELOADED = ["torch", "feddraw.engines.processes", "feddraw.study.worker_pool"]


class WarmProcess(ForkServerProcess):
    """A fork of the server with the variables that its parent has now, as a fresh process has."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.variables = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self.variables)
        super().run()


class WarmContext(ForkServerContext):
    """A context of multiprocessing whose processes are warm."""

    Process = WarmProcess


def warm_multiprocessing() -> SimpleNamespace:
    """multiprocessing, but for the context in which `feddraw.system.workers` starts processes."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    context = WarmContext()
    return SimpleNamespace(**vars(multiprocessing) | {"get_context": lambda _: context})
