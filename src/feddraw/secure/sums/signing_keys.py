"""Ed25519 keys in files: who signs, and whose signature is whose.

A private key is PEM (0600); beside it NAME.pub is one line as ssh writes it. A directory of sites
is a TOML file of such lines by name. It protects only if it did not come through the server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import string
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from feddraw.errors import UserError
from feddraw.system.file_reading import parse_toml

LARGEST_KEY_FILE = 64 * 1024  # bytes of a key or of a signature
LARGEST_DIRECTORY = 16 * 1024 * 1024
# Letters of a name that TOML wants no quotes for.
BARE_TOML_LETTERS = string.ascii_letters + string.digits + "_-"
# A name is signed, becomes a file's name, and a part of the settings NAME=FINGERPRINT,…
SITE_NAME = re.compile(r"\w[\w .-]{0,62}\w|\w")
# What makes keys of each kind.
OPERATOR_KEY_COMMAND = "feddraw operator init"
SITE_KEY_COMMAND = "feddraw site key"

SiteDirectory = Mapping[str, Ed25519PublicKey]


def new_signing_key(path: Path, passphrase: str = "") -> str:
    """Write a private key (0600) and beside it NAME.pub; returns the public line."""
    private = Ed25519PrivateKey.generate()
    lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        lock = serialization.BestAvailableEncryption(passphrase.encode())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    line = public_line(private.public_key())
    public = path.with_name(path.name + ".pub")
    for file in (path, public):
        if os.path.lexists(file):
            raise UserError(f"{file} exists: choose another name; a key is never overwritten")
    write_key_file(path, private.private_bytes(*form, lock), 0o600)
    write_key_file(public, f"{line}\n".encode(), 0o644)
    return line


def write_key_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file that does not exist yet, with these rights from the beginning."""
    try:
        # Never through a link, never over a file.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def read_private_key(
    path: Path, ask: Callable[[], str], made_by: str = OPERATOR_KEY_COMMAND
) -> Ed25519PrivateKey:
    """A private key; `ask` is called if it has a passphrase."""
    content = read_key_file(path)
    try:
        try:
            key = serialization.load_pem_private_key(content, password=None)
        except TypeError:  # how cryptography says that there is a passphrase
            key = serialization.load_pem_private_key(content, password=ask().encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError(
            f"{path} is no private key of `{made_by}`, or the passphrase is wrong"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{path} is no Ed25519 key: make one with `{made_by}`")
    return key


def read_site_key(path: Path) -> Ed25519PrivateKey:
    """A site's signing key: without a passphrase, as nobody is there to type it, and for its owner
    only.
    """
    if path.is_file() and path.stat().st_mode & 0o077:
        raise UserError(f"{path} can be read by others: close it with `chmod 600 {path}`")

    def ask() -> str:
        raise UserError(
            f"{path} has a passphrase, and a node cannot type it: make a key with"
            f" `{SITE_KEY_COMMAND}`"
        )

    return read_private_key(path, ask, SITE_KEY_COMMAND)


def read_operator_public_key(path: Path) -> Ed25519PublicKey:
    """An operator's public key, one line that begins with ssh-ed25519."""
    return public_key_of_line(read_key_file(path).strip(), str(path), OPERATOR_KEY_COMMAND)


def public_key_of_line(line: bytes, where: str, made_by: str) -> Ed25519PublicKey:
    """A public key as ssh writes it; `where` and `made_by` are for the message if it is none."""
    try:
        key = serialization.load_ssh_public_key(line)
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(
            f"{where} is no public key: it must be a line that begins with ssh-ed25519"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise UserError(f"{where} is no Ed25519 key: ask for the .pub of `{made_by}`")
    return key


def public_line(key: Ed25519PublicKey) -> str:
    return key.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()


def key_fingerprint(line: str) -> str:
    """The public key's fingerprint as `ssh-keygen -l` prints it, to be compared by telephone."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def read_key_file(path: Path, largest: int = LARGEST_KEY_FILE) -> bytes:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        if path.stat().st_size > largest:
            raise UserError(f"{path} is too large for a key or a signature")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def check_site_name(name: str) -> None:
    """Raise unless people and every file can tell this name from all others."""
    if not SITE_NAME.fullmatch(name):
        shown = name[:80]
        if not shown.isprintable():
            shown = ascii(shown)[1:-1]  # characters that nobody sees, by their numbers
        raise UserError(
            f"'{shown}' is no name for a site: use letters, digits, '_', '-', '.' and blanks,"
            " at most 64"
        )


def site_directory_line(name: str, line: str) -> str:
    """A site's line of the directory, as TOML."""
    bare = bool(name) and all(letter in BARE_TOML_LETTERS for letter in name)
    return f'{name if bare else json.dumps(name, ensure_ascii=False)} = "{line}"'


def site_of_key(directory: SiteDirectory, key: Ed25519PublicKey) -> str:
    """What the directory calls the site with this key."""
    for name, other in directory.items():
        if other.public_bytes_raw() == key.public_bytes_raw():
            return name
    raise UserError(
        "this site's own key is not in its directory of sites: add its line to the file"
    )


def read_site_directory(path: Path) -> dict[str, Ed25519PublicKey]:
    """The public keys of all sites by name: TOML lines such as `North = "ssh-ed25519 AAAA…"`."""
    try:
        lines = parse_toml(read_key_file(path, LARGEST_DIRECTORY).decode())
    except (ValueError, RecursionError):
        raise UserError(
            f'{path} is no directory of sites: its lines are like North = "ssh-ed25519 AAAA…"'
        ) from None
    directory: dict[str, Ed25519PublicKey] = {}
    owners: dict[bytes, str] = {}
    for name, line in lines.items():
        check_site_name(name)
        if not isinstance(line, str):
            raise UserError(f'{path}: {name} must be a public key, {name} = "ssh-ed25519 AAAA…"')
        directory[name] = public_key_of_line(
            line.strip().encode(), f"{path}: {name}", SITE_KEY_COMMAND
        )
        other = owners.setdefault(directory[name].public_bytes_raw(), name)
        if other != name:
            raise UserError(
                f"{path}: {other} and {name} have the same key; every site needs its own"
            )
    return directory


def site_directory_from(given: SiteDirectory | Path | str | None) -> SiteDirectory | None:
    """The sites' public keys, also from their file."""
    return read_site_directory(Path(given)) if isinstance(given, Path | str) else given
