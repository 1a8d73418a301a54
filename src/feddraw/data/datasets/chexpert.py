"""CheXpert (Irvin et al., 2019) from its own folder, the small or the full release: frontal
radiographs only.

Validation is `valid.csv`, the test split the radiologists' labels: `groundtruth.csv` has one row
per study and `test_labels.csv` one row per image. Uncertain marks become 1 for Atelectasis and
Edema and 0 for the others, as in the paper; missing ones become 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.dataset import Dataset
from feddraw.data.dataset_from_table import dataset_from_files
from feddraw.data.finding_names import FindingChoice, canonical_finding, choose_findings
from feddraw.data.image_settings import ImagePreparation
from feddraw.data.label_cells import CellPolicy, cell_meanings
from feddraw.data.label_table import LabelTable, RowProblem, TableIntake
from feddraw.data.splits import draw_share_of_patients
from feddraw.errors import UserError
from feddraw.system.file_reading import expanded_path

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
        inner = [
            Path(found.path)
            for found in os.scandir(root)
            if found.is_dir() and found.name not in SPLIT_FOLDERS
        ]
        self.bases = [root, *sorted(inner)]
        self._patients: dict[str, dict[str, str]] = {}

    def table_file(self, *names: str) -> Path | None:
        """The first of these tables that is there."""
        return next(
            (base / name for name in names for base in self.bases if (base / name).is_file()), None
        )

    def patient_folder(self, split: str, patient: str) -> str:
        """A patient's folder, relative to the root."""
        if split not in self._patients:
            homes = [base / split for base in self.bases] + (self.bases if split == "train" else [])
            entries = [entry for home in homes if home.is_dir() for entry in os.scandir(home)]
            patients = [entry for entry in entries if entry.name.startswith("patient")]
            self._patients[split] = {
                one.name: str(Path(one.path).relative_to(self.root)) for one in patients
            }
        return self._patients[split].get(patient, f"{split}/{patient}")

    def frontal_views(self, study: str, patient: str, rest: str) -> list[tuple[str, str]]:
        """Names and paths of the frontal images of a test study."""
        folder = self.patient_folder("test", patient)
        found = sorted((self.root / folder / rest).glob("view*frontal*"))
        return [(f"{study}/{file.name}", f"{folder}/{rest}/{file.name}") for file in found]


def chexpert(
    how: ImagePreparation,
    *,
    path: str = "",
    findings: FindingChoice = "paper",
    blank: CellPolicy = None,
    uncertain: CellPolicy = None,
    carve_test: float = 0.0,
    seed: int = 0,
) -> Dataset:
    """CheXpert, 191,027 frontal training images, from its own folder (data.path).

    `carve_test` is the share of training images to test on where there are no others.
    """
    release = locate_chexpert(path)
    train = release.table_file("train.csv", "train.csv.gz")
    valid = release.table_file("valid.csv")
    if train is None or valid is None:
        lack = f"{release.root} has no train.csv and valid.csv"
        raise UserError(f"{lack}: not CheXpert's folder; get it from {CHEXPERT_SOURCE}")
    sheets = (
        {0: train, 1: valid}
        if carve_test
        else {0: train, 1: valid, 2: chexpert_test_sheet(release)}
    )
    table = read_chexpert(sheets, findings, release, blank, uncertain)
    if carve_test:
        table.split[
            draw_share_of_patients(table.labels, table.split_rows("train"), carve_test, seed)
        ] = 2
    return dataset_from_files("chexpert", release.root, table, how)


def chexpert_test_sheet(release: ChexpertRelease) -> Path:
    """The radiologists' labels, which the small release lacks."""
    found = release.table_file("groundtruth.csv", "test_labels.csv", "test.csv")
    if found is None:
        put = f"put groundtruth.csv of {TEST_LABELS_SOURCE} there and the images under test/"
        carve = "set data.carve_test = 0.1 to test on a tenth of the training patients"
        raise UserError(f"{release.root} has no test labels: {put}, or {carve}")
    return found


def locate_chexpert(path: str) -> ChexpertRelease:
    """The release's folder: as given, $FEDDRAW_CHEXPERT, or under its usual names in $FEDDRAW_DATA
    or here.
    """
    path = path or os.environ.get(CHEXPERT_VARIABLE, "")
    homes = (
        [expanded_path(path)]
        if path
        else [expanded_path(os.environ.get("FEDDRAW_DATA", ".")), Path()]
    )
    for home in homes:
        for folder in (home, *(home / name for name in RELEASE_FOLDERS)):
            if folder.is_dir() and (
                any(folder.glob("train.csv*")) or any(folder.glob("*/train.csv"))
            ):
                return ChexpertRelease(folder)
    expected = (
        "a folder with train.csv, valid.csv and the images is expected, such as"
        f" {RELEASE_FOLDERS[0]}"
    )
    advice = f"get it from {CHEXPERT_SOURCE} and give its path (data.path)"
    raise UserError(f"no CheXpert in {homes[0]}: {expected}; {advice}")


def read_chexpert(
    sheets: Mapping[int, Path],
    findings: FindingChoice = "paper",
    release: ChexpertRelease | None = None,
    blank: CellPolicy = None,
    uncertain: CellPolicy = None,
) -> LabelTable:
    """One table out of those of the splits, numbered as in data.dataset.SPLITS; without a release,
    only labels.
    """
    first = CsvSheet.of(sheets[0])
    names = tuple(choose_findings(findings, chexpert_findings(first), str(first.path)))
    negative = dict.fromkeys(names, "negative")
    blanks = cell_meanings("blank", _chexpert_cell_policy(blank), names, negative)
    doubts = cell_meanings(
        "uncertain", _chexpert_cell_policy(uncertain), names, negative | PAPER_UNCERTAIN
    )
    intake = TableIntake({})
    for number, path in sheets.items():
        sheet = CsvSheet.of(path)
        columns = {canonical_finding(name): place for place, name in enumerate(sheet.header)}
        sex = sheet.column_if_there("Sex")
        intake.findings = {
            name: columns[name]
            for name in choose_findings(names, chexpert_findings(sheet), str(path))
        }
        for name, place, patient, fields, where in frontal_images(sheet, release, intake.problems):
            group = "" if sex is None else fields[sex]
            intake.add(name, fields, where, path=place, patient=patient, split=number, group=group)
    return intake.table(blanks, doubts)


def _chexpert_cell_policy(policy: CellPolicy) -> CellPolicy:
    return (
        {canonical_finding(name): word for name, word in policy.items()}
        if isinstance(policy, Mapping)
        else policy
    )


def chexpert_findings(sheet: CsvSheet) -> list[str]:
    return [name for name in sheet.header if name not in NOT_FINDINGS]


def frontal_images(
    sheet: CsvSheet, release: ChexpertRelease | None, problems: list[RowProblem]
) -> Iterator[tuple[str, str, str, list[str], str]]:
    """Name, path, patient, fields and place of each frontal image in a table."""
    by_study = "Study" in sheet.header
    column = sheet.column("Study" if by_study else "Path")
    view = sheet.column_if_there("Frontal/Lateral")
    for line, fields in sheet.rows():
        where = f"{sheet.path.name} line {line}"
        found = (_STUDY_PATH if by_study else _IMAGE_PATH).fullmatch(
            fields[column].replace("\\", "/")
        )
        if found is None:
            problems.append(
                RowProblem("with a path that is not CheXpert's", where, fields[column][:80])
            )
            continue
        name, patient, rest = found.groups()
        if by_study and release is not None:
            files = release.frontal_views(name, patient, rest)
            problems.extend([] if files else [RowProblem("without a frontal image", where, name)])
            yield from ((one, place, patient, fields, where) for one, place in files)
        elif fields[view] == "Frontal" if view is not None else "frontal" in rest:
            place = (
                f"{release.patient_folder(name.split('/')[0], patient)}/{rest}" if release else ""
            )
            yield name, place, patient, fields, where
