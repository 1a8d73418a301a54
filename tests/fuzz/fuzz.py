"""Fuzz every reader for some processor minutes each, and print how much of its code was reached.

    python tests/fuzz/fuzz.py [--minutes 10] [--only NAME] [--seed 0] [--keep FOLDER]

Ends with exit code 1 if anything but a one-line refusal came out of a reader.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from functools import partial
from pathlib import Path

import coverage
from guided import Findings, Target, attempt, code_of, fuzz, judged, limit_memory
from readers import targets


def branches(target: Target, corpus: list[bytes], room: Path) -> tuple[int, int, list[str]]:
    """Branches of the reader's functions that the kept inputs take, all there are, and lines before
    missed ones.
    """
    files = {code_of(function).co_filename for function in target.functions}
    measured = coverage.Coverage(branch=True, data_file=None, include=sorted(files))
    measured.start()
    for data in corpus:
        attempt(target, data, room)
    for call in target.odd:
        judged(target, partial(call, room))
    measured.stop()
    path = room / "coverage.json"
    measured.json_report(outfile=str(path))
    report = json.loads(path.read_text(encoding="utf-8"))
    wanted = {(code_of(one).co_filename, code_of(one).co_qualname) for one in target.functions}
    taken, total, missed = 0, 0, []
    for name, file in report["files"].items():
        for function, found in file["functions"].items():
            if (str(Path(name).resolve()), function) in wanted or (name, function) in wanted:
                taken += found["summary"]["covered_branches"]
                total += found["summary"]["num_branches"]
                missed += [
                    f"{Path(name).name}:{start}→{stop}" for start, stop in found["missing_branches"]
                ]
    return taken, total, missed


def show(target: Target, found: Findings, room: Path, keep: Path | None) -> None:
    taken, total, missed = branches(target, found.corpus, room)
    share = 100 * taken / total if total else 100
    numbers = (
        f"{found.inputs:>9,} inputs {100 * found.refused / max(1, found.inputs):>5.1f} % refused"
    )
    print(
        f"{target.name:<22} {numbers}  branches {taken:>3}/{total:<3} {share:>5.1f} %  escapes"
        f" {len(found.escapes)}",
        flush=True,
    )
    if missed:
        print(f"{'':<22} not taken: {', '.join(missed[:12])}", flush=True)
    for number, (outcome, data) in enumerate(found.escapes):
        print(f"    {outcome}\n    {data[:300]!r}", flush=True)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{target.name.replace(' ', '-')}-{number}").write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=10, help="processor minutes for each reader"
    )
    parser.add_argument("--only", default="", help="readers with this in their name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for inputs that escaped")
    chosen = parser.parse_args()
    escapes = 0
    with tempfile.TemporaryDirectory() as room:
        readers = [target for target in targets(Path(room)) if chosen.only in target.name]
        limit_memory()
        for target in readers:
            found = fuzz(
                target, Path(room), random.Random(chosen.seed), seconds=60 * chosen.minutes
            )
            show(target, found, Path(room), chosen.keep)
            escapes += len(found.escapes)
    print(f"{len(readers)} readers, {escapes} escapes")
    sys.exit(bool(escapes))


if __name__ == "__main__":
    main()
