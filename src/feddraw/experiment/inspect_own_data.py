"""Inspect a user's data: where the images lie, which columns are what, how many rows can be used.

A table with one column per finding is used as it is; several, one per site, are used together. A
single column of class names, or a folder with one subfolder per class, is first made into such a
table (`class_tables`), which is to be written beside the experiment file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

import numpy as np

from feddraw.data import own_tables
from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.dataset import SPLITS
from feddraw.data.dataset_from_table import missing_file_problem
from feddraw.data.finding_counts import ClientCounts, LabelWords, class_notes
from feddraw.data.image_facts import FactsBySite, ImageFacts
from feddraw.data.image_folder import require_pydicom_for
from feddraw.data.label_cells import ABSENT, BLANK, NO_COLUMN, PRESENT, UNCERTAIN
from feddraw.data.label_table import DUPLICATE, LabelTable, RowProblem
from feddraw.data.own_tables import OwnTable
from feddraw.data.scenarios.by_site import MIN_SITE_IMAGES
from feddraw.data.table_columns import IMAGE_SUFFIXES
from feddraw.errors import UserError
from feddraw.experiment.class_tables import (
    ClassTable,
    table_of_class_column,
    table_of_class_folders,
)
from feddraw.experiment.own_images import (
    first_image_side,
    image_folder,
    no_image_found,
    try_images,
)
from feddraw.experiment.task_of_table import class_candidates, class_column_of
from feddraw.tasks import make_task

# A column that only an archive has, its data set, and what lies beside the table in the archive's
# own folder.
KNOWN_ARCHIVES = {
    "Frontal/Lateral": ("chexpert", "valid.csv", "train.csv"),
    "Finding Labels": ("nih", "test_list.txt"),
}
SHOWN_COLUMNS = ("path", "split", "site", "patient", "group")
UNCLEAR_CELLS = {BLANK: "blank", UNCERTAIN: "uncertain", NO_COLUMN: "without the column"}


@dataclass(frozen=True, eq=False)
class InspectedData:
    """What there is."""

    sheets: tuple[Path, ...]
    # The folder that the tables' paths start from; none where it is each table's own.
    images: Path | None
    written: str  # the table itself, where it had to be made
    # Path, split, site, patient, group: the columns' names, empty where there is none.
    columns: Mapping[str, str]
    class_column: str  # that names the class of each image; empty where there are findings
    table: LabelTable  # without the rows that no run can use, which are its problems
    named_sites: tuple[str, ...]  # all that the table names, also those without a usable row
    guesses: tuple[str, ...]  # which columns are used and how, where that is not obvious
    files: int  # images whose file is there
    tried: int  # of these, how many were opened
    pixels: int  # the shorter side of the first image
    facts: FactsBySite  # what the opened images are
    other_class_columns: tuple[str, ...] = ()  # that look as if they named classes, too

    @property
    def sites(self) -> dict[str, int]:
        """Training images of each site."""
        of_images = self.table.labels.sites
        if of_images is None:
            return {}
        counts = Counter(of_images[self.table.split == 0].tolist())
        return {site: counts[site] for site in self.named_sites}

    @property
    def large_sites(self) -> dict[str, int]:
        """Those with enough training images to be clients."""
        return {site: count for site, count in self.sites.items() if count >= MIN_SITE_IMAGES}

    def sizes(self) -> list[int]:
        """Images in the training, validation and test split."""
        return [len(self.table.split_rows(split)) for split in SPLITS]

    def positives(self) -> dict[str, list[int]]:
        """Images known to be with each finding, by split."""
        return self._labelled(1)

    def negatives(self) -> dict[str, list[int]]:
        """Images known to be without each finding, by split."""
        return self._labelled(0)

    def _labelled(self, value: int) -> dict[str, list[int]]:
        labels = self.table.labels
        by_split = [
            (labels.truth(self.table.split_rows(split)) == value).sum(axis=0) for split in SPLITS
        ]
        counts = np.stack(by_split, axis=1).tolist()
        return dict(zip(labels.findings, counts, strict=True))

    def findings_without_auc(self) -> list[str]:
        """Findings without a positive or a negative image in some split: no AUC there."""
        positives = self.positives()
        negatives = self.negatives()
        return [name for name in positives if 0 in [*positives[name], *negatives[name]]]

    def marks(self) -> dict[str, dict[int, int]]:
        """How many cells of each finding say present, absent, uncertain, or nothing."""
        assert self.table.marks is not None
        codes = (PRESENT, ABSENT, *UNCLEAR_CELLS)
        columns = zip(self.table.labels.findings, self.table.marks.T, strict=True)
        return {
            name: {code: int((column == code).sum()) for code in codes} for name, column in columns
        }

    def unlabelled(self) -> Iterator[str]:
        """Sites that do not label a finding at all."""
        labels = self.table.labels
        if labels.known is None or labels.sites is None:
            return
        for site in sorted(set(labels.sites.tolist())):
            known = labels.known[labels.sites == site].any(axis=0)
            findings = zip(labels.findings, known, strict=True)
            lacking = [name for name, is_known in findings if not is_known]
            if lacking:
                yield f"{', '.join(lacking)} at {site}"

    @property
    def unusable_rows(self) -> tuple[RowProblem, ...]:
        """Rows without labels that can be read, without a file, or with one that cannot be read."""
        return self.table.problems

    @property
    def has_duplicates(self) -> bool:
        """Whether an image has more than one row."""
        return any(problem.what.startswith(DUPLICATE) for problem in self.table.problems)

    def class_notes(self) -> list[str]:
        """What users should know of sites whose training images lack a class, of all findings or of
        some.
        """
        labels = self.table.labels
        if labels.sites is None:
            return []
        training = self.table.split == 0
        counts = [
            ClientCounts.of(site, labels, np.flatnonzero(training & (labels.sites == site)))
            for site in self.large_sites
        ]
        return class_notes(counts, labels.findings, self.words)

    def task_in_words(self) -> str:
        """What was taken for the labels, why, and how to change it."""
        names = self.table.labels.findings
        others = f": {' or '.join(map(quote, self.other_class_columns))}"
        if not self.class_column:
            columns = "1 column says" if len(names) == 1 else f"{len(names)} columns say"
            words = f"findings: {columns} present or absent, whatever the others say"
            if self.other_class_columns:
                words += f". For one class per image give --class-column NAME{others}"
            return words
        source = "the folders" if self.written else f"the column {self.class_column}"
        words = (
            f"classes: {source} name{'' if self.written else 's'} exactly one of {len(names)} for"
            " each image, so the network chooses one of them. To train each as a finding of its"
            ' own, which may be there or not, set data.task = "findings" in the file'
        )
        if self.other_class_columns:
            words += f"; for other classes give --class-column NAME{others}"
        return words

    @property
    def words(self) -> LabelWords:
        """How its labels are spoken of."""
        return make_task(self.table.labels.task, {}).words.labels

    def label_notes(self) -> Iterator[str]:
        """What is unknown, what no site labels, and what a split lacks, a sentence each."""
        unclear = any(
            counts[code] for counts in self.marks().values() for code in (BLANK, UNCERTAIN)
        )
        if self.class_column and unclear:
            blank = next(iter(self.marks().values()))[BLANK]
            yield f"{blank:,} images have no class: they are left out of loss and metrics"
        elif unclear:
            yield (
                "blank and uncertain labels count as unknown; data.blank and data.uncertain change"
                " this"
            )

    def split_notes(self) -> Iterator[str]:
        """What sites do not label, and what a split lacks, a sentence each."""
        if unlabelled := list(self.unlabelled()):
            yield f"not labelled at some sites: {'; '.join(unlabelled)}"
        if names := self.findings_without_auc():
            lacks = (
                "image of the class" if self.class_column else "positive or no negative image of"
            )
            yield f"a split has no {lacks} {', '.join(names)}: no AUC for it there"
        counts = self.positives()
        single = [name for name in counts if sum(counts[name]) == 1]
        if self.class_column and single:
            yield (
                f"one image only of {', '.join(single)}: it is in one split, so it cannot be learnt"
                " and tested; give more images, or take the class out of data.classes"
            )


def inspect_data(
    paths: Path | Sequence[Path], out: Path, images: str = "", class_column: str = ""
) -> InspectedData:
    """What CSVs, or a folder with CSVs or with one subfolder per class, hold; `class_column` is
    the column that names the class of each image, where the user says it.
    """
    given = [paths] if isinstance(paths, Path) else list(paths)
    for path in given:
        _refuse_no_table(path)
    if len(given) == 1 and given[0].is_dir():
        folder = given[0]
        given = own_tables.csv_tables_in(folder)
        if not given:
            if class_column:
                raise UserError(f"{folder} has no table, so --class-column has no meaning")
            made = table_of_class_folders(folder)
            return inspect_made_table(made, out.with_suffix(".csv"), str(folder))
    sheets = [own_tables.find_table(path) for path in given]
    for sheet in sheets:
        _refuse_known_archive(sheet)
    opened = [CsvSheet.of(sheet) for sheet in sheets]
    made_of_names = None
    if len(sheets) == 1 and not class_column:
        made_of_names = table_of_class_column(opened[0])
    if made_of_names is not None:
        beside_out = out.with_name(f"{out.stem}-labels.csv")
        folder_of_images = images or str(sheets[0].parent)
        return inspect_made_table(made_of_names, beside_out, folder_of_images, sheets[0])
    named = class_column_of(opened, class_column)
    inspected = inspect_tables(sheets, images, shown_as=sheets[0], class_column=named)
    others = [name for name in class_candidates(opened[0]) if name != named]
    return replace(inspected, other_class_columns=tuple(others))


def _refuse_no_table(path: Path) -> None:
    """Say what to do with a path that is neither a table nor a folder."""
    if not path.exists():
        raise UserError(f"no file or folder {path}")
    if path.suffix.lower() in (".zip", ".tar", ".tgz", ".7z"):
        raise UserError(f"{path} is an archive: unpack it and give the folder or its table")
    if path.suffix == ".toml":
        raise UserError(f"{path} is an experiment file already: feddraw run {quote(str(path))}")
    if path.is_file() and path.name.lower().endswith(IMAGE_SUFFIXES):
        raise UserError(f"{path} is an image: give the table that names it, or its folder")
    if path.suffix == ".npz":
        raise UserError(
            f"{path} needs no experiment file: feddraw run --data {path} --scenario iid"
        )


def _refuse_known_archive(sheet: Path) -> None:
    """Such as CheXpert's: it is a data set of its own."""
    header = CsvSheet.of(sheet).header
    for column, (name, *beside) in KNOWN_ARCHIVES.items():
        if column in header and any((sheet.parent / file).is_file() for file in beside):
            how = f"feddraw run --data {name} --set data.path={sheet.parent}"
            raise UserError(f"{sheet} is a known archive: {how}")


def inspect_made_table(
    made: ClassTable, sheet: Path, images: str, original: Path | None = None
) -> InspectedData:
    """As `inspect_tables`, for a table that is made from another or from class folders and is to be
    written to `sheet`.
    """
    with TemporaryDirectory() as folder:
        temporary = Path(folder) / sheet.name
        temporary.write_text(made.content, encoding="utf-8")
        inspected = inspect_tables(
            [temporary], images, shown_as=original or sheet, class_column=made.class_column
        )
    return replace(
        inspected,
        sheets=(sheet,),
        written=made.content,
        guesses=(*made.notes, *inspected.guesses),
    )


def inspect_tables(
    sheets: Sequence[Path], images: str, shown_as: Path, class_column: str = ""
) -> InspectedData:
    """Read the tables, and find out what their columns are and which of their files are there;
    messages call the first table `shown_as`.
    """
    images = images or image_folder(sheets, class_column)
    root = own_tables.image_root(sheets, images)
    settings = own_tables.TableSettings(images=images, class_column=class_column)
    sources = own_tables.open_tables(sheets, settings, root)
    table = own_tables.read_own_tables(sheets, settings, root=root)
    missing = tuple(
        missing_file_problem(root, path) for path in table.paths if not (root / path).is_file()
    )
    if len(missing) == len(table.paths):
        raise UserError(no_image_found(shown_as, root, table, images))
    missing_paths = {problem.where for problem in missing}
    present_paths = [path for path in table.paths if path not in missing_paths]
    require_pydicom_for(root / path for path in present_paths)
    pixels = first_image_side(root, present_paths)
    unread, facts = try_images(root, present_paths)
    of_rows = table.labels.sites
    named_sites = () if of_rows is None else tuple(dict.fromkeys(of_rows.tolist()))
    bad_paths = missing_paths | {problem.where for problem in unread}
    usable = np.array([path not in bad_paths for path in table.paths])
    # Splits stay as they were assigned to all rows, as they do in a run that leaves some out.
    table = table.take(np.flatnonzero(usable), (*missing, *unread))
    file_names = [shown_as.name, *(sheet.name for sheet in sheets[1:])]
    return InspectedData(
        sheets=tuple(sheets),
        images=root if images else None,
        written="",
        columns={kind: _column_name(sources, kind) for kind in SHOWN_COLUMNS},
        class_column=class_column,
        table=_without_notes(table, own_tables.guesses_in_words(sources)),
        named_sites=named_sites,
        guesses=tuple(own_tables.guesses_in_words(sources, file_names)),
        files=len(present_paths),
        tried=len(facts) + len(unread),
        pixels=pixels,
        facts=_by_site(table, facts),
    )


def _by_site(table: LabelTable, facts: Mapping[str, ImageFacts]) -> dict[str, list[ImageFacts]]:
    """What the opened images are, by their site."""
    sites = table.labels.sites
    names = ["all"] * len(table.paths) if sites is None else sites.tolist()
    by_site: dict[str, list[ImageFacts]] = {name: [] for name in sorted(set(names))}
    for path, name in zip(table.paths, names, strict=True):
        if path in facts:
            by_site[name].append(facts[path])
    return by_site


def _column_name(sources: Sequence[OwnTable], kind: str) -> str:
    """What the first table that has such a column calls it; empty where none has one."""
    for source in sources:
        place = getattr(source.layout, kind)
        if place is not None:
            return str(source.sheet.header[place])
    return ""


def _without_notes(table: LabelTable, notes: Iterable[str]) -> LabelTable:
    """The table without notes that are given elsewhere, with the names that the user knows."""
    elsewhere = set(notes)
    return replace(table, notes=tuple(note for note in table.notes if note not in elsewhere))
