"""The ready ServerApp: any experiment over a real federation, in a run's folder like that of
`feddraw run`.

If the server has its own images, it evaluates on these; otherwise the sites send counts, which are
added up.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.common.logger import update_console_handler
from flwr.serverapp import Grid, ServerApp

from feddraw.core import Model, Proxy, why_no_policy
from feddraw.data.dataset import Dataset, Split
from feddraw.data.dataset_by_name import open_dataset
from feddraw.data.image_summary import ImageSummary, summary_of
from feddraw.data.scenarios.partition import Partition
from feddraw.data.subgroups import SubgroupColumn
from feddraw.engines.serial import Serial
from feddraw.errors import UserError
from feddraw.experiment import run_preparation
from feddraw.experiment.evaluation import Evaluator
from feddraw.experiment.run_preparation import (
    features_for_evaluation,
    initial_model,
    make_trainer,
    prepare_server_images,
    trained_builder,
)
from feddraw.experiment.running import Evaluated, evaluate_kept_models
from feddraw.experiment.settings import Experiment, make_method
from feddraw.flower import score_histograms, settings
from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.reply_intake import client_in_reply
from feddraw.flower.roster import read_roster
from feddraw.flower.run_ending import end_in_one_line
from feddraw.flower.settings import FlowerSettings, hides_weights
from feddraw.flower.strategy import MethodStrategy
from feddraw.results.kept_models import ModelKeeper
from feddraw.results.metrics import RunMetrics
from feddraw.results.round_log import RoundLine, divergence_in_scores
from feddraw.results.run_facts import RunFacts
from feddraw.results.run_folder import FinalScores, RunFolder
from feddraw.results.score_counts import Calls, ScoreCounts
from feddraw.secure.sums.session import FEWEST_SUMMED
from feddraw.server.round import RoundRecord

log = logging.getLogger("flwr")


class ServerEvaluation:
    """How the global model is evaluated: on the server's own images, or from the sites' counts."""

    def __init__(self, experiment: Experiment, validation: str) -> None:
        self.experiment = experiment
        self.method = make_method(experiment)
        self.dataset: Dataset | None = None  # None: the sites evaluate, and send counts
        self.proxy: Proxy | None = None
        # of images that the server has itself: sites send nothing of theirs
        self.summary: ImageSummary | None = None
        self.partition = Partition("sites", (), "")
        # metrics from the sites' counts, in the round under way
        self.metrics_from_sites = RunMetrics()
        self.subgroups: tuple[SubgroupColumn, ...] = ()  # that the sites count
        self._contents_from_sites: list[RecordDict] = []
        self.evaluated_counts: ScoreCounts | None = None  # of the last round's model
        if settings.own_folders(experiment):
            self._prepare_for_own_folders(validation)
        else:
            self._prepare_scenario()
        self.method.check(self.initial.layout)

    def _prepare_for_own_folders(self, validation: str) -> None:
        """Sites have folders of their own; the server evaluates where it has one too."""
        self.findings = tuple(settings.findings_of_own_folders(self.experiment))
        self.subgroups = settings.subgroups_of_own_folders(self.experiment)
        if self.experiment.secure and not validation and self._names_subgroups:
            raise UserError(
                "under secure sums sites count no subgroups: leave data.subgroups out, or give the"
                " server images of its own (validation)"
            )
        self.task = self.experiment.task
        build = partial(trained_builder(self.experiment, len(self.findings)), pretrained=True)
        self.initial = initial_model(build, self.experiment.seed)
        if validation:
            options = self.experiment.dataset_section()[1] | {"path": validation}
            dataset = open_dataset("folder", size=options.pop("size"), options=options)
            evaluated = np.concatenate([dataset.rows["validation"], dataset.rows["test"]])
            self.summary = summary_of(dataset, evaluated)
            if self.experiment.trains_on_features:
                dataset = features_for_evaluation(
                    self.experiment, dataset, self.initial.layout.frozen
                )
            self._evaluate_on(dataset, Evaluator(dataset, (), (), task=self.task))

    @property
    def _names_subgroups(self) -> bool:
        return bool(self.experiment.section("data")[1].get("subgroups"))

    def _prepare_scenario(self) -> None:
        """Sites split one data set, which the server has as well."""
        setup = run_preparation.prepare(self.experiment)
        self.findings = setup.dataset.findings
        self.task = setup.experiment.task
        self.initial = setup.initial
        self.partition = setup.partition
        self.summary = setup.summary
        self._evaluate_on(setup.dataset, setup.evaluator)

    def _evaluate_on(self, dataset: Dataset, evaluator: Evaluator) -> None:
        no_training_rows = [np.arange(0)]
        trainer = make_trainer(
            self.experiment, dataset, no_training_rows, self.method, self.initial.layout.frozen
        )
        self.dataset = dataset
        self._engine = Serial(trainer)
        self._evaluator = evaluator
        if self.method.needs.server_images:
            self.proxy = prepare_server_images(self.experiment, dataset, trainer)

    def merge_site_counts(self, contents: list[RecordDict], _: str) -> MetricRecord:
        """The sites' counts as metrics, which the next `evaluate` returns."""
        metrics = score_histograms.merged_histogram_metrics(contents, self.findings, self.task)
        self.metrics_from_sites = metrics
        self._contents_from_sites = contents
        return score_histograms.histogram_metrics_for_log(metrics, self.task)

    def _score_counts(self, contents: list[RecordDict]) -> ScoreCounts:
        """What the sites counted: together, and each site's where it is sent in clear."""
        findings = len(self.findings)
        groupings = {column.name: column.labels for column in self.subgroups}
        values = sum(map(len, groupings.values()))
        splits = score_histograms.EVALUATED_SPLITS
        by_site = {}
        calls_by_site = {}
        if not self.experiment.secure:
            for content in contents:
                name = client_in_reply(content).get("name")  # the roster's, of one site only
                if isinstance(name, str) and name:
                    by_site[name] = {
                        split: score_histograms.add_up_histograms([content], split, findings)
                        for split in splits
                    }
                    calls_by_site[name] = self._counted_calls([content])
        return ScoreCounts(
            findings=self.findings,
            by_split={
                split: score_histograms.add_up_histograms(contents, split, findings)
                for split in splits
            },
            groupings=groupings,
            subgroups_by_split={
                split: score_histograms.add_up_subgroups(contents, split, findings, values)
                for split in splits
                if values
            },
            by_site=by_site,
            calls_by_split=self._counted_calls(contents),
            calls_by_site=calls_by_site,
            least_patients=score_histograms.LEAST_PATIENTS,
            secure=self.experiment.secure,
        )

    def _counted_calls(self, contents: list[RecordDict]) -> dict[str, Calls]:
        """By split, images by class and called class; nothing for tasks without such calls."""
        counted = {
            split: score_histograms.add_up_calls(contents, split, len(self.findings))
            for split in score_histograms.EVALUATED_SPLITS
        }
        return {split: calls for split, calls in counted.items() if calls.any()}

    def evaluate(self, model: Model, *, final: bool) -> Evaluated:
        """The model's metrics and, after the last round, its scores."""
        if self.dataset is None:
            return self._take_metrics_from_sites(final=final), {}
        if final:
            return self._evaluator.at_the_end(self._engine, [model], personal=False)
        splits: list[Split] = ["validation"]
        if self.experiment.test_every_round:
            splits.append("test")
        return self._evaluator.after_a_round(self._engine, [model], tuple(splits)), {}

    def _take_metrics_from_sites(self, *, final: bool) -> RunMetrics:
        """Those of one round only; nothing is evaluated where no site sent counts. The counts
        themselves are kept of the last round.
        """
        metrics = self.metrics_from_sites
        self.metrics_from_sites = RunMetrics()
        if final and self._contents_from_sites:
            self.evaluated_counts = self._score_counts(self._contents_from_sites)
        self._contents_from_sites = []
        return metrics

    def evaluate_kept(self, model: Model) -> Evaluated:
        """Another model than that of the last round: the server's own images only, the sites are
        not asked again.
        """
        return (RunMetrics(), {}) if self.dataset is None else self.evaluate(model, final=True)


def serve_flower_run(grid: Grid, run_config: Mapping[str, Any]) -> MethodStrategy:
    """Carry a run out; everything goes to its folder as it happens."""
    experiment, federation = settings.read_run_config(run_config, trust=settings.trusted_here())
    if experiment.keep.updates:
        raise UserError(
            "keep.updates is for runs of `feddraw run` and `compare`, where the sites' images are"
            " at hand: leave it out"
        )
    if not federation.out:
        evaluation = ServerEvaluation(experiment, federation.validation)
        return ServerRun(federation, evaluation, None).carry_out(grid)
    folder = RunFolder(Path(federation.out))
    table = experiment.table()
    folder.track(experiment.track, table)
    folder.begin(table, resume=federation.resume)
    evaluation = ServerEvaluation(experiment, federation.validation)
    with folder.locked():
        # again: opening the data may take long, and another process may have used the folder
        folder.begin(table, resume=federation.resume)
        facts = RunFacts(
            partition=evaluation.partition,
            parameters=_least_nodes(federation, evaluation) * len(evaluation.initial.params),
            layout=evaluation.initial.layout,
            method=evaluation.method,
            images=evaluation.summary,
        )
        folder.write_settings(table, facts)
        return ServerRun(federation, evaluation, folder).carry_out(grid)


class ServerRun:
    """One run: its strategy, how it is evaluated, and what is kept of it."""

    def __init__(
        self, federation: FlowerSettings, evaluation: ServerEvaluation, folder: RunFolder | None
    ) -> None:
        self.experiment = evaluation.experiment
        self.federation = federation
        self.evaluation = evaluation
        self.folder = folder
        self.strategy = make_strategy(federation, evaluation, folder)
        self.strategy.run_folder.logs_rounds = False  # a round's line has its evaluation
        self._keeper = ModelKeeper(self.experiment.keep, self.experiment.rounds, folder)
        if folder is not None and federation.resume:
            self._keeper.resume()

    def carry_out(self, grid: Grid) -> MethodStrategy:
        """All rounds, or those that are left."""
        self.strategy.start(
            grid,
            model_to_arrays(self.evaluation.initial),
            self.experiment.rounds,
            self.federation.timeout,
            evaluate_fn=self._after_round,
        )
        if self.folder is not None and not self.folder.metrics.is_file():
            # the server was killed after its last round, before its last file
            self._conclude_round(self.experiment.rounds - 1)
        return self.strategy

    def _after_round(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Flower asks for an evaluation before the first round too, also the first one after a
        restart.
        """
        round = server_round - 1
        if round < 0 or self._is_logged(round):
            return None
        return self._conclude_round(round)

    def _is_logged(self, round: int) -> bool:
        return self.folder is not None and self.folder.logged(round)

    def _conclude_round(self, round: int) -> MetricRecord:
        """Evaluate the model after a round, and write the round's line and, after the last one, the
        last files.
        """
        assert self.strategy.model is not None
        assert self.strategy.state is not None
        final = round == self.strategy.rounds - 1
        shown = self.evaluation.method.shown(self.strategy.model, self.strategy.state)
        began = time.perf_counter()
        evaluated, predictions = self.evaluation.evaluate(shown, final=final)
        metrics = evaluated.after(round)
        self._keeper.add(round, shown, metrics)
        kept = self._keeper.models(shown) if final else {}
        metrics = evaluate_kept_models(self.evaluation.evaluate_kept, kept, metrics, predictions)
        seconds = time.perf_counter() - began
        if self.folder is not None:
            if not self._is_logged(round):
                self._write_line(self.folder, round, metrics, seconds)
            if final:
                models = {name: model.model for name, model in kept.items()}
                counts = self.evaluation.evaluated_counts
                content = b"" if counts is None else counts.content()
                scores = FinalScores(metrics, models, predictions, content)
                self.folder.finish(shown, scores, self.evaluation.dataset)
        splits = {"validation": metrics.validation, "test": metrics.test}
        return MetricRecord(
            {f"{name}-auc": split.auc.macro for name, split in splits.items() if split.evaluated}
        )

    def _write_line(
        self, folder: RunFolder, round: int, metrics: RunMetrics, seconds: float
    ) -> None:
        """A round's line of the log; its evaluation at the server took so many seconds."""
        history = self.strategy.history
        last = history[-1] if history else RoundRecord(round=round, ledger=())
        line = RoundLine(
            round=round,
            loss=last.loss,
            validation=metrics.validation,
            test=metrics.test,
            seconds={**(last.seconds or {"aggregation": 0.0}), "evaluation": seconds},
            diverged=divergence_in_scores(metrics) or last.diverged,
            client_seconds=last.client_seconds,
        )
        by_sites = self.strategy.evaluation
        if by_sites is not None and by_sites.round == round:
            line = line.evaluated_by(by_sites)
        folder.add_line(line)


def _least_nodes(federation: FlowerSettings, evaluation: ServerEvaluation) -> int:
    """How many nodes a round waits for."""
    if federation.nodes:
        return federation.nodes
    fewest = FEWEST_SUMMED if evaluation.experiment.secure else 2
    listed = len(read_roster(federation.sites))
    return len(evaluation.partition.shards) or max(listed, fewest)


def make_strategy(
    federation: FlowerSettings, evaluation: ServerEvaluation, folder: RunFolder | None
) -> MethodStrategy:
    """The strategy that a run's settings describe."""
    experiment = evaluation.experiment
    method = evaluation.method
    if not experiment.policy.limits_weights:
        why = why_no_policy(method) or "the run's settings turn it off"
        if hides_weights(experiment, method):
            why = "under secure sums this method's weights are hidden, and only sizes have limits"
        log.warning("no policy limits how much a site counts: %s", why)
    nodes = _least_nodes(federation, evaluation)
    if experiment.secure and nodes < FEWEST_SUMMED:
        raise UserError(
            f"secure sums need at least {FEWEST_SUMMED} clients, and nodes = {nodes} would begin"
            " with fewer"
        )
    fewest_trained = FEWEST_SUMMED if experiment.secure else 1
    sites_evaluate = evaluation.dataset is None
    return MethodStrategy(
        method,
        fraction_train=federation.fraction,
        fraction_evaluate=1.0 if sites_evaluate else 0.0,
        min_train_nodes=max(fewest_trained, int(nodes * federation.fraction)),
        min_evaluate_nodes=nodes if sites_evaluate else 0,
        min_available_nodes=nodes,
        evaluate_metrics_aggr_fn=evaluation.merge_site_counts,
        classifier=evaluation.initial.layout.classifier,
        findings=evaluation.findings,
        task=evaluation.task,
        frozen=evaluation.initial.layout.frozen,
        proxy=evaluation.proxy,
        seed=experiment.seed,
        wait=federation.wait,
        gate=experiment.gate,
        policy=experiment.policy,
        sites=read_roster(federation.sites),
        rebind=federation.rebind,
        folder=folder,
        resume=federation.resume,
        secure=experiment.secure,
        clear_weights=experiment.clear_weights,
        site_keys=federation.site_keys or None,
        masked_counts=sites_evaluate,
        subgroups=sum(len(column.labels) for column in evaluation.subgroups),
    )


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    update_console_handler(colored=os.isatty(2))  # `flwr log` and log files are no terminals
    end_in_one_line()
    serve_flower_run(grid, context.run_config)
