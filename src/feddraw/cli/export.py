"""`feddraw export`: a run's model for use elsewhere, each format checked, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from feddraw.cli.options import KeptModelOption
from feddraw.cli.progress_bars import counting_bar
from feddraw.cli.terminal import console, table


def export(
    run: Annotated[Path, Argument(help="The folder of a finished run.", metavar="RUN")],
    out: Annotated[
        Path | None,
        Option(help="The folder to write (default: export in RUN).", show_default=False),
    ] = None,
    formats: Annotated[
        str, Option(help="Formats, separated by commas.")
    ] = "onnx,monai,safetensors",
    model: Annotated[str, KeptModelOption] = "last",
    names: Annotated[
        bool, Option("--names", help="Show site names in the model card (default: numbers).")
    ] = False,
    licence: Annotated[
        str, Option("--licence", "--license", help="The model's licence, for the model card.")
    ] = "",
    trust: Annotated[
        bool, Option("--trust", help="Allow code that the run's experiment.toml names.")
    ] = False,
) -> None:
    """Write a run's model as ONNX, MONAI bundle and safetensors, with a model card.

    Each format is applied to every test image of the run. If a probability differs by more than
    1e-5 from the run's own model, the export fails.

    Research software, not a medical device.
    """
    from feddraw.export import export_run

    with counting_bar(console(stderr=True), prefix="") as report_progress:
        exported = export_run(
            run,
            run / "export" if out is None else out,
            formats=[word.strip() for word in formats.split(",") if word.strip()],
            model=model,
            names=names,
            licence=licence,
            trust=trust,
            progress=report_progress,
        )
    kind = "random images" if exported.note else "test images"
    rows = [
        [check.format, f"{check.images:,}", f"{check.difference:.1e}"] for check in exported.checks
    ]
    say = console()
    say.print(table(["format", kind, "largest difference of a probability"], rows))
    if exported.note:
        say.print(f"note: {exported.note}")
    say.print(f"written to {exported.folder}; read MODEL_CARD.md before you pass it on")
