"""A study before it begins: every data set opened, every scenario partitioned, the network built, a
few steps timed.

Nothing is prepared or written. What stands in the way is told all at once, with what the study will
cost.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Model
from feddraw.data import image_cache
from feddraw.data.dataset import SPLITS, Dataset
from feddraw.data.image_settings import PreparationEstimate
from feddraw.errors import RunFailed, UserError
from feddraw.experiment import frozen_features, run_preparation
from feddraw.experiment.device_placement import places_for_runs
from feddraw.experiment.frozen_features import FeatureEstimate
from feddraw.experiment.settings import Experiment
from feddraw.results.checkpoint import extract_arrays
from feddraw.results.kept_updates import bytes_of_updates
from feddraw.study.cost import RunWork, StepCost
from feddraw.study.plan import PlannedRun, data_key
from feddraw.study.timing_on_made_up_images import cost_profile, time_experiments
from feddraw.system.file_writing import nearest_existing
from feddraw.system.machine import cores, free_memory
from feddraw.system.time_left import seconds_until_all_done
from feddraw.text import bytes_in_words, grouped
from feddraw.training.client import client_memory_extents
from feddraw.training.devices import WorkerPlace

PREFLIGHT_SECONDS = 95.0  # for everything, so that it ends within two minutes
LEAST_TIMING_SECONDS = 15.0
MOST_TIMING_SECONDS = 45.0

Say = Callable[[str], None]


@dataclass
class StudySurvey:
    """What was found out about a study's runs without preparing anything."""

    runs: Sequence[PlannedRun]
    finished: set[str] = field(default_factory=set)
    # what is in the way, and of which runs
    obstacles: dict[str, list[str]] = field(default_factory=dict)
    # by data key: the data set, and what preparing its images takes
    opened: dict[str, tuple[Dataset, PreparationEstimate]] = field(default_factory=dict)
    work: dict[str, RunWork] = field(default_factory=dict)  # by run
    folder_bytes: dict[str, int] = field(default_factory=dict)  # by run
    initial: dict[str, Model] = field(default_factory=dict)  # by `model_key`
    # by data and network of runs that train on features: the first run, and the rows of all
    on_features: dict[str, tuple[PlannedRun, list[NDArray[np.intp]]]] = field(default_factory=dict)
    # sizes by scenario, of the first seed
    clients: dict[str, Sequence[int]] = field(default_factory=dict)

    def dataset(self, experiment: Experiment) -> Dataset:
        """The data set that an experiment is on."""
        return self.opened[data_key(experiment)][0]

    @property
    def preparations(self) -> list[PreparationEstimate]:
        """What preparing each data set takes."""
        return [preparation for _, preparation in self.opened.values()]

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
        self, planned: PlannedRun, data: run_preparation.PreparedData, initial: Model | None
    ) -> None:
        """How much a run has to do, and how much it will write."""
        task = run_preparation.prepare_task(planned.completed, data)
        self.work[planned.name] = RunWork.of_task(task)
        if initial is not None:
            task.method.check(initial.layout)
            self.folder_bytes[planned.name] = _folder_bytes(task, initial)
        if planned.completed.trains_on_features:
            images = len(data.dataset.images)
            rows = frozen_features.rows_of_features(
                planned.completed, images, data.training_rows, data.evaluated_rows()
            )
            key = json.dumps([data_key(planned.completed), self.model_key(planned)])
            self.on_features.setdefault(key, (planned, []))[1].append(rows)
        sizes = [len(rows) for rows in data.training_rows]
        self.clients.setdefault(planned.label["scenario"], sizes)

    def model_key(self, planned: PlannedRun) -> str:
        """Equal for runs with the same network on the same kind of device."""
        experiment = planned.completed
        findings = len(self.dataset(experiment).findings)
        network = [findings, experiment.channels, experiment.model]
        return json.dumps([*network, experiment.training.device])

    def obstacle_lines(self) -> list[str]:
        """Each obstacle in a line."""
        return [f"{what} ({_runs_in_words(names)})" for what, names in self.obstacles.items()]


def features_to_compute(survey: StudySurvey) -> list[FeatureEstimate]:
    """What the features take that runs need and nobody has computed, by data set and network."""
    estimates = []
    for planned, rows in survey.on_features.values():
        experiment = planned.completed
        dataset, preparation = survey.opened[data_key(experiment)]
        model = survey.initial.get(survey.model_key(planned))
        if model is None:
            continue
        build = run_preparation.network_builder(experiment, len(dataset.findings))
        backbone = frozen_features.backbone_of(experiment, build, model.layout.frozen)
        needed = np.unique(np.concatenate(rows))
        estimates.append(
            frozen_features.estimate_features(
                experiment, dataset, backbone, needed, prepared=not preparation.images
            )
        )
    return estimates


def _runs_in_words(names: Sequence[str]) -> str:
    return f"1 run: {names[0]}" if len(names) == 1 else f"{len(names)} runs, the first {names[0]}"


def survey_study(runs: Sequence[PlannedRun], out: Path, say: Say = lambda _: None) -> StudySurvey:
    """Open every data set, partition every scenario and build every network that unfinished runs
    need.
    """
    survey = StudySurvey(runs)
    for planned in runs:
        with survey.noting([planned]):
            if planned.is_finished(out):
                survey.finished.add(planned.name)

    by_data = grouped((data_key(planned.completed), planned) for planned in survey.left)
    for key, members in by_data.items():
        first = members[0].completed
        say(f"opening {first.section('data')[0]}")
        with survey.noting(members):
            preparation = PreparationEstimate()
            dataset = run_preparation.open_experiment_data(first, estimate=preparation)
            survey.opened[key] = (dataset, preparation)
    with_data = [planned for planned in survey.left if data_key(planned.completed) in survey.opened]

    by_network = grouped((survey.model_key(planned), planned) for planned in with_data)
    for key, members in by_network.items():
        first = members[0].completed
        say(f"building {first.section('model')[0]}")
        with survey.noting(members):
            first.training.available_device()
            build = run_preparation.trained_builder(first, len(survey.dataset(first).findings))
            pretrained = partial(build, pretrained=True)
            survey.initial[key] = run_preparation.initial_model(pretrained, first.seed)

    by_partition = grouped((_partition_key(planned.completed), planned) for planned in with_data)
    for members in by_partition.values():
        first = members[0].completed
        say(f"partitioning {members[0].label['scenario']}, seed {first.seed}")
        with survey.noting(members):
            data = run_preparation.prepare_client_data(first, survey.dataset(first))
            for planned in members:
                with survey.noting([planned]):
                    survey.note_work(planned, data, survey.initial.get(survey.model_key(planned)))
    return survey


def _partition_key(experiment: Experiment) -> str:
    """Equal for experiments whose clients have the same images."""
    return json.dumps(
        {
            "data": data_key(experiment),
            "scenario": experiment.scenario,
            "seed": experiment.partition_seed,
            "folds": experiment.folds,
            "fold": experiment.seed % experiment.folds if experiment.folds else 0,
            "holdout": experiment.holdout,
            "batch size": experiment.training.batch_size,  # too few images for a step are refused
            "corruption": vars(experiment.corruption),
        }
    )


def _folder_bytes(task: run_preparation.PreparedTask, initial: Model) -> int:
    """Of a run's folder: the model, what is kept beside it, the checkpoint, and the scores of all
    test images.
    """
    model = initial.params.nbytes + initial.buffers.nbytes + initial.counters.nbytes
    kept = int(task.experiment.keep.best) + bool(task.experiment.keep.tail)
    models = model * (2 + 2 * kept)  # each also in the checkpoint

    memory = client_memory_extents(task.method.local, task.experiment.training)
    remembered = 4 * sum(map(initial.layout.extent, memory.values())) * len(task.clients)

    arrays: dict[str, NDArray[Any]] = {}
    extract_arrays(task.method.init(initial), "state", arrays)
    state = sum(array.nbytes for array in arrays.values())

    tested = sum(len(task.dataset.rows[split]) for split in SPLITS[1:])
    tested += sum(map(len, task.holdout_rows))
    scores = tested * (5 * len(task.dataset.findings) + 16)
    return models + remembered + state + scores + _updates_bytes(task, initial)


def _updates_bytes(task: run_preparation.PreparedTask, initial: Model) -> int:
    """Of the updates of every round, where they are kept."""
    if not task.experiment.keep.updates:
        return 0
    asked = [len(task.efforts(round)) for round in range(task.experiment.rounds)]
    return bytes_of_updates(task.method, initial, asked)


@dataclass(frozen=True)
class Preflight:
    """What a study will cost here, and what is in its way."""

    survey: StudySurvey
    devices: tuple[str, ...]  # one for each worker
    timed: Mapping[str, StepCost]  # by method, the first of each kind
    seconds: float  # of all runs; 0 where nothing was timed
    preparing: float  # seconds
    features: int  # images whose features are to be computed
    computing: float  # seconds of that
    cache_bytes: int
    folder_bytes: int
    memory: int  # bytes of one worker
    obstacles: tuple[str, ...]

    def table(self) -> dict[str, Any]:
        """As one document."""
        survey = self.survey
        return {
            "runs": len(survey.runs),
            "finished": len(survey.finished),
            "devices": list(self.devices),
            "hours": round(self.seconds / 3600, 3),
            "preparation_hours": round(self.preparing / 3600, 3),
            "features": self.features,
            "features_hours": round(self.computing / 3600, 3),
            "cache_bytes": self.cache_bytes,
            "folder_bytes": self.folder_bytes,
            "memory_bytes_per_worker": self.memory,
            "data": [_data_row(*opened) for opened in survey.opened.values()],
            "scenarios": {name: list(sizes) for name, sizes in survey.clients.items()},
            "timed": {name: vars(cost) for name, cost in self.timed.items()},
            "obstacles": list(self.obstacles),
        }


def _data_row(dataset: Dataset, preparation: PreparationEstimate) -> dict[str, Any]:
    images: dict[str, Any] = {split: len(dataset.rows[split]) for split in SPLITS}
    return {
        "name": dataset.name,
        **images,
        "to_prepare": preparation.images,
        "bytes": sum(preparation.bytes.values()),
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
    survey = survey_study(runs, out, say)
    left = survey.left
    obstacles = survey.obstacle_lines()
    places: Sequence[WorkerPlace] = ()
    timed: dict[str, StepCost] = {}
    run_seconds: list[float] = []
    try:
        experiments = [planned.experiment for planned in left or runs]
        places = places_for_runs(experiments, workers, devices)
        if left:
            say("timing a few training steps")
            rest = PREFLIGHT_SECONDS - (time.monotonic() - began)
            seconds = max(LEAST_TIMING_SECONDS, min(MOST_TIMING_SECONDS, rest))
            timed, run_seconds = _time_runs(survey, left, places, seconds)
    except (UserError, RunFailed) as mistake:
        if not any(str(mistake) in line for line in obstacles):
            obstacles.append(str(mistake))

    features = features_to_compute(survey)
    cached: dict[Path, int] = {}  # bytes by entry of the cache: data sets may share one
    for preparation in survey.preparations:
        cached |= preparation.bytes
    cache_bytes = sum(cached.values()) + sum(estimate.bytes for estimate in features)
    folder_bytes = sum(survey.folder_bytes[planned.name] for planned in left)
    memory = max((cost.memory for cost in timed.values()), default=0)
    used = tuple(place.device for place in places)
    obstacles += _full_disks({image_cache.cache_folder(): cache_bytes, out: folder_bytes})
    obstacles += _too_little_memory(memory, used)
    return Preflight(
        survey,
        devices=used,
        timed=timed,
        seconds=seconds_until_all_done([], run_seconds, len(places)),
        preparing=sum(preparation.seconds for preparation in survey.preparations) / cores(),
        features=sum(estimate.images for estimate in features),
        computing=sum(estimate.seconds for estimate in features) / cores(),
        cache_bytes=cache_bytes,
        folder_bytes=folder_bytes,
        memory=memory,
        obstacles=tuple(obstacles),
    )


def _time_runs(
    survey: StudySurvey, runs: Sequence[PlannedRun], places: Sequence[WorkerPlace], seconds: float
) -> tuple[dict[str, StepCost], list[float]]:
    """What was timed, by the first method of its kind; and the seconds of each run."""
    profiles = [cost_profile(planned.completed) for planned in runs]
    firsts: dict[str, PlannedRun] = {}
    for profile, planned in zip(profiles, runs, strict=True):
        firsts.setdefault(profile, planned)
    experiments = [planned.completed for planned in firsts.values()]
    findings = len(survey.dataset(experiments[0]).findings)
    costs = dict(zip(firsts, time_experiments(experiments, findings, places, seconds), strict=True))
    by_method = {planned.label["method"]: costs[profile] for profile, planned in firsts.items()}
    run_seconds = [
        survey.work[planned.name].seconds(costs[profile])
        for profile, planned in zip(profiles, runs, strict=True)
    ]
    return by_method, run_seconds


def _full_disks(needed: Mapping[Path, int]) -> Iterator[str]:
    """Folders whose disk has no room for what comes there; two may be on one disk."""
    existing = [(nearest_existing(folder.absolute()), size) for folder, size in needed.items()]
    by_disk = grouped((folder.stat().st_dev, (folder, size)) for folder, size in existing)
    for members in by_disk.values():
        total = sum(size for _, size in members)
        free = shutil.disk_usage(members[0][0]).free
        if total > free:
            where = " and ".join(str(folder) for folder, _ in members)
            advice = (
                "make room, or name other folders (FEDDRAW_CACHE for prepared images and"
                " features, --out for runs)"
            )
            yield (
                f"the disk of {where} needs {bytes_in_words(total)} and has"
                f" {bytes_in_words(free)} free: {advice}"
            )


def _too_little_memory(memory: int, devices: Sequence[str]) -> Iterator[str]:
    workers = sum(device.startswith("cpu") for device in devices)
    free = free_memory()
    if memory and workers * memory > free:
        advice = f"give --workers {max(1, int(free // memory))}"
        if memory > free:
            advice += ", or a smaller training.batch_size"
        yield (
            f"{workers} workers of {memory / 1e9:.1f} GB each do not fit into the"
            f" {free / 1e9:.1f} GB of memory that are free: {advice}"
        )
