"""The pytest plugin of mutate.py; `MUTANT_PLAN` names a JSON file that says what to do.

{"source": the folder that `feddraw` must come from,
 "record": the file for every test's outcome and seconds, or "",
 "files": [the files whose tests run], or [] for all,
 "limits": {test: its limit in seconds}: only these run, in this order; {} for all,
 "failure": the file for the name of the first test that fails, or ""}
"""

from __future__ import annotations

import json
import multiprocessing.util
import os
import signal
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

TOOK_TOO_LONG = 42  # the exit code that tells the caller
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

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The likeliest to fail come first."""
        files, limits = self.plan["files"], self.plan["limits"]
        if files:
            items[:] = [item for item in items if item.nodeid.partition("::")[0] in files]
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

        signal.signal(signal.SIGALRM, stop)
        signal.alarm(int(self.plan["limits"].get(item.nodeid, 0)))
        try:
            return (yield)
        finally:
            signal.alarm(0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, object, object]:
        """A worker's report carries whether the test started a process."""
        if self.started:
            item.user_properties.append(("processes", self.started))
            self.started = 0
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if any(name == "processes" for name, _ in report.user_properties):
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


def pytest_configure(config: pytest.Config) -> None:
    import feddraw

    plan = json.loads(Path(os.environ["MUTANT_PLAN"]).read_text(encoding="utf-8"))
    assert Path(feddraw.__file__).is_relative_to(plan["source"]), "not the tree with the mutant"
    plugin = Plugin(plan)
    if plan["record"]:
        plugin.count_processes()
    config.pluginmanager.register(plugin)
