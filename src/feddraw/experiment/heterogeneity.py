"""How much the sites of an experiment differ, measured before training and, where asked for, after
some rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis import site_heterogeneity
from feddraw.core import Layout, Measurement, Model, Vector, gram
from feddraw.errors import UserError, at_least, not_negative, one_of
from feddraw.experiment.run_preparation import PreparedRun, prepare
from feddraw.experiment.running import opened_engine
from feddraw.experiment.settings import MOST_ROUNDS, Experiment
from feddraw.federation import Federation, client_seed, federate
from feddraw.server.collectors import Together
from feddraw.system.file_writing import finite_or_none
from feddraw.system.progress import Progress

# Of parameters that are compared together: their positions in the flat vector.
Groups = dict[str, NDArray[np.intp]]
MOST_GRADIENT_BYTES = 4 << 30  # of all batch gradients together


@dataclass(frozen=True)
class HeterogeneityOptions:
    """What to measure, and how closely."""

    measurement: Measurement
    layer: str = "classifier"  # whose Q, distances and weights come first
    rounds: int = 0  # of FedAvg, after which it is measured again
    permutations: int = 999
    replicates: int = 1000

    def check(self) -> None:
        one_of("layer", self.layer, ("classifier", "all"))
        for name in ("batches", "batch_size"):
            at_least(name.replace("_", "-"), getattr(self.measurement, name), 2)
        for name in ("rounds", "permutations", "replicates"):
            not_negative(name, getattr(self, name))


def measure_heterogeneity(
    experiment: Experiment,
    how: HeterogeneityOptions,
    *,
    progress: Progress | None = None,
    on_setup: Callable[[PreparedRun], None] | None = None,
) -> Iterator[site_heterogeneity.Heterogeneity]:
    """At the initial model, and after the warm-up if there is one; `on_setup` gets what was
    prepared, before anything is measured.
    """
    how.check()
    # the rule that knows patients has the weights of FedAvg here, and itself measures once
    method = {"name": "random_effects", "rho": 0.0, "every": MOST_ROUNDS}
    prepared = prepare(replace(experiment, method=method, stream=False), progress=progress)
    if on_setup is not None:
        on_setup(prepared)
    yield _heterogeneity_of_model(prepared, prepared.initial, 0, how, experiment.rounds, progress)
    if how.rounds:
        model = _model_after_warm_up(prepared, how.rounds, progress)
        yield _heterogeneity_of_model(prepared, model, how.rounds, how, experiment.rounds, progress)


def _model_after_warm_up(prepared: PreparedRun, rounds: int, progress: Progress | None) -> Model:
    experiment = prepared.experiment
    model = prepared.initial
    jobs = sum(len(prepared.efforts(round)) for round in range(rounds))
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress("training", done, jobs)

    with opened_engine(prepared) as engine:
        federation = Federation(
            method=prepared.method,
            engine=engine,
            clients=prepared.clients,
            rounds=rounds,
            seed=experiment.seed,
            collect=Together(experiment.gate, experiment.policy, prepared.proxy),
            efforts=prepared.efforts,
            on_update=count,
        )
        for result in federate(federation, model):
            model = result.next_model
    return model


def _heterogeneity_of_model(
    prepared: PreparedRun,
    model: Model,
    round: int,
    how: HeterogeneityOptions,
    rounds: int,
    progress: Progress | None,
) -> site_heterogeneity.Heterogeneity:
    seed = prepared.experiment.seed
    layers, findings = parameter_groups(model.layout, prepared.dataset.findings)
    gradients = _gathered_gradients(prepared, model, round, how.measurement, progress)
    measured = [len(rows) for rows in gradients]
    batches = _compared_in_groups(prepared, gradients, how, layers, findings)
    layers = {name: place for name, place in layers.items() if name in batches.products}
    findings = {name: place for name, place in findings.items() if name in batches.products}
    overall = site_heterogeneity.compare_sites(batches, how.layer, how.permutations, seed)
    groups = site_heterogeneity.compare_sites_by_group(
        batches, [*layers, *findings], how.permutations, seed
    )
    intervals = site_heterogeneity.distance_intervals(batches, how.layer, how.replicates, seed)
    sizes = [len(rows) for rows in prepared.training_rows]
    weights = site_heterogeneity.site_weights_by_rule(sizes, overall.rho, rounds)
    sites = []
    distances = iter(intervals.tolist())
    for number, (client, size, count) in enumerate(
        zip(prepared.clients, sizes, measured, strict=True)
    ):
        of = {rule: column[number] for rule, column in weights.items()}
        distance, low, high = map(finite_or_none, next(distances) if count else [math.nan] * 3)
        sites.append(
            site_heterogeneity.SiteDistance(
                client, size, count * batches.batch_size, distance, low, high, of
            )
        )
    interval = site_heterogeneity.rho_interval(batches, how.layer, how.replicates, seed)
    rho_low, rho_high = interval or (None, None)
    return site_heterogeneity.Heterogeneity(
        round=round,
        overall=overall,
        sites=tuple(sites),
        layers=tuple(groups[: len(layers)]),
        findings=tuple(groups[len(layers) :]),
        rho_low=rho_low,
        rho_high=rho_high,
    )


def _gathered_gradients(
    prepared: PreparedRun,
    model: Model,
    round: int,
    how: Measurement,
    progress: Progress | None,
) -> list[list[Vector]]:
    """The batches of each site."""
    clients = prepared.clients
    experiment = prepared.experiment
    _require_gradient_memory(len(clients) * how.batches, len(model.params))
    by_site = []
    for number, _ in enumerate(clients):
        seed = client_seed(experiment.seed, round, number)
        by_site.append(list(prepared.trainer.batch_gradients(number, model, how, "all", seed)))
        if progress is not None:
            progress(
                f"measuring after {round} rounds" if round else "measuring",
                number + 1,
                len(clients),
            )
    if sum(map(bool, by_site)) < 2:
        raise UserError(
            f"fewer than two sites have {2 * how.batch_size} images for two batches: lower"
            " --batch-size"
        )
    return by_site


def _compared_in_groups(
    prepared: PreparedRun,
    gradients: list[list[Vector]],
    how: HeterogeneityOptions,
    layers: Groups,
    findings: Groups,
) -> site_heterogeneity.BatchProducts:
    """The scalar products of the batches in each group: in a finding's row those of the sites that
    label it, if there are two.

    Where sites label different findings, the classifier is compared in the rows that all label, and
    the body not at all: it learns what a site labels, and differs for that alone.
    """
    sites = [number for number, rows in enumerate(gradients) if rows]
    everything = np.ones(len(findings), bool)
    marks = [prepared.trainer.labelled[number] for number in sites]
    labelled = np.stack([everything if mark is None else mark for mark in marks])
    counts = np.array([len(gradients[number]) for number in sites])
    matrix = np.stack([gradient for number in sites for gradient in gradients[number]])
    origin = np.zeros(matrix.shape[1], np.float32)
    if not labelled.all():
        layers = {"classifier": _rows_of_all(labelled, findings, how.layer)}
    products = {name: gram(matrix[:, place], origin[place]) for name, place in layers.items()}
    counts_of_some = {}
    for (name, place), labels_it in zip(findings.items(), labelled.T, strict=True):
        if labels_it.sum() < 2:
            continue
        own = matrix[np.repeat(labels_it, counts)]
        products[name] = gram(own[:, place], origin[place])
        counts_of_some[name] = tuple(counts[labels_it].tolist())
    return site_heterogeneity.BatchProducts(
        tuple(counts.tolist()), how.measurement.batch_size, products, counts_of_some
    )


def _rows_of_all(labelled: NDArray[np.bool_], findings: Groups, layer: str) -> NDArray[np.intp]:
    """The classifier's rows of the findings that all sites label."""
    if layer == "all":
        raise UserError(
            "sites label different findings, so the body of the network differs for that alone:"
            " measure with --layer classifier, or only findings that all label (data.findings)"
        )
    labelled_by_all = np.asarray(labelled.all(axis=0))
    if not labelled_by_all.any():
        raise UserError(
            "no finding is labelled by all sites, so there is nothing to compare all of them in:"
            " leave out the sites that label none of the others' findings"
        )
    rows = zip(findings.values(), labelled_by_all, strict=True)
    return np.concatenate([place for place, by_all in rows if by_all])


def _require_gradient_memory(batches: int, parameters: int) -> None:
    needed = 4 * batches * parameters
    if needed > MOST_GRADIENT_BYTES:
        raise UserError(
            f"{batches} gradients of {parameters:,} parameters need {needed / 2**30:.1f} GB: lower"
            " --batches, or run the method random_effects, which keeps only sums"
        )


def parameter_groups(layout: Layout, findings: tuple[str, ...]) -> tuple[Groups, Groups]:
    """Which parameters are compared together: all, the body in three parts, the classifier; and
    each finding's row.
    """
    every = np.arange(layout.length("param"))
    classifier = every[layout.find("classifier")]
    inside = set(classifier.tolist())
    body = [e for e in layout.entries if e.kind == "param" and e.start not in inside]
    names = list(dict.fromkeys(entry.name.rpartition(".")[0] for entry in body))
    layers = {"all": every[layout.find("all")]}
    for part, title in zip(
        np.array_split(np.arange(len(names)), 3), ("first", "middle", "last"), strict=True
    ):
        layers_of_part = {names[i] for i in part}
        places = [
            np.arange(e.start, e.start + e.size)
            for e in body
            if e.name.rpartition(".")[0] in layers_of_part
        ]
        if places:
            layers[f"{title} third"] = np.concatenate(places)
    layers["classifier"] = classifier
    rows = enumerate(findings)
    return layers, {
        name: np.concatenate([every[place] for place in layout.rows_of(row)]) for row, name in rows
    }
