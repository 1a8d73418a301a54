"""Files of weights, as networks' authors save them: plain, wrapped in a dictionary, or with a prefix to every name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feddraw.errors import UserError, first_line

MAX_WEIGHTS = 1 << 32  # bytes of a file; DenseNet121's has 31 million
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights")
PREFIX = re.compile(r"(?:(?:module|model|net|network|_orig_mod)\.)+")

State = dict[str, Tensor]


def read_weights(path: Path, most: int = MAX_WEIGHTS) -> State:
    """The tensors of a file by name, out of their wrapping; nothing in the file is run."""
    if not path.is_file():
        raise UserError(f"no weights file {path}: give the path of a file that torch.save or safetensors wrote")
    if path.stat().st_size > most:
        raise UserError(f"{path} is larger than {most >> 20} MB: not this network's weights")
    state = unwrapped(_loaded(path))
    if state is None:
        raise UserError(f"{path} is not a file of weights: it should hold tensors by name")
    return without_prefix(state)


def _loaded(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise UserError(f"{path} is not a file of weights: {first_line(error)[:200]}") from None


def unwrapped(found: Any, depth: int = 0) -> State | None:
    """Tensors by name, at the top or under one of the usual keys."""
    if not isinstance(found, dict) or depth > len(WRAPPERS):
        return None
    if found and all(isinstance(name, str) and torch.is_tensor(value) for name, value in found.items()):
        return dict(found)
    inner = (unwrapped(found[key], depth + 1) for key in WRAPPERS if key in found)
    return next((state for state in inner if state is not None), None)


def without_prefix(state: State) -> State:
    """Names without what wrappers such as DataParallel put before all of them."""
    prefixes = {found.group() if (found := PREFIX.match(name)) else "" for name in state}
    if len(prefixes) != 1:
        return state
    length = len(prefixes.pop())
    return {name[length:]: value for name, value in state.items()}
