"""The versions that this release was tested with, and those that are installed here."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata

from feddraw.doctor.checks import Check
from feddraw.results.environment import installed_version

# As in constraints.txt, which an installed package does not have beside it.
TESTED = {
    "numpy": "2.4.6",
    "scipy": "1.17.1",
    "torch": "2.13.0",
    "safetensors": "0.8.0",
    "scikit-image": "0.26.0",
    "pillow": "13.0.0",
    "matplotlib": "3.11.2",
    "typer": "0.20.1",
    "click": "8.4.2",
    "rich": "14.3.4",
    "pooch": "1.9.0",
    "tomli_w": "1.2.0",
    "monai": "1.5.1",
    "flwr": "1.41.0",
}
OPTIONAL = {"monai": "densenet", "flwr": "flower"}  # and the extra that brings it
PYTHONS = ((3, 11), (3, 12))


def check_versions() -> list[Check]:
    """Python, and all packages in one line, or a line for each that differs."""
    here = platform.python_version()
    known = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    same = sys.version_info[:2] in PYTHONS
    found = [Check("Python", "ok" if same else "note", here if same else f"{here}, tested with {known}")]
    compared = [compare(name, tested, installed_version(name)) for name, tested in TESTED.items()]
    others = [check for check in compared if check is not None]
    if others:
        return found + others
    return [*found, Check("packages", "ok", f"the versions that were tested: torch {TESTED['torch']} and the others")]


def compare(name: str, tested: str, here: str) -> Check | None:
    """Nothing to say of a version that differs in its last number only."""
    if not here:
        extra = OPTIONAL.get(name)
        told = f"not installed: pip install 'feddraw[{extra}]'" if extra else "not installed"
        return Check(name, "note" if extra else "broken", told)
    if (least := required(name)) and _numbers(here) < _numbers(least):
        return Check(name, "broken", f"{here}: feddraw needs {least} or later")
    if _numbers(here)[:2] != _numbers(tested)[:2]:
        return Check(name, "note", f"{here}, tested with {tested}")
    return None


def required(name: str) -> str:
    """The least version that feddraw asks for; empty if it asks for none."""
    try:
        wanted = metadata.requires("feddraw") or []
    except metadata.PackageNotFoundError:
        return ""
    for line in wanted:
        asked = re.match(r"([\w.-]+)[^;]*?>=\s*([\w.]+)", line)
        if asked and _plain(asked[1]) == _plain(name):
            return asked[2]
    return ""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))
