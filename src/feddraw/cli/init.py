"""`feddraw init`: an experiment file for your own data."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from feddraw.cli.terminal import console, print_line, table
from feddraw.errors import UserError

if TYPE_CHECKING:
    from feddraw.experiment.init_own_data import FirstRun
    from feddraw.experiment.inspect_own_data import InspectedData

SurveyedPaths = Annotated[
    list[Path],
    Argument(help="One or more CSVs with image paths and labels, or a folder of images."),
]
ImagesFolder = Annotated[
    str, Option(help="Folder that the paths in the table start from.", show_default=False)
]
ExperimentFile = Annotated[
    Path | None, Option(help="Experiment file to write (default: NAME.toml in this folder).")
]


ClassColumnName = Annotated[
    str,
    Option(
        help="Column that names the one class of each image (default: as the table looks).",
        show_default=False,
    ),
]


def init(
    paths: SurveyedPaths,
    images: ImagesFolder = "",
    class_column: ClassColumnName = "",
    out: ExperimentFile = None,
) -> None:
    """Inspect tables or a folder of images and write a commented experiment file for them."""
    from feddraw.experiment.init_own_data import experiment_file_text, plan_first_run
    from feddraw.experiment.inspect_own_data import inspect_data
    from feddraw.system.file_writing import write_whole

    name = (
        paths[0].resolve().name.removesuffix(".gz").removesuffix(".csv")
        if len(paths) == 1
        else "sites"
    )
    target = out or Path(f"{name}.toml")
    if target.suffix != ".toml":
        raise UserError(f"an experiment file ends with .toml: --out {target.with_suffix('.toml')}")
    if not target.parent.is_dir():
        raise UserError(f"cannot write {target}: there is no folder {target.parent}")
    inspected = inspect_data(paths, target, images, class_column)
    for file in [target, *(inspected.sheets if inspected.written else [])]:
        if file.exists():
            raise UserError(f"{file} already exists: choose another name with --out, or delete it")
    chosen = plan_first_run(inspected)
    print_init_survey(inspected, chosen)
    if inspected.written:
        write_whole(inspected.sheets[0], inspected.written.encode())
    options = {"--images": images, "--class-column": class_column, "--out": str(out or "")}
    typed = [*map(str, paths), *(word for pair in options.items() if pair[1] for word in pair)]
    command = f"feddraw init {' '.join(map(quote, typed))}"
    shown = quote(str(target))
    run_one = f"feddraw run {shown}"
    compare_methods = f"feddraw compare {shown}"
    if inspected.unusable_rows:
        # The file keeps skip_bad = false: that rows are left out is a decision to take knowingly.
        run_one = f"feddraw run {shown} --set data.skip_bad=true"
        compare_methods = f"feddraw compare {shown} --set data.skip_bad=true"
    text = experiment_file_text(inspected, chosen, command, run_one)
    write_whole(target, text.encode())
    written = [*(inspected.sheets if inspected.written else []), target]
    print_line(
        f"wrote {' and '.join(map(str, written))}: read {target}, then run  {run_one}  or "
        f" {compare_methods}"
    )


def print_init_survey(inspected: InspectedData, chosen: FirstRun) -> None:
    """What was found, how it is read, and what is odd about it."""
    from feddraw.data.image_facts import differences_in_words, facts_table
    from feddraw.data.label_table import describe_row_problems
    from feddraw.experiment.init_own_data import clients_in_words

    out = console()
    out.print(
        table(
            ["what", "column"],
            # most tables need no groups, and lack none
            [
                [kind, name or "none found"]
                for kind, name in inspected.columns.items()
                if name or kind != "group"
            ],
            left=2,
        )
    )
    header = [
        "finding",
        "positive",
        "negative",
        "unknown: blank",
        "unknown: uncertain",
        "unknown: no column",
    ]
    shown = len(header) - (len(inspected.sheets) == 1)
    rows = [
        [name, *(f"{count:,}" for count in counts.values())]
        for name, counts in inspected.marks().items()
    ]
    if not inspected.class_column:
        out.print(table(header[:shown], [row[:shown] for row in rows]))
    out.print(inspected.task_in_words())
    if inspected.images is not None:
        out.print(f"images: {inspected.images}")
    header = ["images of", "opened", "files", "pixels", "colour"]
    out.print(table(header, facts_table(inspected.facts), left=5))
    for sentence in differences_in_words(inspected.facts):
        out.print(f"note: {sentence}")
    for guess in inspected.guesses:
        out.print(f"note: {guess}")
    for sentence in inspected.label_notes():
        out.print(f"note: {sentence}")
    rows = [["all images", *(f"{count:,}" for count in inspected.sizes())]]
    rows += [
        [name, *(f"{count:,}" for count in counts)]
        for name, counts in inspected.positives().items()
    ]
    out.print(table(["images with", "train", "validation", "test"], rows))
    out.print(f"clients: {clients_in_words(inspected, chosen)}")
    for sentence in inspected.class_notes():
        out.print(f"note: {sentence}")
    for sentence in inspected.split_notes():
        out.print(f"note: {sentence}")
    if not inspected.columns["patient"]:
        setting = "" if inspected.written else " (data.patient_column)"
        out.print(
            f"note: no column with patients was found{setting}: each image counts as a patient of"
            " its own, so images of one patient may be in training and in test"
        )
    for note in inspected.table.notes:
        out.print(f"note: {note}")
    if problems := inspected.unusable_rows:
        total = len(inspected.table.labels) + len(inspected.table.problems)
        unusable = describe_row_problems(inspected.sheets[0].name, problems, total)
        first = "; of rows with one path the first counts" if inspected.has_duplicates else ""
        out.print(f"note: {unusable}; data.skip_bad leaves them out{first}")
    if inspected.tried < inspected.files:
        out.print(
            f"note: {inspected.tried:,} of {inspected.files:,} images were opened; the first run"
            " names any other that cannot be read"
        )
