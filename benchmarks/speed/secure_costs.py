"""What secure sums cost: masks beside their bare key streams, a round beside a plain one, bytes,
and server memory.

    python -m benchmarks.speed.secure_costs CLIENTS [PARAMETERS]

prints the peak memory of a server that adds masked updates up.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from benchmarks.speed.local_federation import local_federation, write_app
from benchmarks.speed.made_up_model import CLIENTS, WIDE_PARAMETERS, client_names
from benchmarks.speed.timing import (
    TimingSession,
    measured_in_own_process,
    median_interval,
    ratio_of_times,
)
from feddraw.errors import RunFailed
from feddraw.secure.sums import masks
from feddraw.secure.sums.client import SecureSumClient
from feddraw.secure.sums.fixed_point import to_fixed_point
from feddraw.secure.sums.server import SecureSumServer
from feddraw.secure.sums.session import Session
from feddraw.secure.sums.signing_keys import new_signing_key, site_directory_line
from feddraw.system.machine import installed, peak_memory

if TYPE_CHECKING:
    from flwr.app import Message

MEMORY_CLIENTS = (10, 30)  # clients, for the server's memory
SUPERLINK_ROUNDS = 3  # over a SuperLink


def measure_secure_costs(
    session: TimingSession,
    parameters: int = WIDE_PARAMETERS,
    counts: Sequence[int] = MEMORY_CLIENTS,
) -> dict[str, Any]:
    """Masks, a round in this process, a round over a SuperLink, and the server's memory."""
    figures: dict[str, Any] = {
        "title": f"{CLIENTS} clients of {parameters / 1e6:.1f} million parameters",
        "masking": measure_masking(session, parameters),
        "memory": {
            str(clients): measured_in_own_process(
                "benchmarks.speed.secure_costs", str(clients), str(parameters)
            )
            for clients in counts
        },
    }
    if not installed("flwr"):
        figures["missing"] = "Flower is not installed: pip install 'feddraw[flower]'"
        return figures
    figures["in_process"] = measure_in_process_rounds(session, parameters)
    if not session.quick:
        figures["superlink"] = _superlink_rounds_if_possible(session, parameters)
    return figures


# -------------------------------------------------------------------------------------------- masks


def measure_masking(session: TimingSession, parameters: int) -> dict[str, Any]:
    """A client's words, its masks and its seal ÷ the bare time of making as many key streams and
    adding them.
    """
    moves = np.random.default_rng(0).normal(0, 1e-3, parameters).astype(np.float32)
    words = np.empty(parameters, np.uint64)
    added = np.zeros(parameters, np.uint64)
    ready = iter(_members_ready_to_mask())
    sealer, sealers_shares = next(ready)
    sealer.mask(sealers_shares, words, in_place=True)

    def mask() -> float:
        """In the words' own memory: new memory is slow at its first use, and is no part of
        masking.
        """
        member, shares = next(ready)
        return _processor_seconds(lambda: member.mask(shares, words, in_place=True))

    works = {
        "bare": lambda: _processor_seconds(lambda: add_bare_streams(added)),
        "masks": mask,
        "words": lambda: _processor_seconds(lambda: to_fixed_point(moves, CLIENTS, words)),
        "seal": lambda: _processor_seconds(lambda: sealer.seal(words)),
    }
    samples = session.interleave(f"secure: masks of {parameters:,} words", works)
    seconds = {name: np.array(taken) for name, taken in samples.items()}
    whole = seconds["masks"] + seconds["words"]
    return {
        "masks_over_bare": ratio_of_times(samples["masks"], samples["bare"]),
        "words_and_masks_over_bare": median_interval(whole / seconds["bare"]),
        "with_seal_over_bare": median_interval((whole + seconds["seal"]) / seconds["bare"]),
        "million_words_per_second": median_interval(CLIENTS * parameters / 1e6 / seconds["masks"]),
        "milliseconds": {name: 1e3 * float(np.median(taken)) for name, taken in samples.items()},
    }


def _processor_seconds(work: Callable[[], object]) -> float:
    """Seconds of this process's work in all its threads (masks are made in several), whatever else
    the machine does.
    """
    start = time.process_time()
    work()
    return time.process_time() - start


def add_bare_streams(words: NDArray[np.uint64]) -> None:
    """As many AES-CTR streams as a client has masks, each added to the words, block by block, and
    nothing else.
    """
    block = masks.BLOCK
    zeros, stream = memoryview(bytes(8 * block)), bytearray(8 * block + 15)
    drawn = np.frombuffer(stream, "<u8", block)
    ciphers = [
        Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        for _ in range(CLIENTS)
    ]
    for start in range(0, len(words), block):
        part = words[start : start + block]
        for cipher in ciphers:
            cipher.update_into(zeros[: 8 * len(part)], stream)
            np.add(part, drawn[: len(part)], out=part)


def _members_ready_to_mask() -> Iterable[tuple[SecureSumClient, Mapping[str, bytes]]]:
    """Clients that have everyone's shares and are about to mask."""
    while True:
        made = ReadySum.of(CLIENTS)
        for name, member in made.members.items():
            yield member, made.collector.shares_for(name)


@dataclass(frozen=True)
class ReadySum:
    """One sum whose clients have exchanged keys and shares."""

    members: dict[str, SecureSumClient]
    collector: SecureSumServer

    @staticmethod
    def of(clients: int) -> ReadySum:
        names = client_names(clients)
        keys = {name: Ed25519PrivateKey.generate() for name in names}
        directory = {name: key.public_key() for name, key in keys.items()}
        sum = Session(digest=bytes(32), sum="moves", members=tuple(names))
        collector = SecureSumServer(sum, directory)
        members = {name: SecureSumClient(sum, name, keys[name], directory) for name in names}
        for name, member in members.items():
            collector.take_advertised(name, member.advertise())
        advertised = collector.close_keys()
        for name, member in members.items():
            collector.take_shares(name, member.share(advertised))
        return ReadySum(members, collector)


# ------------------------------------------------------------------------------------------- memory


def secure_server_memory(clients: int, parameters: int) -> dict[str, float]:
    """Peak megabytes of a process that adds so many masked updates up, and of it before the
    first.
    """
    made = ReadySum.of(clients)
    before = peak_memory()
    words = np.empty(parameters, np.uint64)  # a reply as it comes, one at a time
    server = made.collector
    for name, member in made.members.items():
        words[:] = 1
        masked = member.mask(server.shares_for(name), words, in_place=True)
        server.take_masked(name, masked)
    for name in server.close_values():
        server.take_signature(name, made.members[name].sign(server.close_values()))
    signatures = server.close_signatures()
    for name in signatures:
        server.take_revealed(name, made.members[name].reveal(server.close_values(), signatures))
    if not (server.open_total() == clients).all():
        raise RunFailed("the sum is wrong")
    return {"megabytes": peak_memory() / 2**20, "megabytes_before": before / 2**20}


# ------------------------------------------------------------------------------------------- rounds


@contextmanager
def log_secure_errors_only(log: logging.Logger) -> Iterator[None]:
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def measure_in_process_rounds(session: TimingSession, parameters: int) -> dict[str, Any]:
    """A round on the in-process grid, and the bytes that go up and down."""
    from benchmarks.speed.secure_app import seconds_of_secure_rounds

    with (
        tempfile.TemporaryDirectory() as folder,
        log_secure_errors_only(logging.getLogger("flwr")),
    ):
        grids = {
            "plain": byte_counting_grid([{"partition-id": n} for n in range(CLIENTS)]),
            "secure": byte_counting_grid(nodes_with_keys(Path(folder))),
        }
        processor: dict[str, list[float]] = {name: [] for name in grids}

        def timed_round(name: str) -> float:
            start = time.process_time()
            (seconds,) = seconds_of_secure_rounds(
                grids[name], 1, parameters, secure=name == "secure", seed=len(processor[name])
            )
            processor[name].append(time.process_time() - start)
            return seconds

        works = {name: partial(timed_round, name) for name in grids}
        samples = session.interleave(
            "secure: a round on the in-process grid", works, min(5, session.blocks)
        )
    rounds = len(samples["plain"]) + 1
    megabytes = {
        name: {"up": grid.up / rounds / 1e6, "down": grid.down / rounds / 1e6}
        for name, grid in grids.items()
    }
    whole = {name: sum(both.values()) for name, both in megabytes.items()}
    return {
        "seconds": {name: median_interval(taken) for name, taken in samples.items()},
        "processor_seconds": {
            name: median_interval(taken[1:]) for name, taken in processor.items()
        },
        "secure_over_plain": ratio_of_times(samples["secure"], samples["plain"]),
        "processor_over_plain": ratio_of_times(processor["secure"][1:], processor["plain"][1:]),
        "megabytes": megabytes,
        "bytes_over_plain": whole["secure"] / whole["plain"],
    }


def byte_counting_grid(nodes: Sequence[Mapping[str, Any]]) -> Any:
    """Nodes in this process, with `up` and `down`, the bytes of their messages so far."""
    from benchmarks.speed.secure_app import app, bytes_in_message
    from feddraw.flower.in_process_grid import InProcessGrid

    class Counting(InProcessGrid):
        """Counts what goes to the clients and what comes back."""

        up = down = 0

        def _answer(self, message: Message) -> Message:
            self.down += bytes_in_message(message)
            reply = super()._answer(message)
            if reply.has_error():
                raise RunFailed(str(reply.error.reason))
            self.up += bytes_in_message(reply)
            return reply

    return Counting(app, nodes)


def nodes_with_keys(folder: Path) -> list[dict[str, Any]]:
    """Settings of nodes with keys, the file of all their public keys, and a memory."""
    names = [f"partition {number}" for number in range(CLIENTS)]
    lines = [
        site_directory_line(name, new_signing_key(folder / f"{number}.key"))
        for number, name in enumerate(names)
    ]
    (folder / "sites.toml").write_text("\n".join(lines))
    common = {"sites": str(folder / "sites.toml"), "memory": str(folder / "memory")}
    return [
        {"partition-id": number, "key": str(folder / f"{number}.key")} | common
        for number in range(CLIENTS)
    ]


APP_SETTINGS = 'rounds = 1\nsecure = false\nparameters = 0\nout = ""'


def _superlink_rounds_if_possible(session: TimingSession, parameters: int) -> dict[str, Any]:
    """What does not come up or takes too long here is said, and costs no other figure."""
    try:
        return measure_superlink_rounds(session, parameters)
    except (SystemExit, OSError, subprocess.SubprocessError) as error:
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            raise  # a signal's
        return {"missing": (str(error).splitlines() or ["it failed"])[0]}


def measure_superlink_rounds(session: TimingSession, parameters: int) -> dict[str, Any]:
    """The same over a SuperLink with a node for each client, all on this machine."""
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = write_app(folder / "app", "secure-bench", "benchmarks.speed.secure_app", APP_SETTINGS)
        nodes = nodes_with_keys(folder)
        ways = [("plain", ("partition-id",)), ("secure", tuple(nodes[0]))]
        for way, kept in session.each("secure: rounds over a SuperLink", ways):
            with local_federation(folder / way) as made:
                for number, node in enumerate(nodes):
                    made.supernode(
                        f"node{number}", " ".join(f"{key}={json.dumps(node[key])}" for key in kept)
                    )
                settings = (
                    f"rounds={SUPERLINK_ROUNDS} secure={json.dumps(way == 'secure')}"
                    f' parameters={parameters} out="{folder / way}.json"'
                )
                made.run(settings, timeout=3600, app=app)
            rounds = json.loads((folder / f"{way}.json").read_text())
            seconds[way] = rounds[1:]  # the first waits for nodes
    medians = {way: float(np.median(taken)) for way, taken in seconds.items()}
    ratio = medians["secure"] / medians["plain"]
    return {"seconds": medians, "secure_over_plain": ratio, "rounds": SUPERLINK_ROUNDS - 1}


if __name__ == "__main__":
    words = int(sys.argv[2]) if len(sys.argv) > 2 else WIDE_PARAMETERS
    print(json.dumps(secure_server_memory(int(sys.argv[1]), words)))
