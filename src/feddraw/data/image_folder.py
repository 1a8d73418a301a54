"""The images below a folder, told from other files by their names or, DICOM, by their content."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from feddraw.data.imaging import is_dicom
from feddraw.data.table_columns import IMAGE_SUFFIXES


@dataclass(frozen=True)
class FolderFiles:
    """What lies in a folder and below it; hidden files do not count."""

    images: tuple[Path, ...]
    others: tuple[Path, ...]

    def others_in_words(self) -> str:
        """How many files are no images that can be read, by ending; empty if there is none."""
        if not self.others:
            return ""
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
    for place, below, names in os.walk(folder):
        below.sort()
        for name in sorted(names):
            path = Path(place) / name
            if name.lower().endswith(IMAGE_SUFFIXES):
                images.append(path)
            elif name.startswith(".") or name == "DICOMDIR":
                continue  # a system's or an archive's own notes
            elif is_dicom(path):
                images.append(path)
            else:
                others.append(path)
    return FolderFiles(tuple(images), tuple(others))
