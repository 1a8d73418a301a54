"""`feddraw study`: all combinations of a file's lists, with a table of what is running, done and left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddraw import naming
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.assignments import parse_settings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.progress import TaskID
    from rich.table import Table

    from feddraw.experiment.preparation import Progress
    from feddraw.experiment.study import Event

Option = typer.Option


def study(
    file: Annotated[
        Path, typer.Argument(help="Study file (TOML): an experiment file in which any value may be a list.")
    ],
    out: Annotated[Path | None, Option(help="Folder for the results (default: runs/<file name>).")] = None,
    workers: Annotated[int, Option(help="Runs at the same time; 0: one per core.")] = 0,
    shard: Annotated[str | None, Option(help="i/n: every n-th run, starting with the i-th, for job arrays.")] = None,
    done: Annotated[
        Path | None, Option(help="CSV table of finished runs: they are skipped, and new ones are added to it.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        Option("--set", help="KEY=VALUE: change a setting of every run, e.g. data=FILE.npz (repeatable)."),
    ] = None,
    trust: Annotated[bool, Option("--trust", help="Allow code that the study file names.")] = False,
) -> None:
    """Run every combination of a file's lists. Finished runs are skipped: stop and start again as you like."""
    if workers < 0:
        raise UserError(f"--workers must be zero (one per core) or more, not {workers}")
    from feddraw.cli.show import console
    from feddraw.experiment.study import ResultTable, conduct, read_study, shard_of
    from feddraw.system.workers import limited

    runs = read_study(file, parse_settings(set_ or []), trust=trust)
    folder = out or Path("runs") / file.stem
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder: choose another with --out")
    name = "runs.csv"
    if shard is not None:
        runs = shard_of(runs, shard)
        name = f"runs-{shard.replace('/', '-of-')}.csv"
    tables = [ResultTable(folder / name), *([ResultTable(done)] if done is not None else [])]
    say = console()
    say.print(f"{file.stem}: {len(runs)} runs in {folder}")
    watch = _Watch(len(runs), limited(workers))
    for event in _shown(partial(conduct, runs, folder, watch.workers, tables), watch):
        watch.note(event)
    say.print(watch.summary())
    if (folder / name).is_file():
        say.print(f"table: {folder / name}")
    if watch.failed:
        raise RunFailed(f"{len(watch.failed)} of {len(runs)} runs failed: start the study again to retry them")


class _Watch:
    """What is running, done and left."""

    def __init__(self, total: int, workers: int) -> None:
        self.total, self.workers = total, workers
        self.finished, self.skipped = 0, 0
        self.failed: dict[str, str] = {}
        self.running: dict[str, tuple[float, str, float]] = {}  # began, what, share done
        self.began = time.monotonic()
        self._busy = 0.0  # seconds that finished runs took

    def note(self, event: Event) -> None:
        began, what, share = self.running.get(event.run, (time.monotonic(), "starting", 0.0))
        if event.kind in ("started", "progress"):
            self.running[event.run] = (began, event.text or what, event.done or share)
            return
        self.running.pop(event.run, None)
        if event.kind == "finished":
            self.finished += 1
            self._busy += time.monotonic() - began
        elif event.kind == "skipped":
            self.skipped += 1
        else:
            self.failed[event.run] = event.text

    @property
    def left(self) -> int:
        return self.total - self.finished - self.skipped - len(self.failed)

    def time_left(self) -> str:
        """From the finished runs' mean; nothing is known before there is one."""
        if not self.finished:
            return "time left unknown until the first run is finished"
        mean = self._busy / self.finished
        work = sum((1 - share) * mean for _, _, share in self.running.values())
        work += (self.left - len(self.running)) * mean
        return f"about {_duration(work / self.workers)} left"

    def heading(self) -> str:
        waiting = self.left - len(self.running)
        counts = f"{self.finished + self.skipped} done, {len(self.running)} running, {waiting} left"
        return counts + (f", {len(self.failed)} failed" if self.failed else "") + f"; {self.time_left()}"

    def summary(self) -> str:
        skipped = f", {self.skipped} were finished before" if self.skipped else ""
        return f"{self.finished} runs finished in {_duration(time.monotonic() - self.began)}{skipped}"


def _shown(conducted: Callable[[Progress], Iterator[Event]], watch: _Watch) -> Iterator[Event]:
    """A live table in a terminal; elsewhere a line for every run that ends."""
    from rich.live import Live

    from feddraw.cli.show import console

    out = console()
    with Live(console=out, auto_refresh=False, transient=True) as live:
        for event in conducted(_preparing(out, live)):
            yield event
            if event.kind in ("finished", "failed"):
                out.print(_line(event, watch))
            if out.is_terminal:
                live.update(_table(watch), refresh=True)


def _preparing(out: Console, live: Live) -> Progress:
    """A bar for each data set whose images are prepared; elsewhere than in a terminal a line."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    bars = Bars(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=out)
    tasks: dict[str, TaskID] = {}

    def report_progress(what: str, ready: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(f"data: {what}", total=total)
            if not out.is_terminal:
                out.print(f"data: {what}", markup=False)
        bars.update(tasks[what], completed=ready, total=total)
        if out.is_terminal:
            live.update(bars, refresh=True)

    return report_progress


def _line(event: Event, watch: _Watch) -> str:
    if event.kind == "failed":
        return naming.line(f"{event.run}  failed: {event.text}")
    row = event.row or {}
    values = [f"{name} {row[key]:.4f}" for name, key in (("AUC", "auc"), ("GM", "gm")) if row.get(key) is not None]
    return f"{event.run}  {'  '.join(values)}  ({watch.heading()})"


def _table(watch: _Watch) -> Table:
    from feddraw.cli.show import table

    rows: Sequence[Sequence[str]] = [
        [name, what, f"{100 * share:.0f} %", _duration(time.monotonic() - began)]
        for name, (began, what, share) in watch.running.items()
    ]
    drawn = table(["running", "now", "done", "for"], rows, left=2)
    drawn.caption = watch.heading()
    drawn.caption_justify = "left"
    return drawn


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
