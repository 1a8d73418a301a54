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

from feddraw.doctor import study_cost
from feddraw.doctor.device_trial import (
    MeasuredSpeed,
    TrialProcesses,
    TrialTask,
    TrialTooSlow,
    network_installed,
    trial_difference,
    trial_task_of,
)
from feddraw.doctor.machine_checks import (
    MachineCheck,
    check_machine,
    check_or_broken,
    check_versions,
    state_within,
)
from feddraw.doctor.study_cost import StudyCost
from feddraw.errors import RunFailed
from feddraw.experiment.device_placement import USABLE_MEMORY, WORKERS_PER_GPU, survey_devices_apart
from feddraw.experiment.settings import Experiment
from feddraw.results.environment import environment
from feddraw.system.machine import cores
from feddraw.training.devices import WorkerPlace, cuda_software, devices_here

EXAMINATION_SECONDS = 100.0  # for everything, so that it ends within two minutes
HANGING_SECONDS = (
    60.0  # seconds after which a GPU that was asked for a few sums is not expected to answer
)
EXACT_SUMS, ALIKE_TRAININGS = (
    1e-5,
    1e-2,
)  # relative errors: of sums, of some training steps against the processor's
SMALL_TASK, LARGE_TASK = (
    TrialTask("compact", 64),
    TrialTask("densenet121", 224, (("weights", "none"),)),
)
# What the paper's matrix costs follows from the second, so it comes before those that are nice to
# know.
TRIAL_TASKS = (
    SMALL_TASK,
    LARGE_TASK,
    TrialTask("densenet121", 64, (("weights", "none"),)),
    TrialTask("compact", 224),
)
COMPARED_STEPS = (8, 2)  # images and steps of the trainings that are compared

Say = Callable[[str], None]


@dataclass
class MachineExamination:
    """What was found."""

    began: float
    machine: dict[str, Any]
    checks: list[MachineCheck] = field(default_factory=list)
    speeds: list[MeasuredSpeed] = field(default_factory=list)
    costs: dict[str, StudyCost] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def broken(self) -> list[MachineCheck]:
        return [check for check in self.checks if check.state == "broken"]

    def table(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "checks": [asdict(check) for check in self.checks],
            "speeds": [speed.table() for speed in self.speeds],
            "studies": {name: one.table() for name, one in self.costs.items()},
            "broken": [check.what for check in self.broken],
            "seconds": round(self.seconds, 1),
        }


def devices_to_examine() -> list[str]:
    """The processor and all GPUs."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *["mps"] * torch.backends.mps.is_available()]


def examine_machine(
    devices: str = "",
    studies: Mapping[str, Sequence[Experiment]] | None = None,
    *,
    seconds: float = EXAMINATION_SECONDS,
    tasks: Sequence[TrialTask] = TRIAL_TASKS,
    say: Say = lambda _: None,
) -> MachineExamination:
    """Look at everything; `devices` are those to try, beside the processor, and `studies` the runs
    to reckon.
    """
    names = (
        devices_to_examine()
        if not devices
        else list(dict.fromkeys(["cpu", *devices_here(devices)]))
    )
    return _Examiner(names, seconds, tasks, say).examined(studies or {})


class _Examiner:
    def __init__(
        self, names: Sequence[str], seconds: float, tasks: Sequence[TrialTask], say: Say
    ) -> None:
        self._names, self._seconds, self._say = names, seconds, say
        self._tasks = [task for task in tasks if network_installed(task)]
        self._found = MachineExamination(time.monotonic(), environment())
        self._surveyed: dict[str, dict[str, Any]] = {}
        self._reference: dict[str, Any] = {}
        self._factors: dict[study_cost.MethodSettings, float] = {}
        self._reckoned: dict[TrialTask, int | None] = {}
        self._digests: set[str] = set()  # of the small network's training on the device under way

    @property
    def _left(self) -> float:
        return self._seconds - (time.monotonic() - self._found.began)

    def examined(self, studies: Mapping[str, Sequence[Experiment]]) -> MachineExamination:
        report = self._found
        self._say("versions, folders and disk")
        report.checks += check_versions() + check_machine()
        report.checks += self._survey()
        busy = os.getloadavg()[0]
        if busy > cores() / 2:
            said = (
                f"load {busy:.1f} on {cores()} cores: GPU speeds may be too low; CPU speeds are"
                " measured in CPU time"
            )
            report.checks.append(MachineCheck("other work", "note", said, {"load": round(busy, 2)}))
        own = dict.fromkeys(trial_task_of(run) for runs in studies.values() for run in runs)
        tasks = [
            *[task for task in own if task not in self._tasks and network_installed(task)][:2],
            *self._tasks,
        ]
        present = [name for name in self._names if name in self._surveyed]
        for number, name in enumerate(present):
            share = self._left / (len(present) - number)
            report.checks += self._examine_device(name, tasks, studies, share)
        free = {name: about["free"] for name, about in self._surveyed.items()}
        usable = study_cost.speeds_with_room(study_cost.extrapolated_speeds(report.speeds), free)
        costs = {
            name: study_cost.study_cost(runs, usable, self._factors)
            for name, runs in studies.items()
        }
        report.costs = {name: found for name, found in costs.items() if found}
        for name in studies.keys() - report.costs.keys():
            report.checks.append(
                MachineCheck(name, "note", "its network was not timed: increase --seconds")
            )
        report.seconds = time.monotonic() - report.began
        return report

    def _survey(self) -> Iterator[MachineCheck]:
        for name in self._names:
            yield check_or_broken(name, lambda name=name: self._survey_device(name))  # type: ignore[misc]
        if not torch.cuda.is_available() and torch.version.cuda:
            said = (
                f"torch is built for CUDA {torch.version.cuda}, but finds no GPU: is there a"
                " driver?"
            )
            yield MachineCheck("GPU", "note", said)
        elif not torch.cuda.is_available() and not torch.backends.mps.is_available():
            yield MachineCheck(
                "GPU", "note", "torch finds none: everything is trained on the processor"
            )

    def _survey_device(self, name: str) -> MachineCheck:
        about = self._surveyed[name] = survey_devices_apart([name])[name]
        memory = f"{about['free'] / 1e9:,.1f} of {about['memory'] / 1e9:,.1f} GB free"
        if about["type"] == "cuda":
            using = cuda_software(tf32=False)
            words = (
                f"{about['name']}, compute capability {about['capability']}, driver"
                f" {using['driver'] or 'unknown'}"
            )
            return MachineCheck(
                name,
                "ok",
                f"{words}, CUDA {using['cuda']}, cuDNN {using['cudnn']}, {memory}",
                about,
            )
        machine = self._found.machine
        processor = (
            f"{cores()} cores of {machine['processor']}"
            if about["type"] == "cpu"
            else about["type"]
        )
        return MachineCheck(name, "ok", f"{processor}, {memory}", about)

    def _examine_device(
        self,
        name: str,
        tasks: Sequence[TrialTask],
        studies: Mapping[str, Sequence[Experiment]],
        share: float,
    ) -> Iterator[MachineCheck]:
        """Is it right, how fast is one worker, how fast are several; a device that fails is
        left.
        """
        until = time.monotonic() + share
        several = self._workers_at_once(name)
        try:
            with TrialProcesses([WorkerPlace(name)]) as one:
                self._say(f"{name}: arithmetic")
                yield from self._check_results(name, one)
                yield from self._time_networks(
                    name, one, tasks, until - share * (0.45 if several > 1 else 0.0)
                )
                if name == "cpu":
                    self._measure_methods(one, studies)
            if several > 1:
                with TrialProcesses([WorkerPlace(name)] * several) as team:
                    answers = team.ask(
                        "training", SMALL_TASK, *COMPARED_STEPS, patience=self._patience(name)
                    )
                    same = len({answer["digests"][0] for answer in answers} | self._digests) == 1
                    words = (
                        f"{several} processes at once:"
                        f" {'identical to' if same else 'different from'} one process"
                    )
                    yield MachineCheck(f"{name} processes", "ok" if same else "note", words)
                    yield from self._time_networks(name, team, tasks, until)
        except TrialTooSlow as late:
            hangs = self._surveyed[name]["type"] != "cpu"  # a processor is busy with other things
            yield MachineCheck(
                f"{name} at work", "broken" if hangs else "note", f"{late}: increase --seconds"
            )
        except RunFailed as failure:
            yield MachineCheck(f"{name} at work", "broken", str(failure))

    def _workers_at_once(self, name: str) -> int:
        """How many workers are tried at once: one a core, or as a GPU's memory holds."""
        about = self._surveyed[name]
        if about["type"] == "cpu":
            return cores() if name == "cpu" else 2
        need = (
            2.5e9  # the largest network at the small batches of a trial, or the small one at large
        )
        return max(1, min(WORKERS_PER_GPU, cores(), int(USABLE_MEMORY * about["free"] / need)))

    def _patience(self, name: str) -> float:
        """Seconds to wait for a few sums or steps: of a GPU as long as it may take at all."""
        return max(10.0, self._left) if self._surveyed[name]["type"] == "cpu" else HANGING_SECONDS

    def _check_results(self, name: str, team: TrialProcesses) -> Iterator[MachineCheck]:
        errors = team.ask("sums", patience=self._patience(name))[0]
        worst = max(errors, key=lambda one: errors[one])
        said = f"largest relative error {errors[worst]:.1e} ({worst})"
        yield MachineCheck(f"{name} sums", state_within(errors[worst], EXACT_SUMS), said, errors)
        here = {}
        for task in dict.fromkeys(
            [SMALL_TASK, *(task for task in self._tasks if task.pixels == SMALL_TASK.pixels)]
        ):
            here[task.title] = team.ask(
                "training", task, *COMPARED_STEPS, patience=self._patience(name)
            )[0]
        self._digests = set(here[SMALL_TASK.title]["digests"][:1])
        same = all(len(set(one["digests"])) == 1 for one in here.values())
        inexact = sorted({operation for one in here.values() for operation in one["inexact"]})
        named = f" (torch cannot repeat {', '.join(inexact)})" if inexact else ""
        words = (
            "identical when repeated"
            if same
            else f"not identical when repeated{named}: last digits vary"
        )
        yield MachineCheck(f"{name} repeats", "ok" if same else "note", words, {"inexact": inexact})
        if name == "cpu":
            self._reference = here
            return
        both = [title for title in here if title in self._reference]
        apart = {title: trial_difference(here[title], self._reference[title]) for title in both}
        if apart:
            worst = max(apart, key=lambda one: apart[one])
            said = f"{apart[worst]:.1e} apart after {COMPARED_STEPS[1]} steps ({worst})"
            yield MachineCheck(
                f"{name} against cpu", state_within(apart[worst], ALIKE_TRAININGS), said, apart
            )

    def _time_networks(
        self, name: str, team: TrialProcesses, tasks: Sequence[TrialTask], until: float
    ) -> Iterator[MachineCheck]:
        """Time each network as long as there is time."""
        missed = []
        for task in tasks:
            if until - time.monotonic() < self._expected(name, task):
                missed.append(task.title)
                continue
            self._say(
                f"{name}: {task.title}, {len(team.places)} worker{'s' * (len(team.places) > 1)}"
            )
            try:
                self._found.speeds.append(self._speed(name, team, task, until))
            except TrialTooSlow:
                missed.append(task.title)
                break  # it is still at it
            except RunFailed as failure:
                yield MachineCheck(f"{name}, {task.title}", "broken", str(failure))
                return
        if missed:
            said = (
                f"no time for {', '.join(missed)} with {len(team.places)} worker(s): increase"
                " --seconds"
            )
            yield MachineCheck(f"{name} speed", "note", said)

    def _expected(self, name: str, task: TrialTask) -> float:
        """Seconds that timing a network takes at least."""
        before = [
            one for one in self._found.speeds if one.task == task and one.device in (name, "cpu")
        ]
        return (
            2.0
            if not before
            else 1.0 + 12 * before[-1].workers / before[-1].train * (name == before[-1].device)
        )

    def _speed(
        self, name: str, team: TrialProcesses, task: TrialTask, until: float
    ) -> MeasuredSpeed:
        def left() -> float:
            return max(1.0, until - time.monotonic())

        batch = min(answer["batch"] for answer in team.ask("ready", task, patience=left()))
        answers = team.ask("speed", task, batch, left() / 6, patience=left())
        if task not in self._reckoned:  # the same on every device
            self._reckoned[task] = team.ask("memory", task, patience=left())[0]["reckoned"]
        reckoned = self._reckoned[task]
        train, test = (sum(answer[kind] for answer in answers) for kind in ("train", "test"))
        return MeasuredSpeed(
            name,
            task,
            len(answers),
            batch,
            train,
            test,
            max(a["memory"] for a in answers),
            reckoned,
        )

    def _measure_methods(
        self, team: TrialProcesses, studies: Mapping[str, Sequence[Experiment]]
    ) -> None:
        methods = list(
            dict.fromkeys(
                study_cost.method_settings_of(run) for runs in studies.values() for run in runs
            )
        )
        if methods and self._left > 5:
            self._say("what methods add to a step")
            with suppress(TrialTooSlow):  # then all are taken to cost the same
                answer = team.ask("factors", methods, patience=max(15.0, self._left / 4))[0]
                self._factors = dict(zip(methods, answer["factors"], strict=True))
