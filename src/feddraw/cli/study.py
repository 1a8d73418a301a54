"""`feddraw study`: all combinations of a file's lists, with a table of what is running, done and left."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from feddraw.cli.report import significance_level, write_and_show_report
from feddraw.cli.run import DevicesOption, RunsAtOnceOption
from feddraw.cli.study_preflight import require_no_obstacle, study_dry_run
from feddraw.cli.study_progress import follow_study, print_places, study_summary
from feddraw.cli.terminal import console
from feddraw.errors import RunFailed, UserError
from feddraw.system.file_reading import read_toml


def study(
    file: Annotated[Path, Argument(help="Study file (TOML): an experiment file in which any value may be a list.")],
    out: Annotated[Path | None, Option(help="Folder for the results (default: runs/<file name>).")] = None,
    workers: Annotated[int, RunsAtOnceOption] = 0,
    devices: Annotated[str, DevicesOption] = "",
    shard: Annotated[str | None, Option(help="i/n: every n-th run, starting with the i-th, for job arrays.")] = None,
    done: Annotated[
        Path | None, Option(help="CSV table of finished runs: they are skipped, and new ones are added to it.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            help="KEY=VALUE: a setting of every run, e.g. data=FILE.npz; CHX-7.KEY=VALUE or chexpert.KEY=VALUE: of "
            "this scenario or data set only (repeatable).",
        ),
    ] = None,
    data_chexpert: Annotated[
        Path | None, Option(help="CheXpert's folder (else [paths] of the file, or FEDDRAW_CHEXPERT).")
    ] = None,
    data_chestmnist: Annotated[
        Path | None, Option(help="ChestMNIST's .npz (else [paths] of the file, or FEDDRAW_CHESTMNIST).")
    ] = None,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Open the data, deal the scenarios, build the network, time a few steps; print the cost or every "
            "obstacle. Nothing is prepared or written.",
        ),
    ] = False,
    json: Annotated[bool, Option("--json", help="With --dry-run: print one JSON document.")] = False,
    keep_going: Annotated[
        bool, Option("--keep-going", help="Begin runs despite obstacles, and go on when run after run fails.")
    ] = False,
    report: Annotated[bool, Option("--report", help="Write the report when all runs have ended.")] = False,
    pdf: Annotated[bool, Option("--pdf", help="Also the PDF of its tables in the paper's form; needs TeX.")] = False,
    trust: Annotated[bool, Option("--trust", help="Allow code that the study file names.")] = False,
) -> None:
    """Run every combination of a file's lists. Finished runs are skipped: stop and start again as you like."""
    if workers < 0:
        raise UserError(f"--workers must be zero (one per core) or more, not {workers}")
    from feddraw.experiment.device_placement import places_for_runs
    from feddraw.experiment.settings import parse_settings
    from feddraw.study.plan import read_study, shard_of
    from feddraw.study.progress import StudyProgress
    from feddraw.study.results_table import ResultTable
    from feddraw.study.run_study import FAILURE_PATIENCE, run_study

    if pdf:
        from feddraw.report.paper_tex import tex_program

        tex_program()  # that there is none must not be found out when all runs are done
    if json and not dry_run:
        raise UserError("--json prints what --dry-run finds: give both")
    given = {"chexpert": data_chexpert, "chestmnist": data_chestmnist}
    paths = {name: str(place) for name, place in given.items() if place is not None}
    runs = read_study(file, parse_settings(set_ or []), trust=trust, paths=paths)
    folder = out or Path("runs") / file.stem
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder: choose another with --out")
    name = "runs.csv"
    if shard is not None:
        runs = shard_of(runs, shard)
        name = f"runs-{shard.replace('/', '-of-')}.csv"
    if dry_run:
        study_dry_run(file, runs, folder, workers, devices, json)
        return
    tables = [ResultTable(folder / name), *([ResultTable(done)] if done is not None else [])]
    say = console()
    say.print(f"{file.stem}: {len(runs)} runs in {folder}")
    if not keep_going:
        require_no_obstacle([planned for planned in runs if all(planned.key not in t.rows for t in tables)], folder)
    places = places_for_runs([planned.experiment for planned in runs], workers, devices)
    print_places(places)
    tally = StudyProgress([planned.name for planned in runs], len(places))
    plan = f"{name.replace('runs', 'plan').removesuffix('.csv')}.json"
    patience = 0 if keep_going else FAILURE_PATIENCE
    follow_study(partial(run_study, runs, folder, places, tables, plan=plan, patience=patience), tally)
    say.print(study_summary(tally))
    if (folder / name).is_file():
        say.print(f"table: {folder / name}")
    if (report or pdf) and tally.finished + tally.skipped:
        preset = str(read_toml(file).get("preset", ""))
        write_and_show_report([folder], alpha=significance_level(preset), pdf=pdf)
    if tally.left_out:
        cause = list(tally.failed.values())[-1]
        raise RunFailed(
            f"stopped: {FAILURE_PATIENCE} runs in a row failed for the same cause, {len(tally.left_out)} were not "
            f"begun (--keep-going begins them): {cause}"
        )
    if tally.failed:
        raise RunFailed(f"{len(tally.failed)} of {len(runs)} runs failed: start the study again to retry them")
