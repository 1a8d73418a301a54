"""`feddraw verify`: repeat a run and compare the hashes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from feddraw.cli.options import DevicesOption
from feddraw.cli.terminal import console, table
from feddraw.errors import RunFailed

if TYPE_CHECKING:
    from feddraw.results.round_log import EvaluatedRound


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

    out = console()
    execution: dict[str, Any] = {"engine": engine, "workers": workers, "devices": devices}
    changes = {name: value for name, value in execution.items() if value is not None}

    def show_round(result: EvaluatedRound) -> None:
        out.print(round_line(result))

    verification = compare(run, rounds, trust=trust, changes=changes, on_round=show_round)
    files = [
        [what, digest]
        for what, digest in verification.equal
        if not what.startswith(("rounds.jsonl", "weights.csv"))
    ]
    out.print(table(["identical", "SHA-256 (first 16 digits)"], files, left=2))
    if verification.same:
        extent = "all" if verification.finished else "the first"
        out.print(
            f"verified: {extent} {verification.rounds} rounds of {run} are the same, bit for bit"
        )
        return
    different = verification.different
    listed = ", ".join(different[:4]) + (", …" if len(different) > 4 else "")
    reasons = ""
    if verification.other_environment:
        reasons = f" (other environment: {'; '.join(verification.other_environment)})"
    raise RunFailed(f"{run} is not reproduced; different: {listed}{reasons}")
