"""The images below a folder, told from other files by their names or, DICOM, by their content."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from feddraw.data.imaging import is_dicom
from feddraw.data.table_columns import IMAGE_SUFFIXES
from feddraw.errors import UserError
from feddraw.system.machine import installed
from feddraw.text import join_names


@dataclass(frozen=True)
class FolderFiles:
    """What lies in a folder and below it."""

    images: tuple[Path, ...]
    others: tuple[Path, ...]
    links: tuple[Path, ...] = ()  # to folders, which may lead round in a circle
    # By their names images, as the `._scan.png` that macOS writes beside a `scan.png`. Other hidden
    # files are nowhere.
    hidden: tuple[Path, ...] = ()
    # Hidden folders with images, relative to the folder, and how many these are; others, such as
    # `.git`, are nowhere.
    hidden_folders: Mapping[str, int] = field(default_factory=dict)

    def left_out_in_words(self) -> list[str]:
        """A sentence each for files that are no images that can be read, by ending, for hidden
        images, for hidden folders with images and for links to folders.
        """
        sentences = []
        if self.others:
            sentences.append(self._others_in_words())
        if self.hidden:
            names = join_names([path.name for path in self.hidden[:3]])
            more = ", …" if len(self.hidden) > 3 else ""
            count = len(self.hidden)
            files = "1 hidden file is" if count == 1 else f"{count:,} hidden files are"
            sentences.append(f"{files} not used: {names}{more}")
        if self.hidden_folders:
            counts = [
                f"{name} ({count:,} image{'s' * (count > 1)})"
                for name, count in self.hidden_folders.items()
            ]
            sentences.append(f"hidden folders are not used: {join_names(counts)}")
        if self.links:
            names = join_names([path.name for path in self.links])
            sentences.append(f"links to folders are not followed: {names}")
        return sentences

    def _others_in_words(self) -> str:
        endings = Counter(path.suffix.lower() or "no ending" for path in self.others)
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in endings.most_common(5))
        more = ", …" if len(endings) > 5 else ""
        files = "1 file is" if len(self.others) == 1 else f"{len(self.others):,} files are"
        return f"{files} not PNG, JPEG or DICOM and not used: {kinds}{more}"


def files_below(folder: Path) -> FolderFiles:
    """All files of a folder, then of each folder below it, by name.

    Archives often give DICOM files no ending or a number for one, so a file without the ending of
    an image is opened to see whether it is one.
    """
    images = []
    others = []
    links = []
    hidden = []
    hidden_folders = {}
    for place, below, names in os.walk(folder, onerror=_stop):
        for name in sorted(name for name in below if name.startswith(".")):
            hidden_folder = Path(place) / name
            if count := _images_by_name(hidden_folder):
                hidden_folders[hidden_folder.relative_to(folder).as_posix()] = count
        below[:] = sorted(name for name in below if not name.startswith("."))
        links += [path for path in (Path(place) / name for name in below) if path.is_symlink()]
        for name in sorted(names):
            path = Path(place) / name
            is_image_by_name = name.lower().endswith(IMAGE_SUFFIXES)
            if name.startswith("."):
                hidden += [path] if is_image_by_name else []
            elif is_image_by_name:
                images.append(path)
            elif name == "DICOMDIR":
                continue  # an archive's own notes
            elif is_dicom(path):
                images.append(path)
            else:
                others.append(path)
    return FolderFiles(
        images=tuple(images),
        others=tuple(others),
        links=tuple(links),
        hidden=tuple(hidden),
        hidden_folders=hidden_folders,
    )


def _images_by_name(folder: Path) -> int:
    """How many files in a folder and below it have the ending of an image; nothing is opened, and
    what may not be read has none.
    """
    return sum(
        name.lower().endswith(IMAGE_SUFFIXES) for _, _, names in os.walk(folder) for name in names
    )


def _stop(error: OSError) -> None:
    """A folder that may not be read may be a whole site: it is not passed over."""
    raise error


def require_pydicom_for(paths: Iterable[Path]) -> None:
    """Refuse DICOM files where pydicom, which reads them, is not installed; archives also write
    them without an ending, so that only their content tells.
    """
    if installed("pydicom"):
        return
    strange = (path for path in paths if path.suffix.lower() not in (".png", ".jpg", ".jpeg"))
    if any(path.suffix.lower() in (".dcm", ".dicom") or is_dicom(path) for path in strange):
        raise UserError("DICOM files need pydicom: pip install 'feddraw[dicom]'")
