"""What an experiment's steps cost, before any of its data are here: timed on made-up images.

Experiments share what is timed: one network's steps are timed once, and what other methods add to a
step is measured on a small network where the time does not reach for more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

from feddraw.core import Method
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.run_preparation import trained_builder
from feddraw.experiment.settings import FEATURE_SETTINGS, Experiment, make_method
from feddraw.study.cost import StepCost, mean_cost
from feddraw.study.timed_client import TimedClient
from feddraw.study.timing_at_places import measure_at_every_place
from feddraw.training.devices import WorkerPlace
from feddraw.training.network_by_name import build_network
from feddraw.training.settings import Training

MOST_MADE_UP_STEPS = 20
LEAST_BATCH = 8  # images in the largest batch: two sizes or more tell how memory grows

# On the small network on which methods are compared.
SMALL_BATCH = 16
SMALL_STEPS = 8


def network_profile(experiment: Experiment) -> str:
    """Equal for experiments whose steps cost the same whatever the method: network, size and
    training.
    """
    training = asdict(experiment.training)
    for name in ("epochs", "work", "steps", "device", "lr"):
        del training[name]
    size = experiment.section("data")[1]["size"]
    image = [size] if experiment.channels == 1 else [size, experiment.channels]
    inputs = ["features"] if experiment.trains_on_features else []
    return json.dumps([experiment.model, *image, training, *inputs], sort_keys=True)


def method_profile(method: Method) -> str:
    """Equal for methods whose clients do the same."""
    return json.dumps([repr(method.local), method.asks])


def cost_profile(experiment: Experiment) -> str:
    """Equal for experiments that cost the same per step."""
    return json.dumps([network_profile(experiment), method_profile(make_method(experiment))])


def time_experiments(
    experiments: Sequence[Experiment],
    findings: int,
    places: Sequence[WorkerPlace],
    seconds: float,
) -> list[StepCost]:
    """What each experiment's steps cost with a worker at each place at once: the mean over these.

    Nothing of their data is needed but the number of findings. `seconds` are for all that is timed;
    the first step of a large network may take it beyond.
    """
    at_places = measure_at_every_place(
        places, _time_experiments_here, list(map(without_data, experiments)), findings, seconds
    )
    return [mean_cost(costs) for costs in zip(*at_places, strict=True)]


def without_data(experiment: Experiment) -> Experiment:
    """The experiment on phantoms of the same size, for which a worker needs no files."""
    settings = experiment.section("data")[1]
    kinds = ("size", "channels", *FEATURE_SETTINGS)
    kept = {key: settings[key] for key in kinds if key in settings}
    return complete_settings(replace(experiment, data={"name": "phantom", **kept}, engine="serial"))


def _time_experiments_here(
    device: str, experiments: Sequence[Experiment], findings: int, seconds: float
) -> list[StepCost]:
    here = [experiment.with_settings({"training.device": device}) for experiment in experiments]
    return list(time_in_turn(here, findings, seconds))


def time_in_turn(
    experiments: Sequence[Experiment], findings: int, seconds: float
) -> Iterator[StepCost]:
    """The first experiment on each network is timed in any case, the others where whole batches
    leave the time; else what their methods add to a step is measured on a small network.
    """
    began = time.perf_counter()
    firsts: dict[str, tuple[Experiment, StepCost]] = {}  # by network
    networks = len({network_profile(experiment) for experiment in experiments})
    for experiment in experiments:
        network = network_profile(experiment)
        if network not in firsts:
            cost = time_experiment(experiment, findings, seconds / 2 / networks)
            firsts[network] = (experiment, cost)
            yield cost
            continue
        first, first_cost = firsts[network]
        whole_batch = first_cost.batch == first.training.batch_size
        if whole_batch and time.perf_counter() - began < seconds:
            yield time_experiment(experiment, findings, seconds / 2 / len(experiments))
        else:
            methods = [make_method(experiment), make_method(first)]
            factor, first_factor = step_time_factors(methods, experiment.training)
            step = first_cost.step * factor / first_factor
            yield replace(first_cost, step=step, batch=0)


def time_experiment(experiment: Experiment, findings: int, seconds: float) -> StepCost:
    """Time batches of two, four, eight … made-up images, as far as the seconds allow and the batch
    size goes; where it is not reached, a step is multiplied up.
    """
    training = experiment.training
    client = TimedClient.with_made_up_images(
        make_method(experiment),
        trained_builder(experiment, findings),
        training,
        size=experiment.section("data")[1]["size"],
        findings=findings,
        images=2 * training.batch_size,
        channels=experiment.channels,
    )
    client.work(2, 1)  # the first step allocates memory and chooses algorithms
    client.forget_peak()
    began = time.perf_counter()
    memory: dict[int, int] = {}  # bytes at the highest, by the size of the batch
    batch = 2
    while True:
        before = time.perf_counter()
        single = client.work(batch, 1)
        memory[batch] = client.memory()
        now = time.perf_counter()
        waited = now - before  # on a busy processor, longer than its own seconds
        left = seconds - (now - began)
        if batch == training.batch_size or (batch >= LEAST_BATCH and 6 * waited > left):
            break
        batch = min(2 * batch, training.batch_size)
    more = int(min(MOST_MADE_UP_STEPS, max(0, left / 2 / waited)))
    if more:
        single = min(single, client.work(batch, 1))  # the first with a batch size is slow
        step = client.steps_after(single, batch, more)
    else:
        step = single
    timed_memory = max(memory.values())
    untimed_images = training.batch_size - batch
    return StepCost(
        step=step * training.batch_size / batch,
        batch=batch,
        client=max(0.0, single - step),
        evaluated_image=client.evaluate(batch),
        memory=timed_memory + round(_memory_per_image(memory) * untimed_images),
        timed_memory=timed_memory,
    )


def _memory_per_image(memory: Mapping[int, int]) -> float:
    """Bytes that each more image of a batch takes, from the two largest batches."""
    if len(memory) < 2:
        return 0.0
    smaller, larger = sorted(memory)[-2:]
    return max(0.0, (memory[larger] - memory[smaller]) / (larger - smaller))


def step_time_factors(methods: Sequence[Method], training: Training | None = None) -> list[float]:
    """How much longer a step takes under each method than plain training, on a small network on the
    processor.
    """
    training = replace(training or Training(), batch_size=SMALL_BATCH, device="cpu", amp="off")
    plain = combined_method("fedavg", {})
    kinds = {method_profile(method): method for method in (plain, *methods)}
    seconds = {kind: _small_step(method, training) for kind, method in kinds.items()}
    plain_seconds = seconds[method_profile(plain)]
    return [max(1.0, seconds[method_profile(method)] / plain_seconds) for method in methods]


def _small_step(method: Method, training: Training) -> float:
    """Seconds of a step of the small network."""
    client = TimedClient.with_made_up_images(
        method,
        partial(build_network, "compact", 5, {}),
        training,
        size=32,
        findings=5,
        images=SMALL_BATCH * (1 + SMALL_STEPS),
    )
    # allocates memory; some rules do more once there is a round to remember
    client.work(SMALL_BATCH, 1)
    many = min(client.work(SMALL_BATCH, 1 + SMALL_STEPS) for _ in range(3))
    single = min(client.work(SMALL_BATCH, 1) for _ in range(3))
    return max(many - single, 1e-6)
