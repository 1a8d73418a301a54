"""What travels beside a model in its `meta`: what a rule sends or remembers, as words and bytes.

FLARE keeps `meta` with the model through all its workflows and writes it to the model's file. Words
and bytes are safe there: such a file can still be read by `torch.load(…, weights_only=True)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError
from feddraw.results.checkpoint import extract_arrays, restore_arrays

META_KEY = "feddraw"  # in a model's meta
FROZEN = "frozen"  # in what is packed: the digest of a site's or the job's frozen layers


def pack_meta(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts of arrays, numbers and words; empty if there is nothing to say."""
    arrays: dict[str, NDArray[Any]] = {}
    words = extract_arrays(tree, "tree", arrays)
    if not words:
        return {}
    forms = {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}
    bits = {name: array.tobytes() for name, array in arrays.items()}
    return {META_KEY: {"words": json.dumps([words, forms]), "bits": bits}}


def unpack_meta(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `pack_meta` put there; empty if there is nothing."""
    carried = (meta or {}).get(META_KEY)
    if carried is None:
        return {}
    try:
        words, forms = json.loads(carried["words"])
        arrays = {
            name: _array(carried["bits"][name], dtype, shape)
            for name, (dtype, shape) in forms.items()
        }
        return dict(restore_arrays(words, arrays))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise UserError(f"what came as '{META_KEY}' in a model's meta cannot be read") from None


def _array(bits: bytes, dtype: str, shape: list[int]) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if kind.kind not in "fiub":
        raise ValueError(f"arrays of {dtype}")
    return np.frombuffer(bits, kind).reshape(shape).copy()
