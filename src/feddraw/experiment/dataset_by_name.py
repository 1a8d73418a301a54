"""Data sets by name: one of ours, a path to a file or folder, or `package.module:function`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from feddraw import catalog
from feddraw.catalog import check_setting_types, own_function
from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.dataset import SPLITS, Dataset, Labels
from feddraw.data.datasets.chexpert import read_chexpert
from feddraw.data.image_cache import Progress
from feddraw.data.image_settings import ImagePreparation, PreparationEstimate
from feddraw.data.label_table import describe_row_problems
from feddraw.data.npz_archive import NpzArchive
from feddraw.data.own_tables import read_own_tables
from feddraw.errors import UserError, unknown
from feddraw.system.file_reading import expanded_path

# That the caller gives when it opens the data; no settings.
CALLER_ARGUMENTS = (
    "size",
    "progress",
    "estimate",
)
# Text or a list: checked where they are read.
TEXT_OR_LIST_OPTIONS = (
    "findings",
    "normalize",
    "uncertain",
    "shares",
)


def dataset_names() -> dict[str, str]:
    """Each data set with a line about it."""
    return {name: catalog.first_doc_line("datasets", name) for name in catalog.names("datasets")}


def open_dataset(
    name: str,
    *,
    size: int,
    options: Mapping[str, object],
    progress: Progress | None = None,
    estimate: PreparationEstimate | None = None,
) -> Dataset:
    """The data set of this name with its images at this size; `options` are the arguments of its
    function.

    With `estimate`, images that are not prepared yet stay so: the data set has grey squares, and
    `estimate` says what preparing them takes.
    """
    function, given = find_dataset(name)
    own = {one.name: one.default for one in inspect.signature(function).parameters.values()}
    common = (
        {one.name: one.default for one in fields(ImagePreparation)} if own.pop("how", None) else {}
    )
    known = {key: default for key, default in (own | common).items() if key not in CALLER_ARGUMENTS}
    check_setting_types(
        options, known | {key: None for key in TEXT_OR_LIST_OPTIONS if key in known}, f"data {name}"
    )
    chosen: dict[str, Any] = {**options, **given}
    if missing := [
        key
        for key, default in known.items()
        if default is inspect.Parameter.empty and key not in chosen
    ]:
        raise UserError(f"data {name} needs {', '.join(missing)} (data.{missing[0]})")
    if common:
        prepared = {key: chosen.pop(key) for key in common if key in chosen}
        dataset = function(
            ImagePreparation(size=size, progress=progress, estimate=estimate, **prepared), **chosen
        )
    else:
        if progress is not None and name == "phantom":
            chosen["progress"] = _phantom_dataset_progress(progress, own | chosen)
        dataset = function(size=size, **chosen)
    if not isinstance(dataset, Dataset):
        raise UserError(
            f"{name} must return a feddraw.data.dataset.Dataset, not a {type(dataset).__name__}"
        )
    return dataset


def dataset_defaults(name: str) -> dict[str, Any]:
    """The default options of a data set; none are known for a user's own function."""
    if ":" in name:
        return {}
    function, given = find_dataset(name)
    settings = {
        p.name: p.default
        for p in inspect.signature(function).parameters.values()
        if p.default is not p.empty
    }
    if "how" in inspect.signature(function).parameters:
        settings |= {field.name: field.default for field in fields(ImagePreparation)}
    # The caller's own, or without a part in the outcome.
    apart = {
        *CALLER_ARGUMENTS,
        "workers",
        *given,
    }
    kept = {key: value for key, value in settings.items() if key not in apart and value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in kept.items()}


def find_dataset(name: str) -> tuple[Callable[..., Any], dict[str, object]]:
    """The function behind a name, and what the name itself says about its arguments."""
    if name in catalog.names("datasets"):
        return catalog.find("datasets", name), {}
    path = expanded_path(name) if len(name) < 4096 and "\0" not in name else Path()
    if name and data_path_exists(path):
        return catalog.find("datasets", "npz" if path.suffix == ".npz" else "folder"), {
            "path": str(path)
        }
    if path.suffix in (".npz", ".csv", ".gz") or "/" in name:
        raise UserError(f"no file or folder {name}: check the path")
    if ":" in name:
        return own_function(name), {}
    raise unknown("data sets", name, catalog.names("datasets"))


def data_path_exists(path: Path) -> bool:
    try:
        return path.exists() and path != Path()
    except OSError:  # a part of it is longer than names may be
        return False


def _phantom_dataset_progress(
    progress: Progress, settings: Mapping[str, Any]
) -> Callable[[int], None]:
    """A counter for the phantoms, which say how many images are new."""
    total = sum(settings[split] for split in SPLITS)
    drawn = 0

    def add(count: int) -> None:
        nonlocal drawn
        drawn += count
        progress("drawing phantoms", drawn, total)

    return add


def read_training_labels(path: Path | str) -> Labels:
    """The training labels of a table alone: CheXpert's or anyone's CSV (also .gz), or an .npz in
    MedMNIST's layout.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(
            f"no file {path}: give a CSV such as CheXpert's train.csv, or an .npz in MedMNIST's"
            " layout"
        )
    if path.suffix == ".npz":
        table = NpzArchive.open(path).table("paper")
    elif "Frontal/Lateral" in CsvSheet.of(path).header:
        table = read_chexpert({0: path})
    else:
        table = read_own_tables([path])
    if table.problems:
        raise UserError(
            describe_row_problems(
                path.name, table.problems, len(table.labels) + len(table.problems)
            )
        )
    return table.labels.take(table.split_rows("train"))
