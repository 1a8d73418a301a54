"""How to start a study on this machine and what it would cost, from the measured speeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from feddraw.data.scenarios.paper_scenarios import PAPER_SCENARIOS
from feddraw.doctor.device_trial import TRIAL_BATCH, MethodSettings, TrialTask
from feddraw.experiment.settings import Experiment
from feddraw.study.cost import RunWork, StepCost
from feddraw.system.time_left import seconds_until_all_done
from feddraw.training.device_memory import GPU_CONTEXT

PAPER_METHODS = ("fedavg", "fedprox", "fednova", "fedadp", "scaffold", "moon", "feddyn", "feddraw")
PAPER_SEEDS = 5


@dataclass(frozen=True)
class DeviceSpeed:
    """How fast workers train a network on a device, each in its own process."""

    device: str
    task: TrialTask
    workers: int
    cost: StepCost  # of one of them while all are at work
    reckoned: int | None  # bytes that one takes with a whole batch, from the network's shapes

    @property
    def train(self) -> float:
        """Images that all workers together train on in a second."""
        return self.workers * TRIAL_BATCH / self.cost.step

    @property
    def test(self) -> float:
        """Images that all workers together evaluate in a second."""
        return self.workers / self.cost.evaluated_image

    def table(self) -> dict[str, Any]:
        """As a part of one document."""
        return {
            "device": self.device,
            "model": self.task.model,
            "pixels": self.task.pixels,
            "workers": self.workers,
            "batch": self.cost.batch,
            "train_images_per_second": round(self.train, 2),
            "test_images_per_second": round(self.test, 2),
            "memory_bytes": self.cost.timed_memory,
            "memory_bytes_batch_64": self.reckoned,
        }


def extrapolated_speeds(speeds: Sequence[DeviceSpeed]) -> list[DeviceSpeed]:
    """With those that there was no time for: several workers on a network gain what they gain on
    the others.
    """
    more = list(speeds)
    teams = {(speed.device, speed.workers) for speed in speeds if speed.workers > 1}
    for device, workers in teams:
        timed = [speed for speed in speeds if speed.device == device]
        alone = {speed.task: speed for speed in timed if speed.workers == 1}
        team = {speed.task: speed for speed in timed if speed.workers == workers}
        slowdowns = [
            speed.cost.step / alone[task].cost.step for task, speed in team.items() if task in alone
        ]
        untimed = [speed for task, speed in alone.items() if task not in team]
        for speed in untimed if slowdowns else ():
            slowdown = median(slowdowns)
            cost = replace(
                speed.cost,
                step=slowdown * speed.cost.step,
                evaluated_image=slowdown * speed.cost.evaluated_image,
            )
            more.append(replace(speed, workers=workers, cost=cost))
    return more


def speeds_in_memory(speeds: Sequence[DeviceSpeed], free: Mapping[str, int]) -> list[DeviceSpeed]:
    """Those whose workers fit into the free bytes of their device with whole batches; one worker
    may try in any case.
    """

    def fits(speed: DeviceSpeed) -> bool:
        need = speed.reckoned or 0
        if speed.device.startswith("cpu"):
            need -= GPU_CONTEXT
        return speed.workers == 1 or speed.workers * need <= free[speed.device]

    return [speed for speed in speeds if fits(speed)]


@dataclass(frozen=True)
class StudyStart:
    """A way to start a study: its devices, and the cost of a mean worker."""

    devices: tuple[str, ...]
    workers: int
    cost: StepCost

    @staticmethod
    def on_all(speeds: Sequence[DeviceSpeed]) -> StudyStart:
        """On several devices together."""
        workers = sum(speed.workers for speed in speeds)
        train = sum(speed.train for speed in speeds)
        test = sum(speed.test for speed in speeds)
        cost = replace(
            speeds[0].cost, step=workers * TRIAL_BATCH / train, evaluated_image=workers / test
        )
        return StudyStart(tuple(speed.device for speed in speeds), workers, cost)

    @property
    def train(self) -> float:
        """Images that all workers together train on in a second."""
        return self.workers * TRIAL_BATCH / self.cost.step

    @property
    def options(self) -> str:
        """What to type."""
        if self.devices == ("cpu",):
            return f"--workers {self.workers}"
        return f"--devices {','.join(self.devices)} --workers {self.workers}"

    def run_seconds(self, run: Experiment, work: RunWork, factor: float) -> float:
        """Seconds of one run with one worker; `factor` is what its method adds to a step."""
        step = self.cost.step * run.training.batch_size / TRIAL_BATCH
        return work.seconds(replace(self.cost, step=factor * step))


def fastest_start(task: TrialTask, speeds: Sequence[DeviceSpeed]) -> StudyStart | None:
    """All GPUs, each with the number of workers that is fastest there, or the processor, whichever
    is faster.
    """
    fastest: dict[str, DeviceSpeed] = {}  # by device
    for speed in speeds:
        if speed.task != task:
            continue
        if speed.device not in fastest or speed.train > fastest[speed.device].train:
            fastest[speed.device] = speed
    processor = [speed for device, speed in fastest.items() if device == "cpu"]
    others = [speed for device, speed in fastest.items() if device != "cpu"]
    starts = [StudyStart.on_all(team) for team in (processor, others) if team]
    return max(starts, key=lambda start: start.train, default=None)


@dataclass(frozen=True)
class StudyCost:
    """What a study takes here."""

    runs: int
    uncounted: int  # runs whose images only their data tell
    seconds: float  # of all that are counted, on all workers
    longest: float  # seconds of the longest run
    starts: Mapping[str, int]  # options to start it with: for how many runs they are the fastest

    @property
    def options(self) -> str:
        """What is the fastest for most runs."""
        return max(self.starts, key=lambda options: self.starts[options])

    def table(self) -> dict[str, Any]:
        """As a part of one document."""
        return {
            "runs": self.runs,
            "uncounted_runs": self.uncounted,
            "options": self.options,
            "hours": round(self.seconds / 3600, 2),
            "longest_run_hours": round(self.longest / 3600, 2),
        }


def study_cost(
    runs: Sequence[Experiment],
    speeds: Sequence[DeviceSpeed],
    factors: Mapping[MethodSettings, float],
) -> StudyCost | None:
    """From measured speeds and what each method adds to a step; None where no run's network was
    timed.
    """
    works: dict[str, RunWork | None] = {}
    starts: Counter[str] = Counter()
    seconds: dict[StudyStart, list[float]] = {}
    for run in runs:
        start = fastest_start(TrialTask.of(run), speeds)
        if start is None:
            continue
        starts[start.options] += 1
        key = repr((run.data, run.scenario, run.rounds, run.training))
        if key not in works:
            works[key] = RunWork.of_settings(run)
        work = works[key]
        if work is not None:
            factor = factors.get(method_settings_of(run), 1.0)
            seconds.setdefault(start, []).append(start.run_seconds(run, work, factor))
    if not starts:
        return None
    counted = sum(map(len, seconds.values()))
    return StudyCost(
        runs=len(runs),
        uncounted=len(runs) - counted,
        seconds=sum(
            seconds_until_all_done([], each, start.workers) for start, each in seconds.items()
        ),
        longest=max((max(each) for each in seconds.values()), default=0.0),
        starts=starts,
    )


def method_settings_of(experiment: Experiment) -> MethodSettings:
    """An experiment's method by name, with its settings."""
    name, settings = experiment.section("method")
    return name, tuple(sorted(settings.items()))


def paper_runs() -> list[Experiment]:
    """The runs of studies/paper.toml, for machines that do not have the file."""
    base = Experiment.preset("paper")
    return [
        base.with_settings({"scenario": scenario.name, "method": method, "seed": seed})
        for seed in range(PAPER_SEEDS)
        for scenario in PAPER_SCENARIOS.values()
        for method in PAPER_METHODS
    ]
