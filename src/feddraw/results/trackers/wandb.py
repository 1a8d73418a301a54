"""Weights & Biases: a run of the project `feddraw`, or of WANDB_PROJECT. With WANDB_MODE=offline
everything stays in the run's folder.

Only what `Tracking` shows is sent: no console output, no code, nothing about the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.results.trackers import GROUP, TrackedRun
from feddraw.system.file_writing import make_subfolder
from feddraw.system.machine import installed


def wandb(run: TrackedRun) -> WandbRun:
    """A run of WANDB_PROJECT; WANDB_MODE=offline keeps it in the run's folder."""
    if not installed("wandb"):
        raise UserError("it is not installed: pip install 'feddraw[track]'")
    import wandb as client

    make_subfolder(run.folder / "wandb")
    quiet = client.Settings(
        silent=True,
        console="off",
        disable_git=True,
        save_code=False,
        x_disable_meta=True,
        x_disable_stats=True,
    )
    opened = client.init(
        project=os.environ.get("WANDB_PROJECT", GROUP),
        name=run.folder.name,
        dir=run.folder,
        id=run.number or None,
        resume="allow" if run.number else None,
        config=dict(run.settings) or None,
        reinit="create_new",
        settings=quiet,
    )
    opened.define_metric("round")
    opened.define_metric("*", step_metric="round")
    return WandbRun(opened, client.Artifact)


class WandbRun:
    """One run at Weights & Biases."""

    def __init__(self, run: Any, artifact: Any) -> None:
        self._run = run
        self._artifact = artifact
        self.number = str(run.id)

    def add(self, round: int, numbers: Mapping[str, float]) -> None:
        self._run.log({"round": round, **numbers})

    def add_files(self, name: str, files: Sequence[Path]) -> None:
        artefact = self._artifact(f"{name}-{self.number}", type=name)
        for file in files:
            artefact.add_file(str(file), name=file.name)
        self._run.log_artifact(artefact)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=1 if failed else 0)
