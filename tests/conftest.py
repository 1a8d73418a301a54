"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOWEST = ("test_flower_deployment.py", "test_kills.py", "test_battery.py", "test_flower.py", "test_engines.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest files first: where files are shared out between processes, nobody waits for one of them alone."""
    place = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(SLOWEST)))


@pytest.fixture
def in_tmp(tmp_path: Path) -> Iterator[Path]:
    """The working folder is an empty one."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)
