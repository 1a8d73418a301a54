"""Inspect a user's data and write an experiment file for it: columns guessed, rows counted, sizes for the machine.

A table with one column per finding is used as it is; several, one per site, are used together. A single column of class
names, or a folder with one subfolder per class, is first written out as such a table beside the experiment file.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from feddraw.data import own_tables, table_columns
from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.dataset import SPLITS
from feddraw.data.dataset_from_table import missing_file_problem
from feddraw.data.imaging import BadImage, decode
from feddraw.data.label_cells import ABSENT, BLANK, CELL_WORDS, NO_COLUMN, PRESENT, UNCERTAIN, label_in_cell
from feddraw.data.label_table import LabelTable, RowProblem
from feddraw.errors import UserError
from feddraw.scenarios.by_site import MIN_SITE_IMAGES
from feddraw.schedules import ROUNDS
from feddraw.system.csv_cells import csv_text
from feddraw.system.workers import cores

LABEL_COLUMNS = ("label", "labels", "finding", "findings", "findinglabels", "class", "classes", "category", "diagnosis")
# Names that are no class of their own.
NORMAL_CLASSES = ("normal", "no finding", "nofinding", "no_finding", "healthy", "none", "negative")
# A column that only an archive has, its data set, and what lies beside the table in the archive's own folder.
KNOWN_ARCHIVES = {"Frontal/Lateral": ("chexpert", "valid.csv", "train.csv"), "Finding Labels": ("nih", "test_list.txt")}
MOST_LABEL_CLASSES = 50
SAMPLED_ROWS = 2000  # rows that guesses are based on

# Seconds of one training step of `compact` on 64 images, one core of an AMD EPYC, by height and width in pixels.
STEP_SECONDS = {224: 0.83, 128: 0.30, 64: 0.08, 32: 0.03}
FIRST_RUN_SECONDS = 20 * 60  # seconds that a first run may take
FIRST_RUN_EPOCHS = 2  # the paper's
UNCLEAR_CELLS = {BLANK: "blank", UNCERTAIN: "uncertain", NO_COLUMN: "without the column"}
ENOUGH_TO_HOLD_BACK = 100  # training images of the smallest client


@dataclass(frozen=True, eq=False)
class InspectedData:
    """What there is."""

    sheets: tuple[Path, ...]
    images: Path | None  # the folder that the tables' paths start from; none where it is each table's own
    written: str  # the table itself, where it had to be made
    columns: Mapping[str, str]  # path, split, site, patient: the columns' names, empty where there is none
    table: LabelTable
    guesses: tuple[str, ...]  # which columns are used and how, where that is not obvious
    missing: tuple[RowProblem, ...]  # rows without a file
    pixels: int  # the shorter side of the first image

    @property
    def sites(self) -> dict[str, int]:
        """Training images of each site."""
        labels = self.table.labels
        return {} if labels.sites is None else dict(Counter(labels.sites[self.table.split == 0].tolist()))

    @property
    def large_sites(self) -> dict[str, int]:
        """Those with enough training images to be clients."""
        return {site: count for site, count in self.sites.items() if count >= MIN_SITE_IMAGES}

    def positives(self, label: int = 1) -> dict[str, list[int]]:
        """Images known to be with each finding (0: without it) in the training, validation and test split."""
        labels = self.table.labels
        counts = [(labels.truth(self.table.split_rows(split)) == label).sum(axis=0).tolist() for split in SPLITS]
        return {name: [one[c] for one in counts] for c, name in enumerate(labels.findings)}

    def marks(self) -> dict[str, dict[int, int]]:
        """How many cells of each finding say present, absent, uncertain, or nothing."""
        assert self.table.marks is not None
        codes = (PRESENT, ABSENT, *UNCLEAR_CELLS)
        columns = zip(self.table.labels.findings, self.table.marks.T, strict=True)
        return {name: {code: int((column == code).sum()) for code in codes} for name, column in columns}

    def unlabelled(self) -> Iterator[str]:
        """Sites that do not label a finding at all."""
        labels = self.table.labels
        if labels.known is None or labels.sites is None:
            return
        for site in sorted(set(labels.sites.tolist())):
            known = labels.known[labels.sites == site].any(axis=0)
            if lacking := [name for name, there in zip(labels.findings, known, strict=True) if not there]:
                yield f"{', '.join(lacking)} at {site}"

    def sizes(self) -> list[int]:
        return [len(self.table.split_rows(split)) for split in SPLITS]


def inspect_data(paths: Path | Sequence[Path], out: Path, images: str = "") -> InspectedData:
    """What CSVs, or a folder with CSVs or with one subfolder per class, hold."""
    listed = [paths] if isinstance(paths, Path) else list(paths)
    for path in listed:
        if not path.exists():
            raise UserError(f"no file or folder {path}")
        if path.suffix == ".npz":
            raise UserError(f"{path} needs no experiment file: feddraw run --data {path} --scenario iid")
    if len(listed) == 1 and listed[0].is_dir():
        if not own_tables.csv_tables_in(listed[0]):
            made = init_table_of_classes(init_rows_of_class_folders(listed[0]))
            return inspect_made_table(out.with_suffix(".csv"), str(listed[0]), made)
        listed = own_tables.csv_tables_in(listed[0])
    sheets = [own_tables.find_own_table(path) for path in listed]
    for sheet in sheets:
        header = CsvSheet.of(sheet).header
        for known, (name, *beside) in KNOWN_ARCHIVES.items():
            if known in header and any((sheet.parent / file).is_file() for file in beside):
                how = f"feddraw run --data {name} --set data.path={sheet.parent}"
                raise UserError(f"{sheet} is a known archive: {how}")
    made = with_class_columns(CsvSheet.of(sheets[0])) if len(sheets) == 1 else ""
    if made:
        own = images or str(sheets[0].parent)
        return inspect_made_table(out.with_name(f"{out.stem}-labels.csv"), own, made, sheets[0])
    return inspect_tables(sheets, images, sheets[0])


def inspect_made_table(sheet: Path, images: str, content: str, original: Path | None = None) -> InspectedData:
    """As `inspect_tables`, for a table that is made from another or from class folders and not written yet."""
    with TemporaryDirectory() as folder:
        passing = Path(folder) / sheet.name
        passing.write_text(content, encoding="utf-8")
        return replace(inspect_tables([passing], images, original or sheet), sheets=(sheet,), written=content)


def inspect_tables(sheets: Sequence[Path], images: str, named: Path) -> InspectedData:
    """Read the tables, and find out what their columns are and which of their files are there; `named` is for words."""
    images = images or image_folder(sheets)
    root = own_tables.own_image_root(sheets, images)
    sources = own_tables.open_own_tables(sheets, root, images, {}, "all", False)
    table = own_tables.read_own_tables(sheets, root=root, images=images)
    columns = {}
    for kind in ("path", "split", "site", "patient"):
        found = [(source.sheet, getattr(source.layout, kind)) for source in sources]
        columns[kind] = next((sheet.header[place] for sheet, place in found if place is not None), "")
    missing = tuple(missing_file_problem(root, path) for path in table.paths if not (root / path).is_file())
    if len(missing) == len(table.paths):
        raise UserError(no_image_found(named, root, table, images))
    guesses = tuple(own_tables.own_table_guesses_in_words(sources))
    table = replace(table, notes=tuple(note for note in table.notes if note not in guesses))
    guesses = tuple(one.replace(sheets[0].name, named.name) for one in guesses)
    pixels = first_image_side(root, (path for path in table.paths if (root / path).is_file()))
    return InspectedData(tuple(sheets), root if images else None, "", columns, table, guesses, missing, pixels)


def image_folder(sheets: Sequence[Path]) -> str:
    """The folder below or above the table that its first paths start from; empty if that is the table's own."""
    if len(sheets) > 1:
        return ""
    source = own_tables.open_own_tables(sheets, sheets[0].parent, "", {}, "all", False)[0]
    some = [fields[source.layout.path].strip() for _, fields in islice(source.sheet.rows(), 50)]
    for folder in image_folder_candidates(sheets[0].parent, some):
        names = [own_tables.path_inside_folder(path, folder) for path in some]
        if any(name is not None and (folder / name).is_file() for name in names):
            return "" if folder == sheets[0].parent else str(folder)
    return ""


def image_folder_candidates(home: Path, paths: Sequence[str]) -> Iterator[Path]:
    """Where images may lie: beside the table, in a folder there, or in one that all paths name."""
    yield home
    try:
        yield from sorted(folder for folder in home.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    except OSError:
        return
    absolute = [path for path in paths if PurePosixPath(path).is_absolute()]
    if absolute and len(absolute) == len(paths):
        common = Path(os.path.commonpath([str(PurePosixPath(path).parent) for path in absolute]))
        if len(common.parts) > 2:  # never the whole disk
            yield common


def no_image_found(named: Path, root: Path, table: LabelTable, images: str) -> str:
    """That no image is where it should be, with what was tried."""
    if not table.paths:
        bad = table.problems[0]
        detail = f" ({bad.detail})" if bad.detail else ""
        return f"{named} has no row that can be used: {bad.where} {bad.what}{detail}"
    first = table.paths[0]
    folders = [root] if images else list(image_folder_candidates(root, [first]))
    tried = ", ".join(str(folder / first) for folder in folders[:4])
    where = "say where they are with `feddraw init --images FOLDER`"
    return f"{named}: none of its {len(table.paths):,} images is there; tried {tried}: {where}"


def first_image_side(folder: Path, paths: Iterable[str]) -> int:
    """Of the first image that can be read."""
    some, why = list(islice(paths, 20)), ""
    for path in some:
        try:
            return int(min(decode(folder / path).shape))
        except BadImage as error:
            why = why or f"{folder / path}: {error}"
    raise UserError(f"none of the first {len(some)} images that the table names can be read; {why}")


def init_rows_of_class_folders(folder: Path) -> Iterator[dict[str, str]]:
    """One row per image: its class is the folder it is in, its split a folder above it called train, val or test."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix.lower() in table_columns.IMAGE_SUFFIXES and len(inside.parts) > 1:
            split = next((name for name in inside.parts[:-2] if name.lower() in table_columns.SPLIT_NAMES), "")
            yield {"path": inside.as_posix(), "split": split.lower(), "label": inside.parts[-2]}


def with_class_columns(sheet: CsvSheet) -> str:
    """The table with one column per class, where it has one column of class names; empty where it needs no change."""
    place = table_columns.column_by_usual_name(sheet.header, LABEL_COLUMNS)
    sample = [fields for _, fields in islice(sheet.rows(), SAMPLED_ROWS)]
    if place is None or all(label_in_cell(fields[place]) is not None for fields in sample):
        return ""
    if (path := table_columns.path_column(sheet)) is None:
        return ""
    others = [names for kind, names in table_columns.USUAL_COLUMN_NAMES.items() if kind != "path"]
    columns = [path, *(table_columns.column_by_usual_name(sheet.header, names) for names in others)]
    kept = {sheet.header[column]: column for column in columns if column is not None}
    kept["label"] = place
    return init_table_of_classes({name: fields[column] for name, column in kept.items()} for _, fields in sheet.rows())


def init_table_of_classes(rows: Iterable[Mapping[str, str]]) -> str:
    """Rows with a `label`, several of them with | or ; between, as a table with one column per class.

    A row without a label is blank in all of them.
    """
    rows = list(rows)
    named = [[one.strip() for one in re.split(r"[|;]", row["label"])] for row in rows]
    every = {name for names in named for name in names}
    blank = {name for name in every if CELL_WORDS.get(name.lower()) == BLANK}
    classes = sorted(name for name in every - blank if name.lower() not in NORMAL_CLASSES)
    if not rows or not classes or len(classes) > MOST_LABEL_CLASSES:
        raise UserError(
            f"{len(classes)} classes in {len(rows):,} labelled images: give a CSV with one column per finding "
            "(0 or 1), a column of class names, or a folder with one subfolder per class"
        )
    others = [name for name in rows[0] if name != "label" and any(row[name] for row in rows)]
    lines = []
    for row, names in zip(rows, named, strict=True):
        silent = blank.issuperset(names)
        lines.append([*(row[name] for name in others), *("" if silent else int(name in names) for name in classes)])
    return csv_text([[*others, *classes], *lines])


@dataclass(frozen=True)
class FirstRun:
    """What to begin with."""

    scenario: str
    clients: int
    size: int  # pixels
    batch_size: int
    holdout: float
    minutes: float


def plan_first_run(found: InspectedData, processors: int | None = None) -> FirstRun:
    """Settings for a first run of some minutes."""
    sites = found.large_sites
    natural = len(sites) > 1
    images, clients = found.sizes()[0], len(sites) if natural else 4
    smallest = min(sites.values()) if natural else images // 8
    batch = next((size for size in (64, 32, 16) if smallest >= 4 * size), 8)
    busy = min(processors or cores(), clients)
    seconds = {px: ROUNDS * FIRST_RUN_EPOCHS * images / 64 * step / busy for px, step in STEP_SECONDS.items()}
    fitting = [px for px in STEP_SECONDS if px <= found.pixels and seconds[px] <= FIRST_RUN_SECONDS]
    size = max(fitting, default=min(STEP_SECONDS))
    holdout = 0.2 if smallest >= ENOUGH_TO_HOLD_BACK else 0.0
    return FirstRun("by_site" if natural else "quantity", clients, size, batch, holdout, seconds[size] / 60)


def experiment_file_text(found: InspectedData, chosen: FirstRun, command: str, name: str) -> str:
    """The experiment file, with a comment for everything that one may want to change."""
    lines = [
        f"# Written by `{comment_text(command)}`. To run it, from the folder where that was typed:",
        f"#     feddraw run {comment_text(name)}",
        f"# About {max(1, round(chosen.minutes))} min on this machine. What is not here has its default. Change a",
        "# setting here, or for one run with --set, as in --set method.beta_max=2.",
        "",
        toml_line("rounds", ROUNDS, "rounds of training, T; FedDRAW's schedules run over all of them"),
        toml_line("seed", 0, "initial model, batches and partition; give several runs several seeds"),
        toml_line(
            "holdout", chosen.holdout, "share of each client's images kept back to test the model on that client"
        ),
        "",
        "[data]",
        *data_section(found, chosen),
        "",
        "[scenario]",
        *init_scenario_section(found, chosen),
        "",
        "[model]",
        toml_line("name", "compact", "small DenseNet; densenet121 is the paper's (pip install 'feddraw[densenet]')"),
        "",
        "[method]",
        toml_line("name", "feddraw", "run fedavg and uniform beside it: feddraw list methods"),
        "",
        "[training]",
        toml_line("epochs", FIRST_RUN_EPOCHS, "local epochs per round"),
        toml_line("batch_size", chosen.batch_size, "the smallest client should fill several batches"),
        toml_line("lr", 1e-3, "Adam's; 1e-5 for densenet121, as in the paper"),
        toml_line("augment", False, "turn, shift and scale each batch a little"),
    ]
    return "\n".join(lines) + "\n"


def data_section(found: InspectedData, chosen: FirstRun) -> Iterator[str]:
    names = {"split": "training, validation, test", "site": "who owns the image", "patient": "kept in one split"}
    yield toml_line("name", "folder", "a table and image files")
    tables = [path_in_toml(sheet) for sheet in found.sheets]
    one = "the table; relative paths start where the command is typed"
    several = "one table per site; a finding that a table lacks is unknown there"
    yield toml_line("path", tables if tables[1:] else tables[0], several if tables[1:] else one)
    if found.images is not None:
        yield toml_line("images", path_in_toml(found.images), "the folder that its paths start from")
    yield toml_line("path_column", found.columns["path"], "PNG, JPEG or DICOM files")
    for kind, meaning in names.items():
        if found.columns[kind]:
            yield toml_line(f"{kind}_column", found.columns[kind], meaning)
    if not found.columns["split"]:
        yield toml_line("shares", [0.7, 0.1, 0.2], "training, validation, test: by patient, each finding in proportion")
    yield "findings = ["
    for name, counts in found.marks().items():
        said = f"{counts[PRESENT]:,} positive, {counts[ABSENT]:,} negative"
        unclear = [f"{counts[code]:,} {word}" for code, word in UNCLEAR_CELLS.items() if counts[code]]
        yield f"  {json.dumps(name, ensure_ascii=False)},".ljust(31) + f" # {', '.join([said, *unclear])}"
    yield "]"
    first = json.dumps(next(iter(found.marks())), ensure_ascii=False)
    each = f'unknown, negative, positive, or {{ {first} = "negative" }}'
    totals = {code: sum(counts[code] for counts in found.marks().values()) for code in UNCLEAR_CELLS}
    yield toml_line("blank", "unknown", f"{totals[BLANK]:,} blank or NA cells: {each}")
    yield toml_line("uncertain", "unknown", f"{totals[UNCERTAIN]:,} cells of -1 or uncertain: as above")
    if found.missing or found.table.problems:
        bad = len(found.missing) + len(found.table.problems)
        yield toml_line("skip_bad", False, f"true leaves out the {bad:,} rows that cannot be used")
    yield toml_line("size", chosen.size, "height and width in pixels")
    yield toml_line("clahe", False, "equalise contrast, as the paper does")
    yield toml_line("normalize", "measured", "mean and spread of the training images; paper takes its own")


def init_scenario_section(found: InspectedData, chosen: FirstRun) -> Iterator[str]:
    yield toml_line("name", chosen.scenario, clients_in_words(found, chosen))
    if chosen.scenario == "by_site":
        yield toml_line("minimum", MIN_SITE_IMAGES, "training images below which a site is left out")
        return
    yield toml_line("clients", chosen.clients, "iid and dirichlet are others: feddraw list scenarios")
    if found.columns["patient"]:
        yield toml_line("patient_disjoint", True, "all images of a patient at one client")


def clients_in_words(found: InspectedData, chosen: FirstRun) -> str:
    """Who the clients are, who is left out, and why the table's sites are not the clients where they are not."""
    if chosen.scenario == "by_site":
        said = f"each site is a client: {sites_in_words(found.large_sites)}"
        small = {site: count for site, count in found.sites.items() if site not in found.large_sites}
        return said + (f"; left out, under {MIN_SITE_IMAGES} training images: {sites_in_words(small)}" if small else "")
    few = f"fewer than two sites have {MIN_SITE_IMAGES} training images ({sites_in_words(found.sites)})"
    why = few if found.sites else "no column names sites"
    return f"{why}, so {chosen.clients} clients of unequal size are invented"


def sites_in_words(sites: Mapping[str, int]) -> str:
    some = ", ".join(f"{site} {count:,}" for site, count in islice(sites.items(), 8))
    return some + (", …" if len(sites) > 8 else "")


def toml_line(name: str, value: object, comment: str) -> str:
    """A line of TOML; JSON writes these values as TOML does."""
    return f"{name} = {json.dumps(value, ensure_ascii=False)}".ljust(31) + f" # {comment_text(comment)}"


def comment_text(text: str) -> str:
    """A comment that stays one, whatever a table's sites are called."""
    return "".join(character if character.isprintable() else " " for character in text)


def path_in_toml(path: Path) -> str:
    return Path(os.path.relpath(path)).as_posix() if not path.is_absolute() else path.as_posix()


def init_findings_without_auc(found: InspectedData) -> list[str]:
    """Findings without a positive or a negative image in some split: no AUC there."""
    negatives = found.positives(label=0)
    return [name for name, counts in found.positives().items() if 0 in [*counts, *negatives[name]]]


def unusable_rows(found: InspectedData) -> tuple[RowProblem, ...]:
    return (*found.table.problems, *found.missing)
