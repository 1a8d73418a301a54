"""How long a round's messages take over a SuperLink: 727 tensors with 7.0 million numbers, moved
tensor by tensor, and as a few arrays (the flat form of our own server and clients).

    python -m benchmarks.transport [--base CHECKOUT] [--nodes 4] [--rounds 3] [--repeats 1]

The federation is that of docs/federation.md, on this machine: nginx with TLS, a key for each node,
a signed app; nodes send the model back untrained. The first round of each run is left out of the
medians: it waits for nodes, and its models still come tensor by tensor. `--base` is the folder of
another checkout, which then is the one that moves tensor by tensor. All runs must end with the same
model, to the bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.local_federation import local_federation, write_app
from benchmarks.speed.timing import CHECKOUT
from feddraw.errors import RunFailed

SETTINGS = 'rounds = 1\nnodes = 1\nflat = false\nout = ""'


@dataclass(frozen=True)
class Way:
    """A way in which models travel, and the checkout that does it."""

    name: str
    flat: bool
    checkout: Path = CHECKOUT


@dataclass(frozen=True)
class Setting:
    """What is the same for all ways."""

    nodes: int
    rounds: int
    secure: bool  # TLS, keys, a signed app and nginx, as docs/federation.md describes it


def ways_of(base: Path | None) -> Iterator[Way]:
    if base is None:
        yield Way("tensors", flat=False)
    else:
        yield Way("base", flat=False, checkout=base)
    yield Way("flat", flat=True)


def measure_way(way: Way, setting: Setting) -> dict[str, Any]:
    """Seconds of each round, and the hash of the last model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = write_app(
            folder / "transport", "transport-bench", "benchmarks.speed.transport_app", SETTINGS
        )
        out = folder / "measured.json"
        with local_federation(folder / "all", way.checkout, secure=setting.secure) as made:
            if setting.secure:
                made.sign(app)
            for number in range(setting.nodes):
                made.supernode(f"node{number}", f"partition-id={number}")
            config = {"rounds": setting.rounds, "nodes": setting.nodes}
            config |= {"flat": way.flat, "out": str(out)}
            words = [f"{key}={json.dumps(value)}" for key, value in config.items()]
            made.run(" ".join(words), app=app)
        if not out.is_file():
            raise RunFailed(f"the run over {way.name} wrote no result")
        measured: dict[str, Any] = json.loads(out.read_text())
        return measured


def measure_transport(base: Path | None, setting: Setting, repeats: int) -> dict[str, Any]:
    """Medians over all rounds but the first of each run, and how many times faster the flat form
    is. The ways take turns.
    """
    ways = list(ways_of(base))
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    first: dict[str, list[float]] = {way.name: [] for way in ways}
    models = set()
    for _ in range(repeats):
        for way in ways:
            measured = measure_way(way, setting)
            first[way.name].append(measured["seconds"][0])
            seconds[way.name] += measured["seconds"][1:]
            models.add(measured["model"])
    if len(models) != 1:
        raise RunFailed("the ways end with different models")
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    return {
        "seconds": seconds,
        "seconds_first_round": first,
        "medians": medians,
        "over_flat": _over_flat(medians),
        "model": models.pop(),
    }


def _over_flat(medians: Mapping[str, float]) -> dict[str, float]:
    return {
        name: round(taken / medians["flat"], 2) for name, taken in medians.items() if name != "flat"
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, help="folder of another checkout to compare with")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each way")
    parser.add_argument(
        "--insecure", action="store_true", help="no TLS, no keys, no signatures, no nginx"
    )
    options = parser.parse_args(words)
    setting = Setting(options.nodes, options.rounds, secure=not options.insecure)
    measured = measure_transport(options.base, setting, options.repeats)
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
