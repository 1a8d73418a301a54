"""`feddraw data`: prepare the images of a data set once, show them, and clean the cache."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from feddraw.cli.progress_bars import open_dataset_with_bar
from feddraw.cli.terminal import console, print_line, table
from feddraw.errors import not_negative, one_of

if TYPE_CHECKING:
    from feddraw.data.dataset import Dataset

app = typer.Typer(
    name="data",
    no_args_is_help=True,
    help="Prepare the images of a data set once, show them, and clean the cache.",
)

DatasetName = Annotated[
    str,
    Argument(
        help=(
            "Data set: chestmnist, chexpert, nih, folder, phantom, or the path of an .npz, CSV or"
            " experiment file, whose section data goes before --size and --clahe."
        )
    ),
]
DatasetPath = Annotated[
    str | None,
    Argument(
        help="Folder or file of the data set, if it is not where feddraw looks.", show_default=False
    ),
]
ImageSize = Annotated[int, Option(help="Height and width in pixels.")]
Clahe = Annotated[
    bool, Option("--clahe/--no-clahe", help="Equalise contrast (CLAHE) as in the paper.")
]
SkipBad = Annotated[
    bool,
    Option("--skip-bad", help="Leave out images that cannot be used, and list them in a file."),
]
Workers = Annotated[int, Option(help="Processes that prepare images; 0: one per core.")]
DatasetSettings = Annotated[
    list[str] | None,
    Option(
        "--set", help="KEY=VALUE: change a setting of the data set, also as data.KEY (repeatable)."
    ),
]


@app.command("prepare")
def prepare_images(
    name: DatasetName,
    path: DatasetPath = None,
    *,
    size: ImageSize = 224,
    clahe: Clahe = True,
    skip_bad: SkipBad = False,
    workers: Workers = 0,
    settings: DatasetSettings = None,
) -> None:
    """Decode, resize and equalise every image once, into the cache that runs read from.

    The defaults are those of the paper preset: for other runs give their --size, and --no-clahe. A
    stopped preparation continues where it stopped.
    """
    begun = time.perf_counter()
    dataset = open_dataset_with_bar(
        name, path, size, settings, clahe=clahe, skip_bad=skip_bad, workers=workers
    )
    rows = []
    for split, of_split in dataset.rows.items():
        truth = dataset.labels.truth(of_split)
        counts = [len(truth), *(truth == 1).sum(axis=0), (truth == 0).all(axis=1).sum()]
        rows.append([split, *(f"{count:,}" for count in counts)])
    out = console()
    out.print(table(["split", "images", *dataset.findings, "none"], rows))
    seconds = time.perf_counter() - begun
    ready = f"{dataset.name}: {len(dataset.images):,} images of {size} px ready in {seconds:.1f} s"
    out.print(f"{ready}; {where_images_lie(dataset)}")


@app.command("clean")
def clean_cache(
    *,
    images: Annotated[
        bool, Option("--images", help="Delete prepared images too, not only features.")
    ] = False,
    unused: Annotated[
        int, Option(help="Only what nobody has read for so many days; 0: everything.")
    ] = 0,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be deleted.")] = False,
) -> None:
    """Delete features of frozen networks from the cache, with --images prepared images too.

    What is deleted is computed again when a run needs it. Do not delete while runs are under way.
    """
    from feddraw.data.feature_cache import cached_folders, remove_cached_folder
    from feddraw.data.image_cache import cache_folder

    not_negative("--unused", unused)
    before = time.time() - unused * 86400
    chosen = [
        folder
        for folder in cached_folders()
        if (images or folder.kind == "features") and (not unused or folder.used < before)
    ]
    out = console()
    if chosen:
        rows = [[f.path.name, f.kind, f"{f.bytes / 1e6:,.1f} MB"] for f in chosen]
        out.print(table(["entry", "kind", "on disk"], rows))
    if not dry_run:
        for folder in chosen:
            remove_cached_folder(folder)
    freed = f"{sum(folder.bytes for folder in chosen) / 1e6:,.1f} MB"
    what = f"{len(chosen)} entries of {cache_folder()}"
    out.print(f"would delete {what}: {freed}" if dry_run else f"deleted {what}: {freed}")


@app.command("show")
def show_contact_sheet(
    name: DatasetName = "phantom",
    path: DatasetPath = None,
    *,
    size: ImageSize = 64,
    clahe: Clahe = False,
    skip_bad: SkipBad = False,
    workers: Workers = 0,
    settings: DatasetSettings = None,
    split: Annotated[str, Option(help="Split to show: train, validation or test.")] = "train",
    rows: Annotated[int, Option(help="Rows of images.")] = 4,
    columns: Annotated[int, Option(help="Images per row.")] = 8,
    out: Annotated[Path, Option(help="Picture to write (.png, .pdf or .svg).")] = Path(
        "contact-sheet.png"
    ),
) -> None:
    """Draw a contact sheet: images as training sees them, with their findings."""
    from dataclasses import replace

    from feddraw.data.dataset import SPLITS

    one_of("--split", split, SPLITS)
    one_of("the ending of --out", out.suffix, (".png", ".pdf", ".svg"))
    dataset = open_dataset_with_bar(
        name, path, size, settings, clahe=clahe, skip_bad=skip_bad, workers=workers
    )
    from feddraw.analysis.plots import save_figure
    from feddraw.data.contact_sheet import contact_sheet, varied_examples

    of_split = {str(name): found for name, found in dataset.rows.items()}[split]
    chosen = of_split[varied_examples(dataset.labels.values[of_split], rows * columns)]
    images = dataset.images[chosen]
    labels = dataset.labels.take(chosen)
    shown = replace(dataset, name=f"{dataset.name}, {split}", images=images, labels=labels)
    replaced = out.exists()
    save_figure(contact_sheet(shown, rows, columns), out)
    print_line(
        f"written to {out}, in place of an earlier file" if replaced else f"written to {out}"
    )


def where_images_lie(dataset: Dataset) -> str:
    file = getattr(dataset.images, "filename", None)
    return f"in {Path(file).parent}" if file else "in memory"
