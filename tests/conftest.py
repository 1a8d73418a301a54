"""Fixtures for all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOWEST = (
    "test_flower_deployment.py",
    "test_kills.py",
    "test_battery.py",
    "test_flower.py",
    "test_engines.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest files first: where files are shared out between processes, nobody waits for one
    of them alone.
    """
    place = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(SLOWEST)))


@pytest.fixture
def in_tmp(tmp_path: Path) -> Iterator[Path]:
    """The working folder is an empty one."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


@pytest.fixture(autouse=True)
def _flowers_log() -> None:
    """Flower's log tells every test what it tells users, also after one that made it quiet, as its
    simulation does.
    """
    logging.getLogger("flwr").setLevel(logging.INFO)


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
