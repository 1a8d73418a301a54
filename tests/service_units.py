"""The service units of the package as tests read them, and a small supervisor that does with them
what systemd does.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import threading
import uuid
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path

import psutil

DEPLOYMENT = Path(str(resources.files("feddraw") / "flower" / "deployment"))
UNITS = DEPLOYMENT / "systemd"


def read_unit(text: str) -> dict[str, list[str]]:
    """The settings of a unit, each with all its values in their order."""
    settings = defaultdict(list)
    for line in text.splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            settings[name].append(value)
    return dict(settings)


class Service:
    """A unit that runs: started again as its file says, until it is stopped."""

    def __init__(self, name: str, changes: Mapping[str, str], folder: Path) -> None:
        text = (UNITS / name).read_text()
        for before, after in changes.items():
            text = text.replace(before, after)
        self.settings = read_unit(text)
        self.name = name
        self.folder = folder
        self.starts = 0
        self.finished = False  # a oneshot unit's commands all succeeded
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # abstract, as the path of a test's folder may be longer than an address can be
        self._address = f"@{uuid.uuid4()}"
        self._notified.bind("\0" + self._address[1:])
        self._notified.settimeout(0.1)
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run_once(self) -> None:
        """All commands of a oneshot unit that a timer starts."""
        for command in self.settings["ExecStart"]:
            self.run(command)
        self._notified.close()

    def one(self, setting: str, default: str = "") -> str:
        return self.settings.get(setting, [default])[0]

    @property
    def log(self) -> str:
        path = self.folder / f"{self.name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def messages(self) -> list[str]:
        """What the unit has told its service manager since the last call."""
        heard = []
        with suppress(TimeoutError):
            while True:
                heard.append(self._notified.recv(4096).decode())
        return heard

    def run(self, command: str) -> int:
        """Run one more command of the unit, in its surroundings, to its end."""
        return self._begin(command).wait()

    def _begin(self, command: str) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        for line in self.settings.get("Environment", []):
            environment |= dict(word.split("=", 1) for word in shlex.split(line))
        if self.one("Type") == "notify":
            environment["NOTIFY_SOCKET"] = self._address
        with (self.folder / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                shlex.split(command),
                cwd=self.one("WorkingDirectory") or self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill everything that the unit has started, as systemd does after a crash."""
        assert self._process is not None
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def restart(self) -> None:
        """As after a restart of a unit that this one is PartOf."""
        self.kill()

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None:
            family = self._family()
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
            psutil.wait_procs(family, timeout=15)
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._thread.join(timeout=20)
        self._notified.close()

    def _family(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            main = psutil.Process(self._process.pid)
            return [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _supervise(self) -> None:
        never = self.one("RestartPreventExitStatus").split()
        while not self._stopping.is_set():
            self.starts += 1
            code = 0
            for command in self.settings["ExecStart"]:
                self._process = self._begin(command)
                code = self._process.wait()
                if code:
                    break
            if code == 0 and self.one("Restart") == "on-failure":
                self.finished = True
                return
            if str(code) in never:
                return
            self._stopping.wait(min(2.0, float(self.one("RestartSec", "1"))))
