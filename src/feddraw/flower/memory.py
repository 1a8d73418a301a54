"""What a client remembers between rounds, in the site's own folder: Flower forgets it when a node restarts.

The memory after each of the last two rounds is kept, so that a round that the server asks for again finds what it
found the first time.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from feddraw.core import Memory
from feddraw.errors import UserError
from feddraw.files import make_folder, make_subfolder, write_whole


def default_folder() -> Path:
    """Where memory is kept unless a site says otherwise."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "feddraw" / "memory"


class Shelf:
    """One client's memory in one run. The run's name comes from the server, so only its hash becomes a path."""

    def __init__(self, folder: Path, run: str, client: str) -> None:
        self.path = folder / hashlib.sha256(f"{run}\n{client}".encode()).hexdigest()[:24]

    def _kept(self) -> dict[int, Path]:
        """Round to file, for rounds whose memory is there."""
        return {int(file.stem): file for file in sorted(self.path.glob("[0-9]*.safetensors")) if file.stem.isdecimal()}

    def load(self, round: int) -> Memory:
        """What the client remembered when it was last asked before this round."""
        before = [number for number in self._kept() if number < round]
        if not before:
            return {}
        file = self._kept()[max(before)]
        try:
            return {name: np.array(vector) for name, vector in load_file(file).items()}
        except (SafetensorError, OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"what this client remembers is damaged ({file}: {reason:.80}); without the file it begins anew"
            ) from None

    def save(self, round: int, memory: Memory) -> None:
        if not memory:
            return
        make_folder(self.path.parent, private=True)
        make_subfolder(self.path, private=True)
        arrays = {name: np.ascontiguousarray(vector) for name, vector in memory.items()}
        write_whole(self.path / f"{round:06d}.safetensors", save(arrays), private=True)
        for number, file in self._kept().items():
            if number > round or number not in sorted(self._kept())[-2:]:
                file.unlink()
