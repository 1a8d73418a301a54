"""`feddraw study`: all combinations of a file's lists, with a table of what is running, done and left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddraw import naming
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.assignments import parse_settings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from feddraw.experiment.preparation import Progress
    from feddraw.experiment.study import Event
    from feddraw.experiment.tally import Tally

Option = typer.Option
SILENCE = 60.0  # seconds after which a file or pipe gets a line, too


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
    from feddraw.experiment.tally import Tally
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
    tally = Tally([planned.name for planned in runs], limited(workers))
    plan = f"{name.replace('runs', 'plan').removesuffix('.csv')}.json"
    follow(partial(conduct, runs, folder, tally.workers, tables, plan=plan), tally)
    say.print(summary(tally))
    if (folder / name).is_file():
        say.print(f"table: {folder / name}")
    if tally.failed:
        raise RunFailed(f"{len(tally.failed)} of {len(runs)} runs failed: start the study again to retry them")


def follow(conducted: Callable[[Progress], Iterator[Event]], tally: Tally) -> None:
    """Carry a study out under a live table in a terminal; elsewhere with a line for every run that ends."""
    from rich.live import Live

    from feddraw.cli.progress import Bars
    from feddraw.cli.show import console

    out = console()
    images = Bars(out)
    prepared: list[str] = []
    lock = threading.Lock()  # the screen is drawn by a thread of its own

    def preparing(what: str, ready: int, total: int) -> None:
        images.show(what, f"data: {what}", ready, total, f"{ready:,} of {total:,}")
        prepared.append(what)

    def screen() -> RenderableType:
        with lock:
            return images.progress if prepared and not tally.running else _table(tally)

    spoken = time.monotonic()
    with Live(console=out, refresh_per_second=2, transient=True, get_renderable=screen, auto_refresh=out.is_terminal):
        for event in conducted(preparing):
            with lock:
                tally.note(event)
            silent = not out.is_terminal and time.monotonic() - spoken > SILENCE
            if event.kind in ("finished", "failed") or silent:
                spoken = time.monotonic()
                out.print(_line(event, tally) if event.kind != "progress" else heading(tally), markup=False)


def heading(tally: Tally) -> str:
    """How it stands, in one line."""
    from feddraw.cli.progress import times

    counts = f"{tally.finished + tally.skipped} done, {len(tally.running)} running, {len(tally.waiting)} left"
    failed = f", {len(tally.failed)} failed" if tally.failed else ""
    return f"{counts}{failed}; {times(tally.elapsed, tally.seconds_left())}"


def summary(tally: Tally) -> str:
    from feddraw.cli.progress import duration

    skipped = f", {tally.skipped} were finished before" if tally.skipped else ""
    return f"{tally.finished} runs finished in {duration(tally.elapsed)}{skipped}"


def _line(event: Event, tally: Tally) -> str:
    if event.kind == "failed":
        return naming.line(f"{event.run}  failed: {event.text}")
    row = event.row or {}
    values = [f"{name} {row[key]:.4f}" for name, key in (("AUC", "auc"), ("GM", "gm")) if row.get(key) is not None]
    return f"{event.run}  {'  '.join(values)}  ({heading(tally)})"


def _table(tally: Tally) -> RenderableType:
    """A line for every run under way, and a bar for all."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar

    from feddraw.cli.progress import clock
    from feddraw.cli.show import table, words

    now = time.monotonic()
    rows = []
    for name, run in list(tally.running.items()):
        left = tally.run_left(name)
        shown = (f"{100 * run.share:.0f} %", clock(now - run.began), "estimating" if left is None else clock(left))
        rows.append([name, run.now, *shown])
    drawn = table(["running", "now", "done", "elapsed", "left"], rows, left=2)
    return Group(drawn, ProgressBar(total=1.0, completed=tally.share, width=60), words(heading(tally)))
