"""A site's folder: its private keys, and what the operator's file says.

`feddraw site key` makes the folder, `feddraw site start` reads the operator's file into it. The
node's memory is here too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import tomli_w
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.own_tables import find_table
from feddraw.data.table_columns import read_columns
from feddraw.errors import UserError
from feddraw.flower.app_signatures import SIGNATURE_SUFFIX, Signatures
from feddraw.flower.exchange_files import (
    SITE_SUFFIX,
    FederationFile,
    SiteFile,
    read_federation_file,
    read_site_file,
    site_file_text,
)
from feddraw.secure.sums.signing_keys import (
    check_site_name,
    new_signing_key,
    read_operator_public_key,
    read_site_key,
    site_directory_line,
    write_key_file,
)
from feddraw.system.file_writing import make_folder, write_whole


@dataclass(frozen=True)
class SiteFolder:
    """Where each file of a site is."""

    path: Path

    @property
    def node_key(self) -> Path:
        return self.path / "node.key"

    @property
    def signing_key(self) -> Path:
        return self.path / "signing.key"

    @property
    def federation(self) -> Path:
        """The operator's file that was read last."""
        return self.path / "federation.toml"

    @property
    def confirmed(self) -> Path:
        """The code that this site's people compared by telephone."""
        return self.path / "confirmed-code"

    @property
    def certificate(self) -> Path:
        return self.path / "ca.crt"

    @property
    def operator(self) -> Path:
        return self.path / "operator.key.pub"

    @property
    def signatures(self) -> Path:
        return self.path / "signatures"

    @property
    def sites(self) -> Path:
        return self.path / "sites.toml"

    @property
    def policy(self) -> Path:
        return self.path / "policy.toml"

    @property
    def memory(self) -> Path:
        return self.path / "memory"

    def site_file(self) -> Path:
        """The file for the operator; there is one, and it has the site's name."""
        files = list(self.path.glob(f"*{SITE_SUFFIX}"))
        if len(files) != 1:
            raise UserError(
                f"{self.path} is no site's folder: make one with `feddraw site key {self.path}`"
            )
        return files[0]


def make_site_folder(folder: SiteFolder, name: str) -> SiteFile:
    """Make a site's keys (0600) and the file with their public halves; nothing is overwritten."""
    check_site_name(name)
    if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise UserError(f"{folder.path} exists: choose a new folder; keys are never overwritten")
    make_folder(folder.path, private=True)
    node_key = ec.generate_private_key(ec.SECP384R1())
    node_private = node_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    node_public = node_key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    write_key_file(folder.node_key, node_private, 0o600)
    signing_public = new_signing_key(folder.signing_key)
    site = SiteFile(name=name, node=node_public.decode(), signing=signing_public)
    text = site_file_text(site, read_site_key(folder.signing_key))
    write_whole(folder.path / f"{name}{SITE_SUFFIX}", text.encode())
    return site


def accept_federation(
    file: Path, folder: SiteFolder, confirm: Callable[[FederationFile], bool]
) -> FederationFile:
    """Read the operator's file into the site's folder.

    `confirm` is asked whether the federation's code is the one that the site's people compared by
    telephone: at the first file, and whenever the keys that the code stands for have changed.
    """
    federation = read_federation_file(file)
    site = read_site_file(folder.site_file())
    if federation.sites.get(site.name) != site.signing:
        raise UserError(
            f"{file} does not list this site: send {folder.site_file()} to the operator, who"
            " includes it with `feddraw operator invite`"
        )
    if folder.federation.exists():
        known = read_federation_file(folder.federation)
        if known.issued > federation.issued:
            raise UserError(
                f"{file} of {federation.issued} is older than the one that this site has, of"
                f" {known.issued}: use the newest"
            )
    code = federation.code()
    if not folder.confirmed.exists() or folder.confirmed.read_text().strip() != code:
        if not confirm(federation):
            raise UserError(f"the federation's code {code} is not confirmed: nothing was started")
        write_whole(folder.confirmed, f"{code}\n".encode(), private=True)
    _write_parts(federation, folder)
    write_whole(folder.federation, file.read_bytes())
    return federation


def _write_parts(federation: FederationFile, folder: SiteFolder) -> None:
    """The parts of the operator's file, each in the form that a node reads."""
    write_whole(folder.certificate, federation.certificate.encode())
    operator_line = f"{federation.operator}\n"
    if folder.operator.exists() and folder.operator.read_text() != operator_line:
        for old in folder.signatures.glob(f"*{SIGNATURE_SUFFIX}"):
            old.unlink()  # of a key that does not count any more
    write_whole(folder.operator, operator_line.encode())
    lines = [site_directory_line(name, key) for name, key in federation.sites.items()]
    write_whole(folder.sites, ("\n".join(lines) + "\n").encode())
    if federation.policy:
        write_whole(folder.policy, tomli_w.dumps({"policy": federation.policy}).encode())
    else:
        folder.policy.unlink(missing_ok=True)
    make_folder(folder.signatures)
    for text in federation.signatures:
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        write_whole(folder.signatures / f"{digest}{SIGNATURE_SUFFIX}", text.encode())


def check_site_signatures(folder: SiteFolder) -> None:
    """Stop at a signature that is not the operator's, or was changed since it was sent."""
    given = Signatures(folder.signatures, read_operator_public_key(folder.operator))
    _, complaints = given.read()
    if complaints:
        raise UserError(f"{complaints[0]}: remove the file")


def node_settings(
    federation: FederationFile, folder: SiteFolder, data: Path | None
) -> dict[str, str]:
    """A node's settings (`--node-config`) that follow from the site's folder."""
    settings = {
        "client": read_site_file(folder.site_file()).name,
        "memory": str(folder.memory.resolve()),
    }
    if data is not None:
        if data.is_file():
            raise UserError(f"--data takes the folder, not the table in it: --data {data.parent}")
        if not data.is_dir():
            raise UserError(f"--data: there is no folder {data}")
        # Both say what is missing or cannot be read: better now than in the first round.
        read_columns(CsvSheet.of(find_table(data)))
        settings["data"] = str(data.resolve())
    if federation.policy:
        settings["policy"] = str(folder.policy.resolve())
    if federation.secure:  # a node with a key takes part in secure sums and in nothing else
        settings["key"] = str(folder.signing_key.resolve())
        settings["sites"] = str(folder.sites.resolve())
    return settings


def node_settings_as_text(settings: Mapping[str, str], more: str) -> str:
    """Settings in the form of `--node-config`. What the user typed (`more`) replaces ours of the
    same name.
    """
    from feddraw.flower.supernode import parse_node_config

    given = parse_node_config(more)
    words = []
    for name, value in settings.items():
        if '"' in value:
            raise UserError(f"{value}: Flower's settings cannot hold a quotation mark")
        if name not in given:
            words.append(f"{name}={json.dumps(value, ensure_ascii=False)}")
    return " ".join([*words, more]).strip()


def different_versions(federation: FederationFile) -> list[str]:
    """Packages of which this site has another version than the operator, in words."""
    differences = []
    for package, version in federation.versions.items():
        try:
            here = public_version(package)
        except metadata.PackageNotFoundError:
            here = "none"
        if here != version:
            differences.append(f"{package} {here} here, {version} at the operator")
    return differences


def public_version(package: str) -> str:
    """The installed version, without a builder's own addition such as `+cpu`."""
    return metadata.version(package).partition("+")[0]
