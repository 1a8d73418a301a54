"""Mutants made in a copy of the tree, one or many at a time, and the first test that notices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from mutant_plugin import TOOK_TOO_LONG
from operators import Mutant
from reach import Reach, copy_tree, environment, file_of, write_plan

SLOWER = 10  # a test may take so many times its usual processor seconds, and ten more


class Copy:
    """A copy of the tree in which mutants are tried, one run of tests after another."""

    def __init__(self, root: Path, folder: Path, reach: Reach) -> None:
        self.root = root
        self.tree = copy_tree(root, folder / "tree")
        self.folder = folder
        self.reach = reach

    def first_failure(self, mutants: Sequence[Mutant], tests: Sequence[str]) -> tuple[str, str]:
        """("", "") if some tests pass with all of some mutants made, else "killed" or "timeout" and
        the first test that failed (tests run in the order given).
        """
        if not tests:
            return "", ""
        texts = made(self.root, mutants)
        for file, text in texts.items():
            (self.tree / file).write_bytes(text)
        try:
            return self._pytest(tests)
        finally:
            for file in texts:
                (self.tree / file).write_bytes((self.root / file).read_bytes())

    def _pytest(self, tests: Sequence[str]) -> tuple[str, str]:
        seconds = self.reach.seconds
        failure = self.folder / "failure"
        failure.unlink(missing_ok=True)
        plan = write_plan(
            self.folder / "plan.json",
            self.tree,
            limits={test: 10 + SLOWER * seconds[test] for test in tests},
            failure=str(failure),
        )
        command = [sys.executable, "-m", "pytest", "-p", "mutant_plugin", "-p", "no:cacheprovider"]
        command += ["--exitfirst", "--quiet", "--tb=line", *sorted({file_of(t) for t in tests})]
        with (self.folder / "pytest.log").open("w") as log:
            process = subprocess.Popen(
                command,
                cwd=self.tree,
                env=environment(self.tree, plan),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also workers that it left behind
                process.wait()
        if code == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError(f"none of these was found: {tests}")
        if code == 0:
            return "", ""
        # A package that cannot be imported fails before any test.
        test = failure.read_text(encoding="utf-8") if failure.is_file() else tests[0]
        return ("timeout" if code == TOOK_TOO_LONG else "killed"), test


def made(root: Path, mutants: Sequence[Mutant]) -> dict[str, bytes]:
    """The files with some mutants in them, which do not overlap."""
    by_file: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_file[mutant.file].append(mutant)
    texts = {}
    for file, here in by_file.items():
        text = (root / file).read_bytes()
        for mutant in sorted(here, key=lambda one: one.start, reverse=True):
            text = mutant.apply(text)
        texts[file] = text
    return texts


def apart(mutants: Sequence[Mutant]) -> list[list[Mutant]]:
    """Groups of mutants that can be made at once, as few as possible."""
    groups: list[list[Mutant]] = []
    for mutant in mutants:
        for group in groups:
            if not any(_overlap(mutant, other) for other in group):
                group.append(mutant)
                break
        else:
            groups.append([mutant])
    return groups


def _overlap(one: Mutant, other: Mutant) -> bool:
    return one.file == other.file and one.start < other.end and other.start < one.end


def noticed(
    copy: Copy, mutants: Sequence[Mutant], tests: Sequence[str]
) -> dict[Mutant, tuple[str, str]]:
    """Which of some mutants the tests notice, and by which test, with all made at once.

    Tests that pass with all of them notice none of them. Where a test fails, halves of the mutants
    are made until the one that it notices is found; the others go on from that test.
    """
    found: dict[Mutant, tuple[str, str]] = {}
    for group in apart(mutants):
        alive, waiting = list(group), list(tests)
        while alive and waiting:
            outcome, test = copy.first_failure(alive, waiting)
            if not outcome:
                break
            waiting = waiting[waiting.index(test) :]
            guilty = _guilty(copy, alive, test)
            if guilty is None:  # it fails by itself, or only by several mutants together
                print(f"left out, as no one mutant fails it: {test}", flush=True)
                waiting = waiting[1:]
                continue
            found[guilty] = outcome, test
            alive.remove(guilty)
            print(f"{outcome:9} {guilty.file}:{guilty.line} {guilty.operator}", flush=True)
    return found


def _guilty(copy: Copy, mutants: Sequence[Mutant], test: str) -> Mutant | None:
    """One of some mutants that fails a test by itself."""
    if len(mutants) == 1:
        (only,) = mutants
        alone = copy.first_failure([only], [test])[0]
        return only if alone and not copy.first_failure([], [test])[0] else None
    middle = len(mutants) // 2
    for half in (mutants[:middle], mutants[middle:]):
        if copy.first_failure(half, [test])[0]:
            guilty = _guilty(copy, half, test)
            if guilty is not None:
                return guilty
    return None
