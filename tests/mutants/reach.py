"""Copies of the tree, and which tests reach which line of it."""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coverage import CoverageData
from operators import Mutant

HERE = Path(__file__).parent
COVERAGE_SETTINGS = """[run]
source = src/feddraw
relative_files = true
"""


def tracked_files(root: Path) -> list[str]:
    """The files of the tree, as git knows them: also new ones, none that are ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in listed.split("\0") if name and (root / name).is_file())


def digest_of(root: Path) -> str:
    """Changes with every file that tests may see."""
    total = hashlib.sha256()
    for name in tracked_files(root):
        if not name.startswith("tests/mutants/"):
            total.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return total.hexdigest()[:16]


def copy_tree(root: Path, folder: Path) -> Path:
    """The tree in another folder, compiled so that only files whose text changes are compiled
    again (clocks are too coarse for mutants that follow each other within a second).
    """
    for name in tracked_files(root):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target)
    for part in ("src", "tests"):
        compileall.compile_dir(
            folder / part,
            quiet=2,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )
    return folder


def environment(tree: Path, plan: Path) -> dict[str, str]:
    """For a pytest in a copy: its own sources, one thread, nothing written beside them."""
    ours = {
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(HERE)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "MUTANT_PLAN": str(plan),
    }
    return dict(os.environ) | ours


def write_plan(file: Path, tree: Path, **settings: Any) -> Path:
    """What mutant_plugin.py is to do."""
    usual: dict[str, Any] = {"record": "", "limits": {}, "usual limit": 0, "leave out": []}
    file.write_text(json.dumps(usual | {"source": str(tree)} | settings), encoding="utf-8")
    return file


class Reach:
    """Which tests reach which lines, how long each takes, and which fail without any mutant."""

    def __init__(self, folder: Path) -> None:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        self.seconds: Mapping[str, float] = record["seconds"]
        self.failed = set(record["failed"])
        self.lines: dict[str, dict[int, set[str]]] = {}
        self.breadth: Counter[str] = Counter()
        data = CoverageData(str(folder / "coverage"))
        data.read()
        for file in data.measured_files():
            by_line = data.contexts_by_lineno(file)
            self.lines[file] = {line: self._tests(found) for line, found in by_line.items()}
            for tests in self.lines[file].values():
                self.breadth.update(tests)

    def _tests(self, contexts: Sequence[str]) -> set[str]:
        """`tests/test_x.py::test_y|run` is a test; what ran at import has no name."""
        tests = {context.rpartition("|")[0] for context in contexts}
        return {test for test in tests if test in self.seconds and test not in self.failed}

    def covering(self, mutant: Mutant) -> list[str]:
        """The tests that run a line of the mutant, the most particular and quickest first.

        A line that only runs at import (a constant, a default) is covered by the tests that run
        anything of its file.
        """
        lines = self.lines.get(mutant.file, {})
        here = [lines.get(line, set()) for line in range(mutant.line, mutant.last_line + 1)]
        tests = set().union(*here) or set().union(*lines.values())
        return sorted(tests, key=self._effort)

    def sharing(self, tests: Sequence[str]) -> list[str]:
        """The other tests of the same files: what one test trained and kept is looked at by those
        after it, but only the first is seen to run it.
        """
        files = {test.partition("::")[0] for test in tests}
        others = {test for test in self.seconds if test.partition("::")[0] in files}
        return sorted(others - set(tests) - self.failed, key=self._effort)

    def _effort(self, test: str) -> tuple[float, str]:
        return self.breadth[test] * (0.05 + self.seconds[test]), test


def cache_folder(root: Path, cache: Path, tests: Sequence[str]) -> Path:
    """Where what is known of this tree under these tests is kept."""
    selection = hashlib.sha256(" ".join(tests).encode()).hexdigest()[:8]
    return cache / f"{digest_of(root)}-{selection}"


def record_reach(root: Path, folder: Path, tests: Sequence[str], workers: int) -> Reach:
    """Runs the tests once with coverage, unless the folder has the outcome already."""
    if not (folder / "record.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        tree = copy_tree(root, folder / "tree")
        settings = folder / "coveragerc"
        settings.write_text(COVERAGE_SETTINGS, encoding="utf-8")
        plan = write_plan(folder / "plan.json", tree, record=str(folder / "record.json"))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "mutant_plugin",
            "--cov",
            "--cov-context=test",
        ]
        command += [f"--cov-config={settings}", "--cov-report=", "--numprocesses", str(workers)]
        command += ["--dist", "loadfile", *tests]
        print("the tests once, with coverage …", flush=True)
        subprocess.run(
            command,
            cwd=tree,
            env=environment(tree, plan) | {"COVERAGE_FILE": str(folder / "coverage")},
            stdout=(folder / "tests.log").open("w"),
            stderr=subprocess.STDOUT,
            check=False,
        )
        shutil.rmtree(tree)
    return Reach(folder)
