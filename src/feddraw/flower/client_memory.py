"""What a client remembers between rounds, in the site's own folder: Flower forgets it when a node
restarts.

A round's memory holds once the server has weighted the round's update: with every job it says which
round of this client that was, and the client resumes from there. So a client whose update was
refused or lost, and one that is asked for a round again after the server was killed, start from the
same memory as before. Two memories are kept for this.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from feddraw.core import Memory
from feddraw.errors import UserError, first_line
from feddraw.system.file_writing import make_folder, make_subfolder, write_whole


def default_memory_folder() -> Path:
    """Where a site keeps what its clients remember, unless its settings say otherwise."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "feddraw" / "memory"


def memory_folder(node: Mapping[str, Any]) -> Path:
    """By a node's settings."""
    return Path(str(node["memory"])) if node.get("memory") else default_memory_folder()


def client_alias(run: str, client: str) -> str:
    """A client's name as a hash, for messages and paths: only who knows the name recognises it."""
    return hashlib.sha256(f"{run}\n{client}".encode()).hexdigest()[:24]


class ClientMemory:
    """What one client remembers in one run.

    The run's name comes from the server, so only its hash becomes a path.
    """

    def __init__(self, folder: Path, run: str, client: str) -> None:
        self.path = folder / client_alias(run, client)

    def _files(self) -> dict[int, Path]:
        """Round to file, for rounds whose memory is there."""
        files = sorted(self.path.glob("[0-9]*.safetensors"))
        return {int(file.stem): file for file in files if file.stem.isdecimal()}

    def load(self, round: int, last_weighted: int | None = None) -> Memory:
        """What the client remembers after the round in which its update was last weighted; if none
        is named, after the last one before `round`.
        """
        files = self._files()
        rounds = [number for number in files if number < round and last_weighted in (None, number)]
        if not rounds:
            return {}
        file = files[max(rounds)]
        try:
            return {name: np.array(vector) for name, vector in load_file(file).items()}
        except (SafetensorError, OSError, ValueError) as error:
            why = f"{file}: {first_line(error):.80}"
            raise UserError(
                f"what this client remembers is damaged ({why}); without the file it begins anew"
            ) from None

    def save(self, round: int, memory: Memory, last_weighted: int | None = None) -> None:
        """Keep what a round taught, beside the memory that holds until the server weights it."""
        if not memory:
            return
        make_folder(self.path.parent, private=True)
        make_subfolder(self.path, private=True)
        arrays = {name: np.ascontiguousarray(vector) for name, vector in memory.items()}
        write_whole(self.path / f"{round:06d}.safetensors", save(arrays), private=True)
        files = self._files()
        needed = sorted(files)[-2:] if last_weighted is None else [last_weighted, round]
        for number, file in files.items():
            if number > round or number not in needed:
                file.unlink()
