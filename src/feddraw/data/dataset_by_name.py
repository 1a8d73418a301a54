"""Data sets by name: one of ours, a path to a file or folder, or `package.module:function`.

A data set is one file in `datasets/` with a function of its own name. Its keyword arguments are the
settings of the data section. If its first argument is called `how`, it is told how images are
prepared (`ImagePreparation`); otherwise it is called with their `size`, and with `progress` if it
has such an argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from feddraw import catalog
from feddraw.catalog import check_setting_types, own_function
from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.dataset import Dataset, Labels
from feddraw.data.datasets.chexpert import read_chexpert
from feddraw.data.image_settings import ImagePreparation, PreparationEstimate
from feddraw.data.label_table import describe_row_problems
from feddraw.data.npz_archive import NpzArchive
from feddraw.data.own_tables import read_own_tables
from feddraw.errors import NoSuchPath, UserError, unknown
from feddraw.system.file_reading import expanded_path
from feddraw.system.progress import Progress
from feddraw.text import with_article

# what the caller gives when it opens the data: no settings
CALLER_ARGUMENTS = ("size", "progress", "estimate")
# each may be text, a list or a table: no type to compare with that of the default
CHECKED_WHERE_READ = ("findings", "classes", "normalize", "levels", "blank", "uncertain", "shares")


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
    function, from_name = find_dataset(name)
    defaults = _settings_of(function)
    channels = options.get("channels", defaults.get("channels", 1))
    if "channels" not in defaults:
        options = {key: value for key, value in options.items() if key != "channels"}
    known = {key: default for key, default in defaults.items() if key not in CALLER_ARGUMENTS}
    lenient = {key: None for key in CHECKED_WHERE_READ if key in known}
    for key in options.keys() - known.keys():
        raise unknown(f"settings of data {name}", key, {"size", *known})
    check_setting_types(options, known | lenient, "data")
    arguments: dict[str, Any] = {**options, **from_name}
    required = [key for key, default in known.items() if default is inspect.Parameter.empty]
    if missing := [key for key in required if key not in arguments]:
        raise UserError(f"data {name} needs {', '.join(missing)} (data.{missing[0]})")
    if _prepares_images(function):
        common = {field.name for field in fields(ImagePreparation)}
        of_its_own = common & inspect.signature(function).parameters.keys()
        chosen = {key: defaults[key] for key in of_its_own}
        chosen |= {key: arguments.pop(key) for key in common & arguments.keys()}
        how = ImagePreparation(size=size, progress=progress, estimate=estimate, **chosen)
        dataset = function(how, **arguments)
    else:
        if "progress" in defaults:
            arguments["progress"] = progress
        dataset = function(size=size, **arguments)
    if not isinstance(dataset, Dataset):
        raise UserError(
            f"{name} must return a feddraw.data.dataset.Dataset, not"
            f" {with_article(type(dataset).__name__)}"
        )
    _check_channels(name, dataset, channels)
    return dataset


def _check_channels(name: str, dataset: Dataset, channels: object) -> None:
    """Refuse images with other channels than the settings say; features have none."""
    if dataset.images.dtype != np.uint8:
        return
    if dataset.images.shape[3:] not in ((), (3,)):
        raise UserError(
            f"{name} must return images of shape (n, height, width), or (n, height, width, 3) in"
            f" colour, not {dataset.images.shape}"
        )
    if dataset.channels != channels:
        kind = "grey" if dataset.channels == 1 else "in colour"
        raise UserError(f"the images of {name} are {kind}: set data.channels = {dataset.channels}")


def dataset_defaults(name: str) -> dict[str, Any]:
    """The default options of a data set; none are known for a user's own function."""
    if ":" in name:
        return {}
    function, from_name = find_dataset(name)
    # the caller's, those that the name says, and one without a part in the outcome
    apart = {*CALLER_ARGUMENTS, *from_name, "workers"}
    defaults: dict[str, Any] = {}
    for key, value in _settings_of(function).items():
        if key not in apart and value is not None and value is not inspect.Parameter.empty:
            defaults[key] = list(value) if isinstance(value, tuple) else value
    return defaults


def _settings_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a data set's function with their defaults, also those of preparing images,
    for which it may have defaults of its own.
    """
    parameters = inspect.signature(function).parameters.values()
    settings = {
        parameter.name: parameter.default for parameter in parameters if parameter.name != "how"
    }
    if _prepares_images(function):
        common = {field.name: field.default for field in fields(ImagePreparation)}
        settings = {**common, **settings}
    return settings


def _prepares_images(function: Callable[..., Any]) -> bool:
    """Whether it is told how images are prepared (`how`), or takes their size only."""
    return "how" in inspect.signature(function).parameters


def find_dataset(name: str) -> tuple[Callable[..., Any], dict[str, object]]:
    """The function behind a name, and what the name itself says about its arguments."""
    if name in catalog.names("datasets"):
        return catalog.find("datasets", name), {}
    path = Path()
    if len(name) < 4096 and "\0" not in name:
        path = expanded_path(name)
    if name and data_path_exists(path):
        kind = "npz" if path.suffix == ".npz" else "folder"
        return catalog.find("datasets", kind), {"path": str(path)}
    if path.suffix in (".npz", ".csv", ".gz") or "/" in name:
        raise NoSuchPath(f"no file or folder {name}: check the path", path)
    if ":" in name:
        return own_function(name), {}
    raise unknown("data sets", name, catalog.names("datasets"))


def data_path_exists(path: Path) -> bool:
    """Whether there is such a file or folder."""
    try:
        return path.exists() and path != Path()
    except OSError:  # a part of it is longer than names may be
        return False


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
