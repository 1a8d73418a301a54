"""The operator's signature of an app bundle: what a site asks for before it runs an app that the
server sends.

A signature is a text file of two lines: a statement in JSON, and the Ed25519 signature of exactly
that line. The statement names the app (publisher/name), its version, the bundle's SHA-256, the time
of signing and an expiry. A site keeps the signatures that it was given in a folder of its own, so
the server cannot bring an old one back.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from feddraw.errors import UserError, positive
from feddraw.secure.sums.signing_keys import read_key_file

PURPOSE = "feddraw app bundle 1"  # so that a signature made for anything else never counts here
TIME = "%Y-%m-%dT%H:%M:%SZ"
TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
SIGNATURE_SUFFIX = ".signature"
MOST_SIGNED_DAYS = 3660.0  # days that a signature may count


class AppRefused(UserError):
    """An app that this site does not run."""


@dataclass(frozen=True)
class AppBundle:
    """An app as it travels: the bytes of its .fab, and what these say they are."""

    content: bytes
    app: str  # publisher/name
    version: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class SignedAppStatement:
    """What the operator signs."""

    app: str
    version: str
    sha256: str
    signed: str  # ISO 8601, UTC, to the second: as text they sort by time
    expires: str
    purpose: str = PURPOSE


def sign_bundle(
    bundle: AppBundle, key: Ed25519PrivateKey, *, days: float, now: datetime | None = None
) -> str:
    """The text of a signature file."""
    if positive("--days", days) > MOST_SIGNED_DAYS:
        raise UserError(f"--days must be at most {MOST_SIGNED_DAYS:.0f}")
    signed = now or datetime.now(UTC)
    statement = SignedAppStatement(
        app=bundle.app,
        version=bundle.version,
        sha256=bundle.sha256,
        signed=_time_as_text(signed),
        expires=_time_as_text(signed + timedelta(days=days)),
    )
    line = json.dumps(asdict(statement))
    signature = base64.b64encode(key.sign(line.encode())).decode()
    return f"{line}\n{signature}\n"


def _time_as_text(time: datetime) -> str:
    return time.astimezone(UTC).strftime(TIME)


def read_signed_statement(path: Path, operator: Ed25519PublicKey) -> SignedAppStatement:
    """What the operator has signed in this file; nothing of it is looked at before the signature is
    found right.
    """
    lines = read_key_file(path).splitlines()
    try:
        line, signature = lines
        operator.verify(base64.b64decode(signature, validate=True), line)
    except (ValueError, InvalidSignature):
        raise UserError(f"{path} is not signed with the operator's key") from None
    try:
        fields: dict[str, Any] = json.loads(line)
        statement = SignedAppStatement(**fields)
    except (ValueError, TypeError, RecursionError):
        raise UserError(f"{path} is no signature that this version knows") from None
    only_text = all(isinstance(value, str) for value in fields.values())
    if statement.purpose != PURPOSE or not only_text:
        raise UserError(f"{path} is no signature of an app bundle that this version knows")
    if not all(map(TIME_PATTERN.fullmatch, (statement.signed, statement.expires))):
        raise UserError(f"{path} has times that this version does not know")
    return statement


@dataclass(frozen=True)
class Signatures:
    """The signatures that a site was given: a file, or a folder of them, read anew for
    every run.
    """

    path: Path
    operator: Ed25519PublicKey

    def read(self) -> tuple[list[SignedAppStatement], list[str]]:
        """What counts, and what is wrong with the other files."""
        files = [self.path]
        if self.path.is_dir():
            files = sorted(self.path.glob(f"*{SIGNATURE_SUFFIX}"))
        statements: list[SignedAppStatement] = []
        complaints: list[str] = []
        for file in files:
            try:
                statements.append(read_signed_statement(file, self.operator))
            except UserError as complaint:
                complaints.append(str(complaint))
        return statements, complaints

    def check(
        self, content: bytes, app: str, version: str, now: datetime | None = None
    ) -> SignedAppStatement:
        """The signature under which these bytes may be unpacked; `app` and `version` are the
        server's words.
        """
        digest = hashlib.sha256(content).hexdigest()
        statements, complaints = self.read()
        of_bundle = [statement for statement in statements if statement.sha256 == digest]
        if not of_bundle:
            others = f" ({'; '.join(complaints)})" if complaints else ""
            raise AppRefused(
                f"the operator has not signed this bundle (SHA-256 {digest[:16]}…){others}"
            )
        newest = max(of_bundle, key=_signed)
        if (newest.app, newest.version) != (app, version):
            raise AppRefused(
                f"the bundle is signed as {newest.app} {newest.version}, not as what the server"
                " calls it"
            )
        if newest.expires <= _time_as_text(now or datetime.now(UTC)):
            raise AppRefused(
                f"the signature of {app} {version} expired at {newest.expires}: ask the operator"
                " for a new one"
            )
        of_app = [statement for statement in statements if statement.app == app]
        latest = max(of_app, key=_signed)
        if latest.signed > newest.signed:
            raise AppRefused(
                f"{app} {version} was replaced by {latest.version}, signed at {latest.signed}"
            )
        return newest


def _signed(statement: SignedAppStatement) -> str:
    return statement.signed
