"""`feddraw operator init` and `invite`, `feddraw site key` and `start`: the files that an operator
and a site exchange.
"""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import threading
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from feddraw.cli import app as command_line
from feddraw.errors import UserError
from feddraw.flower import node_supervision, operator_folder, supernode
from feddraw.flower.app_signatures import Signatures
from feddraw.flower.exchange_files import (
    FederationFile,
    federation_file_text,
    read_federation_file,
    read_site_file,
)
from feddraw.flower.roster import node_fingerprint
from feddraw.secure.sums.signing_keys import (
    new_signing_key,
    read_operator_public_key,
    read_private_key,
    read_site_directory,
    site_directory_line,
)

SITES = ("North", "South", "St. Mary")


def feddraw(*arguments: str | Path, typed: str = "") -> Any:
    return CliRunner().invoke(command_line, [str(argument) for argument in arguments], input=typed)


def done(*arguments: str | Path) -> str:
    shown = feddraw(*arguments)
    assert shown.exit_code == 0, (shown.output, shown.exception)
    return str(shown.output)


def refused(*arguments: str | Path) -> str:
    error = feddraw(*arguments).exception
    assert isinstance(error, UserError), error
    assert "\n" not in str(error)
    return str(error)


@pytest.fixture(scope="module")
def invited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An operator's folder and three sites, invited."""
    folder = tmp_path_factory.mktemp("invited")
    made = folder / "federation"
    done("operator", "init", made, "--address", "hospital.example.org:8443")
    for name in SITES:
        done("site", "key", folder / name)
    files = [folder / name / f"{name}.site.toml" for name in SITES]
    done("operator", "invite", made, *files)
    return folder


@pytest.fixture
def federation(invited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in."""
    folder = tmp_path / "here"
    shutil.copytree(invited, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What nodes were started with; none is."""
    calls: list[list[str]] = []
    monkeypatch.setattr(
        node_supervision, "start_supernode", lambda order, _: calls.append(order.arguments)
    )
    return calls


def code_of(file: Path) -> str:
    return read_federation_file(file).code()


def start(site: str, *options: str | Path) -> list[str | Path]:
    return ["site", "start", "federation/federation.toml", "--site", site, *options]


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


# ------------------------------------------------------------------------------------- the operator


def test_the_operators_folder_has_every_file_of_the_guide_with_the_servers_name_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = "/opt/consortium"
    done(
        *("operator", "init", "made", "--address", "hospital.example.org:8443"),
        *("--server-folder", place),
    )
    server = tmp_path / "made" / "server"
    for name, _ in operator_folder.deployment_files():
        text = (server / name).read_text()
        assert "/etc/feddraw" not in text, name
        assert "federation.example.org" not in text, name
    assert {"app/pyproject.toml", "nginx.conf", "run.toml"} <= dict(
        operator_folder.deployment_files()
    ).keys()
    nginx = (server / "nginx.conf").read_text()
    assert "listen 8443 ssl;" in nginx
    assert f"ssl_certificate_key {place}/server.key;" in nginx
    assert supernode.read_app_bundle(server / "app").app == "feddraw/feddraw-federation"
    pins = (tmp_path / "made" / "constraints.txt").read_text().splitlines()
    assert f"flwr=={supernode.FLOWER_VERSION}" in pins
    assert any(re.fullmatch(r"torch==[\d.]+", line) for line in pins)
    assert not any(line.startswith("pytest==") for line in pins)


def test_private_keys_are_for_their_owner_only_and_none_is_in_a_file_that_is_sent(
    federation: Path,
) -> None:
    private = [*federation.rglob("*.key")]
    assert {path.name for path in private} == {
        *("operator.key", "ca.key", "server.key", "node.key", "signing.key")
    }
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    assert (federation / "federation" / "private").stat().st_mode & 0o777 == 0o700
    assert (federation / "North").stat().st_mode & 0o777 == 0o700
    names = {path.name for path in (federation / "federation" / "server").rglob("*.key")}
    assert names == {"server.key"}
    for sent in [federation / "federation" / "federation.toml", *federation.rglob("*.site.toml")]:
        assert "PRIVATE" not in sent.read_text()


@pytest.mark.parametrize(
    "command",
    [("operator", "init", "federation", "--address", "another.org"), ("site", "key", "North")],
)
def test_a_second_call_overwrites_nothing(federation: Path, command: tuple[str, ...]) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in federation.rglob("*") if path.is_file()}

    before = contents()
    assert "exists: choose a new folder" in refused(*command)
    assert contents() == before


@pytest.mark.parametrize("address", ["", "-x:1", "a b:443", "name:0", "name:99999", "name:x"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    assert "no address" in refused("operator", "init", tmp_path / "made", "--address", address)
    assert not (tmp_path / "made").exists()


def test_the_servers_certificate_is_accepted_for_its_name_and_for_loopback_also_after_renewal(
    federation: Path,
) -> None:
    server = federation / "federation" / "server"
    first = (server / "server.pem").read_bytes()
    handshake(server, "hospital.example.org")
    done("operator", "renew", "federation")
    assert (server / "server.pem").read_bytes() != first
    for name in ("hospital.example.org", "localhost", "127.0.0.1"):
        handshake(server, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, "elsewhere.org")


def handshake(server: Path, name: str) -> None:
    """A client that has ca.crt talks to a server with the server's certificate."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(server / "server.pem", server / "server.key")
    ours = ssl.create_default_context(cafile=str(server / "ca.crt"))
    ours.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            theirs.wrap_socket(right, server_side=True).close()
        except (ssl.SSLError, OSError):
            right.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        ours.wrap_socket(left, server_hostname=name).close()
    finally:
        left.close()
        thread.join()


def test_an_invitation_writes_what_the_server_needs_and_keeps_the_operators_settings(
    federation: Path,
) -> None:
    server = federation / "federation" / "server"
    run_file = server / "run.toml"
    ours = (
        run_file.read_text().replace("rounds = 15", "rounds = 3").replace("nodes = 0", "nodes = 2")
    )
    run_file.write_text(ours)
    done("site", "key", "West")
    done("operator", "invite", "federation", "West/West.site.toml")
    run = tomllib.loads(run_file.read_text())
    assert (run["rounds"], run["nodes"], run["secure"]) == (3, 2, False)
    listed = dict(part.split("=") for part in run["sites"].split(","))
    assert list(listed) == [*SITES, "West"]
    assert {path.stem for path in (server / "keys").iterdir()} == {*SITES, "West"}
    from flwr.cli.supernode.register import try_load_public_key

    for name, fingerprint in listed.items():
        assert node_fingerprint(try_load_public_key(server / "keys" / f"{name}.pub")) == fingerprint


def test_another_key_under_a_known_name_is_not_taken_in(federation: Path) -> None:
    done("site", "key", "elsewhere", "--name", "North")
    words = refused("operator", "invite", "federation", "elsewhere/North.site.toml")
    assert "North has sent other keys before" in words


def test_a_key_is_never_overwritten_nor_written_through_a_link(federation: Path) -> None:
    key = federation / "federation" / "private" / "operator.key"
    before = key.read_bytes()
    (federation / "link").symlink_to(federation / "elsewhere")
    for path in (key, federation / "link"):
        with pytest.raises(UserError, match="a key is never overwritten"):
            new_signing_key(path)
    assert key.read_bytes() == before
    assert not (federation / "elsewhere").exists()


def test_a_locked_key_asks_for_its_passphrase(federation: Path) -> None:
    init = ("operator", "init", "locked", "--address", "hospital.example.org", "--passphrase")
    assert feddraw(*init, typed="secret\nsecret\n").exit_code == 0
    invite = ("operator", "invite", "locked", "North/North.site.toml")
    assert "or the passphrase is wrong" in str(feddraw(*invite, typed="another\n").exception)
    assert not (federation / "locked" / "federation.toml").exists()
    assert feddraw(*invite, typed="secret\n").exit_code == 0
    assert list(read_federation_file(federation / "locked" / "federation.toml").sites) == ["North"]


def test_what_is_no_app_is_not_signed(federation: Path) -> None:
    app = federation / "federation" / "server" / "app"
    (app / "pyproject.toml").write_text("")
    assert "is no Flower app" in refused("operator", "invite", "federation")
    shutil.rmtree(app)
    assert "there is no folder federation/server/app" in refused("operator", "invite", "federation")


def test_secure_sums_need_three_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done("operator", "init", "federation", "--address", "hospital.example.org", "--secure")
    for name in ("North", "South"):
        done("site", "key", name)
    files = [f"{name}/{name}.site.toml" for name in ("North", "South")]
    assert "at least 3 sites, and 2" in refused("operator", "invite", "federation", *files)


# ----------------------------------------------------------------------------------------- the site


def test_a_site_starts_with_two_commands_and_one_file(
    federation: Path, started: list[list[str]]
) -> None:
    (federation / "xrays").mkdir()
    (federation / "xrays" / "labels.csv").write_text("path,Edema\n1.png,1\n")
    file = federation / "federation" / "federation.toml"
    done(*start("North", "--data", "xrays", "--confirm", code_of(file)))
    (arguments,) = started
    assert option(arguments, "--superlink") == "hospital.example.org:8443"
    assert option(arguments, "--auth-supernode-private-key") == "North/node.key"
    certificate = Path(option(arguments, "--root-certificates")).read_bytes()
    assert certificate == (federation / "federation" / "server" / "ca.crt").read_bytes()
    settings = supernode.parse_node_config(option(arguments, "--node-config"))
    assert settings == {
        "client": "North",
        "data": str(federation / "xrays"),
        "memory": str(federation / "North" / "memory"),
    }
    bundle = supernode.read_app_bundle(federation / "federation" / "server" / "app")
    operator = read_operator_public_key(federation / "North" / "operator.key.pub")
    signatures = Signatures(federation / "North" / "signatures", operator)
    assert signatures.check(bundle.content, bundle.app, bundle.version).sha256 == bundle.sha256


def test_a_folder_without_a_table_is_refused_before_the_node_starts(
    federation: Path, started: list[list[str]]
) -> None:
    (federation / "images only").mkdir()
    code = code_of(federation / "federation" / "federation.toml")
    words = refused(*start("North", "--data", "images only", "--confirm", code))
    assert words == "images only: a CSV, or a folder with one CSV in it, is needed; there is none"
    table = federation / "images only" / "labels.csv"
    table.write_bytes("path,\u00d6dem\n1.png,1\n".encode("latin-1"))
    words = refused(*start("North", "--data", "images only", "--confirm", code))
    assert "cannot be read as UTF-8 text: save it as CSV UTF-8" in words
    words = refused(*start("North", "--data", str(table), "--confirm", code))
    assert words.startswith("--data takes the folder, not the table in it: --data ")
    assert not started


def test_the_code_is_asked_for_once_and_a_wrong_one_starts_nothing(
    federation: Path, started: list[list[str]]
) -> None:
    code = code_of(federation / "federation" / "federation.toml")
    assert f"the federation's code is {code}" in refused(*start("North"))
    assert "is not confirmed" in refused(*start("North", "--confirm", f"0{code[1:]}x"))
    assert not (federation / "North" / "signatures").exists()
    assert not started
    done(*start("North", "--confirm", code))
    done(*start("North"))
    done("operator", "invite", "federation")  # signed anew, by the same operator
    done(*start("North"))
    assert len(started) == 3


def test_a_site_takes_part_in_secure_sums_with_the_keys_of_all_sites_and_new_keys_are_confirmed_again(
    federation: Path, started: list[list[str]]
) -> None:
    settings = federation / "federation" / "operator.toml"
    settings.write_text(settings.read_text().replace("secure = false", "secure = true"))
    done("operator", "invite", "federation")
    file = federation / "federation" / "federation.toml"
    first = code_of(file)
    done(*start("North", "--confirm", first))
    config = supernode.parse_node_config(option(started[0], "--node-config"))
    assert config["key"] == str(federation / "North" / "signing.key")
    assert set(read_site_directory(Path(str(config["sites"])))) == set(SITES)
    done("site", "key", "West")
    done("operator", "invite", "federation", "West/West.site.toml")
    assert code_of(file) != first
    assert "the federation's code is" in refused(*start("North"))
    done(*start("North", "--confirm", code_of(file)))


def test_a_changed_file_is_noticed_wherever_it_was_changed(
    federation: Path, started: list[list[str]]
) -> None:
    file = federation / "federation" / "federation.toml"
    code = code_of(file)
    text = file.read_text()
    for before, after in [
        ("hospital.example.org:8443", "elsewhere.example.org:8443"),
        ("secure = false", "secure = true "),
        ('flwr = "', 'flwr = "9'),
        ("# signature ", "\n# signature "),
    ]:
        assert before in text
        file.write_text(text.replace(before, after))
        assert "was changed after it was signed" in refused(*start("North", "--confirm", code))
    file.write_text(text[:-200])
    assert "was cut off or changed" in refused(*start("North", "--confirm", code))
    site_file = federation / "North" / "North.site.toml"
    site_file.write_text(site_file.read_text().replace("North", "Norse"))
    assert "was changed after it was signed" in refused(
        "operator", "invite", "federation", site_file
    )
    assert not started


def test_a_file_that_somebody_else_signed_has_another_code(
    federation: Path, started: list[list[str]]
) -> None:
    file = federation / "federation" / "federation.toml"
    done(*start("North", "--confirm", code_of(file)))
    line = new_signing_key(Path("other.key"))
    key = read_private_key(Path("other.key"), str)
    theirs = vars(read_federation_file(file)) | {"operator": line}
    file.write_text(federation_file_text(FederationFile(**theirs), key))
    assert "the federation's code is" in refused(*start("North"))
    assert len(started) == 1


def test_an_older_file_does_not_come_back(federation: Path, started: list[list[str]]) -> None:
    file = federation / "federation" / "federation.toml"
    new = file.read_text()
    key = read_private_key(federation / "federation" / "private" / "operator.key", str)
    older = vars(read_federation_file(file)) | {"issued": "2020-01-01T00:00:00Z"}
    done(*start("North", "--confirm", code_of(file)))
    file.write_text(federation_file_text(FederationFile(**older), key))
    assert "is older than the one that this site has" in refused(*start("North"))
    file.write_text(new)
    done(*start("North"))


def test_a_site_that_was_not_invited_does_not_start(
    federation: Path, started: list[list[str]]
) -> None:
    done("site", "key", "West")
    assert "does not list this site: send West/West.site.toml" in refused(*start("West"))
    assert "is no site's folder" in refused(*start("federation"))
    assert "Missing option '--site'" in feddraw("site", "start", "federation.toml").output
    assert not started


@pytest.mark.parametrize(
    ("node_config", "words"),
    [
        ("trust=true", "a signature does not cover that"),
        ("data=[", "--node-config"),
        ("North", "--node-config: 'North' has no KEY=VALUE"),
        ('key="nothing"', "there is no file nothing"),
        (
            'key="North/North.site.toml"',
            "North/North.site.toml can be read by others: close it with `chmod",
        ),
        ('sites="North/signing.key.pub"', "North/signing.key.pub is no directory of sites"),
    ],
)
def test_wrong_settings_of_a_node_are_refused_before_it_starts(
    federation: Path, started: list[list[str]], node_config: str, words: str
) -> None:
    code = code_of(federation / "federation" / "federation.toml")
    assert words in refused(*start("North", "--confirm", code, "--node-config", node_config))
    assert not started


def test_a_folder_whose_files_were_exchanged_is_refused_before_the_node_starts(
    federation: Path, started: list[list[str]]
) -> None:
    code = code_of(federation / "federation" / "federation.toml")
    done(*start("North", "--confirm", code))
    foreign = federation / "North" / "signatures" / "foreign.signature"
    foreign.write_text("{}\nAAAA\n")
    words = refused(*start("North"))
    assert (
        words
        == f"{foreign.relative_to(federation)} is not signed with the operator's key: remove the file"
    )
    foreign.unlink()
    shutil.copy(federation / "North" / "signing.key", federation / "North" / "node.key")
    assert "node.key is no ECDSA key" in refused(*start("North"))
    (federation / "North" / "node.key").unlink()
    assert refused(*start("North")) == "there is no file North/node.key"
    assert len(started) == 1


def test_a_node_with_a_signing_key_and_without_the_sites_keys_warns_at_the_start(
    federation: Path,
) -> None:
    line = (federation / "North" / "signing.key.pub").read_text().strip()
    (federation / "sites.toml").write_text(site_directory_line("North", line))
    with pytest.warns(UserWarning, match="can open this site's model; name its file with sites="):
        supernode.check_node_config('key="North/signing.key"')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        supernode.check_node_config('key="North/signing.key" sites="sites.toml"')


def test_agreed_limits_reach_the_site_and_its_own_settings_go_before(
    federation: Path, started: list[list[str]]
) -> None:
    settings = federation / "federation" / "operator.toml"
    settings.write_text(settings.read_text() + "\n[policy]\ncap_times = 1.5\n")
    done("operator", "invite", "federation")
    code = code_of(federation / "federation" / "federation.toml")
    done(*start("North", "--confirm", code, "--node-config", 'memory="/srv/here" fewest=4'))
    config = supernode.parse_node_config(option(started[0], "--node-config"))
    assert (config["memory"], config["fewest"]) == ("/srv/here", 4)
    policy = tomllib.loads(Path(str(config["policy"])).read_text())
    assert policy == {"policy": {"cap_times": 1.5}}
    settings.write_text(settings.read_text().replace("cap_times", "capped"))
    assert "capped" in refused("operator", "invite", "federation")


def test_another_version_than_the_operators_is_said_at_the_start(
    federation: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = code_of(federation / "federation" / "federation.toml")
    monkeypatch.setattr("feddraw.flower.site_folder.public_version", lambda _: "9.9")
    with pytest.warns(UserWarning, match=r"another version: flwr 9.9 here, .* at the operator"):
        done(*start("North", "--confirm", code))


@pytest.mark.parametrize("name", ["../up", "a,b", "a=b", "", " x", "x" * 80, "line\nbreak"])
def test_a_name_that_could_be_a_path_or_a_setting_is_refused(tmp_path: Path, name: str) -> None:
    if name:
        assert "is no name for a site" in refused("site", "key", tmp_path / "new", "--name", name)
        assert not (tmp_path / "new").exists()
    done("site", "key", tmp_path / "Köln")
    assert read_site_file(tmp_path / "Köln" / "Köln.site.toml").name == "Köln"


def test_a_name_with_characters_that_nobody_sees_is_refused_where_the_file_is_read(
    federation: Path,
) -> None:
    """In a sum such a site would be left out for a wrong signature, and nobody could see why."""
    key = (federation / "North" / "signing.key.pub").read_text().strip()
    directory = federation / "sites.toml"
    directory.write_text(f'"No\u200brth" = "{key}"\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"'No\\u200brth' is no name for a site"):
        read_site_directory(directory)
