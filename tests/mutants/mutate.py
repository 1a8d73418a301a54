"""How much the tests notice: a seeded sample of small mistakes, each made in a copy of the tree.

    python tests/mutants/mutate.py --seed 1 --mutants 300

First all tests run once with coverage, so that it is known which tests reach which line and how
long each takes. Then every mutant runs the tests that reach its line, the most particular first, up
to half a minute of them, until one fails. With `--survivors-whole` those that none of them noticed meet
all tests that could notice one of them: all survivors are made at once, and where a test fails,
halves of them until the one is found that it notices. What is known is kept, so that a sample that
was interrupted goes on where it stopped, and so that survivors meet only the tests that are new.

`equivalent.toml` lists mutants that no test can notice, each with the reason; these do not count.
The exit code is 0 where at least `--goal` of the others were killed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from operators import Mutant
from reach import Reach, cache_folder, file_of, record_reach
from strata import STRATA, sample
from trials import Copy, noticed

ROOT = Path(__file__).parent.parent.parent
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "feddraw-mutants"
NOTICED = ("killed", "timeout")
OUTCOMES = (*NOTICED, "survived", "uncovered", "equivalent")
SECONDS = 30.0  # of the processor, of tests that a mutant meets alone


@dataclass(frozen=True)
class Tried:
    """A mutant, and what became of it: one of `OUTCOMES`."""

    stratum: str
    mutant: Mutant
    outcome: str


# ----------------------------------------------------------------------------------------- a mutant


def difference(mutant: Mutant) -> tuple[str, str]:
    """The lines before and after, without their indentation."""
    source = (ROOT / mutant.file).read_bytes()
    before = source.decode().splitlines()
    after = mutant.apply(source).decode().splitlines()
    blocks = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes()
    changed = [block for block in blocks if block[0] != "equal"]
    first, last = changed[0], changed[-1]
    return (
        "\n".join(line.strip() for line in before[first[1] : last[2]]),
        "\n".join(line.strip() for line in after[first[3] : last[4]]),
    )


def equivalents() -> dict[tuple[str, str, str], str]:
    """(file, line before, line after) of the mutants that no test can notice, with the reasons."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", [])
    return {(one["file"], one["before"], one["after"]): one["reason"] for one in listed}


# ----------------------------------------------------------------------------------------- a sample


class Results:
    """What is known of mutants, in a file, so that a sample that was interrupted goes on.

    A mutant that was killed stays so while the file of the test that killed it is the same. One
    that survived has met the files of tests in "met"; it meets those that are new or have changed.
    """

    def __init__(self, file: Path, reach: Reach) -> None:
        self.file = file
        self.reach = reach
        self.known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self.lock = Lock()

    def outcome(self, mutant: Mutant) -> str:
        """One of `OUTCOMES`, or "" where it is not known yet."""
        known = self.known.get(_key(mutant), {})
        if known.get("outcome") not in NOTICED:
            return str(known.get("outcome", ""))
        same = self.reach.files.get(file_of(known["test"])) == known["digest"]
        return str(known["outcome"]) if same else ""

    def has_met(self, mutant: Mutant, test: str) -> bool:
        """Whether it survived this test as it is now."""
        file = file_of(test)
        met = self.known.get(_key(mutant), {}).get("met", {})
        return file in met and met[file] == self.reach.files[file]

    def killed(self, mutant: Mutant, outcome: str, test: str) -> None:
        digest = self.reach.files[file_of(test)]
        self._keep(mutant, {"outcome": outcome, "test": test, "digest": digest})

    def survived(self, mutant: Mutant, *, all_tests: bool) -> None:
        before = self.known.get(_key(mutant), {}).get("met", {})
        outcome = "survived" if self.reach.covering(mutant) else "uncovered"
        met = dict(self.reach.files) if all_tests else before
        self._keep(mutant, {"outcome": outcome, "met": met})

    def _keep(self, mutant: Mutant, known: dict[str, object]) -> None:
        with self.lock:
            self.known[_key(mutant)] = known
            partial = self.file.with_suffix(".partial")
            partial.write_text(json.dumps(self.known, indent=1), encoding="utf-8")
            partial.replace(self.file)


def _key(mutant: Mutant) -> str:
    return f"{mutant.file}:{mutant.start}:{mutant.end}:{mutant.replacement}"


def try_all(
    chosen: Sequence[tuple[str, Mutant]], results: Results, *, workers: int, whole: bool
) -> list[Tried]:
    """Tries the mutants that are not yet known, in as many copies as there are workers; then, if
    asked, those that survived meet all tests, together.
    """
    without_test = equivalents()
    listed = {m for _, m in chosen if (m.file, *difference(m)) in without_test}
    mutants = [mutant for _, mutant in chosen if mutant not in listed]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(workers):
            place = Path(folder) / str(number)
            place.mkdir()
            copies.put(Copy(ROOT, place, results.reach))

        def in_a_copy(mutant: Mutant) -> None:
            copy = copies.get()
            try:
                try_alone(mutant, copy, results)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(in_a_copy, mutants))
        if whole:
            alive = [mutant for mutant in mutants if results.outcome(mutant) not in NOTICED]
            try_together(alive, copies.get(), results)
    return [
        Tried(stratum, mutant, "equivalent" if mutant in listed else results.outcome(mutant))
        for stratum, mutant in chosen
    ]


def try_alone(mutant: Mutant, copy: Copy, results: Results) -> None:
    """The tests that reach its line and that it has not met yet, the most particular first, as many
    as fit into `SECONDS`.
    """
    if results.outcome(mutant) in NOTICED:
        return
    tests: list[str] = []
    left = SECONDS
    for test in results.reach.covering(mutant):
        if left > 0 and not results.has_met(mutant, test):
            tests.append(test)
            left -= results.reach.seconds[test]
    if not tests and results.outcome(mutant):
        return
    outcome, test = copy.first_failure([mutant], tests)
    if outcome:
        results.killed(mutant, outcome, test)
    else:
        results.survived(mutant, all_tests=False)
    print(f"{outcome or 'survived':9} {mutant.file}:{mutant.line} {mutant.operator}", flush=True)


def try_together(mutants: Sequence[Mutant], copy: Copy, results: Results) -> None:
    """All tests that one of the mutants has not met and that can notice it."""
    tests = [
        test
        for test in results.reach.able_to_notice(mutants)
        if not all(results.has_met(mutant, test) for mutant in mutants)
    ]
    print(f"{len(mutants)} survivors together meet {len(tests)} tests …", flush=True)
    found = noticed(copy, mutants, tests)
    for mutant in mutants:
        if mutant in found:
            results.killed(mutant, *found[mutant])
        else:
            results.survived(mutant, all_tests=True)


def table(results: Sequence[Tried]) -> str:
    """A row for every stratum, and one for all."""
    lines = [f"{'':12}" + "".join(f"{outcome:>12}" for outcome in OUTCOMES) + f"{'killed %':>12}"]
    for stratum in [*STRATA, "all"]:
        counts = Counter(one.outcome for one in results if stratum in (one.stratum, "all"))
        cells = "".join(f"{counts[outcome]:12}" for outcome in OUTCOMES)
        share = killed_share([one for one in results if stratum in (one.stratum, "all")])
        lines.append(f"{stratum:12}{cells}{share:12.1%}")
    return "\n".join(lines)


def killed_share(results: Sequence[Tried]) -> float:
    """The share of the mutants that were noticed, of those that can be."""
    counted = [one for one in results if one.outcome != "equivalent"]
    killed = [one for one in counted if one.outcome in NOTICED]
    return len(killed) / len(counted) if counted else 1.0


def survivors(results: Sequence[Tried]) -> str:
    """Every mutant that was not noticed, with its difference."""
    blocks = []
    for one in results:
        if one.outcome in ("survived", "uncovered"):
            before, after = difference(one.mutant)
            title = f"{one.mutant.file}:{one.mutant.line} {one.mutant.operator}"
            removed = "\n".join(f"  - {line}" for line in before.splitlines())
            added = "\n".join(f"  + {line}" for line in after.splitlines())
            blocks.append(f"{title} ({one.outcome})\n{removed}\n{added}")
    return "\n\n".join(blocks)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--goal", type=float, default=0.9, help="the share that must be killed")
    parser.add_argument("--survivors-whole", action="store_true", help="survivors meet all tests")
    parser.add_argument("--cache", type=Path, default=CACHE, help="for coverage and results")
    parser.add_argument("--list", action="store_true", help="only show the mutants")
    parser.add_argument("--tests", nargs="+", default=[], help="files of tests; left out: all")
    options = parser.parse_args()

    chosen = sample(ROOT, options.mutants, options.seed)
    if options.list:
        for stratum, mutant in chosen:
            before, after = difference(mutant)
            print(
                f"{stratum}: {mutant.file}:{mutant.line} {mutant.operator}: {before}  ->  {after}"
            )
        return
    folder = cache_folder(ROOT, options.cache)
    reach = record_reach(ROOT, folder, options.tests, options.workers)
    if reach.failed:
        print(f"{len(reach.failed)} tests fail without a mutant and are left out:")
        print("\n".join(sorted(reach.failed)))
    results = Results(folder / "results.json", reach)
    tried = try_all(chosen, results, workers=options.workers, whole=options.survivors_whole)
    print(f"\n{survivors(tried)}\n\n{table(tried)}")
    sys.exit(killed_share(tried) < options.goal)


if __name__ == "__main__":
    main()
