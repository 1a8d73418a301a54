"""How much the sites of an experiment differ, measured before training and, where asked for, after some rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.site_distances import (
    BatchGradients,
    Heterogeneity,
    SiteDistance,
    compare_sites,
    distance_intervals,
    number_or_none,
    weights_by_rule,
)
from feddraw.core import Layout, Measurement, Model, gram
from feddraw.errors import UserError, not_negative, one_of
from feddraw.experiment.run_preparation import Progress, Setup, prepare
from feddraw.experiment.running import opened_engine
from feddraw.experiment.settings import MOST_ROUNDS, Experiment
from feddraw.federation import federate, seed_of

MOST_BYTES = 4 << 30  # of all batch gradients together


@dataclass(frozen=True)
class Examination:
    """What to measure, and how closely."""

    measurement: Measurement
    layer: str = "classifier"  # whose Q, distances and weights come first
    rounds: int = 0  # of FedAvg, after which it is measured again
    permutations: int = 999
    replicates: int = 1000

    def check(self) -> None:
        one_of("layer", self.layer, ("classifier", "all"))
        for name in ("batches", "batch_size"):
            if getattr(self.measurement, name) < 2:
                raise UserError(f"{name.replace('_', '-')} must be at least 2, not {getattr(self.measurement, name)}")
        for name in ("rounds", "permutations", "replicates"):
            not_negative(name, getattr(self, name))


def examine(experiment: Experiment, how: Examination, *, progress: Progress | None = None) -> Iterator[Heterogeneity]:
    """At the initial model, and after the warm-up if there is one."""
    how.check()
    # the rule that knows patients has the weights of FedAvg here, and itself measures once
    method = {"name": "random_effects", "rho": 0.0, "every": MOST_ROUNDS}
    setting = prepare(replace(experiment, method=method, stream=False), progress=progress)
    yield _examined(setting, setting.initial, 0, how, experiment.rounds, progress)
    if how.rounds:
        model = _warmed_up(setting, how.rounds, progress)
        yield _examined(setting, model, how.rounds, how, experiment.rounds, progress)


def _warmed_up(setting: Setup, rounds: int, progress: Progress | None) -> Model:
    experiment, model = setting.experiment, setting.initial
    done, jobs = 0, sum(len(setting.efforts(round)) for round in range(rounds))

    def told(*_: object) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress("training", done, jobs)

    with opened_engine(setting) as engine:
        loop = federate(
            model,
            setting.method,
            engine,
            setting.clients,
            rounds=rounds,
            seed=experiment.seed,
            gate=experiment.gate,
            policy=experiment.policy,
            efforts=setting.efforts,
            on_update=told,
        )
        for result in loop:
            model = result.next_model
    return model


def _examined(
    setting: Setup, model: Model, round: int, how: Examination, rounds: int, progress: Progress | None
) -> Heterogeneity:
    seed = setting.experiment.seed
    layers, findings = groups_of(model.layout, setting.dataset.findings)
    batches, measured = _gathered(setting, model, round, how, {**layers, **findings}, progress)
    overall = compare_sites(batches, how.layer, how.permutations, seed)
    found = distance_intervals(batches, how.layer, how.replicates, seed)
    sizes = [len(rows) for rows in setting.training_rows]
    weights = weights_by_rule(sizes, overall.rho, rounds)
    sites, distances = [], iter(found.tolist())
    for number, (client, size, count) in enumerate(zip(setting.clients, sizes, measured, strict=True)):
        of = {rule: column[number] for rule, column in weights.items()}
        distance, low, high = map(number_or_none, next(distances) if count else [math.nan] * 3)
        sites.append(SiteDistance(client, size, count * how.measurement.batch_size, distance, low, high, of))
    by = [[compare_sites(batches, name, how.permutations, seed) for name in names] for names in (layers, findings)]
    return Heterogeneity(round, overall, tuple(sites), tuple(by[0]), tuple(by[1]))


def _gathered(
    setting: Setup,
    model: Model,
    round: int,
    how: Examination,
    groups: Mapping[str, NDArray[np.intp]],
    progress: Progress | None,
) -> tuple[BatchGradients, list[int]]:
    """The batches of all sites, and how many each site has."""
    clients, experiment = setting.clients, setting.experiment
    _require_room(len(clients) * how.measurement.batches, len(model.params))
    rows, counts = [], []
    for number, _ in enumerate(clients):
        seed = seed_of(experiment.seed, round, number)
        own = list(setting.trainer.batch_gradients(number, model, how.measurement, "all", seed))
        rows += own
        counts.append(len(own))
        if progress is not None:
            progress(f"measuring after {round} rounds" if round else "measuring", number + 1, len(clients))
    if sum(count > 0 for count in counts) < 2:
        need = 2 * how.measurement.batch_size
        raise UserError(f"fewer than two sites have {need} images for two batches: lower --batch-size")
    matrix = np.stack(rows)
    origin = np.zeros(matrix.shape[1], np.float32)
    products = {name: gram(matrix[:, place], origin[place]) for name, place in groups.items()}
    return BatchGradients(tuple(count for count in counts if count), how.measurement.batch_size, products), counts


def _require_room(batches: int, parameters: int) -> None:
    needed = 4 * batches * parameters
    if needed > MOST_BYTES:
        raise UserError(
            f"{batches} gradients of {parameters:,} parameters need {needed / 2**30:.1f} GB: lower --batches, "
            "or run the method random_effects, which keeps only sums"
        )


def groups_of(
    layout: Layout, findings: tuple[str, ...]
) -> tuple[dict[str, NDArray[np.intp]], dict[str, NDArray[np.intp]]]:
    """Which parameters are compared together: all, the body in three parts, the classifier; and each finding's row."""
    classifier = _places(layout, "classifier")
    inside = set(classifier.tolist())
    body = [e for e in layout.entries if e.kind == "param" and e.start not in inside]
    names = list(dict.fromkeys(entry.name.rpartition(".")[0] for entry in body))
    layers = {"all": _places(layout, "all")}
    for part, title in zip(np.array_split(np.arange(len(names)), 3), ("first", "middle", "last"), strict=True):
        own = {names[i] for i in part}
        places = [np.arange(e.start, e.start + e.size) for e in body if e.name.rpartition(".")[0] in own]
        if places:
            layers[f"{title} third"] = np.concatenate(places)
    layers["classifier"] = classifier
    rows = {
        name: np.concatenate([np.arange(place.start, place.stop) for place in layout.rows_of(output)])
        for output, name in enumerate(findings)
    }
    return layers, rows


def _places(layout: Layout, layer: str) -> NDArray[np.intp]:
    return np.arange(layout.length("param"))[layout.find(layer)]
