"""Carry out every case in one tree, and keep what came of each: compare.py runs it for each tree.

    PYTHONPATH=TREE/src python produce.py --tree TREE --out FOLDER [--parts serial,flower] [--quick]

A part is a list of cases of one kind. A case that the tree refuses is kept as such; one that ends
in another error is kept with its traceback, and fails the comparison.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from commands import every_answer, every_command, every_report, every_secure_command
from renames import Renames
from runs import (
    BY_HALVES,
    CAPS,
    GATE,
    MOST_TAKE_PART,
    OTHER_TRAINING,
    SECURE_CAPS,
    SOME_TAKE_PART,
    every_method,
    every_mixture,
    every_resume,
    every_setting,
    two_workers,
    two_workers_secure,
)
from servers import every_aggregation, every_flare_aggregator, flower_clear, flower_secure
from workbench import Cases, Workbench

PARTS: Mapping[str, Callable[[Workbench], Cases]] = {
    "answers": every_answer,
    "serial": partial(every_method, changes={}, mixed=False),
    "mixtures": every_mixture,
    "settings": every_setting,
    "labels": partial(every_method, changes={}, labels="some"),
    "policy": partial(every_method, changes=CAPS),
    "gate": partial(every_method, changes=GATE),
    "participation": partial(every_method, changes=SOME_TAKE_PART),
    "training": partial(every_method, changes=OTHER_TRAINING, mixed=False),
    "folds": partial(every_method, changes=BY_HALVES, mixed=False),
    "stream": partial(every_method, changes={"stream": True}),
    "stream-labels": partial(
        every_method, changes={"stream": True, **SOME_TAKE_PART}, labels="some"
    ),
    "secure": partial(every_method, changes={"secure": True}),
    "secure-labels": partial(
        every_method, changes={"secure": True, **MOST_TAKE_PART}, labels="some"
    ),
    "secure-policy": partial(every_method, changes=SECURE_CAPS, labels="some"),
    "secure-stream": partial(every_method, changes={"secure": True, "stream": True}),
    "resume": every_resume,
    "workers": two_workers,
    "secure-workers": two_workers_secure,
    "aggregate": every_aggregation,
    "flower-engine": partial(every_method, changes={"engine": "flower"}, labels="some"),
    "flower": flower_clear,
    "secure-flower": flower_secure,
    "flare": every_flare_aggregator,
    "command": every_command,
    "secure-command": every_secure_command,
    "report": every_report,
}
NOT_QUICK = ("settings", "training", "folds", "secure-command", "secure-stream", "stream-labels")
NEEDS = {"flare": "nvflare", "flower": "flwr", "flower-engine": "flwr", "secure-flower": "flwr"}


def missing_package(part: str) -> str:
    """The package that a part needs and that is not installed; empty where nothing is missing."""
    needed = NEEDS.get(part, "")
    return needed if needed and find_spec(needed) is None else ""


def produce_part(bench: Workbench, part: str) -> None:
    """Carry out all cases of a part, and say how it went."""
    began, count, troubles = time.perf_counter(), 0, 0
    for name, produce in PARTS[part](bench):
        count += 1
        troubles += bool(error := bench.carry_out(f"{part}/{name.replace('/', '-')}", produce))
        if error:
            print(f"{part}/{name}: {error}", flush=True)
        shutil.rmtree(bench.scratch)
        bench.scratch.mkdir()
    failed = f", {troubles} with an error" if troubles else ""
    print(f"{part}: {count} cases in {time.perf_counter() - began:.0f} s{failed}", flush=True)


def fastest_folder() -> str | None:
    """Memory, where there is such a folder: runs wait until every file is on the disk."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None


def check_tree(tree: Path) -> None:
    """Refuse to produce anything with another tree's code."""
    import feddraw

    if not Path(feddraw.__file__).resolve().is_relative_to(tree.resolve()):
        sys.exit(f"feddraw is imported from {feddraw.__file__}, not from {tree}: set PYTHONPATH")


def main() -> None:
    """Produce the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    check_tree(given.tree)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)  # Flower tells every round of every case
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="same-bits-", dir=fastest_folder()) as scratch:
        (inside := Path(scratch) / "scratch").mkdir()
        bench = Workbench(given.out, inside, Renames.read(), given.quick)
        for part in given.parts.split(","):
            if missing := missing_package(part):
                print(f"{part}: left out, {missing} is not installed", flush=True)
                continue
            produce_part(bench, part)


if __name__ == "__main__":
    main()
