"""Frozen layers over Flower: sent to a site once, kept in its folder, and from then on named by
their digest only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from feddraw.data.feature_cache import tensors_digest
from feddraw.errors import UserError
from feddraw.flower import job_orders
from feddraw.flower.array_records import Refused, arrays_to_vectors, vectors_to_arrays
from feddraw.flower.reply_intake import Reply, client_in_reply
from feddraw.system.file_writing import make_folder, write_whole
from feddraw.text import one_line

if TYPE_CHECKING:
    from feddraw.training.client import Trainer

FROZEN = "frozen"  # of the record, of the order, and of a site's answer

Arrays = Mapping[str, NDArray[Any]]


def frozen_digest(arrays: Arrays) -> str:
    """A hash of the layers: each name with its type, shape and bytes."""
    return tensors_digest(arrays)


class FrozenLayers:
    """The server's side: which nodes have said that they hold the frozen layers."""

    def __init__(self, frozen: Arrays) -> None:
        self.arrays = dict(frozen)
        self.holding: set[int] = set()
        self.order = {FROZEN: frozen_digest(self.arrays)} if self.arrays else {}
        self._record = vectors_to_arrays(self.arrays)

    def with_layers(self, content: RecordDict, node: int) -> RecordDict:
        """A message's content, with the layers for a node that does not hold them."""
        if not self.arrays or node in self.holding:
            return content
        return RecordDict({**content, FROZEN: self._record})

    def note_holders(self, asked: Iterable[int], replies: Iterable[Reply]) -> None:
        """Who of those that were asked holds the layers; the others get them again."""
        self.holding -= set(asked)
        for reply in replies:
            if FROZEN in client_in_reply(reply.content):
                self.holding.add(reply.node)


def take_frozen(trainer: Trainer, content: RecordDict, folder: Path) -> str:
    """The site's side: give the network the server's frozen layers, and return their digest, which
    says that they are here; empty if the server has none.

    Where the server names none, the network has its own again: layers of an earlier message, which
    others may not have got, would be used without anyone's having agreed on them.
    """
    digest = str(job_orders.read_orders(content).get(FROZEN, ""))
    if not digest:
        trainer.freeze({})
        return digest
    current = trainer.network.layout.frozen
    if frozen_digest(current) == digest:
        return digest
    file = folder / f"frozen-{one_line(digest, 32)}.safetensors"
    sent = FROZEN in content.array_records
    layers = _layers_sent(content) if sent else _layers_kept(file)
    if frozen_digest(layers) != digest:
        raise UserError(
            "the server's frozen layers are not here, or damaged: they come again in the next round"
        )
    if _shapes(layers) != _shapes(current):
        raise UserError(
            "the server's frozen layers are not those of this site's network: do the settings"
            " agree?"
        )
    trainer.freeze(layers)
    if sent:
        contiguous = {name: np.ascontiguousarray(array) for name, array in layers.items()}
        make_folder(folder, private=True)
        write_whole(file, save(contiguous), private=True)
    return digest


def _layers_sent(content: RecordDict) -> dict[str, NDArray[Any]]:
    try:
        return arrays_to_vectors(content.array_records[FROZEN])
    except Refused as error:
        raise UserError(f"the server's frozen layers cannot be read: {one_line(error)}") from None


def _layers_kept(file: Path) -> dict[str, NDArray[Any]]:
    try:
        return dict(load_file(file))
    except (SafetensorError, OSError, ValueError):
        return {}


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: np.atleast_1d(array).shape for name, array in arrays.items()}
