"""Where runs are: the folder that a new one gets, and those that are there."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from feddraw.errors import UserError
from feddraw.text import folder_name

# Folders in which no run is, or only such as belong to the run above them.
SKIPPED_FOLDERS = ("checkpoint", "contribution", "figures", "tensorboard", "updates", "wandb")


def run_folder_by_name(scenario: str, method: str, seed: int, *, resume: bool) -> Path:
    """runs/SCENARIO-METHOD-SEED; for a new run with a number behind it where that is taken."""
    names = [folder_name(name.replace(":", ".")) for name in (scenario, method)]
    base = Path("runs") / "-".join([*names, str(seed)])
    return base if resume else numbered_where_taken(base)


def numbered_where_taken(base: Path) -> Path:
    """The folder, or where it holds files the first with a number behind its name that does not."""
    folder = base
    number = 2
    while folder.exists() and any(folder.iterdir()):
        folder = base.with_name(f"{base.name}-{number}")
        number = number + 1
    return folder


def is_run_folder(files: Collection[str]) -> bool:
    """Whether a folder with these files is that of a run, or of a server on Flower or FLARE, which
    writes no settings.
    """
    return "experiment.toml" in files or {"rounds.jsonl", "weights.csv"} <= set(files)


def walk_folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder and all below it in which runs may be, each with the names of its files."""
    for place, below, files in os.walk(root):
        below[:] = sorted(
            name for name in below if name not in SKIPPED_FOLDERS and not name.startswith(".")
        )
        yield Path(place), files


def find_run_folders(folders: Iterable[Path]) -> list[Path]:
    """Every run's folder at or below these, each once."""
    paths: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"no folder {folder}: give the folder of a run or of a study")
        if not os.access(folder, os.R_OK | os.X_OK):
            raise UserError(f"permission denied: {folder} is another user's, and cannot be read")
        for place, files in walk_folders(folder):
            if is_run_folder(files):
                paths.setdefault(place.resolve(), place)
    return list(paths.values())


def require_run(path: Path) -> None:
    """Refuse what is not the folder of a run or server; a study's folder is named as such."""
    if path.is_dir() and is_run_folder([child.name for child in path.iterdir()]):
        return
    if not path.exists():
        raise UserError(f"no folder {path}: check the path")
    below = find_run_folders([path]) if path.is_dir() else []
    hint = "it has no experiment.toml, as a run's has, and no weights.csv, as a server's has"
    if below:
        hint = f"there are {len(below)} below it, such as {below[0]}"
    raise UserError(f"{path} is not the folder of a run: {hint}")
