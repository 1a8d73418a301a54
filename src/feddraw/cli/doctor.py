"""`feddraw doctor`: is this machine fit to train on, how fast is it, what would a study
cost here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from feddraw.cli.progress_bars import duration_in_words
from feddraw.cli.terminal import console, print_json, status_line, table
from feddraw.errors import RunFailed, UserError

if TYPE_CHECKING:
    from feddraw.doctor.examination import MachineExamination
    from feddraw.doctor.study_start import DeviceSpeed, StudyCost

CHECK_MARKS = {"ok": "ok", "note": "note", "broken": "BROKEN"}
SPEED_COLUMNS = [
    "images per second",
    "network",
    "workers",
    "batch",
    "training",
    "testing",
    "memory",
    "at batches of 64",
]


def doctor(
    study: Annotated[
        Path | None,
        Argument(
            help="Study or experiment file (TOML) to estimate the cost of.", show_default=False
        ),
    ] = None,
    devices: Annotated[
        str,
        Option(
            help="Devices to try beside the processor: cuda:0,cuda:1 or all (default: every GPU)."
        ),
    ] = "",
    seconds: Annotated[
        float, Option(help="Time for everything; what does not fit is named.")
    ] = 100.0,
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
    trust: Annotated[bool, Option("--trust", help="Allow code that the study file names.")] = False,
) -> None:
    """Examine torch, devices, disk and versions; exit code 1 if something is broken.

    Compares each GPU with the processor and with itself, measures images per second with one and
    several workers, and says how to start a study and what it would cost here, and what the paper's
    matrix would cost.
    """
    if seconds < 10:
        raise UserError(f"--seconds must be at least 10, not {seconds:g}")
    from feddraw.doctor.examination import examine_machine
    from feddraw.doctor.study_start import paper_runs
    from feddraw.study.plan import read_study

    studies = {}
    if study is not None:
        runs = read_study(study, trust=trust)
        studies[study.name] = [planned.experiment for planned in runs]
    studies["studies/paper.toml"] = paper_runs()
    with status_line("starting", stderr=True) as say:
        examination = examine_machine(devices, studies, seconds=seconds, say=say)
    broken = [check.what for check in examination.broken]
    if json:
        print_json(examination.table())
        raise typer.Exit(1 if broken else 0)
    _show_examination(examination)
    if broken:
        raise RunFailed(f"{len(broken)} broken: {', '.join(broken)}")


def _show_examination(examination: MachineExamination) -> None:
    out = console()
    checks = [[check.what, CHECK_MARKS[check.state], check.said] for check in examination.checks]
    out.print(table(["what", "", "found"], checks, left=3))
    if examination.speeds:
        out.print(table(SPEED_COLUMNS, list(map(_speed_row, examination.speeds)), left=2))
    for name, cost in examination.costs.items():
        out.print(_cost_line(name, cost))
    out.print(f"examined in {examination.seconds:.0f} s")


def _speed_row(speed: DeviceSpeed) -> list[str]:
    return [
        speed.device,
        speed.task.title,
        str(speed.workers),
        str(speed.cost.batch),
        f"{speed.train:,.1f}",
        f"{speed.test:,.1f}",
        f"{speed.cost.timed_memory / 1e9:.1f} GB",
        "unknown" if speed.reckoned is None else f"{speed.reckoned / 1e9:.1f} GB",
    ]


def _cost_line(name: str, cost: StudyCost) -> str:
    line = f"{name}: {cost.runs} run{'s' * (cost.runs > 1)}, fastest here with {cost.options}"
    counted = cost.runs - cost.uncounted
    if counted:
        some = f" for {counted} of them" if cost.uncounted else ""
        line += (
            f"; about {_hours_or_days(cost.seconds)}{some}, the longest run"
            f" {_hours_or_days(cost.longest)}"
        )
    if cost.uncounted:
        line += (
            "; the rest depends on data that are not here: feddraw compare estimates it for your"
            " data"
        )
    return line


def _hours_or_days(seconds: float) -> str:
    return duration_in_words(seconds) if seconds < 100 * 3600 else f"{seconds / 86_400:,.0f} days"
