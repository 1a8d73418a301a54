"""What each site contributed to one run, by one estimator, as `feddraw contribution` keeps it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.results.checkpoint import array_tree_bytes, read_array_tree
from feddraw.results.run_folder import RunFolder
from feddraw.results.run_reader import damage_told
from feddraw.system.file_writing import make_subfolder, write_errors_told, write_whole
from feddraw.text import slug

Floats = NDArray[np.float64]

# By name, what an estimator is in words.
ESTIMATORS = {
    "retrained": "leave-one-out by retraining",
    "rounds": "leave-one-out by round",
    "shapley": "Shapley value by round",
}


@dataclass(frozen=True, eq=False)
class RunContributions:
    """Each site's contribution to one run, on each group of patients."""

    estimator: str
    metric: str
    finding: str  # empty: the mean over the findings
    label: str  # what the metric is called
    sites: tuple[str, ...]
    groups: tuple[str, ...]  # `test`, then the sites with a holdout on which the metric has a value
    # (sites, groups, 1 + replicates): the estimate, then that of each draw of patients.
    values: Floats
    tested: str  # a hash of the test images
    models: int  # that were evaluated, or trained
    seconds: float
    pairs: Floats | None = None  # (pairs of permutations, sites, groups), where values are sampled

    def of_group(self, group: str) -> Floats:
        """(sites, 1 + replicates)"""
        return np.asarray(self.values[:, self.groups.index(group)])


def contribution_file(run: Path, estimator: str, metric: str, finding: str = "") -> Path:
    """Findings have files of their own, also "A/B" and "A B", which one slug stands for."""
    parts = [estimator, metric]
    if finding:
        digest = hashlib.sha256(finding.encode(errors="surrogatepass")).hexdigest()[:6]
        parts += [slug(finding), digest]
    return RunFolder(run).contribution / f"{'-'.join(parts)}.safetensors"


def write_contributions(run: Path, contributions: RunContributions) -> None:
    """To the run's folder; undefined numbers are marked, as no file of ours has them."""
    folder = RunFolder(run).contribution
    with write_errors_told(folder):
        make_subfolder(folder, private=True)
    tree: dict[str, Any] = {
        "estimator": contributions.estimator,
        "metric": contributions.metric,
        "finding": contributions.finding,
        "label": contributions.label,
        "sites": dict(enumerate(contributions.sites)),
        "groups": dict(enumerate(contributions.groups)),
        "values": np.nan_to_num(contributions.values),
        "defined": np.isfinite(contributions.values),
        "tested": contributions.tested,
        "models": contributions.models,
        "seconds": contributions.seconds,
    }
    if contributions.pairs is not None:
        tree["pairs"] = np.nan_to_num(contributions.pairs)
    path = contribution_file(
        run, contributions.estimator, contributions.metric, contributions.finding
    )
    write_whole(path, array_tree_bytes(tree), private=True)


def read_contributions(
    run: Path, estimator: str, metric: str, finding: str = ""
) -> RunContributions | None:
    """What was written of just this; None where there is none."""
    path = contribution_file(run, estimator, metric, finding)
    if not path.is_file():
        return None
    tree = read_array_tree(path)
    with damage_told(path):
        if (tree["estimator"], tree["metric"], tree["finding"]) != (estimator, metric, finding):
            return None
        values = np.where(tree["defined"], tree["values"], np.nan)
        sites = tuple(map(str, tree["sites"].values()))
        groups = tuple(map(str, tree["groups"].values()))
        pairs = tree.get("pairs")
        if values.ndim != 3 or values.shape[:2] != (len(sites), len(groups)):
            raise ValueError("values of other sites")
        if pairs is not None and pairs.shape[1:] != values.shape[:2]:
            raise ValueError("permutations of other sites")
        return RunContributions(
            estimator=str(tree["estimator"]),
            metric=str(tree["metric"]),
            finding=str(tree["finding"]),
            label=str(tree["label"]),
            sites=sites,
            groups=groups,
            values=values,
            tested=str(tree["tested"]),
            models=int(tree["models"]),
            seconds=float(tree["seconds"]),
            pairs=pairs,
        )
