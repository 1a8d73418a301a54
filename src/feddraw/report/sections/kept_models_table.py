"""The models that a run kept on request, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from feddraw.report.blocks import Block, Bullets, Cell, Heading, Paragraph, ReportTable
from feddraw.report.bootstrap_over_patients import (
    PatientBootstrap,
    bootstrap_methods,
    patients_note,
)
from feddraw.report.report_statistics import MeanOverRepeats, Report, mean_over_repeats
from feddraw.report.table_cells import difference_cells, mean_cell
from feddraw.results.recorded_run import UNTESTED, RecordedRun
from feddraw.system.file_reading import number_or_nan
from feddraw.text import slug

KEPT_MODEL_NAMES = {
    "last": "last round",
    "best": "best validation round",
    "tail": "mean of the last rounds",
}


def kept_models_section(report: Report, scenario: str) -> Iterator[Block]:
    rows, notes = [], []
    chosen: dict[str, None] = {}  # what chose each model, each said once
    for method in report.shown:
        kept = [models for run in report.collection.of(scenario, method) if (models := run.models)]
        names = [
            name for name in KEPT_MODEL_NAMES if kept and all(name in models for models in kept)
        ]
        by_name = {name: [replace(models[name], method=name) for models in kept] for name in names}
        every = [run for runs in by_name.values() for run in runs]
        drawn = bootstrap_methods(every, report.replicates if names[1:] else 0)
        rows += [_kept_model_row(method, name, by_name[name], drawn) for name in names]
        for name in names[1:]:
            shown = KEPT_MODEL_NAMES[name].capitalize()
            chosen |= dict.fromkeys(
                f"{shown}: chosen by {run.metrics['chosen_by']}." for run in by_name[name]
            )
        notes += [patients_note(drawn)] if drawn.repeats else []
    if rows:
        yield Heading(f"Which model? {scenario}", 3)
        yield Paragraph(
            "The model of the last round, compared with the models that the run kept (keep.best,"
            " keep.tail). None was chosen with test data. All other tables and figures show the"
            " model of the last round."
        )
        yield Bullets(list(chosen))
        header = [
            "method",
            "model",
            "rounds",
            "validation AUC",
            "test AUC",
            "test AUC − last",
            "95 % CI",
            "test GM",
        ]
        label = f"models-{slug(scenario)}"
        yield ReportTable(
            f"Models of the runs in {scenario}", header, rows, (), " ".join(notes[:1]), label
        )


def _kept_model_row(
    method: str, name: str, runs: Sequence[RecordedRun], draws: PatientBootstrap
) -> list[Cell]:
    """One model of one method, over seeds."""
    about = [run.metrics for run in runs]
    rounds = list(
        dict.fromkeys(_rounds_of_model(one.get("rounds", [one.get("round", 0)])) for one in about)
    )
    validation = MeanOverRepeats.of(
        [number_or_nan(one.get("validation", UNTESTED)["auc"]["macro"]) for one in about]
    )
    change = [Cell(""), Cell("")]
    if name != "last" and {"last", name} <= draws.methods["auc"].keys():
        change = difference_cells(draws.difference("auc", name, "last"), None, 0.0)[:2]
    means = [
        mean_cell(one, len(runs), False) for one in (validation, mean_over_repeats(runs, "auc"))
    ]
    tested = mean_cell(mean_over_repeats(runs, "gm"), len(runs), False)
    return [
        Cell(method),
        Cell(KEPT_MODEL_NAMES[name]),
        Cell(", ".join(rounds)),
        *means,
        *change,
        tested,
    ]


def _rounds_of_model(rounds: Sequence[int]) -> str:
    return f"{rounds[0]} to {rounds[-1]}" if rounds[1:] else str(rounds[0])
