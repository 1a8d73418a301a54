"""`feddraw site`: a hospital's node of a federation, which runs only what the operator has
signed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from feddraw.errors import UserError

app = typer.Typer(
    name="site",
    no_args_is_help=True,
    help="For a site of a federation: make its signing key, start its node.",
)


@app.command("key")
def make_site_key(
    path: Annotated[
        Path, Argument(help="Private key to write; PATH.pub beside it is for all other sites.")
    ],
    name: Annotated[
        str, Option(help="The site's name in the federation and in the directory of sites.")
    ] = "NAME",
) -> None:
    """Make the key with which this site signs its part of secure sums.

    The private key stays at the site.
    """
    from feddraw.secure.sums.signing_keys import (
        key_fingerprint,
        new_signing_key,
        site_directory_line,
    )

    line = new_signing_key(path)
    typer.echo(
        f"{path} is this site's private key: name it in the node's settings, --node-config"
        f" 'key=\"{path}\"'"
    )
    typer.echo(
        "send this line to all sites, but not through the server; each adds it to its directory of"
        " sites:"
    )
    typer.echo(site_directory_line(name, line))
    typer.echo(f"ask them to check its fingerprint by telephone: {key_fingerprint(line)}")


@app.command("start")
def start_site(
    superlink: Annotated[str, Option(help="The server's address, NAME:PORT.")],
    key: Annotated[
        Path, Option(help="This site's private key; the operator has registered its public half.")
    ],
    operator: Annotated[
        Path, Option(help="The operator's public key; do not take it from the server.")
    ],
    signatures: Annotated[
        Path, Option(help="A signature from the operator, or a folder of them (*.signature).")
    ],
    root_certificates: Annotated[
        Path | None,
        Option(help="The authority that signed the server's certificate (default: the system's)."),
    ] = None,
    node_config: Annotated[
        str,
        Option(
            help="As for flower-supernode: "
            """'data="/srv/xrays" client="North" memory="/srv/feddraw"'."""
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
    from feddraw.flower.app_signatures import Signatures
    from feddraw.flower.supernode import (
        check_certificates,
        check_node_config,
        check_superlink,
        node_key_fingerprint,
        refuse_unknown_flower,
    )
    from feddraw.secure.sums.signing_keys import read_operator_public_key

    refuse_unknown_flower()
    check_superlink(superlink)
    fingerprint = node_key_fingerprint(key)
    if root_certificates is not None:
        check_certificates(root_certificates)
    if not signatures.exists():
        raise UserError(
            f"there is no {signatures}: it must be a signature from the operator, or a folder of"
            " them"
        )
    given = Signatures(signatures, read_operator_public_key(operator))
    complaints = given.read()[1]
    if complaints:
        raise UserError(
            f"{complaints[0]}: remove the file, or check that {operator} is the operator's key"
        )
    check_node_config(node_config)
    arguments = ["--superlink", superlink, "--auth-supernode-private-key", str(key)]
    arguments += ["--host", "127.0.0.1", "--port", str(port)]
    if root_certificates is not None:
        arguments += ["--root-certificates", str(root_certificates)]
    if node_config:
        arguments += ["--node-config", node_config]

    from feddraw.flower.node_process import NodeOrder
    from feddraw.flower.node_supervision import start_supernode

    order = NodeOrder(
        signatures=str(signatures),
        operator=str(operator),
        arguments=arguments,
        superlink=superlink,
        key_fingerprint=fingerprint,
    )
    start_supernode(order, port)
