"""NIH ChestX-ray14 (Wang et al., 2017) from its own folder.

That is `images_*/images/*.png`, `Data_Entry_2017*.csv`, `train_val_list.txt` and `test_list.txt`. The lists have no
patient in common; validation is carved out of the first by patient.
"""

from __future__ import annotations

import os
from pathlib import Path

from feddraw.data.dataset import Dataset
from feddraw.data.dataset_from_table import Preparation, from_files
from feddraw.data.splits import draw_share
from feddraw.data.tables import FOURTEEN, Findings, Intake, Problem, Sheet, Table, canonical, choose
from feddraw.errors import UserError, expanded

PLACE = "FEDDRAW_NIH"  # the environment's word on where the folder is
SOURCE = "https://nihcc.app.box.com/v/ChestXray-NIHCC"
MAX_LIST = 2**26
SEX = ("Patient Gender", "Patient Sex")  # as its editions call it
LISTS = {"train_val_list.txt": 0, "test_list.txt": 2}  # file -> number of its split


def nih(
    how: Preparation, *, path: str = "", findings: Findings = "paper", validation: float = 0.125, seed: int = 0
) -> Dataset:
    """NIH ChestX-ray14, 112,120 images, from its own folder (data.path).

    `validation` is the share of the train_val images whose patients are kept for thresholds.
    """
    root = expanded(path or os.environ.get(PLACE) or os.environ.get("FEDDRAW_DATA", "."))
    sheets = sorted(root.glob("Data_Entry_2017*.csv*"))
    missing = [name for name in LISTS if not (root / name).is_file()] + ([] if sheets else ["Data_Entry_2017*.csv"])
    if missing:
        raise UserError(
            f"no ChestX-ray14 in {root}: {', '.join(missing)} is missing beside the folders images_*/images; "
            f"get it from {SOURCE} and give its path (data.path)"
        )
    splits = {image: number for name, number in LISTS.items() for image in words(root / name)}
    table = read(sheets[-1], splits, findings, files(root))
    table.split[draw_share(table.labels, table.split_rows("train"), validation, seed)] = 1
    return from_files("nih", root, table, how)


def words(path: Path) -> list[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_LIST + 1)
    if len(text) > MAX_LIST:
        raise UserError(f"{path} is longer than {MAX_LIST:,} characters: no list of images")
    return text.split()


def files(root: Path) -> dict[str, str]:
    """Image name -> path relative to the root, wherever the archives were unpacked."""
    folders = [*sorted(root.glob("images*/images")), *sorted(root.glob("images*")), root]
    found = {}
    for folder in reversed([folder for folder in folders if folder.is_dir()]):
        found.update(
            {file.name: str(folder.relative_to(root) / file.name) for file in os.scandir(folder) if file.is_file()}
        )
    return found


def read(path: Path, splits: dict[str, int], findings: Findings, where: dict[str, str]) -> Table:
    """The entries that a split list names."""
    sheet = Sheet.of(path)
    name_at, labels_at = sheet.column("Image Index"), sheet.column("Finding Labels")
    wanted = choose(findings, FOURTEEN, path.name)
    intake = Intake({name: place for place, name in enumerate(wanted)})
    sex = next((place for place, title in enumerate(sheet.header) if title in SEX), None)
    for line, fields in sheet.rows():
        name, found = fields[name_at], {canonical(one) for one in fields[labels_at].split("|")}
        place = f"{path.name} line {line}"
        if strange := found - {*FOURTEEN, "No Finding"}:
            intake.problems.append(Problem("with an unknown finding", place, ", ".join(sorted(strange))[:80]))
        elif name not in splits:
            intake.problems.append(Problem("in neither split list", place, name))
        else:
            about = {"path": where.get(name) or Path(name).name}  # never out of the folder
            about |= {"patient": name[:8], "group": "" if sex is None else fields[sex]}
            cells = [str(int(finding in found)) for finding in wanted]
            intake.add(name, cells, place, **about, split=splits[name])
    intake.problems += [Problem("listed but not in the table", name) for name in splits.keys() - intake.rows.keys()]
    nothing = dict.fromkeys(wanted, "negative")  # no cell is blank or uncertain
    return intake.table(nothing, nothing)
