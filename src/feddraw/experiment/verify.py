"""Run a run again and compare: the same settings must give the same bits, on the machine that gave
them.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.experiment.running import iterate
from feddraw.experiment.settings import Experiment
from feddraw.results.environment import table_in_environment
from feddraw.results.find_runs import require_run
from feddraw.results.metrics import KEPT_MODELS
from feddraw.results.recorded_run import RecordedRun, read_run
from feddraw.results.round_log import CLOCK_FIELDS, EvaluatedRound
from feddraw.results.run_folder import RunFolder
from feddraw.system.file_reading import sha256_of
from feddraw.system.file_writing import json_values
from feddraw.text import grouped

# Files of a finished run that must have the same bytes.
COMPARED_FILES = ("model", "metrics", "predictions")


@dataclass(frozen=True)
class Verification:
    """What was found equal and what was not, each by the name of its file and round."""

    rounds: int
    finished: bool  # to the end, with the final files
    equal: tuple[tuple[str, str], ...]  # what, and the hash that both have
    different: tuple[str, ...]
    other_environment: tuple[str, ...]  # what is not as it was when the run was made

    @property
    def same(self) -> bool:
        return not self.different


@dataclass(frozen=True)
class Compared:
    """Something that both runs have, with its hash in the one and in the other."""

    what: str
    before: str
    again: str

    @property
    def same(self) -> bool:
        return self.before == self.again


def verify(
    path: Path,
    rounds: int = 0,
    *,
    trust: bool = False,
    changes: Mapping[str, Any] | None = None,
    on_round: Callable[[EvaluatedRound], None] | None = None,
) -> Verification:
    """Repeat a run, or its first rounds, in a temporary folder, and compare."""
    require_run(path)
    before = read_run(path)
    if before.of_server:
        raise UserError(
            f"{path} is the folder of a server, without settings: it cannot be run again from it"
        )
    experiment = Experiment.read(RunFolder(path).settings, trust=trust)
    done = len(before.rounds)
    wanted = rounds or experiment.rounds
    to_the_end = wanted == experiment.rounds
    if not 0 < wanted <= experiment.rounds:
        raise UserError(f"--rounds must be from 1 to {experiment.rounds}, not {rounds}")
    if wanted > done or (to_the_end and not before.finished):
        raise UserError(
            f"{path} is not finished: verify its first {done} rounds with --rounds, or finish it"
            " first"
        )
    changes = {"track": "", **(changes or {})}  # the trial is shown to nobody
    with tempfile.TemporaryDirectory(prefix="feddraw-verify-") as folder:
        place = Path(folder) / "again"
        for result in islice(iterate(experiment.with_settings(changes), place), wanted):
            if on_round is not None:
                on_round(result)
        again = read_run(place)
        compared = [*compare_records(before, again, wanted)]
        if to_the_end:
            compared += compare_files(RunFolder(path), RunFolder(place))
        moved = tuple(differing_environment(before.environment, again.environment))
    return Verification(
        rounds=wanted,
        finished=to_the_end,
        equal=tuple((item.what, item.before) for item in compared if item.same),
        different=tuple(item.what for item in compared if not item.same),
        other_environment=moved,
    )


def compare_records(before: RecordedRun, again: RecordedRun, rounds: int) -> Iterator[Compared]:
    """Who was dealt what, and what was written down of every round; the earliest round first."""
    yield Compared("the clients' images", value_hash(before.partition), value_hash(again.partition))
    for name, lines_of in (("rounds.jsonl", _log_by_round), ("weights.csv", _ledger_by_round)):
        lines_before = lines_of(before)
        lines_again = lines_of(again)
        for round in range(rounds):
            yield Compared(
                what=f"{name} of round {round}",
                before=value_hash(lines_before.get(round)),
                again=value_hash(lines_again.get(round)),
            )


def compare_files(before: RunFolder, again: RunFolder) -> Iterator[Compared]:
    """The last files of two finished runs."""
    for name in (*COMPARED_FILES, *KEPT_MODELS):
        file_before: Path = getattr(before, name)
        file_again: Path = getattr(again, name)
        if name in KEPT_MODELS and not (file_before.is_file() or file_again.is_file()):
            continue
        yield Compared(file_before.name, file_hash(file_before), file_hash(file_again))


def _log_by_round(run: RecordedRun) -> dict[int, Any]:
    """Of each round's line, all that does not depend on the clock."""
    documents = {line.round: json_values(line.document()) for line in run.rounds}
    return {
        round: {name: value for name, value in document.items() if name not in CLOCK_FIELDS}
        for round, document in documents.items()
    }


def _ledger_by_round(run: RecordedRun) -> dict[int, list[str]]:
    """What each round's entries say, as text: there, an undefined number equals another."""
    return grouped((entry.round, repr(entry)) for entry in run.entries)


def value_hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_hash(path: Path) -> str:
    return sha256_of(path)[:16] if path.is_file() else "missing"


def differing_environment(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Why bits may differ: other versions, another processor, another GPU or what computes
    on it.
    """
    packages_now = table_in_environment(now, "packages")
    for name, version in table_in_environment(before, "packages").items():
        if packages_now.get(name, "none") != version:
            yield f"{name} {version}, now {packages_now.get(name, 'none')}"
    for key in ("python", "processor"):
        if before.get(key) != now[key]:
            yield f"{key} {before.get(key, 'unknown')}, now {now[key]}"
    devices_before = _device_kinds(before)
    devices_now = _device_kinds(now)
    if "devices" in before and devices_before != devices_now:
        yield f"trained on {devices_before}, now {devices_now}"
    cuda_before = table_in_environment(before, "cuda")
    cuda_now = table_in_environment(now, "cuda")
    for key in sorted(cuda_before.keys() & cuda_now.keys()):
        if cuda_before[key] != cuda_now[key]:
            yield f"{key} {cuda_before[key]}, now {cuda_now[key]}"


def _device_kinds(environment: Mapping[str, Any]) -> str:
    """The kinds of device that a run was trained on; of GPUs their names, for one is not like
    another.
    """
    written = environment.get("devices")
    devices = written if isinstance(written, list) else []
    kinds = {
        str(device.get("name") or device.get("type"))
        for device in devices
        if isinstance(device, dict)
    }
    return ", ".join(sorted(kinds))
