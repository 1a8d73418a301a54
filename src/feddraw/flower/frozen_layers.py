"""Frozen layers over Flower: sent once to a site that does not have them, kept in its folder, and
from then on named by their digest only.

Before the first message to a node the server asks it whether it has the layers of this digest:
from a file of its own, or kept from an earlier run. The question is a kind of message that other
clients do not know; Flower answers it with an error, and they are sent the layers as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from feddraw.errors import UserError
from feddraw.flower import job_orders
from feddraw.flower.array_records import Refused, arrays_to_vectors, vectors_to_arrays
from feddraw.flower.reply_intake import Reply, client_in_reply
from feddraw.system.file_writing import make_folder, write_whole
from feddraw.text import one_line
from feddraw.training.own_frozen_layers import (
    Arrays,
    OwnLayers,
    check_frozen_shapes,
    frozen_digest,
)

if TYPE_CHECKING:
    from feddraw.training.client import Trainer

log = logging.getLogger("flwr")

FROZEN = "frozen"  # of the record, of the order, and of a site's answer
ACTION = "frozen_layers"  # of Flower's queries: our question to a node
QUESTION = f"{MessageType.QUERY}.{ACTION}"
# Seconds for the answer: a site reads its file, but no image. Who takes longer is sent the layers.
LONGEST_QUESTION = 120.0

# ------------------------------------------------------------------------------------ at the server


class FrozenLayers:
    """The server's side: which nodes have said that they hold the frozen layers."""

    def __init__(self, frozen: Arrays) -> None:
        self.arrays = dict(frozen)
        self.holding: set[int] = set()
        self.order = {FROZEN: frozen_digest(self.arrays)} if self.arrays else {}
        self._record = vectors_to_arrays(self.arrays)
        self._asked: set[int] = set()  # nodes that need not be asked again
        # Nodes with a file of other layers. They refuse to train; until they have another file or
        # none they are asked in every round, and are sent nothing.
        self._with_others: set[int] = set()

    def ask(self, grid: Grid, nodes: Sequence[int], timeout: float) -> None:
        """Ask nodes that were not asked before what they hold."""
        new = [node for node in nodes if node not in self._asked]
        if not self.arrays or not new:
            return
        config = job_orders.add_orders(ConfigRecord(), self.order)
        content = RecordDict({"config": config})
        messages = [Message(content, node, QUESTION, group_id=ACTION) for node in new]
        replies = grid.send_and_receive(messages, timeout=min(timeout, LONGEST_QUESTION))
        answers = {
            reply.metadata.src_node_id: client_in_reply(reply.content).get(FROZEN)
            for reply in replies
            if reply.has_content()
        }
        self._with_others -= set(new)
        for node in new:
            held = answers.get(node)
            if held == self.order[FROZEN]:
                self.holding.add(node)
            elif held:
                self._with_others.add(node)
        self._asked |= set(new) - self._with_others
        log.info(
            "frozen tensors of %.1f MB, SHA-256 %s: %d of %d nodes have them already",
            sum(array.nbytes for array in self.arrays.values()) / 1e6,
            self.order[FROZEN],
            len(self.holding.intersection(new)),
            len(new),
        )

    def messages(
        self, content: RecordDict, nodes: Sequence[int], kind: str, group: str
    ) -> list[Message]:
        """A message to each node, of one content and the layers where it does not hold them."""
        return [
            Message(self.with_layers(content, node), node, kind, group_id=group) for node in nodes
        ]

    def with_layers(self, content: RecordDict, node: int) -> RecordDict:
        """A message's content, with the layers for a node that does not hold them."""
        if not self.arrays or node in self.holding or node in self._with_others:
            return content
        return RecordDict({**content, FROZEN: self._record})

    def note_holders(self, asked: Iterable[int], replies: Iterable[Reply]) -> None:
        """Who of those that were asked holds the layers; the others get them again."""
        self.holding -= set(asked)
        for reply in replies:
            if FROZEN in client_in_reply(reply.content):
                self.holding.add(reply.node)


# --------------------------------------------------------------------------------------- at a site


def answer_question(
    content: RecordDict, folder: Path, own: OwnLayers | None, shared: Arrays
) -> RecordDict:
    """What a site holds: the digest of its own file's layers, else the one that the server names if
    its network has these by the run's settings (`shared`), or they were kept in its folder.
    """
    agreed = _agreed_digest(content)
    held = ""
    if own is not None:
        held = own.digest
    elif agreed and agreed in (
        frozen_digest(shared),
        frozen_digest(_layers_kept(_kept_file(folder, agreed))),
    ):
        held = agreed
    return RecordDict({"client": ConfigRecord({FROZEN: held} if held else {})})


def take_frozen(
    trainer: Trainer, content: RecordDict, folder: Path, own: OwnLayers | None = None
) -> str:
    """Give the network the frozen layers that the server names, from the site's own file, from the
    message or from the site's folder. Returns their digest, which says that they are here; empty if
    the server has none.

    Where the server names none, the network has its own again: layers of an earlier message, which
    others may not have got, would be used without anyone's having agreed on them.
    """
    digest = _agreed_digest(content)
    if not digest:
        trainer.freeze({})
        return digest
    if own is not None:
        own.check(digest)
    current = trainer.network.layout.frozen
    if frozen_digest(current) == digest:
        return digest
    file = _kept_file(folder, digest)
    sent = own is None and FROZEN in content.array_records
    if own is not None:
        layers = own.arrays
    else:
        layers = _layers_sent(content) if sent else _layers_kept(file)
    if frozen_digest(layers) != digest:
        raise UserError(
            "the server's frozen layers are not here, or damaged: they come again in the next round"
        )
    check_frozen_shapes(layers, current)
    trainer.freeze(layers)
    if sent:
        contiguous = {name: np.ascontiguousarray(array) for name, array in layers.items()}
        make_folder(folder, private=True)
        write_whole(file, save(contiguous), private=True)
    return digest


def _agreed_digest(content: RecordDict) -> str:
    return str(job_orders.read_orders(content).get(FROZEN, ""))


def _kept_file(folder: Path, digest: str) -> Path:
    return folder / f"frozen-{one_line(digest, 32)}.safetensors"


def _layers_sent(content: RecordDict) -> Arrays:
    try:
        return arrays_to_vectors(content.array_records[FROZEN])
    except Refused as error:
        raise UserError(f"the server's frozen layers cannot be read: {one_line(error)}") from None


def _layers_kept(file: Path) -> Arrays:
    try:
        return dict(load_file(file))
    except (SafetensorError, OSError, ValueError):
        return {}
