"""`feddraw demo`: FedDRAW beside FedAvg and uniform averaging on built-in phantoms, in under two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feddraw.errors import UserError

METHODS = ("feddraw", "fedavg", "uniform")
SETTINGS = {"scenario.scale": 0.02, "rounds": 10}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a demo that was stopped.")] = False,
) -> None:
    """Train FedDRAW, FedAvg and uniform averaging on synthetic radiographs and compare them."""
    if out.is_dir() and any(out.iterdir()) and not resume:
        raise UserError(f"{out} is already used: choose another folder with --out, or go on with --resume")
    from feddraw.cli.run import carry_out
    from feddraw.cli.show import console, table
    from feddraw.experiment import Experiment, open_data
    from feddraw.report import read_run, table_of, write_report

    say = console()
    say.print("Phantom radiographs are synthetic: they show how the methods behave, not how well they diagnose.")
    base = Experiment().with_settings({**SETTINGS, "seed": seed})
    dataset = open_data(base)
    folders = [out / method for method in METHODS]
    for method, folder in zip(METHODS, folders, strict=True):
        carry_out(base.with_settings({"method": method}), folder, resume=resume, dataset=dataset)
    header, *rows = table_of([read_run(folder) for folder in folders])
    say.print("\nTest metrics after the last round")
    say.print(table(header[:3], [row[:3] for row in rows]))
    say.print("* best of the column; one run each, so a small difference means nothing")
    page = out / "report.html"
    write_report(
        folders, page, title="FedDRAW, FedAvg and uniform averaging on phantoms", command=f"feddraw demo --seed {seed}"
    )
    say.print(f"report: {page}")
