"""`make dist`: the wheel and the source archive of a release, and what must hold before they are
uploaded.

Built twice, the second time from the first's own source archive in another place: the same bytes.
`twine check` reads their descriptions. The wheel is installed into an empty environment with the
versions of constraints.txt, and trains.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from combinations import ROOT

PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
TRY = ("run", "--rounds", "1", "--scale", "0.005", "--size", "28", "--set", "data.test=50")


def build(python: str, source: Path, into: Path) -> dict[str, str]:
    """A wheel and a source archive, by name, with their hashes."""
    call(python, "-m", "build", "--no-isolation", "--outdir", str(into), str(source))
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(into.iterdir())
    }


def environment(folder: Path, *requirements: str) -> str:
    """A new environment's Python."""
    call(sys.executable, "-m", "venv", str(folder))
    python = str(folder / "bin" / "python")
    call(python, *PIP, "install", *requirements)
    return python


def call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="for the two files; emptied first"
    )
    parser.add_argument(
        "--without-install", action="store_true", help="no empty environment: without gigabytes"
    )
    options = parser.parse_args(arguments)
    shutil.rmtree(options.out, ignore_errors=True)
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        tools = environment(work / "tools", "build", "twine", "hatchling>=1.25")
        first = build(tools, ROOT, options.out)
        archive = next(options.out.glob("*.tar.gz"))
        with tarfile.open(archive) as file:
            file.extractall(work / "again", filter="data")
        second = build(tools, next((work / "again").iterdir()), work / "second")
        if first != second:
            sys.exit(f"built twice, and not the same: {first} and {second}")
        print(
            "built twice, the same bytes:",
            *(f"  {digest}  {name}" for name, digest in first.items()),
            sep="\n",
        )
        call(
            tools, "-m", "twine", "check", "--strict", *(str(options.out / name) for name in first)
        )
        print("twine check: passed")
        if not options.without_install:
            install(next(options.out.glob("*.whl")), work)


def install(wheel: Path, work: Path) -> None:
    """The wheel alone in an empty environment."""
    began = time.monotonic()
    python = environment(work / "empty", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    size = sum(path.stat().st_size for path in (work / "empty").rglob("*") if path.is_file()) / 1e6
    print(f"installed into an empty environment: {size:.0f} MB in {time.monotonic() - began:.0f} s")
    call(str(Path(python).with_name("feddraw")), *TRY, "--out", str(work / "run"))
    print("feddraw run: one round done")


if __name__ == "__main__":
    main()
