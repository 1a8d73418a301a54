"""`feddraw explore`: the interactive weight explorer as one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from feddraw.cli.terminal import print_line


def explore(
    out: Annotated[Path, Option(help="HTML page to write.", metavar="FILE.html")] = Path(
        "feddraw-explorer.html"
    ),
) -> None:
    """Write an interactive page of the weight schedule. It needs a browser and no network."""
    from feddraw.explorer import write_explorer

    write_explorer(out)
    print_line(f"wrote {out}: open it in a browser; it needs no network")
