"""The pytest plugin of mutate.py; `MUTANT_PLAN` names a JSON file that says what to do.

{"source": the folder that `feddraw` must come from,
 "record": the file for every test's outcome and processor seconds, or "",
 "files": [the files whose tests run], or [] for all,
 "limits": {test: its limit in processor seconds}: only these run, in this order; {} for all,
 "failure": the file for the name of the first test that fails, or ""}
"""

from __future__ import annotations

import json
import multiprocessing.util
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

TOOK_TOO_LONG = 42  # the exit code that tells the caller
WAITING = 30  # seconds by the clock for a processor second: a machine may be busy, a test may wait
STARTERS = (
    (subprocess, "_fork_exec"),
    (multiprocessing.util, "spawnv_passfds"),
    (os, "fork"),
    (os, "posix_spawn"),
)


class Plugin:
    """One run of tests as the plan says."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.with_processes: set[str] = set()
        self.started = 0
        self.counted = _processor_seconds()

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Other files are not even imported."""
        files = self.plan["files"]
        name = collection_path.relative_to(config.rootpath).as_posix()
        return True if files and collection_path.is_file() and name not in files else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The likeliest to fail come first."""
        limits = self.plan["limits"]
        if limits:
            place = {test: number for number, test in enumerate(limits)}
            items[:] = [item for item in items if item.nodeid in place]
            items.sort(key=lambda item: place[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """An endless loop ends the process."""

        def stop(*_: object) -> None:
            self._write_failure(item.nodeid)
            os._exit(TOOK_TOO_LONG)

        limit = self.plan["limits"].get(item.nodeid, 0)
        for timer, number, seconds in (
            (signal.ITIMER_PROF, signal.SIGPROF, limit),
            (signal.ITIMER_REAL, signal.SIGALRM, WAITING * limit),
        ):
            signal.signal(number, stop)
            signal.setitimer(timer, seconds)
        self.counted = _processor_seconds()
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, object, object]:
        """A report carries what the test has cost since the last one, and whether it started
        processes: workers of pytest-xdist tell it in this way.
        """
        now = _processor_seconds()
        item.user_properties += [("seconds", now - self.counted), ("processes", self.started)]
        self.counted, self.started = now, 0
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = report.user_properties
        self.seconds[report.nodeid] = sum(value for name, value in told if name == "seconds")
        if any(value for name, value in told if name == "processes"):
            self.with_processes.add(report.nodeid)
        if report.failed:
            if not self.failed:
                self._write_failure(report.nodeid)
            self.failed.add(report.nodeid)

    def _write_failure(self, test: str) -> None:
        if self.plan["failure"]:
            Path(self.plan["failure"]).write_text(test, encoding="utf-8")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        in_worker = hasattr(session.config, "workerinput")
        if self.plan["record"] and not in_worker:
            record = {
                "seconds": self.seconds,
                "failed": sorted(self.failed),
                "with processes": sorted(self.with_processes),
            }
            Path(self.plan["record"]).write_text(json.dumps(record), encoding="utf-8")

    def count_processes(self) -> None:
        """Counts what this process starts, by every way that Python has."""
        for module, name in STARTERS:
            setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.started += 1
            return start(*arguments, **options)

        return counted


def _processor_seconds() -> float:
    """Of this process and of those that it has started and seen end."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def pytest_configure(config: pytest.Config) -> None:
    import feddraw

    plan = json.loads(Path(os.environ["MUTANT_PLAN"]).read_text(encoding="utf-8"))
    assert Path(feddraw.__file__).is_relative_to(plan["source"]), "not the tree with the mutant"
    plugin = Plugin(plan)
    if plan["record"]:
        plugin.count_processes()
    config.pluginmanager.register(plugin)
