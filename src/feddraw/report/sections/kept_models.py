"""The models that a run kept on request, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from feddraw.report.blocks import Block, Bullets, Cell, Heading, Paragraph, ReportTable
from feddraw.report.cells import difference_cells, mean_cell
from feddraw.report.patients import PatientBootstrap, bootstrap_methods, note_on_patients
from feddraw.report.runs import RecordedRun, choice_of_model, rounds_of_model, validation_auc
from feddraw.report.statistics import MeanOverRepeats, Report, mean_over_repeats
from feddraw.text import slug

MODEL_NAMES = {
    "last": "last round",
    "best": "best validation round",
    "tail": "mean of the last rounds",
}


def section(report: Report, scenario: str) -> Iterator[Block]:
    rows: list[list[Cell]] = []
    choices: dict[str, None] = {}  # what chose each model, each stated once
    notes: list[str] = []
    for method in report.shown:
        by_model = _runs_by_model(report.paired_runs(scenario, method))
        if not by_model:
            continue
        labelled = [replace(run, method=model) for model, runs in by_model.items() for run in runs]
        draws = bootstrap_methods(labelled, report.settings.replicates if len(by_model) > 1 else 0)
        for model, runs in by_model.items():
            rows.append([Cell(method), *_row(model, runs, draws, list(report.metrics)[1:])])
            if model != "last":
                name = MODEL_NAMES[model].capitalize()
                choices |= {f"{name}: chosen by {choice_of_model(run)}.": None for run in runs}
        if draws.repeats:
            notes.append(note_on_patients(draws))
    if not rows:
        return
    yield Heading(f"Which model? {scenario}", 3)
    yield Paragraph(
        "The model of the last round, compared with the models that the run kept (keep.best,"
        " keep.tail). None was chosen with test data. All other tables and figures show the"
        " model of the last round."
    )
    yield Bullets(list(choices))
    yield ReportTable(
        caption=f"Models of the runs in {scenario}",
        header=[
            "method",
            "model",
            "rounds",
            "validation AUC",
            "test AUC",
            "test AUC − last",
            "95 % CI",
            *(f"test {label}" for label in list(report.metrics.values())[1:]),
        ],
        rows=rows,
        note=notes[0] if notes else "",
        label=f"models-{slug(scenario)}",
    )


def _runs_by_model(runs: Sequence[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """Of the runs that kept models: by model that all of them have, each run as that model's."""
    kept = [models for run in runs if (models := run.models)]
    return {
        model: [models[model] for models in kept]
        for model in MODEL_NAMES
        if kept and all(model in models for models in kept)
    }


def _row(
    model: str, runs: Sequence[RecordedRun], draws: PatientBootstrap, metrics: Sequence[str]
) -> list[Cell]:
    """One model of one method, over seeds; `metrics` are those beside the AUC."""
    rounds = dict.fromkeys(_rounds_in_words(rounds_of_model(run)) for run in runs)
    validation = MeanOverRepeats.of([validation_auc(run) for run in runs])
    change = [Cell(""), Cell("")]
    if model != "last" and {"last", model} <= draws.by_metric["auc"].by_method.keys():
        change = difference_cells(draws.difference("auc", model, "last"))
    return [
        Cell(MODEL_NAMES[model]),
        Cell(", ".join(rounds)),
        mean_cell(validation, most_repeats=len(runs)),
        mean_cell(mean_over_repeats(runs, "auc"), most_repeats=len(runs)),
        *change,
        *(mean_cell(mean_over_repeats(runs, other), most_repeats=len(runs)) for other in metrics),
    ]


def _rounds_in_words(rounds: Sequence[int]) -> str:
    return f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else str(rounds[0])
