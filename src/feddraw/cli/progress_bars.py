"""Bars that always show how long something has taken and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from feddraw.cli.terminal import console
from feddraw.system.time_left import seconds_left
from feddraw.text import safe_line

if TYPE_CHECKING:
    from feddraw.data.dataset import Dataset


# Is told what is counted, how much is ready, and of how much.
Counter = Callable[[str, int, int], None]
SILENT_SECONDS = 60.0  # seconds after which a file or pipe gets a line, too


def as_clock(seconds: float) -> str:
    """As h:mm:ss."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def duration_in_words(seconds: float) -> str:
    """In words, as exactly as an estimate deserves."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def elapsed_and_left(elapsed: float, left: float | None) -> str:
    """Elapsed and remaining time, whatever is known."""
    rest = "estimating" if left is None else f"{as_clock(left)} left"
    return f"{as_clock(elapsed)} elapsed, {rest}"


class TimesColumn(ProgressColumn):
    """Elapsed and remaining time of a bar."""

    def render(self, task: Task) -> Text:
        return Text(bar_times(task), style="progress.remaining")


def bar_times(task: Task) -> str:
    """Elapsed and remaining; what was done before this start does not make it look faster."""
    first: float = task.fields.get("first", 0.0)
    elapsed = task.elapsed or 0.0
    left = seconds_left(elapsed, task.completed - first, (task.total or 0.0) - first)
    return elapsed_and_left(elapsed, left)


class ProgressBars:
    """One bar per thing that is done; outside a terminal a line when it begins, and one after a
    silent minute.
    """

    def __init__(self, out: Console, *, announced: bool = True) -> None:
        self.out = out
        self._announced = announced
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimesColumn(),
            console=out,
            transient=True,
            refresh_per_second=4,
            disable=not out.is_terminal,
        )
        self._tasks: dict[str, Any] = {}
        self._last_line = time.monotonic()

    def show(
        self, key: str, what: str, ready: float, total: float, note: str | None = None
    ) -> None:
        """Move the bar of this key, and make it where there is none."""
        if key not in self._tasks:
            self._tasks[key] = self.progress.add_task(
                safe_line(what), total=total, note=note or "", first=ready
            )
            if self._announced and not self.out.is_terminal:
                self.line(what)
        task = self._tasks[key]
        self.progress.update(task, description=safe_line(what), completed=ready, total=total)
        if note is not None:
            self.progress.update(task, note=safe_line(note))
        if not self.out.is_terminal and time.monotonic() - self._last_line > SILENT_SECONDS:
            shown = next(bar for bar in self.progress.tasks if bar.id == task)
            self.line(f"{what}, {bar_times(shown)}")

    def done(self, key: str) -> None:
        """The bar of this key goes away."""
        if key in self._tasks:
            self.progress.remove_task(self._tasks.pop(key))

    def line(self, words: str) -> None:
        """A line above the bars."""
        self._last_line = time.monotonic()
        self.out.print(safe_line(words), markup=False)


@contextmanager
def progress_bars(out: Console, *, announced: bool = True) -> Iterator[ProgressBars]:
    shown = ProgressBars(out, announced=announced)
    with shown.progress:
        yield shown


@contextmanager
def counting_bar(
    out: Console, prefix: str = "data: ", *, announced: bool = True
) -> Iterator[Counter]:
    """What `progress=` takes, for images that are prepared or scored."""
    with progress_bars(out, announced=announced) as shown:
        yield lambda what, ready, total: shown.show(
            what, f"{prefix}{what}", ready, total, f"{ready:,} of {total:,}"
        )


def open_dataset_with_bar(
    name: str, path: str | None, size: int, set_: list[str] | None, **images: object
) -> Dataset:
    """The data set with a bar while its images are prepared; synthetic ones have no file, and
    nothing to prepare.

    Of an experiment file the data set is that of its [data]; its settings there hold in place of
    `size` and `images`, but for a typed --skip-bad. Settings may be called as in other commands
    (data.blank).
    """
    from feddraw.data.dataset_by_name import open_dataset
    from feddraw.data.synthetic import is_synthetic
    from feddraw.experiment.completion import complete_settings
    from feddraw.experiment.settings import Experiment, parse_settings

    in_file: dict[str, Any] = {}
    if name.endswith(".toml"):
        name, in_file = complete_settings(Experiment.read(Path(name))).dataset_section()
        if images.get("skip_bad"):
            in_file["skip_bad"] = True
    options = {} if is_synthetic(name) or ":" in name else dict(images)
    options |= ({} if path is None else {"path": path}) | in_file
    typed = parse_settings(set_ or [])
    options |= {key.removeprefix("data."): value for key, value in typed.items()}
    side = int(str(options.pop("size", size)))
    with counting_bar(console()) as report_progress:
        return open_dataset(name, size=side, options=options, progress=report_progress)
