"""Anyone's images: a CSV with a path and one column per finding beside a tree of PNG, JPEG or DICOM
files.

Columns for the path, the split, the site and the patient are found by their usual names, the
findings by their content; every guess can be overruled by a setting. A label is present, absent or
unknown: `blank` and `uncertain` say how such cells are read. Where each image has exactly one
class, `class_column` is the column that names it. Several tables, one per site, may have
different findings. Without a split column patients are put into splits by a seed, each finding in
proportion.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from feddraw.data.dataset import Dataset
from feddraw.data.dataset_from_table import dataset_from_files
from feddraw.data.finding_names import FindingChoice
from feddraw.data.image_settings import ImagePreparation
from feddraw.data.label_cells import CellPolicy
from feddraw.data.own_tables import (
    TableSettings,
    find_tables,
    image_root,
    joined_names,
    read_own_tables,
)
from feddraw.data.subgroups import read_subgroup_columns
from feddraw.errors import NoSuchPath


def folder(  # noqa: PLR0913 - the settings of the data set
    how: ImagePreparation,
    *,
    path: str | Sequence[str],
    images: str = "",
    findings: FindingChoice = "all",
    class_column: str = "",
    classes: FindingChoice = "all",
    blank: CellPolicy = "unknown",
    uncertain: CellPolicy = "unknown",
    missing_columns: str = "refuse",
    path_column: str = "",
    split_column: str = "",
    site_column: str = "",
    patient_column: str = "",
    group_column: str = "",
    subgroups: str = "",
    shares: Sequence[float] = (0.7, 0.1, 0.2),
    seed: int = 0,
) -> Dataset:
    """Your own CSV and PNG, JPEG or DICOM files (data.path).

    `path` is the CSV, its folder, or a list of CSVs (one per site), `images` the folder that the
    paths in it start from. `blank` and `uncertain` (-1) are unknown, negative or positive, for all
    findings or each. A finding that is listed but has no column is refused, or unknown throughout
    (`missing_columns`). `class_column` is a column that names the one class of each image, and
    `classes` lists the classes in the order of the network's outputs; there are no findings then.
    `subgroups` names columns for which the report also gives results: "sex; age: 40, 65; view".
    """
    settings = TableSettings(
        images=images,
        findings=findings,
        class_column=class_column,
        classes=classes,
        blank=blank,
        uncertain=uncertain,
        missing_columns=missing_columns,
        columns={
            "path": path_column,
            "split": split_column,
            "site": site_column,
            "patient": patient_column,
            "group": group_column,
        },
        shares=shares,
        seed=seed,
        subgroups=read_subgroup_columns(subgroups),
    )
    tables = find_tables(path)
    root = image_root(tables, images)
    if images and not root.is_dir():
        raise NoSuchPath(
            f"no folder {root}, from which the paths in the table start (data.images)", root
        )
    table = read_own_tables(tables, settings, root=root)
    for note in table.notes:
        warnings.warn(note, stacklevel=2)
    return dataset_from_files(joined_names(tables), root, table, how)
