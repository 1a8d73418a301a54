"""The pytest plugin of mutate.py; `MUTANT_PLAN` names a JSON file that says what to do.

{"source": the folder that `feddraw` must come from,
 "record": the file for every test's outcome and seconds, or "",
 "limits": {test: its limit in seconds}, in the order in which the tests should run,
 "usual limit": for other tests, or 0 for none,
 "leave out": [tests]}
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

TOOK_TOO_LONG = 42  # the exit code that tells the caller


class Plugin:
    """One run of tests as the plan says."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The likeliest to fail come first."""
        place = {test: number for number, test in enumerate(self.plan["limits"])}
        left_out = set(self.plan["leave out"])
        items[:] = [item for item in items if item.nodeid not in left_out]
        items.sort(key=lambda item: place.get(item.nodeid, len(place)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """An endless loop ends the process."""
        limit = self.plan["limits"].get(item.nodeid, self.plan["usual limit"])
        signal.signal(signal.SIGALRM, lambda *_: os._exit(TOOK_TOO_LONG))
        signal.alarm(int(limit))
        try:
            return (yield)
        finally:
            signal.alarm(0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        in_worker = hasattr(session.config, "workerinput")
        if self.plan["record"] and not in_worker:
            record = {"seconds": self.seconds, "failed": sorted(self.failed)}
            Path(self.plan["record"]).write_text(json.dumps(record), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    import feddraw

    plan = json.loads(Path(os.environ["MUTANT_PLAN"]).read_text(encoding="utf-8"))
    assert Path(feddraw.__file__).is_relative_to(plan["source"]), "not the tree with the mutant"
    config.pluginmanager.register(Plugin(plan))
