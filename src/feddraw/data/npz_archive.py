"""An .npz archive as a data set: its members are known by their headers, and unpacked only if their
size is true.
"""

from __future__ import annotations

import re
import sys
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np
from numpy.typing import NDArray

from feddraw.data import image_cache
from feddraw.data.class_column import MOST_CLASSES
from feddraw.data.dataset import CLASSES_TASK, Labels
from feddraw.data.finding_names import CHESTXRAY14_FINDINGS, FindingChoice, choose_findings
from feddraw.data.image_cache import PreparedImages
from feddraw.data.imaging import BadImage, Pixels
from feddraw.data.label_table import LabelTable, RowProblem
from feddraw.errors import UserError, first_line
from feddraw.system.file_writing import open_file
from feddraw.system.progress import Progress, no_progress

SPLIT_PREFIXES = ("train", "val", "test")  # in the order of data.dataset.SPLITS
MAX_ARCHIVE_TABLE = 2**29  # bytes of labels or names
MAX_ARCHIVE_IMAGES = 2**36
MAX_ZIP_RATIO = 100  # radiographs shrink to a half, a bomb to a thousandth
COPIED_BLOCK = 2**23
_ARCHIVE_DAMAGE = (
    OSError,
    ValueError,
    RuntimeError,
    EOFError,
    SyntaxError,
    TypeError,
    TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
_NIH_NAME = re.compile(r"\d{8}_\d+")


@dataclass(frozen=True)
class ArchiveMember:
    """An array inside the archive, known from its header."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    skip: int  # bytes before the first element
    size: int
    checksum: int


@dataclass(frozen=True)
class NpzArchive:
    """An .npz file whose members have been checked, not read."""

    path: Path
    members: dict[str, ArchiveMember]

    @classmethod
    def open(cls, path: Path) -> NpzArchive:
        try:
            if path.exists() and not path.is_file():
                raise UserError(f"{path} is not a regular file")
            with zipfile.ZipFile(path) as file:
                arrays = [info for info in file.infolist() if info.filename.endswith(".npy")]
                members = [member_from_header(file, info) for info in arrays]
        except _ARCHIVE_DAMAGE as error:
            raise UserError(f"{path} is not a readable .npz: {first_line(error)}") from error
        archive = cls(path, {member.name: member for member in members})
        labels = [f"{split}_labels" for split in SPLIT_PREFIXES]
        if missing := [name for name in labels if name not in archive.members]:
            raise UserError(f"{path} is not in MedMNIST's layout: it has no {', '.join(missing)}")
        return archive

    def read(self, name: str) -> NDArray[np.generic]:
        """A small array, whole."""
        size = self.members[name].size
        if size > MAX_ARCHIVE_TABLE:
            raise UserError(
                f"{self.path}: {name} would unpack to {size / 1e9:.1f} GB; it is no label table"
            )
        try:
            with zipfile.ZipFile(self.path) as file, file.open(f"{name}.npy") as stream:
                array: NDArray[np.generic] = np.lib.format.read_array(stream, allow_pickle=False)
        except _ARCHIVE_DAMAGE as error:
            raise UserError(f"{self.path} is damaged at {name}: {first_line(error)}") from error
        if array.dtype.kind == "U" and not _is_valid_text(array):
            raise UserError(f"{self.path} is damaged at {name}: it holds what is no text")
        return array

    def column(self, kind: str, sizes: Sequence[int]) -> NDArray[np.str_] | None:
        """Names, patients, sites or groups of all images, if every split has them."""
        if not all(f"{split}_{kind}" in self.members for split in SPLIT_PREFIXES):
            return None
        columns = [self.read(f"{split}_{kind}").astype(np.str_) for split in SPLIT_PREFIXES]
        if [column.shape for column in columns] != [(size,) for size in sizes]:
            raise UserError(f"{self.path}: there must be one of {kind} for each row of labels")
        return np.concatenate(columns)

    def table(self, findings: FindingChoice) -> LabelTable:
        """Labels of all images; rows that cannot be used are in no split."""
        marks = self._marks()
        width = marks[0].shape[1]
        if width == 1 and self._holds_class_numbers(marks):
            highest = int(max(of_split.max(initial=0) for of_split in marks))
            return self.class_table(self._names() or tuple(map(str, range(highest + 1))))
        columns = self.columns(findings, width)
        values = np.concatenate(marks)[:, list(columns.values())]
        is_label = np.asarray(np.isin(values, (0, 1)).all(axis=1))
        present = (values == 1).astype(np.uint8)
        return self._table(marks, present, tuple(columns), is_label, "with a label outside 0 and 1")

    def class_table(self, classes: Sequence[str]) -> LabelTable:
        """The same of one column of class numbers, of which these are the names."""
        marks = self._marks()
        if marks[0].shape[1] != 1:
            raise UserError(
                f"{self.path}: labels must be one column of class numbers, not"
                f" {marks[0].shape[1]} columns"
            )
        values = (np.concatenate(marks) == np.arange(len(classes))).astype(np.uint8)
        wrong = f"with a class that is no whole number from 0 to {len(classes) - 1}"
        table = self._table(marks, values, tuple(classes), values.sum(axis=1) == 1, wrong)
        return replace(table, labels=replace(table.labels, task=CLASSES_TASK))

    def _holds_class_numbers(self, marks: Sequence[NDArray[np.generic]]) -> bool:
        """Whether there are whole numbers up to a few dozen, and not only 0 and 1."""
        numbers = np.concatenate(marks)
        return bool(np.isin(numbers, np.arange(MOST_CLASSES)).all() and (numbers > 1).any())

    def _marks(self) -> list[NDArray[np.generic]]:
        """The labels of each split as they are written."""
        marks = [self.read(f"{split}_labels") for split in SPLIT_PREFIXES]
        if any(
            of_split.ndim != 2
            or of_split.shape[1] != marks[0].shape[1]
            or of_split.dtype.kind not in "iubf"
            for of_split in marks
        ):
            raise UserError(
                f"{self.path}: labels must be tables of numbers with as many columns in every split"
            )
        return marks

    def _table(
        self,
        marks: Sequence[NDArray[np.generic]],
        values: NDArray[np.uint8],
        columns: tuple[str, ...],
        usable: NDArray[np.bool_],
        wrong: str,
    ) -> LabelTable:
        """Of labels that were read; `wrong` says what those that are not usable are."""
        sizes = [len(of_split) for of_split in marks]
        names = self.column("names", sizes)
        if names is None:
            splits = zip(SPLIT_PREFIXES, sizes, strict=True)
            names = np.array(
                [f"{split}_{row:07d}" for split, size in splits for row in range(size)]
            )
        patients = self.column("patients", sizes)
        if patients is None and all(_NIH_NAME.match(name) for name in names):
            patients = np.array([name[:8] for name in names])
        problems = self.problems(usable, wrong, names)
        split = np.repeat(np.arange(3, dtype=np.int8), sizes)
        split[list(problems)] = -1
        sites = self.column("sites", sizes)
        groups = self.column("groups", sizes)
        labels = Labels(values, columns, names, patients, sites, groups=groups)
        return LabelTable(labels, (), split, tuple(problems.values()))

    def _names(self) -> tuple[str, ...]:
        """What the archive calls its columns, or classes; empty where it does not."""
        if "classes" not in self.members:
            return ()
        classes = self.read("classes")
        if classes.ndim != 1 or classes.dtype.kind not in "US":
            raise UserError(f"{self.path}: classes must be a list of names")
        return tuple(
            name.decode(errors="replace") if isinstance(name, bytes) else name
            for name in classes.tolist()
        )

    def columns(self, findings: FindingChoice, width: int) -> dict[str, int]:
        """Which columns of the labels are wanted, by name."""
        available = list(self._names())
        if not available and width == len(CHESTXRAY14_FINDINGS):
            available = list(CHESTXRAY14_FINDINGS)
        elif not available:
            available = [f"label {place}" for place in range(width)]
            findings = "all" if findings == "paper" else findings
        if len(available) != width:
            raise UserError(
                f"{self.path} names {len(available)} classes for {width} columns of labels"
            )
        return choose_findings(findings, available, str(self.path))

    def problems(
        self, usable: NDArray[np.bool_], wrong: str, names: NDArray[np.str_]
    ) -> dict[int, RowProblem]:
        """Rows with labels that are none, and names that were there before."""
        problems: dict[int, RowProblem] = {}
        for row in np.flatnonzero(~usable).tolist():
            problems[row] = RowProblem(wrong, str(names[row]))
        _, first = np.unique(names, return_index=True)
        for row in np.setdiff1d(np.arange(len(names)), first).tolist():
            problems[row] = RowProblem("with a duplicate name", str(names[row]))
        return problems

    def images(self) -> PackedImages:
        """The images, checked against the labels by their headers."""
        names = [f"{split}_images" for split in SPLIT_PREFIXES]
        if missing := [name for name in names if name not in self.members]:
            raise UserError(
                f"{self.path} holds labels but no images ({', '.join(missing)}); it serves"
                " `scenario show --labels`"
            )
        members = [self.members[name] for name in names]
        first = members[0]
        if len(first.shape) < 3:
            raise UserError(
                f"{self.path}: {first.name} must be images, not an array of shape {first.shape}"
            )
        height, width = first.shape[1:3]
        for member, split in zip(members, SPLIT_PREFIXES, strict=True):
            images = self.members[f"{split}_labels"].shape[0]
            grey = (images, height, width)
            shapes = ((*grey, 3),) if first.shape[3:] == (3,) else (grey, (*grey, 1))
            if member.dtype != np.uint8 or member.shape not in shapes or height != width:
                raise UserError(
                    f"{self.path}: {member.name} is {member.dtype} {member.shape}; needed are"
                    f" square images of bytes: ({images}, side, side), or ({images}, side, side, 3)"
                    " in colour, alike in all splits"
                )
        return PackedImages(self.path, members)


@dataclass(frozen=True)
class PackedImages:
    """Images of an archive that has not been unpacked: slow to read, each from the beginning of its
    member.
    """

    path: Path
    members: Sequence[ArchiveMember]

    @property
    def side(self) -> int:
        """Height and width of an image in pixels."""
        return self.members[0].shape[1]

    @property
    def channels(self) -> int:
        return 3 if self.members[0].shape[3:] == (3,) else 1

    @property
    def image_shape(self) -> tuple[int, ...]:
        square = (self.side, self.side)
        return square if self.channels == 1 else (*square, self.channels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all images together, at the size they have."""
        return sum(member.shape[0] for member in self.members), *self.image_shape

    def __len__(self) -> int:
        return self.shape[0]

    def identity(self) -> list[str]:
        return [f"{member.name} {member.checksum:08x} {member.size}" for member in self.members]

    @property
    def entry(self) -> Path:
        """Where the unpacked images are in the cache, or will be."""
        return image_cache.cache_entry(self.path.stem, self.identity(), {"unpacked": True})

    def read(self, row: int) -> Pixels:
        """One of the first images of the row's split, which needs only the beginning to be
        unpacked.
        """
        ends = accumulate(member.shape[0] for member in self.members)
        member = next(member for member, end in zip(self.members, ends, strict=True) if row < end)
        place = row % min(16, member.shape[0])
        size = int(np.prod(self.image_shape))
        try:
            with zipfile.ZipFile(self.path) as file, file.open(f"{member.name}.npy") as stream:
                stream.read(member.skip + place * size)
                pixels = np.frombuffer(stream.read(size), np.uint8)
        except _ARCHIVE_DAMAGE as error:
            raise BadImage(first_line(error)) from error
        return pixels.reshape(self.image_shape)

    def unpack(self, progress: Progress | None) -> PreparedImages:
        """All images as one memory-mapped array in the cache, at the size they have."""
        say = progress or no_progress
        what = f"unpacking {self.path.name}"
        total = len(self.members)

        def make(partial: Path) -> None:
            with (
                zipfile.ZipFile(self.path) as file,
                open_file(partial, "wb", private=True) as target,
            ):
                target.write(image_cache.image_array_header(self.shape))
                for number, member in enumerate(self.members):
                    say(what, number, total)
                    copy_member(file, member, target)
            say(what, total, total)

        try:
            return image_cache.open_or_make_entry(
                self.entry, self.shape, {"unpacked": self.path.name}, make, say
            )
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            (self.entry / "images.partial.npy").unlink(missing_ok=True)
            raise UserError(f"{self.path} is damaged: {error}") from error


def _is_valid_text(array: NDArray[np.generic]) -> bool:
    """Whether all characters exist; numpy hands on what Python's strings cannot hold."""
    codes = np.frombuffer(array.tobytes(), f"{array.dtype.byteorder}u4")
    return not ((codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))).any()


def member_from_header(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArchiveMember:
    """What the header of an array says, if it agrees with the archive's directory."""
    with file.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        skip = stream.tell()
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    packed = info.compress_size
    if dtype.hasobject or fortran or size != info.file_size - skip:
        raise ValueError(f"{info.filename} is no plain array, or not as long as it says")
    if size > MAX_ARCHIVE_IMAGES or size > max(2**26, MAX_ZIP_RATIO * packed):
        raise ValueError(
            f"{info.filename} would unpack from {packed:,} to {size:,} bytes, too many for images"
        )
    return ArchiveMember(info.filename.removesuffix(".npy"), shape, dtype, skip, size, info.CRC)


def copy_member(file: zipfile.ZipFile, member: ArchiveMember, target: IO[bytes]) -> None:
    """A member's elements, in blocks: never the whole in memory."""
    with file.open(f"{member.name}.npy") as stream:
        stream.read(member.skip)
        while block := stream.read(COPIED_BLOCK):
            target.write(block)
