"""`feddraw operator`: the files of a federation, the signatures that sites ask for, and who is
connected.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from feddraw.cli.terminal import console, print_json, print_line, table

app = typer.Typer(
    name="operator",
    no_args_is_help=True,
    help="For a federation's operator: write its files, invite sites, see who is connected.",
)


@app.command("init")
def make_federation(
    folder: Annotated[Path, Argument(help="New folder to write, on a machine of your own.")],
    address: Annotated[
        str, Option(help="The server's name that sites connect to, NAME or NAME:PORT (443).")
    ],
    server_folder: Annotated[
        str, Option(help="Where FOLDER/server will be on the server; its files name this path.")
    ] = "/etc/feddraw",
    secure: Annotated[
        bool, Option("--secure", help="The server sees sums over the sites only.")
    ] = False,
    passphrase: Annotated[
        bool, Option("--passphrase", help="Ask for a passphrase to lock your private key.")
    ] = False,
) -> None:
    """Write all files that an operator needs: keys, certificates, nginx, the app, services.

    Do it on a machine of your own: FOLDER/private must never be on the server.
    """
    from feddraw.flower.operator_folder import OperatorFolder, make_operator_folder

    made = OperatorFolder(folder)
    make_operator_folder(
        made,
        address=address,
        place=server_folder,
        secure=secure,
        passphrase=_new_passphrase() if passphrase else "",
    )
    print_line(f"{made.private}: your private keys; keep them, and keep them off the server")
    print_line(f"{made.server}: copy it to {server_folder} on the server, after `invite`")
    print_line(f"{made.path / 'constraints.txt'}: send it to the sites, which install with it")
    print_line("next: every site runs `feddraw site key NAME` and sends you NAME.site.toml;")
    print_line(f"then: feddraw operator invite {folder} NAME.site.toml NAME.site.toml …")


@app.command("invite")
def invite(
    folder: Annotated[Path, Argument(help="The folder of `feddraw operator init`.")],
    sites: Annotated[
        list[Path] | None,
        Argument(metavar="[NAME.site.toml]...", help="Files that sites sent since the last time."),
    ] = None,
    days: Annotated[float, Option(help="Days that the app's signature is valid.")] = 365.0,
) -> None:
    """Sign the app, and write the one file that every site gets.

    Do it again when a site joins or when the app was changed.
    """
    from feddraw.flower.operator_folder import OperatorFolder, invite_sites
    from feddraw.secure.sums.signing_keys import key_fingerprint

    made = OperatorFolder(folder)
    federation = invite_sites(made, sites or [], days=days, ask_passphrase=_ask_passphrase)
    typer.echo("compare each site's fingerprint with its people by telephone:")
    for name, key in federation.sites.items():
        print_line(f"  {name}  {key_fingerprint(key)}")
    print_line(f"send {made.federation} to every site; each asks you for the federation's code:")
    typer.echo(f"  {federation.code()}")
    if federation.secure:
        print_line("the sites also compare it with each other: then nobody else has keys in it")
    print_line(f"copy {made.server} to the server")


@app.command("renew")
def renew_certificate(
    folder: Annotated[Path, Argument(help="The folder of `feddraw operator init`.")],
) -> None:
    """Make a new TLS certificate for the server; sites change nothing."""
    from feddraw.flower.exchange_files import split_address
    from feddraw.flower.operator_folder import (
        OperatorFolder,
        read_operator_settings,
        write_server_certificate,
    )

    made = OperatorFolder(folder)
    host, _ = split_address(read_operator_settings(made).address)
    write_server_certificate(made, host)
    print_line(
        f"copy {made.server / 'server.pem'} and {made.server / 'server.key'} to the server; restart"
        " the SuperLink and reload nginx"
    )


@app.command("sites")
def list_sites(
    connection: Annotated[
        str | None,
        Argument(help="The SuperLink's name in Flower's configuration (default: its default)."),
    ] = None,
    run: Annotated[
        Path | None,
        Option(help="Folder of a run on this server: its names, and what each site did in it."),
    ] = None,
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the registered sites: name, key, last seen, rounds, seconds per round.

    On the server, where `flwr` works.
    """
    from feddraw.flower.registered_sites import UNKNOWN, list_nodes, registered_sites

    sites = registered_sites(list_nodes(connection), run)
    if json:
        print_json([asdict(site) for site in sites])
        return
    rows = [
        [
            site.name or UNKNOWN,
            site.identity,
            f"{site.state}, not on the list" if site.listed is False else site.state,
            site.last_seen,
            UNKNOWN if site.rounds is None else str(site.rounds),
            UNKNOWN if site.seconds is None else f"{site.seconds:.1f}",
        ]
        for site in sites
    ]
    columns = ["site", "key", "state", "last seen", "rounds", "seconds per round"]
    console().print(table(columns, rows, left=4))
    if run is None:
        typer.echo("the list of sites, rounds and seconds are those of a run: --run FOLDER")


def _new_passphrase() -> str:
    return str(typer.prompt("passphrase", hide_input=True, confirmation_prompt=True))


def _ask_passphrase() -> str:
    return str(typer.prompt("passphrase", hide_input=True))
