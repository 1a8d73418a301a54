"""Which settings decide what comes out of a run, and which only say how it is carried out.

This is the only place that decides it: resuming, the keys of a study and the tables of a report all
ask here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feddraw import catalog
from feddraw.system.file_writing import toml_values

# How a run is carried out. A run may be resumed with other values, and runs that differ in these
# are the same run.
EXECUTION_SETTINGS = ("engine", "workers", "devices", "track", "training.device")
# How exactly the processor computes. A run keeps them to its end. Tables do not tell runs apart by
# them, and a note says where they differ, unless somebody compares them: the same run with several
# values.
PRECISION_SETTINGS = ("training.amp", "training.tf32", "training.compile")
# What is said, looked at or kept beside the result, and where the data lie on a machine.
SIDE_SETTINGS = (
    "about.images",
    "about.use",
    "about.note",
    "about.tags",
    "test_every_round",
    "data.path",
    "data.subgroups",
    "keep.best",
    "keep.tail",
    "keep.updates",
    "keep.gb",
)
# Data sets with one content, wherever a machine keeps their archive; what a run was dealt of them
# has its own hash.
ARCHIVES = ("chexpert", "chestmnist", "nih", *catalog.members("datasets"))
# Runs that differ in these alone are repeats.
REPEATS = ("seed", "partition_seed", "data.seed", "data.fold")
# Settings that describe a scenario; all others describe a method.
CONDITIONS = ("data", "scenario", "folds", "holdout")
NOT_COMPARED = (*EXECUTION_SETTINGS, *SIDE_SETTINGS)  # no effect on results


def without_execution(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted name, without those that only say how a run is carried out, or where an
    archive lies.
    """
    places = ("data.path",) if settings.get("data.name") in ARCHIVES else ()
    return {
        name: value
        for name, value in settings.items()
        if name not in (*EXECUTION_SETTINGS, *places)
    }


def outcome_device_kind(settings: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """What kind of device a run was trained on: cpu, cuda, mps; as its environment says, or else
    its settings.
    """
    devices = environment.get("devices")
    written = devices if isinstance(devices, list) else []
    kinds = {str(device.get("type", "")) for device in written if isinstance(device, Mapping)}
    if kinds - {""}:
        return ", ".join(sorted(kinds - {""}))
    wanted = str(settings.get("devices") or settings.get("training.device", "cpu"))
    return wanted.partition(",")[0].partition(":")[0]


def dotted_settings(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A table of settings, tables within it too, by dotted names: {"method": {"mu": 1}} is
    {"method.mu": 1}.
    """
    dotted: dict[str, Any] = {}
    for key, value in toml_values(table).items():
        if isinstance(value, dict):
            dotted |= dotted_settings(value, f"{prefix}{key}.")
        else:
            dotted[f"{prefix}{key}"] = value
    return dotted
