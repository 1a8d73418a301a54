"""Ways in which a Flower reply can be bad, each with how the ledger's reason begins.

What `bad_updates` does to an update this does to the records of a message, as they would come over
the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from feddraw.core import Method, Model, Proxy, State, Update
from feddraw.flower import MethodStrategy
from feddraw.flower.array_records import (
    NUMPY_ARRAY,
    model_to_arrays,
    pack_array,
    unpack_array,
    vectors_to_arrays,
)
from feddraw.flower.in_process_grid import identify_in_process_grid

Change = Callable[[RecordDict], None]
TENSOR = "classifier.weight"


def reply(update: Update, name: str = "") -> RecordDict:
    """What a client of the package answers."""
    metrics = MetricRecord(
        {"num-examples": update.size, "num-steps": update.steps, **update.metrics}
    )
    content = RecordDict({"arrays": model_to_arrays(update.model), "metrics": metrics})
    if name:
        content["client"] = ConfigRecord({"name": name, "number": update.client})
    if update.extra:
        content["extra"] = vectors_to_arrays(update.extra)
    return content


def copied(content: RecordDict) -> RecordDict:
    """Records of its own; reading takes tensors out of them."""
    return RecordDict({name: type(record)(dict(record)) for name, record in content.items()})


def tensor(change: Callable[[np.ndarray], np.ndarray], name: str = TENSOR) -> Change:
    """Another tensor, packed as Flower does."""

    def changed(content: RecordDict) -> None:
        arrays: Any = content["arrays"]
        arrays[name] = pack_array(change(np.array(unpack_array(arrays[name]))))

    return changed


def raw(data: bytes, dtype: str = "float32", kind: str = NUMPY_ARRAY) -> Change:
    """Bytes that are no tensor."""

    def changed(content: RecordDict) -> None:
        arrays: Any = content["arrays"]
        arrays[TENSOR] = Array(dtype, (2, 6), kind, data)

    return changed


def metric(**values: Any) -> Change:
    def changed(content: RecordDict) -> None:
        numbers: Any = content["metrics"]
        for name, value in values.items():
            numbers[name.replace("_", "-")] = value

    return changed


def without(*names: str) -> Change:
    """Records that are not there."""

    def changed(content: RecordDict) -> None:
        for name in names:
            content.pop(name, None)

    return changed


def renamed(content: RecordDict) -> None:
    arrays: Any = content["arrays"]
    arrays["other.weight\nwith a line"] = arrays.pop(TENSOR)


def lost(content: RecordDict) -> None:
    arrays: Any = content["arrays"]
    del arrays[TENSOR]


def one_more(content: RecordDict) -> None:
    arrays: Any = content["arrays"]
    arrays["more\n"] = arrays[TENSOR]


def doubled(content: RecordDict) -> None:
    content["second"], content["third"] = content["arrays"], content.pop("arrays")


def header(text: str, data: bytes = bytes(48)) -> bytes:
    """A file in numpy's format whose header says this."""
    line = text.encode()
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + data


def saved(values: Any, archive: bool = False) -> bytes:
    file = BytesIO()
    if archive:
        np.savez(file, values)
    else:
        np.save(file, values, allow_pickle=True)
    return file.getvalue()


def said(shape: str, dtype: str = "'<f4'", columns: bool = False) -> bytes:
    return header(f"{{'descr': {dtype}, 'fortran_order': {columns}, 'shape': {shape}}}\n")


UNREADABLE = "a tensor that cannot be read"
BAD_REPLIES: dict[str, tuple[Change, str]] = {
    "NaN": (tensor(lambda v: v * np.nan), "parameters are not finite"),
    "infinity": (tensor(lambda v: v + np.inf), "parameters are not finite"),
    "huge": (tensor(lambda v: v + np.float32(1e30)), "parameters are not finite"),
    "huge, in double precision": (
        tensor(lambda v: v.astype(np.float64) + 1e300),
        "parameters are not finite",
    ),
    "turned": (tensor(lambda v: v.T), f"{TENSOR} of shape (6, 2)"),
    "too long": (tensor(lambda v: np.repeat(v, 2, 0)), f"{TENSOR} of shape (4, 6)"),
    "one number": (tensor(lambda v: v[0, 0]), f"{TENSOR} of shape ()"),
    "integers": (tensor(lambda v: v.astype(np.int64)), f"{TENSOR} of type int64"),
    "complex": (tensor(lambda v: v.astype(np.complex64)), f"{TENSOR} of type complex64"),
    "words": (tensor(lambda v: v.astype("U8")), f"{TENSOR} of type <U8"),
    "counters as fractions": (
        tensor(lambda v: v.astype(np.float32), "first_norm.num_batches_tracked"),
        "first_norm.num_batches_tracked of type float32",
    ),
    "counters gone back": (
        tensor(lambda v: v - 100, "first_norm.num_batches_tracked"),
        "counters that no training",
    ),
    "negative variance": (
        tensor(lambda v: v - 100, "first_norm.running_var"),
        "a variance is negative",
    ),
    "no bytes": (raw(b""), UNREADABLE),
    "text": (raw(b"model"), UNREADABLE),
    "a pickle": (raw(saved(np.array([{"a": 1}], object)), "object"), UNREADABLE),
    "an archive": (raw(saved(np.zeros((2, 6), np.float32), archive=True)), UNREADABLE),
    "more than there is": (raw(said("(99999999999,)")), UNREADABLE),
    "more than there is, by columns": (raw(said("(99999999999,)", columns=True)), UNREADABLE),
    "more than any number": (raw(said("(9" + "9" * 30 + ",)")), UNREADABLE),
    "negative shape": (raw(said("(-2, -6)")), UNREADABLE),
    "nested without end": (raw(header("(" * 9000)), UNREADABLE),
    "negated without end": (raw(header("-" * 9000 + "1")), UNREADABLE),
    "records for numbers": (raw(said("(2, 6)", "[('a', '<f4')]")), f"{TENSOR} of type"),
    "another kind": (raw(b"", kind="torch.Tensor\n"), "a tensor of the kind"),
    "a tensor is lost": (lost, "1 tensor(s) are not there"),
    "another name": (renamed, "1 tensor(s) are not there"),
    "a tensor too many": (one_more, "1 tensor(s) that were not sent"),
    "no model": (without("arrays"), "no tensors"),
    "two models": (doubled, "2 records of tensors"),
    "nothing": (without("arrays", "metrics", "extra"), "no num-examples"),
    "no metrics": (without("metrics"), "no num-examples"),
    "no images": (metric(num_examples=0), "num-examples = 0"),
    "negative size": (metric(num_examples=-3), "num-examples = -3"),
    "size not a number": (metric(num_examples=float("nan")), "num-examples = nan"),
    "endless size": (metric(num_examples=float("inf")), "num-examples = inf"),
    "size out of reach": (metric(num_examples=10**15), "size 1000000000000000"),
    "sizes": (metric(num_examples=[3, 4]), "num-examples = [3, 4]"),
    "no steps": (metric(num_steps=0), "0 steps"),
    "negative steps": (metric(num_steps=-1), "-1 steps"),
}


def beside(change: Callable[[Any], Any]) -> Change:
    """Another first vector beside the model."""

    def changed(content: RecordDict) -> None:
        extra: Any = content["extra"]
        name = next(iter(extra))
        extra[name] = change(np.array(unpack_array(extra[name])))

    return changed


BAD_BESIDE: dict[str, tuple[Change, str]] = {
    "no vectors": (without("extra"), "no "),
    "vectors not finite": (
        beside(lambda v: pack_array(v * np.float32(np.nan))),
        "",  # the reason begins with the name of the vector
    ),
    "vectors too long": (beside(lambda v: pack_array(np.repeat(v, 2))), ""),
    "vectors of words": (beside(lambda v: pack_array(v.astype("U4"))), ""),
    "vectors of bytes": (beside(lambda v: Array("float32", (3,), NUMPY_ARRAY, b"xyz")), UNREADABLE),
}


def spoilt(content: RecordDict, change: Change) -> RecordDict:
    new = copied(content)
    change(new)
    return new


# ------------------------------------------------------------------------------------ at the server

NODES = tuple(range(101, 105))


def asked(node: int, group: str = "1") -> Message:
    """A message to a node."""
    identify_in_process_grid()
    return Message(RecordDict(), node, MessageType.TRAIN, group_id=group)


def answered(node: int, content: RecordDict, group: str = "1") -> Message:
    """A message from a node."""
    return Message(content, reply_to=asked(node, group))


def server(method: Method, sent: Model, state: State, proxy: Proxy | None = None) -> MethodStrategy:
    """A strategy that has asked four nodes in its second round."""
    strategy = MethodStrategy(method, round_offset=1, rounds=3, proxy=proxy)
    strategy.progress.adopt(model_to_arrays(sent))
    strategy.progress.model = replace(strategy.progress.current, model=sent, state=state)
    strategy._training = replace(strategy._training, nodes=NODES)
    strategy.progress.population = len(NODES)
    return strategy
