"""Contributions by retraining: the same training once more for each site, without it.

The site stays in the partition and is never asked (`participation.leaves` from round 0), so all
other sites have the images, the orders of images and the steps that they had. The trainings are
runs in the folder `contribution` of the run, and those that are finished are not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.utility import POOLED, PatientGroup, Scores
from feddraw.errors import UserError
from feddraw.experiment.recombination import ContributionOptions, utility_of
from feddraw.experiment.running import run as carry_out
from feddraw.experiment.settings import Experiment
from feddraw.results.contribution_file import RunContributions
from feddraw.results.predictions import read_holdout_predictions
from feddraw.results.recorded_run import RecordedRun, finished_run
from feddraw.results.run_folder import RunFolder
from feddraw.system.progress import Progress
from feddraw.tasks import task_of_run
from feddraw.text import folder_name, parse_pairs

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Retraining:
    """One training that is needed: of all sites with another seed, or without one of them."""

    folder: Path
    experiment: Experiment
    words: str

    @property
    def finished(self) -> bool:
        return RunFolder(self.folder).metrics.is_file()


def sites_of(run: RecordedRun) -> tuple[str, ...]:
    """All sites that the run's images were dealt to, in order."""
    return tuple(map(str, run.partition.get("sizes", {})))


def without_each_site(run: RecordedRun, *, trust: bool) -> list[Retraining]:
    """The trainings that leave one site out of a run."""
    experiment = Experiment.read(RunFolder(run.path).settings, trust=trust)
    sites = sites_of(run)
    check_sites_can_be_left_out(run, experiment, sites)
    trainings = []
    for number, site in enumerate(sites):
        leaves = experiment.participation.leaves
        others = ", ".join(filter(None, [leaves, f"{site}=0"]))
        changes = {"participation.leaves": others, "keep.updates": False}
        folder = RunFolder(run.path).contribution / f"without-{number}-{folder_name(site)}"
        words = f"without {site}, seed {experiment.seed}"
        trainings.append(Retraining(folder, experiment.with_settings(changes), words))
    return trainings


def check_sites_can_be_left_out(
    run: RecordedRun, experiment: Experiment, sites: Sequence[str]
) -> None:
    """Refuse runs in which no site can be left out."""
    if len(sites) < 2:
        raise UserError(f"{run.path} has one site: there is nobody to compare it with")
    if run.reference:
        raise UserError(
            f"{run.path} is of method {run.name}, which is no federation: give the run of one"
        )
    if experiment.participation.leaves and any(
        site in parse_pairs(experiment.participation.leaves, str, setting="", example="")
        for site in sites
    ):
        raise UserError(
            f"a site of {run.path} leaves during the training (participation.leaves): leaving sites"
            " out by retraining needs a run that all sites stay in"
        )
    unreadable = [site for site in sites if "," in site]
    if unreadable:
        raise UserError(
            f"the site '{unreadable[0]}' has a comma in its name, which participation.leaves cannot"
            " hold: rename it"
        )
    least = experiment.policy.min_sites
    if least >= len(sites):
        raise UserError(
            f"policy.min_sites = {least}, and without a site only {len(sites) - 1} are left: no"
            " such model is ever trained"
        )


def other_seed(run: RecordedRun, seed: int, *, trust: bool) -> Retraining:
    """The run's training with another seed, its updates kept where the run's are."""
    experiment = Experiment.read(RunFolder(run.path).settings, trust=trust)
    changed = experiment.with_settings({"seed": seed} | _own_partition(experiment, seed))
    folder = RunFolder(run.path).contribution / f"seed-{seed}"
    return Retraining(folder, changed, f"all sites, seed {seed}")


def _own_partition(experiment: Experiment, seed: int) -> dict[str, int]:
    """A partition that followed the seed follows it again; one of its own stays."""
    if experiment.partition_seed == experiment.seed:
        return {"partition_seed": seed}
    return {}


@dataclass(eq=False)
class TrainingBudget:
    """Carries trainings out while they fit into the time: by what those before took."""

    seconds: float  # of the whole command
    clock: Callable[[], float]  # seconds since it began
    each: float  # what a training takes, by those that are known
    left_out: int = 0

    def carry_out(self, trainings: Sequence[Retraining], progress: Progress) -> bool:
        """Whether all are finished now; none begins unless all of these fit."""
        needed = [training for training in trainings if not training.finished]
        if self.clock() + len(needed) * self.each > self.seconds:
            self.left_out += len(needed)
            return False
        for number, training in enumerate(needed):
            progress("trainings", number, len(needed))
            began = time.monotonic()
            resume = training.folder.exists()
            carry_out(training.experiment, training.folder, resume=resume)
            self.each = time.monotonic() - began
            progress("trainings", number + 1, len(needed))
        return True


def seconds_of(run: RecordedRun) -> float:
    """What a run took, by its log."""
    return float(sum(sum(line.seconds.values()) for line in run.rounds))


def retrained_contributions(
    run: RecordedRun, trainings: Sequence[Retraining], how: ContributionOptions
) -> RunContributions:
    """What each site's absence changed, from the scores that the trainings kept."""
    began = time.perf_counter()
    whole = _scored(run)
    others = [_scored(finished_run(training.folder)) for training in trainings]
    for training, other in zip(trainings, others, strict=True):
        if other.tested != whole.tested:
            raise UserError(
                f"{training.folder} was tested on other images than {run.path}: delete its folder"
                " and type the command again"
            )
    task = task_of_run(run)
    utility = utility_of(task, whole.findings, whole.groups, how)
    models = [whole, *others]
    values = utility.of([each.scores for each in models], [each.thresholds for each in models])
    seconds = sum(seconds_of(finished_run(training.folder)) for training in trainings)
    return RunContributions(
        estimator="retrained",
        metric=how.metric,
        finding=how.finding,
        label=task.labels[how.metric],
        sites=sites_of(run),
        groups=tuple(group.name for group in whole.groups),
        values=values[0] - values[1:],
        tested=whole.tested,
        models=len(trainings),
        seconds=seconds + time.perf_counter() - began,
    )


@dataclass(frozen=True, eq=False)
class _ScoredRun:
    """The scores of a run's images, as the run kept them."""

    groups: tuple[PatientGroup, ...]
    scores: dict[str, Scores]
    thresholds: Floats
    findings: tuple[str, ...]
    tested: str


def _scored(run: RecordedRun) -> _ScoredRun:
    predictions = run.predictions()
    if predictions is None or predictions.scores.ndim != 2:
        raise UserError(f"{run.path} has no scores of a common model: give another run")
    groups = [PatientGroup(POOLED, predictions.truth, predictions.patients)]
    scores: dict[str, Scores] = {POOLED: predictions.scores}
    held = read_holdout_predictions(run.path)
    if held is not None:
        for number, site in enumerate(sites_of(run)):
            own = held.clients == number
            if own.any():
                patients = None if held.patients is None else held.patients[own]
                groups.append(PatientGroup(site, held.truth[own], patients))
                scores[site] = held.scores[own]
    limits = run.metrics.test.thresholds
    return _ScoredRun(
        groups=tuple(groups),
        scores=scores,
        thresholds=np.array([limits.get(name, np.nan) for name in predictions.classes]),
        findings=predictions.classes,
        tested=predictions.tested,
    )
