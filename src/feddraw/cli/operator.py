"""`feddraw operator`: the key of a federation's operator, and the signatures that sites ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from feddraw.errors import UserError

app = typer.Typer(
    name="operator",
    no_args_is_help=True,
    help="For a federation's operator: make a key, sign apps for the sites.",
)


@app.command("key")
def make_operator_key(
    path: Annotated[
        Path, Argument(help="Private key to write; PATH.pub beside it is for the sites.")
    ],
    passphrase: Annotated[
        bool, Option("--passphrase", help="Ask for a passphrase to lock the private key.")
    ] = False,
) -> None:
    """Make an Ed25519 key pair.

    Do it on a machine of your own: the private key must never be on the server.
    """
    from feddraw.secure.sums.signing_keys import key_fingerprint, new_signing_key

    secret = (
        typer.prompt("passphrase", hide_input=True, confirmation_prompt=True) if passphrase else ""
    )
    line = new_signing_key(path, secret)
    typer.echo(f"{path} is your private key: keep it, and keep it off the server")
    typer.echo(f"send {path}.pub to every site, but not through the server; ", nl=False)
    typer.echo(f"ask them to check its fingerprint by telephone:\n{key_fingerprint(line)}")


@app.command("sign")
def sign_app(
    bundle: Annotated[
        Path, Argument(metavar="APP", help="The app's folder, or its .fab from `flwr build`.")
    ],
    key: Annotated[Path, Option(help="The private key of `feddraw operator key`.")],
    days: Annotated[float, Option(help="Days that the signature is valid.")] = 365.0,
    out: Annotated[
        Path | None,
        Option(help="Signature file to write (default: the app's name and hash, in this folder)."),
    ] = None,
) -> None:
    """Sign an app: its name, version and SHA-256, the time and an expiry.

    Sites run what is signed and nothing else.
    """
    from feddraw.flower.app_signatures import sign_bundle, signature_file_name
    from feddraw.flower.supernode import read_app_bundle
    from feddraw.secure.sums.signing_keys import read_private_key
    from feddraw.system.file_writing import write_whole

    made = read_app_bundle(bundle)
    target = out or Path(signature_file_name(made))
    if not target.parent.is_dir():
        raise UserError(f"cannot write {target}: there is no folder {target.parent}")
    text = sign_bundle(
        made,
        read_private_key(key, lambda: str(typer.prompt("passphrase", hide_input=True))),
        days=days,
    )
    write_whole(target, text.encode())
    typer.echo(f"{made.app} {made.version}, SHA-256 {made.sha256}")
    typer.echo(
        f"wrote {target}: sites put it in the folder that `feddraw site start --signatures` names"
    )
