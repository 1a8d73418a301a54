"""`feddraw study`: all combinations of a file's lists, with a table of what is running, done and
left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from feddraw.cli.options import DevicesOption, RunsAtOnceOption
from feddraw.cli.progress_bars import duration_in_words
from feddraw.cli.report import report_significance_level, write_and_show_report
from feddraw.cli.study_progress import follow_study, print_places, study_summary
from feddraw.cli.terminal import console, print_json, print_line, status_line, table
from feddraw.errors import RunFailed, UserError
from feddraw.system.file_reading import read_toml
from feddraw.text import bytes_in_words, safe_line

if TYPE_CHECKING:
    from feddraw.study.plan import PlannedRun
    from feddraw.study.preflight import Preflight
    from feddraw.study.progress import StudyProgress
    from feddraw.study.results_table import ResultTable


def study(
    file: Annotated[
        Path,
        Argument(help="Study file (TOML): an experiment file in which any value may be a list."),
    ],
    out: Annotated[
        Path | None, Option(help="Folder for the results (default: runs/<file name>).")
    ] = None,
    workers: Annotated[int, RunsAtOnceOption] = 0,
    devices: Annotated[str, DevicesOption] = "",
    shard: Annotated[
        str | None, Option(help="i/n: every n-th run, starting with the i-th, for job arrays.")
    ] = None,
    done: Annotated[
        Path | None,
        Option(help="CSV table of finished runs: they are skipped, and new ones are added to it."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            help=(
                "KEY=VALUE: a setting of every run, e.g. data=FILE.npz; CHX-7.KEY=VALUE or"
                " chexpert.KEY=VALUE: of "
                "this scenario or data set only (repeatable)."
            ),
        ),
    ] = None,
    data_chexpert: Annotated[
        Path | None,
        Option(
            help="CheXpert's folder (default: paths.chexpert in the file, or FEDDRAW_CHEXPERT)."
        ),
    ] = None,
    data_chestmnist: Annotated[
        Path | None,
        Option(
            help="ChestMNIST's .npz (default: paths.chestmnist in the file, or FEDDRAW_CHESTMNIST)."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help=(
                "Check the study without running it: open the data, split it between clients, build"
                " the network, time "
                "a few steps. Prints the cost, or every problem. Writes nothing."
            ),
        ),
    ] = False,
    json: Annotated[
        bool, Option("--json", help="With --dry-run: print one JSON document.")
    ] = False,
    keep_going: Annotated[
        bool,
        Option(
            "--keep-going",
            help="Start despite problems, and continue when several runs in a row fail.",
        ),
    ] = False,
    report: Annotated[
        bool, Option("--report", help="Write the report when all runs have ended.")
    ] = False,
    pdf: Annotated[
        bool, Option("--pdf", help="Also the PDF of its tables in the paper's form; needs TeX.")
    ] = False,
    trust: Annotated[bool, Option("--trust", help="Allow code that the study file names.")] = False,
) -> None:
    """Run every combination of a file's lists.

    Finished runs are skipped: stop and start again as you like.
    """
    if workers < 0:
        raise UserError(f"--workers must be zero (one per core) or more, not {workers}")
    from feddraw.experiment.device_placement import places_for_runs
    from feddraw.experiment.settings import parse_settings
    from feddraw.study.plan import read_study, shard_of
    from feddraw.study.progress import StudyProgress
    from feddraw.study.run_study import FAILURE_PATIENCE, PlanOptions, run_study

    if pdf:
        from feddraw.report.paper_tex import tex_program

        tex_program()  # that there is none must not be found out when all runs are done
    if json and not dry_run:
        raise UserError("--json prints what --dry-run finds: give both")
    archives = {"chexpert": data_chexpert, "chestmnist": data_chestmnist}
    paths = {name: str(path) for name, path in archives.items() if path is not None}
    runs = read_study(file, parse_settings(set_ or []), trust=trust, paths=paths)
    folder = out or Path("runs") / file.stem
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder: choose another with --out")
    part = ""
    if shard is not None:
        runs = shard_of(runs, shard)
        part = f"-{shard.replace('/', '-of-')}"
    if dry_run:
        study_dry_run(file, runs, folder, workers, devices, json)
        return
    table_path = folder / f"runs{part}.csv"
    tables = _tables_of_finished_runs(table_path, done)
    say = console()
    say.print(f"{file.stem}: {len(runs)} run{'s' * (len(runs) != 1)} in {folder}")
    if not keep_going:
        listed = {key for results in tables for key in results.rows}
        refuse_study_obstacles([planned for planned in runs if planned.key not in listed], folder)
    places = places_for_runs([planned.experiment for planned in runs], workers, devices)
    print_places(places)
    progress = StudyProgress([planned.name for planned in runs], len(places))
    plan = PlanOptions(f"plan{part}.json")
    patience = 0 if keep_going else FAILURE_PATIENCE
    follow_study(
        partial(run_study, runs, folder, places, tables, plan=plan, patience=patience), progress
    )
    say.print(study_summary(progress))
    if table_path.is_file():
        say.print(f"table: {table_path}")
    if (report or pdf) and progress.finished + progress.skipped:
        preset = str(read_toml(file).get("preset", ""))
        from feddraw.report import ReportSettings

        settings = ReportSettings(alpha=report_significance_level(preset))
        write_and_show_report([folder], settings=settings, pdf=pdf)
    _fail_with_runs(progress)


def _tables_of_finished_runs(own: Path, done: Path | None) -> list[ResultTable]:
    """The study's own, and that of `--done`: a mistyped name would have every run carried out
    again, so a new table is told.
    """
    from feddraw.study.results_table import ResultTable

    if done is None:
        return [ResultTable(own)]
    if not done.exists():
        print_line(f"note: there is no {done} yet: it skips no run, and will have the new ones")
    return [ResultTable(own), ResultTable(done)]


def _fail_with_runs(progress: StudyProgress) -> None:
    """End with an error where runs have failed."""
    from feddraw.study.run_study import FAILURE_PATIENCE

    if progress.left_out:
        cause = list(progress.failed.values())[-1]
        raise RunFailed(
            f"stopped: {FAILURE_PATIENCE} runs in a row failed for the same reason: {cause}."
            f" {len(progress.left_out)} runs were not started; correct the cause, or start them"
            " with --keep-going"
        )
    if progress.failed:
        raise RunFailed(
            f"{len(progress.failed)} of {progress.total} runs failed: correct what is said above,"
            " and start the study again to retry them"
        )


def study_dry_run(
    file: Path, runs: Sequence[PlannedRun], folder: Path, workers: int, devices: str, json: bool
) -> None:
    """Say what the study costs here, or all that is in its way; nothing is prepared or written."""
    from feddraw.study.preflight import preflight

    with status_line("looking", stderr=True) as say:
        report = preflight(runs, folder, workers, devices, say)
    if json:
        print_json(report.table())
    else:
        show_study_preflight(
            f"{file.stem}: {len(runs)} run{'s' * (len(runs) != 1)} in {folder}", report
        )
    if report.obstacles:
        raise UserError(_study_obstacles(report.obstacles))


def refuse_study_obstacles(runs: Sequence[PlannedRun], folder: Path) -> None:
    """Before images are prepared for hours: open the archives, partition every scenario, build the
    network.
    """
    from feddraw.study.plan import is_file_data
    from feddraw.study.preflight import survey_study

    from_files = [planned for planned in runs if is_file_data(planned)]
    with status_line("looking", stderr=True) as say:
        survey = survey_study(from_files, folder, say)
    if survey.obstacles:
        raise UserError(_study_obstacles(survey.obstacle_lines()))


def _study_obstacles(obstacles: Sequence[str]) -> str:
    if len(obstacles) == 1:
        return f"cannot start: {obstacles[0]}"
    lines = [f"- {safe_line(obstacle)}" for obstacle in obstacles]
    return "\n".join([f"cannot start, {len(obstacles)} problems:", *lines])


def show_study_preflight(heading: str, preflight: Preflight) -> None:
    """Data, scenarios, times, disk and memory, each in a line or two."""
    out = console()
    survey = preflight.survey
    finished = f", {len(survey.finished)} finished before" if survey.finished else ""
    out.print(f"{heading}{finished}")
    data = []
    for dataset, preparation in survey.opened.values():
        splits = [f"{len(rows):,}" for rows in dataset.rows.values()]
        on_disk = bytes_in_words(sum(preparation.bytes.values()))
        data.append([dataset.name, *splits, f"{preparation.images:,}", on_disk])
    if data:
        out.print(table(["data", "train", "validation", "test", "to prepare", "on disk"], data))
    scenarios = [
        [name, str(len(sizes)), f"{sum(sizes):,}", _client_sizes_in_words(sizes)]
        for name, sizes in survey.clients.items()
    ]
    if scenarios:
        out.print(table(["scenario", "clients", "images", "by client"], scenarios))
    times = [
        [
            method,
            _short_time(cost.step),
            f"{cost.batch}" if cost.batch else "estimate",
            _short_time(cost.evaluated_image),
        ]
        for method, cost in preflight.timed.items()
    ]
    if times:
        out.print(table(["timed here", "training step", "images timed", "evaluated image"], times))
    if preflight.seconds:
        out.print(_preflight_time(preflight))
        out.print(_preflight_memory(preflight))
    out.print(
        f"disk: {bytes_in_words(preflight.cache_bytes)} of prepared images and features,"
        f" {bytes_in_words(preflight.folder_bytes)} of runs"
    )
    if not preflight.obstacles:
        out.print("no problems found")


def _short_time(seconds: float) -> str:
    """Of a step or an image, in a unit in which it is not zero."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _preflight_time(preflight: Preflight) -> str:
    workers = len(preflight.devices)
    devices = ", ".join(dict.fromkeys(preflight.devices))
    line = (
        f"time: about {duration_in_words(preflight.seconds)} with {workers}"
        f" worker{'s' * (workers > 1)} on {devices}"
    )
    if preflight.preparing > 1:
        line += f", after about {duration_in_words(preflight.preparing)} of preparing images"
    if preflight.features:
        computing = duration_in_words(preflight.computing)
        line += f", after about {computing} for the features of {preflight.features:,} images"
    return line


def _preflight_memory(preflight: Preflight) -> str:
    from feddraw.system.machine import free_memory

    return (
        f"memory: about {preflight.memory / 1e9:.1f} GB for each worker;"
        f" {free_memory() / 1e9:.1f} GB are free"
    )


def _client_sizes_in_words(sizes: Sequence[int]) -> str:
    return ", ".join(f"{count} × {size:,}" for size, count in Counter(sizes).items())
