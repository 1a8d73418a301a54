"""Imports that were documented under another name: read for one more minor version, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "feddraw.metrics": "feddraw.analysis.metrics",
    "feddraw.statistics": "feddraw.analysis.statistics",
    "feddraw.plots": "feddraw.analysis.plots",
    "feddraw.published": "feddraw.paper.published_tables",
    "feddraw.runs": "feddraw.results.run_collection",
    "feddraw.gate": "feddraw.server.gate",
    "feddraw.data.phantom": "feddraw.datasets.phantom",
    "feddraw.paper.published": "feddraw.paper.published_tables",
    "feddraw.analysis.differences": "feddraw.analysis.paired_differences",
    "feddraw.experiment.preparation": "feddraw.experiment.run_preparation",
    "feddraw.training.build": "feddraw.training.network_by_name",  # in the loader of a model that was exported
}
NAMES = {
    "feddraw.training": {
        "Training": "feddraw.training.settings",
        "Examples": "feddraw.training.loop",
        "Trainer": "feddraw.training.client",
    },
    "feddraw.experiment": {
        "Experiment": "feddraw.experiment.settings",
        "run": "feddraw.experiment.running",
        "prepare": "feddraw.experiment.run_preparation",
    },
    "feddraw.scenarios": {"deal": "feddraw.scenarios.scenario_by_name"},
    "feddraw.scenarios.partition": {"deal": "feddraw.scenarios.scenario_by_name"},
    "feddraw.analysis.statistics": {
        **dict.fromkeys(("Difference", "against"), "feddraw.analysis.paired_differences"),
        **dict.fromkeys(("Interval", "bootstrap", "weighted_auc", "weighted_gm"), "feddraw.analysis.bootstrap"),
    },
    "feddraw.results": {"RunFolder": "feddraw.results.run_folder"},
}


def names_moved_from(package: str) -> Callable[[str], Any]:
    """A package's `__getattr__` for names that are now in one of its modules."""

    def find(name: str) -> Any:
        if name not in NAMES[package]:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        warn_renamed(f"{package}.{name}", f"{NAMES[package][name]}.{name}")
        return getattr(importlib.import_module(NAMES[package][name]), name)

    return find


class OldModules(MetaPathFinder, Loader):
    """Finds a module under its old name."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        new = MODULES[module.__name__]
        warn_renamed(module.__name__, new, 5)
        found = vars(importlib.import_module(new))
        vars(module).update({n: value for n, value in found.items() if n == "__getattr__" or not n.startswith("__")})


def warn_renamed(old: str, new: str, level: int = 3) -> None:
    """Say once where something is called by an old name what the new one is."""
    warnings.warn(f"{old} is now {new}; the old name will be removed in the next minor version", FutureWarning, level)


def install() -> None:
    """Look for old module names after everything else."""
    if not any(isinstance(finder, OldModules) for finder in sys.meta_path):
        sys.meta_path.append(OldModules())
