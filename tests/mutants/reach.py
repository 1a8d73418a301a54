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
AT_ONCE = 12  # files of tests that are recorded before what is known is kept
COVERAGE_SETTINGS = """[run]
source = src/feddraw
relative_files = true
"""


def tracked_files(root: Path) -> list[str]:
    """The files of the tree, as git knows them: also new ones, none that are ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in listed.split("\0") if name and (root / name).is_file())


def digest_of(root: Path, names: Sequence[str]) -> str:
    """Changes with some files."""
    total = hashlib.sha256()
    for name in names:
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
    usual: dict[str, Any] = {"record": "", "files": [], "limits": {}, "failure": ""}
    file.write_text(json.dumps(usual | {"source": str(tree)} | settings), encoding="utf-8")
    return file


class Reach:
    """Which tests reach which lines, what each costs, which start processes, and which fail
    without any mutant.
    """

    def __init__(self, folder: Path) -> None:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        self.seconds: Mapping[str, float] = record["seconds"]
        self.failed = set(record["failed"])
        self.files: Mapping[str, str] = record["files"]
        self.files_with_processes = {file_of(test) for test in record["with processes"]}
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

    def able_to_notice(self, mutants: Sequence[Mutant]) -> list[str]:
        """The tests that can notice one of some mutants: those of the files that reach one of them
        (what one test trained and kept is looked at by those after it, but only the first is seen
        to run it), and those of the files that start processes, where coverage sees nothing.
        """
        files = {file_of(test) for mutant in mutants for test in self.covering(mutant)}
        files |= self.files_with_processes
        tests = [test for test in self.seconds if file_of(test) in files]
        return [test for test in tests if test not in self.failed]

    def _effort(self, test: str) -> tuple[float, str]:
        return self.breadth[test] * (0.05 + self.seconds[test]), test


def file_of(test: str) -> str:
    return test.partition("::")[0]


def cache_folder(root: Path, cache: Path) -> Path:
    """Where what is known of this package is kept: tests may be added and changed."""
    return cache / digest_of(root, [name for name in tracked_files(root) if "src/" in name])


def tests_by_digest(root: Path, chosen: Sequence[str]) -> dict[str, str]:
    """The files of tests, all or some, each with a digest of its text. What tests share
    (tests/tiny.py and so on) is not looked at: after a change there, delete the folder.
    """
    names = [name for name in tracked_files(root) if name.startswith("tests/")]
    files = [name for name in names if Path(name).name.startswith("test_")]
    kept = [name for name in files if not chosen or name in chosen]
    return {name: digest_of(root, [name]) for name in kept}


def record_reach(root: Path, folder: Path, tests: Sequence[str], workers: int) -> Reach:
    """Runs the tests once with coverage, some files at a time; later only those of files that have
    changed since.
    """
    record = folder / "record.json"
    known: dict[str, Any] = {"seconds": {}, "failed": [], "with processes": [], "files": {}}
    if record.is_file():
        known = json.loads(record.read_text(encoding="utf-8"))
    files = tests_by_digest(root, tests)
    gone = {name for name in known["files"] if name not in files}
    changed = sorted(name for name in files if files[name] != known["files"].get(name))
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(changed), AT_ONCE):
        some = changed[start : start + AT_ONCE]
        print(f"with coverage: {len(changed) - start} files of tests …", flush=True)
        latest = _recorded(root, folder, some, workers)
        known = _merged(known, latest, gone.union(some))
        known["files"] |= {name: files[name] for name in some}
        record.write_text(json.dumps(known), encoding="utf-8")
    return Reach(folder)


def _merged(known: dict[str, Any], latest: dict[str, Any], gone: set[str]) -> dict[str, Any]:
    """Two records as one, without what is known of the tests of some files."""
    kept = {test: cost for test, cost in known["seconds"].items() if file_of(test) not in gone}
    merged: dict[str, Any] = {
        "seconds": kept | latest["seconds"],
        "files": {name: known["files"][name] for name in known["files"] if name not in gone},
    }
    for part in ("failed", "with processes"):
        merged[part] = [test for test in known[part] if file_of(test) not in gone] + latest[part]
    return merged


def _recorded(root: Path, folder: Path, files: Sequence[str], workers: int) -> dict[str, Any]:
    """Seconds and failures of the tests of some files; what they reach is added to the coverage."""
    tree = copy_tree(root, folder / "tree")
    settings = folder / "coveragerc"
    settings.write_text(COVERAGE_SETTINGS, encoding="utf-8")
    latest = folder / "latest.json"
    # Files that are named would run although the suite leaves them to their own targets.
    plan = write_plan(folder / "plan.json", tree, record=str(latest), files=list(files))
    command = [sys.executable, "-m", "pytest", "-p", "mutant_plugin"]
    command += ["--cov", "--cov-append", "--cov-context=test"]
    command += [f"--cov-config={settings}", "--cov-report="]
    command += ["--numprocesses", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    with (folder / "tests.log").open("w") as log:
        subprocess.run(
            command,
            cwd=tree,
            env=environment(tree, plan) | {"COVERAGE_FILE": str(folder / "coverage")},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    shutil.rmtree(tree)
    recorded: dict[str, Any] = json.loads(latest.read_text(encoding="utf-8"))
    return recorded
