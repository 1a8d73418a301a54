"""A checkpoint: the model, the state and the clients' memory after a round, in one safetensors
file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from feddraw.core import Layout, Memory, Model, State
from feddraw.errors import UserError


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that the next round needs."""

    model: Model
    state: State
    next_round: int
    memory: dict[int, Memory]


def checkpoint_bytes(checkpoint: Checkpoint) -> bytes:
    arrays: dict[str, NDArray[Any]] = {}
    document = {
        "next_round": checkpoint.next_round,
        "state": extract_arrays(checkpoint.state, "state", arrays),
        "memory": extract_arrays(
            {str(k): v for k, v in sorted(checkpoint.memory.items())}, "memory", arrays
        ),
    }
    arrays["model.params"] = checkpoint.model.params
    arrays["model.buffers"] = checkpoint.model.buffers
    arrays["model.counters"] = checkpoint.model.counters
    return _file_bytes(document, arrays)


def read_checkpoint(path: Path, layout: Layout) -> Checkpoint:
    """Raises whatever it stumbles over in a file that `checkpoint_bytes` did not write."""
    document, arrays = _read_file(path)
    model = Model(arrays["model.params"], arrays["model.buffers"], arrays["model.counters"], layout)
    vectors = {
        "param": (model.params, "f"),
        "buffer": (model.buffers, "f"),
        "counter": (model.counters, "i"),
    }
    for kind, (vector, number) in vectors.items():
        if vector.shape != (layout.length(kind),) or vector.dtype.kind != number:
            raise ValueError("it is of another network")
    if type(document["next_round"]) is not int or document["next_round"] < 0:
        raise ValueError("it has no round")
    memory = {
        int(client): dict(vectors)
        for client, vectors in restore_arrays(document["memory"], arrays).items()
    }
    if not _all_finite([*arrays.values(), document]):
        raise UserError(
            f"{path} holds numbers that are not finite: the run diverged, or the file was changed;"
            " start again in another folder, with a lower training.lr if it diverged"
        )
    return Checkpoint(
        model=model,
        state=dict(restore_arrays(document["state"], arrays)),
        next_round=document["next_round"],
        memory=memory,
    )


def _file_bytes(document: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    """A safetensors file of the arrays, with the document and a digest of all as its metadata."""
    document["blake2"] = arrays_digest(arrays, document)
    return save(arrays, {"feddraw": json.dumps(document)})


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The document and the arrays of a file that `_file_bytes` made."""
    with safe_open(path, "np") as file:
        document = json.loads(file.metadata()["feddraw"])
        arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (not a dict)
    if document.pop("blake2") != arrays_digest(arrays, document):
        raise ValueError("it was changed after it was written")
    return document, arrays


def array_tree_bytes(tree: Mapping[str, Any]) -> bytes:
    """Nested dicts of arrays, numbers and words as one safetensors file."""
    arrays: dict[str, NDArray[Any]] = {}
    return _file_bytes({"tree": extract_arrays(tree, "tree", arrays)}, arrays)


def read_array_tree(path: Path) -> dict[str, Any]:
    """What `array_tree_bytes` wrote; a damaged file is refused in one line."""
    try:
        document, arrays = _read_file(path)
        tree = restore_arrays(document["tree"], arrays)
        if not (isinstance(tree, dict) and _all_finite(tree)):
            raise ValueError("it holds numbers that are not finite")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        raise UserError(
            f"{path} is damaged, or not a file of this kind: {str(error)[:80]}"
        ) from None
    return tree


def _all_finite(tree: Any) -> bool:
    """Whether every number in it is one."""
    if isinstance(tree, np.ndarray):
        return tree.dtype.kind != "f" or bool(np.isfinite(tree).all())
    if isinstance(tree, Mapping | list):
        return all(map(_all_finite, tree.values() if isinstance(tree, Mapping) else tree))
    return not isinstance(tree, float) or math.isfinite(tree)


def extract_arrays(tree: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """A tree whose arrays have gone to `arrays` and left their names behind."""
    if isinstance(tree, Mapping):
        return {key: extract_arrays(value, f"{path}.{key}", arrays) for key, value in tree.items()}
    if isinstance(tree, np.ndarray):
        arrays[path] = np.ascontiguousarray(tree)
        return {"array": path}
    return tree


def restore_arrays(tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """What `extract_arrays` took apart."""
    if isinstance(tree, dict) and tree.keys() == {"array"} and isinstance(tree["array"], str):
        return arrays[tree["array"]]
    return (
        {key: restore_arrays(value, arrays) for key, value in tree.items()}
        if isinstance(tree, dict)
        else tree
    )


def model_digest(model: Model) -> str:
    """The same for the same bits."""
    return arrays_digest(
        {"params": model.params, "buffers": model.buffers, "counters": model.counters}, None
    )


def arrays_digest(arrays: Mapping[str, NDArray[Any]], document: Any) -> str:
    digest = hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()
