"""`python -m benchmarks`: speed and memory beside a bare training loop and other systems that are
installed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feddraw.cli.progress_bars import counting_bar
from feddraw.cli.terminal import console, print_json, table
from feddraw.errors import RunFailed, UserError, unknown

# Worker processes import this file once more: what is slow to import is imported in its functions.

SYSTEMS = ("flower", "pfl", "fedlab", "nvflare")
QUIET_LOAD = 0.3  # load average above which ratios are not to be trusted


def main(words: Sequence[str] | None = None) -> None:
    """Measure the parts that the command line names, and print a table or one JSON document."""
    from benchmarks.speed import document
    from benchmarks.speed.timing import TimingSession

    options = _options(words, list(document.PARTS))
    names = document.chosen_parts(options.only, options.quick)
    pythons = pythons_of_systems(options.python_of)
    signal.signal(signal.SIGTERM, _end_with_peers)
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        warnings.warn(f"the machine is busy (load {load:.2f}): ratios will vary more", stacklevel=1)
    blocks = options.blocks or (6 if options.quick else 20)
    with counting_bar(console(stderr=True), "") as report_progress:
        session = TimingSession(blocks, options.quick, report_progress, pythons)
        measured = document.measure_parts(session, names, options.out)
    if options.json:
        print_json(measured)
    else:
        _print_table(measured, options.out)


def _options(words: Sequence[str] | None, parts: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer repetitions, one task per system, no figure: within five minutes",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--out", type=Path, help="folder for bench.json, bench.md and the figure")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="PART",
        help=(
            f"only these measurements: {', '.join(parts)}, or rivals for all other"
            " systems; with --out, the others stay as they are in the folder"
        ),
    )
    parser.add_argument(
        "--python-of",
        action="append",
        default=[],
        metavar="SYSTEM=PATH",
        help=f"the Python in which {', '.join(SYSTEMS)} is installed (repeatable)",
    )
    parser.add_argument(
        "--blocks", type=int, default=0, help="repetitions per ratio; 0: 20, or 6 with --quick"
    )
    return parser.parse_args(words)


def pythons_of_systems(assignments: Sequence[str]) -> dict[str, str]:
    """System to interpreter, from SYSTEM=PATH; for others from FEDDRAW_PYTHON_OF_FLOWER and the
    like.
    """
    variables = {system: f"FEDDRAW_PYTHON_OF_{system.upper()}" for system in SYSTEMS}
    pythons = {
        system: os.environ[variable]
        for system, variable in variables.items()
        if os.environ.get(variable)
    }
    for assignment in assignments:
        system, equals, path = assignment.partition("=")
        if system not in SYSTEMS:
            raise unknown("systems", system, SYSTEMS)
        if not equals or not Path(path).is_file():
            raise UserError(f"--python-of {assignment}: give SYSTEM=PATH of an existing Python")
        pythons[system] = path
    return pythons


def _end_with_peers(_number: int, _frame: Any) -> None:
    raise SystemExit(143)  # so that peers' processes are ended first


def _print_table(measured: dict[str, Any], out: Path | None) -> None:
    from benchmarks.speed.printed_table import printed_rows

    machine = measured["machine"]
    rows = [list(row) for row in printed_rows(measured["parts"])]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    terminal = console()
    terminal.print(table(["what", "median", "95 % interval", "bar"], rows))
    terminal.print(
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gb']} GB; {packages}"
    )
    if out:
        terminal.print(f"written to {out}")


if __name__ == "__main__":
    try:
        main()
    except (UserError, RunFailed) as mistake:
        print(f"benchmarks: {mistake}", file=sys.stderr)
        sys.exit(2 if isinstance(mistake, UserError) else 1)
