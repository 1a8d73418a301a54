"""Versions and machine, recorded with every run."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
    """Versions and machine, so that a result can be understood later."""
    packages = ("feddraw", "numpy", "scipy", "torch", "monai", "safetensors", "scikit-image")
    return {
        "python": platform.python_version(),
        "packages": {name: version for name in packages if (version := installed_version(name))},
        "commit": _git_commit(),
        "system": platform.platform(),
        "processor": _processor_name(),
        "cores": os.cpu_count(),
    }


def table_in_environment(environment: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of a file that may have been changed by hand; empty where it is none."""
    table = environment.get(name)
    return table if isinstance(table, dict) else {}


def installed_version(package: str) -> str:
    """Empty where the package is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _git_commit() -> str:
    """The commit of a source checkout, empty elsewhere."""
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return ""
    git = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return git.stdout.strip()


def _processor_name() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.is_file() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
