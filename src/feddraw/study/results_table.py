"""The table of a study: a line for every finished run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.results.recorded_run import RecordedRun, read_run
from feddraw.results.round_log import RoundLine
from feddraw.results.run_folder import RunFolder
from feddraw.results.run_reader import damage_told
from feddraw.study.plan import PlannedRun
from feddraw.system.csv_cells import csv_text
from feddraw.system.file_reading import read_csv
from feddraw.system.file_writing import make_folder, write_errors_told, write_whole
from feddraw.system.locks import lock_file
from feddraw.tasks import task_of_run


def results_row(planned: PlannedRun, out: Path) -> dict[str, Any]:
    """A finished run as a line of the study's table."""
    try:
        run = read_run(out / planned.name)
    except UserError as mistake:
        raise UserError(f"{planned.name}: {mistake}") from None
    test = run.metrics.test
    task = task_of_run(run)
    row: dict[str, Any] = {
        "run": planned.name,
        "key": planned.key,
        **planned.label,
        "seed": planned.experiment.seed,
        **{metric: test.of(metric).macro for metric in (*task.metrics, *task.more)},
    }
    if run.diverged is not None:
        row["diverged"] = run.diverged.round
    row["validation_auc"] = run.metrics.validation.auc.macro
    for kind in task.metrics:
        row |= {f"{kind} {name}": value for name, value in test.of(kind).per_class.items()}
    curve = run.curve("test") if all(line.test.evaluated for line in run.rounds) else []
    row["auc_by_round"] = " ".join(f"{area:.6f}" for area in curve if math.isfinite(area))
    row |= {f"auc_of_{name}": model.test.auc.macro for name, model in run.kept.items()}
    row |= _auc_by_site_and_round(run.rounds)
    row["auc_by_client"] = " ".join(_auc_by_client(run))
    with damage_told(RunFolder(run.path).settings):
        row["partition"] = str(run.partition["sha256"])[:16]
    row["seconds"] = round(sum(line.whole_seconds for line in run.rounds), 2)
    return row


def _auc_by_client(run: RecordedRun) -> Iterator[str]:
    """The test AUC of each client's own model, where it has one."""
    for name, client in run.metrics.clients.items():
        if client.test.evaluated and math.isfinite(client.test.auc.macro):
            yield f"{name}={client.test.auc.macro:.6f}"


def _auc_by_site_and_round(rounds: Sequence[RoundLine]) -> dict[str, str]:
    """The test AUC of every round at each site whose images differ: 'C4 0.71 0.72; C1 …'."""
    if not rounds or not all(line.test.sites for line in rounds):
        return {}
    curves = [
        " ".join([site, *(f"{line.test.sites[site]:.6f}" for line in rounds)])
        for site in rounds[0].test.sites
    ]
    return {"auc_by_site_by_round": "; ".join(curves)}


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
            self.rows = before | new
            columns = list(dict.fromkeys(name for row in self.rows.values() for name in row))
            lines = [
                [_result_cell(row.get(name)) for name in columns] for row in self.rows.values()
            ]
            write_whole(self.path, csv_text([columns, *lines]).encode())


def _results_by_key(path: Path) -> dict[str, dict[str, Any]]:
    rows = read_csv(path)
    if any("key" not in row for row in rows):
        raise UserError(f"{path} is not a table that a study wrote: it has no column 'key'")
    return {row["key"]: row for row in rows}


def _result_cell(value: Any) -> Any:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else round(value, 6) if isinstance(value, float) else value
