"""On which devices an experiment's workers train, how many on each, and what is recorded
about it.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from feddraw.errors import RunFailed, UserError, first_line
from feddraw.experiment.settings import Experiment
from feddraw.system.machine import cores, machine_memory
from feddraw.system.workers import WorkerDied, ask_in_process, limited_workers
from feddraw.training.device_memory import step_memory
from feddraw.training.devices import WorkerPlace, cuda_software, devices_here
from feddraw.training.network_by_name import build_network

Surveyed = dict[str, dict[str, Any]]  # by device
_SURVEYED: Surveyed = {}  # what was found out about devices, the last time that workers were placed
WORKERS_PER_GPU = 4  # workers that are started unless more are asked for
USABLE_MEMORY = 0.92  # share of a device's free memory that workers get: allocators leave gaps
# Of a network whose memory is estimated before its data are opened; they hardly matter.
ASSUMED_CLASSES = 14


def devices_of(experiment: Experiment) -> list[str]:
    """The devices that an experiment asks for, if this machine has them."""
    if not experiment.devices:
        return devices_here(experiment.training.device, "training.device")
    names = devices_here(experiment.devices)
    if len(names) > 1 and experiment.engine != "processes":
        raise UserError(
            f"engine {experiment.engine} trains on one device, not on {len(names)}: use engine"
            " processes"
        )
    return names


def on_device(experiment: Experiment, device: str) -> Experiment:
    """The experiment on one device, as one process carries it out."""
    return replace(experiment, devices="", training=replace(experiment.training, device=device))


def places_for_clients(experiment: Experiment, clients: int) -> list[WorkerPlace]:
    """A place for every worker of one run."""
    names = devices_of(experiment)
    if experiment.workers > clients:
        warnings.warn(
            f"{experiment.workers} workers for {clients} client(s): starting one per client",
            stacklevel=2,
        )
    if names == ["cpu"] or experiment.engine != "processes":
        workers = min(experiment.workers or cores(), clients)
        return [WorkerPlace(names[0])] * limited_workers(workers)
    return _places_on([experiment], names, experiment.workers, clients)


def places_for_runs(
    experiments: Sequence[Experiment], workers: int = 0, devices: str = ""
) -> list[WorkerPlace]:
    """A place for every worker that carries out whole runs; `devices` replaces those of the
    experiments.
    """
    if devices:
        lists = [devices]
    else:
        lists = [experiment.devices or experiment.training.device for experiment in experiments]
    by_name = bool(devices) or any(experiment.devices for experiment in experiments)
    setting = "devices" if by_name else "training.device"
    names: list[str] = []
    for text in dict.fromkeys(lists or ["cpu"]):
        names += [name for name in devices_here(text, setting) if name not in names]
    if names == ["cpu"]:
        return [WorkerPlace()] * limited_workers(workers)
    return _places_on(experiments, names, workers, max(1, len(experiments)))


def _places_on(
    experiments: Sequence[Experiment], names: Sequence[str], workers: int, most: int
) -> list[WorkerPlace]:
    on_gpu = any(torch.device(name).type != "cpu" for name in names)
    need = most_worker_memory(experiments) if on_gpu else 0
    _SURVEYED.update(survey_devices_apart(names))
    return place_workers(names, limited_workers(workers) if workers else 0, need, _SURVEYED, most)


def place_workers(
    names: Sequence[str], workers: int, need: int, surveyed: Surveyed, most: int
) -> list[WorkerPlace]:
    """A place for each worker: one on every device, then a second, as long as its memory holds one
    more.

    `workers` = 0 starts as many as fit, at most four on a GPU and one a core; `need` are the bytes
    that one takes there without images; `most` is how many have work.
    """
    usable = {name: USABLE_MEMORY * surveyed[name]["free"] for name in names}
    in_memory: dict[str, int] = {}  # workers that a device's memory holds
    usual: dict[str, int] = {}  # workers where nobody says how many
    on_each_gpu = max(1, min(WORKERS_PER_GPU, cores() // len(names)))
    for name in names:
        # the first is tried in any case
        in_memory[name] = max(1, int(usable[name] / need)) if need else 1000
        is_processor = surveyed[name]["type"] == "cpu"
        usual[name] = min(in_memory[name], 1 if is_processor else on_each_gpu)
    if workers > sum(in_memory.values()):
        free = ", ".join(f"{name} {surveyed[name]['free'] / 1e9:.1f} GB" for name in names)
        warnings.warn(
            f"{workers} workers need {need / 1e9:.1f} GB each, but free memory is {free}: starting"
            f" {sum(in_memory.values())}",
            stacklevel=2,
        )
    limits = in_memory if workers else usual
    wanted = workers or sum(usual.values())
    order: list[str] = []
    for turn in range(max(limits.values())):
        order += [name for name in names if limits[name] > turn]
        if len(order) >= wanted:
            break
    order = order[: min(wanted, most)]
    counts = Counter(order)
    for_images = {name: int(usable[name]) // count - need for name, count in counts.items()}
    return [WorkerPlace(name, max(0, for_images[name])) for name in order]


def most_worker_memory(experiments: Sequence[Experiment]) -> int:
    """Bytes that the largest of them takes of a device, without its images; experiments with one
    network are one.
    """
    kinds: dict[str, Experiment] = {}
    for experiment in experiments:
        size = experiment.section("data")[1]["size"]
        training = experiment.training
        key = json.dumps([experiment.model, size, training.batch_size, training.amp])
        kinds.setdefault(key, experiment)
    return max((worker_memory(experiment) or 0 for experiment in kinds.values()), default=0)


def worker_memory(experiment: Experiment) -> int | None:
    """Bytes that one worker takes of a device; None where the network's shapes alone do not
    tell, or its frozen part needs to pass once only.
    """
    if experiment.trains_on_features:
        return None
    name, settings = experiment.section("model")
    pixels = experiment.section("data")[1]["size"]
    build = partial(build_network, name, ASSUMED_CLASSES, settings)
    return step_memory(build, pixels, experiment.training)


def devices_record(experiment: Experiment, places: Sequence[WorkerPlace]) -> dict[str, Any]:
    """What environment.json says about the devices of a run."""
    names = list(dict.fromkeys(place.device for place in places))
    # where nobody has placed its workers, this process trains there itself
    unseen = [name for name in names if name not in _SURVEYED]
    _SURVEYED.update(survey_devices(unseen))
    devices = []
    for name in names:
        facts = _SURVEYED[name]
        device: dict[str, Any] = {"device": name}
        device |= {key: facts[key] for key in ("type", "name", "capability") if key in facts}
        if facts["type"] == "cuda":
            device["memory_gb"] = round(facts["memory"] / 1e9, 1)
        device["workers"] = sum(place.device == name for place in places)
        devices.append(device)
    record: dict[str, Any] = {"devices": devices}
    if any(device["type"] == "cuda" for device in devices):
        record["cuda"] = cuda_software(experiment.training.tf32)
    return record


def survey_devices(names: Sequence[str]) -> Surveyed:
    """What is known of each device: type, name, bytes of memory in all and free, and of a GPU what
    computes on it.
    """
    return {name: _facts_of_device(torch.device(name)) for name in names}


def survey_devices_apart(names: Sequence[str]) -> Surveyed:
    """As `survey_devices`, in a process of its own: asking a GPU takes some of its memory until the
    process ends.
    """
    if all(torch.device(name).type != "cuda" for name in names):
        return survey_devices(names)
    try:
        surveyed: Surveyed = ask_in_process(survey_devices, list(names))
    except WorkerDied as death:
        raise RunFailed(f"a process that looked at {', '.join(names)} {death.how}") from None
    except Exception as error:
        raise RunFailed(f"cannot use {', '.join(names)}: {first_line(error)}") from None
    return surveyed


def _facts_of_device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        total, free = machine_memory()
        return {"type": device.type, "memory": total, "free": free}
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "type": "cuda",
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory": total,
        "free": free,
    }
