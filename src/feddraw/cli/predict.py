"""`feddraw predict`: scores and calls of a run's model for new images."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from feddraw.cli.options import KeptModelOption
from feddraw.cli.progress_bars import counting_bar
from feddraw.cli.terminal import console
from feddraw.errors import RunFailed, UserError
from feddraw.text import safe_text

SHOWN_IMAGES = 10  # without a score, or with a doubtful one, that are named one by one


def predict(
    run: Annotated[Path, Argument(help="The folder of a finished run.", metavar="RUN")],
    images: Annotated[
        list[Path],
        Argument(
            help="PNG, JPEG or DICOM files, folders of them, or a CSV with a column of paths.",
            metavar="IMAGES…",
        ),
    ],
    model: Annotated[str, KeptModelOption] = "last",
    out: Annotated[Path | None, Option(help="The CSV to write (default: standard output).")] = None,
    root: Annotated[
        Path | None, Option(help="The folder that a table's paths start from (default: its own).")
    ] = None,
    column: Annotated[
        str, Option(help="The table's column of paths (default: found by name or content).")
    ] = "",
    workers: Annotated[int, Option(help="Processes that decode and score; 0 is one per core.")] = 0,
    strict: Annotated[
        bool,
        Option("--strict", help="Give no scores to images that are unlike the training images."),
    ] = False,
    trust: Annotated[
        bool, Option("--trust", help="Allow code that the run's experiment.toml names.")
    ] = False,
) -> None:
    """Score new images with a run's model, prepared as in its training.

    The CSV has one row per image: for each finding the probability and the call (1 or 0) at the
    run's threshold. An image that cannot be read is named, its row says why, the others are done,
    and the exit code is 1. The row of an image that is unlike those of the training (another
    modality, colour, inverted, empty, other grey levels) says so beside its scores, or with
    --strict in place of them.

    Research software, not a medical device.
    """
    from feddraw.experiment.prediction import find_images_to_predict, predict_images
    from feddraw.system.file_writing import require_writable_place, write_whole

    to_predict = find_images_to_predict(images, root, column)
    if out is not None:
        read = {path.resolve() for path in images}
        read |= {image.path.resolve() for image in to_predict if image.path is not None}
        if out.resolve() in read:
            raise UserError(f"{out} is read, so the scores cannot be written to it (--out)")
        require_writable_place(out)
    begun = time.perf_counter()
    with counting_bar(console(stderr=True), prefix="") as report_progress:
        done = predict_images(
            run,
            to_predict,
            model,
            trust=trust,
            strict=strict,
            workers=workers,
            progress=report_progress,
        )
    seconds = time.perf_counter() - begun
    if out is None:
        table = done.csv()
        # a terminal would obey what the name of a file holds; a pipe gets the names as they are
        typer.echo(safe_text(table) if sys.stdout.isatty() else table, nl=False)
    else:
        write_whole(out, done.csv().encode())
    say = console(stderr=True)
    where = "" if out is None else f", written to {out}"
    scored = len(to_predict) - len(done.problems)
    say.print(f"{scored:,} of {len(to_predict):,} images scored in {seconds:.1f} s{where}")
    for place, why in list(done.problems.items())[:SHOWN_IMAGES]:
        say.print(f"not scored: {done.images[place].name}: {why}")
    for place, why in list(done.doubts.items())[:SHOWN_IMAGES]:
        say.print(f"in doubt: {done.images[place].name}: {why}")
    if done.doubts:
        say.print(
            f"{len(done.doubts):,} of {len(to_predict):,} images are unlike the training images:"
            " their scores may mean nothing"
        )
    if done.problems:
        raise RunFailed(f"{len(done.problems)} of {len(to_predict)} images could not be scored")
