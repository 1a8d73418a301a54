"""The messages of secure rounds between Flower's server and its sites: how both ends write and read
them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from feddraw.core import Model, Vector
from feddraw.errors import UserError
from feddraw.flower import frozen_layers, job_orders
from feddraw.secure.rounds.announcement import announced_fingerprint
from feddraw.text import one_line

Kind = TypeVar("Kind", str, bytes)

SECURE_ORDER = SECURE_RECORD = (
    "secure"  # the key of our orders that asks for it, and the record of an answer
)
CONFIG = "config"
COUNTS_SUM = "counts"  # the sum of an evaluation
MASKED_WORDS = "words"  # the masked ones, in an answer
ANNOUNCEMENT = "announcement"  # what is told about the sums of training
RECEIVED = "received"  # and about all: the hash of the message that all were sent to begin with
SECURE_STAGES = ("begin", "keys", "shares", "values", "survivors", "opening")


@dataclass(frozen=True)
class SecureOrder:
    """What the server asks for, beside what comes with it for one client only."""

    run: str
    round: int
    sums: tuple[str, ...]  # of this round, by their names and in their order
    stage: str = "begin"
    sum: str = ""
    attempt: int = 0
    told: Mapping[str, str] = field(
        default_factory=dict
    )  # what all clients are told about what they add
    survivors: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # with the first stage: how to read the app's answer

    @classmethod
    def of(cls, given: Any) -> SecureOrder:
        """As it came; UserError if it is not one."""
        with reading_secure_message():
            order = cls(**given)
            order = cls(
                **(vars(order) | {"sums": tuple(order.sums), "survivors": tuple(order.survivors)})
            )
            texts = (order.run, order.stage, order.sum, *order.sums, *order.survivors)
            tables = (order.told, order.settings)
            if not all(isinstance(text, str) for text in texts) or not all(
                isinstance(one, dict) for one in tables
            ):
                raise ValueError("texts and tables are of other types")
            if (
                type(order.round) is not int
                or type(order.attempt) is not int
                or order.stage not in SECURE_STAGES
            ):
                raise ValueError("round, attempt or stage is unknown")
            if order.stage != "begin" and order.sum not in order.sums:
                raise ValueError("there is no such sum in the round")
            return order

    def message(self, pairs: Mapping[str, bytes] | None = None) -> RecordDict:
        """A message of a stage after the first, with what belongs to names."""
        config = job_orders.add_orders(ConfigRecord(), {SECURE_ORDER: asdict(self)})
        return RecordDict({CONFIG: ConfigRecord(dict(config) | _pairs_as_record(pairs or {}))})


def digest_of_told(told: Mapping[str, str]) -> bytes:
    """A hash of what all clients are told about a sum: those that were told different things do not
    open it.
    """
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()


def fingerprint_of_sent(sent: Model, broadcast: Mapping[str, Vector], frozen: str) -> str:
    """All that a client was sent to train on, as a hash; frozen layers by the digest under which
    they are sent once.
    """
    plain = replace(sent, layout=replace(sent.layout, frozen={}))
    return f"{announced_fingerprint(plain, broadcast)} {frozen}".strip()


def hash_of_secure_message(content: RecordDict, run_config: Mapping[str, Any]) -> str:
    """All that a site works by, as a hash: a server that sent others a learning rate of 0 would see
    this move alone.

    Frozen layers are left out, as they are sent once; their digest is among the orders. So is
    whether the server was resumed, which changes nothing at a site.
    """
    settings = sorted(item for item in run_config.items() if item[0] != "resume")
    digest = hashlib.sha256(repr(settings).encode())
    for name, record in sorted(content.items()):
        if name == frozen_layers.FROZEN and isinstance(record, ArrayRecord):
            continue
        if isinstance(record, ArrayRecord):
            arrays = (
                (name, array.dtype, list(array.shape), array.stype, array.data)
                for name, array in record.items()
            )
            parts: list[Any] = [
                (*about, hashlib.sha256(data).hexdigest()) for *about, data in arrays
            ]
        else:
            parts = sorted(record.items(), key=lambda pair: pair[0])
        digest.update(repr((name, type(record).__name__, parts)).encode())
    return digest.hexdigest()


def secure_order_in(content: RecordDict) -> SecureOrder | None:
    """The order in a message; none where the server asks for none."""
    given = job_orders.read_orders(content).get(SECURE_ORDER)
    return SecureOrder.of(given) if given else None


@contextmanager
def reading_secure_message() -> Iterator[None]:
    """What comes from the other end may be anything: an error in one line if it does not fit."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise UserError(f"a message of a secure sum cannot be read: {one_line(error)}") from None


def secure_answer(pairs: Mapping[str, bytes], **more: str) -> RecordDict:
    return RecordDict({SECURE_RECORD: ConfigRecord(_pairs_as_record(pairs) | more)})


def _pairs_as_record(pairs: Mapping[str, bytes]) -> dict[str, Any]:
    return {"names": list(pairs), "contents": list(pairs.values())} if pairs else {}


def secure_pairs_in(content: RecordDict, record: str = SECURE_RECORD) -> dict[str, bytes]:
    """Names and what belongs to each."""
    with reading_secure_message():
        found = content[record]
        if not isinstance(found, ConfigRecord):
            raise TypeError(f"{record} is no record of texts")
        names, contents = (
            _list_in_message(found.get("names", []), str),
            _list_in_message(found.get("contents", []), bytes),
        )
        if len(set(names)) != len(names):
            raise ValueError("a name comes twice")
        return dict(zip(names, contents, strict=True))


def _list_in_message(given: Any, kind: type[Kind]) -> list[Kind]:
    if not isinstance(given, list) or not all(isinstance(one, kind) for one in given):
        raise ValueError(f"no list of {kind.__name__}")
    return given
