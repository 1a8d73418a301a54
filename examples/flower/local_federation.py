"""A whole federation on this machine: a SuperLink and some SuperNodes with TLS and node authentication, and one run.

    python examples/flower/local_federation.py --nodes 3 --folder federation --run-config 'rounds=2 out="run"'

Certificates, keys, logs and the run lie in the folder. Everything listens on 127.0.0.1, and everything that was
started is stopped at the end, also by Ctrl-C. `--stranger` starts one more node, whose key nobody has registered.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

APP = Path(__file__).parent / "app"
NAME = "local"  # of the connection in Flower's configuration
REFUSED = 305  # a SuperNode's way of saying that the SuperLink does not know it


class Federation:
    """Processes of one federation, each in a session of its own with a log of its own."""

    def __init__(self, folder: Path, *, secure: bool = True) -> None:
        self.folder, self.secure = folder.resolve(), secure
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
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
            make_certificates(self.folder)
        self._configure()

    def _configure(self) -> None:
        """Where `flwr` finds the SuperLink."""
        trust = f'root-certificates = "{self.folder / "ca.crt"}"' if self.secure else "insecure = true"
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        (home / "config.toml").write_text(text)

    # ------------------------------------------------------------------------------------------ processes

    def start(self, name: str, *command: str | Path) -> None:
        log = (self.folder / f"{name}.log").open("wb")
        tool, *arguments = map(str, command)
        self.processes[name] = subprocess.Popen(
            [str(Path(sys.executable).with_name(tool)), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,  # so that it and what it starts can be stopped together
        )

    def flwr(self, *arguments: str | Path, timeout: float = 600) -> str:
        """A command of Flower's, and what it printed; it ends with ours if it fails."""
        command = [str(Path(sys.executable).with_name("flwr")), *map(str, arguments)]
        options = {"env": self.environment, "cwd": self.folder, "text": True, "timeout": timeout}
        found = subprocess.run(command, capture_output=True, check=False, **options)  # type: ignore[call-overload]
        if found.returncode:
            raise SystemExit(f"flwr {arguments[0]} failed:\n{found.stdout}{found.stderr}")
        return str(found.stdout + found.stderr)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """End what was started and all that this has started, nodes first: politely, then not."""
        family = descendants([process.pid for process in self.processes.values()])  # Flower's apps leave the group
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while any(p.poll() is None for p in self.processes.values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    # ------------------------------------------------------------------------------------------ the parts

    def superlink(self) -> None:
        security = ["--insecure"]
        if self.secure:
            security = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
            security += ["--enable-supernode-auth"]
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.start("superlink", "flower-superlink", *security, *where, "--disable-runtime-dependency-installation")
        link = self.processes["superlink"]
        wait_for(lambda: answers(self.port) or link.poll() is not None, 60, "the SuperLink does not answer")
        if link.poll() is not None:
            raise SystemExit(f"the SuperLink has ended: see {self.folder / 'superlink.log'}")

    def supernode(self, name: str, config: str, *, register: bool = True) -> None:
        security = ["--insecure"]
        if self.secure:
            key = make_key(self.folder / f"{name}.key")
            if register:
                self.flwr("supernode", "register", key.with_suffix(".key.pub"), NAME)
            security = ["--root-certificates", "ca.crt", "--auth-supernode-private-key", key.name]
        where = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port())]
        self.start(name, "flower-supernode", *security, *where, "--node-config", config)

    def run(self, settings: str, timeout: float = 3600) -> str:
        """Carry the app out; returns its log."""
        return self.flwr("run", APP.resolve(), NAME, "--stream", "--run-config", settings, timeout=timeout)


@contextmanager
def federation(folder: Path, *, secure: bool = True) -> Iterator[Federation]:
    """A SuperLink that is there for as long as the block lasts."""
    made = Federation(folder, secure=secure)
    try:
        made.superlink()
        yield made
    finally:
        made.stop()


def descendants(parents: list[int]) -> list[int]:
    """These processes, their children, and theirs."""
    lines = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.splitlines()
    family = list(parents)
    pairs = [(int(pid), int(parent)) for pid, parent in map(str.split, lines)]
    for older in family:  # grows while it is read
        family += [pid for pid, parent in pairs if parent == older and pid not in family]
    return family


# ---------------------------------------------------------------------------------------------------- keys and ports


def make_certificates(folder: Path) -> None:
    """An authority of our own, and a certificate for this machine signed by it."""
    if (folder / "ca.crt").exists():
        return
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    authority = ["-x509", "-days", "365", "-subj", "/CN=feddraw test authority"]
    openssl(folder, "req", *authority, *curve, "-keyout", "ca.key", "-out", "ca.crt")
    openssl(folder, "req", "-subj", "/CN=localhost", *curve, "-keyout", "server.key", "-out", "server.csr")
    (folder / "server.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "365", "-extfile", "server.ext"]
    openssl(folder, "x509", "-req", "-in", "server.csr", *signed, "-out", "server.pem")


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_key(path: Path) -> Path:
    """A node's key pair, in the form that Flower wants."""
    if not path.exists():
        command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", str(path)]
        subprocess.run(command, check=True, capture_output=True)
    return path


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


# ---------------------------------------------------------------------------------------------------- the command


def show_stranger(made: Federation) -> None:
    """A node whose key is not registered is refused."""
    made.supernode("stranger", "partition-id=0", register=False)
    process = made.processes["stranger"]
    wait_for(lambda: process.poll() is not None, 60, "the stranger was not refused within a minute")
    words = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", made.log("stranger")).splitlines() if line.strip()]
    print(
        f"stranger: refused, exit code {process.returncode} (Flower's {REFUSED})", *words[-4:], sep="\n  ", flush=True
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("federation"))
    parser.add_argument("--run-config", default='rounds=2 out="run"', help="settings of the run, as for `flwr run`")
    parser.add_argument("--insecure", action="store_true", help="neither TLS nor authentication")
    parser.add_argument("--stranger", action="store_true", help="also show that an unknown node is refused")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with federation(options.folder, secure=not options.insecure) as made:
            print(f"SuperLink on 127.0.0.1:{made.port}, logs in {made.folder}", flush=True)
            for number in range(options.nodes):
                made.supernode(f"node{number}", f"partition-id={number}")
            print(f"{options.nodes} SuperNodes started", flush=True)
            if options.stranger and not options.insecure:
                show_stranger(made)
            print(made.run(f"nodes={options.nodes} {options.run_config}"))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        print("everything that was started is stopped", flush=True)


if __name__ == "__main__":
    main()
