"""The table of a study: a line for every finished run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.results.recorded_run import damage_told
from feddraw.results.run_folder import RunFolder
from feddraw.study.plan import PlannedRun
from feddraw.system.csv_cells import csv_text
from feddraw.system.file_reading import read_csv, read_json, read_jsonl, read_toml
from feddraw.system.file_writing import make_folder, write_errors_told, write_whole
from feddraw.system.locks import lock_file


def results_row(planned: PlannedRun, out: Path) -> dict[str, Any]:
    """A finished run as a line of the study's table."""
    folder = RunFolder(out / planned.name)
    row = {
        "run": planned.name,
        "key": planned.key,
        **planned.label,
        "seed": planned.experiment.seed,
    }
    with damage_told(folder.path):
        found, rounds = read_json(folder.metrics), read_jsonl(folder.rounds)
        curve = (
            [line["test"]["macro"] for line in rounds]
            if all("test" in line for line in rounds)
            else []
        )
        own = {
            name: one["test"]["auc"]["macro"]
            for name, one in found["clients"].items()
            if "test" in one
        }
        row |= {kind: found["test"][kind]["macro"] for kind in ("auc", "gm")}
        if found.get("diverged"):
            row["diverged"] = found["diverged"]["round"]
        row["validation_auc"] = found["validation"]["auc"]["macro"]
        for kind in ("auc", "gm"):
            row |= {
                f"{kind} {name}": value for name, value in found["test"][kind]["per_class"].items()
            }
        row["auc_by_round"] = " ".join(f"{area:.6f}" for area in curve if area is not None)
        row |= {
            f"auc_of_{name}": one["test"]["auc"]["macro"]
            for name, one in found.get("models", {}).items()
        }
        row |= _results_by_site_and_round(rounds)
        row["auc_by_client"] = " ".join(
            f"{name}={area:.6f}" for name, area in own.items() if area is not None
        )
        row["partition"] = read_toml(folder.settings)["partition"]["sha256"][:16]
        row["seconds"] = round(sum(sum(line["seconds"].values()) for line in rounds), 2)
    return row


def _results_by_site_and_round(rounds: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The test AUC of every round at each site whose images differ: 'C4 0.71 0.72; C1 …'."""
    curves = [line.get("test", {}).get("sites", {}) for line in rounds]
    if not all(curves):
        return {}
    areas = {
        site: [math.nan if one[site] is None else one[site] for one in curves] for site in curves[0]
    }
    words = [" ".join([site, *(f"{area:.6f}" for area in own)]) for site, own in areas.items()]
    return {"auc_by_site_by_round": "; ".join(words)}


class ResultTable:
    """A CSV with a line for every finished run; written whole, so that columns may come later.

    Several studies may share one: rows are added under a lock, to what the file holds at that
    moment.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = _results_by_key(path)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if all(row["key"] in self.rows for row in rows):
            return
        with write_errors_told(self.path):
            make_folder(self.path.parent)
        with lock_file(self.path):
            before = _results_by_key(self.path)
            new = {row["key"]: dict(row) for row in rows if row["key"] not in before}
            again = {
                _dealt_run(row) for row in new.values()
            }  # an earlier version may have given them other keys
            self.rows = {
                key: row for key, row in before.items() if _dealt_run(row) not in again
            } | new
            columns = list(dict.fromkeys(name for row in self.rows.values() for name in row))
            lines = [
                [_result_cell(row.get(name)) for name in columns] for row in self.rows.values()
            ]
            write_whole(self.path, csv_text([columns, *lines]).encode())


def _dealt_run(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row.get("run", row["key"]), row.get("partition")


def _results_by_key(path: Path) -> dict[str, dict[str, Any]]:
    rows = read_csv(path)
    if any("key" not in row for row in rows):
        raise UserError(f"{path} is not a table that a study wrote: it has no column 'key'")
    return {row["key"]: row for row in rows}


def _result_cell(value: Any) -> Any:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else round(value, 6) if isinstance(value, float) else value
