"""The paired bootstrap over patients of all methods of one scenario: each draw takes the same
patients for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.bootstrap import Interval, bootstrap, interval, weighted_auc, weighted_gm
from feddraw.results.predictions import Predictions
from feddraw.results.recorded_run import RecordedRun
from feddraw.system.file_reading import number_or_nan
from feddraw.text import join_names

Floats = NDArray[np.float64]
RunsByMethod = Mapping[str, Sequence[RecordedRun]]
BOOTSTRAP_MEASURES = {"auc": weighted_auc, "gm": weighted_gm}


@dataclass(frozen=True, eq=False)
class PatientBootstrap:
    """An estimate and its replicates for every model that was tested on the same images."""

    unit: str  # patients or images
    units: int
    repeats: tuple[str, ...]
    methods: Mapping[str, Mapping[str, Floats]]  # metric, method
    clients: Mapping[str, Mapping[str, Floats]]  # metric, client: models that clients trained alone
    left_out: tuple[str, ...]
    personal: Mapping[str, Mapping[str, Mapping[str, Floats]]] = field(
        default_factory=dict
    )  # metric, method, client
    why_none: str = ""  # why there is nothing in it; empty where there is

    @staticmethod
    def none_because(reason: str) -> PatientBootstrap:
        nothing: dict[str, dict[str, Floats]] = {metric: {} for metric in BOOTSTRAP_MEASURES}
        return PatientBootstrap("", 0, (), nothing, nothing, (), why_none=reason)

    def used_by(self, metric: str, method: str, client: str) -> Floats:
        """Of the model that a client would use: its own where the method has such, else the common
        one.
        """
        return (
            self.personal.get(metric, {}).get(method, {}).get(client, self.methods[metric][method])
        )

    def difference(self, metric: str, first: str, second: str) -> Interval:
        return interval(self.methods[metric][first] - self.methods[metric][second])

    def gain(self, metric: str, method: str, client: str) -> Interval:
        """Of the model that the client would use over the one that it trained alone."""
        return interval(self.used_by(metric, method, client) - self.clients[metric][client])


def bootstrap_methods(runs: Sequence[RecordedRun], replicates: int) -> PatientBootstrap:
    """Paired replicates for all methods of one scenario, or why there are none.

    Patients are drawn, or images where patients are not known; several seeds are several models,
    whose metrics are averaged, while a patient tested by all of them is drawn for all.
    """
    if not replicates:
        return PatientBootstrap.none_because(
            "No bootstrap intervals were computed (--replicates 0)."
        )
    kept = {
        run: found
        for run in runs
        if (found := run.predictions()) is not None and _usable_predictions(run, found)
    }
    if not kept:
        why = (
            "These runs kept no scores of single images, so methods cannot be compared on the same"
            " patients."
        )
        return PatientBootstrap.none_because(why)
    methods = list(dict.fromkeys(run.method for run in kept))
    repeats = [
        r
        for r in dict.fromkeys(run.repeat for run in kept)
        if _all_tested_same_images(kept, r, methods)
    ]
    if not repeats:
        why = "There is no seed in which all methods kept the scores of the same test images."
        return PatientBootstrap.none_because(why)
    chosen = {
        m: [next(r for r in kept if (r.method, r.repeat) == (m, repeat)) for repeat in repeats]
        for m in methods
    }
    used = {run for members in chosen.values() for run in members}
    left_out = tuple(f"{run.method}, seed {run.repeat}" for run in runs if run not in used)
    tested = [kept[run] for run in next(iter(chosen.values()))]
    owners, unit = patients_of_images(tested)
    images = {
        "truth": np.concatenate([part.truth for part in tested]),
        "patients": owners,
        "folds": np.concatenate([np.full(len(part.truth), i) for i, part in enumerate(tested)]),
    }
    drawn = {}
    for metric, measure in BOOTSTRAP_MEASURES.items():
        outputs = {
            m: _scores_or_calls(metric, [(run, kept[run]) for run in members])
            for m, members in chosen.items()
        }
        rng = np.random.default_rng(0)  # the same patients for both metrics
        flat = [model for models in outputs.values() for model in models]
        rows = iter(bootstrap(flat, rng=rng, measure=measure, replicates=replicates, **images))
        drawn[metric] = {
            method: np.stack([next(rows) for _ in models]) for method, models in outputs.items()
        }
    personal = {metric: _bootstrap_by_client(found, chosen) for metric, found in drawn.items()}
    common = {
        metric: {m: models.mean(axis=0) for m, models in found.items()}
        for metric, found in drawn.items()
    }
    alone = {metric: _bootstrap_of_alone(found, chosen) for metric, found in personal.items()}
    return PatientBootstrap(
        unit, len(np.unique(owners)), tuple(repeats), common, alone, left_out, personal
    )


def _bootstrap_by_client(
    drawn: Mapping[str, Floats], chosen: RunsByMethod
) -> dict[str, dict[str, Floats]]:
    """The clients' own models, by method, where it has such."""
    return {
        method: dict(zip(chosen[method][0].ledger.clients, models, strict=True))
        for method, models in drawn.items()
        if len(models) > 1
    }


def _bootstrap_of_alone(
    personal: Mapping[str, Mapping[str, Floats]], chosen: RunsByMethod
) -> dict[str, Floats]:
    """Those that clients trained alone: personal models of other methods learn from all clients."""
    own = [models for method, models in personal.items() if chosen[method][0].name == "alone"]
    return {client: model for models in own for client, model in models.items()}


def _usable_predictions(run: RecordedRun, found: Predictions) -> bool:
    models, images, _ = found.by_model.shape
    own = models == 1 or models == len(run.ledger.clients)
    return own and found.classes == run.findings and images > 0


def _all_tested_same_images(
    kept: Mapping[RecordedRun, Predictions], repeat: str, methods: Sequence[str]
) -> bool:
    """Every method was tested on the same images in this repeat."""
    there = {
        run.method: (found.tested, found.classes, len(found.truth), found.patients is None)
        for run, found in kept.items()
        if run.repeat == repeat
    }
    return set(there) == set(methods) and len(set(there.values())) == 1


def patients_of_images(parts: Sequence[Predictions]) -> tuple[NDArray[np.int64], str]:
    """Whose image each one is, over all repeats; an image that several repeats test is one unit."""
    patients = [part.patients for part in parts if part.patients is not None]
    if len(patients) == len(parts):
        return np.concatenate(patients), "patients"
    tested = list(dict.fromkeys(part.tested for part in parts))
    room = max(len(part.truth) for part in parts)
    return (
        np.concatenate(
            [room * tested.index(part.tested) + np.arange(len(part.truth)) for part in parts]
        ),
        "images",
    )


def _scores_or_calls(
    metric: str, members: Sequence[tuple[RecordedRun, Predictions]]
) -> list[Floats]:
    """Scores (for GM: calls at the chosen thresholds) of each of a method's models, over all
    repeats.
    """
    parts = [
        found.by_model if metric == "auc" else _calls_at_thresholds(run, found)
        for run, found in members
    ]
    return [np.concatenate([part[model] for part in parts]) for model in range(len(parts[0]))]


def _calls_at_thresholds(run: RecordedRun, found: Predictions) -> Floats:
    models = found.by_model
    if len(models) == 1:
        tables = [run.metrics["test"].get("thresholds", {})]
    else:
        tables = [
            run.metrics["clients"].get(c, {}).get("test", {}).get("thresholds", {})
            for c in run.ledger.clients
        ]
    limits = np.array(
        [[number_or_nan(table.get(name)) for name in found.classes] for table in tables]
    )[:, None, :]
    return np.where(
        np.isnan(limits) | np.isnan(models), np.nan, (models >= limits).astype(np.float64)
    )


def patients_interval_name(draws: PatientBootstrap) -> str:
    return f"95 % bootstrap CI over {draws.units:,} test {draws.unit}"


def patients_note(draws: PatientBootstrap) -> str:
    seeds = (
        f"averaged over seeds {join_names(draws.repeats)}"
        if draws.repeats[1:]
        else f"of seed {draws.repeats[0]}"
    )
    return (
        f"{patients_interval_name(draws)}, paired, {seeds}; noise between trainings is not"
        " included."
    )


def auc_intervals_by_finding(
    runs: Sequence[RecordedRun], findings: Sequence[str], replicates: int
) -> Iterator[tuple[str, Interval]]:
    """The AUC of each finding with its interval: mean over seeds, with the same patients drawn for
    all.
    """
    kept = [
        found for run in runs if (found := run.predictions()) is not None and found.scores.ndim == 2
    ]
    tested = [found for found in kept if found.classes == tuple(findings)]
    if not tested or not replicates:
        return
    owners, _ = patients_of_images(tested)
    folds = np.concatenate(
        [np.full(len(found.truth), number) for number, found in enumerate(tested)]
    )
    for place, name in enumerate(findings):
        scores = np.concatenate([found.scores[:, [place]] for found in tested])
        truth = np.concatenate([found.truth[:, [place]] for found in tested])
        rng = np.random.default_rng(0)
        drawn = bootstrap([scores], truth, rng, patients=owners, folds=folds, replicates=replicates)
        yield name, interval(drawn[0])
