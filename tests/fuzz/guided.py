"""A small coverage-guided fuzzer: inputs that reach a new arc of the reader's code are kept and
changed further.

An input may be read, or refused with one of the reader's own errors. Anything else is an escape:
another exception, ten seconds without an end, or more memory than the process may have.
"""

from __future__ import annotations

import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

NUMBERS = (
    b"0",
    b"-1",
    b"1e999",
    b"nan",
    b"inf",
    b"-inf",
    b"1" * 5000,
    b"9223372036854775808",
    b"0.5",
    b"true",
    b"null",
)
MEMORY = 2 << 30  # bytes beyond what the process has when it begins


@dataclass(frozen=True)
class Target:
    """A reader: how to call it, what it may raise, files that it reads, and where its code is."""

    name: str
    read: Callable[[bytes, Path], object]
    refusals: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    functions: Sequence[Callable[..., Any]]
    tokens: Sequence[bytes] = ()
    reshape: Callable[[bytes, random.Random], bytes] | None = (
        None  # keeps the format's own checksums right
    )
    odd: Sequence[Callable[[Path], object]] = ()  # calls that no content of a file can make


@dataclass
class Findings:
    inputs: int = 0
    refused: int = 0
    corpus: list[bytes] = field(default_factory=list)
    escapes: list[tuple[str, bytes]] = field(default_factory=list)


class Hang(BaseException):
    """Too long."""


# ------------------------------------------------------------------------------------------ changes


def mutate(
    data: bytes, corpus: Sequence[bytes], tokens: Sequence[bytes], rng: random.Random
) -> bytes:
    """A few random changes."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(CHANGES)(data, corpus, tokens, rng)
    return data


def flip(data: bytes, _: Any, __: Any, rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    place = rng.randrange(len(changed))
    changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, _: Any, __: Any, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    length = rng.choice((1, 2, 4, 8))
    value = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80", bytes([rng.randrange(256)]))) * length
    return data[:start] + value + data[start + length :]


def cut(data: bytes, _: Any, __: Any, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.randrange(1, 1 + max(1, len(data) // 4)) :]


def shorten(data: bytes, _: Any, __: Any, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def repeat(data: bytes, _: Any, __: Any, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.randrange(1, 64)]
    return data[:start] + piece * rng.choice((2, 3, 1000)) + data[start:]


def insert(data: bytes, _: Any, tokens: Sequence[bytes], rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.choice([*tokens, *NUMBERS]) + data[start + rng.choice((0, 0, 1, 4)) :]


def splice(data: bytes, corpus: Sequence[bytes], _: Any, rng: random.Random) -> bytes:
    other = rng.choice(corpus)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def replace_line(data: bytes, corpus: Sequence[bytes], _: Any, rng: random.Random) -> bytes:
    lines, others = data.split(b"\n"), rng.choice(corpus).split(b"\n")
    lines[rng.randrange(len(lines))] = rng.choice(others)
    return b"\n".join(lines)


def replace_number(data: bytes, _: Any, __: Any, rng: random.Random) -> bytes:
    digits = [place for place, byte in enumerate(data[:100_000]) if 48 <= byte <= 57]
    if not digits:
        return data
    place = rng.choice(digits)
    return data[:place] + rng.choice(NUMBERS) + data[place + 1 :]


CHANGES = (
    flip,
    overwrite,
    cut,
    shorten,
    repeat,
    insert,
    insert,
    splice,
    replace_line,
    replace_number,
)


# ------------------------------------------------------------------------------------------- trying


def code_of(function: Callable[..., Any]) -> CodeType:
    found = getattr(function, "__wrapped__", function)
    return found.__func__.__code__ if hasattr(found, "__func__") else found.__code__


@contextmanager
def traced(codes: frozenset[CodeType], arcs: set[tuple[Any, int, int]]) -> Iterator[None]:
    """Note every arc between lines of the reader's own functions."""

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in codes:
            return None
        last = 0

        def step(inner: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            arcs.add((inner.f_code, last, inner.f_lineno))
            last = inner.f_lineno
            return step

        return step

    before = sys.gettrace()  # of a measurement of coverage, which must go on afterwards
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


def attempt(target: Target, data: bytes, room: Path, seconds: int = 10) -> str:
    """How the reader took it: "read", "refused", or what escaped."""
    return judged(target, lambda: target.read(data, room), seconds)


def judged(target: Target, call: Callable[[], object], seconds: int = 10) -> str:
    """The same for any call."""

    def late(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of the processor: a busy machine is no hang
    try:
        call()
    except target.refusals as refusal:
        text = str(refusal)
        return "refused" if "\n" not in text.strip() and text else f"not one line: {text[:200]!r}"
    except Hang:
        return f"no end after {seconds} s"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return "read"


def fuzz(
    target: Target, room: Path, rng: random.Random, *, seconds: float = 0, inputs: int = 0
) -> Findings:
    """For so many processor seconds, or so many inputs."""
    found, seen = Findings(corpus=list(target.seeds)), set[tuple[Any, int, int]]()
    codes = frozenset(map(code_of, target.functions))
    for data in target.seeds:
        with traced(codes, seen):
            attempt(target, data, room)
    for call in target.odd:
        outcome = judged(target, partial(call, room))
        found.escapes += [(outcome, b"an odd call")] if outcome not in ("read", "refused") else []
    end = time.process_time() + seconds
    reasons = set()
    while time.process_time() < end if seconds else found.inputs < inputs:
        base = rng.choice(found.corpus)
        shaped = target.reshape is not None and rng.random() < 0.7
        data = (
            target.reshape(base, rng)
            if shaped and target.reshape
            else mutate(base, found.corpus, target.tokens, rng)
        )
        data = data[: 1 << 20]
        arcs: set[tuple[Any, int, int]] = set()
        with traced(codes, arcs):
            outcome = attempt(target, data, room)
        found.inputs += 1
        found.refused += outcome == "refused"
        if outcome not in ("read", "refused") and (reason := outcome[:40]) not in reasons:
            reasons.add(reason)
            found.escapes.append((outcome, data))
        if arcs - seen:
            seen |= arcs
            found.corpus.append(data)
    return found


def limit_memory() -> None:
    """A reader that asks for more than two gigabytes gets an error, which is an escape."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
