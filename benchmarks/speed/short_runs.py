"""A study of many short runs beside two scripts that carry out half of them each, start-up included
on both sides.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.timing import TimingSession, ratio_of_times, seconds_of
from benchmarks.speed.workloads import CORES
from feddraw.experiment.run_preparation import open_experiment_data
from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment
from feddraw.study.plan import planned_run
from feddraw.study.results_table import ResultTable
from feddraw.study.run_study import run_study
from feddraw.system.workers import Worker

SHORT_RUNS = 40


def measure_short_runs(session: TimingSession) -> dict[str, Any]:
    """Two scripts ÷ a study with two workers."""
    runs = 8 if session.quick else SHORT_RUNS
    ways = {"scripts": _short_runs_as_scripts, "study": _short_runs_as_study}
    works = {name: partial(_seconds_of_short_runs, way, runs) for name, way in ways.items()}
    samples = session.interleave("a study of short runs", works, max(1, session.blocks // 2))
    seconds_per_study = sum(samples["study"]) / len(samples["study"])
    return {
        "title": f"{runs} runs of two rounds, 240 phantoms at 28 px",
        "two_scripts_over_study": ratio_of_times(samples["scripts"], samples["study"]),
        "seconds_per_run": seconds_per_study / runs * CORES,
    }


def short_experiments(runs: int) -> list[Experiment]:
    short = Experiment(
        data={"name": "phantom", "size": 28, "train": 240, "validation": 80, "test": 80, "seed": 0},
        scenario={"name": "quantity", "clients": 3, "power": 1.0, "scale": 1.0},
        rounds=2,
        engine="serial",
    )
    return [short.with_settings({"seed": seed, "training.batch_size": 32}) for seed in range(runs)]


def _seconds_of_short_runs(
    carry_out: Callable[[Sequence[Experiment], Path], None], runs: int
) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return seconds_of(lambda: carry_out(short_experiments(runs), Path(folder)))


def _short_runs_as_study(experiments: Sequence[Experiment], folder: Path) -> None:
    planned = [
        planned_run(experiment, {"seed": str(experiment.seed)}) for experiment in experiments
    ]
    for _ in run_study(planned, folder, CORES, [ResultTable(folder / "runs.csv")]):
        pass


def _short_runs_as_scripts(experiments: Sequence[Experiment], folder: Path) -> None:
    tables = [experiment.table() for experiment in experiments]
    halves = [tables[half::CORES] for half in range(CORES)]
    scripts = [Worker(_script_of_short_runs, half, str(folder)) for half in halves]
    for script in scripts:
        script.receive()
        script.process.join()


def _script_of_short_runs(pipe: Connection, tables: Sequence[dict[str, Any]], folder: str) -> None:
    """What somebody would write: the data once, then one run after the other."""
    torch.set_num_threads(1)
    dataset = open_experiment_data(Experiment.of(tables[0]))
    for table in tables:
        run(Experiment.of(table), Path(folder) / str(table["seed"]), dataset=dataset)
    pipe.send(True)
