"""NIH ChestX-ray14 (Wang et al., 2017) from its own folder.

That is `images_*/images/*.png`, `Data_Entry_2017*.csv`, `train_val_list.txt` and `test_list.txt`.
The lists have no patient in common; validation is carved out of the first by patient.
"""

from __future__ import annotations

import os
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
from feddraw.data.label_table import LabelTable, RowProblem, TableIntake
from feddraw.data.splits import draw_share_of_patients
from feddraw.errors import UserError
from feddraw.system.file_reading import expanded_path

NIH_VARIABLE = "FEDDRAW_NIH"  # the environment's word on where the folder is
NIH_SOURCE = "https://nihcc.app.box.com/v/ChestXray-NIHCC"
MAX_NIH_LIST = 2**26
SEX_COLUMNS = ("Patient Gender", "Patient Sex")  # as its editions call it
NIH_SPLIT_LISTS = {"train_val_list.txt": 0, "test_list.txt": 2}  # file -> number of its split


def nih(
    how: ImagePreparation,
    *,
    path: str = "",
    findings: FindingChoice = "paper",
    validation: float = 0.125,
    seed: int = 0,
) -> Dataset:
    """NIH ChestX-ray14, 112,120 images, from its own folder (data.path).

    `validation` is the share of the train_val images whose patients are kept for thresholds.
    """
    root = expanded_path(
        path or os.environ.get(NIH_VARIABLE) or os.environ.get("FEDDRAW_DATA", ".")
    )
    sheets = sorted(root.glob("Data_Entry_2017*.csv*"))
    missing = [name for name in NIH_SPLIT_LISTS if not (root / name).is_file()]
    if missing := missing + ([] if sheets else ["Data_Entry_2017*.csv"]):
        lack = f"{', '.join(missing)} is missing beside the folders images_*/images"
        raise UserError(
            f"no ChestX-ray14 in {root}: {lack}; get it from {NIH_SOURCE} and give its path"
            " (data.path)"
        )
    splits = {
        image: number
        for name, number in NIH_SPLIT_LISTS.items()
        for image in read_nih_list(root / name)
    }
    table = read_nih_table(sheets[-1], splits, findings, nih_image_paths(root))
    table.split[
        draw_share_of_patients(table.labels, table.split_rows("train"), validation, seed)
    ] = 1
    return dataset_from_files("nih", root, table, how)


def read_nih_list(path: Path) -> list[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_NIH_LIST + 1)
    if len(text) > MAX_NIH_LIST:
        raise UserError(f"{path} is longer than {MAX_NIH_LIST:,} characters: no list of images")
    return text.split()


def nih_image_paths(root: Path) -> dict[str, str]:
    """Image name -> path relative to the root, wherever the archives were unpacked."""
    folders = [*sorted(root.glob("images*/images")), *sorted(root.glob("images*")), root]
    found: dict[str, str] = {}
    for folder in reversed([folder for folder in folders if folder.is_dir()]):
        names = [file.name for file in os.scandir(folder) if file.is_file()]
        found |= {name: str(folder.relative_to(root) / name) for name in names}
    return found


def read_nih_table(
    path: Path, splits: dict[str, int], findings: FindingChoice, where: dict[str, str]
) -> LabelTable:
    """The entries that a split list names."""
    sheet = CsvSheet.of(path)
    name_at = sheet.column("Image Index")
    labels_at = sheet.column("Finding Labels")
    wanted = choose_findings(findings, CHESTXRAY14_FINDINGS, path.name)
    intake = TableIntake({name: place for place, name in enumerate(wanted)})
    sex = sheet.column_if_there(*SEX_COLUMNS)
    met = set()
    for line, fields in sheet.rows():
        name = fields[name_at]
        found = {canonical_finding(one) for one in fields[labels_at].split("|")}
        place = f"{path.name} line {line}"
        met.add(name)
        if strange := found - {*CHESTXRAY14_FINDINGS, "No Finding"}:
            intake.problems.append(
                RowProblem("with an unknown finding", place, ", ".join(sorted(strange))[:80])
            )
        elif name not in splits:
            intake.problems.append(RowProblem("in neither split list", place, name))
        else:
            about = {"path": where.get(name) or Path(name).name}  # never out of the folder
            about |= {"patient": name[:8], "group": "" if sex is None else fields[sex]}
            cells = [str(int(finding in found)) for finding in wanted]
            intake.add(name, cells, place, **about, split=splits[name])
    intake.problems += [
        RowProblem("listed but not in the table", name) for name in splits if name not in met
    ]
    nothing = dict.fromkeys(wanted, "negative")  # no cell is blank or uncertain
    return intake.table(nothing, nothing)
