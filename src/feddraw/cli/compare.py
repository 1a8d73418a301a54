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
from feddraw.cli.run import starting_experiment
from feddraw.cli.terminal import console, table
from feddraw.errors import RunFailed, UserError
from feddraw.text import safe_line

if TYPE_CHECKING:
    from feddraw.study.cost import RunEstimate
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
    contribution: Annotated[
        bool,
        Option("--contribution", help="Also measure what each site contributed to each method."),
    ] = False,
    trust: Annotated[
        bool, Option("--trust", help="Allow code that the experiment file names.")
    ] = False,
) -> None:
    """Compare FedDRAW, FedAvg, uniform averaging and each client alone on your data.

    Prepares the images, times a few training steps, prints how long everything will take, then
    trains. Runs are carried out seed by seed. With --minutes a seed begins only if all its methods
    fit, and is then finished; only seeds that all methods have are compared. Type the same command
    again to continue.
    """
    began = time.monotonic()
    folder = out or Path("runs") / file.stem
    _check_file_and_folder(file, folder)
    if minutes < 0 or workers < 0:
        raise UserError("--minutes and --workers must be zero or more")
    from feddraw.cli.study_progress import follow_study, print_places, study_summary
    from feddraw.experiment.device_placement import places_for_runs
    from feddraw.experiment.settings import parse_settings
    from feddraw.study.method_comparison import ComparisonBudget, comparison_runs
    from feddraw.study.plan import unfinished_runs
    from feddraw.study.progress import StudyProgress
    from feddraw.study.results_table import ResultTable
    from feddraw.study.run_study import PlanOptions, run_study

    start = starting_experiment(file, None, None, trust)
    asked = {"keep.updates": True} if contribution else {}
    experiment = start.with_settings(asked | parse_settings(set_ or []))
    runs = comparison_runs(experiment, seeds=seeds, folds=folds)
    console().print(f"{file.stem}: {len(runs)} run{'s' * (len(runs) != 1)} in {folder}")
    rest = unfinished_runs(runs, folder)
    placed = places_for_runs([planned.experiment for planned in rest or runs], workers, devices)
    places = placed[: max(1, len(rest))]
    print_places(places)
    estimates = _estimate_comparison(rest, places)
    expected = {name: estimate.seconds for name, estimate in estimates.items()}
    budget = ComparisonBudget(
        seconds=60 * minutes or float("inf"),
        runs=rest,
        expected=expected,
        workers=len(places),
        clock=lambda: time.monotonic() - began,
    )
    chosen = budget.chosen()
    if rest and not chosen:
        _say_that_nothing_fits(budget, estimates, minutes, begun=len(rest) < len(runs))
    elif rest:
        _announce_comparison(budget, chosen, minutes)
    progress = StudyProgress([planned.name for planned in chosen], len(places), expected)
    tables = [ResultTable(folder / "runs.csv")]
    doubtful = {planned.name for planned in rest} - {planned.name for planned in chosen}
    plan = PlanOptions(doubtful=doubtful)
    late: set[str] = set()

    def admit(planned: PlannedRun) -> bool:
        fits = budget.admits(planned, progress)
        if not fits:
            late.add(planned.name)
        return fits

    follow_study(partial(run_study, runs, folder, places, tables, admit=admit, plan=plan), progress)
    console().print(study_summary(progress))
    not_run = [planned for planned in rest if planned.name in progress.left_out]
    _say_what_is_left([planned for planned in not_run if planned.name in late], minutes)
    _say_what_was_given_up([planned for planned in not_run if planned.name not in late])
    if progress.finished + progress.skipped:
        _write_report(file, folder, runs if contribution else [], trust)
    if progress.failed:
        raise RunFailed(
            f"{len(progress.failed)} of {len(runs)} runs failed: type the command again to retry"
            " them"
        )


def _write_report(file: Path, folder: Path, measured: Sequence[PlannedRun], trust: bool) -> None:
    """The report of all runs, after the contributions to those that are to be measured."""
    from feddraw.cli.report import write_and_show_report

    _measure_contributions(measured, folder, trust)
    command = f"feddraw compare {quote(str(file))}"
    write_and_show_report([folder], title=f"Comparison on {file.stem}", command=command)


def _measure_contributions(runs: Sequence[PlannedRun], folder: Path, trust: bool) -> None:
    """Of every finished run that kept its updates; what fails at one is said, and the others go
    on.
    """
    from feddraw.experiment.contribution import Effort, measure_contributions
    from feddraw.experiment.recombination import ContributionOptions
    from feddraw.results.run_folder import RunFolder

    paths = [
        folder / planned.name
        for planned in runs
        if planned.experiment.keep.updates and RunFolder(folder / planned.name).metrics.is_file()
    ]
    if not paths:
        return
    with counting_bar(console(stderr=True), prefix="contributions: ") as show_progress:
        for number, path in enumerate(paths):
            show_progress("runs", number, len(paths))
            try:
                measure_contributions([path], ContributionOptions(), Effort(), trust=trust)
            except UserError as error:
                console().print(safe_line(f"no contributions of {path}: {error}"))
        show_progress("runs", len(paths), len(paths))


def _check_file_and_folder(file: Path, folder: Path) -> None:
    """Refuse a table in the place of an experiment, and a folder that is something else's."""
    from feddraw.results.find_runs import is_run_folder

    if file.suffix in (".csv", ".gz", ".tsv"):
        raise UserError(
            f"{file} holds data, not an experiment: feddraw init {quote(str(file))} writes one"
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder: choose another with --out")
    if folder.is_dir() and is_run_folder([entry.name for entry in folder.iterdir()]):
        raise UserError(
            f"{folder} is the folder of a run, and a comparison has many: choose another with --out"
        )


def _say_what_is_left(late: Sequence[PlannedRun], minutes: float) -> None:
    from feddraw.study.method_comparison import comparison_seeds_in_words

    if late:
        runs = comparison_seeds_in_words(late)
        console().print(
            f"not run within {minutes:g} min: {runs}; type the command again to continue"
        )


def _say_what_was_given_up(runs: Sequence[PlannedRun]) -> None:
    from feddraw.study.method_comparison import comparison_seeds_in_words

    if runs:
        console().print(
            "not started, because several runs in a row failed:"
            f" {comparison_seeds_in_words(runs)}; type the command again to continue"
        )


def _estimate_comparison(
    runs: Sequence[PlannedRun], places: Sequence[WorkerPlace]
) -> dict[str, RunEstimate]:
    """Prepare the images under a bar of their own, then time a few steps; estimates by run."""
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
        estimates = comparison_estimates(runs, places)
    _show_estimates(estimates)
    # A reference may have other clients than the methods, and seeds deal other ones: the first run
    # has those of the experiment file.
    for note in next(iter(estimates.values())).notes:
        say.print(f"note: {safe_line(note)}", markup=False)
    return {planned.name: estimates[method_of(planned)] for planned in runs}


def _show_estimates(estimates: Mapping[str, RunEstimate]) -> None:
    columns = ["timed here", "training step", "evaluated image", "one run, about"]
    rows = [
        [
            method,
            f"{1000 * estimate.cost.step:.0f} ms",
            f"{1000 * estimate.cost.evaluated_image:.1f} ms",
            duration_in_words(estimate.seconds),
        ]
        for method, estimate in estimates.items()
    ]
    console().print(table(columns, rows))


def _say_that_nothing_fits(
    budget: ComparisonBudget, estimates: Mapping[str, RunEstimate], minutes: float, *, begun: bool
) -> None:
    """How long one seed takes, and what would make it fit; the end, unless runs were finished
    before and can be reported.
    """
    from feddraw.study.method_comparison import what_would_fit

    runs = budget.next_seed()
    message = (
        f"nothing fits into {minutes:g} min: preparing and timing took"
        f" {duration_in_words(budget.clock())}, the {len(runs)} runs of seed"
        f" {runs[0].experiment.seed} take about {duration_in_words(_seconds_of(budget, runs))}, and"
        " a seed begins only if all of it fits. This would do: "
        + "; ".join(what_would_fit(budget, estimates))
    )
    if not begun:
        raise UserError(message)
    console().print(message)


def _seconds_of(budget: ComparisonBudget, runs: Sequence[PlannedRun]) -> float:
    """Until all of these are done."""
    from feddraw.system.time_left import seconds_until_all_done

    each = [budget.expected[planned.name] for planned in runs]
    return seconds_until_all_done([], each, budget.workers)


def _announce_comparison(
    budget: ComparisonBudget, chosen: Sequence[PlannedRun], minutes: float
) -> None:
    """What will be carried out and how long it will take; what the budget has no room for."""
    from feddraw.study.method_comparison import comparison_seeds_in_words

    say = console()
    seconds = _seconds_of(budget, chosen)
    several = (
        f"{len(chosen)} run{'s' * (len(chosen) > 1)} on {budget.workers}"
        f" worker{'s' * (budget.workers > 1)}"
    )
    say.print(f"{several}: about {duration_in_words(seconds)}")
    left_out = [planned for planned in budget.runs if planned not in chosen]
    if left_out:
        say.print(
            f"left out, does not fit into {minutes:g} min: {comparison_seeds_in_words(left_out)}"
            f" (all would take {duration_in_words(_seconds_of(budget, budget.runs))})"
        )
    if minutes:
        say.print(
            "order: seed by seed, the methods as listed; a seed begins only if all of it fits,"
            " estimated again from the time that runs really took"
        )
    elif seconds > 3600:
        say.print("to limit the time, add --minutes 60: only seeds that fit into an hour start")
