"""The operator's folder of a federation: all files that an operator and the server need.

`feddraw operator init` writes it on the operator's own machine:

    private/        the operator's key and the authority's: never copied anywhere
    server/         copied to the server: certificates, nginx, the app, a run's settings
    sites/          what the sites sent
    constraints.txt the versions that all machines should have
    operator.toml   what was agreed on: address, secure sums, limits

`feddraw operator invite` reads the sites' files and writes `federation.toml`, the one file for
every site.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import tomli_w
from packaging.requirements import Requirement

from feddraw.errors import UserError
from feddraw.flower.app_signatures import TIME, sign_bundle
from feddraw.flower.certificates import (
    make_authority,
    make_server_certificate,
    read_root_certificates,
)
from feddraw.flower.exchange_files import (
    SITE_SUFFIX,
    FederationFile,
    SiteFile,
    federation_file_text,
    read_site_file,
    split_address,
)
from feddraw.flower.site_folder import public_version
from feddraw.flower.supernode import read_app_bundle
from feddraw.secure.sums.signing_keys import (
    key_fingerprint,
    new_signing_key,
    public_line,
    read_private_key,
    write_key_file,
)
from feddraw.server.policy import read_policy
from feddraw.system.file_reading import parse_toml
from feddraw.system.file_writing import make_folder, write_whole

DEFAULT_PORT = 443
DEFAULT_PLACE = "/etc/feddraw"  # of server/ on the server
# In the files of deployment/ these stand for what the operator names.
EXAMPLE_HOST = "federation.example.org"
EXAMPLE_LISTEN = f"listen {DEFAULT_PORT} ssl;"
FEWEST_SECURE_SITES = 3
COMPARED_PACKAGES = ("feddraw", "flwr", "torch")
SETTINGS_COMMENT = """\
# What `feddraw operator invite` tells the sites. Limits that were agreed on stand in a section
# [policy], such as cap_times = 1.5; a site with such limits does not train under others.
"""


@dataclass(frozen=True)
class OperatorFolder:
    """Where each file of the operator is."""

    path: Path

    @property
    def private(self) -> Path:
        return self.path / "private"

    @property
    def operator_key(self) -> Path:
        return self.private / "operator.key"

    @property
    def authority_key(self) -> Path:
        return self.private / "ca.key"

    @property
    def authority_certificate(self) -> Path:
        return self.private / "ca.crt"

    @property
    def server(self) -> Path:
        return self.path / "server"

    @property
    def node_keys(self) -> Path:
        return self.server / "keys"

    @property
    def run_settings(self) -> Path:
        return self.server / "run.toml"

    @property
    def sites(self) -> Path:
        return self.path / "sites"

    @property
    def settings(self) -> Path:
        return self.path / "operator.toml"

    @property
    def federation(self) -> Path:
        return self.path / "federation.toml"


@dataclass(frozen=True)
class OperatorSettings:
    """What was agreed on."""

    address: str  # NAME:PORT
    secure: bool
    policy: Mapping[str, Any]


# --------------------------------------------------------------------------------------------- init


def make_operator_folder(
    folder: OperatorFolder, *, address: str, place: str, secure: bool, passphrase: str
) -> None:
    """Write everything that the guide uses; nothing is overwritten.

    `place` is where `server/` will stand on the server: its files name each other by that path.
    """
    if ":" not in address:
        address = f"{address}:{DEFAULT_PORT}"
    host, port = split_address(address)
    if not re.fullmatch(r"/[\w./-]*\w", place):
        raise UserError(f"--server-folder: '{place}' must be an absolute path without blanks")
    if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise UserError(f"{folder.path} exists: choose a new folder; nothing is overwritten")
    make_folder(folder.path)
    make_folder(folder.private, private=True)
    make_folder(folder.server)
    make_folder(folder.sites)
    make_folder(folder.node_keys)
    new_signing_key(folder.operator_key, passphrase)
    make_authority(folder.authority_key, folder.authority_certificate)
    write_whole(folder.server / "ca.crt", folder.authority_certificate.read_bytes())
    write_server_certificate(folder, host)
    for name, text in deployment_files():
        target = folder.server / name
        make_folder(target.parent)
        write_whole(target, _with_names_of(text, host, port, place).encode())
    write_whole(folder.path / "constraints.txt", constraints().encode())
    settings = tomli_w.dumps({"address": address, "secure": secure})
    write_whole(folder.settings, (SETTINGS_COMMENT + settings).encode())


def write_server_certificate(folder: OperatorFolder, host: str) -> None:
    """A new certificate of the server, signed by the authority, in place of the one before."""
    key, certificate = make_server_certificate(
        host, folder.authority_key, folder.authority_certificate
    )
    write_whole(folder.server / "server.key", key, private=True)
    write_whole(folder.server / "server.pem", certificate)


def deployment_files() -> Iterator[tuple[str, str]]:
    """The files of `deployment/` by their paths in it, and their texts."""
    yield from _files_below(resources.files("feddraw") / "flower" / "deployment", "")


def _files_below(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.name.startswith(("__", ".")):  # what Python and Flower leave behind
            continue
        if entry.is_dir():
            yield from _files_below(entry, f"{name}/")
        else:
            yield name, entry.read_text(encoding="utf-8")


def _with_names_of(text: str, host: str, port: int, place: str) -> str:
    text = text.replace(EXAMPLE_HOST, host)
    text = text.replace(EXAMPLE_LISTEN, f"listen {port} ssl;")
    return text.replace(DEFAULT_PLACE, place)


def constraints() -> str:
    """The installed versions of feddraw and of all that it needs for a federation, for pip."""
    versions: dict[str, str] = {}
    waiting = [Requirement("feddraw[flower]")]
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another platform
            continue
        known = name in versions
        versions[name] = public_version(name)
        if known and not requirement.extras:
            continue
        for line in distribution.requires or []:
            needed = Requirement(line)
            extras = requirement.extras or {""}
            wanted = needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in extras
            )
            if wanted:
                waiting.append(needed)
    lines = [f"{name}=={version}" for name, version in sorted(versions.items())]
    head = "# Versions for all machines: pip install -c constraints.txt 'feddraw[flower]'"
    return "\n".join([head, *lines]) + "\n"


# ------------------------------------------------------------------------------------------- invite


def invite_sites(
    folder: OperatorFolder,
    files: Sequence[Path],
    *,
    days: float,
    ask_passphrase: Callable[[], str],
) -> FederationFile:
    """Take in what sites sent, sign the app, and write the one file for every site.

    Beside it, for the server: the node keys to register, and the list of sites in a run's settings.
    """
    settings = read_operator_settings(folder)
    for file in files:
        _take_in(folder, read_site_file(file), file)
    sites = [read_site_file(file) for file in sorted(folder.sites.glob(f"*{SITE_SUFFIX}"))]
    if not sites:
        raise UserError("name the files that the sites sent, such as North.site.toml")
    if settings.secure and len(sites) < FEWEST_SECURE_SITES:
        raise UserError(
            f"secure sums need at least {FEWEST_SECURE_SITES} sites, and {len(sites)} sent their"
            " files: with two, each would learn the other's part"
        )
    key = read_private_key(folder.operator_key, ask_passphrase)
    now = datetime.now(UTC)
    federation = FederationFile(
        issued=now.strftime(TIME),
        address=settings.address,
        operator=public_line(key.public_key()),
        certificate=read_root_certificates(folder.server / "ca.crt"),
        secure=settings.secure,
        signatures=[sign_bundle(read_app_bundle(folder.server / "app"), key, days=days, now=now)],
        sites={site.name: site.signing for site in sites},
        versions={package: public_version(package) for package in COMPARED_PACKAGES},
        policy=settings.policy,
    )
    for site in sites:
        write_whole(folder.node_keys / f"{site.name}.pub", f"{site.node}\n".encode())
    _write_run_settings(folder.run_settings, sites, settings.secure)
    write_whole(folder.federation, federation_file_text(federation, key).encode())
    return federation


def read_operator_settings(folder: OperatorFolder) -> OperatorSettings:
    """What `operator.toml` says."""
    if not folder.settings.is_file():
        raise UserError(
            f"{folder.path} is no operator's folder: make one with `feddraw operator init"
            f" {folder.path} --address NAME`"
        )
    try:
        document = parse_toml(folder.settings.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder.settings}: {error}") from None
    policy = document.get("policy", {})
    if policy:
        read_policy(folder.settings)  # which says what is wrong with it
    settings = OperatorSettings(
        address=str(document.get("address", "")),
        secure=document.get("secure") is True,
        policy=policy,
    )
    split_address(settings.address)
    return settings


def _take_in(folder: OperatorFolder, site: SiteFile, file: Path) -> None:
    target = folder.sites / f"{site.name}{SITE_SUFFIX}"
    if target.exists() and read_site_file(target) != site:
        raise UserError(
            f"{site.name} has sent other keys before: if they were replaced, and its people say so"
            f" by telephone, delete {target} and invite it again"
        )
    if not target.exists():
        write_key_file(target, file.read_bytes(), 0o644)


def _write_run_settings(path: Path, sites: Sequence[SiteFile], secure: bool) -> None:
    """The list of sites in a run's settings; all other lines stay as the operator wrote them."""
    listed = ",".join(f"{site.name}={key_fingerprint(site.node)}" for site in sites)
    values = {"secure": str(secure).lower(), "sites": f'"{listed}"'}
    if not path.is_file():
        raise UserError(f"there is no {path}: put back the one of `feddraw operator init`")
    text = path.read_text(encoding="utf-8")
    for name, value in values.items():
        line = f"{name} = {value}"
        text, lines = re.subn(rf"^{name} = .*$", line, text, flags=re.MULTILINE)
        if lines != 1:
            raise UserError(f"{path} must have one line that begins with `{name} = `")
    write_whole(path, text.encode())
