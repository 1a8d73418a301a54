"""The same round in other systems, each in a process of its own that begins a round when it is told
to.

Peers that use two cores stand beside our two workers, those that use one beside our serial engine.
All their rounds begin in a system that is up and warm; what they need to start is not counted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.speed import peer_task
from benchmarks.speed.made_up_model import client_names
from benchmarks.speed.round_overhead import timed_round
from benchmarks.speed.timing import Ratio, Timed, TimingSession, ratio_of_times
from feddraw.engines import Engine
from feddraw.engines.processes import Processes
from feddraw.engines.serial import Serial
from feddraw.errors import RunFailed
from feddraw.experiment.run_preparation import initial_model
from feddraw.methods.fedavg import fedavg
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples
from feddraw.training.settings import Training

RIVAL_SCRIPTS = Path(__file__).parents[1] / "peers"
RIVAL_PATIENCE = 240.0  # seconds for a peer to start, or to do a round
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Rival:
    """A system, how to run it, and what it can be asked."""

    title: str
    environment: str  # the name that an interpreter is given under
    script: str
    package: str
    cores: int
    tasks: tuple[str, ...] = tuple(peer_task.TASKS)
    arguments: tuple[str, ...] = ()
    note: str = ""


RIVALS = {
    "flower": Rival("Flower on Ray, two CPUs", "flower", "with_flower.py", "flwr", 2),
    "pfl": Rival("pfl-research, one process", "pfl", "with_pfl.py", "pfl", 1),
    "pfl_two": Rival(
        "pfl-research, two processes", "pfl", "with_pfl.py", "pfl", 2, arguments=("two",)
    ),
    "fedlab": Rival("FedLab, one process", "fedlab", "with_fedlab.py", "fedlab", 1),
    "nvflare": Rival(
        "NVIDIA FLARE's simulator, ten threads",
        "nvflare",
        "with_nvflare.py",
        "nvflare",
        2,
        tasks=("tiny 10 × 10", "wide 10 × 1"),
        note="one process per client: a hundred do not fit",
    ),
}


def trainer_beside_rivals(task: peer_task.PeerTask) -> Trainer:
    """The peers' work for our engines, from the images as they lie on a disk."""
    images, targets = peer_task.random_pictures(task.clients * task.images)
    return Trainer(
        partial(peer_task.build_net, task.hidden),
        Examples(images, targets),
        np.split(np.arange(len(images)), task.clients),
        Training(epochs=1, batch_size=peer_task.BATCH, lr=peer_task.LR, optimizer="sgd"),
        fedavg().local,
    )


@contextmanager
def our_round_beside_rivals(task: peer_task.PeerTask, cores: int) -> Iterator[Timed]:
    """Our round on so many cores."""
    trainer = trainer_beside_rivals(task)
    engine: Engine
    if cores == 1:
        engine = Serial(trainer)
    else:
        engine = Processes(trainer, cores, client_names(task.clients))
    with closing(engine):
        yield partial(timed_round, engine, initial_model(trainer.build, 0), fedavg(), task.clients)


class RivalProcess:
    """A peer's process and the socket to it."""

    def __init__(self, rival: Rival, python: str, task: peer_task.PeerTask, folder: Path) -> None:
        self._log = folder / "log"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(folder / "socket"))
        listening.listen()
        scripts = folder / "scripts"
        shutil.copytree(RIVAL_SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(peer_task.__file__, scripts)
        environment = os.environ | ONE_THREAD
        environment[peer_task.SOCKET] = str(folder / "socket")
        environment[peer_task.TASK] = json.dumps(asdict(task))
        for name in ("PYTHONPATH", "PYTHONSAFEPATH"):  # they are ours, not the peer's
            environment.pop(name, None)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, str(scripts / rival.script), *rival.arguments],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._lines = self._accept(listening)
        except BaseException:
            self.close()
            raise
        finally:
            listening.close()

    def _accept(self, listening: socket.socket) -> TextIO:
        listening.settimeout(0.5)
        end = time.monotonic() + RIVAL_PATIENCE
        while time.monotonic() < end:
            try:
                self._socket, _ = listening.accept()
            except TimeoutError:
                if self._process.poll() is not None:
                    break
            else:
                self._socket.settimeout(RIVAL_PATIENCE)
                return self._socket.makefile("rw", encoding="utf-8")
        raise RunFailed(self._last_output())

    def round(self) -> float:
        """Ask for one, and hear how long it took.

        In between its processes stand still: some are busy when idle.
        """
        self._signal(signal.SIGCONT)
        print("round", file=self._lines, flush=True)
        try:
            return float(self._lines.readline())
        except (ValueError, OSError):
            raise RunFailed(self._last_output()) from None
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for process in rival_descendants(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def _last_output(self) -> str:
        """What went wrong, from what it printed: the last line that names an error."""
        printed = self._log.read_text(errors="replace").splitlines()
        lines = [line.strip() for line in printed if line.strip()]
        errors = [line for line in lines if re.match(r"\w*(Error|Exception)\b", line)]
        if not lines:
            return "it ended without a message"
        return (errors or lines)[-1][:200]

    def close(self) -> None:
        """It has nothing to save: end it and all that it has started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        if hasattr(self, "_lines"):
            with suppress(OSError):
                self._lines.close()
            self._socket.close()


def rival_descendants(process: int) -> list[int]:
    """A process and all that came of it, as Linux lists them."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    family = [process]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


@contextmanager
def running_rival(rival: Rival, python: str, task: peer_task.PeerTask) -> Iterator[RivalProcess]:
    temporary = tempfile.TemporaryDirectory(prefix="feddraw-", ignore_cleanup_errors=True)
    with temporary as folder, closing(RivalProcess(rival, python, task, Path(folder))) as peer:
        yield peer


def measure_rival(session: TimingSession, name: str) -> dict[str, Any]:
    """Theirs ÷ ours for every setting; where a system cannot be run here, why."""
    rival = RIVALS[name]
    python = session.pythons.get(rival.environment, sys.executable)
    figures: dict[str, Any] = {"title": rival.title, "cores": rival.cores}
    try:
        figures["version"] = _rival_version(python, rival.package)
        figures["left_out"] = {
            task: rival.note for task in peer_task.TASKS if task not in rival.tasks
        }
        tasks = rival.tasks[:1] if session.quick else rival.tasks
        figures["theirs_over_ours"] = {
            task: _rival_over_ours(session, rival, python, task) for task in tasks
        }
    except RunFailed as failure:
        figures["missing"] = str(failure)
    return figures


def _rival_over_ours(session: TimingSession, rival: Rival, python: str, name: str) -> Ratio:
    task = peer_task.TASKS[name]
    session.progress(f"{rival.title}: starting for {name}", 0, 1)
    with (
        running_rival(rival, python, task) as peer,
        our_round_beside_rivals(task, rival.cores) as our_round,
    ):
        works = {"theirs": peer.round, "ours": our_round}
        samples = session.interleave(f"{rival.title}, {name}", works)
    return ratio_of_times(samples["theirs"], samples["ours"])


def _rival_version(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    try:
        asked = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError as error:
        raise RunFailed(f"{python}: {error.strerror}") from None
    if asked.returncode:
        raise RunFailed(f"{package} is not installed")
    return asked.stdout.strip()
