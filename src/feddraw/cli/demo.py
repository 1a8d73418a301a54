"""`feddraw demo`: FedDRAW, FedAvg and uniform averaging on built-in phantoms, in under two
minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from feddraw.cli.progress_bars import counting_bar
from feddraw.cli.terminal import console, table
from feddraw.errors import UserError

DEMO_METHODS = ("feddraw", "fedavg", "uniform")
DEMO_SETTINGS = {"scenario.scale": 0.02, "rounds": 10}


def demo(
    out: Annotated[Path, Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    seed: Annotated[int, Option(help="Random seed.")] = 0,
    resume: Annotated[bool, Option("--resume", help="Continue a demo that was stopped.")] = False,
) -> None:
    """Train FedDRAW, FedAvg and uniform averaging on synthetic radiographs and compare them."""
    if out.is_dir() and any(out.iterdir()) and not resume:
        raise UserError(
            f"{out} is already used: choose another folder with --out, or continue with --resume"
        )
    from feddraw.cli.run import run_and_show
    from feddraw.experiment.run_preparation import open_experiment_data
    from feddraw.experiment.settings import Experiment
    from feddraw.report import write_report
    from feddraw.report.cells import method_above_others
    from feddraw.results.recorded_run import METRICS

    say = console()
    say.print(
        "Phantom radiographs are synthetic: they show how the methods behave, not how well they"
        " diagnose."
    )
    base = Experiment().with_settings({**DEMO_SETTINGS, "seed": seed})
    with counting_bar(say) as report_progress:
        dataset = open_experiment_data(base, report_progress)
    folders = [out / method for method in DEMO_METHODS]
    for method, folder in zip(DEMO_METHODS, folders, strict=True):
        run_and_show(
            base.with_settings({"method": method}),
            folder,
            resume=resume,
            dataset=dataset,
            show_splits=method == DEMO_METHODS[0],
        )
    title = "FedDRAW, FedAvg and uniform averaging on phantoms"
    say.print("writing the report")
    written = write_report([out], title=title, command=f"feddraw demo --seed {seed}")
    values_by_method = {
        run.method: [run.test(metric) for metric in METRICS]
        for run in written.report.collection.runs
    }
    best = [
        method_above_others(dict(zip(values_by_method, column, strict=True)))
        for column in zip(*values_by_method.values(), strict=True)
    ]
    rows = []
    for method, values in values_by_method.items():
        cells = [
            f"{value:.4f}{'*' * (method == highest)}"
            for value, highest in zip(values, best, strict=True)
        ]
        rows.append([method, *cells])
    say.print("\nTest metrics after the last round")
    say.print(table(["method", *METRICS.values()], rows))
    say.print("* best in this column; one run per method, so small differences mean nothing")
    say.print(f"report: {written.page}")
