"""Look at somebody's data and write an experiment file for it: columns guessed, rows counted, sizes for the machine.

A table with one column a finding is used as it is. A single column of class names, or a folder with one subfolder a
class, is first written out as such a table beside the experiment file.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import SPLITS
from feddraw.data.imaging import BadImage, decode
from feddraw.data.tables import Problem, Sheet, Table
from feddraw.datasets.folder import (
    SAMPLE,
    SPLIT_NAMES,
    SUFFIXES,
    USUAL,
    Layout,
    find_sheet,
    guess,
    holding_paths,
    read_sheet,
)
from feddraw.datasets.folder import place_of as place_by_name
from feddraw.errors import UserError
from feddraw.naming import csv_text
from feddraw.system.workers import cores

LABELS = ("label", "labels", "finding", "findings", "findinglabels", "class", "classes", "category", "diagnosis")
NORMAL = ("normal", "no finding", "nofinding", "no_finding", "healthy", "none", "negative", "")  # no class of its own
MOST_CLASSES = 50

# Seconds of one training step of `compact` on 64 images, one core of an AMD EPYC, by height and width in pixels.
STEP = {224: 0.83, 128: 0.30, 64: 0.08, 32: 0.03}
BUDGET = 20 * 60  # seconds that a first run may take
ROUNDS, EPOCHS = 15, 2  # the paper's
SMALLEST_CLIENT = 8  # images, below which sites make no clients


@dataclass(frozen=True, eq=False)
class Survey:
    """What there is."""

    sheet: Path
    images: Path  # the folder that the table's paths start from
    written: str  # the table itself, where it had to be made
    columns: Mapping[str, str]  # path, split, site, patient: the columns' names, empty where there is none
    table: Table
    missing: tuple[str, ...]  # paths without a file
    pixels: int  # the shorter side of the first image

    @property
    def sites(self) -> dict[str, int]:
        """Training images of each site."""
        labels = self.table.labels
        return {} if labels.sites is None else dict(Counter(labels.sites[self.table.split == 0].tolist()))

    def positives(self) -> dict[str, list[int]]:
        """Images with each finding in the training, validation and test split."""
        values, split = self.table.labels.values, self.table.split
        counts = [values[split == number].sum(axis=0) for number in range(len(SPLITS))]
        return {name: [int(one[c]) for one in counts] for c, name in enumerate(self.table.labels.findings)}

    def sizes(self) -> list[int]:
        return [int((self.table.split == number).sum()) for number in range(len(SPLITS))]


# ---------------------------------------------------------------------------------------------------- looking


def look(path: Path, out: Path) -> Survey:
    """What a CSV, or a folder with a CSV or with a subfolder a class, holds."""
    if not path.exists():
        raise UserError(f"no file or folder {path}")
    if path.suffix == ".npz":
        raise UserError(f"{path} needs no file of settings: feddraw run --data {path} --scenario iid")
    if path.is_dir() and not [*path.glob("*.csv"), *path.glob("*.csv.gz")]:
        return survey(out.with_suffix(".csv"), path, as_table(classes_of(path)))
    sheet = find_sheet(path)
    header = Sheet.of(sheet).header
    for mark, name in (("Frontal/Lateral", "chexpert"), ("Finding Labels", "nih")):
        if mark in header:
            raise UserError(f"{sheet} is a known archive: feddraw run --data {name} --set data.path={sheet.parent}")
    made = expanded(Sheet.of(sheet))
    return survey(out.with_name(f"{out.stem}-labels.csv") if made else sheet, sheet.parent, made)


def survey(sheet: Path, images: Path, written: str) -> Survey:
    """Read the table, and find out what its columns are and which of its files are there."""
    layout, header, table = read(sheet, images, written)
    places = {"path": layout.path, "split": layout.split, "site": layout.site, "patient": layout.patient}
    columns = {kind: "" if place is None else header[place] for kind, place in places.items()}
    missing = tuple(path for path in table.paths if not (images / path).is_file())
    return Survey(sheet, images, written, columns, table, missing, shorter_side(images, table.paths))


def read(sheet: Path, images: Path, written: str) -> tuple[Layout, Sequence[str], Table]:
    """A table, also one that is not on the disk yet."""
    if not written:
        found = Sheet.of(sheet)
        return guess(found, {}, "all"), found.header, read_sheet(sheet, root=images)
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        passing = Path(folder) / sheet.name
        passing.write_text(written, encoding="utf-8")
        return read(passing, images, "")


def shorter_side(folder: Path, paths: Iterable[str]) -> int:
    """Of the first image that can be read."""
    for path in islice(paths, 20):
        try:
            return int(min(decode(folder / path).shape))
        except BadImage:
            continue
    raise UserError(f"none of the first images that the table names can be read from {folder}: is it the right folder?")


def classes_of(folder: Path) -> Iterator[dict[str, str]]:
    """A row an image: its class is the folder it is in, its part a folder above it called train, val or test."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix.lower() in SUFFIXES and len(inside.parts) > 1:
            split = next((name for name in inside.parts[:-2] if name.lower() in SPLIT_NAMES), "")
            yield {"path": inside.as_posix(), "split": split.lower(), "label": inside.parts[-2]}


def expanded(sheet: Sheet) -> str:
    """The table with a column a class, where it has one column of class names; nothing where it needs no change."""
    place = place_by_name(sheet, "", LABELS)
    sample = [fields for _, fields in islice(sheet.rows(), SAMPLE)]
    if place is None or all(re.fullmatch(r"-?[01](\.0)?|", fields[place].strip()) for fields in sample):
        return ""
    usual = {kind: place_by_name(sheet, "", names) for kind, names in USUAL.items()}
    path = usual["path"] if usual["path"] is not None else next(holding_paths(sheet, sample), None)
    if path is None:
        return ""
    kept = {sheet.header[column]: column for column in {path: 0, **dict.fromkeys(usual.values())} if column is not None}
    rows = (
        {name: fields[column] for name, column in kept.items()} | {"label": fields[place]} for _, fields in sheet.rows()
    )
    return as_table(rows)


def as_table(rows: Iterable[Mapping[str, str]]) -> str:
    """Rows with a `label`, several of them with | or ; between, as a table with a column a class."""
    rows = list(rows)
    named = [[one.strip() for one in re.split(r"[|;]", row["label"])] for row in rows]
    classes = sorted({name for names in named for name in names if name.lower() not in NORMAL})
    if not rows or not classes or len(classes) > MOST_CLASSES:
        raise UserError(
            f"{len(classes)} classes in {len(rows):,} labelled images: give a CSV with a column a finding (0 or 1), "
            "a column of class names, or a folder with a subfolder a class"
        )
    others = [name for name in rows[0] if name != "label" and any(row[name] for row in rows)]
    lines = [
        [*(row[name] for name in others), *(int(name in names) for name in classes)]
        for row, names in zip(rows, named, strict=True)
    ]
    return csv_text([[*others, *classes], *lines])


# ---------------------------------------------------------------------------------------------------- choosing


@dataclass(frozen=True)
class Plan:
    """What to begin with."""

    scenario: str
    clients: int
    size: int  # pixels
    batch_size: int
    holdout: float
    minutes: float


def plan(found: Survey, processors: int | None = None) -> Plan:
    """Settings for a first run of some minutes."""
    sites = found.sites
    natural = len(sites) > 1 and min(sites.values()) >= SMALLEST_CLIENT
    images, clients = found.sizes()[0], len(sites) if natural else 4
    smallest = min(sites.values()) if natural else images // 8
    batch = next((size for size in (64, 32, 16) if smallest >= 4 * size), 8)
    busy = min(processors or cores(), clients)
    seconds = {px: ROUNDS * EPOCHS * images / 64 * step / busy for px, step in STEP.items()}
    fitting = [px for px in STEP if px <= found.pixels and seconds[px] <= BUDGET]
    size = max(fitting, default=min(STEP))
    holdout = 0.2 if smallest >= 100 else 0.0
    return Plan("by_site" if natural else "quantity", clients, size, batch, holdout, seconds[size] / 60)


# ---------------------------------------------------------------------------------------------------- writing


def document(found: Survey, chosen: Plan, command: str, name: str) -> str:
    """The experiment file, with a comment for everything that one may want to change."""
    lines = [
        f"# Written by `{one_line(command)}`. To run it, from the folder where that was typed:",
        f"#     feddraw run {one_line(name)}",
        f"# About {max(1, round(chosen.minutes))} min on this machine. What is not here has its default. Change a",
        "# setting here, or for one run with --set, as in --set method.beta_max=2.",
        "",
        setting("rounds", ROUNDS, "rounds of training, T; FedDRAW's schedules run over all of them"),
        setting("seed", 0, "initial model, batches and partition; give several runs several seeds"),
        setting("holdout", chosen.holdout, "share of each client's images kept back to test the model on that client"),
        "",
        "[data]",
        *data_lines(found, chosen),
        "",
        "[scenario]",
        *scenario_lines(found, chosen),
        "",
        "[model]",
        setting("name", "compact", "small DenseNet; densenet121 is the paper's (pip install 'feddraw[densenet]')"),
        "",
        "[method]",
        setting("name", "feddraw", "run fedavg and uniform beside it: feddraw list methods"),
        "",
        "[training]",
        setting("epochs", EPOCHS, "local epochs a round"),
        setting("batch_size", chosen.batch_size, "the smallest client should fill several batches"),
        setting("lr", 1e-3, "Adam's; 1e-5 for densenet121, as in the paper"),
        setting("augment", False, "turn, shift and scale each batch a little"),
    ]
    return "\n".join(lines) + "\n"


def data_lines(found: Survey, chosen: Plan) -> Iterator[str]:
    names = {"split": "training, validation, test", "site": "who owns the image", "patient": "kept in one part"}
    positives = found.positives()
    yield setting("name", "folder", "a table and image files")
    yield setting("path", shown(found.sheet), "the table; relative paths start where the command is typed")
    if found.images != found.sheet.parent:
        yield setting("images", shown(found.images), "the folder that its paths start from")
    yield setting("path_column", found.columns["path"], "PNG, JPEG or DICOM files")
    for kind, meaning in names.items():
        if found.columns[kind]:
            yield setting(f"{kind}_column", found.columns[kind], meaning)
    if not found.columns["split"]:
        yield setting("shares", [0.7, 0.1, 0.2], "no column says train or test: dealt by patient, or by image")
    yield "findings = ["
    for name, counts in positives.items():
        yield f"  {json.dumps(name, ensure_ascii=False)},".ljust(31) + f" # {sum(counts):,} positive"
    yield "]"
    if found.missing or found.table.problems:
        bad = len(found.missing) + len(found.table.problems)
        yield setting("skip_bad", False, f"true leaves out the {bad:,} rows that cannot be used")
    yield setting("size", chosen.size, "height and width in pixels")
    yield setting("clahe", False, "equalise contrast, as the paper does")
    yield setting("normalize", "measured", "mean and spread of the training images; paper takes its own")


def scenario_lines(found: Survey, chosen: Plan) -> Iterator[str]:
    if chosen.scenario == "by_site":
        sizes = ", ".join(f"{site} {count:,}" for site, count in islice(found.sites.items(), 8))
        yield setting("name", "by_site", f"each site a client: {sizes}{', …' if len(found.sites) > 8 else ''}")
        return
    why = "no column names sites" if not found.columns["site"] else f"a site has under {SMALLEST_CLIENT} images"
    yield setting("name", "quantity", f"{why}: clients are made, of unequal size")
    yield setting("clients", chosen.clients, "iid and dirichlet are others: feddraw list scenarios")
    if found.columns["patient"]:
        yield setting("patient_disjoint", True, "all images of a patient at one client")


def setting(name: str, value: object, comment: str) -> str:
    """A line of TOML; JSON writes these values as TOML does."""
    return f"{name} = {json.dumps(value, ensure_ascii=False)}".ljust(31) + f" # {one_line(comment)}"


def one_line(text: str) -> str:
    """A comment that stays one, whatever a table's sites are called."""
    return "".join(character if character.isprintable() else " " for character in text)


def shown(path: Path) -> str:
    return Path(os.path.relpath(path)).as_posix() if not path.is_absolute() else path.as_posix()


def rare(found: Survey) -> list[str]:
    """Findings without a positive or a negative image in some split: no AUC there."""
    sizes = np.array(found.sizes())
    return [name for name, counts in found.positives().items() if _one_label(np.array(counts), sizes)]


def _one_label(counts: NDArray[np.int_], sizes: NDArray[np.int_]) -> bool:
    return bool(((counts == 0) | (counts == sizes)).any())


def complaints(found: Survey) -> tuple[Problem, ...]:
    return (*found.table.problems, *(Problem("without a file", path) for path in found.missing))
