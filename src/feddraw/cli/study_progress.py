"""A study as it goes on: a live table in a terminal, lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from feddraw.cli.progress_bars import (
    SILENT_SECONDS,
    ProgressBars,
    as_clock,
    duration_in_words,
    elapsed_and_left,
)
from feddraw.cli.terminal import console, plain_words, table
from feddraw.text import safe_line

if TYPE_CHECKING:
    from feddraw.study.progress import StudyEvent, StudyProgress
    from feddraw.system.progress import Progress
    from feddraw.training.devices import WorkerPlace


def print_places(places: Sequence[WorkerPlace]) -> None:
    """Which device has how many workers, where it is not the processor alone."""
    counts = Counter(place.device for place in places)
    if set(counts) != {"cpu"}:
        workers = ", ".join(f"{count} on {device}" for device, count in counts.items())
        console().print(f"runs at the same time: {workers}")


def follow_study(
    carry_out: Callable[[Progress], Iterator[StudyEvent]], study: StudyProgress
) -> None:
    """Carry a study out under a live table in a terminal; elsewhere with a line for every run that
    ends.
    """
    from rich.live import Live

    out = console()
    images = ProgressBars(out)
    prepared: list[str] = []
    lock = threading.Lock()  # the screen is drawn by a thread of its own

    def preparing(what: str, ready: int, total: int) -> None:
        images.show(what, f"data: {what}", ready, total, f"{ready:,} of {total:,}")
        prepared.append(what)

    def screen() -> RenderableType:
        with lock:
            if prepared and not study.running:
                return images.progress
            return _running_table(study)

    spoken = time.monotonic()
    with Live(
        console=out,
        refresh_per_second=2,
        transient=True,
        get_renderable=screen,
        auto_refresh=out.is_terminal,
    ):
        for event in carry_out(preparing):
            with lock:
                study.note(event)
            if event.kind in ("finished", "failed"):
                line = _ended_run_line(event, study)
            elif not out.is_terminal and time.monotonic() - spoken > SILENT_SECONDS:
                line = study_heading(study)
            else:
                continue
            spoken = time.monotonic()
            out.print(line, markup=False)


def study_heading(study: StudyProgress) -> str:
    """How it stands, in one line."""
    counts = (
        f"{study.finished + study.skipped} done, {len(study.running)} running, {len(study.waiting)}"
        " left"
    )
    failed = f", {len(study.failed)} failed" if study.failed else ""
    return f"{counts}{failed}; {elapsed_and_left(study.elapsed, study.seconds_left())}"


def study_summary(study: StudyProgress) -> str:
    skipped = ""
    if study.skipped:
        skipped = f", {study.skipped} {'was' if study.skipped == 1 else 'were'} finished before"
    runs = "run" if study.finished == 1 else "runs"
    return f"{study.finished} {runs} finished in {duration_in_words(study.elapsed)}{skipped}"


def _ended_run_line(event: StudyEvent, study: StudyProgress) -> str:
    if event.kind == "failed":
        return safe_line(f"{event.run}  failed: {event.text}")
    row = event.row or {}
    values = [
        f"{name} {row[key]:.4f}"
        for name, key in (("AUC", "auc"), ("GM", "gm"), ("balanced accuracy", "balanced_accuracy"))
        if row.get(key) is not None
    ]
    return f"{event.run}  {'  '.join(values)}  ({study_heading(study)})"


def _running_table(study: StudyProgress) -> RenderableType:
    """A line for every run under way, and a bar for all."""
    from rich.progress_bar import ProgressBar

    now = time.monotonic()
    rows = []
    for name, run in list(study.running.items()):
        left = study.run_left(name)
        times = [as_clock(now - run.began), "estimating" if left is None else as_clock(left)]
        rows.append([name, run.now, f"{100 * run.share:.0f} %", *times])
    drawn = table(["running", "now", "done", "elapsed", "left"], rows, left=2)
    return Group(
        drawn,
        ProgressBar(total=1.0, completed=study.share, width=60),
        plain_words(study_heading(study)),
    )
