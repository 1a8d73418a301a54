"""Kill runs, studies and preparations of data with SIGKILL, start them again, and compare with the
undisturbed ones.

    python tests/faults/kills.py [--kills 320] [--seconds 0] [--seed 0]

Moments are chosen at the calls that an undisturbed command makes (half-written files among them)
and at random from outside. A command is killed up to three times before it may finish. Ends with a
table by phase, and with exit code 1 if a single byte of a final model, ledger, metrics or prepared
image differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from crash import Ended, Moment, calls, command, killed_after
from PIL import Image
from safetensors import safe_open

from feddraw import catalog
from feddraw.results.round_log import CLOCK_FIELDS

ROUNDS = 6
SMALL = (
    "--scenario",
    "quantity",
    "--set",
    "scenario.clients=3",
    "--size",
    "28",
    "--set",
    "data.train=96",
    "--set",
    "data.validation=48",
    "--set",
    "data.test=48",
    "--set",
    "model.growth=8",
    "--rounds",
    str(ROUNDS),
    "--epochs",
    "1",
    "--batch-size",
    "16",
)
STUDY = """
rounds = 3
seed = [0, 1]
engine = "serial"
method = ["feddraw", "scaffold"]
data = {name = "phantom", size = 28, train = 96, validation = 48, test = 48}
scenario = {name = "quantity", clients = 3, scale = 1.0}
model = {name = "compact", growth = 8}
training = {epochs = 1, batch_size = 16}
"""
OUTSIDE = "a random moment"


# ----------------------------------------------------------------------------------- what is killed


@dataclass
class Subject:
    """A command that writes to a folder, and how to tell what it has done."""

    name: str
    room: Path
    seen: Counter[str] = field(default_factory=Counter)

    def words(self, folder: Path, *, again: bool) -> Sequence[str]:
        raise NotImplementedError

    def progress(self, folder: Path) -> int:
        """Rounds, chunks or runs that are done."""
        raise NotImplementedError

    def complete(self, folder: Path) -> bool:
        raise NotImplementedError

    def outcome(self, folder: Path) -> dict[str, bytes]:
        """What must not differ."""
        raise NotImplementedError

    def between(self, folder: Path) -> bool:
        """After the first round, chunk or run has been kept, and before the last."""
        return self.progress(folder) >= 1 and not self.complete(folder)

    @cached_property
    def reference(self) -> Path:
        """An undisturbed one."""
        folder = self.room / "reference"
        ended = command(self.words(folder, again=False), self.room / "reference.log")
        assert ended.code == 0, ended.said
        self.seconds = ended.seconds
        return folder

    @cached_property
    def moments(self) -> list[tuple[Moment, bool]]:
        """Every call of every point, and whether it comes between the first and the last round."""
        folder = self.room / "weighted"
        found = calls(
            self.words(folder, again=False),
            self.room / "counted.log",
            lambda: self.progress(folder),
        )
        last, numbers, moments = max(done for _, done in found), Counter[str](), []
        for point, done in found:
            moments.append((Moment(point, numbers[point]), 1 <= done < last))
            numbers[point] += 1
        return moments


class Run(Subject):
    """`feddraw run`"""

    def __init__(self, name: str, room: Path, method: str, *how: str) -> None:
        super().__init__(name, room)
        self.how = (*SMALL, "--method", method, *how)

    def words(self, folder: Path, *, again: bool) -> Sequence[str]:
        return ("run", *self.how, "--out", str(folder), *(("--resume",) if again else ()))

    def progress(self, folder: Path) -> int:
        file = folder / "checkpoint" / "state.safetensors"
        if not file.is_file():
            return 0
        with safe_open(file, "np") as opened:
            return int(json.loads(opened.metadata()["feddraw"])["next_round"])

    def complete(self, folder: Path) -> bool:
        return self.progress(folder) == ROUNDS

    def outcome(self, folder: Path) -> dict[str, bytes]:
        return outcome_of_run(folder)


def outcome_of_run(folder: Path) -> dict[str, bytes]:
    """Every file of a run but for the environment; of the log everything but the seconds."""
    names = [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "environment.json"
    ]
    files = {str(file.relative_to(folder)): file.read_bytes() for file in names}
    lines = [
        json.loads(line) | dict.fromkeys(CLOCK_FIELDS)
        for line in files["rounds.jsonl"].splitlines()
    ]
    return files | {"rounds.jsonl": json.dumps(lines).encode()}


class Study(Subject):
    """`feddraw study`, which also adds to a table that other studies share"""

    def __init__(self, name: str, room: Path) -> None:
        super().__init__(name, room)
        self.file = room / "study.toml"
        self.file.write_text(STUDY, encoding="utf-8")

    def words(self, folder: Path, *, again: bool) -> Sequence[str]:
        return (
            "study",
            str(self.file),
            "--out",
            str(folder),
            "--workers",
            "1",
            "--done",
            str(folder / "done.csv"),
        )

    def progress(self, folder: Path) -> int:
        return sum(1 for _ in folder.glob("*/checkpoint/state.safetensors"))

    def complete(self, folder: Path) -> bool:
        return len(list(folder.glob("*/metrics.json"))) == 4

    def outcome(self, folder: Path) -> dict[str, bytes]:
        runs = sorted(file.parent for file in folder.glob("*/metrics.json"))
        found = {
            f"{run.name}/{name}": data for run in runs for name, data in outcome_of_run(run).items()
        }
        return found | {name: rows_of(folder / name) for name in ("runs.csv", "done.csv")}


def rows_of(path: Path) -> bytes:
    """A study's table but for the seconds."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = sorted(
            ({**row, "seconds": ""} for row in csv.DictReader(file)), key=lambda row: row["run"]
        )
    return json.dumps(rows).encode()


class Preparation(Subject):
    """`feddraw data prepare`"""

    def __init__(self, name: str, room: Path, images: int = 160) -> None:
        super().__init__(name, room)
        rng = np.random.default_rng(0)
        (room / "images").mkdir()
        lines = ["path,Edema,split"]
        for number in range(images):
            Image.fromarray(rng.integers(0, 256, (40, 30), dtype=np.uint8)).save(
                room / "images" / f"{number}.png"
            )
            lines.append(f"images/{number}.png,{number % 2},{('train', 'val', 'test')[number % 3]}")
        (room / "images" / "77.png").write_bytes(b"not an image")
        (room / "table.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def words(self, folder: Path, *, again: bool) -> Sequence[str]:
        os.environ["FEDDRAW_CACHE"] = str(folder)
        table = str(self.room / "table.csv")
        return (
            "data",
            "prepare",
            "folder",
            table,
            "--size",
            "32",
            "--workers",
            "1",
            "--skip-bad",
            "--no-clahe",
        )

    def progress(self, folder: Path) -> int:
        return sum(len(log.read_bytes().splitlines()) for log in folder.glob("*/progress.jsonl"))

    def complete(self, folder: Path) -> bool:
        return any(folder.glob("*/images.npy"))

    def outcome(self, folder: Path) -> dict[str, bytes]:
        names = ("images.npy", "bad.json", "about.json", "skipped.csv")
        return {name: next(folder.glob(f"*/{name}")).read_bytes() for name in names}


# ------------------------------------------------------------------------------------------ killing


@dataclass(frozen=True)
class Kill:
    phase: str
    between: bool


@dataclass
class Tally:
    kills: list[Kill] = field(default_factory=list)
    cases: int = 0
    differences: list[str] = field(default_factory=list)


def one_case(subject: Subject, first: Moment | None, rng: random.Random, tally: Tally) -> None:
    """Kill a command at a moment, or at any, perhaps again on its way to the end, and compare what
    it comes to.
    """
    folder = Path(tempfile.mkdtemp(dir=subject.room)) / "out"
    log = folder.with_name("log")
    expected = subject.outcome(subject.reference)
    moments: list[Moment | None] = [first] + [
        later(subject, rng) for _ in range(rng.choice((0, 0, 1, 2)))
    ]
    history = []
    for number, moment in enumerate(moments):
        words = subject.words(folder, again=number > 0)
        ended = strike(subject, words, folder, log, moment, rng)
        if ended.code >= 0:
            break  # it was through before the moment came
        phase = moment.point if moment else OUTSIDE
        tally.kills.append(Kill(f"{subject.name}: {phase}", subject.between(folder)))
        history.append(f"{phase} {moment.call if moment else ''} after {subject.progress(folder)}")
    ended = command(subject.words(folder, again=True), log)
    tally.cases += 1
    if ended.code:
        tally.differences.append(
            f"{subject.name} ({'; '.join(history)}): exit {ended.code}, {ended.said[-500:]}"
        )
    elif (found := subject.outcome(folder)) != expected:
        bad = sorted(
            name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)
        )
        tally.differences.append(
            f"{subject.name} ({'; '.join(history)}): {', '.join(bad)} differ, see {folder}"
        )
        return
    shutil.rmtree(folder.parent)


def later(subject: Subject, rng: random.Random) -> Moment | None:
    """A moment for a command that goes on: near its beginning, so that it comes to pass."""
    points = sorted({moment.point for moment, _ in subject.moments})
    return None if rng.random() < 0.3 else Moment(rng.choice(points), rng.randrange(8))


def strike(
    subject: Subject,
    words: Sequence[str],
    folder: Path,
    log: Path,
    moment: Moment | None,
    rng: random.Random,
) -> Ended:
    if moment is not None:
        return command(words, log, moment)
    soon = rng.random() < 0.1
    begun: Callable[[], bool] = (lambda: True) if soon else (lambda: subject.progress(folder) >= 1)
    return killed_after(words, log, rng.random() * 0.6 * subject.seconds, begun)


def choose(subject: Subject, rng: random.Random) -> Moment | None:
    """One in four from outside; of the rest nine in ten between the first and the last round, every
    point alike.
    """
    if rng.random() < 0.25:
        return None
    middle = rng.random() < 0.9
    found = [moment for moment, between in subject.moments if between == middle]
    least = min(subject.seen[moment.point] for moment in found)
    moment = rng.choice([moment for moment in found if subject.seen[moment.point] == least])
    subject.seen[moment.point] += 1
    return moment


def subjects(room: Path, rng: random.Random, *, quick: bool) -> list[tuple[Subject, int]]:
    """What is killed, and how often in comparison."""
    methods = ["scaffold", "feddyn"] if quick else catalog.names("methods")
    serial, stream = ("--engine", "serial"), ("--set", "stream=true")
    quicker = {"fedlaw": ("--set", "method.epochs=1")}  # learns its weights for seconds else
    found: list[tuple[Subject, int]] = [
        (
            Run("run", place(room, method), method, *serial, *quicker.get(method, ())),
            3 if quick else 1,
        )
        for method in methods
    ]
    found.append(
        (Run("run, streaming", place(room, "stream"), "ditto", *serial, *stream), 1 if quick else 4)
    )
    if not quick:
        workers = ("--engine", "processes", "--workers", "2")
        found.append((Run("run, two workers", place(room, "workers"), "moon", *workers), 4))
        found.append(
            (Run("run, workers, streaming", place(room, "both"), "feddraw", *workers, *stream), 3)
        )
    found.append((Preparation("preparing data", place(room, "data")), 2 if quick else 4))
    found.append((Study("study", place(room, "study")), 1 if quick else 8))
    return found


def place(room: Path, name: str) -> Path:
    (room / name).mkdir()
    return room / name


# ---------------------------------------------------------------------------------------- the table


def table(tally: Tally, seconds: float) -> str:
    phases = Counter(kill.phase for kill in tally.kills)
    middle = Counter(kill.phase for kill in tally.kills if kill.between)
    width = max(map(len, phases), default=0)
    lines = [f"{'phase':<{width}}  kills  between first and last"]
    lines += [
        f"{phase:<{width}}  {count:>5}  {middle[phase]:>5}"
        for phase, count in sorted(phases.items())
    ]
    total, inside = len(tally.kills), sum(middle.values())
    share = f" ({inside / total:.0%})" if total else ""
    lines.append(f"{'all':<{width}}  {total:>5}  {inside:>5}{share}")
    lines.append(
        f"{tally.cases} commands killed and started again in {seconds:.0f} s:"
        f" {len(tally.differences)} differences"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=320)
    parser.add_argument(
        "--seconds", type=float, default=0, help="stop after so many seconds; fewer subjects"
    )
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng, tally, began = random.Random(chosen.seed), Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as room:
        pairs = subjects(Path(room), rng, quick=bool(chosen.seconds))
        while len(tally.kills) < chosen.kills:
            if chosen.seconds and time.monotonic() - began > chosen.seconds:
                break
            (subject,) = rng.choices([one for one, _ in pairs], [weight for _, weight in pairs])
            one_case(subject, choose(subject, rng), rng, tally)
            print(
                f"{len(tally.kills)} kills, {len(tally.differences)} differences",
                file=sys.stderr,
                flush=True,
            )
    print(table(tally, time.monotonic() - began))
    print(*tally.differences, sep="\n")
    sys.exit(bool(tally.differences))


if __name__ == "__main__":
    main()
