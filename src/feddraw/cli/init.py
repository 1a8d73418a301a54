"""`feddraw init`: an experiment file for data of one's own."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from feddraw.cli.echo import echo
from feddraw.errors import UserError

if TYPE_CHECKING:
    from feddraw.experiment.survey import Survey

Where = Annotated[Path, typer.Argument(help="A CSV with image paths and labels, or a folder of images.")]
Out = Annotated[Path | None, typer.Option(help="The experiment file to write (default: NAME.toml here).")]


def init(path: Where, out: Out = None) -> None:
    """Look at a table or folder of images and write a commented experiment file for it."""
    from feddraw.experiment.survey import document, look, plan
    from feddraw.system.files import write_whole

    target = out or Path(path.resolve().name.removesuffix(".gz").removesuffix(".csv") + ".toml")
    if target.suffix != ".toml":
        raise UserError(f"an experiment file ends with .toml: --out {target.with_suffix('.toml')}")
    if not target.parent.is_dir():
        raise UserError(f"cannot write {target}: there is no folder {target.parent}")
    found = look(path, target)
    for file in [target, *([found.sheet] if found.written else [])]:
        if file.exists():
            raise UserError(f"{file} exists: choose another name with --out, or delete it")
    show(found)
    if found.written:
        write_whole(found.sheet, found.written.encode())
    command = f"feddraw init {quote(str(path))}" + (f" --out {quote(str(out))}" if out else "")
    name = quote(str(target))
    write_whole(target, document(found, plan(found), command, name).encode())
    echo(f"{target} is written: read it, then  feddraw run {name}")


def show(found: Survey) -> None:
    """What was found, and what is odd about it."""
    from feddraw.cli.show import console, table
    from feddraw.data.tables import complaint
    from feddraw.experiment.survey import complaints, rare

    out = console()
    out.print(table(["what", "column"], [[kind, name or "none found"] for kind, name in found.columns.items()], left=2))
    rows = [["all images", *(f"{count:,}" for count in found.sizes())]]
    rows += [[name, *(f"{count:,}" for count in counts)] for name, counts in found.positives().items()]
    out.print(table(["images with", "train", "validation", "test"], rows))
    if found.sites:
        sites = [[name or "(blank)", f"{count:,}"] for name, count in sorted(found.sites.items())]
        out.print(table(["site", "train"], sites))
    if names := rare(found):
        out.print(f"note: a part has no image, or only images, with {', '.join(names)}: no AUC for it there")
    if problems := complaints(found):
        total = len(found.table.labels) + len(found.table.problems)
        out.print(f"note: {complaint(found.sheet.name, problems, total)}; data.skip_bad leaves them out")
