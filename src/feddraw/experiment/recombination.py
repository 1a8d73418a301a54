"""Contributions from one training: the updates that a run kept are aggregated again without some of
the sites, by the run's own collector.

The rule is not known here. A coalition's model is what the method makes of the updates of its
members from the state that it had in that round, as if nobody else had been asked: weights, gate,
policy and server step are the method's own. Each round is a game that starts from the model that
was really sent, so the Shapley values of all rounds add up to what the whole training gained.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.coalitions import (
    MOST_EXACT,
    PAIRS_OF_BLOCK,
    Coalitions,
    Game,
    SampledValues,
    Value,
    leave_one_out,
    members_of,
    remembered,
    sampled_shapley_values,
    shapley_values,
)
from feddraw.analysis.utility import POOLED, PatientGroup, Scores, Utility
from feddraw.core import Model
from feddraw.engines import Engine
from feddraw.errors import UserError
from feddraw.experiment.completion import check_updates_can_be_kept
from feddraw.experiment.run_preparation import PreparedRun, prepare
from feddraw.experiment.running import collector_of, opened_engine
from feddraw.experiment.settings import Experiment
from feddraw.results.checkpoint import model_digest
from feddraw.results.contribution_file import RunContributions
from feddraw.results.kept_updates import KeptRound, read_kept_round, round_file
from feddraw.results.recorded_run import RecordedRun, finished_run
from feddraw.results.run_folder import RunFolder
from feddraw.server.round import Collector
from feddraw.system.progress import Progress, no_progress
from feddraw.tasks import Task

Floats = NDArray[np.float64]

# Of the widest site's standard error over patients: sampling stops where that of the permutations
# is no larger, at every site.
SAMPLING_SHARE = 0.3


@dataclass(frozen=True)
class ContributionOptions:
    """What is measured, and how closely."""

    metric: str = "auc"
    finding: str = ""  # empty: the mean over the findings
    replicates: int = 200  # draws of patients
    most_exact: int = MOST_EXACT  # sites of whom all coalitions are evaluated

    def check(self) -> None:
        if self.replicates < 20:
            raise UserError(f"--replicates must be at least 20, not {self.replicates}")


@dataclass(frozen=True, eq=False)
class ScoredModels:
    """Measures models on the images of a prepared run."""

    setup: PreparedRun
    engine: Engine
    utility: Utility

    @cached_property
    def _rows(self) -> dict[str, NDArray[np.intp]]:
        """Of each group, and of the images that thresholds are chosen on where some are needed."""
        rows = {group.name: self._rows_of(group.name) for group in self.utility.groups}
        if self.utility.call is not None:
            rows[""] = self.setup.dataset.rows["validation"]
        return rows

    def _rows_of(self, group: str) -> NDArray[np.intp]:
        if group == POOLED:
            return self.setup.dataset.rows["test"]
        return self.setup.holdout_rows[self.setup.clients.index(group)]

    def values(self, models: Sequence[Model]) -> Floats:
        """(models, groups, 1 + replicates)"""
        every_row = np.concatenate(list(self._rows.values()))
        ends = np.cumsum([len(rows) for rows in self._rows.values()])[:-1]
        scores: list[dict[str, Scores]] = []
        thresholds = []
        for model in models:
            parts = np.split(self.engine.predict(model, every_row), ends)
            by_group = dict(zip(self._rows, parts, strict=True))
            scores.append(by_group)
            thresholds.append(self._thresholds(by_group))
        return self.utility.of(scores, thresholds)

    def _thresholds(self, by_group: dict[str, Scores]) -> Floats:
        if self.utility.call is None:
            return np.zeros(0)
        truth = self.setup.dataset.labels.truth(self._rows[""])
        return np.array(self.setup.experiment.task.choose_thresholds(by_group[""], truth))


def patient_groups(setup: PreparedRun) -> tuple[PatientGroup, ...]:
    """All test patients, and those that each site kept back."""
    labels = setup.dataset.labels
    patients = labels.patient_numbers()
    by_name = {POOLED: setup.dataset.rows["test"]} | {
        client: rows
        for client, rows in zip(setup.clients, setup.holdout_rows, strict=True)
        if len(rows)
    }
    return tuple(
        PatientGroup(name, labels.truth(rows), None if patients is None else patients[rows])
        for name, rows in by_name.items()
    )


def prepare_recorded(run: RecordedRun, *, trust: bool, progress: Progress) -> PreparedRun:
    """The data and clients of a run as it had them."""
    experiment = Experiment.read(RunFolder(run.path).settings, trust=trust)
    setup = prepare(experiment, progress=progress)
    if setup.partition.sha256 != run.partition.get("sha256"):
        raise UserError(f"{run.path} was run on other data: use the same images")
    return setup


def utility_of(
    task: Task,
    findings: Sequence[str],
    groups: tuple[PatientGroup, ...],
    how: ContributionOptions,
) -> Utility:
    """A metric of the task, of all findings or of one."""
    if how.metric not in task.metrics:
        known = ", ".join(task.metrics)
        raise UserError(f"--metric must be one of {known} for this run, not '{how.metric}'")
    if how.finding and how.finding not in findings:
        known = ", ".join(findings)
        raise UserError(f"no finding '{how.finding}' in this run: it has {known}")
    metric = task.metrics[how.metric]
    return Utility(
        measure=metric.measure,
        groups=groups,
        call=task.call if metric.of_calls else None,
        finding=list(findings).index(how.finding) if how.finding else None,
        replicates=how.replicates,
    )


def why_updates_are_missing(run: RecordedRun, experiment: Experiment, setup: PreparedRun) -> str:
    """Why a run's updates cannot be recombined; empty where they can."""
    try:
        check_updates_can_be_kept(experiment, setup.method)
    except UserError as error:
        return str(error)
    files = [round_file(RunFolder(run.path).updates, number) for number in range(experiment.rounds)]
    missing = [number for number, file in enumerate(files) if not file.is_file()]
    if len(missing) == len(files):
        return (
            f"{run.path} kept no updates: run it again with keep.updates = true, or train"
            " without each site (--retrain)"
        )
    if missing:
        return (
            f"{run.path} lacks the updates of {len(missing)} of {len(files)} rounds, the first"
            f" {missing[0]}: run it again with keep.updates = true"
        )
    return ""


def recombined_contributions(
    path: Path,
    how: ContributionOptions,
    *,
    trust: bool = False,
    progress: Progress | None = None,
) -> list[RunContributions]:
    """Leave-one-out by round and Shapley values of a run, from the updates that it kept."""
    how.check()
    report = progress or no_progress
    run = finished_run(path)
    setup = prepare_recorded(run, trust=trust, progress=report)
    if len(setup.clients) < 2:
        raise UserError(f"{path} has one site: there is nobody to compare it with")
    if why := why_updates_are_missing(run, setup.experiment, setup):
        raise UserError(why)
    task = setup.experiment.task
    utility = utility_of(task, setup.dataset.findings, patient_groups(setup), how)
    predictions = run.predictions()
    tested = "" if predictions is None else predictions.tested
    with opened_engine(setup) as engine:
        rounds = RecombinedRounds(
            path=path,
            setup=setup,
            scored=ScoredModels(setup, engine, utility),
            progress=report,
        )
        return rounds.contributions(how, tested)


@dataclass(eq=False)
class RecombinedRounds:
    """All rounds of a run, each a game among the sites whose updates it has."""

    path: Path
    setup: PreparedRun
    scored: ScoredModels
    progress: Progress
    evaluated: int = 0  # models
    _read: KeptRound | None = None  # the last round that was read: one is in memory at a time

    def contributions(self, how: ContributionOptions, tested: str) -> list[RunContributions]:
        """By round with one site less, and Shapley values: exact for few sites, else sampled."""
        began = time.perf_counter()
        games = self._games()
        sites = self.setup.clients
        pairs = None
        if len(sites) <= how.most_exact:
            by_round = []
            for number, game in enumerate(games):
                left_out = leave_one_out(len(sites), [game])
                shares = shapley_values(len(sites), [game])
                by_round.append(np.stack([left_out, shares]))
                self.progress("rounds recombined", number + 1, len(games))
            left_out, shares = np.sum(by_round, axis=0)
        else:
            left_out = leave_one_out(len(sites), games)
            sampled = self._sampled(games)
            shares = sampled.mean
            pairs = np.asarray(sampled.pairs[..., 0])
        common = RunContributions(
            estimator="rounds",
            metric=how.metric,
            finding=how.finding,
            label=self.setup.experiment.task.labels[how.metric],
            sites=sites,
            groups=tuple(group.name for group in self.scored.utility.groups),
            values=left_out,
            tested=tested,
            models=self.evaluated,
            seconds=time.perf_counter() - began,
        )
        return [common, replace(common, estimator="shapley", values=shares, pairs=pairs)]

    def _sampled(self, games: Sequence[Game]) -> SampledValues:
        def tell(pairs: int, ready: int) -> None:
            done = pairs * len(games) + ready * PAIRS_OF_BLOCK
            whole = (pairs + PAIRS_OF_BLOCK) * len(games)
            self.progress("rounds recombined in random orders", done, whole)

        rng = np.random.default_rng(self.setup.experiment.seed)
        return sampled_shapley_values(
            len(self.setup.clients), games, rng, enough_permutations, tell
        )

    def _games(self) -> list[Game]:
        """A game of each round; the updates must give the model that the next round began with."""
        games = []
        collect = collector_of_coalitions(self.setup)
        given = ""
        for number in range(self.setup.experiment.rounds):
            kept = self._round(number)
            if given and model_digest(kept.round.sent) != given:
                raise UserError(
                    f"the updates of round {number - 1} do not give the model that {self.path}"
                    f" sent in round {number}: they are of another run, or another version of"
                    " feddraw aggregates otherwise; run it again with keep.updates = true"
                )
            whole = kept.aggregated(collector_of(self.setup), kept.present)
            given = model_digest(whole.next_model)
            # where nobody counted, because of `policy.min_sites` or the gate, nobody contributed
            present = kept.present if whole.weights else ()
            games.append(Game(present, remembered(self._value_of(number, collect))))
            self.progress("rounds read", number + 1, self.setup.experiment.rounds)
        return games

    def _value_of(self, number: int, collect: Collector) -> Value:
        def value(coalitions: Coalitions) -> Floats:
            kept = self._round(number)
            self.evaluated += len(coalitions)
            return self.scored.values([model_of(kept, collect, each) for each in coalitions])

        return value

    def _round(self, number: int) -> KeptRound:
        if self._read is None or self._read.round.number != number:
            self._read = read_kept_round(
                RunFolder(self.path).updates,
                number,
                self.setup.experiment.rounds,
                self.setup.method,
                self.setup.initial.layout,
                self.setup.clients,
            )
        return self._read


def collector_of_coalitions(setup: PreparedRun) -> Collector:
    """The run's own collector. A coalition may be as small as one site: `policy.min_sites` protects
    what is sent out, and nothing is.
    """
    experiment = setup.experiment
    policy = replace(experiment.policy, min_sites=0)
    return collector_of(replace(setup, experiment=replace(experiment, policy=policy)))


def model_of(kept: KeptRound, collect: Collector, coalition: int) -> Model:
    """What a round's updates of a coalition give; the model from before it, where that is empty."""
    members = members_of(coalition)
    return kept.aggregated(collect, members).model if members else kept.model_before()


def enough_permutations(sampled: SampledValues) -> bool:
    """Whether the permutations add little to what the patients leave open, on all test patients."""
    over_patients = sampled.mean[:, 0, 1:].std(axis=-1, ddof=1)
    over_permutations = np.sqrt(sampled.variance[:, 0, 0])
    return bool(over_permutations.max() <= SAMPLING_SHARE * over_patients.max())
