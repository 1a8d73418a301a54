"""`feddraw explore`: the interactive weight explorer as one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feddraw.cli.echo import echo


def explore(
    out: Annotated[Path, typer.Option(help="The page to write.", metavar="FILE.html")] = Path("feddraw-explorer.html"),
) -> None:
    """Write a page on which to turn every knob of the weights; it needs a browser and no network."""
    from feddraw.explorer import write

    write(out)
    echo(f"{out} is written: open it in any browser, or send it to someone; it asks no network for anything")
