"""Before `feddraw study`: what it would cost here (--dry-run), and whether something is in its way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from feddraw import naming
from feddraw.cli.progress_bars import duration_in_words
from feddraw.cli.terminal import console, print_json, status_line, table
from feddraw.errors import UserError

if TYPE_CHECKING:
    from feddraw.study.plan import PlannedRun
    from feddraw.study.preflight import Preflight


def study_dry_run(file: Path, runs: Sequence[PlannedRun], folder: Path, workers: int, devices: str, json: bool) -> None:
    """Say what the study costs here, or all that is in its way; nothing is prepared or written."""
    from feddraw.study.preflight import preflight

    with status_line("looking", stderr=True) as say:
        found = preflight(runs, folder, workers, devices, say)
    if json:
        print_json(found.table())
    else:
        show_study_preflight(f"{file.stem}: {len(runs)} runs in {folder}", found)
    if found.obstacles:
        raise UserError(_obstacles_in_words(found.obstacles))


def require_no_obstacle(runs: Sequence[PlannedRun], folder: Path) -> None:
    """Before images are prepared for hours: open the archives, deal every scenario, build the network."""
    from feddraw.study.plan import is_file_data
    from feddraw.study.preflight import survey_study

    there = [planned for planned in runs if is_file_data(planned)]
    with status_line("looking", stderr=True) as say:
        found = survey_study(there, folder, say)
    if found.obstacles:
        raise UserError(_obstacles_in_words(found.said()))


def _obstacles_in_words(found: Sequence[str]) -> str:
    if len(found) == 1:
        return f"in the way: {found[0]}"
    return "\n".join([f"{len(found)} things are in the way:", *(f"- {naming.safe_line(one)}" for one in found)])


def show_study_preflight(heading: str, found: Preflight) -> None:
    """Data, scenarios, times, disk and memory, each in a line or two."""
    from feddraw.study.preflight import free_memory

    out, survey = console(), found.survey
    finished = f", {len(survey.finished)} finished before" if survey.finished else ""
    out.print(f"{heading}{finished}")
    sets = []
    for dataset, look in survey.looks.values():
        splits = [f"{len(rows):,}" for rows in dataset.rows.values()]
        sets.append([dataset.name, *splits, f"{look.images:,}", f"{sum(look.bytes.values()) / 1e9:.1f} GB"])
    if sets:
        out.print(table(["data", "train", "validation", "test", "to prepare", "on disk"], sets))
    sizes = [[name, str(len(of)), f"{sum(of):,}", _client_sizes_in_words(of)] for name, of in survey.clients.items()]
    if sizes:
        out.print(table(["scenario", "clients", "images", "by client"], sizes))
    times = [
        [name, f"{one.step:.2f} s", f"{one.batch}" if one.batch else "reckoned", f"{1000 * one.evaluated_image:.1f} ms"]
        for name, one in found.timed.items()
    ]
    if times:
        out.print(table(["timed here", "training step", "images timed", "evaluated image"], times))
    kinds = dict.fromkeys(found.devices)
    at_once = f"{len(found.devices)} worker{'s' * (len(found.devices) > 1)} on {', '.join(kinds)}"
    if found.seconds:
        needed, preparing = duration_in_words(found.seconds), duration_in_words(found.preparing)
        before = f", after about {preparing} of preparing images" if found.preparing > 1 else ""
        out.print(f"time: about {needed} with {at_once}{before}")
        free = f"{free_memory() / 1e9:.1f} GB are free"
        out.print(f"memory: about {found.memory / 1e9:.1f} GB for each worker; {free}")
    out.print(f"disk: {found.cache_bytes / 1e9:.1f} GB of prepared images, {found.folder_bytes / 1e9:.1f} GB of runs")
    if not found.obstacles:
        out.print("nothing is in the way")


def _client_sizes_in_words(sizes: Sequence[int]) -> str:
    return ", ".join(f"{count} × {size:,}" for size, count in Counter(sizes).items())
