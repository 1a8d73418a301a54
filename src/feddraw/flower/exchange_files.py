"""The two files that a federation's operator and a site exchange, one in each direction.

A site sends its public keys (`NAME.site.toml`). The operator sends every site the same file
(`federation.toml`): the server's address and certificate, the operator's public key, the signatures
of the app, and the sites' public keys. Both are TOML and end with a signature of all lines before
it, so that a change on the way is noticed. Neither holds a private key.

A signature shows that the file belongs to the key that it names. Whether that key is the right one
is compared by telephone: the fingerprint of a site's key, and the code of a federation.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddraw.errors import UserError
from feddraw.flower.app_signatures import TIME_PATTERN
from feddraw.flower.certificates import check_root_certificates
from feddraw.secure.sums.signing_keys import check_site_name, public_key_of_line, read_key_file
from feddraw.system.file_reading import parse_toml
from feddraw.text import safe_line

SITE_PURPOSE = "feddraw site 1"
FEDERATION_PURPOSE = "feddraw federation 1"
SITE_SUFFIX = ".site.toml"
SIGNATURE_LINE = "# signature "
LARGEST_EXCHANGE_FILE = 4 * 1024 * 1024
ADDRESS = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
SITE_COMMENT = """\
# The public keys of a site. Send this file to the federation's operator.
"""
FEDERATION_COMMENT = """\
# For every site of this federation: feddraw site start federation.toml --site FOLDER --data FOLDER
# It holds no private keys. It is signed by the operator; a changed file is refused.
"""


@dataclass(frozen=True)
class SiteFile:
    """A site's public keys, which it sends to the operator."""

    name: str
    node: str  # with which its node connects: a line that begins with ecdsa-sha2-nistp384
    signing: str  # with which it signs this file, and its part of secure sums: ssh-ed25519


@dataclass(frozen=True)
class FederationFile:
    """What a site must know to take part, which the operator sends to every site."""

    issued: str  # ISO 8601, UTC, to the second: as text they sort by time
    address: str  # NAME:PORT
    operator: str  # the operator's public key, a line that begins with ssh-ed25519
    certificate: str  # of the authority that signed the server's certificate, PEM
    secure: bool  # whether the server sees sums over the sites only
    signatures: list[str]  # of the apps that sites may run: the texts of signature files
    sites: Mapping[str, str]  # name to public signing key
    versions: Mapping[str, str]  # of packages at the operator, to compare with
    policy: Mapping[str, Any] = field(default_factory=dict)  # agreed limits; empty: not agreed on

    def code(self) -> str:
        """What is compared by telephone: a hash of the operator's key, and under secure sums of
        the sites' names and keys.

        Who has the same code has the same keys. Everything else in the file is covered by the
        operator's signature.
        """
        keys = sorted(self.sites.items()) if self.secure else []
        agreed = json.dumps([FEDERATION_PURPOSE, self.operator, self.secure, keys])
        digits = hashlib.sha256(agreed.encode()).hexdigest()[:40]
        return "-".join(digits[start : start + 4] for start in range(0, len(digits), 4))


# ------------------------------------------------------------------------------------------ writing


def site_file_text(site: SiteFile, key: Ed25519PrivateKey) -> str:
    """The text of a site's file, signed with its own signing key."""
    return _signed_text({"purpose": SITE_PURPOSE} | asdict(site), SITE_COMMENT, key)


def federation_file_text(federation: FederationFile, key: Ed25519PrivateKey) -> str:
    """The text of the operator's file, signed with the operator's key."""
    document = {"purpose": FEDERATION_PURPOSE} | asdict(federation)
    return _signed_text(document, FEDERATION_COMMENT, key)


def _signed_text(document: Mapping[str, Any], comment: str, key: Ed25519PrivateKey) -> str:
    body = comment + tomli_w.dumps(document, multiline_strings=True)
    signature = base64.b64encode(key.sign(body.encode())).decode()
    return f"{body}{SIGNATURE_LINE}{signature}\n"


# ------------------------------------------------------------------------------------------ reading


def read_site_file(path: Path) -> SiteFile:
    """A site's public keys; raises if the file was changed, or is of another kind."""
    document = _read_signed(path, SITE_PURPOSE, key_field="signing", made_by="feddraw site key")
    site = SiteFile(**_exact_fields(document, path, {"name": str, "node": str, "signing": str}))
    check_site_name(site.name)
    _check_node_key(site.node, path)
    return site


def read_federation_file(path: Path) -> FederationFile:
    """What the operator sent; raises if the file was changed, or is of another kind.

    Whether the operator is the right one is for the caller to check.
    """
    document = _read_signed(
        path, FEDERATION_PURPOSE, key_field="operator", made_by="feddraw operator invite"
    )
    kinds = {
        "issued": str,
        "address": str,
        "operator": str,
        "certificate": str,
        "secure": bool,
        "signatures": list,
        "sites": dict,
        "versions": dict,
        "policy": dict,
    }
    federation = FederationFile(**_exact_fields(document, path, kinds))
    split_address(federation.address)
    check_root_certificates(federation.certificate.encode(), f"{path}: certificate")
    texts = [*federation.signatures, *federation.sites.values(), *federation.versions.values()]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"{path} is no file of a federation that this version knows")
    if not TIME_PATTERN.fullmatch(federation.issued):
        raise UserError(f"{path} has a time that this version does not know")
    for name, line in federation.sites.items():
        check_site_name(name)
        public_key_of_line(line.encode(), f"{path}: {name}", "feddraw site key")
    return federation


def split_address(address: str) -> tuple[str, int]:
    """The server's name and port."""
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UserError(
            f"'{safe_line(address[:80])}' is no address of a server: it must be NAME:PORT, such as"
            " federation.example.org:443"
        )
    return match[1].strip("[]"), int(match[2])


def _read_signed(path: Path, purpose: str, *, key_field: str, made_by: str) -> dict[str, Any]:
    """The fields of a file, after its signature is found to be that of the key it names."""
    content = read_key_file(path, LARGEST_EXCHANGE_FILE)
    body, marker, signature = content.rpartition(f"\n{SIGNATURE_LINE}".encode())
    body += b"\n"
    try:
        document = parse_toml(body.decode())
    except (ValueError, RecursionError):
        document = {}
    if not marker or document.get("purpose") != purpose:
        raise UserError(
            f"{path} is not a file of `{made_by}`, or was cut off or changed: ask for it again"
        )
    line = str(document.get(key_field, "")).encode()
    key = public_key_of_line(line, f"{path}: {key_field}", made_by)
    try:
        key.verify(base64.b64decode(signature.strip(), validate=True), body)
    except (ValueError, InvalidSignature):
        raise UserError(
            f"{path} was changed after it was signed: ask for it again, and do not use this one"
        ) from None
    del document["purpose"]
    return document


def _exact_fields(
    document: dict[str, Any], path: Path, kinds: Mapping[str, type]
) -> dict[str, Any]:
    known = document.keys() == kinds.keys()
    if not known or not all(isinstance(document[name], kind) for name, kind in kinds.items()):
        raise UserError(f"{path} comes from another version of feddraw: use the same one as it")
    return document


def _check_node_key(line: str, path: Path) -> None:
    try:
        key = serialization.load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{path}: node is no ECDSA key of `feddraw site key`")
