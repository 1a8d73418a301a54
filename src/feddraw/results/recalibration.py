"""What makes a run's scores calibrated: for each finding a line on the logit, kept in
`recalibration.json` beside the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError
from feddraw.results.run_folder import RunFolder
from feddraw.system.file_reading import read_json
from feddraw.system.file_writing import write_json

# Scores at 0 and 1 have no logit; float32 cannot tell those nearer to 1 from it.
SMALLEST_PROBABILITY = 1e-7
PLATT, TEMPERATURE = "platt", "temperature"
LINES = (PLATT, TEMPERATURE)


@dataclass(frozen=True)
class LogitLine:
    """The logit of a probability becomes slope × logit + intercept."""

    slope: float = 1.0
    intercept: float = 0.0

    def apply(self, scores: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Probabilities in the same order, in single precision as a network gives them."""
        clipped = np.clip(scores.astype(np.float64), SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
        logits = np.log(clipped / (1 - clipped))
        changed = 1 / (1 + np.exp(-self.slope * logits - self.intercept))
        return changed.astype(np.float32)


UNCHANGED = LogitLine()


@dataclass(frozen=True)
class Recalibration:
    """The lines of a run's findings, fitted on its validation images."""

    kind: str  # of LINES
    lines: Mapping[str, LogitLine]  # by finding; UNCHANGED where none could be fitted
    unfitted: Mapping[str, str] = field(default_factory=dict)  # by finding, why not

    def line(self, finding: str) -> LogitLine:
        return self.lines.get(finding, UNCHANGED)

    def write(self, run: Path) -> None:
        """To the run's folder."""
        lines = {
            name: {"slope": line.slope, "intercept": line.intercept}
            for name, line in self.lines.items()
        }
        document = {"kind": self.kind, "lines": lines, "unfitted": dict(self.unfitted)}
        write_json(RunFolder(run).recalibration, document)


def read_recalibration(run: Path) -> Recalibration | None:
    """Of a run's folder; None where its scores are as the network gives them."""
    path = RunFolder(run).recalibration
    if not path.is_file():
        return None
    try:
        document = read_json(path)
        lines = {
            str(name): LogitLine(float(line["slope"]), float(line["intercept"]))
            for name, line in document["lines"].items()
        }
        if document["kind"] not in LINES:
            raise ValueError("another kind")
        if not all(
            0 < line.slope < math.inf and math.isfinite(line.intercept) for line in lines.values()
        ):
            raise ValueError("no line that keeps the order of scores")
        unfitted = {str(name): str(why) for name, why in document["unfitted"].items()}
        return Recalibration(str(document["kind"]), lines, unfitted)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"{path} is not as `feddraw recalibrate` writes it: delete it, or write it again"
        ) from None
