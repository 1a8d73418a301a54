"""Any .npz in MedMNIST's layout: `train_images`, `train_labels` (n × findings), the same for val and test.

`*_names`, `*_patients`, `*_sites`, `*_groups` and `classes` are read where they are there; NIH file names give the
patient, and fourteen unnamed columns are ChestX-ray14's. Nothing is unpacked before its size is known to be what the
header says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feddraw.data.dataset import Dataset
from feddraw.data.dataset_from_table import Preparation, assemble, prepared_dataset, refuse, rows_by_split, unprepared
from feddraw.data.image_cache import Rows, open_finished, silent
from feddraw.data.npz_archive import SPLIT_PREFIXES, Archive, Member, Packed, unpacked_shape
from feddraw.data.tables import Findings, Table


def npz(how: Preparation, *, path: str, findings: Findings = "paper") -> Dataset:
    """An .npz file in MedMNIST's layout (data.path)."""
    return load(Path(path), Path(path).stem, findings, how)


def load(path: Path, name: str, findings: Findings, how: Preparation) -> Dataset:
    """The same, under a name."""
    archive = Archive.open(path)
    table = archive.table(findings)
    sizes = [archive.members[f"{split}_labels"].shape[0] for split in SPLIT_PREFIXES]
    members = archive.images(sizes)
    refuse(name, table.problems, len(table.labels), how)
    rows_by_split(name, table.split)
    if how.look is not None and (missing := looked_at(name, archive, members, table, how)) is not None:
        return missing
    unpacked = archive.unpack(members, how.progress)
    side = unpacked.images.shape[1]
    if side == how.size and not how.clahe:
        return assemble(name, table, unpacked, how)
    label = name if side == how.size else f"{name}, resized from {side} to {how.size} px"

    def say(what: str, ready: int, total: int) -> None:
        (how.progress or silent)(label if "waiting" not in what else what, ready, total)

    workers = how.processes if how.clahe else 1  # resizing alone takes less time than starting workers
    return prepared_dataset(name, table, Rows(unpacked.entry), how, workers, say)


def looked_at(name: str, archive: Archive, members: Sequence[Member], table: Table, how: Preparation) -> Dataset | None:
    """The data set without its images, unless they have been unpacked before; nothing is written."""
    shape, entry = unpacked_shape(members), archive.entry(members)
    if open_finished(entry, shape) is not None:
        return None
    assert how.look is not None
    found = unprepared(name, table, Packed(archive, members), (shape[0], how.size, how.size), entry, how)
    how.look.bytes[entry] = int(np.prod(shape))
    if shape[1] != how.size or how.clahe:
        how.look.bytes[entry.with_name(f"{entry.name}-prepared")] = shape[0] * how.size**2
    return found
