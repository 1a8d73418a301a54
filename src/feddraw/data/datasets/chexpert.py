"""CheXpert (Irvin et al., 2019) from its own folder, the small or the full release: frontal
radiographs only.

Validation is `valid.csv`, the test split the radiologists' labels: `groundtruth.csv` has one row
per study and `test_labels.csv` one row per image. Uncertain marks become 1 for Atelectasis and
Edema and 0 for the others, as in the paper; missing ones become 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.dataset import Dataset
from feddraw.data.dataset_from_table import dataset_from_files
from feddraw.data.finding_names import FindingChoice, canonical_finding, choose_findings
from feddraw.data.image_settings import ImagePreparation
from feddraw.data.label_cells import CellPolicy, cell_meanings
from feddraw.data.label_table import LabelColumns, LabelTable, RowProblem, TableIntake
from feddraw.data.splits import draw_share_of_patients
from feddraw.data.subgroups import (
    SubgroupColumn,
    read_subgroup_columns,
    subgroup_cells,
    subgroup_places,
)
from feddraw.errors import UserError
from feddraw.system.file_reading import expanded_path

CHEST_RADIOGRAPHS = True
CHEXPERT_VARIABLE = "FEDDRAW_CHEXPERT"  # the environment's word on where the folder is
CHEXPERT_SOURCE = "https://aimi.stanford.edu/datasets/chexpert-chest-x-rays"
TEST_LABELS_SOURCE = "https://github.com/rajpurkarlab/cheXpert-test-set-labels"
RELEASE_FOLDERS = ("CheXpert-v1.0-small", "CheXpert-v1.0", "chexpertchestxrays-u20210408")
NOT_FINDINGS = ("Path", "Study", "Sex", "Age", "Frontal/Lateral", "AP/PA")
# The paper's U-Ones; U-Zeros for all others.
PAPER_UNCERTAIN = {
    "Atelectasis": "positive",
    "Edema": "positive",
}
SPLIT_FOLDERS = ("train", "valid", "test")  # as CheXpert's folders call them

_IMAGE_PATH = re.compile(r"(?:.*/)?((?:train|valid|test)/(patient\d+)/(study\d+/[^/]+))")
_STUDY_PATH = re.compile(r"(?:.*/)?(test/(patient\d+)/(study\d+))/?")


class ChexpertRelease:
    """Where a release keeps its tables and its patients' folders; the full one spreads them over
    several folders.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        folders = [Path(entry.path) for entry in os.scandir(root) if entry.is_dir()]
        inner = [folder for folder in folders if folder.name not in SPLIT_FOLDERS]
        self.bases = [root, *sorted(inner)]
        self._patients: dict[str, dict[str, str]] = {}  # by split, each with its folder

    def table_file(self, *names: str) -> Path | None:
        """The first of these tables that is there."""
        for name in names:
            for base in self.bases:
                if (base / name).is_file():
                    return base / name
        return None

    def patient_folder(self, split: str, patient: str) -> str:
        """A patient's folder, relative to the root."""
        if split not in self._patients:
            self._patients[split] = self._patient_folders(split)
        return self._patients[split].get(patient, f"{split}/{patient}")

    def _patient_folders(self, split: str) -> dict[str, str]:
        homes = [base / split for base in self.bases]
        if split == "train":
            homes += self.bases
        folders: dict[str, str] = {}
        for home in homes:
            for entry in os.scandir(home) if home.is_dir() else ():
                if entry.name.startswith("patient"):
                    folders[entry.name] = str(Path(entry.path).relative_to(self.root))
        return folders

    def frontal_views(self, study: str, patient: str, rest: str) -> list[tuple[str, str]]:
        """Names and paths of the frontal images of a test study."""
        folder = self.patient_folder("test", patient)
        files = sorted((self.root / folder / rest).glob("view*frontal*"))
        return [(f"{study}/{file.name}", f"{folder}/{rest}/{file.name}") for file in files]


def chexpert(
    how: ImagePreparation,
    *,
    path: str = "",
    findings: FindingChoice = "paper",
    blank: CellPolicy = None,
    uncertain: CellPolicy = None,
    carve_test: float = 0.0,
    subgroups: str = "",
    seed: int = 0,
) -> Dataset:
    """CheXpert, 191,027 frontal training images, from its own folder (data.path).

    `carve_test` is the share of training images to test on where there are no others.
    `subgroups` names columns for which the report also gives results: "sex; age: 40, 65; view".
    """
    release = locate_chexpert(path)
    train = release.table_file("train.csv", "train.csv.gz")
    valid = release.table_file("valid.csv")
    if train is None or valid is None:
        raise UserError(
            f"{release.root} has no train.csv and valid.csv: not CheXpert's folder; get it from"
            f" {CHEXPERT_SOURCE}"
        )
    sheets = {0: train, 1: valid}
    if not carve_test:
        sheets[2] = chexpert_test_sheet(release)
    columns = read_subgroup_columns(subgroups)
    table = read_chexpert(sheets, findings, release, blank, uncertain, columns)
    if carve_test:
        training = table.split_rows("train")
        table.split[draw_share_of_patients(table.labels, training, carve_test, seed)] = 2
    return dataset_from_files("chexpert", release.root, table, how, eight_bits=True)


def chexpert_test_sheet(release: ChexpertRelease) -> Path:
    """The radiologists' labels, which the small release lacks."""
    sheet = release.table_file("groundtruth.csv", "test_labels.csv", "test.csv")
    if sheet is None:
        raise UserError(
            f"{release.root} has no test labels: put groundtruth.csv of {TEST_LABELS_SOURCE} there"
            " and the images under test/, or set data.carve_test = 0.1 to test on a tenth of the"
            " training patients"
        )
    return sheet


def locate_chexpert(path: str) -> ChexpertRelease:
    """The release's folder: as given, $FEDDRAW_CHEXPERT, or under its usual names in $FEDDRAW_DATA
    or here.
    """
    path = path or os.environ.get(CHEXPERT_VARIABLE, "")
    if path:
        homes = [expanded_path(path)]
    else:
        homes = [expanded_path(os.environ.get("FEDDRAW_DATA", ".")), Path()]
    for home in homes:
        for folder in (home, *(home / name for name in RELEASE_FOLDERS)):
            tables = (*folder.glob("train.csv*"), *folder.glob("*/train.csv"))
            if folder.is_dir() and tables:
                return ChexpertRelease(folder)
    raise UserError(
        f"no CheXpert in {homes[0]}: a folder with train.csv, valid.csv and the images is expected,"
        f" such as {RELEASE_FOLDERS[0]}; get it from {CHEXPERT_SOURCE} and give its path"
        " (data.path)"
    )


def read_chexpert(
    sheets: Mapping[int, Path],
    findings: FindingChoice = "paper",
    release: ChexpertRelease | None = None,
    blank: CellPolicy = None,
    uncertain: CellPolicy = None,
    subgroups: Sequence[SubgroupColumn] = (),
) -> LabelTable:
    """One table out of those of the splits, numbered as in data.dataset.SPLITS; without a release,
    only labels.
    """
    first = CsvSheet.of(sheets[0])
    names = tuple(choose_findings(findings, chexpert_findings(first), str(first.path)))
    negative = dict.fromkeys(names, "negative")
    blanks = cell_meanings("blank", _with_known_names(blank), names, negative)
    doubts = cell_meanings(
        "uncertain", _with_known_names(uncertain), names, negative | PAPER_UNCERTAIN
    )
    intake = TableIntake(names, subgroups)
    opened = {number: CsvSheet.of(path) for number, path in sheets.items()}
    headers = {str(sheet.path): sheet.header for sheet in opened.values()}
    of_subgroups = subgroup_places(subgroups, headers)
    for number, sheet in opened.items():
        path = sheet.path
        places = {canonical_finding(name): place for place, name in enumerate(sheet.header)}
        sex = sheet.column_if_there("Sex")
        chosen = choose_findings(names, chexpert_findings(sheet), str(path))
        columns = LabelColumns({name: places[name] for name in chosen})
        for image in frontal_images(sheet, release, intake.problems):
            intake.add(
                image.name,
                image.cells,
                columns,
                image.where,
                path=image.path,
                patient=image.patient,
                split=number,
                group="" if sex is None else image.cells[sex],
                subgroups=subgroup_cells(image.cells, of_subgroups[str(path)]),
            )
    return intake.table(blanks, doubts)


def _with_known_names(policy: CellPolicy) -> CellPolicy:
    """A policy for each finding, under the names that we use."""
    if not isinstance(policy, Mapping):
        return policy
    return {canonical_finding(name): meaning for name, meaning in policy.items()}


def chexpert_findings(sheet: CsvSheet) -> list[str]:
    """The columns of a table that are findings."""
    return [name for name in sheet.header if name not in NOT_FINDINGS]


@dataclass(frozen=True)
class FrontalImage:
    """A frontal image in a table."""

    name: str
    path: str  # relative to the release's folder; empty where only labels are read
    patient: str
    cells: list[str]
    where: str


def frontal_images(
    sheet: CsvSheet, release: ChexpertRelease | None, problems: list[RowProblem]
) -> Iterator[FrontalImage]:
    """Each frontal image in a table; rows that cannot be used are added to the problems."""
    by_study = "Study" in sheet.header
    column = sheet.column("Study" if by_study else "Path")
    view = sheet.column_if_there("Frontal/Lateral")
    pattern = _STUDY_PATH if by_study else _IMAGE_PATH
    for line, cells in sheet.rows():
        where = f"{sheet.path.name} line {line}"
        match = pattern.fullmatch(cells[column].replace("\\", "/"))
        if match is None:
            detail = cells[column][:80]
            problems.append(RowProblem("with a path that is not CheXpert's", where, detail))
            continue
        name, patient, rest = match.groups()
        if by_study and release is not None:
            views = release.frontal_views(name, patient, rest)
            if not views:
                problems.append(RowProblem("without a frontal image", where, name))
            for image, path in views:
                yield FrontalImage(image, path, patient, cells, where)
            continue
        frontal = "frontal" in rest if view is None else cells[view] == "Frontal"
        if frontal:
            path = ""
            if release is not None:
                split = name.split("/")[0]
                path = f"{release.patient_folder(split, patient)}/{rest}"
            yield FrontalImage(name, path, patient, cells, where)
