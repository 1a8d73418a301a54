"""Which mistakes are tried: the same number in every part of the package that computes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from operators import Mutant, differs_and_compiles, mutants_of

SOURCE = Path("src/feddraw")

# By files and folders below src/feddraw. A file belongs to the first stratum that names it. A name
# that is no longer there is an error, so that no stratum empties unnoticed.
STRATA: dict[str, tuple[str, ...]] = {
    "schedules": ("core/schedules.py",),
    "core": ("core",),
    "methods": ("methods",),
    "gate": ("server/gate.py",),
    "policy": ("server/policy.py",),
    "ledger": ("server/ledger.py", "results/ledger_table.py"),
    "rounds": ("server", "federation.py", "aggregation.py"),
    "secure": ("secure",),
    "metrics": ("analysis/metrics.py", "experiment/evaluation.py"),
    "statistics": (
        "analysis/statistics.py",
        "analysis/bootstrap.py",
        "analysis/paired_differences.py",
    ),
    "training": ("training",),
}


def files_by_stratum(root: Path) -> dict[str, list[str]]:
    """The Python files of each stratum, as paths below the root of the repository."""
    taken: set[Path] = set()
    strata: dict[str, list[str]] = {}
    for stratum, names in STRATA.items():
        files: set[Path] = set()
        for name in names:
            place = root / SOURCE / name
            if not place.exists():
                raise SystemExit(f"{SOURCE / name} is gone: say in STRATA where {stratum} is now")
            files |= set(place.rglob("*.py")) if place.is_dir() else {place}
        files -= taken
        taken |= files
        strata[stratum] = sorted(str(file.relative_to(root)) for file in files)
    return strata


def sample(root: Path, count: int, seed: int) -> list[tuple[str, Mutant]]:
    """`count` mutants with their strata: the same number of each stratum, and in a stratum the same
    number by each operator, as far as there are so many.
    """
    waiting = {
        stratum: _shuffled(root, files, random.Random(f"{seed} {stratum}"))
        for stratum, files in files_by_stratum(root).items()
    }
    chosen: list[tuple[str, Mutant]] = []
    while any(waiting.values()):
        for stratum, queue in waiting.items():
            mutant = _next_valid(root, queue)
            if mutant is not None:
                chosen.append((stratum, mutant))
            if len(chosen) == count:
                return chosen
    return chosen


def _shuffled(root: Path, files: Sequence[str], generator: random.Random) -> list[Mutant]:
    """All mutants of some files in a random order, one of each operator in turn; the next is the
    last.
    """
    by_operator: dict[str, list[Mutant]] = defaultdict(list)
    for file in files:
        for mutant in mutants_of(file, (root / file).read_bytes()):
            by_operator[mutant.operator].append(mutant)
    for operator in sorted(by_operator):
        generator.shuffle(by_operator[operator])
    turns = zip_longest(*(by_operator[operator] for operator in sorted(by_operator)))
    return [mutant for turn in turns for mutant in turn if mutant is not None][::-1]


def _next_valid(root: Path, queue: list[Mutant]) -> Mutant | None:
    while queue:
        mutant = queue.pop()
        if differs_and_compiles(mutant, (root / mutant.file).read_bytes()):
            return mutant
    return None
