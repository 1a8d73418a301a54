"""A run as TensorBoard sees it: one setting (`tensorboard = true`), and an event file grows in the
run's folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from feddraw.errors import UserError
from feddraw.results.round_log import EvaluatedRound
from feddraw.system.file_writing import make_subfolder
from feddraw.system.machine import installed


def check_tensorboard() -> None:
    if not installed("tensorboard"):
        raise UserError("tensorboard = true needs TensorBoard: pip install 'feddraw[tensorboard]'")


@contextmanager
def tensorboard_log(folder: Path | None, start: int) -> Iterator[Callable[[EvaluatedRound], None]]:
    """Where to show each round; what an earlier try wrote from round `start` on is forgotten."""
    if folder is None:
        yield lambda result: None
        return
    from torch.utils.tensorboard import SummaryWriter

    make_subfolder(folder / "tensorboard")
    with SummaryWriter(str(folder / "tensorboard"), purge_step=start or None) as writer:

        def show(result: EvaluatedRound) -> None:
            for name, value in tensorboard_scalars(result).items():
                writer.add_scalar(name, value, result.round)
            writer.flush()

        yield show


def tensorboard_scalars(result: EvaluatedRound) -> dict[str, float]:
    """Loss, AUC of each split and finding, and every client's weight and similarity."""
    scalars = {"loss": result.loss}
    splits = {"validation": result.metrics.validation, "test": result.metrics.test}
    for name, split in splits.items():
        if split.evaluated:
            areas = split.auc.per_class
            scalars[f"{name}/AUC"] = split.auc.macro
            scalars[f"{name}/findings without AUC"] = sum(map(math.isnan, areas.values()))
            scalars |= {f"{name}/AUC {finding}": area for finding, area in areas.items()}
    for entry in result.ledger:
        scalars[f"weight/{entry.client}"] = entry.weight
        scalars[f"similarity/{entry.client}"] = entry.similarity
    return {name: value for name, value in scalars.items() if math.isfinite(value)}
