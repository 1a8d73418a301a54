"""TensorBoard: an event file in the run's folder. It knows no artefacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.results.trackers import TrackedRun
from feddraw.system.file_writing import make_subfolder
from feddraw.system.machine import installed


def tensorboard(run: TrackedRun) -> TensorBoardRun:
    """An event file in the run's folder: `tensorboard --logdir runs` shows it."""
    if not installed("tensorboard"):
        raise UserError("it is not installed: pip install 'feddraw[track]'")
    from torch.utils.tensorboard import SummaryWriter

    folder = run.folder / "tensorboard"
    make_subfolder(folder)
    # what an earlier try showed of these rounds is forgotten
    return TensorBoardRun(SummaryWriter(str(folder), purge_step=run.first_round or None), run)


class TensorBoardRun:
    """One run in an event file."""

    number = ""  # its place is its name

    def __init__(self, writer: Any, run: TrackedRun) -> None:
        self._writer = writer
        lines = [f"    {name} = {value}" for name, value in run.settings.items()]
        if lines:
            writer.add_text("settings", "\n".join(lines))

    def add(self, round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def add_files(self, name: str, files: Sequence[Path]) -> None:
        """Nothing: an event file holds numbers and texts."""

    def close(self, *, failed: bool) -> None:
        self._writer.close()
