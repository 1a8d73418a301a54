"""ChestMNIST of MedMNIST+ (Yang et al., 2023): 112,120 radiographs of ChestX-ray14 at 28, 64, 128
or 224 pixels.

The archive is downloaded once and its MD5 compared with the one that the `medmnist` package
publishes (3.0.2).
"""

from __future__ import annotations

import os
from pathlib import Path

from feddraw.data.dataset import Dataset
from feddraw.data.datasets.npz import load_npz
from feddraw.data.finding_names import FindingChoice
from feddraw.data.image_cache import cache_folder
from feddraw.data.image_settings import ImagePreparation
from feddraw.errors import UserError, first_line
from feddraw.system.file_reading import expanded_path
from feddraw.system.progress import Progress

CHEST_RADIOGRAPHS = True
CHESTMNIST_VARIABLE = "FEDDRAW_CHESTMNIST"  # the environment's word on where the archive is
CHESTMNIST_URL = "https://zenodo.org/records/10519652/files/{file}?download=1"
ARCHIVES = {  # side in pixels -> file, MD5
    28: ("chestmnist.npz", "02c8a6516a18b556561a56cbdd36c4a8"),
    64: ("chestmnist_64.npz", "9de6cd0b934ebb5b7426cfba5efbae16"),
    128: ("chestmnist_128.npz", "db107e5590b27930b62dbaf558aebee3"),
    224: ("chestmnist_224.npz", "45bd33e6f06c3e8cdb481c74a89152aa"),
}


def chestmnist(
    how: ImagePreparation, *, path: str = "", findings: FindingChoice = "paper"
) -> Dataset:
    """MedMNIST+ ChestMNIST, 112,120 images at 28 to 224 px; downloaded once.

    Read at the smallest published size that is not below the wanted one; `path` is a file or its
    folder.
    """
    file, md5 = ARCHIVES[min((side for side in ARCHIVES if side >= how.size), default=224)]
    archive = find_chestmnist(path or os.environ.get(CHESTMNIST_VARIABLE, ""), file)
    if archive is None and how.estimate is not None:
        fetch = f"fetch it first with `feddraw data prepare chestmnist --size {how.size}`"
        raise UserError(
            f"no {file} here: give its path ({CHESTMNIST_VARIABLE}, or data.path), or {fetch}"
        )
    return load_npz(
        archive or download_chestmnist(file, md5, how.progress), "chestmnist", findings, how
    )


def find_chestmnist(path: str, file: str) -> Path | None:
    """The archive where the user says it is, or in a folder where we look."""
    if path:
        archive = expanded_path(path)
        if archive.is_dir():
            archive = archive / file
        if archive.is_file():
            return archive
        raise UserError(f"no {file} at {path}; get it from {CHESTMNIST_URL.format(file=file)}")
    folders = (os.environ.get("FEDDRAW_DATA"), cache_folder() / "downloads")
    archives = [expanded_path(folder) / file for folder in folders if folder]
    return next((archive for archive in archives if archive.is_file()), None)


def download_chestmnist(file: str, md5: str, progress: Progress | None) -> Path:
    """Fetch the archive into the cache; it only gets its name once its hash is right."""
    import pooch

    url = CHESTMNIST_URL.format(file=file)
    shown = ChestMnistDownload(f"downloading {file}", progress) if progress else False
    how = {
        "path": cache_folder() / "downloads",
        "downloader": pooch.HTTPDownloader(progressbar=shown),
    }
    pooch.get_logger().setLevel("ERROR")
    try:
        return Path(pooch.retrieve(url, f"md5:{md5}", fname=file, **how))
    except (
        OSError,
        ValueError,
    ) as error:  # no network, a server's refusal; or other content than the hash says
        what = first_line(error) if isinstance(error, ValueError) else "no connection"
        advice = f"fetch {url} elsewhere and give the file as the data set: PATH/{file}"
        raise UserError(f"cannot download {file} ({what}); {advice}") from error


class ChestMnistDownload:
    """Our progress as pooch wants it."""

    def __init__(self, what: str, progress: Progress) -> None:
        self.what = what
        self.progress = progress
        self.total = 0
        self.ready = 0

    def update(self, count: int) -> None:
        self.ready += count
        self.progress(self.what, self.ready, self.total)

    def reset(self) -> None:
        self.ready = 0

    def close(self) -> None:
        """Nothing is held open."""
