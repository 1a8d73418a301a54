"""Run a run again and compare: the same settings must give the same bits, on the machine that gave
them.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.experiment.running import iterate
from feddraw.experiment.settings import Experiment
from feddraw.results.kept_models import KEPT_MODELS
from feddraw.results.recorded_run import damage_told
from feddraw.results.run_folder import CLOCK_FIELDS, RunFolder
from feddraw.server.round import RoundResult
from feddraw.system.file_reading import read_csv, read_json, read_jsonl, read_toml, sha256_of
from feddraw.text import grouped

COMPARED_FILES = (
    "model",
    "metrics",
    "predictions",
)  # files of a finished run that must have the same bytes


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


def verify(
    path: Path,
    rounds: int = 0,
    *,
    trust: bool = False,
    changes: Mapping[str, Any] | None = None,
    on_round: Callable[[RoundResult], None] | None = None,
) -> Verification:
    """Repeat a run, or its first rounds, in a temporary folder, and compare."""
    there = RunFolder(path)
    experiment = Experiment.read(there.settings, trust=trust)
    done = len(read_jsonl(there.rounds))
    wanted = rounds or experiment.rounds
    if not 0 < wanted <= experiment.rounds:
        raise UserError(f"--rounds must be from 1 to {experiment.rounds}, not {rounds}")
    if wanted > done or (wanted == experiment.rounds and not there.metrics.is_file()):
        raise UserError(
            f"{path} is not finished: verify its first {done} rounds with --rounds, or finish it"
            " first"
        )
    with tempfile.TemporaryDirectory(prefix="feddraw-verify-") as folder:
        here = RunFolder(Path(folder) / "again")
        for result in islice(iterate(experiment.with_settings(changes or {}), here.path), wanted):
            if on_round is not None:
                on_round(result)
        found = list(_compared_hashes(there, here, wanted, wanted == experiment.rounds))
        moved = tuple(_differing_environment(there, read_json(here.environment)))
    equal = tuple((what, one) for what, one, other in found if one == other)
    different = tuple(what for what, one, other in found if one != other)
    return Verification(wanted, wanted == experiment.rounds, equal, different, moved)


def _compared_hashes(
    there: RunFolder, here: RunFolder, rounds: int, finished: bool
) -> Iterator[tuple[str, str, str]]:
    """What is compared, with its hash in the one folder and in the other; the earliest
    round first.
    """
    parts = [read_toml(folder.settings).get("partition") for folder in (there, here)]
    first, second = (part if isinstance(part, dict) else {} for part in parts)
    both = sorted(first.keys() & second.keys())  # runs of earlier versions say less
    yield (
        "the clients' images",
        _value_hash([first[key] for key in both]),
        _value_hash([second[key] for key in both]),
    )
    for name in ("rounds.jsonl", "weights.csv"):
        lines = [_lines_to_verify(folder, name) for folder in (there, here)]
        for round in range(rounds):
            yield (
                f"{name} of round {round}",
                _value_hash(lines[0].get(round)),
                _value_hash(lines[1].get(round)),
            )
    for name in (*COMPARED_FILES, *KEPT_MODELS) if finished else ():
        files = [getattr(folder, name) for folder in (there, here)]
        if name in KEPT_MODELS and not any(file.is_file() for file in files):
            continue
        yield (
            files[0].name,
            *(sha256_of(file)[:16] if file.is_file() else "missing" for file in files),
        )


def _lines_to_verify(folder: RunFolder, name: str) -> dict[int, list[Any]]:
    """By round, all that does not depend on the clock; a blank cell is as good as a column that was
    not there yet.
    """
    entries: list[dict[str, Any]] = (
        read_jsonl(folder.rounds) if name == "rounds.jsonl" else [*read_csv(folder.ledger)]
    )
    said = [
        {key: one for key, one in entry.items() if key not in CLOCK_FIELDS and one != ""}
        for entry in entries
    ]
    with damage_told(folder.path / name):
        return grouped((int(entry["round"]), entry) for entry in said)


def _value_hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _differing_environment(there: RunFolder, now: Mapping[str, Any]) -> Iterator[str]:
    """Why bits may differ: other versions, another processor, another GPU or what computes
    on it.
    """
    before = read_json(there.environment) if there.environment.is_file() else {}
    packages = before.get("packages")
    for name, version in (packages if isinstance(packages, dict) else {}).items():
        if now["packages"].get(name, "none") != version:
            yield f"{name} {version}, now {now['packages'].get(name, 'none')}"
    for key in ("python", "processor"):
        if before.get(key) != now[key]:
            yield f"{key} {before.get(key, 'unknown')}, now {now[key]}"
    devices = [_device_kinds_to_verify(about) for about in (before, now)]
    if "devices" in before and devices[0] != devices[1]:
        yield f"trained on {devices[0]}, now {devices[1]}"
    old, new = (
        about["cuda"] if isinstance(about.get("cuda"), dict) else {} for about in (before, now)
    )
    for key in sorted(old.keys() & new.keys()):
        if old[key] != new[key]:
            yield f"{key} {old[key]}, now {new[key]}"


def _device_kinds_to_verify(about: Mapping[str, Any]) -> str:
    """The kinds of device that a run was trained on; of GPUs their names, for one is not like
    another.
    """
    written = about.get("devices")
    devices = [one for one in written if isinstance(one, dict)] if isinstance(written, list) else []
    return ", ".join(sorted({str(one.get("name") or one.get("type")) for one in devices}))
