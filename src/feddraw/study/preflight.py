"""A study before it begins: every data set opened, every scenario dealt, the network built, a few
steps timed.

Nothing is prepared or written. What stands in the way is told all at once, with what the study will
cost.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from feddraw.core import Model
from feddraw.data import image_cache
from feddraw.data.dataset import SPLITS, Dataset
from feddraw.data.image_settings import PreparationEstimate
from feddraw.errors import RunFailed, UserError
from feddraw.experiment import rehearsal, run_preparation
from feddraw.experiment.device_placement import places_for_runs
from feddraw.experiment.run_time_estimate import RunWork
from feddraw.experiment.settings import Experiment
from feddraw.results.checkpoint import extract_arrays
from feddraw.study.plan import PlannedRun, data_key
from feddraw.study.progress import StudyProgress
from feddraw.system.file_writing import nearest_existing
from feddraw.system.machine import cores, free_memory
from feddraw.text import grouped
from feddraw.training.client import client_memory_extents

PREFLIGHT_SECONDS = 95.0  # for everything, so that it ends within two minutes
LEAST_TIMING_SECONDS = 15.0

Say = Callable[[str], None]


@dataclass
class StudySurvey:
    """What was found out about a study's runs without preparing anything."""

    runs: Sequence[PlannedRun]
    finished: set[str] = field(default_factory=set)
    obstacles: dict[str, list[str]] = field(
        default_factory=dict
    )  # what is in the way, and of which runs
    looks: dict[str, tuple[Dataset, PreparationEstimate]] = field(
        default_factory=dict
    )  # by data key
    work: dict[str, RunWork] = field(default_factory=dict)  # by run
    folder_bytes: dict[str, int] = field(default_factory=dict)  # by run
    clients: dict[str, Sequence[int]] = field(
        default_factory=dict
    )  # sizes by scenario, of the first seed

    def dataset(self, experiment: Experiment) -> Dataset:
        """The one that an experiment is on."""
        return self.looks[data_key(experiment)][0]

    @contextmanager
    def noting(self, runs: Sequence[PlannedRun]) -> Iterator[None]:
        """Whatever stops these runs is noted and stops nothing else."""
        try:
            yield
        except (UserError, RunFailed) as mistake:
            self.obstacles.setdefault(str(mistake), []).extend(planned.name for planned in runs)

    @property
    def left(self) -> list[PlannedRun]:
        """Runs that have to be carried out and can be."""
        stopped = {name for names in self.obstacles.values() for name in names}
        return [planned for planned in self.runs if planned.name not in self.finished | stopped]

    def note_work(
        self, planned: PlannedRun, dealt: run_preparation.PreparedData, initial: Model | None
    ) -> None:
        task = run_preparation.prepare_task(planned.complete, dealt)
        self.work[planned.name] = RunWork.of(task)
        if initial is not None:
            task.method.check(initial.layout)
            self.folder_bytes[planned.name] = _folder_bytes(task, initial)
        self.clients.setdefault(
            planned.label["scenario"], [len(rows) for rows in dealt.training_rows]
        )

    def model_key(self, planned: PlannedRun) -> str:
        """Equal for runs with the same network on the same kind of device."""
        one = planned.complete
        return json.dumps([len(self.dataset(one).findings), one.model, one.training.device])

    def said(self) -> list[str]:
        """Each obstacle in a line."""
        return [f"{what} ({_runs_in_words(names)})" for what, names in self.obstacles.items()]


def _runs_in_words(names: Sequence[str]) -> str:
    return f"1 run: {names[0]}" if len(names) == 1 else f"{len(names)} runs, the first {names[0]}"


def survey_study(runs: Sequence[PlannedRun], out: Path, say: Say = lambda _: None) -> StudySurvey:
    """Open every data set, deal every scenario and build every network that unfinished runs
    need.
    """
    found = StudySurvey(runs)
    for planned in runs:
        with found.noting([planned]):
            found.finished |= {planned.name} if planned.is_finished(out) else set()
    for key, members in grouped(
        (data_key(planned.complete), planned) for planned in found.left
    ).items():
        say(f"opening {members[0].complete.section('data')[0]}")
        with found.noting(members):
            look = PreparationEstimate()
            found.looks[key] = (
                run_preparation.open_experiment_data(members[0].complete, estimate=look),
                look,
            )
    opened = [planned for planned in found.left if data_key(planned.complete) in found.looks]
    initial: dict[str, Model] = {}
    for key, members in grouped((found.model_key(planned), planned) for planned in opened).items():
        say(f"building {members[0].complete.section('model')[0]}")
        with found.noting(members):
            first = members[0].complete
            first.training.available_device()
            build = run_preparation.network_builder(first, len(found.dataset(first).findings))
            initial[key] = run_preparation.initial_model(
                partial(build, pretrained=True), first.seed
            )
    for members in grouped((_dealing_key(planned), planned) for planned in opened).values():
        say(f"dealing {members[0].label['scenario']}, seed {members[0].experiment.seed}")
        with found.noting(members):
            dealt = run_preparation.prepare_client_data(
                members[0].complete, found.dataset(members[0].complete)
            )
            for planned in members:
                with found.noting([planned]):
                    found.note_work(planned, dealt, initial.get(found.model_key(planned)))
    return found


def _dealing_key(planned: PlannedRun) -> str:
    one = planned.complete
    own = [one.scenario, one.partition_seed, one.folds and one.seed % one.folds, one.folds]
    return json.dumps(
        [data_key(one), own, one.holdout, one.training.batch_size, vars(one.corruption)]
    )


def _folder_bytes(task: run_preparation.PreparedTask, initial: Model) -> int:
    """Of a run's folder: the model, what is kept beside it, the checkpoint, and the scores of all
    test images.
    """
    model = initial.params.nbytes + initial.buffers.nbytes + initial.counters.nbytes
    kept = int(task.experiment.keep.best) + bool(task.experiment.keep.tail)
    memory = client_memory_extents(task.method.local, task.experiment.training)
    remembered = sum(map(initial.layout.extent, memory.values()))
    arrays: dict[str, NDArray[Any]] = {}
    extract_arrays(task.method.init(initial), "state", arrays)
    state = sum(array.nbytes for array in arrays.values())
    tested = sum(len(task.dataset.rows[split]) for split in SPLITS[1:]) + sum(
        map(len, task.holdout_rows)
    )
    scores = tested * (5 * len(task.dataset.findings) + 16)
    return model * (2 + 2 * kept) + 4 * remembered * len(task.clients) + state + scores


@dataclass(frozen=True)
class Preflight:
    """What a study will cost here, and what is in its way."""

    survey: StudySurvey
    devices: tuple[str, ...]  # one for each worker
    timed: Mapping[str, rehearsal.RehearsedTimes]  # by method, the first of each kind
    seconds: float  # of all runs; 0 where nothing was timed
    preparing: float  # seconds
    cache_bytes: int
    folder_bytes: int
    memory: int  # bytes of one worker
    obstacles: tuple[str, ...]

    def table(self) -> dict[str, Any]:
        """As one document."""
        found = self.survey
        return {
            "runs": len(found.runs),
            "finished": len(found.finished),
            "devices": list(self.devices),
            "hours": round(self.seconds / 3600, 3),
            "preparation_hours": round(self.preparing / 3600, 3),
            "cache_bytes": self.cache_bytes,
            "folder_bytes": self.folder_bytes,
            "memory_bytes_per_worker": self.memory,
            "data": [_described_dataset(dataset, look) for dataset, look in found.looks.values()],
            "scenarios": {name: list(sizes) for name, sizes in found.clients.items()},
            "timed": {name: vars(one) for name, one in self.timed.items()},
            "obstacles": list(self.obstacles),
        }


def _described_dataset(dataset: Dataset, look: PreparationEstimate) -> dict[str, Any]:
    images: dict[str, Any] = {split: len(dataset.rows[split]) for split in SPLITS}
    return {
        "name": dataset.name,
        **images,
        "to_prepare": look.images,
        "bytes": sum(look.bytes.values()),
    }


def preflight(
    runs: Sequence[PlannedRun],
    out: Path,
    workers: int = 0,
    devices: str = "",
    say: Say = lambda _: None,
) -> Preflight:
    """All that can be known of a study before it begins, with so many workers, or as many as the
    devices hold.
    """
    began = time.monotonic()
    found = survey_study(runs, out, say)
    left, obstacles = found.left, found.said()
    places: Sequence[str] = ()
    timed: dict[str, rehearsal.RehearsedTimes] = {}
    expected: dict[str, float] = {}
    try:
        asked = [planned.experiment for planned in left or runs]
        places = [place.device for place in places_for_runs(asked, workers, devices)]
        if left:
            say("timing a few training steps")
            time_left = PREFLIGHT_SECONDS - (time.monotonic() - began)
            seconds = max(LEAST_TIMING_SECONDS, min(rehearsal.REHEARSAL_SECONDS, time_left))
            timed, expected = _expected_times(found, left, places, seconds)
    except (UserError, RunFailed) as mistake:
        obstacles += [] if any(str(mistake) in one for one in obstacles) else [str(mistake)]
    looks = [look for _, look in found.looks.values()]
    images = {entry: size for look in looks for entry, size in look.bytes.items()}
    folders = sum(found.folder_bytes[planned.name] for planned in left)
    memory = max((one.memory for one in timed.values()), default=0)
    obstacles += _full_disks({image_cache.cache_folder(): sum(images.values()), out: folders})
    obstacles += _too_little_memory(memory, places)
    seconds = StudyProgress([], len(places), expected).seconds_left(list(expected)) or 0.0
    preparing = sum(look.seconds for look in looks) / cores()
    costs = (seconds, preparing, sum(images.values()), folders, memory)
    return Preflight(found, tuple(places), timed, *costs, tuple(obstacles))


def _expected_times(
    found: StudySurvey, runs: Sequence[PlannedRun], devices: Sequence[str], seconds: float
) -> tuple[dict[str, rehearsal.RehearsedTimes], dict[str, float]]:
    """What was timed, by the first method of its kind; and seconds by run."""
    kinds = grouped((rehearsal.time_profile(planned.complete), planned) for planned in runs)
    firsts = [members[0] for members in kinds.values()]
    findings = len(found.dataset(firsts[0].complete).findings)
    on_phantoms = [_on_phantoms(planned.complete) for planned in firsts]
    times = rehearsal.rehearse_step_times(on_phantoms, findings, devices, seconds)
    expected: dict[str, float] = {}
    for members, one in zip(kinds.values(), times, strict=True):
        expected |= {planned.name: one.seconds(found.work[planned.name]) for planned in members}
    return {
        planned.label["method"]: one for planned, one in zip(firsts, times, strict=True)
    }, expected


def _on_phantoms(experiment: Experiment) -> Experiment:
    """The experiment on phantoms, for which a worker needs no files."""
    return replace(
        experiment,
        data={"name": "phantom", "size": experiment.section("data")[1]["size"]},
        engine="serial",
    )


def _full_disks(needed: Mapping[Path, int]) -> Iterator[str]:
    """Folders whose disk has no room for what comes there; two may be on one disk."""
    there = [(nearest_existing(folder.absolute()), size) for folder, size in needed.items()]
    for members in grouped(
        (folder.stat().st_dev, (folder, size)) for folder, size in there
    ).values():
        total, free = sum(size for _, size in members), shutil.disk_usage(members[0][0]).free
        if total > free:
            where = " and ".join(str(folder) for folder, _ in members)
            advice = (
                "make room, or name other folders (FEDDRAW_CACHE for prepared images, --out for"
                " runs)"
            )
            yield (
                f"the disk of {where} needs {total / 1e9:.1f} GB and has {free / 1e9:.1f} GB free:"
                f" {advice}"
            )


def _too_little_memory(memory: int, devices: Sequence[str]) -> Iterator[str]:
    here, free = sum(device.startswith("cpu") for device in devices), free_memory()
    if memory and here * memory > free:
        there = f"the {free / 1e9:.1f} GB of memory that are free"
        advice = f"give --workers {max(1, int(free // memory))}"
        advice += ", or a smaller training.batch_size" if memory > free else ""
        yield f"{here} workers of {memory / 1e9:.1f} GB each do not fit into {there}: {advice}"
