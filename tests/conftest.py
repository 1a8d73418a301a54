"""Fixtures for all tests."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import feddraw.system.workers
from warm_workers import warm_multiprocessing

SLOWEST = (
    "test_tuesday.py",
    "test_restarts.py",
    "test_guide.py",
    "test_deployments.py",
    "test_study.py",
    "test_engines.py",
    "test_report.py",
    "test_frozen_part.py",
    "test_lost_updates.py",
    "test_methods.py",
    "test_scenarios.py",
    "test_report_page.py",
    "test_battery.py",
    "test_export.py",
    "test_limits.py",
    "test_examples.py",
    "test_statistics.py",
    "test_flower_app.py",
    "test_flower.py",
    "test_models.py",
    "test_cli.py",
    "test_packaging.py",
    "test_results.py",
    "test_text.py",
    "test_trust.py",
    "test_own_walk.py",
    "test_zoo.py",
)
# Half a minute and more each file: these have targets of their own, which set the variable.
RARE = {
    "test_flower_deployment.py": "FEDDRAW_FEDERATION",
    "test_bench_runs.py": "FEDDRAW_LONG",
    "test_kills.py": "FEDDRAW_LONG",
    "test_processes.py": "FEDDRAW_LONG",
}

# What is imported and collected stays: looking for garbage in it took a third of the collection.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is looked for among what tests make, not among modules and tests."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The slowest files first: where files are shared out between processes, nobody waits for one
    of them alone. The rare ones are left to their targets, or to whoever names them.
    """
    rare = [item for item in items if is_rare(item.path.name, config.args)]
    config.hook.pytest_deselected(items=rare)
    items[:] = [item for item in items if item not in rare]
    place = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(SLOWEST)))


def is_rare(file: str, arguments: list[str]) -> bool:
    """Whether a file's tests are left out of a run with these arguments."""
    if file not in RARE or RARE[file] in os.environ:
        return False
    return not any(file in argument for argument in arguments)


@pytest.fixture
def in_tmp(tmp_path: Path) -> Iterator[Path]:
    """The working folder is an empty one."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


@pytest.fixture(scope="session", autouse=True)
def _warm_workers() -> Iterator[None]:
    """Workers are forks of a warm process, but for tests that ask for `fresh_workers`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(feddraw.system.workers, "multiprocessing", warm_multiprocessing())
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Images that tests prepare are kept in a folder of their own, not in the user's cache."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FEDDRAW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def fresh_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start as they do for users."""
    monkeypatch.setattr(feddraw.system.workers, "multiprocessing", multiprocessing)


@pytest.fixture(autouse=True)
def _flowers_log() -> None:
    """Flower's log tells every test what it tells users, also after one that made it quiet, as its
    simulation does, or shortened its errors, as our app at the server does.
    """
    flower_log = logging.getLogger("flwr")
    flower_log.setLevel(logging.INFO)
    flower_log.filters.clear()


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """A test that sets a variable (`feddraw.cli.main` does, for its workers) does not set it for
    those after it.
    """
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
