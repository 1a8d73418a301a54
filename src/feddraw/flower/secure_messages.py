"""The messages of secure rounds as Flower's records, and the digest of what a site was sent.

A site passes on to its app exactly what it has hashed: expected records only, in one order, each
array with its name, type, shape and bytes as they came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from feddraw.errors import UserError
from feddraw.flower import frozen_layers, job_orders
from feddraw.flower.array_records import (
    Refused,
    arrays_to_vectors,
    pack_array,
    unpack_array,
    vectors_to_arrays,
)
from feddraw.secure.rounds.messages import (
    Add,
    Again,
    Answer,
    Joined,
    Keys,
    Masked,
    Meet,
    Request,
    Reveal,
    Revealed,
    Sign,
    Signed,
    Weigh,
)
from feddraw.secure.rounds.terms import Announcement, Statement, Terms
from feddraw.secure.sums.client import Shares
from feddraw.secure.sums.large_digest import large_digest
from feddraw.secure.sums.message_fields import pack_fields
from feddraw.text import one_line
from feddraw.training.own_frozen_layers import frozen_digest

SECURE_ORDER = "secure"  # the key of our orders that asks for a secure round
SECURE_RECORD = "secure"  # the record of an answer
NOT_SECURE = "its app takes no part in secure sums: it needs ClientApp(mods=[secure_mod])"
CONFIG = "config"  # the record of a request after the first
MASKED_WORDS = "words"  # the record of masked words, and the tensor in it
BROADCAST = "broadcast"
RESUME = "resume"  # of the run's settings: it changes nothing at a site, and a site does not see it
# Orders that only name a run, or say which of a client's memories holds: not what is trained.
NAMES_OF_RUN = ("run", "weighted")
SEEDS = ("client-seed",)  # orders that a site does not take from a server

Kind = TypeVar("Kind", str, bytes)
Pairs = Mapping[str, bytes]  # names, and what belongs to each


@contextmanager
def reading_secure_message() -> Iterator[None]:
    """What comes from the other end may be anything: an error in one line if it does not fit."""
    try:
        yield
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        RecursionError,
        OverflowError,
        Refused,
    ) as error:
        raise UserError(f"a message of a secure sum cannot be read: {one_line(error)}") from None


# --------------------------------------------------------------------- the offer, as a site gets it


@dataclass(frozen=True)
class RecordNames:
    """How the records of an offer are called at a site."""

    arrays: str = "arrays"
    config: str = "config"


@dataclass(frozen=True, eq=False)
class OfferedWork:
    """What a site was sent to work on, as its app will get it, and what identifies it."""

    content: RecordDict
    terms: Terms
    attempt: int
    digest: bytes  # of everything that the app will use, and of the terms
    work: bytes  # of what the app will use, without what only names a run


def order_of_offer(terms: Terms, attempt: int) -> dict[str, Any]:
    """What a server adds to its orders, to offer a secure round."""
    return {SECURE_ORDER: {"terms": json.loads(terms.to_json()), "attempt": attempt}}


def secure_order_in(content: RecordDict) -> dict[str, Any] | None:
    """The order in a message; none where the server asks for no secure round."""
    order = job_orders.read_orders(content).get(SECURE_ORDER)
    if order is not None and not isinstance(order, dict):
        raise UserError("the server's order of a secure round cannot be read")
    return order


@dataclass(frozen=True)
class FlowerRun:
    """What an app sees of the run that a message belongs to."""

    run_id: int
    message_type: str
    settings: Mapping[str, Any]

    @property
    def digest(self) -> bytes:
        """Of all of it but what changes nothing at a site."""
        settings = sorted(item for item in self.settings.items() if item[0] != RESUME)
        return _digest_of(
            str(self.run_id).encode(), self.message_type.encode(), repr(settings).encode()
        )


def read_offer(content: RecordDict, run: FlowerRun, names: RecordNames) -> OfferedWork:
    """What a message offers; refuses records that are not expected."""
    with reading_secure_message():
        arrays, config = _expected_records(content, names)
        orders = job_orders.read_orders(RecordDict({names.config: config}))
        order = orders.pop(SECURE_ORDER)
        terms, attempt = Terms.of(order["terms"]), order["attempt"]
        if type(attempt) is not int or set(order) != {"terms", "attempt"}:
            raise ValueError("the order of a secure round has other entries")
        kept = {name: value for name, value in orders.items() if name not in SEEDS}
        orders = json.loads(_sorted_json(kept))  # the app gets them in the order that is hashed
        settings = {key: value for key, value in config.items() if key != job_orders.KEY}
        records = RecordDict({names.arrays: arrays})
        records[names.config] = job_orders.add_orders(ConfigRecord(settings), orders)
        if BROADCAST in content:
            records[BROADCAST] = content[BROADCAST]
        frozen = _frozen_layers(content, str(orders.get(frozen_layers.FROZEN, "")))
        used = (
            run.digest,
            repr(list(settings.items())).encode(),
            _digest_of_arrays(records),
        )
        lasting = {name: value for name, value in orders.items() if name not in NAMES_OF_RUN}
        work = _digest_of(*used, _sorted_json(lasting))
        digest = _digest_of(*used, _sorted_json(orders), terms.to_json().encode())
        if frozen:
            records[frozen_layers.FROZEN] = frozen
        return OfferedWork(records, terms, attempt, digest, work)


def _expected_records(content: RecordDict, names: RecordNames) -> tuple[ArrayRecord, ConfigRecord]:
    """The model and the settings; an error where anything else is there than is expected."""
    optional = {BROADCAST, frozen_layers.FROZEN}
    if unexpected := sorted(set(content) - {names.arrays, names.config} - optional):
        raise UserError(f"this site does not take the record '{one_line(unexpected[0], 40)}'")
    arrays, config = content[names.arrays], content[names.config]
    tensors = [content[name] for name in (names.arrays, *optional) if name in content]
    if not all(isinstance(record, ArrayRecord) for record in tensors):
        raise TypeError("a record of tensors is none")
    if not (isinstance(arrays, ArrayRecord) and isinstance(config, ConfigRecord)):
        raise TypeError("the model or the settings are of another kind")
    return arrays, config


def _frozen_layers(content: RecordDict, agreed: str) -> ArrayRecord:
    """Frozen layers are sent once; what all agree on is their digest, and the app gets what was
    hashed: by name, each array in one form. Empty where none are sent.
    """
    if frozen_layers.FROZEN not in content:
        return ArrayRecord()
    arrays = arrays_to_vectors(content.array_records[frozen_layers.FROZEN])
    if not agreed or frozen_digest(arrays) != agreed:
        raise UserError("the frozen layers are not those whose digest all sites are told")
    return vectors_to_arrays({name: arrays[name] for name in sorted(arrays)})


def _digest_of_arrays(records: RecordDict) -> bytes:
    """All records of tensors, in the order in which the app gets them."""
    return large_digest(_hashed_parts(records))


def _hashed_parts(records: RecordDict) -> Iterator[bytes]:
    for name, record in records.items():
        if not isinstance(record, ArrayRecord):
            continue
        yield pack_fields(name.encode(), str(len(record)).encode())
        for tensor, array in record.items():
            facts = (tensor, array.dtype, repr(tuple(array.shape)), array.stype)
            yield pack_fields(*(fact.encode() for fact in facts))
            yield len(array.data).to_bytes(8, "little")
            yield array.data


def _digest_of(*fields: bytes) -> bytes:
    return hashlib.sha256(pack_fields(b"feddraw offer", *fields)).digest()


def _sorted_json(table: Mapping[str, Any]) -> bytes:
    return json.dumps(table, sort_keys=True).encode()


# -------------------------------------------------------------------------------- requests after it


def request_to_records(request: Request) -> RecordDict:
    """A request after the offer, as a message."""
    facts, pairs = _REQUESTS[type(request)].parts(request)
    order = {"stage": _REQUESTS[type(request)].stage, **facts}
    config = job_orders.add_orders(ConfigRecord(), {SECURE_ORDER: order})
    return RecordDict({CONFIG: ConfigRecord(dict(config) | _pairs_as_record(pairs))})


def request_of_records(content: RecordDict) -> Request:
    """The request in a message; UserError if there is none."""
    with reading_secure_message():
        order = secure_order_in(content) or {}
        form = _FORMS_BY_STAGE[str(order.pop("stage"))]
        request: Request = form.read(order, pairs_in(content, CONFIG))
        return request


@dataclass(frozen=True)
class _RequestForm:
    """How one kind of request is written and read."""

    stage: str
    parts: Callable[[Any], tuple[dict[str, Any], Pairs]]
    read: Callable[[dict[str, Any], dict[str, bytes]], Any]


def _read_meet(facts: dict[str, Any], pairs: dict[str, bytes]) -> Meet:
    return Meet(_by_sum(pairs))


def _read_weigh(facts: dict[str, Any], pairs: dict[str, bytes]) -> Weigh:
    return Weigh(Announcement.of(facts["announcement"]))


def _read_add(facts: dict[str, Any], pairs: dict[str, bytes]) -> Add:
    return Add(str(facts["sum"]), Announcement.of(facts["announcement"]), pairs)


def _read_sign(facts: dict[str, Any], pairs: dict[str, bytes]) -> Sign:
    return Sign(str(facts["sum"]), _names_of(facts["survivors"]))


def _read_reveal(facts: dict[str, Any], pairs: dict[str, bytes]) -> Reveal:
    return Reveal(str(facts["sum"]), _names_of(facts["survivors"]), pairs)


def _read_again(facts: dict[str, Any], pairs: dict[str, bytes]) -> Again:
    if type(facts["attempt"]) is not int:
        raise ValueError("an attempt is a whole number")
    return Again(bytes.fromhex(facts["digest"]), facts["attempt"])


_REQUESTS: Mapping[type, _RequestForm] = {
    Again: _RequestForm(
        "again", lambda r: ({"digest": r.digest.hex(), "attempt": r.attempt}, {}), _read_again
    ),
    Meet: _RequestForm("meet", lambda r: ({}, _with_sums(r.keys)), _read_meet),
    Weigh: _RequestForm(
        "weigh", lambda r: ({"announcement": r.announcement.to_json()}, {}), _read_weigh
    ),
    Add: _RequestForm(
        "add",
        lambda r: ({"sum": r.sum, "announcement": r.announcement.to_json()}, r.shares),
        _read_add,
    ),
    Sign: _RequestForm(
        "sign", lambda r: ({"sum": r.sum, "survivors": list(r.survivors)}, {}), _read_sign
    ),
    Reveal: _RequestForm(
        "reveal",
        lambda r: ({"sum": r.sum, "survivors": list(r.survivors)}, r.signatures),
        _read_reveal,
    ),
}
_FORMS_BY_STAGE = {form.stage: form for form in _REQUESTS.values()}


# ------------------------------------------------------------------------------------------ answers


def answer_to_records(answer: Answer) -> RecordDict:
    """A site's answer, as a message."""
    facts, pairs = _FORMS_BY_ANSWER[type(answer)].parts(answer)
    record = ConfigRecord({"facts": json.dumps(facts)} | _pairs_as_record(pairs))
    content = RecordDict({SECURE_RECORD: record})
    if isinstance(answer, Masked):
        content[MASKED_WORDS] = ArrayRecord({MASKED_WORDS: pack_array(answer.words)})
    return content


def answer_of_records(request: type, content: RecordDict) -> Answer:
    """The answer to a request of this type; UserError if it is none."""
    if SECURE_RECORD not in content.config_records:
        raise UserError(NOT_SECURE)
    with reading_secure_message():
        facts = json.loads(str(content.config_records[SECURE_RECORD]["facts"]))
        pairs = pairs_in(content, SECURE_RECORD)
        answer: Answer = _ANSWERS[request].read(facts, pairs, content)
        return answer


def keys_of_records(content: RecordDict) -> Keys:
    """The answer to an offer."""
    answer = answer_of_records(Again, content)
    assert isinstance(answer, Keys)
    return answer


@dataclass(frozen=True)
class _AnswerForm:
    """How the answer to one kind of request is written and read; masked words have a record of
    their own.
    """

    kind: type
    parts: Callable[[Any], tuple[dict[str, Any], Pairs]]
    read: Callable[[dict[str, Any], dict[str, bytes], RecordDict], Any]


def _parts_of_joined(answer: Joined) -> tuple[dict[str, Any], Pairs]:
    marks = None if answer.labelled is None else answer.labelled.tolist()
    signatures = {sum: shares.signature.hex() for sum, shares in answer.shares.items()}
    closed = {sum: shares.closed for sum, shares in answer.shares.items()}
    facts = {"size": answer.size, "labelled": marks, "signatures": signatures}
    return facts, _with_sums(closed)


def _parts_of_masked(answer: Masked) -> tuple[dict[str, Any], Pairs]:
    statement = None if answer.statement is None else answer.statement.to_json()
    return {"statement": statement}, {"seal": answer.seal or b""}


def _read_keys(facts: dict[str, Any], pairs: dict[str, bytes], content: RecordDict) -> Keys:
    return Keys(bytes.fromhex(facts["digest"]), pairs)


def _read_joined(facts: dict[str, Any], pairs: dict[str, bytes], content: RecordDict) -> Joined:
    marks = facts["labelled"]
    if marks is not None and not (
        isinstance(marks, list) and all(isinstance(mark, bool) for mark in marks)
    ):
        raise ValueError("a list of labelled findings is none")
    labelled = None if marks is None else np.array(marks, bool)
    signatures = {sum: bytes.fromhex(text) for sum, text in facts["signatures"].items()}
    closed = _by_sum(pairs)
    shares = {sum: Shares(closed.get(sum, {}), signatures[sum]) for sum in signatures}
    return Joined(facts["size"], labelled, shares)


def _read_statement(
    facts: dict[str, Any], pairs: dict[str, bytes], content: RecordDict
) -> Statement:
    return Statement.of(facts["statement"])


def _read_masked(facts: dict[str, Any], pairs: dict[str, bytes], content: RecordDict) -> Masked:
    words = unpack_array(content.array_records[MASKED_WORDS][MASKED_WORDS])
    text = facts["statement"]
    return Masked(words, pairs["seal"], None if text is None else Statement.of(text))


def _read_signed(facts: dict[str, Any], pairs: dict[str, bytes], content: RecordDict) -> Signed:
    return Signed(pairs["signature"])


def _read_revealed(facts: dict[str, Any], pairs: dict[str, bytes], content: RecordDict) -> Revealed:
    return Revealed(pairs["shares"])


_ANSWERS: Mapping[type, _AnswerForm] = {
    Again: _AnswerForm(Keys, lambda a: ({"digest": a.digest.hex()}, a.keys), _read_keys),
    Meet: _AnswerForm(Joined, _parts_of_joined, _read_joined),
    Weigh: _AnswerForm(Statement, lambda a: ({"statement": a.to_json()}, {}), _read_statement),
    Add: _AnswerForm(Masked, _parts_of_masked, _read_masked),
    Sign: _AnswerForm(Signed, lambda a: ({}, {"signature": a.signature}), _read_signed),
    Reveal: _AnswerForm(Revealed, lambda a: ({}, {"shares": a.shares}), _read_revealed),
}
_FORMS_BY_ANSWER = {form.kind: form for form in _ANSWERS.values()}


# ---------------------------------------------------------------------------------- names and bytes


def _with_sums(pairs: Mapping[str, Pairs]) -> dict[str, bytes]:
    """Names with their sum before them, which has no blank."""
    return {f"{sum} {name}": value for sum, part in pairs.items() for name, value in part.items()}


def _by_sum(pairs: Pairs) -> dict[str, dict[str, bytes]]:
    parts: dict[str, dict[str, bytes]] = {}
    for name, value in pairs.items():
        sum, _, site = name.partition(" ")
        parts.setdefault(sum, {})[site] = value
    return parts


def _names_of(given: Any) -> tuple[str, ...]:
    return tuple(_list_of(given, str))


def _pairs_as_record(pairs: Pairs) -> dict[str, Any]:
    return {"names": list(pairs), "contents": list(pairs.values())} if pairs else {}


def pairs_in(content: RecordDict, record: str) -> dict[str, bytes]:
    """Names and what belongs to each."""
    table = content[record]
    if not isinstance(table, ConfigRecord):
        raise TypeError(f"{record} is no record of texts")
    names = _list_of(table.get("names", []), str)
    contents = _list_of(table.get("contents", []), bytes)
    if len(set(names)) != len(names):
        raise ValueError("a name comes twice")
    return dict(zip(names, contents, strict=True))


def _list_of(given: Any, kind: type[Kind]) -> list[Kind]:
    if not isinstance(given, list) or not all(isinstance(item, kind) for item in given):
        raise ValueError(f"no list of {kind.__name__}")
    return given
