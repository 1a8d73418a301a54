"""`feddraw site`: a hospital's node of a federation, which runs only what the operator has
signed.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from feddraw.cli.terminal import print_line
from feddraw.errors import UserError

if TYPE_CHECKING:
    from feddraw.flower.exchange_files import FederationFile
    from feddraw.flower.site_folder import SiteFolder

app = typer.Typer(
    name="site",
    no_args_is_help=True,
    help="For a site of a federation: make its keys, start its node.",
)


@app.command("key")
def make_site_key(
    folder: Annotated[
        Path, Argument(help="Folder to make for this site's keys; its name is the site's name.")
    ],
    name: Annotated[
        str, Option(help="The site's name in the federation (default: the folder's).")
    ] = "",
) -> None:
    """Make this site's keys, and the file with their public halves for the operator.

    One key connects its node, the other signs its part of secure sums. Private keys stay here.
    """
    from feddraw.flower.site_folder import SiteFolder, make_site_folder
    from feddraw.secure.sums.signing_keys import key_fingerprint

    made = SiteFolder(folder)
    site = make_site_folder(made, name or folder.resolve().name)
    print_line(f"private keys of {site.name} are in {folder}: they never leave this machine")
    print_line(f"send {made.site_file()} to the federation's operator")
    typer.echo(f"fingerprint, to compare by telephone: {key_fingerprint(site.signing)}")


@app.command("start")
def start_site(
    file: Annotated[Path, Argument(help="The operator's file, federation.toml.")],
    site: Annotated[Path, Option(help="This site's folder, made by `feddraw site key`.")],
    data: Annotated[Path | None, Option(help="Folder with this site's table (one CSV).")] = None,
    confirm: Annotated[
        str,
        Option(
            metavar="CODE",
            help="The federation's code as the operator says it by telephone; without it you are"
            " asked once.",
        ),
    ] = "",
    node_config: Annotated[
        str,
        Option(
            help="More settings, as for flower-supernode: "
            """'client="North" memory="/srv/feddraw"'; """
            "clear_weights=true lets this site say its weight in clear."
        ),
    ] = "",
    port: Annotated[
        int, Option(min=1, max=65535, help="A port on 127.0.0.1 for the node's own processes.")
    ] = 9094,
) -> None:
    """Start this site's SuperNode, and keep it connected until it is stopped.

    An app is unpacked only if the operator has signed it; others are refused. The node waits for a
    server that does not answer, comes back after a crash of either side, and ends only where a
    person must do something, with one line that says what.
    """
    from feddraw.flower.node_supervision import node_order, start_supernode
    from feddraw.flower.site_folder import (
        check_site_signatures,
        node_settings,
        node_settings_as_text,
    )
    from feddraw.flower.supernode import check_node_config, refuse_unknown_flower

    refuse_unknown_flower()
    folder, federation = _accepted_federation(file, site, confirm)
    check_site_signatures(folder)
    settings = node_settings_as_text(node_settings(federation, folder, data), node_config)
    check_node_config(settings)
    start_supernode(node_order(federation, folder, settings, port), port)


def _accepted_federation(file: Path, site: Path, code: str) -> tuple[SiteFolder, FederationFile]:
    """The operator's file, read into the site's folder."""
    from feddraw.flower.site_folder import SiteFolder, accept_federation, different_versions

    folder = SiteFolder(site)
    federation = accept_federation(file, folder, lambda read: _is_confirmed(read, code))
    for difference in different_versions(federation):
        warnings.warn(f"another version: {difference}", stacklevel=2)
    return folder, federation


def _is_confirmed(federation: FederationFile, code: str) -> bool:
    """Whether the site's people have compared the federation's code by telephone."""
    if code:
        return code.strip().lower() == federation.code()
    if not sys.stdin.isatty():
        raise UserError(
            f"the federation's code is {federation.code()}: if the operator says the same by"
            " telephone, start once with --confirm and the code"
        )
    what = "sums over the sites only" if federation.secure else "each site's model"
    typer.echo(f"the server {federation.address} sees {what}")
    print_line(f"sites: {', '.join(federation.sites)}")
    typer.echo(f"the federation's code: {federation.code()}")
    others = ", and do the other sites," if federation.secure else ""
    return typer.confirm(f"does the operator{others} say the same code by telephone?")
