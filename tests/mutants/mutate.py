"""How much the tests notice: a seeded sample of small mistakes, each made in a copy of the tree.

    python tests/mutants/mutate.py --seed 1 --mutants 300

First all tests run once with coverage, so that it is known which tests reach which line and how
long each takes; this is kept until a file changes. Then every mutant runs the tests that reach its
line, until one fails, and after these the other tests of the same files. A mutant that none of them
notices has survived; with `--survivors-whole` it meets all other tests too. What is known of a
mutant is kept, so that a sample that was interrupted goes on where it stopped.

`equivalent.toml` lists mutants that no test can notice, each with the reason; these do not count.
The exit code is 0 where at least `--goal` of the others were killed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from mutant_plugin import TOOK_TOO_LONG
from operators import Mutant
from reach import Reach, cache_folder, copy_tree, environment, record_reach, write_plan
from strata import STRATA, sample

ROOT = Path(__file__).parent.parent.parent
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "feddraw-mutants"
OUTCOMES = ("killed", "timeout", "survived", "uncovered", "equivalent")
SLOWER = 10  # a test may take so many times its usual seconds, and a minute more
ALL_SLOWER = 3  # all tests of a mutant together, and three minutes more
AT_ONCE = 400  # tests of one pytest: more names than a command line should have are left to files


@dataclass(frozen=True)
class Tried:
    """A mutant, and what became of it: one of `OUTCOMES`, and the tests that were run."""

    stratum: str
    mutant: Mutant
    outcome: str
    tests: int


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


class Copy:
    """A copy of the tree in which mutants are tried, one after another."""

    def __init__(self, folder: Path, reach: Reach) -> None:
        self.tree = copy_tree(ROOT, folder / "tree")
        self.plan = folder / "plan.json"
        self.log = folder / "pytest.log"
        self.reach = reach

    def try_mutant(self, mutant: Mutant, *, whole: bool) -> tuple[str, int]:
        """What becomes of it, and how many tests were given it."""
        file = self.tree / mutant.file
        before = file.read_bytes()
        file.write_bytes(mutant.apply(before))
        try:
            return self._outcome(mutant, whole=whole)
        finally:
            file.write_bytes(before)

    def _outcome(self, mutant: Mutant, *, whole: bool) -> tuple[str, int]:
        covering = self.reach.covering(mutant)
        sharing = self.reach.sharing(covering)
        run = 0
        for tests in (covering[:AT_ONCE], covering[AT_ONCE:], sharing):
            if tests:
                run += len(tests)
                outcome = self._pytest(tests, leave_out=[])
                if outcome != "survived":
                    return outcome, run
        if whole:
            run = len(self.reach.seconds)
            outcome = self._pytest([], leave_out=[*covering, *sharing, *self.reach.failed])
            if outcome != "survived":
                return outcome, run
        return ("survived" if covering else "uncovered"), run

    def _pytest(self, tests: Sequence[str], leave_out: Sequence[str]) -> str:
        """Runs some tests, or all but some, until one fails."""
        seconds = self.reach.seconds
        limits = {test: 60 + SLOWER * seconds[test] for test in tests or seconds}
        write_plan(
            self.plan,
            self.tree,
            limits=limits,
            **{"usual limit": 600, "leave out": list(leave_out)},
        )
        command = [sys.executable, "-m", "pytest", "-p", "mutant_plugin", "-p", "no:cacheprovider"]
        command += ["--exitfirst", "--quiet", "--tb=line", *_named(tests)]
        total = 180 + ALL_SLOWER * sum(seconds[test] for test in tests or seconds)
        with self.log.open("w") as log:
            process = subprocess.Popen(
                command,
                cwd=self.tree,
                env=environment(self.tree, self.plan),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=total)
            except subprocess.TimeoutExpired:
                code = TOOK_TOO_LONG
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also workers that it left behind
                process.wait()
        if code == TOOK_TOO_LONG:
            return "timeout"
        return "survived" if code == 0 else "killed"


def _named(tests: Sequence[str]) -> list[str]:
    """The tests by name, or by their files where these are too many for a command line."""
    if len(tests) <= AT_ONCE:
        return list(tests)
    return sorted({test.partition("::")[0] for test in tests})


# ----------------------------------------------------------------------------------------- a sample


def try_all(
    chosen: Sequence[tuple[str, Mutant]], reach: Reach, kept: Path, *, workers: int, whole: bool
) -> list[Tried]:
    """Tries the mutants that are not yet known, in as many copies as there are workers."""
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    without_test = equivalents()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(workers):
            place = Path(folder) / str(number)
            place.mkdir()
            copies.put(Copy(place, reach))

        def tried(each: tuple[str, Mutant]) -> Tried:
            stratum, mutant = each
            before, after = difference(mutant)
            if (mutant.file, before, after) in without_test:
                return Tried(stratum, mutant, "equivalent", 0)
            key = f"{mutant.file}:{mutant.start}:{mutant.end}:{mutant.replacement}"
            outcome, tests, met_all = known.get(key, ("", 0, False))
            if not outcome or (whole and outcome in ("survived", "uncovered") and not met_all):
                copy = copies.get()
                try:
                    outcome, tests = copy.try_mutant(mutant, whole=whole)
                finally:
                    copies.put(copy)
                known[key] = outcome, tests, whole
                kept.write_text(json.dumps(known, indent=1), encoding="utf-8")
                print(f"{outcome:9} {mutant.file}:{mutant.line} {mutant.operator}", flush=True)
            return Tried(stratum, mutant, outcome, tests)

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(tried, chosen))


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
    killed = [one for one in counted if one.outcome in ("killed", "timeout")]
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
            blocks.append(f"{title} ({one.outcome}, {one.tests} tests)\n{removed}\n{added}")
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
    folder = cache_folder(ROOT, options.cache, options.tests)
    reach = record_reach(ROOT, folder, options.tests, options.workers)
    if reach.failed:
        print(f"{len(reach.failed)} tests fail without a mutant and are left out:")
        print("\n".join(sorted(reach.failed)))
    results = try_all(
        chosen,
        reach,
        folder / "results.json",
        workers=options.workers,
        whole=options.survivors_whole,
    )
    print(f"\n{survivors(results)}\n\n{table(results)}")
    sys.exit(killed_share(results) < options.goal)


if __name__ == "__main__":
    main()
