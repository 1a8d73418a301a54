"""Partitions as files: the names of every client's images with their SHA-256, to keep, share and
use again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feddraw.data.dataset import Labels
from feddraw.data.scenarios.partition import ClientRows, Partition
from feddraw.errors import UserError
from feddraw.system.file_reading import parse_json, read_text
from feddraw.system.file_writing import write_whole

MAX_INDEX_LIST = 2**28  # bytes


@dataclass(frozen=True)
class IndexList:
    """What such a file says."""

    scenario: str
    scale: float
    sha256: str
    names: dict[str, list[str]]  # of each client's images

    @staticmethod
    def read(path: Path) -> IndexList:
        document: Any = parse_json(read_text(path, MAX_INDEX_LIST))
        try:
            return IndexList(
                scenario=str(document["scenario"]),
                scale=float(document["scale"]),
                sha256=str(document["sha256"]),
                names={
                    str(entry["client"]): [str(image) for image in entry["images"]]
                    for entry in document["clients"]
                },
            )
        except (ValueError, KeyError, TypeError, OverflowError):
            raise UserError(
                f"{path} is no index list: make one with feddraw scenario build"
            ) from None


def sha256_of_names(names: Mapping[str, list[str]]) -> str:
    """The SHA-256 of the JSON text [["C1",["a.png","b.png"]],["C2",…]].

    Clients stand in their order, image names sorted by code point; ASCII with escapes, no space, no
    line end.
    """
    text = json.dumps([[client, images] for client, images in names.items()], separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def client_image_names(clients: ClientRows, labels: Labels) -> dict[str, list[str]]:
    """Each client's image names, sorted."""
    return {client: np.sort(labels.names[rows]).tolist() for client, rows in clients.items()}


def write_index_list(
    path: Path, partition: Partition, labels: Labels, settings: Mapping[str, object]
) -> None:
    """The partition as JSON; the file appears complete or not at all."""
    rows = {shard.client: shard.rows for shard in partition.shards}
    clients = [
        {"client": client, "images": names}
        for client, names in client_image_names(rows, labels).items()
    ]
    document = {
        "scenario": partition.scenario,
        **settings,
        "sha256": partition.sha256,
        "clients": clients,
    }
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder")
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())


def read_index_list(path: Path, labels: Labels, scale: float) -> tuple[str, ClientRows]:
    """The scenario's name and the rows that the file's images have in these labels."""
    listed = IndexList.read(path)
    if scale not in (1.0, listed.scale):
        raise UserError(
            f"{path} lists its images, made at scale {listed.scale:g}: use scale = 1 to take them"
            " as they are"
        )
    if sha256_of_names(listed.names) != listed.sha256:
        raise UserError(
            f"{path} was changed after it was built: its images do not have the SHA-256 it states"
        )
    row_of = {name: row for row, name in enumerate(labels.names.tolist())}
    images = [name for names in listed.names.values() for name in names]
    if missing := [name for name in images if name not in row_of]:
        lost = f"{len(missing):,} of the {len(images):,} images of {path}"
        raise UserError(f"{lost} are not in the data, the first is {missing[0]}")
    rows = {
        client: np.array([row_of[name] for name in names], dtype=np.intp)
        for client, names in listed.names.items()
    }
    return listed.scenario, rows
