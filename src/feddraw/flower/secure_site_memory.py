"""What a site remembers between the messages of a secure round, in its own folder (0600).

    KIND.json   the round under way, on the disk before an answer leaves: a site that forgets that
                it has masked, signed or revealed could be asked a second time
    KIND.run    what the app was ever run on, a digest each
    KIND.offer  what was sent, as the app will get it
    KIND.part   what the app made of it, until it is in a sum

The place depends on the site's own signing key, on nothing that a server says.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from feddraw.core import Layout, Model, Update
from feddraw.errors import UserError
from feddraw.secure.rounds.site import SiteRound, SiteSettings
from feddraw.secure.sums.signing_keys import public_line
from feddraw.system.file_writing import (
    append_to_log,
    close_to_others,
    make_folder,
    make_subfolder,
    open_file,
    write_whole,
)
from feddraw.system.locks import lock_file

MODEL_VECTORS = ("params", "buffers", "counters")
HEAD_BYTES = 8  # of the length of a file's head
OTHER_RUN = "this message belongs to another run than what this site agreed to"
DAMAGED = "what waits for a secure sum is gone or damaged: this site is left out of the sum"


class SecureSiteMemory:
    """One site's memory of one kind of rounds, training or evaluation; used while `held`."""

    def __init__(self, folder: Path, settings: SiteSettings, kind: str) -> None:
        key = hashlib.sha256(public_line(settings.key.public_key()).encode()).hexdigest()[:24]
        self._settings = settings
        self.path = folder / f"secure-{key}"
        self._state = self.path / f"{kind}.json"
        self._runs = self.path / f"{kind}.run"
        self._offer = self.path / f"{kind}.offer"
        self._part = self.path / f"{kind}.part"
        self._round: SiteRound | None = None  # as it was last read or written, while `held`

    @contextmanager
    def held(self) -> Iterator[None]:
        """One message at a time: two that find the same state would put the same masks on different
        words.
        """
        make_folder(self.path.parent, private=True)
        make_subfolder(self.path, private=True)
        with lock_file(self._state):
            yield

    # ------------------------------------------------------------------------- the protocol's state

    def load(self) -> SiteRound | None:
        if self._round is not None or not self._state.is_file():
            return self._round
        try:
            text = self._state.read_text(encoding="utf-8")
        except (OSError, ValueError):
            raise UserError(DAMAGED) from None
        self._round = SiteRound.of(text, self._settings)
        return self._round

    def save(self, round: SiteRound) -> None:
        self._round = round
        write_whole(self._state, round.to_json().encode(), private=True)

    def was_run(self, work: bytes) -> bool:
        if not self._runs.is_file():
            return False
        return work.hex() in self._runs.read_text(encoding="ascii").split()

    def note_run(self, work: bytes) -> None:
        append_to_log(self._runs, f"{work.hex()}\n")
        close_to_others(self._runs)

    # ---------------------------------------------------------------------------- what waits for it

    def keep_offer(self, content: RecordDict, digest: bytes, run: bytes) -> None:
        """What was sent, until it is agreed that it is run; `run` is a digest of where."""
        SHARED.remember(digest, content, run)
        head: list[Any] = [(digest.hex(), run.hex())]
        blobs: list[Any] = []
        for name, record in content.items():
            if isinstance(record, ArrayRecord):
                tensors = []
                for tensor, array in record.items():
                    tensors.append((tensor, array.dtype, tuple(array.shape), array.stype))
                    blobs.append(array.data)
                head.append((name, "arrays", tensors))
            else:
                head.append((name, "config", dict(record)))
        _write_blobs(self._offer, head, blobs)

    def offer(self, digest: bytes, run: bytes) -> RecordDict:
        """What was kept, if it is that of this digest; refuses a message of another run, whose
        settings nobody agreed to.
        """
        if digest == SHARED.digest and self._offer.is_file():
            if run != SHARED.run:
                raise UserError(OTHER_RUN)
            return _fresh_records(SHARED.content)
        ((kept, kept_run), *records), blobs = _read_blobs(self._offer)
        if kept != digest.hex():
            raise UserError(DAMAGED)
        if kept_run != run.hex():
            raise UserError(OTHER_RUN)
        content = RecordDict()
        position = 0
        for name, kind, described in records:
            if kind == "config":
                content[name] = ConfigRecord(described)
                continue
            arrays = ArrayRecord()
            for tensor, dtype, shape, stype in described:
                arrays[tensor] = Array(dtype, shape, stype, bytes(blobs[position]))
                position += 1
            content[name] = arrays
        return content

    def keep_part(self, facts: dict[str, Any], vectors: dict[str, NDArray[Any]]) -> None:
        """What the app made, for a sum."""
        described = [(name, vector.dtype.str, vector.shape) for name, vector in vectors.items()]
        blobs = [np.ascontiguousarray(v).reshape(-1).view(np.uint8).data for v in vectors.values()]
        _write_blobs(self._part, [facts, described], blobs)

    def part(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        (facts, described), blobs = _read_blobs(self._part)
        vectors = {}
        for (name, dtype, shape), blob in zip(described, blobs, strict=True):
            vectors[name] = np.frombuffer(blob, dtype).reshape(shape)
        return facts, vectors

    def forget(self) -> None:
        """Delete what waits: it is in a sum, or never will be."""
        for file in (self._part, self._offer):
            with suppress(FileNotFoundError):
                file.unlink()


class SharedBySites:
    """What was offered last in this process, whichever of its sites it came to.

    Equal digests are equal contents: in a simulation all sites get the same, and share it.
    """

    def __init__(self) -> None:
        self.digest = b""
        self.run = b""  # the digest covers it
        self.content = RecordDict()
        self.sent: Model | None = None  # the model in it, once it was read
        self.matrices: Model | None = None  # memory for an app's answer, used again

    def remember(self, digest: bytes, content: RecordDict, run: bytes) -> None:
        """Keep what was offered, if it is not the same as before; frozen layers, which are sent to
        some sites only, are kept for all.
        """
        if digest != self.digest:
            self.sent = None
        if digest != self.digest or len(content) > len(self.content):
            self.digest = digest
            self.run = run
            self.content = _fresh_records(content)


SHARED = SharedBySites()


def _fresh_records(content: RecordDict) -> RecordDict:
    """The same tensors in records that an app may change."""
    records = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            records[name] = ArrayRecord(dict(record.items()))
        else:
            records[name] = ConfigRecord(dict(record.items()))
    return records


def _write_blobs(path: Path, head: list[Any], blobs: Sequence[Any]) -> None:
    """A head of plain values and some stretches of bytes. If the machine goes down the file may be
    damaged: the site is then left out of the sum, and nothing else is lost.
    """
    written = repr((head, [len(blob) for blob in blobs])).encode()
    with open_file(path, "wb", private=True) as file:
        file.write(len(written).to_bytes(HEAD_BYTES, "little") + written)
        for blob in blobs:
            file.write(blob)


def _read_blobs(path: Path) -> tuple[list[Any], list[memoryview]]:
    try:
        content = memoryview(path.read_bytes())
        end = HEAD_BYTES + int.from_bytes(content[:HEAD_BYTES], "little")
        head, lengths = ast.literal_eval(bytes(content[HEAD_BYTES:end]).decode())
        blobs = []
        for length in lengths:
            blobs.append(content[end : end + length])
            end += length
        if end != len(content):
            raise ValueError
    except (OSError, ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise UserError(DAMAGED) from None
    return head, blobs


def update_to_memory(update: Update) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """An update as facts and vectors."""
    vectors = {f"model.{name}": getattr(update.model, name) for name in MODEL_VECTORS}
    vectors |= {f"extra.{name}": vector for name, vector in update.extra.items()}
    labelled = None if update.labelled is None else update.labelled.tolist()
    facts = {
        "size": update.size,
        "steps": update.steps,
        "loss": float(update.metrics["loss"]),
        "labelled": labelled,
    }
    return facts, vectors


def update_of_memory(
    facts: dict[str, Any], vectors: dict[str, NDArray[Any]], layout: Layout
) -> Update:
    """The update, from what `update_to_memory` made of it."""
    model = Model(
        params=vectors["model.params"],
        buffers=vectors["model.buffers"],
        counters=vectors["model.counters"],
        layout=layout,
    )
    prefix = "extra."
    extra = {
        name.removeprefix(prefix): vector
        for name, vector in vectors.items()
        if name.startswith(prefix)
    }
    labelled = None if facts["labelled"] is None else np.array(facts["labelled"], bool)
    metrics = {"loss": facts["loss"]}
    return Update(0, model, facts["size"], facts["steps"], metrics, extra, labelled)
