"""What waits at a site between the messages of a secure sum: its update, and its half of the sum.

Both lie in the site's own memory, for their owner only, and are written before an answer leaves: a
site that forgets that it has masked, signed or revealed could be asked a second time. When the site
has opened its shares, the update is gone. What stays is who was in the last sum that was opened
(`SecureSiteOpenedRound`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from feddraw.core import Heads, Layout, Model, Update
from feddraw.errors import UserError, first_line
from feddraw.flower.client_memory import client_alias
from feddraw.secure.sums.signing_keys import public_line
from feddraw.system.file_writing import make_folder, make_subfolder, write_whole
from feddraw.system.locks import lock_file

MODEL_VECTORS = ("params", "buffers", "counters")


@dataclass
class SecureSiteOpenedRound:
    """The last round whose sums this site has helped to open, and over whom and about what they
    were.

    The same round may be asked for again, by a server that was killed before it had saved its
    result, but only with the same clients, sizes and weights: two different sums of the same
    updates would show what one client sent.
    """

    round: int = -1
    sums: dict[str, list[str]] = field(
        default_factory=dict
    )  # by name: a hash of what was told, then who was in it


@dataclass
class SecureSiteState:
    """What a site knows of the round under way, beside its update."""

    round: int = -1
    name: str = ""  # of this site
    received: str = ""  # the hash of the message that it began with
    members: dict[str, str] = field(
        default_factory=dict
    )  # by the name of the sum, this site's half of it
    attempts: dict[str, int] = field(default_factory=dict)  # by the name of the sum
    told: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # by sum, what the server told everyone about it
    agreed: dict[str, str] = field(
        default_factory=dict
    )  # by sum, a hash of it as it was when this site masked
    opened: SecureSiteOpenedRound = field(default_factory=SecureSiteOpenedRound)


class SecureSiteMemory:
    """One site's state in one run, for one kind of round, training or evaluation.

    It is written only while `held`.
    """

    def __init__(self, folder: Path, run: str, key: Ed25519PublicKey, kind: str) -> None:
        self.path = folder / client_alias(run, f"secure {public_line(key)}")
        self._state, self._waiting = self.path / f"{kind}.json", self.path / f"{kind}.safetensors"

    @contextmanager
    def held(self) -> Iterator[None]:
        """One message at a time: two that find the same state would put the same masks on different
        words.
        """
        make_folder(self.path.parent, private=True)
        make_subfolder(self.path, private=True)
        with lock_file(self._state):
            yield

    def keep(self, vectors: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
        arrays = {name: np.ascontiguousarray(vector) for name, vector in vectors.items()}
        write_whole(self._waiting, save(arrays, {"about": json.dumps(about)}), private=True)

    def waiting(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        if not self._waiting.is_file():
            raise UserError(
                "nothing waits at this site for a secure sum: it has not trained, or its part is"
                " done"
            )
        try:
            with safe_open(self._waiting, "np") as file:
                about = json.loads((file.metadata() or {})["about"])
                return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            reason = f"{self._waiting}: {first_line(error):.80}"
            raise UserError(f"what waits for a secure sum is damaged ({reason})") from None

    def forget(self) -> None:
        """Delete what waits: it has been counted, or never will be."""
        with suppress(FileNotFoundError):
            self._waiting.unlink()

    def state(self) -> SecureSiteState:
        """As it was kept; of a new site where nothing was."""
        if not self._state.is_file():
            return SecureSiteState()
        try:
            found = json.loads(self._state.read_bytes())
            return SecureSiteState(**(found | {"opened": SecureSiteOpenedRound(**found["opened"])}))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"the kept state of a secure sum is damaged: {self._state}") from None

    def keep_state(self, state: SecureSiteState) -> None:
        write_whole(self._state, json.dumps(asdict(state)).encode(), private=True)


def update_to_site_memory(
    sent: Model, update: Update
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The model that came and what training made of it, as vectors and facts."""
    vectors = {f"sent.{name}": getattr(sent, name) for name in MODEL_VECTORS}
    vectors |= {f"own.{name}": getattr(update.model, name) for name in MODEL_VECTORS}
    vectors |= {f"extra.{name}": vector for name, vector in update.extra.items()}
    entries = [[entry.name, entry.kind, entry.shape, entry.dtype] for entry in sent.layout.entries]
    labelled = None if update.labelled is None else update.labelled.tolist()
    model = {"entries": entries, "classifier": sent.layout.classifier}
    facts = {"size": update.size, "steps": update.steps, "metrics": dict(update.metrics)}
    return vectors, model | facts | {"labelled": labelled, "seconds": update.seconds}


def classifier_from_json(given: Any) -> Heads:
    """The classifier as JSON has it: one layer, or a list of several."""
    return tuple(map(str, given)) if isinstance(given, list) else str(given)


def update_from_site_memory(
    vectors: dict[str, NDArray[Any]], about: dict[str, Any]
) -> tuple[Model, Update]:
    """The sent model and the update, from what `update_to_site_memory` made of them."""
    entries = ((name, kind, tuple(shape), dtype) for name, kind, shape, dtype in about["entries"])
    layout = Layout.of(entries, classifier_from_json(about["classifier"]))
    parts = (
        {name: vectors[f"{whose}.{name}"] for name in MODEL_VECTORS} for whose in ("sent", "own")
    )
    sent, own = (Model(**part, layout=layout) for part in parts)
    extra = {
        name.removeprefix("extra."): v for name, v in vectors.items() if name.startswith("extra.")
    }
    labelled = None if about["labelled"] is None else np.array(about["labelled"], bool)
    facts = (about["size"], about["steps"], about["metrics"])
    return sent, Update(0, own, *facts, extra, labelled, about["seconds"])
