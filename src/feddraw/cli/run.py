"""`feddraw run`: one experiment, one line per round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Argument, Option

from feddraw.cli.options import DataOption, DevicesOption, MethodOption, ScenarioOption
from feddraw.cli.progress_bars import progress_bars
from feddraw.cli.terminal import console, metric_text, table
from feddraw.errors import RunFailed, UserError
from feddraw.text import safe_line

if TYPE_CHECKING:
    from feddraw.core import Update
    from feddraw.experiment.run_preparation import PreparedRun
    from feddraw.experiment.settings import Experiment
    from feddraw.results.round_log import EvaluatedRound


def run(
    file: Annotated[
        Path | None,
        Argument(
            help="Experiment file (TOML). Options below override its settings.", show_default=False
        ),
    ] = None,
    preset: Annotated[
        str | None, Option(help="Settings to start from: laptop (default) or paper.")
    ] = None,
    data: Annotated[str | None, DataOption] = None,
    scenario: Annotated[str | None, ScenarioOption] = None,
    method: Annotated[str | None, MethodOption] = None,
    model: Annotated[
        str | None, Option(help="Network: compact, densenet121, or package.module:function.")
    ] = None,
    size: Annotated[int | None, Option(help="Height and width of the images in pixels.")] = None,
    rounds: Annotated[int | None, Option(help="Number of rounds, T.")] = None,
    epochs: Annotated[int | None, Option(help="Local epochs per round, E.")] = None,
    batch_size: Annotated[int | None, Option(help="Images per batch.")] = None,
    lr: Annotated[float | None, Option(help="Local learning rate.")] = None,
    seed: Annotated[
        int | None, Option(help="Seed of the initial model and the batch order.")
    ] = None,
    partition_seed: Annotated[
        int | None, Option(help="Seed of the split between clients (default: --seed).")
    ] = None,
    scale: Annotated[
        float | None, Option(help="Number of images relative to the paper's scenario (1 = all).")
    ] = None,
    engine: Annotated[
        str | None,
        Option(help="Where clients train: serial, processes, flower, or package.module:function."),
    ] = None,
    workers: Annotated[
        int | None,
        Option(
            help="Worker processes (default: one per core, or as many as the GPUs' memory holds)."
        ),
    ] = None,
    devices: Annotated[str | None, DevicesOption] = None,
    out: Annotated[
        Path | None, Option(help="Folder for the results (default: runs/SCENARIO-METHOD-SEED).")
    ] = None,
    note: Annotated[
        str | None, Option(help="A note on this run, recorded with it and shown in reports.")
    ] = None,
    tag: Annotated[
        list[str] | None, Option(help="A word to find the run by in reports (repeatable).")
    ] = None,
    set_: Annotated[
        list[str] | None,
        Option("--set", help="KEY=VALUE: change any setting, e.g. method.beta_max=2 (repeatable)."),
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Continue a run that was stopped.")] = False,
    trust: Annotated[
        bool, Option("--trust", help="Allow code that the experiment file names.")
    ] = False,
) -> None:
    """Train one federation and write its results to a folder."""
    typed = {
        "data": data,
        "scenario": scenario,
        "method": method,
        "model": model,
        "data.size": size,
        "rounds": rounds,
        "training.epochs": epochs,
        "training.batch_size": batch_size,
        "training.lr": lr,
        "seed": seed,
        "partition_seed": partition_seed,
        "scenario.scale": scale,
        "engine": engine,
        "workers": workers,
        "devices": devices,
        "about.note": note,
        "about.tags": ", ".join(tag) if tag else None,
    }
    if not resume and out is not None and out.is_dir() and any(out.iterdir()):
        raise UserError(
            f"{out} is already used: choose another folder with --out, or continue with --resume"
        )
    say = console()
    with say.status("starting") if say.is_terminal else nullcontext():
        from feddraw.experiment.completion import complete_settings
        from feddraw.experiment.settings import parse_settings
        from feddraw.results.find_runs import run_folder_by_name

        changes = {
            name: value for name, value in typed.items() if value is not None
        } | parse_settings(set_ or [])
        start = starting_experiment(file, preset, out if resume else None, trust)
        experiment = complete_settings(start.with_settings(changes))
    scenario, method = (experiment.section(part)[0] for part in ("scenario", "method"))
    folder = out or run_folder_by_name(scenario, method, experiment.seed, resume=resume)
    if resume and not (folder.is_dir() and any(folder.iterdir())):
        say.print(f"nothing to resume in {folder}: a new run starts", markup=False)
    run_and_show(experiment, folder, resume=resume)
    show_test_metrics(folder)


def starting_experiment(
    file: Path | None, preset: str | None, resumed: Path | None, trust: bool
) -> Experiment:
    """Where the settings start from: a file, the folder that is resumed, or a preset."""
    from feddraw.experiment.settings import Experiment
    from feddraw.results.run_folder import RunFolder

    if file is not None and preset is not None:
        raise UserError("give an experiment file or a preset, not both")
    if file is not None and file.suffix == ".npz":
        raise UserError(
            f"{file} holds data, not an experiment: give it with --data {quote(str(file))}"
        )
    if file is not None and file.suffix in (".csv", ".gz", ".tsv"):
        raise UserError(
            f"{file} holds data, not an experiment: feddraw init {quote(str(file))} writes one"
        )
    if file is not None:
        return _read_experiment(file, trust=trust)
    settings = RunFolder(resumed).settings if resumed is not None else None
    if preset is None and settings is not None and settings.is_file():
        return Experiment.read(settings, trust=trust)
    return Experiment.preset(preset or "laptop")


def _read_experiment(file: Path, *, trust: bool) -> Experiment:
    """The experiment of a file; a study's file is refused with the command that runs it."""
    from feddraw.experiment.settings import Experiment
    from feddraw.system.file_reading import read_toml

    try:
        return Experiment.read(file, trust=trust)
    except UserError as mistake:
        values = read_toml(file).values()
        if not any(isinstance(value, list) for value in values):
            raise
        raise UserError(
            f"{mistake}; a file with lists of values is a study: feddraw study {file}"
        ) from None


def run_and_show(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    dataset: Any = None,
    show_splits: bool = True,
) -> None:
    """Run an experiment and show how it goes; `show_splits` is False where an earlier run has
    shown the images of the same splits.
    """
    from feddraw.experiment import running
    from feddraw.results.run_folder import RunFolder

    if resume and RunFolder(folder).metrics.is_file():
        list(running.iterate(experiment, folder, resume=True))  # refuses other settings
        console().print(f"{folder} is already finished")
        return
    with run_display(experiment) as (shown, on_round):
        if not show_splits:
            del shown["on_setup"]
        try:
            for result in running.iterate(
                experiment, folder, resume=resume, dataset=dataset, **shown
            ):
                on_round(result)
        except RunFailed as failure:
            files = RunFolder(folder)
            if not files.settings.is_file():  # it failed before it had a folder
                raise
            finished = f"finished rounds are in {folder}"
            if not files.checkpoint.is_file():
                finished = "no round is finished"
            raise RunFailed(f"{failure}; {finished}: continue with --resume") from None


@contextmanager
def run_display(
    experiment: Experiment,
) -> Iterator[tuple[dict[str, Any], Callable[[EvaluatedRound], None]]]:
    """A bar for the steps, a line for every round: what `iterate` calls meanwhile, and what to do
    with its rounds.
    """
    from feddraw.core.capabilities import why_not_averaged
    from feddraw.data.synthetic import is_synthetic
    from feddraw.experiment.settings import make_method

    out = console()
    averaged = not why_not_averaged(make_method(experiment))
    name, scenario, method = (
        experiment.section(part)[0] for part in ("data", "scenario", "method")
    )
    note = " (synthetic)" if is_synthetic(name) else ""
    extent = (
        f"rounds 0 to {experiment.rounds - 1}" if experiment.rounds > 1 else "one round, number 0"
    )
    out.print(f"{method} on {scenario}, {name}{note}, {extent}, seed {experiment.seed}")
    with progress_bars(out, announced=False) as shown:
        shown.show("run", "starting", 0, 0)
        prepared: list[str] = []
        now = {"loss": "", "area": ""}

        def on_progress(what: str, ready: int, total: int) -> None:
            if not what.startswith("round "):  # images
                shown.show(what, f"data: {what}", ready, total, f"{ready:,} of {total:,}")
                prepared.append(what)
                return
            for key in (*prepared, "run"):
                shown.done(key)
            shown.show("training", what, ready, total, now["loss"] + now["area"])

        def on_update(round: int, update: Update) -> None:
            now["loss"] = f"loss {update.metrics.get('loss', math.nan):.4f}"

        def on_round(result: EvaluatedRound) -> None:
            now["area"] = f", validation AUC {metric_text(result.metrics.validation.auc.macro)}"
            shown.line(round_line(result, averaged=averaged))

        yield (
            {
                "progress": on_progress,
                "on_update": on_update,
                "on_setup": partial(print_run_splits, out),
            },
            on_round,
        )


def round_line(result: EvaluatedRound, *, averaged: bool = True) -> str:
    """What a round gave, in one line; rounds are counted from 0, as in the ledger. Weights by which
    no models were averaged are left out.
    """
    weights = list(result.weights.values())
    shares = " ".join(f"{name} {weight:.3f}" for name, weight in result.weights.items())
    if len(weights) > 8:
        shares = f"{len(weights)} clients, {min(weights):.4f} to {max(weights):.4f}"
    if any("weight" in entry.hidden for entry in result.ledger):
        shares = f"{len(weights)} clients, weights hidden"
    if weights and not averaged:
        shares = "no models averaged"
    area = result.metrics.validation.auc.macro
    numbers = (
        f"loss {metric_text(result.loss)}  validation AUC {metric_text(area)} "
        f" {shares or 'no client counted'}"
    )
    trouble = [f"{entry.client} {entry.status}" for entry in result.ledger if entry.noteworthy]
    trouble += [f"diverged: {result.diverged}"] if result.diverged else []
    return safe_line(
        f"round {result.round:>3}  {numbers}" + (f"  [{'; '.join(trouble)}]" if trouble else "")
    )


def print_run_splits(out: Console, setup: PreparedRun) -> None:
    """How many images of each split have each label, and what gives the scores, before anything
    is trained.
    """
    from feddraw.core.classifier_layer import classifier_in_words
    from feddraw.data.finding_counts import (
        dealt_in_words,
        few_in_words,
        findings_per_split,
        split_counts_in_words,
        too_few_for_auc,
    )

    words = setup.experiment.task.words.labels
    splits = findings_per_split(setup.dataset)
    findings = setup.dataset.findings
    marked = {name for place, name in enumerate(findings) if too_few_for_auc(splits["test"], place)}
    rows = [["all images", *(f"{split['images']:,}" for split in splits.values())]]
    for place, name in enumerate(findings):
        cells = [split_counts_in_words(split, place, words) for split in splits.values()]
        rows.append([f"{name} †" if name in marked else name, *cells])
    out.print(table([words.counts_header, *splits], rows))
    if dealt := dealt_in_words(splits["train"]["images"], int(setup.partition.sizes.sum())):
        out.print(dealt)
    if marked:
        out.print(f"† {few_in_words(words)}")
    for sentence in setup.class_notes():
        out.print(f"note: {safe_line(sentence)}", markup=False)
    layout = setup.initial.layout
    frozen = f", {len(layout.frozen)} of its tensors frozen" if layout.frozen else ""
    network = f"network: {layout.length('param'):,} parameters{frozen}; classifier: "
    out.print(network + classifier_in_words(layout.classifier, layout.outputs), markup=False)


def show_test_metrics(folder: Path) -> None:
    """The test metrics of a finished run; a finding with few test images is marked."""
    from feddraw.analysis.metrics import macro
    from feddraw.data.finding_counts import few_in_words, too_few_for_auc
    from feddraw.results.recorded_run import read_run
    from feddraw.tasks import task_of_run

    run = read_run(folder)
    task = task_of_run(run)
    labels = task.labels
    compared = [run.metrics.test.of(metric) for metric in labels]
    leading = compared[0]
    findings = run.findings
    split = run.partition.get("splits", {}).get("test")
    marked = {
        name for place, name in enumerate(findings) if split and too_few_for_auc(split, place)
    }
    rows = []
    for name in findings:
        values = [metric_text(metric.per_class[name]) for metric in compared]
        rows.append([f"{name} †" if name in marked else name, *values])
    defined = sum(math.isfinite(area) for area in leading.per_class.values())
    rows.append([f"mean of {defined}", *(metric_text(metric.macro) for metric in compared)])
    if marked and (sound := [name for name in findings if name not in marked]):
        means = [macro(metric.per_class[name] for name in sound) for metric in compared]
        rows.append([f"mean of {len(sound)} without †", *map(metric_text, means)])
    out = console()
    out.print(table(["test", *labels.values()], rows))
    if marked:
        out.print(f"† {few_in_words(task.words.labels)}")
    out.print(f"written to {folder}")
    if run.diverged is not None:
        message = f"diverged in round {run.diverged.round}: {run.diverged.why}"
        if math.isnan(leading.macro):
            raise RunFailed(message)
        out.print(message, markup=False)
