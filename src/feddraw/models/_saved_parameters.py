"""A network's parameters from a file, as authors save them: plain, wrapped in a dictionary, or with
prefixed names.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feddraw.errors import UserError, first_line

MAX_PARAMETER_FILE = 1 << 32  # bytes of a file; DenseNet121's has 31 million
WRAPPER_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights")
WRAPPER_PREFIX = re.compile(r"(?:(?:module|model|net|network|_orig_mod)\.)+")

NAMED_TENSORS = 4  # of those that are not used, in a message

SavedParameters = dict[str, Tensor]


def read_saved_parameters(path: Path, most: int = MAX_PARAMETER_FILE) -> SavedParameters:
    """The tensors of a file by name, out of their wrapping; nothing in the file is run."""
    with suppress(RuntimeError):  # a user that is not there: the file's own name begins with ~
        path = path.expanduser()
    try:
        is_file = path.is_file()
        size = _unpacked_size(path) if is_file else 0
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if not is_file:
        raise UserError(
            f"no weights file {path}: give the path of a file that torch.save or safetensors wrote"
        )
    if size > most:
        raise UserError(f"{path} is larger than {most >> 20} MB: not this network's weights")
    state = unwrapped_parameters(_load_parameter_file(path))
    if state is None:
        raise UserError(f"{path} is not a file of weights: it should hold tensors by name")
    return without_wrapper_prefix(state)


def _unpacked_size(path: Path) -> int:
    """Bytes of a file, or of what is in it: torch also reads archives that are compressed."""
    size = path.stat().st_size
    with suppress(zipfile.BadZipFile, NotImplementedError), zipfile.ZipFile(path) as archive:
        size = max(size, sum(entry.file_size for entry in archive.infolist()))
    return size


def _load_parameter_file(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors" or _has_safetensors_header(path):
            from safetensors.torch import load

            # read, not mapped: a mapped file that shrinks meanwhile would kill the process
            return load(path.read_bytes())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an error says in one line what is wrong with a file
            return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        if type(error).__name__ == "UnpicklingError":  # torch refuses whatever is not a tensor
            raise UserError(
                f"{path} holds more than tensors, such as a whole network, and reading it would run"
                " its code: load it where you trust it, and torch.save(network.state_dict(), FILE)"
            ) from None
        reason = first_line(error).partition(". ")[0][:200]  # advice follows
        raise UserError(
            f"{path} is not a file of weights, or not all of it: {reason.rstrip('.')}"
        ) from None


def _has_safetensors_header(path: Path) -> bool:
    """Whether a file of any name begins as safetensors do: the length of a JSON table, and that."""
    with path.open("rb") as file:
        beginning = file.read(9)
    length = int.from_bytes(beginning[:8], "little")
    return beginning[8:] == b"{" and length < path.stat().st_size


def unwrapped_parameters(content: Any, depth: int = 0) -> SavedParameters | None:
    """Tensors by name, at the top or under one of the usual keys."""
    if not isinstance(content, dict) or depth > len(WRAPPER_KEYS):
        return None
    if content and all(
        isinstance(name, str) and torch.is_tensor(value) for name, value in content.items()
    ):
        return dict(content)
    for key in WRAPPER_KEYS:
        state = unwrapped_parameters(content.get(key), depth + 1)
        if state is not None:
            return state
    return None


def without_wrapper_prefix(state: SavedParameters) -> SavedParameters:
    """Names without what wrappers such as DataParallel put before all of them."""
    matches = [WRAPPER_PREFIX.match(name) for name in state]
    prefixes = {match.group() if match else "" for match in matches}
    if len(prefixes) != 1:
        return state
    (prefix,) = prefixes
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def copy_parameters(module: nn.Module, state: SavedParameters, source: str) -> None:
    """Put tensors into a network, of which each must be of the network's kind and finite."""
    needed = module.state_dict()
    for name, tensor in state.items():
        plain = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized
        if not plain or tensor.is_floating_point() != needed[name].is_floating_point():
            there, here = (str(t.dtype).removeprefix("torch.") for t in (tensor, needed[name]))
            kind = there if plain else "sparse, quantised or empty"
            raise UserError(f"{source}: {name} is {kind}, where the network has plain {here}")
    module.load_state_dict(state, strict=False)
    copied = module.state_dict()
    check_finite({name: copied[name] for name in state}, source)


def check_finite(state: SavedParameters, source: str) -> None:
    """Refuse weights of which some are not finite: every feature and score would be NaN."""
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise UserError(
                f"{source}: {name} has values that are not finite (NaN or infinity): the file is"
                " damaged, or its training had diverged"
            )


def warn_of_unused(names: Sequence[str], total: int, source: str) -> None:
    """Name the tensors of a file that a network did not take: of its old classifier, as a rule."""
    # counts of batches, which say nothing about the network
    others = [name for name in names if not name.endswith("num_batches_tracked")]
    if others:
        more = ", …" if len(others) > NAMED_TENSORS else ""
        listed = " ".join(", ".join(others[:NAMED_TENSORS]).split()) + more
        warnings.warn(
            f"{source}: {len(others)} of {total} tensors are not used ({listed})", stacklevel=3
        )
