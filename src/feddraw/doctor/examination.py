"""The whole examination: the machine, each device, its speed, and what studies cost, within
a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from feddraw.doctor.device_trial import (
    MethodSettings,
    TrialProcesses,
    TrialTask,
    TrialTooSlow,
    TrialTraining,
)
from feddraw.doctor.machine_checks import (
    CheckState,
    MachineCheck,
    check_machine,
    check_or_broken,
    check_versions,
    state_within,
)
from feddraw.doctor.study_start import (
    DeviceSpeed,
    StudyCost,
    extrapolated_speeds,
    method_settings_of,
    speeds_in_memory,
    study_cost,
)
from feddraw.errors import RunFailed
from feddraw.experiment.device_placement import (
    USABLE_MEMORY,
    WORKERS_PER_GPU,
    survey_devices_apart,
    worker_memory,
)
from feddraw.experiment.settings import Experiment
from feddraw.results.environment import environment
from feddraw.study.cost import mean_cost
from feddraw.system.machine import cores
from feddraw.training.devices import WorkerPlace, cuda_software, devices_here

EXAMINATION_SECONDS = 100.0  # for everything, so that it ends within two minutes
HANGING_SECONDS = 60.0  # after which a GPU is not expected to answer a question about a few sums
TIMED_SECONDS = 6.0  # for timing a network with some workers
SHARE_FOR_SEVERAL = 0.45  # share of a device's time that is kept for several workers at once
WORKER_IN_TRIAL = 2.5e9  # bytes: the largest network at small batches, or the small one at large

EXACT_SUMS = 1e-5  # relative error of sums
ALIKE_TRAININGS = 1e-2  # relative difference of training steps from the processor's
COMPARED_BATCH = 8  # images and steps of the trainings that are compared
COMPARED_STEPS = 2

SMALL_TASK = TrialTask("compact", 64)
LARGE_TASK = TrialTask("densenet121", 224, (("weights", "none"),))
# What the paper's matrix costs follows from the second, so it comes before those that are nice to
# know.
TRIAL_TASKS = (
    SMALL_TASK,
    LARGE_TASK,
    TrialTask("densenet121", 64, (("weights", "none"),)),
    TrialTask("compact", 224),
)

Say = Callable[[str], None]
Studies = Mapping[str, Sequence[Experiment]]  # by name


@dataclass
class MachineExamination:
    """What the examination has shown."""

    began: float  # seconds of the monotonic clock
    machine: dict[str, Any]
    checks: list[MachineCheck] = field(default_factory=list)
    speeds: list[DeviceSpeed] = field(default_factory=list)
    costs: dict[str, StudyCost] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def broken(self) -> list[MachineCheck]:
        """The checks that failed."""
        return [check for check in self.checks if check.state == "broken"]

    def table(self) -> dict[str, Any]:
        """As one document."""
        return {
            "machine": self.machine,
            "checks": [asdict(check) for check in self.checks],
            "speeds": [speed.table() for speed in self.speeds],
            "studies": {name: cost.table() for name, cost in self.costs.items()},
            "broken": [check.what for check in self.broken],
            "seconds": round(self.seconds, 1),
        }


def devices_to_examine() -> list[str]:
    """The processor and all GPUs."""
    devices = ["cpu"]
    devices += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def examine_machine(
    devices: str = "",
    studies: Studies | None = None,
    *,
    seconds: float = EXAMINATION_SECONDS,
    tasks: Sequence[TrialTask] = TRIAL_TASKS,
    say: Say = lambda _: None,
) -> MachineExamination:
    """Look at everything within so many seconds; `devices` are those to try beside the processor
    (all by default), and `studies` the runs whose cost is wanted.
    """
    if devices:
        names = list(dict.fromkeys(["cpu", *devices_here(devices)]))
    else:
        names = devices_to_examine()
    examiner = _Examiner(names, studies or {}, tasks, seconds, say)
    return examiner.examine()


class _Examiner:
    """Examines one device after the other and writes down what it sees."""

    def __init__(
        self,
        devices: Sequence[str],
        studies: Studies,
        tasks: Sequence[TrialTask],
        seconds: float,
        say: Say,
    ) -> None:
        self._devices = devices
        self._studies = studies
        self._runs = [run for runs in studies.values() for run in runs]
        self._tasks = [task for task in tasks if task.is_installed]
        self._seconds = seconds
        self._say = say
        self._report = MachineExamination(time.monotonic(), environment())
        self._surveyed: dict[str, dict[str, Any]] = {}  # what is known of each device
        self._on_processor: dict[str, TrialTraining] = {}  # by title of the task
        self._factors: dict[MethodSettings, float] = {}  # what methods add to a step
        self._reckoned: dict[TrialTask, int | None] = {}  # bytes of a worker

    @property
    def _left(self) -> float:
        return self._seconds - (time.monotonic() - self._report.began)

    def examine(self) -> MachineExamination:
        report = self._report
        self._say("versions, folders and disk")
        report.checks += [*check_versions(), *check_machine(), *self._survey(), *_other_work()]
        present = [device for device in self._devices if device in self._surveyed]
        for number, device in enumerate(present):
            share = self._left / (len(present) - number)
            report.checks += self._examine_device(device, share)
        self._add_study_costs()
        report.seconds = time.monotonic() - report.began
        return report

    def _add_study_costs(self) -> None:
        free = {device: facts["free"] for device, facts in self._surveyed.items()}
        speeds = speeds_in_memory(extrapolated_speeds(self._report.speeds), free)
        for name, runs in self._studies.items():
            cost = study_cost(runs, speeds, self._factors)
            if cost is not None:
                self._report.costs[name] = cost
            else:
                untimed = "its network was not timed: increase --seconds"
                self._report.checks.append(MachineCheck(name, "note", untimed))

    # ------------------------------------------------------------------------------ which there are

    def _survey(self) -> Iterator[MachineCheck]:
        for device in self._devices:
            yield check_or_broken(device, lambda device=device: self._survey_device(device))  # type: ignore[misc]
        if torch.cuda.is_available():
            return
        if torch.version.cuda:
            yield MachineCheck(
                "GPU",
                "note",
                f"torch is built for CUDA {torch.version.cuda}, but finds no GPU: is there a"
                " driver?",
            )
        elif not torch.backends.mps.is_available():
            yield MachineCheck(
                "GPU", "note", "torch finds none: everything is trained on the processor"
            )

    def _survey_device(self, device: str) -> MachineCheck:
        facts = survey_devices_apart([device])[device]
        self._surveyed[device] = facts
        if facts["type"] == "cuda":
            software = cuda_software(tf32=False)
            what = (
                f"{facts['name']}, compute capability {facts['capability']}, driver"
                f" {software['driver'] or 'unknown'}, CUDA {software['cuda']}, cuDNN"
                f" {software['cudnn']}"
            )
        elif facts["type"] == "cpu":
            what = f"{cores()} cores of {self._report.machine['processor']}"
        else:
            what = facts["type"]
        memory = f"{facts['free'] / 1e9:,.1f} of {facts['memory'] / 1e9:,.1f} GB free"
        return MachineCheck(device, "ok", f"{what}, {memory}", facts)

    # ------------------------------------------------------------------------------------ a device

    def _examine_device(self, device: str, share: float) -> Iterator[MachineCheck]:
        """Is it right, how fast is one worker, how fast are several, in `share` seconds; a device
        that fails is left.
        """
        end = time.monotonic() + share
        several = self._workers_at_once(device)
        end_of_one = end - share * SHARE_FOR_SEVERAL if several > 1 else end
        try:
            with TrialProcesses([WorkerPlace(device)]) as process:
                self._say(f"{device}: arithmetic")
                yield self._check_sums(device, process)
                trainings = self._train_compared(device, process)
                yield _check_repeats(device, trainings)
                yield from self._check_against_processor(device, trainings)
                yield from self._time_networks(device, process, end_of_one)
                if device == "cpu":
                    self._measure_methods(process)
            if several > 1:
                with TrialProcesses([WorkerPlace(device)] * several) as team:
                    yield self._check_processes(device, team, trainings[SMALL_TASK.title])
                    yield from self._time_networks(device, team, end)
        except TrialTooSlow as late:
            # a processor is busy with other things, a GPU hangs
            state: CheckState = "note" if self._surveyed[device]["type"] == "cpu" else "broken"
            yield MachineCheck(f"{device} at work", state, f"{late}: increase --seconds")
        except RunFailed as failure:
            yield MachineCheck(f"{device} at work", "broken", str(failure))

    def _workers_at_once(self, device: str) -> int:
        """How many workers are tried at once: one a core, or as a GPU's memory holds."""
        facts = self._surveyed[device]
        if facts["type"] == "cpu":
            return cores() if device == "cpu" else 2
        in_memory = int(USABLE_MEMORY * facts["free"] / WORKER_IN_TRIAL)
        return max(1, min(WORKERS_PER_GPU, cores(), in_memory))

    def _patience(self, device: str) -> float:
        """Seconds to wait for a few sums or steps: of a GPU as long as it may take at all."""
        if self._surveyed[device]["type"] == "cpu":
            return max(10.0, self._left)
        return HANGING_SECONDS

    def _check_sums(self, device: str, process: TrialProcesses) -> MachineCheck:
        errors: dict[str, float] = process.ask("sums", patience=self._patience(device))[0]
        worst = max(errors, key=lambda name: errors[name])
        return MachineCheck(
            f"{device} sums",
            state_within(errors[worst], EXACT_SUMS),
            f"largest relative error {errors[worst]:.1e} ({worst})",
            errors,
        )

    def _train_compared(self, device: str, process: TrialProcesses) -> dict[str, TrialTraining]:
        """Trainings of the networks at the small size, by the title of their task."""
        small = [task for task in self._tasks if task.pixels == SMALL_TASK.pixels]
        return {
            task.title: self._ask_training(device, process, task)[0]
            for task in dict.fromkeys([SMALL_TASK, *small])
        }

    def _ask_training(
        self, device: str, processes: TrialProcesses, task: TrialTask
    ) -> list[TrialTraining]:
        return processes.ask(
            "training", task, COMPARED_BATCH, COMPARED_STEPS, patience=self._patience(device)
        )

    def _check_against_processor(
        self, device: str, trainings: Mapping[str, TrialTraining]
    ) -> Iterator[MachineCheck]:
        if device == "cpu":
            self._on_processor = dict(trainings)
            return
        distances = {
            title: training.distance(self._on_processor[title])
            for title, training in trainings.items()
            if title in self._on_processor
        }
        if distances:
            worst = max(distances, key=lambda title: distances[title])
            yield MachineCheck(
                f"{device} against cpu",
                state_within(distances[worst], ALIKE_TRAININGS),
                f"{distances[worst]:.1e} apart after {COMPARED_STEPS} steps ({worst})",
                distances,
            )

    def _check_processes(
        self, device: str, team: TrialProcesses, alone: TrialTraining
    ) -> MachineCheck:
        """Whether several processes at once compute what one does."""
        trainings = self._ask_training(device, team, SMALL_TASK)
        same = {training.digests[0] for training in trainings} == {alone.digests[0]}
        how = "identical to" if same else "different from"
        return MachineCheck(
            f"{device} processes",
            "ok" if same else "note",
            f"{len(trainings)} processes at once: {how} one process",
        )

    # --------------------------------------------------------------------------------------- speed

    def _tasks_to_time(self) -> list[TrialTask]:
        """The networks of the studies, two at most, then the usual ones."""
        in_studies = dict.fromkeys(map(TrialTask.of, self._runs))
        others = [task for task in in_studies if task not in self._tasks and task.is_installed]
        return [*others[:2], *self._tasks]

    def _time_networks(
        self, device: str, processes: TrialProcesses, end: float
    ) -> Iterator[MachineCheck]:
        """Time each network as long as there is time."""
        workers = len(processes.places)
        missed = []
        for task in self._tasks_to_time():
            if end - time.monotonic() < self._least_seconds(device, task):
                missed.append(task.title)
                continue
            self._say(f"{device}: {task.title}, {workers} worker{'s' * (workers > 1)}")
            try:
                self._report.speeds.append(self._time_network(device, processes, task, end))
            except TrialTooSlow:
                missed.append(task.title)
                break  # it is still at it
            except RunFailed as failure:
                yield MachineCheck(f"{device}, {task.title}", "broken", str(failure))
                return
        if missed:
            no_time = f"no time for {', '.join(missed)} with {workers} worker(s)"
            yield MachineCheck(f"{device} speed", "note", f"{no_time}: increase --seconds")

    def _least_seconds(self, device: str, task: TrialTask) -> float:
        """Seconds that timing a network takes at least, as far as it is known."""
        before = [speed for speed in self._report.speeds if speed.task == task]
        here = [speed for speed in before if speed.device == device]
        if here:
            images = 20  # of the smallest batches, and of their evaluation
            return 1.0 + images * here[-1].workers / here[-1].train
        return 1.0 if any(speed.device == "cpu" for speed in before) else 2.0

    def _time_network(
        self, device: str, processes: TrialProcesses, task: TrialTask, end: float
    ) -> DeviceSpeed:
        left = max(1.0, end - time.monotonic())
        costs = processes.ask("cost", task, min(TIMED_SECONDS, left / 3), patience=left)
        if task not in self._reckoned:  # the same on every device
            self._reckoned[task] = worker_memory(task.experiment())
        return DeviceSpeed(device, task, len(costs), mean_cost(costs), self._reckoned[task])

    def _measure_methods(self, process: TrialProcesses) -> None:
        """What each method of the studies adds to a step."""
        methods = list(dict.fromkeys(map(method_settings_of, self._runs)))
        if methods and self._left > 5:
            self._say("what methods add to a step")
            with suppress(TrialTooSlow):  # then all are taken to cost the same
                patience = max(15.0, self._left / 4)
                factors = process.ask("factors", methods, patience=patience)[0]
                self._factors = dict(zip(methods, factors, strict=True))


def _other_work() -> Iterator[MachineCheck]:
    """A note where other programs work on the machine."""
    load = os.getloadavg()[0]
    if load > cores() / 2:
        yield MachineCheck(
            "other work",
            "note",
            f"load {load:.1f} on {cores()} cores: GPU speeds may be too low; CPU speeds are"
            " measured in CPU time",
            {"load": round(load, 2)},
        )


def _check_repeats(device: str, trainings: Mapping[str, TrialTraining]) -> MachineCheck:
    """Whether a training repeated from the same start gives the same bits."""
    inexact = sorted({name for training in trainings.values() for name in training.inexact})
    if all(len(set(training.digests)) == 1 for training in trainings.values()):
        return MachineCheck(
            f"{device} repeats", "ok", "identical when repeated", {"inexact": inexact}
        )
    named = f" (torch cannot repeat {', '.join(inexact)})" if inexact else ""
    return MachineCheck(
        f"{device} repeats",
        "note",
        f"not identical when repeated{named}: last digits vary",
        {"inexact": inexact},
    )
