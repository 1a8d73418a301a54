"""How the messages of secure rounds are written, at both ends, and the method that they name as text.

A site weighs itself by the rules that the server names. Only this package's own rules travel, by their file and class
and with their settings. A server must not choose what code runs at a site, so nothing else is ever imported.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from feddraw import catalog, core
from feddraw.core import Local, Method, Model, Server, Vector, Weighting
from feddraw.errors import UserError
from feddraw.flower import frozen_layers, job_orders
from feddraw.flower.reply_intake import one_line
from feddraw.secure_rounds.announcement import fingerprint

Kind = TypeVar("Kind", str, bytes)

ORDER = RECORD = "secure"  # the key of our orders that asks for it, and the record of an answer
CONFIG = "config"
FIRST, MOVES, COUNTS = "first", "moves", "counts"  # the sums: of training, and of evaluation
ANNOUNCEMENT = "announcement"  # what is told about the sums of training
RECEIVED = "received"  # and about all: the hash of the message that all were sent to begin with
STAGES = ("begin", "keys", "shares", "values", "survivors", "opening")


@dataclass(frozen=True)
class Order:
    """What the server asks for, beside what comes with it for one client only."""

    run: str
    round: int
    sums: tuple[str, ...]  # of this round, by their names and in their order
    stage: str = "begin"
    sum: str = ""
    attempt: int = 0
    told: Mapping[str, str] = field(default_factory=dict)  # what all clients are told about what they add
    survivors: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # with the first stage: how to read the app's answer

    @classmethod
    def of(cls, given: Any) -> Order:
        """As it came; UserError if it is not one."""
        with reading():
            order = cls(**given)
            order = cls(**(vars(order) | {"sums": tuple(order.sums), "survivors": tuple(order.survivors)}))
            texts = (order.run, order.stage, order.sum, *order.sums, *order.survivors)
            tables = (order.told, order.settings)
            if not all(isinstance(text, str) for text in texts) or not all(isinstance(one, dict) for one in tables):
                raise ValueError("texts and tables are of other types")
            if type(order.round) is not int or type(order.attempt) is not int or order.stage not in STAGES:
                raise ValueError("round, attempt or stage is unknown")
            if order.stage != "begin" and order.sum not in order.sums:
                raise ValueError("there is no such sum in the round")
            return order

    def message(self, pairs: Mapping[str, bytes] | None = None) -> RecordDict:
        """A message of a stage after the first, with what belongs to names."""
        config = job_orders.add_orders(ConfigRecord(), {ORDER: asdict(self)})
        return RecordDict({CONFIG: ConfigRecord(dict(config) | _written(pairs or {}))})


def digest_of_told(told: Mapping[str, str]) -> bytes:
    """Of what all clients are told about a sum: those that were told something else do not open it together."""
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()


def fingerprint_of_sent(sent: Model, broadcast: Mapping[str, Vector], frozen: str) -> str:
    """Of all that a client was sent to train on; frozen layers by the digest under which they are sent once."""
    plain = replace(sent, layout=replace(sent.layout, frozen={}))
    return f"{fingerprint(plain, broadcast)} {frozen}".strip()


def hash_of_message(content: RecordDict, run_config: Mapping[str, Any]) -> str:
    """Of all that a site works by: a server that sends others a learning rate of 0 would see this site's move alone.

    Frozen layers are left out, as they are sent once; their digest is among the orders.
    """
    digest = hashlib.sha256(repr(sorted(run_config.items())).encode())
    for name, record in sorted(content.items()):
        if name == frozen_layers.FROZEN and isinstance(record, ArrayRecord):
            continue
        if isinstance(record, ArrayRecord):
            arrays = ((name, array.dtype, list(array.shape), array.stype, array.data) for name, array in record.items())
            parts: list[Any] = [(*about, hashlib.sha256(data).hexdigest()) for *about, data in arrays]
        else:
            parts = sorted(record.items(), key=lambda pair: pair[0])
        digest.update(repr((name, type(record).__name__, parts)).encode())
    return digest.hexdigest()


def order_in(content: RecordDict) -> Order | None:
    """The order in a message; none where the server asks for none."""
    given = job_orders.read_orders(content).get(ORDER)
    return Order.of(given) if given else None


@contextmanager
def reading() -> Iterator[None]:
    """What comes from the other end may be anything: an error in one line if it does not fit."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise UserError(f"a message of a secure sum cannot be read: {one_line(error)}") from None


def answer(pairs: Mapping[str, bytes], **more: str) -> RecordDict:
    """A client's answer."""
    return RecordDict({RECORD: ConfigRecord(_written(pairs) | more)})


def _written(pairs: Mapping[str, bytes]) -> dict[str, Any]:
    return {"names": list(pairs), "contents": list(pairs.values())} if pairs else {}


def pairs_in(content: RecordDict, record: str = RECORD) -> dict[str, bytes]:
    """Names and what belongs to each."""
    with reading():
        found = content[record]
        if not isinstance(found, ConfigRecord):
            raise TypeError(f"{record} is no record of texts")
        names, contents = _list(found.get("names", []), str), _list(found.get("contents", []), bytes)
        if len(set(names)) != len(names):
            raise ValueError("a name comes twice")
        return dict(zip(names, contents, strict=True))


def _list(given: Any, kind: type[Kind]) -> list[Kind]:
    if not isinstance(given, list) or not all(isinstance(one, kind) for one in given):
        raise ValueError(f"no list of {kind.__name__}")
    return given


RULES: Mapping[str, type] = {"local": Local, "weighting": Weighting, "server": Server}
CORE, METHODS = "feddraw.core", "feddraw.methods."


def method_as_text(method: Method) -> dict[str, Any]:
    """The rules by name, with their settings."""
    return {part: _rule_as_text(getattr(method, part)) for part in RULES} | {"limited": method.limited}


def method_from_text(given: Mapping[str, Any]) -> Method:
    """The same rules at the other end."""
    try:
        rules = {part: _rule_from_text(given[part]) for part in RULES}
        if not all(isinstance(rules[part], kind) for part, kind in RULES.items()):
            raise ValueError("a rule is of another kind")
        return Method(**rules, limited=bool(given["limited"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"the server's method is not known here: {error!s:.80}") from None


def _rule_as_text(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        name = f"{type(value).__module__.removeprefix(METHODS)}:{type(value).__name__}"
        if type(value).__module__ != CORE and not type(value).__module__.startswith(METHODS):
            raise UserError(f"secure sums over Flower need the rules of this package, and {name} is another's")
        return {"rule": name} | {one.name: _rule_as_text(getattr(value, one.name)) for one in fields(value) if one.init}
    if isinstance(value, list | tuple):
        return [_rule_as_text(one) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise UserError(f"secure sums over Flower need plain settings, and a {type(value).__name__} is none")


def _rule_from_text(given: Any) -> Any:
    if isinstance(given, list):
        return tuple(_rule_from_text(one) for one in given)
    if not isinstance(given, dict):
        return given
    file, _, name = str(given["rule"]).partition(":")
    module = core if file == CORE else sys.modules[catalog.find("methods", file).__module__]
    found = vars(module)[name]
    if not (isinstance(found, type) and is_dataclass(found) and found.__module__ == module.__name__):
        raise ValueError(f"{name} is no rule")
    return found(**{name: _rule_from_text(value) for name, value in given.items() if name != "rule"})
