"""`feddraw recalibrate`: make a run's scores calibrated, and keep that with its model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from feddraw.cli.terminal import console, table

if TYPE_CHECKING:
    from feddraw.analysis.diagnostic_measures import Measured


def recalibrate(
    run: Annotated[Path, Argument(help="The folder of a finished run.", metavar="RUN")],
    kind: Annotated[
        str, Option(help="platt: slope and intercept on the logit; temperature: slope only.")
    ] = "platt",
) -> None:
    """Fit each finding's scores to the run's validation images, and judge them on its test images.

    The result is kept in RUN as recalibration.json; `feddraw predict` and `feddraw export` apply it
    to the model of the last round. Calls stay as they are. Delete the file to undo it.
    """
    from feddraw.experiment.recalibration import recalibrate as fit

    recalibration, judged = fit(run, kind)
    rows = []
    for finding, line in recalibration.lines.items():
        if finding not in judged:
            continue
        before, after = judged[finding].before, judged[finding].after
        rows.append(
            [
                finding,
                f"{line.slope:.3f}",
                f"{line.intercept:+.3f}",
                _change(before.brier_score(), after.brier_score()),
                _change(before.calibration_error(), after.calibration_error()),
            ]
        )
    out = console()
    header = ["finding", "slope", "intercept", "Brier score", "calibration error"]
    out.print(table(header, rows))
    for finding, why in recalibration.unfitted.items():
        out.print(f"not recalibrated: {finding} ({why})")
    out.print(
        "fitted on validation images, judged on test images of other patients; kept in"
        f" {run / 'recalibration.json'}"
    )


def _change(before: Measured, after: Measured) -> str:
    return f"{before.value:.4f} → {after.value:.4f}"
