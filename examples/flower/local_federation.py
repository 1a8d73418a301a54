"""A whole federation on this machine, as docs/federation.md describes it: a SuperLink behind nginx
with TLS, a node for each client of the run's scenario with a key of its own and the operator's
signature of the app, and one run.

    python examples/flower/local_federation.py --folder federation --run-config 'rounds=2 out="run"'

Certificates, keys, logs and the run are in the folder. Everything listens on 127.0.0.1, and
everything that was started is stopped at the end, also by Ctrl-C. `--stranger` also shows what
somebody with the address and ca.crt can do. With a Flower before 1.41 only `--insecure` works:
these have several ports, and feddraw checks no signatures there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import feddraw

if TYPE_CHECKING:
    from feddraw.flower.operator_folder import OperatorFolder

# The ready app, which `feddraw operator init` writes out.
APP = Path(feddraw.__file__).parent / "flower" / "deployment" / "app"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
NAME = "local"  # of the connection in Flower's configuration
FLOWER_VERSION = tuple(map(int, version("flwr").split(".")[:2]))
SEVERAL_PORTS = FLOWER_VERSION < (1, 38)  # of a SuperLink: for nodes, for `flwr`, for its own apps
LONGEST_START = 180.0  # seconds, on a machine that is busy with other things
REFUSED = "the server does not accept this site's key"  # what a stranger's node says


class Federation:
    """Processes of one federation, each in a session of its own with a log of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        secure: bool = True,
        behind_nginx: bool = True,
        secure_sums: bool = False,
    ) -> None:
        self.folder = folder.resolve()
        self.secure = secure
        self.behind_nginx = secure and behind_nginx
        if secure and SEVERAL_PORTS:
            raise SystemExit(
                f"keys and signatures need Flower 1.41, and this is {version('flwr')}: give"
                " --insecure"
            )
        if self.behind_nginx and NGINX is None:
            raise SystemExit(
                "nginx is not installed: apt install nginx, or try without it with --without-nginx"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()  # of the SuperLink
        self.control = free_port() if SEVERAL_PORTS else self.port  # where `flwr` finds it
        self.door = free_port() if self.behind_nginx else self.port  # where the nodes knock
        self.code = ""  # which operator and sites compare by telephone
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        tools = Path(sys.executable).parent  # Flower starts its own commands by their bare names
        self.environment = os.environ | {
            "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "XDG_STATE_HOME": str(self.folder / "state"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if secure:
            self._prepare_operator(secure_sums=secure_sums)
        self._configure()

    @property
    def server(self) -> Path:
        """What the operator copies to the server."""
        return self.folder / "operator" / "server"

    def _configure(self) -> None:
        """Where `flwr` finds the SuperLink."""
        trust = (
            f'root-certificates = "{self.server / "ca.crt"}"' if self.secure else "insecure = true"
        )
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(connection(self.control, trust))

    # ------------------------------------------------------------------------------------ processes

    def start(self, name: str, *command: str | Path) -> None:
        log = (self.folder / f"{name}.log").open("wb")
        # a bare name is a command of this Python's environment
        tool, *arguments = map(str, command)
        self.processes[name] = subprocess.Popen(
            [str(Path(sys.executable).parent / tool), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,  # so that it and what it starts can be stopped together
        )

    def flwr(self, *arguments: str | Path, timeout: float = 600, show: bool = False) -> str:
        """A command of Flower's, and what it printed, also line by line as it comes; it ends with
        ours if it fails.
        """
        command = [str(Path(sys.executable).with_name("flwr")), *map(str, arguments)]
        printed = []
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
            cwd=self.folder,
            text=True,
        ) as process:
            alarm = threading.Timer(timeout, process.kill)
            alarm.start()
            try:
                for line in process.stdout or ():
                    printed.append(line)
                    if show:
                        print(line, end="", flush=True)
            finally:
                alarm.cancel()
        if process.returncode:
            raise SystemExit(f"flwr {arguments[0]} failed:\n{''.join(printed)}")
        return "".join(printed)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """End what was started and all that this has started, nodes first: politely, then not."""
        # Flower's apps leave the group
        family = descendants([process.pid for process in self.processes.values()])
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if all(process.poll() is not None for process in self.processes.values()):
                break
            time.sleep(0.1)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    # --------------------------------------------------------------------------------- the operator

    def _prepare_operator(self, *, secure_sums: bool) -> None:
        """The operator's folder; in a real federation it is on another machine than the server."""
        from feddraw.flower.operator_folder import OperatorFolder, read_operator_settings

        operator = OperatorFolder(self.folder / "operator")
        if operator.path.exists():  # the federation's address stays
            address = read_operator_settings(operator).address
            self.door = int(address.rpartition(":")[2])
            if not self.behind_nginx:
                self.port = self.control = self.door
        else:
            make_operator(operator, self.door, secure_sums=secure_sums)

    def site(self, name: str) -> Path:
        """A site's own folder."""
        return self.folder / "sites" / name

    def invite(self, *names: str) -> None:
        """Sites make their keys; the operator signs the app, and writes the file for all sites."""
        from feddraw.flower.operator_folder import OperatorFolder

        files = [self._site_file(name) for name in names]
        self.code = invite(OperatorFolder(self.folder / "operator"), files)

    def _site_file(self, name: str) -> Path:
        """A site's public keys; they are made where it has none."""
        from feddraw.flower.site_folder import SiteFolder, make_site_folder

        site = SiteFolder(self.site(name))
        if not site.path.exists():
            site.path.parent.mkdir(exist_ok=True)
            make_site_folder(site, name)
        return site.site_file()

    def sign(self, app: Path) -> None:
        """Another app in place of the ready one; it counts from the next invitation on."""
        shutil.rmtree(self.server / "app")
        shutil.copytree(app, self.server / "app")

    def register(self, name: str) -> None:
        self.flwr("supernode", "register", self.server / "keys" / f"{name}.pub", NAME)

    # ------------------------------------------------------------------------------------ the parts

    def superlink(self) -> None:
        security = "--insecure"
        if self.secure:
            security = (
                f"--ssl-ca-certfile {self.server}/ca.crt --ssl-certfile {self.server}/server.pem"
                f" --ssl-keyfile {self.server}/server.key --enable-supernode-auth"
            )
        self.start("superlink", "flower-superlink", *security.split(), *self._addresses())
        link = self.processes["superlink"]
        ports = {self.port, self.control}
        wait_for(
            lambda: all(map(answers, ports)) or link.poll() is not None,
            LONGEST_START,
            "the SuperLink does not answer",
        )
        if link.poll() is not None:
            raise SystemExit(f"the SuperLink has ended: see {self.folder / 'superlink.log'}")

    def _addresses(self) -> list[str]:
        if SEVERAL_PORTS:
            options = (
                f"--fleet-api-address 127.0.0.1:{self.port}"
                f" --control-api-address 127.0.0.1:{self.control}"
                f" --serverappio-api-address 127.0.0.1:{free_port()}"
            )
        else:
            options = (
                f"--host 127.0.0.1 --port {self.port} --disable-runtime-dependency-installation"
            )
        return options.split()

    def nginx(self) -> None:
        """The door: TLS for the nodes, and no way to anything that they do not need."""
        folder = self.folder / "nginx"
        folder.mkdir(exist_ok=True)
        rules = (self.server / "nginx.conf").read_text()
        (folder / "door.conf").write_text(door(rules, self.door, self.port))
        (folder / "nginx.conf").write_text(around(folder))
        log = folder / "error.log"
        settings = folder / "nginx.conf"
        self.start("nginx", str(NGINX), "-e", log, "-p", folder, "-c", settings)
        process = self.processes["nginx"]
        wait_for(
            lambda: answers(self.door) or process.poll() is not None,
            LONGEST_START,
            "nginx does not answer",
        )
        if process.poll() is not None:
            raise SystemExit(f"nginx has ended: {self.log('nginx')}")

    def supernode(self, name: str, config: str, *, register: bool = True) -> None:
        """A site's node, with a key of its own; `register` is for a site's first start."""
        if not self.secure:
            address = f"--host 127.0.0.1 --port {free_port()}"
            if SEVERAL_PORTS:
                address = f"--clientappio-api-address 127.0.0.1:{free_port()}"
            node = ["--superlink", f"127.0.0.1:{self.door}", "--node-config", config]
            self.start(name, "flower-supernode", "--insecure", *address.split(), *node)
            return
        if register:
            self.invite(name)
            self.register(name)
        self.start_site(name, config, self.folder / "operator" / "federation.toml", self.code)

    def stranger(self) -> Path:
        """The node of somebody who has the server's address and ca.crt, and is an operator of their
        own; returns its public key.
        """
        from feddraw.flower.operator_folder import OperatorFolder

        theirs = OperatorFolder(self.folder / "stranger")
        make_operator(theirs, self.door)
        shutil.copy(self.server / "ca.crt", theirs.server / "ca.crt")
        code = invite(theirs, [self._site_file("stranger")])
        self.start_site("stranger", "partition-id=0", theirs.federation, code)
        return theirs.node_keys / "stranger.pub"

    def start_site(self, name: str, config: str, file: Path, code: str) -> None:
        """A node by the file that an operator sent; its people were told the code."""
        options = ["--confirm", code, "--port", str(free_port()), "--node-config", config]
        self.start(name, "feddraw", "site", "start", file, "--site", self.site(name), *options)

    def run(
        self, settings: str, timeout: float = 3600, app: Path = APP, *, show: bool = False
    ) -> str:
        """Carry an app out; returns its log, and shows it meanwhile."""
        command = ["run", app.resolve(), NAME, "--stream", "--run-config", settings]
        return self.flwr(*command, timeout=timeout, show=show)


def connection(port: int, trust: str) -> str:
    """Flower's configuration of a connection."""
    return (
        f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress ='
        f' "127.0.0.1:{port}"\n{trust}\n'
    )


def make_operator(operator: OperatorFolder, door: int, *, secure_sums: bool = False) -> None:
    """An operator of a federation whose server is this machine: `feddraw operator init`."""
    from feddraw.flower.operator_folder import make_operator_folder

    make_operator_folder(
        operator,
        address=f"127.0.0.1:{door}",
        place=str(operator.server),
        secure=secure_sums,
        passphrase="",
    )


def invite(operator: OperatorFolder, files: Sequence[Path]) -> str:
    """`feddraw operator invite`; returns the federation's code."""
    from feddraw.flower.operator_folder import invite_sites

    return invite_sites(operator, files, days=365, ask_passphrase=str).code()


@contextmanager
def federation(
    folder: Path, *, secure: bool = True, behind_nginx: bool = True, secure_sums: bool = False
) -> Iterator[Federation]:
    """A SuperLink, and its door, for as long as the block lasts."""
    made = Federation(folder, secure=secure, behind_nginx=behind_nginx, secure_sums=secure_sums)
    try:
        made.superlink()
        if made.behind_nginx:
            made.nginx()
        yield made
    finally:
        made.stop()


def descendants(parents: list[int]) -> list[int]:
    """These processes, their children, and theirs."""
    lines = subprocess.run(
        ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    family = list(parents)
    pairs = [(int(pid), int(parent)) for pid, parent in map(str.split, lines)]
    for older in family:  # grows while it is read
        family += [pid for pid, parent in pairs if parent == older and pid not in family]
    return family


# ----------------------------------------------------------------------------------------- the door


def door(template: str, listen: int, superlink: int) -> str:
    """The operator's nginx configuration with this machine's ports, on loopback only."""
    ours = {
        "server 127.0.0.1:8000;": f"server 127.0.0.1:{superlink};",
        f"listen {listen} ssl;": f"listen 127.0.0.1:{listen} ssl;",
    }
    for theirs, value in ours.items():
        if template.count(theirs) != 1:
            raise SystemExit(f"nginx.conf must have '{theirs}' once")
        template = template.replace(theirs, value)
    return template


def around(folder: Path) -> str:
    """What Debian has in /etc/nginx/nginx.conf, for an nginx that writes into this folder only."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    lines = [f'    {kind}_temp_path "{folder / kind}";' for kind in kinds]
    lines += [
        f'    access_log "{folder / "access.log"}";',
        f'    include "{folder / "door.conf"}";',
    ]
    # the default user has no way into a private folder
    user = "user root;\n" if os.geteuid() == 0 else ""
    head = f'{user}daemon off;\nworker_processes 1;\npid "{folder / "nginx.pid"}";\nevents {{}}\n'
    return head + "http {\n" + "\n".join(lines) + "\n}\n"


# -------------------------------------------------------------------------------------------- ports


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as door:
        door.settimeout(1)
        return door.connect_ex(("127.0.0.1", port)) == 0


def wait_for(ready: object, seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise SystemExit(otherwise)
        time.sleep(0.2)


# -------------------------------------------------------------------------------------- the command


def clients(settings: str) -> int:
    """How many clients the run's scenario has: each is a node, or the bits would not be those of
    `feddraw run`.
    """
    from flwr.common.config import get_fused_config_from_dir, parse_config_args

    from feddraw.experiment.run_preparation import prepare
    from feddraw.flower.settings import own_folders, read_run_config, trusted_here

    run_config = get_fused_config_from_dir(APP, parse_config_args([settings]))
    experiment, _ = read_run_config(run_config, trust=trusted_here())
    if own_folders(experiment):
        raise SystemExit(
            "here all nodes share one data set: for folders of their own, follow docs/federation.md"
        )
    return len(prepare(experiment).clients)


def show_stranger(made: Federation) -> None:
    """A node whose key is not registered is refused, and so is everything that `flwr` does from
    outside.
    """
    key = made.stranger()
    wait_for(lambda: REFUSED in made.log("stranger"), LONGEST_START, "the stranger was not refused")
    print(f"stranger's node: {REFUSED}")
    commands: dict[str, list[str | Path]] = {
        "supernode list": [],
        "supernode register": [key],
        "run": [APP],
    }
    for command, arguments in commands.items():
        code = knock(made, *command.split(), *arguments).returncode
        print(f"stranger's flwr {command}: {'refused' if code else 'LET IN'}", flush=True)


def knock(
    made: Federation, command: str, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """A command of Flower's from somebody outside, who has the nodes' address and ca.crt."""
    home = made.folder / "stranger-flwr"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        connection(made.door, f'root-certificates = "{made.server / "ca.crt"}"')
    )
    line = [str(Path(sys.executable).with_name("flwr")), command, *map(str, arguments), NAME]
    environment = made.environment | {"FLWR_HOME": str(home)}
    return subprocess.run(
        line,
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_START,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--nodes", type=int, help="number of nodes, which must be that of the scenario's clients"
    )
    parser.add_argument("--folder", type=Path, default=Path("federation"))
    parser.add_argument(
        "--run-config", default='rounds=2 out="run"', help="settings of the run, as for `flwr run`"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="no TLS, no keys, no signatures, no nginx"
    )
    parser.add_argument(
        "--without-nginx", action="store_true", help="nodes connect to the SuperLink itself"
    )
    parser.add_argument(
        "--stranger", action="store_true", help="also show that strangers are refused"
    )
    options = parser.parse_args(arguments)
    count = clients(options.run_config)
    if options.nodes not in (None, count):
        parser.error(
            f"the run's scenario has {count} clients, so there are {count} nodes, not"
            f" {options.nodes}"
        )
    if options.stranger and (options.insecure or options.without_nginx):
        parser.error("--stranger needs TLS and nginx: without them strangers are not refused")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with federation(
            options.folder, secure=not options.insecure, behind_nginx=not options.without_nginx
        ) as made:
            print(f"SuperLink on 127.0.0.1:{made.port}, logs in {made.folder}", flush=True)
            if made.behind_nginx:
                print(f"nginx on 127.0.0.1:{made.door} passes on what nodes need", flush=True)
            for number in range(count):
                made.supernode(f"node{number}", f"partition-id={number}")
            print(f"{count} SuperNodes started", flush=True)
            if options.stranger:
                show_stranger(made)
            print("the run begins; every round has a line below", flush=True)
            made.run(options.run_config, show=True)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        print("everything that was started is stopped", flush=True)


if __name__ == "__main__":
    main()
