"""`make matrix`: feddraw in the environments that people have, and a table of what works in which.

    python tests/matrix/run.py [--only NAME …] [--without-large] [--python 3.12=/path/to/python …]

Each combination of matrix.toml gets an environment of its own in --folder, with the wheel of this
tree and the versions named, and runs its tests there. An environment whose requirements have not
changed is used again. Results are written after each combination, so a run that was stopped can go
on with --only. Needs nothing but Python 3.11 and pip.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import page
from combinations import ROOT, Combination, Matrix, lowest, read

SHOWN = (
    "feddraw",
    "numpy",
    "scipy",
    "torch",
    "flwr",
    "nvflare",
    "monai",
    "safetensors",
    "protobuf",
    "grpcio",
)
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
LIMIT = 3600.0  # seconds for the tests of one combination
OF_THE_MACHINE = (
    "root may write everywhere",
)  # why a test is skipped that says nothing about versions


class Untested(Exception):
    """A combination that could not be made here, and why."""


# ------------------------------------------------------------------------------------- interpreters


def interpreter(version: str, given: Mapping[str, str]) -> str:
    """A Python of this version: the one given, or one on the PATH, or pyenv's newest."""
    candidates = [
        given.get(version),
        shutil.which(f"python{version}"),
        _of_pyenv(version),
        sys.executable,
    ]
    for candidate in filter(None, candidates):
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        if found.stdout.strip() == version:
            return str(candidate)
    raise Untested(f"no Python {version} on this machine")


def _of_pyenv(version: str) -> str | None:
    if not shutil.which("pyenv"):
        return None
    said = subprocess.run(["pyenv", "prefix", version], capture_output=True, text=True, check=False)
    return str(Path(said.stdout.strip()) / "bin" / "python") if said.returncode == 0 else None


# ------------------------------------------------------------------------------------- environments


def build_wheel(folder: Path) -> Path:
    """The wheel of this tree, which every environment installs."""
    shutil.rmtree(folder, ignore_errors=True)
    _call([sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
    return next(folder.glob("feddraw-*.whl"))


def make_environment(
    folder: Path, one: Combination, tools: Sequence[str], python: str, wheel: Path
) -> str:
    """The environment's Python, with everything installed; one that is there is used again."""
    here, stamp = str(folder / "bin" / "python"), folder / "installed.json"
    wanted = json.dumps(
        [python, one.install, one.extras, one.requires, list(tools), _requirements(one)]
    )
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _call([python, "-m", "venv", str(folder)])
        began = time.monotonic()
        _call(
            [
                here,
                *PIP,
                "install",
                *_requirements(one),
                *one.requires,
                *_wheel_with_extras(one, wheel),
            ]
        )
        cost = {"megabytes": _megabytes(folder), "install_seconds": round(time.monotonic() - began)}
        (folder / "cost.json").write_text(json.dumps(cost), encoding="utf-8")
        _call([here, *PIP, "install", *tools])
        stamp.write_text(wanted, encoding="utf-8")
    _call([here, *PIP, "install", "--no-deps", "--force-reinstall", str(wheel)])
    return here


def _megabytes(folder: Path) -> int:
    """What an environment takes on the disk, without pip's own part."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return round(sum(path.stat().st_size for path in files if "pip" not in path.parts) / 1e6)


def cost(folder: Path) -> dict[str, int]:
    """Megabytes and seconds of the installation, measured when it was made."""
    found = folder / "cost.json"
    return dict(json.loads(found.read_text(encoding="utf-8"))) if found.is_file() else {}


def _requirements(one: Combination) -> list[str]:
    if one.install == "server":
        return ["--requirement", str(ROOT / "requirements-server.txt")]
    if one.install == "lowest":
        return [line for line in lowest() if line.partition("==")[0] in _needed(one)]
    return []


def _needed(one: Combination) -> set[str]:
    """The names of all dependencies that this combination installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [
        project["dependencies"],
        *(project["optional-dependencies"][extra] for extra in one.extras),
    ]
    return {line.partition(">=")[0].partition("[")[0] for group in groups for line in group}


def _wheel_with_extras(one: Combination, wheel: Path) -> list[str]:
    if one.install == "server":
        return []  # it comes without its dependencies
    extras = f"[{','.join(one.extras)}]" if one.extras else ""
    return [f"feddraw{extras} @ {wheel.resolve().as_uri()}"]


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_clean())
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith(("ERROR", "error"))]
        said = (errors or done.stderr.splitlines() or ["no reason given"])[0]
        raise Untested(f"not installed: {said.removeprefix('ERROR: ')[:200]}")


def _clean() -> dict[str, str]:
    """This process's environment without what would let another feddraw in."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }


VERSIONS = """
import importlib.metadata, json, platform
found = {one.name.lower(): one.version for one in importlib.metadata.distributions()}
print(json.dumps({"python": platform.python_version()} | found))
"""


def versions(python: str) -> dict[str, str]:
    """The versions of what matters in an environment."""
    found = json.loads(
        subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout
    )
    return {name: found[name] for name in ("python", *SHOWN) if name in found}


# -------------------------------------------------------------------------------------------- tests


def run_tests(
    python: str, tests: Iterable[str], more: Mapping[str, str], report: Path
) -> list[dict[str, str]]:
    """Each test with its outcome; its file is named as pytest takes it."""
    report.unlink(missing_ok=True)
    command = [
        python,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={report}",
        "-o",
        "junit_family=xunit1",
    ]
    own = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "FEDDRAW_MATRIX": "1",
    }
    with report.with_suffix(".log").open("wb") as log:
        subprocess.run(
            [*command, *tests],
            cwd=ROOT,
            env=_clean() | own | dict(more),
            stdout=log,
            stderr=log,
            timeout=LIMIT,
            check=False,
        )
    if not report.is_file():
        return []
    return [_outcome(case) for case in ET.parse(report).iter("testcase")]


def _outcome(case: ET.Element) -> dict[str, str]:
    result, why = "passed", ""
    for kind in ("skipped", "failure", "error"):
        if (found := case.find(kind)) is not None:
            result, why = kind, " ".join(found.get("message", "").split())[:200]
    file = case.get("file") or case.get("classname", "").replace(".", "/") + ".py"
    return {"file": file, "name": case.get("name", ""), "result": result, "why": why}


def judge(tests: Sequence[str], outcomes: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """What the outcomes say about one thing that should work."""
    counting = [one for one in outcomes if one["why"] not in OF_THE_MACHINE]
    own = [one for one in counting if any(_belongs(one, test) for test in tests)]
    missing = [test for test in tests if not any(_belongs(one, test) for one in own)]
    bad = [one for one in own if one["result"] in ("failure", "error")]
    skipped = [one for one in own if one["result"] == "skipped"]
    count = {"passed": len(own) - len(bad) - len(skipped), "tests": len(own)}
    if bad:
        return {"result": "fails", "why": f"{bad[0]['name']}: {bad[0]['why']}"} | count
    if missing:
        return {"result": "fails", "why": f"{missing[0]} did not run"} | count
    if skipped:
        result = "partly" if count["passed"] else "no"
        return {
            "result": result,
            "why": "; ".join(dict.fromkeys(one["why"] for one in skipped)),
        } | count
    return {"result": "works", "why": ""} | count


def _belongs(outcome: Mapping[str, str], test: str) -> bool:
    file, _, name = test.partition("::")
    if outcome["file"] != file and not outcome["file"].startswith(f"{file.rstrip('/')}/"):
        return not outcome["name"] and outcome["file"] == file
    return not name or outcome["name"].partition("[")[0] == name or outcome["name"] == name


# ---------------------------------------------------------------------------------------- the whole


def try_combination(
    one: Combination, matrix: Matrix, options: argparse.Namespace, wheel: Path
) -> dict[str, Any]:
    """One line of the table, as data."""
    result: dict[str, Any] = {"name": one.name, "date": datetime.now(UTC).date().isoformat()}
    folder, tried = options.folder / one.name, matrix.tried(one)
    try:
        python = interpreter(one.python, dict(pair.split("=", 1) for pair in options.python))
        here = make_environment(folder, one, matrix.tools, python, wheel)
    except Untested as reason:
        return result | {"untested": str(reason), "works": {}}
    result |= {"versions": versions(here)} | cost(folder)
    began = time.monotonic()
    tests = list(dict.fromkeys(test for several in tried.values() for test in several))
    outcomes = run_tests(here, tests, one.environment, options.folder / f"{one.name}.xml")
    result["test_seconds"] = round(time.monotonic() - began)
    result["works"] = {what: judge(several, outcomes) for what, several in tried.items()}
    if one.large:
        shutil.rmtree(folder)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="these combinations, or those of a framework",
    )
    parser.add_argument(
        "--without-large", action="store_true", help="leave out what downloads gigabytes"
    )
    parser.add_argument(
        "--python",
        nargs="+",
        default=[],
        metavar="3.12=PATH",
        help="interpreters that are not found",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "matrix",
        help="for the environments and logs",
    )
    options = parser.parse_args(arguments)
    matrix = read()
    chosen = [
        one
        for one in matrix.combinations
        if not options.only or {one.name, one.framework} & set(options.only)
    ]
    chosen = [one for one in chosen if not (one.large and options.without_large)]
    if not chosen:
        parser.error(
            f"no such combination: choose from {', '.join(one.name for one in matrix.combinations)}"
        )
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel(options.folder / "wheel")
    failed = 0
    for number, one in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)} {one.name} …", flush=True)
        result = try_combination(one, matrix, options, wheel)
        page.write(matrix, page.read_results() | {one.name: result})
        failed += _tell(result, options.folder / f"{one.name}.log")
    print(f"{page.PAGE.relative_to(ROOT)} and {page.RESULTS.relative_to(ROOT)} are written")
    return 1 if failed else 0


def _tell(result: Mapping[str, Any], log: Path) -> bool:
    if "untested" in result:
        print(f"  untested: {result['untested']}", flush=True)
        return False
    for what, one in result["works"].items():
        why = f": {one['why']}" if one["why"] else ""
        print(
            f"  {one['result']:6} {what} ({one['passed']} of {one['tests']} tests){why}", flush=True
        )
    fails = any(one["result"] == "fails" for one in result["works"].values())
    if fails:
        print(f"  see {log}", flush=True)
    return fails


if __name__ == "__main__":
    sys.exit(main())
