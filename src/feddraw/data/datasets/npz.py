"""Any .npz in MedMNIST's layout: `train_images`, `train_labels` (n × findings), the same for val
and test. Images are grey, or red, green and blue in a last dimension of three.

`*_names`, `*_patients`, `*_sites`, `*_groups` and `classes` are read where they are there; NIH file
names give the patient, fourteen unnamed columns are ChestX-ray14's, and a single column with
numbers above 1 is one of class numbers. Nothing is unpacked before its size is known to be what the
header says.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from feddraw.data.dataset import Dataset
from feddraw.data.dataset_from_table import (
    assembled_dataset,
    prepared_dataset,
    refuse_bad_rows,
    unprepared_dataset,
)
from feddraw.data.finding_names import FindingChoice
from feddraw.data.image_cache import CachedImages, open_finished_entry
from feddraw.data.image_settings import ImagePreparation
from feddraw.data.label_table import LabelTable
from feddraw.data.npz_archive import NpzArchive, PackedImages
from feddraw.data.splits import rows_by_split
from feddraw.errors import UserError
from feddraw.system.file_reading import expanded_path
from feddraw.system.progress import no_progress


def npz(how: ImagePreparation, *, path: str, findings: FindingChoice = "paper") -> Dataset:
    """An .npz file in MedMNIST's layout (data.path)."""
    file = expanded_path(path)
    return load_npz(file, file.stem, findings, how)


def load_npz(path: Path, name: str, findings: FindingChoice, how: ImagePreparation) -> Dataset:
    """The same, under a name."""
    archive = NpzArchive.open(path)
    if archive.images().channels > how.channels:
        raise UserError(f"{path} has images in colour: set data.channels = 3")
    return npz_dataset(archive, name, archive.table(findings), how)


def npz_dataset(
    archive: NpzArchive, name: str, table: LabelTable, how: ImagePreparation
) -> Dataset:
    """The images of an archive with its labels as they were read."""
    packed = archive.images()
    refuse_bad_rows(name, table.problems, len(table.labels), how)
    rows_by_split(name, table.split)
    if how.estimate is not None and open_finished_entry(packed.entry, packed.shape) is None:
        dataset = unprepared_dataset(name, table, packed, how)
        how.estimate.bytes[packed.entry] = int(np.prod(packed.shape))
        if not _is_ready(packed, how):
            prepared = packed.entry.with_name(f"{packed.entry.name}-prepared")
            how.estimate.bytes[prepared] = dataset.images.size
        return dataset
    unpacked = packed.unpack(how.progress)
    if _is_ready(packed, how):
        return assembled_dataset(name, table, unpacked, how)
    label = name
    if packed.side != how.size:
        label += f", resized from {packed.side} to {how.size} px"

    def say(what: str, ready: int, total: int) -> None:
        (how.progress or no_progress)(what if "waiting" in what else label, ready, total)

    # Resizing alone takes less time than starting workers.
    workers = how.workers if how.clahe else 1
    return prepared_dataset(
        name, table, CachedImages(unpacked.entry), replace(how, workers=workers, progress=say)
    )


def _is_ready(packed: PackedImages, how: ImagePreparation) -> bool:
    """Whether the archive's images need no preparation beside unpacking."""
    alike = (packed.side, packed.channels) == (how.size, how.channels)
    return alike and not how.clahe
