"""`feddraw verify`: repeat a run and compare the hashes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from feddraw.cli.options import DevicesOption
from feddraw.cli.terminal import console, table
from feddraw.errors import RunFailed

if TYPE_CHECKING:
    from feddraw.server.round import RoundResult


def verify(
    run: Annotated[Path, Argument(help="Folder of a run.")],
    rounds: Annotated[
        int, Option(help="Only the first rounds, also of an unfinished run; 0: all.")
    ] = 0,
    engine: Annotated[
        str | None, Option(help="Where clients train (default: as in the run).")
    ] = None,
    workers: Annotated[
        int | None, Option(help="Worker processes (default: as in the run).")
    ] = None,
    devices: Annotated[str | None, DevicesOption] = None,
    trust: Annotated[
        bool, Option("--trust", help="Allow code that the run's experiment.toml names.")
    ] = False,
) -> None:
    """Repeat a run and check that model, ledger and metrics are the same, bit for bit."""
    from feddraw.cli.run import round_line
    from feddraw.experiment.verify import verify as compare

    say = console()
    how: dict[str, Any] = {"engine": engine, "workers": workers, "devices": devices}
    changes = {name: value for name, value in how.items() if value is not None}

    def told(result: RoundResult) -> None:
        say.print(round_line(result))

    found = compare(run, rounds, trust=trust, changes=changes, on_round=told)
    files = [
        [what, value]
        for what, value in found.equal
        if not what.startswith(("rounds.jsonl", "weights.csv"))
    ]
    say.print(table(["identical", "SHA-256 (first 16 digits)"], files, left=2))
    if found.same:
        extent = "all" if found.finished else "the first"
        say.print(f"verified: {extent} {found.rounds} rounds of {run} are the same, bit for bit")
        return
    reasons = (
        f" (other environment: {'; '.join(found.other_environment)})"
        if found.other_environment
        else ""
    )
    listed = ", ".join(found.different[:4]) + (", …" if len(found.different) > 4 else "")
    raise RunFailed(f"{run} is not reproduced; different: {listed}{reasons}")
