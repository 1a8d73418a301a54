"""`feddraw compare`: FedDRAW, FedAvg, uniform averaging and each client alone on one's own data,
ending in a report.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from feddraw.cli.options import DevicesOption, RunsAtOnceOption
from feddraw.cli.progress_bars import counting_bar, duration_in_words
from feddraw.cli.terminal import console, table
from feddraw.errors import RunFailed, UserError

if TYPE_CHECKING:
    from feddraw.experiment.run_time_estimate import RunTimeEstimate
    from feddraw.study.method_comparison import ComparisonBudget
    from feddraw.study.plan import PlannedRun
    from feddraw.training.devices import WorkerPlace


def compare(
    file: Annotated[Path, Argument(help="Experiment file (TOML), such as feddraw init writes.")],
    minutes: Annotated[
        float, Option(help="Time budget; what does not fit is left out and named. 0: no limit.")
    ] = 0.0,
    seeds: Annotated[
        int, Option(help="Repetitions with different seeds; 0: 5, or one per fold.")
    ] = 0,
    folds: Annotated[
        int, Option(help="Number of cross-validation folds, by patient; 0: keep the data's split.")
    ] = 0,
    out: Annotated[
        Path | None, Option(help="Folder for runs and report (default: runs/<file name>).")
    ] = None,
    workers: Annotated[int, RunsAtOnceOption] = 0,
    devices: Annotated[str, DevicesOption] = "",
    set_: Annotated[
        list[str] | None,
        Option("--set", help="KEY=VALUE: change a setting of every run (repeatable)."),
    ] = None,
    trust: Annotated[
        bool, Option("--trust", help="Allow code that the experiment file names.")
    ] = False,
) -> None:
    """Compare FedDRAW, FedAvg, uniform averaging and each client alone on your data, and write the
    report.

    Prepares the images, times a few training steps, prints how long everything will take, then
    trains. Runs are carried out seed by seed. With --minutes a seed begins only if all its methods
    fit. Type the same command again to continue.
    """
    began = time.monotonic()
    if minutes < 0 or workers < 0:
        raise UserError("--minutes and --workers must be zero or more")
    from feddraw.cli.report import write_and_show_report
    from feddraw.cli.study_progress import follow_study, print_places, study_summary
    from feddraw.experiment.device_placement import places_for_runs
    from feddraw.experiment.settings import Experiment, parse_settings
    from feddraw.study.method_comparison import (
        ComparisonBudget,
        comparison_runs,
        comparison_seeds_in_words,
    )
    from feddraw.study.plan import unfinished_runs
    from feddraw.study.progress import StudyProgress
    from feddraw.study.results_table import ResultTable
    from feddraw.study.run_study import run_study

    experiment = Experiment.read(file, trust=trust).with_settings(parse_settings(set_ or []))
    runs = comparison_runs(experiment, seeds=seeds, folds=folds)
    folder = out or Path("runs") / file.stem
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder: choose another with --out")
    say = console()
    say.print(f"{file.stem}: {len(runs)} runs in {folder}")
    rest = unfinished_runs(runs, folder)
    places = places_for_runs([planned.experiment for planned in rest or runs], workers, devices)[
        : max(1, len(rest))
    ]
    at_once = len(places)
    print_places(places)
    expected = _estimate_comparison(rest, places)
    budget = ComparisonBudget(
        60 * minutes or float("inf"), rest, expected, at_once, lambda: time.monotonic() - began
    )
    chosen = _announce_comparison(budget, minutes) if rest else []
    tally = StudyProgress([planned.name for planned in chosen], at_once, expected)
    tables = [ResultTable(folder / "runs.csv")]
    doubtful = {planned.name for planned in rest} - {planned.name for planned in chosen}
    late: set[str] = set()

    def admit(planned: PlannedRun) -> bool:
        fits = budget.admits(planned, tally)
        late.update(() if fits else {planned.name})
        return fits

    follow_study(
        partial(run_study, runs, folder, places, tables, admit=admit, doubtful=doubtful), tally
    )
    say.print(study_summary(tally))
    again = "type the command again to continue"
    if slow := [planned for planned in rest if planned.name in late]:
        say.print(f"not run within {minutes:g} min: {comparison_seeds_in_words(slow)}; {again}")
    if given_up := [planned for planned in rest if planned.name in {*tally.left_out} - late]:
        say.print(
            "not started, because several runs in a row failed:"
            f" {comparison_seeds_in_words(given_up)}; {again}"
        )
    if tally.finished + tally.skipped:
        command = f"feddraw compare {quote(str(file))}"
        write_and_show_report([folder], title=f"Comparison on {file.stem}", command=command)
    if tally.failed:
        raise RunFailed(
            f"{len(tally.failed)} of {len(runs)} runs failed: type the command again to retry them"
        )


def _estimate_comparison(
    runs: Sequence[PlannedRun], workers: Sequence[WorkerPlace]
) -> dict[str, float]:
    """Prepare the images under a bar of their own, then time a few steps; seconds by run."""
    if not runs:
        return {}
    from feddraw.study.method_comparison import comparison_estimates
    from feddraw.study.plan import method_of
    from feddraw.study.run_study import prepare_study_data

    say = console()
    with counting_bar(say) as report_progress:
        unusable = prepare_study_data(runs, report_progress)
    if unusable:
        raise UserError(next(iter(unusable.values())))
    with say.status("timing a few training steps of each method"):
        found = comparison_estimates(runs, workers)
    _show_estimates(found)
    return {planned.name: found[method_of(planned)].whole for planned in runs}


def _show_estimates(found: Mapping[str, RunTimeEstimate]) -> None:
    rows = [
        [
            method,
            f"{1000 * one.step:.0f} ms",
            f"{1000 * one.evaluated_image:.1f} ms",
            duration_in_words(one.whole),
        ]
        for method, one in found.items()
    ]
    console().print(
        table(["timed here", "training step", "evaluated image", "one run, about"], rows)
    )


def _announce_comparison(budget: ComparisonBudget, minutes: float) -> list[PlannedRun]:
    """What will be carried out and how long it will take; what the budget has no room for."""
    from feddraw.study.method_comparison import comparison_seeds_in_words
    from feddraw.study.progress import StudyProgress

    say, chosen = console(), budget.chosen()
    everything = StudyProgress([], budget.workers, budget.expected)
    whole = everything.seconds_left([planned.name for planned in budget.runs]) or 0.0
    if not chosen:
        shortest = duration_in_words(min(budget.expected.values()))
        raise UserError(
            f"one run takes about {shortest}: give more --minutes, or fewer rounds with --set"
            " rounds=…"
        )
    planned = everything.seconds_left([one.name for one in chosen]) or 0.0
    several = (
        f"{len(chosen)} run{'s' * (len(chosen) > 1)} on {budget.workers}"
        f" worker{'s' * (budget.workers > 1)}"
    )
    say.print(f"{several}: about {duration_in_words(planned)}")
    out = [one for one in budget.runs if one not in chosen]
    if out:
        everything_takes = f"all would take {duration_in_words(whole)}"
        say.print(
            f"left out, does not fit into {minutes:g} min: {comparison_seeds_in_words(out)}"
            f" ({everything_takes})"
        )
    if minutes:
        say.print(
            "order: seed by seed, the methods as listed; times are estimated again before each run"
        )
    elif planned > 3600:
        say.print("to limit the time, add --minutes 60: only runs that fit into an hour start")
    return chosen
