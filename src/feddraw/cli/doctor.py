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

CHECK_MARKS = {"ok": "ok", "note": "note", "broken": "BROKEN"}


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
    """Examine torch, devices, disk and versions within two minutes; exit code 1 if something is
    broken.

    Compares each GPU with the processor and with itself, measures images per second with one and
    several workers, and says how to start a study and what it would cost here, and what the paper's
    matrix would cost.
    """
    if seconds < 10:
        raise UserError(f"--seconds must be at least 10, not {seconds:g}")
    from feddraw.doctor.examination import examine_machine
    from feddraw.doctor.study_cost import paper_runs_to_cost
    from feddraw.study.plan import read_study

    studies = {"studies/paper.toml": paper_runs_to_cost()}
    if study is not None:
        studies = {
            study.name: [planned.experiment for planned in read_study(study, trust=trust)]
        } | studies
    with status_line("starting", stderr=True) as say:
        found = examine_machine(devices, studies, seconds=seconds, say=say)
    if json:
        print_json(found.table())
        raise typer.Exit(1 if found.broken else 0)
    _show_examination(found)
    if found.broken:
        raise RunFailed(
            f"{len(found.broken)} broken: {', '.join(check.what for check in found.broken)}"
        )


def _show_examination(found: MachineExamination) -> None:
    say = console()
    checks = [[one.what, CHECK_MARKS[one.state], one.said] for one in found.checks]
    say.print(table(["what", "", "found"], checks, left=3))
    rows = []
    for speed in found.speeds:
        numbers = [
            str(speed.workers),
            str(speed.batch),
            f"{speed.train:,.1f}",
            f"{speed.test:,.1f}",
        ]
        reckoned = "unknown" if speed.reckoned is None else f"{speed.reckoned / 1e9:.1f} GB"
        rows.append(
            [speed.device, speed.task.title, *numbers, f"{speed.memory / 1e9:.1f} GB", reckoned]
        )
    columns = [
        "images per second",
        "network",
        "workers",
        "batch",
        "training",
        "testing",
        "memory",
        "at batches of 64",
    ]
    if rows:
        say.print(table(columns, rows, left=2))
    for name, one in found.costs.items():
        way = one.table()["options"]
        counted = one.runs - one.uncounted
        text = f"{name}: {one.runs} run{'s' * (one.runs > 1)}, fastest here with {way}"
        if counted:
            of_them = "" if not one.uncounted else f" for {counted} of them"
            text += (
                f"; about {_hours_or_days(one.seconds)}{of_them}, the longest run"
                f" {_hours_or_days(one.longest)}"
            )
        if one.uncounted:
            text += (
                "; the rest depends on data that are not here: feddraw compare estimates it for"
                " your data"
            )
        say.print(text)
    say.print(f"examined in {found.seconds:.0f} s")


def _hours_or_days(seconds: float) -> str:
    return duration_in_words(seconds) if seconds < 100 * 3600 else f"{seconds / 86_400:,.0f} days"
