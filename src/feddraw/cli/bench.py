"""`feddraw bench`: speed and memory compared with a bare training loop and with other systems that
are installed.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from feddraw.cli.progress_bars import counting_bar
from feddraw.cli.terminal import console, print_json, table
from feddraw.errors import UserError, unknown

QUIET_LOAD = 0.3  # load average above which ratios are not to be trusted
PEERS = ("flower", "pfl", "fedlab", "nvflare")


def bench(
    quick: Annotated[
        bool,
        Option(
            "--quick",
            help="Fewer repetitions, one task per system, no figure: within five minutes.",
        ),
    ] = False,
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
    out: Annotated[
        Path | None, Option(help="Folder for bench.json, bench.md and the figure.")
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(
            help=(
                "Only these measurements (repeatable): rounds, steps, study, server, memory,"
                " preparation, growth, "
                "paper, secure, rivals, flower, pfl, pfl_two, fedlab, nvflare. With --out, the"
                " others stay as they are in "
                "the folder."
            )
        ),
    ] = None,
    python_of: Annotated[
        list[str] | None,
        Option(
            help=(
                "SYSTEM=PATH (repeatable): the Python in which flower, pfl, fedlab or nvflare is"
                " installed. "
                "Needs a source checkout."
            )
        ),
    ] = None,
    blocks: Annotated[int, Option(help="Repetitions per ratio; 0: 20, or 6 with --quick.")] = 0,
) -> None:
    """Measure the speed and memory of rounds, training steps and the server, compared with other
    systems.
    """
    from feddraw.bench import document
    from feddraw.bench.timing import TimingSession

    names = document.chosen_parts(only or [], quick)
    pythons = pythons_of_rivals_option(python_of or [])
    signal.signal(signal.SIGTERM, _stop_bench)
    if (load := os.getloadavg()[0]) > QUIET_LOAD:
        warnings.warn(f"the machine is busy (load {load:.2f}): ratios will vary more", stacklevel=1)
    with counting_bar(console(stderr=True), "") as report_progress:
        session = TimingSession(blocks or (6 if quick else 20), quick, report_progress, pythons)
        found = document.measure_parts(session, names, out)
    if json:
        print_json(found)
        return
    _show_bench_table(found, out)


def _stop_bench(_number: int, _frame: Any) -> None:
    raise SystemExit(143)  # so that peers' processes are ended first


def pythons_of_rivals_option(given: Sequence[str]) -> dict[str, str]:
    """Peer to interpreter, from PEER=PATH; for others FEDDRAW_PYTHON_OF_FLOWER and the like."""
    named = {
        peer: path
        for peer in PEERS
        if (path := os.environ.get(f"FEDDRAW_PYTHON_OF_{peer.upper()}"))
    }
    for text in given:
        peer, equals, path = text.partition("=")
        if peer not in PEERS:
            raise unknown("systems", peer, PEERS)
        if not equals or not Path(path).is_file():
            raise UserError(f"--python-of {text}: give SYSTEM=PATH of an existing Python")
        named[peer] = path
    return named


def _show_bench_table(found: dict[str, Any], out: Path | None) -> None:
    from feddraw.bench.printed_table import printed_rows

    machine, say = found["machine"], console()
    rows = [list(line) for line in printed_rows(found["parts"])]
    say.print(table(["what", "median", "95 % interval", "bar"], rows))
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    say.print(
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gb']} GB; {packages}"
    )
    if out:
        say.print(f"written to {out}")
