"""Recorded runs as a report reads them: the one file of this package that knows what a run's folder
keeps where.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import SPLITS
from feddraw.data.scenarios.scenario_by_name import describe_scenario, scenario_names
from feddraw.results.environment import table_in_environment
from feddraw.results.metrics import ClientMetrics
from feddraw.results.outcome_settings import PRECISION_SETTINGS, outcome_device_kind
from feddraw.results.predictions import HoldoutPredictions, Predictions, read_holdout_predictions
from feddraw.results.recorded_run import REFERENCES, RecordedRun
from feddraw.results.run_collection import RunCollection, collect_runs, findings_of_runs

__all__ = [
    "REFERENCES",
    "HoldoutPredictions",
    "Predictions",
    "RecordedRun",
    "RunCollection",
    "collect_runs",
    "findings_of_runs",
    "read_holdout_predictions",
]

Floats = NDArray[np.float64]


# -------------------------------------------------------------------------------------- the metrics


def thresholds(run: RecordedRun, client: str = "") -> list[float]:
    """By finding, of the common model or of a client's own; NaN where there is none."""
    metrics = run.metrics.test
    if client:
        metrics = run.metrics.clients.get(client, ClientMetrics()).test
    return [metrics.thresholds.get(finding, math.nan) for finding in run.findings]


def sensitivity_and_specificity(run: RecordedRun, finding: str) -> tuple[float, float]:
    """Of the common model at its threshold, on test images."""
    tested = run.metrics.test
    return tested.sensitivity.get(finding, math.nan), tested.specificity.get(finding, math.nan)


def clients_with_metrics(run: RecordedRun) -> list[str]:
    """Clients of which there is a result of their own."""
    return list(run.metrics.clients)


def has_own_model(run: RecordedRun, client: str) -> bool:
    """Whether the client has a model of its own, evaluated on the common test images."""
    return run.metrics.clients.get(client, ClientMetrics()).test.evaluated


def undefined_findings(run: RecordedRun) -> list[str]:
    """Findings without AUC or GM because labels are missing or of one kind."""
    tested = run.metrics.test
    return [finding for finding in tested.undefined if finding not in tested.not_finite]


def findings_without_scores(run: RecordedRun) -> list[str]:
    """Findings for which the model's scores are not finite numbers."""
    return list(run.metrics.test.not_finite)


def validation_auc(run: RecordedRun) -> float:
    """Macro, of the model that this run stands for."""
    return run.metrics.validation.auc.macro


def rounds_of_model(run: RecordedRun) -> list[int]:
    """The rounds that the model comes from."""
    return list(run.metrics.rounds)


def choice_of_model(run: RecordedRun) -> str:
    """What chose a model that was kept beside the last."""
    return run.metrics.chosen_by


# ------------------------------------------------------------------------------------ the partition


def recorded_client_sizes(run: RecordedRun) -> dict[str, int]:
    """Images of each client, where the run wrote them down with its settings."""
    return dict(run.partition.get("sizes", {}))


def ledger_client_sizes(run: RecordedRun) -> dict[str, float]:
    """Images of each client by the ledger."""
    return dict(zip(run.ledger.clients, run.ledger.sizes.tolist(), strict=True))


def findings_of_partition(run: RecordedRun) -> list[str]:
    return list(run.partition["findings"])


def shares_with_finding(run: RecordedRun, client: str) -> Floats:
    """Of a client's images with a known label, those that show each finding; NaN where it labels
    none.
    """
    size = recorded_client_sizes(run)[client]
    every = [size] * len(findings_of_partition(run))
    known = np.array(run.partition.get("known", {}).get(client, every), dtype=np.float64)
    positives = np.array(run.partition["positives"][client], dtype=np.float64)
    nothing = np.full(len(known), np.nan)
    return np.asarray(np.divide(positives, known, out=nothing, where=known > 0))


def partition_hash(run: RecordedRun) -> str:
    return str(run.partition.get("sha256", "unknown"))


def image_counts_by_split(runs: Sequence[RecordedRun]) -> Mapping[str, Any]:
    """What each split holds, as the first run that says so wrote it; see `data.finding_counts`."""
    run = _run_with_splits(runs)
    return {} if run is None else dict(run.partition["splits"])


def images_dealt_to_clients(runs: Sequence[RecordedRun]) -> int:
    """How many training images all clients have, in the run whose splits are shown."""
    run = _run_with_splits(runs)
    return 0 if run is None else sum(recorded_client_sizes(run).values())


def _run_with_splits(runs: Sequence[RecordedRun]) -> RecordedRun | None:
    for run in runs:
        splits = run.partition.get("splits")
        if not isinstance(splits, Mapping) or not run.finished:
            continue
        if all(_is_split(splits.get(split), run) for split in SPLITS):
            return run
    return None


def _is_split(split: Any, run: RecordedRun) -> bool:
    """Whether this is one split as a run writes it."""
    if not isinstance(split, Mapping) or not isinstance(split.get("images"), int):
        return False
    for column in (split.get("positives"), split.get("negatives")):
        if not isinstance(column, list) or len(column) != len(run.findings):
            return False
        if not all(isinstance(count, int) for count in column):
            return False
    by_site = split.get("by_site", {})
    if not isinstance(by_site, Mapping):
        return False
    # A part has the same columns, without parts of its own.
    parts_fit = all(
        isinstance(part, Mapping) and "by_site" not in part and _is_split(part, run)
        for part in by_site.values()
    )
    sites_fit = isinstance(split.get("sites", {}), Mapping)
    return parts_fit and sites_fit and isinstance(split.get("patients", 0), int)


# ------------------------------------------------------------------------------------- the settings


def data_name(run: RecordedRun) -> str:
    return str(run.settings["data"]["name"])


def scenario_in_words(runs: Sequence[RecordedRun]) -> str:
    """What the scenario of some runs is, in a sentence; empty for a user's own."""
    names = {str(run.flat.get("scenario.name", "")) for run in runs}
    if len(names) != 1 or not names <= set(scenario_names()):
        return ""
    words = describe_scenario(*names).rstrip(".")
    scale = runs[0].flat.get("scenario.scale", 1.0)
    return f"{words}." if scale == 1.0 else f"{words}; here {scale:.1%} of these images."


def words_about(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """What the users of runs say of their images and of the model's use, where they do."""
    words = {}
    for what, key in (("Kind of images", "about.images"), ("Intended use", "about.use")):
        said = dict.fromkeys(str(run.flat.get(key, "")).strip() for run in runs)
        if known := [text for text in said if text]:
            words[what] = "; ".join(known)
    return words


def note_and_tags(run: RecordedRun) -> tuple[str, str]:
    """What its user wrote down about a run."""
    return str(run.flat.get("about.note", "")).strip(), str(run.flat.get("about.tags", "")).strip()


def number_of_folds(runs: Sequence[RecordedRun]) -> int:
    """Of how many folds all runs are; 0 where they are not, or a file has something else there."""
    first = runs[0].flat.get("folds", 0) if runs else 0
    if not isinstance(first, int) or first < 2:
        return 0
    return first if all(run.flat.get("folds", 0) == first for run in runs) else 0


def versions_and_machine(run: RecordedRun) -> Iterator[tuple[str, str]]:
    """What the run was computed with: its name, and which."""
    environment = run.environment
    facts = {name: environment.get(name) for name in ("python", "system", "processor", "commit")}
    facts["device"] = outcome_device_kind(run.flat, environment)
    facts["precision"] = _precision(run)
    network = table_in_environment(environment, "network")
    numbers = ("classifier", "parameters", "frozen")
    facts |= {name: str(network[name]) for name in numbers if name in network}
    facts |= table_in_environment(environment, "packages")
    for name, fact in facts.items():
        if fact:
            yield name, str(fact)


def _precision(run: RecordedRun) -> str:
    """The settings by which a processor computes less exactly; each is off unless stated."""
    parts = []
    for key in PRECISION_SETTINGS:
        if key in run.flat:
            value = run.flat[key]
            state = "on" if value is True else value or "off"
            parts.append(f"{key.partition('.')[2]} {state}")
    return ", ".join(parts)
