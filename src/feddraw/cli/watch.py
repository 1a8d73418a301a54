"""`feddraw watch`: a page that follows runs while they train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from feddraw.cli.terminal import print_line


def watch(
    folder: Annotated[
        Path, Argument(help="Folder of a run, a study or a Flower server.", metavar="DIR")
    ],
    port: Annotated[
        int | None,
        Option(
            help="Port (default: one that belongs to DIR, so that an open page finds it again)."
        ),
    ] = None,
    host: Annotated[
        str, Option(help="Address to listen on; needs --expose if others can reach it.")
    ] = "127.0.0.1",
    expose: Annotated[
        bool, Option("--expose", help="Allow other machines to connect, unencrypted.")
    ] = False,
) -> None:
    """Show running and finished runs on a web page: weights, validation AUC, times, problems.

    The page reads the files that runs write, changes nothing, and reconnects after a restart. End
    it with Ctrl-C.
    """
    from feddraw.watch.server import WatchServer, require_loopback

    require_loopback(host, expose)
    server = WatchServer(folder, host=host, port=port)
    print_line(f"watching {folder}: open {server.url}")
    print_line("end with Ctrl-C; the runs go on")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
