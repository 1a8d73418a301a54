"""NIH ChestX-ray14 (Wang et al., 2017) from its own folder.

That is `images_*/images/*.png`, `Data_Entry_2017*.csv`, `train_val_list.txt` and `test_list.txt`.
The lists have no patient in common; validation is carved out of the first by patient.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.dataset import Dataset
from feddraw.data.dataset_from_table import dataset_from_files
from feddraw.data.finding_names import (
    CHESTXRAY14_FINDINGS,
    FindingChoice,
    canonical_finding,
    choose_findings,
)
from feddraw.data.image_settings import ImagePreparation
from feddraw.data.label_table import LabelColumns, LabelTable, RowProblem, TableIntake
from feddraw.data.splits import draw_share_of_patients
from feddraw.data.subgroups import (
    SubgroupColumn,
    read_subgroup_columns,
    subgroup_cells,
    subgroup_places,
)
from feddraw.errors import UserError
from feddraw.system.file_reading import expanded_path, read_text

CHEST_RADIOGRAPHS = True
NIH_VARIABLE = "FEDDRAW_NIH"  # the environment's word on where the folder is
NIH_SOURCE = "https://nihcc.app.box.com/v/ChestXray-NIHCC"
MAX_NIH_LIST = 2**26  # bytes
SEX_COLUMNS = ("Patient Gender", "Patient Sex")  # as its editions call it
NIH_SPLIT_LISTS = {"train_val_list.txt": 0, "test_list.txt": 2}  # file -> number of its split


def nih(
    how: ImagePreparation,
    *,
    path: str = "",
    findings: FindingChoice = "paper",
    validation: float = 0.125,
    subgroups: str = "",
    seed: int = 0,
) -> Dataset:
    """NIH ChestX-ray14, 112,120 images, from its own folder (data.path).

    `validation` is the share of the train_val images whose patients are kept for thresholds.
    `subgroups` names columns for which the report also gives results: "sex; age: 40, 65; view".
    """
    root = expanded_path(
        path or os.environ.get(NIH_VARIABLE) or os.environ.get("FEDDRAW_DATA", ".")
    )
    sheets = sorted(root.glob("Data_Entry_2017*.csv*"))
    missing = [name for name in NIH_SPLIT_LISTS if not (root / name).is_file()]
    if not sheets:
        missing.append("Data_Entry_2017*.csv")
    if missing:
        raise UserError(
            f"no ChestX-ray14 in {root}: {', '.join(missing)} is missing beside the folders"
            f" images_*/images; get it from {NIH_SOURCE} and give its path (data.path)"
        )
    splits: dict[str, int] = {}
    for name, number in NIH_SPLIT_LISTS.items():
        splits |= dict.fromkeys(read_nih_list(root / name), number)
    columns = read_subgroup_columns(subgroups)
    table = read_nih_table(sheets[-1], splits, findings, nih_image_paths(root), columns)
    training = table.split_rows("train")
    table.split[draw_share_of_patients(table.labels, training, validation, seed)] = 1
    return dataset_from_files("nih", root, table, how, eight_bits=True)


def read_nih_list(path: Path) -> list[str]:
    """The names of images that a list holds."""
    return read_text(path, MAX_NIH_LIST).split()


def nih_image_paths(root: Path) -> dict[str, str]:
    """Image name -> path relative to the root, wherever the archives were unpacked."""
    folders = [*sorted(root.glob("images*/images")), *sorted(root.glob("images*")), root]
    paths: dict[str, str] = {}
    for folder in reversed([folder for folder in folders if folder.is_dir()]):
        names = [file.name for file in os.scandir(folder) if file.is_file()]
        paths |= {name: str(folder.relative_to(root) / name) for name in names}
    return paths


def read_nih_table(
    path: Path,
    splits: dict[str, int],
    findings: FindingChoice,
    paths: dict[str, str],
    subgroups: Sequence[SubgroupColumn] = (),
) -> LabelTable:
    """The entries that a split list names; `splits` and `paths` are by image name."""
    sheet = CsvSheet.of(path)
    name_column = sheet.column("Image Index")
    labels_column = sheet.column("Finding Labels")
    sex_column = sheet.column_if_there(*SEX_COLUMNS)
    wanted = choose_findings(findings, CHESTXRAY14_FINDINGS, path.name)
    columns = LabelColumns({name: place for place, name in enumerate(wanted)})
    of_subgroups = subgroup_places(subgroups, {path.name: sheet.header})[path.name]
    intake = TableIntake(tuple(wanted), subgroups)
    names = set()
    for line, cells in sheet.rows():
        where = f"{path.name} line {line}"
        name = cells[name_column]
        names.add(name)
        present = {canonical_finding(label) for label in cells[labels_column].split("|")}
        if strange := present - {*CHESTXRAY14_FINDINGS, "No Finding"}:
            detail = ", ".join(sorted(strange))[:80]
            intake.problems.append(RowProblem("with an unknown finding", where, detail))
        elif name not in splits:
            intake.problems.append(RowProblem("in neither split list", where, name))
        else:
            intake.add(
                name,
                [str(int(finding in present)) for finding in wanted],
                columns,
                where,
                path=paths.get(name) or Path(name).name,  # never out of the folder
                patient=name[:8],
                group="" if sex_column is None else cells[sex_column],
                subgroups=subgroup_cells(cells, of_subgroups),
                split=splits[name],
            )
    intake.problems += [
        RowProblem("listed but not in the table", name) for name in splits if name not in names
    ]
    negative = dict.fromkeys(wanted, "negative")  # no cell is blank or uncertain
    return intake.table(blank=negative, uncertain=negative)
