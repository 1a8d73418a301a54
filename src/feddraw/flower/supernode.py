"""A site's node: Flower's SuperNode, with a check of the operator's signature before any app is
unpacked.

Everything that depends on the inside of `flower-supernode` is here. The seam is one private
function of Flower, which asks the server for a run and its bundle and stores both; nothing is
unpacked before it returns. Another version of Flower may work differently, so only versions that
were read and tested are accepted.
"""

from __future__ import annotations

import hashlib
import warnings
import zipfile
from collections.abc import Callable
from functools import wraps
from importlib import metadata
from logging import ERROR, INFO
from pathlib import Path
from typing import Any, TypeVar

import click
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_private_key
from flwr.app import Error, Message

from feddraw.errors import RunFailed, UserError
from feddraw.flower.app_signatures import AppBundle, AppRefused, Signatures
from feddraw.flower.roster import node_fingerprint
from feddraw.secure.sums.client import NO_DIRECTORY
from feddraw.secure.sums.signing_keys import read_key_file, read_site_directory, read_site_key

KNOWN_FLOWER = ("1.41.0",)
FLOWER_VERSION = metadata.version("flwr")

try:
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.config import get_fab_config, get_metadata_from_config, parse_config_args
    from flwr.common.constant import ErrorCode
    from flwr.supercore import log
    from flwr.supercore.constant import TaskType
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supercore.run import RunNotRunningException
    from flwr.supernode import start_client_internal as loop
except ImportError:
    raise UserError(
        f"signatures need Flower {KNOWN_FLOWER[-1]}, and this is {FLOWER_VERSION}: start nodes of"
        " older versions with flower-supernode itself, which runs every app that the server sends"
    ) from None

SUPERNODE_COMMAND = "flower-supernode"

Answer = TypeVar("Answer")


def refuse_unknown_flower(version: str = FLOWER_VERSION) -> None:
    """With an unknown Flower the check could be bypassed silently: do not start."""
    if version not in KNOWN_FLOWER:
        raise UserError(
            f"signatures cannot be checked with Flower {version}, only with"
            f" {' or '.join(KNOWN_FLOWER)}: pip install 'flwr=={KNOWN_FLOWER[-1]}', or a newer"
            " feddraw"
        )


def read_app_bundle(path: Path) -> AppBundle:
    """An app as `flwr run` would send it from its folder."""
    if not path.is_dir():
        raise UserError(f"there is no folder {path} with an app")
    try:
        content = build_fab_from_disk(path)
        app, version = get_metadata_from_config(get_fab_config(content))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, click.ClickException) as error:
        why = " ".join(_message(error).split())
        raise UserError(f"{path} is no Flower app: {why}") from None
    return AppBundle(content, app, version)


def _message(error: Exception) -> str:
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def guarded_pull(
    pull: Callable[..., int | None], signatures: Signatures
) -> Callable[..., int | None]:
    """Flower's `_pull_and_store_message`, which now stores no bundle that the operator has not
    signed, and forgets a message whose run ends while it comes.
    """

    @wraps(pull)
    def pull_checked(**given: Any) -> int | None:
        seen: dict[str, Any] = {}  # the message that came, and the run that it belongs to

        def receive() -> Any:
            received = given["receive"]()
            if received is not None:
                seen["message"] = received[0]
            return received

        def get_run(run_id: int) -> Any:
            seen["run"] = given["get_run"](run_id)
            return seen["run"]

        def get_fab(fab_hash: str, run_id: int) -> Any:
            fab = given["get_fab"](fab_hash, run_id)
            check_run_signature(fab.content, seen["run"], signatures)
            return fab

        checked = {
            "receive": receive,
            "get_run": get_run,
            "get_fab": get_fab,
            "pull_object": failing_with_its_run(given["pull_object"]),
            "confirm_message_received": failing_with_its_run(given["confirm_message_received"]),
        }
        try:
            return pull(**given | checked)
        except AppRefused as reason:
            log(
                ERROR,
                "The app of run %s is refused, and nothing of it is unpacked: %s",
                seen["run"].run_id,
                reason,
            )
            refusal = Error(ErrorCode.INVALID_FAB, f"the site refuses the app: {reason}")
            answer = Message(refusal, reply_to=seen["message"])
            loop._insert_message(answer, given["state"], given["object_store"])
            return int(seen["run"].run_id)  # so that Flower sends the answer

    return pull_checked


def failing_with_its_run(request: Callable[..., Answer]) -> Callable[..., Answer]:
    """A request for a part of a message, which fails as any other where the run has ended.

    The app's process is started with the first part. Flower forgets the message and ends that
    process where a part fails to come, but not where the run has ended, as after a crash of the
    server: the process would wait for the other parts for two hours.
    """

    @wraps(request)
    def ask(*given: Any) -> Answer:
        try:
            return request(*given)
        except RunNotRunningException:
            raise RunFailed("its run has ended") from None

    return ask


def check_run_signature(content: bytes, run: Any, signatures: Signatures) -> None:
    """Raise `Refused` unless the bundle is signed and the run calls it what it is: Flower finds its
    code by that.
    """
    if hashlib.sha256(content).hexdigest() != run.fab_hash:
        raise AppRefused("the server sent another bundle than the run names")
    if run.primary_task_type != TaskType.SERVER_APP:
        raise AppRefused(
            f"the run is of the kind '{run.primary_task_type}', and sites run client apps only"
        )
    statement = signatures.check(content, run.fab_id, run.fab_version)
    log(
        INFO,
        "Signed by the operator: %s %s, until %s",
        statement.app,
        statement.version,
        statement.expires,
    )


def parse_node_config(text: str) -> dict[str, Any]:
    """A node's settings as Flower reads them: `KEY=VALUE KEY="VALUE"`."""
    try:
        settings = parse_config_args([text])
    except (click.ClickException, ValueError, OSError) as error:
        raise UserError(f"--node-config: {_message(error)}") from None
    if text.strip() and not settings:
        raise UserError(f"--node-config: '{text}' has no KEY=VALUE")
    return settings


def check_node_config(text: str) -> None:
    """Stop at settings that open a way around the checks; warn where secure sums have no directory
    of sites.

    A signature covers the app, not the run's settings: with `trust` these could name code all the
    same.
    """
    settings = parse_node_config(text)
    if settings.get("trust"):
        raise UserError(
            "trust=true lets the server name code to import, and a signature does not cover that:"
            " leave it out"
        )
    if settings.get("key"):
        read_site_key(Path(str(settings["key"])))
        if not settings.get("sites"):
            warnings.warn(
                f"{NO_DIRECTORY}; name its file with sites=… in the --node-config", stacklevel=2
            )
    if settings.get("sites"):
        read_site_directory(Path(str(settings["sites"])))


def node_key_fingerprint(path: Path) -> str:
    """The fingerprint of a node's private key, as the operator sees it."""
    try:
        key = load_ssh_private_key(read_key_file(path), None)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError(
            f"{path} is no ECDSA key without a passphrase: make one with ssh-keygen -t ecdsa -b 384"
            ' -N "" -f NAME.key'
        )
    return node_fingerprint(public_key_to_bytes(key.public_key()))
