"""What a study would cost on this machine, and how to start it, from the measured speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feddraw.data.scenarios.paper_scenarios import PAPER_SCENARIOS, paper_scenario
from feddraw.doctor.device_trial import MeasuredSpeed, TrialTask, trial_task_of
from feddraw.errors import UserError
from feddraw.experiment.settings import Experiment, complete
from feddraw.training.device_memory import GPU_CONTEXT

# Validation images of a round and test images of a run, where they do not depend on the data's
# settings.
EVALUATED_IMAGES = {"chestmnist": (11_219, 22_433), "chexpert": (202, 518)}
PAPER_METHODS = ("fedavg", "fedprox", "fednova", "fedadp", "scaffold", "moon", "feddyn", "feddraw")
PAPER_SEEDS = 5

MethodSettings = tuple[str, tuple[tuple[str, Any], ...]]


def extrapolated_speeds(speeds: Sequence[MeasuredSpeed]) -> list[MeasuredSpeed]:
    """With what there was no time for: a network with several workers, by what the others gain from
    them.
    """
    found = list(speeds)
    for device, workers in {(one.device, one.workers) for one in speeds if one.workers > 1}:
        alone = {one.task: one for one in speeds if one.device == device and one.workers == 1}
        together = {
            one.task: one for one in speeds if (one.device, one.workers) == (device, workers)
        }
        gains = [one.train / alone[task].train for task, one in together.items() if task in alone]
        for task, one in alone.items():
            if task not in together and gains:
                gain = float(np.median(gains))
                found.append(
                    replace(one, workers=workers, train=gain * one.train, test=gain * one.test)
                )
    return found


def speeds_with_room(
    speeds: Sequence[MeasuredSpeed], free: Mapping[str, int]
) -> list[MeasuredSpeed]:
    """Those whose workers have room with batches of 64; one worker is tried in any case."""

    def fits(speed: MeasuredSpeed) -> bool:
        need = (speed.reckoned or 0) - (GPU_CONTEXT if speed.device.startswith("cpu") else 0)
        return speed.workers == 1 or speed.workers * need <= free[speed.device]

    return [speed for speed in speeds if fits(speed)]


@dataclass(frozen=True)
class FastestStudyStart:
    """The fastest way to carry out runs of one network."""

    devices: tuple[str, ...]
    workers: int
    train: float  # images a second of all together
    test: float
    alone: float  # of one worker while all are at work

    @property
    def options(self) -> str:
        chosen = f"--devices {','.join(self.devices)} " if self.devices != ("cpu",) else ""
        return f"{chosen}--workers {self.workers}"


def paper_runs_to_cost() -> list[Experiment]:
    """The runs of studies/paper.toml, for machines that do not have the file."""
    base = Experiment.preset("paper")
    return [
        base.with_settings({"scenario": scenario.name, "method": method, "seed": seed})
        for seed in range(PAPER_SEEDS)
        for scenario in PAPER_SCENARIOS.values()
        for method in PAPER_METHODS
    ]


def method_settings_of(experiment: Experiment) -> MethodSettings:
    name, settings = experiment.section("method")
    return name, tuple(sorted(settings.items()))


def images_of_costed_run(experiment: Experiment) -> tuple[int, int] | None:
    """How many images a run trains on and evaluates, each as often as it is used; None where only
    the data tell.
    """
    try:
        whole = complete(experiment)
    except UserError:  # its data are not here
        return None
    name, settings = whole.section("data")
    scenario, options = whole.section("scenario")
    of_paper = paper_scenario(scenario, options.pop("scale", 1.0))
    images = (of_paper.total if of_paper else 0) or (
        settings.get("train") if name == "phantom" else None
    )
    evaluated = (
        (settings["validation"], settings["test"])
        if name == "phantom"
        else EVALUATED_IMAGES.get(name)
    )
    if images is None or evaluated is None or whole.training.steps:
        return None
    return images * whole.training.epochs * whole.rounds, evaluated[0] * whole.rounds + evaluated[1]


def fastest_start(task: TrialTask, speeds: Sequence[MeasuredSpeed]) -> FastestStudyStart | None:
    """All GPUs, each with the number of workers that is fastest there, or the processor, whichever
    is faster.
    """
    fastest: dict[str, MeasuredSpeed] = {}
    for speed in speeds:
        if speed.task == task and speed.train > getattr(fastest.get(speed.device), "train", 0.0):
            fastest[speed.device] = speed
    teams = [
        [one for name, one in fastest.items() if (name == "cpu") == processor]
        for processor in (True, False)
    ]
    found = [_start_of_team(team) for team in teams if team]
    return max(found, key=lambda one: one.train, default=None)


def _start_of_team(team: Sequence[MeasuredSpeed]) -> FastestStudyStart:
    devices = tuple(speed.device for speed in team)
    train, test = sum(speed.train for speed in team), sum(speed.test for speed in team)
    alone = max(speed.train / speed.workers for speed in team)
    return FastestStudyStart(devices, sum(speed.workers for speed in team), train, test, alone)


@dataclass(frozen=True)
class StudyCost:
    """What a study takes here."""

    runs: int
    uncounted: int  # runs whose images only their data tell
    seconds: float  # of all that are counted, on all workers
    longest: float  # seconds of the longest run
    ways: Mapping[str, int]  # how to start it, and for how many of its runs that is the fastest way

    def table(self) -> dict[str, Any]:
        way = max(self.ways, key=lambda one: self.ways[one], default="")
        about = {"runs": self.runs, "uncounted_runs": self.uncounted, "options": way}
        return about | {
            "hours": round(self.seconds / 3600, 2),
            "longest_run_hours": round(self.longest / 3600, 2),
        }


def study_cost(
    runs: Sequence[Experiment],
    speeds: Sequence[MeasuredSpeed],
    factors: Mapping[MethodSettings, float],
) -> StudyCost | None:
    """From images a second; None where none of the runs can be counted at a measured speed."""
    seconds = longest = 0.0
    counted, ways = 0, dict[str, int]()
    known: dict[str, tuple[int, int] | None] = {}
    for run in runs:
        task, key = trial_task_of(run), repr((run.data, run.scenario, run.rounds, run.training))
        way = fastest_start(task, speeds)
        if key not in known:
            known[key] = images_of_costed_run(run)
        images = known[key]
        if way is None:
            continue
        ways[way.options] = ways.get(way.options, 0) + 1
        if images is None:
            continue
        trained = images[0] * factors.get(method_settings_of(run), 1.0)
        took = trained / way.train + images[1] / way.test
        seconds, counted = seconds + took, counted + 1
        longest = max(longest, took * way.train / way.alone)
    return StudyCost(len(runs), len(runs) - counted, seconds, longest, ways) if ways else None
