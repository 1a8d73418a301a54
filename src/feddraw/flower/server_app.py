"""The ready ServerApp: any experiment over a real federation, in a run's folder like that of
`feddraw run`.

If the server has its own images, it evaluates on these; otherwise the sites send counts, which are
added up.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

from feddraw.analysis.evaluation import Evaluator
from feddraw.core import Model, Proxy, why_no_policy
from feddraw.data.dataset import Dataset, Split
from feddraw.data.scenarios.partition import Partition
from feddraw.engines.serial import Serial
from feddraw.errors import UserError
from feddraw.experiment import run_preparation
from feddraw.experiment.dataset_by_name import open_dataset
from feddraw.experiment.run_preparation import (
    initial_model,
    make_trainer,
    network_builder,
    prepare_server_images,
)
from feddraw.experiment.running import Evaluated, evaluate_kept_models
from feddraw.experiment.settings import Experiment, make_method, unnamed_defaults
from feddraw.flower import score_histograms, settings
from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.roster import read_roster
from feddraw.flower.settings import FlowerSettings
from feddraw.flower.strategy import MethodStrategy
from feddraw.results.kept_models import ModelKeeper
from feddraw.results.run_folder import RunFolder
from feddraw.secure.sums.session import FEWEST_SUMMED
from feddraw.server.round import RoundRecord
from feddraw.system.file_reading import read_jsonl

log = logging.getLogger("flwr")


class ServerEvaluation:
    """How the global model is evaluated: on the server's own images, or from the sites' counts."""

    def __init__(self, experiment: Experiment, validation: str) -> None:
        self.experiment, self.method = experiment, make_method(experiment)
        self.dataset: Dataset | None = None
        self.proxy: Proxy | None = None
        self.partition = Partition("sites", (), "")
        self.counted_by_sites: dict[str, Any] = {}  # from the sites, in the round under way
        if settings.own_folders(experiment):
            self.findings = tuple(settings.findings_of_own_folders(experiment))
            build = partial(network_builder(experiment, len(self.findings)), pretrained=True)
            self.initial = initial_model(build, experiment.seed)
            if validation:
                options = experiment.section("data")[1] | {"path": validation}
                self._evaluate_on(open_dataset("folder", size=options.pop("size"), options=options))
        else:
            setup = run_preparation.prepare(experiment)
            self.findings, self.initial, self.partition = (
                setup.dataset.findings,
                setup.initial,
                setup.partition,
            )
            self._evaluate_on(setup.dataset)
            self._evaluator = setup.evaluator  # with the clients' holdouts
        self.method.check(self.initial.layout)

    def _evaluate_on(self, dataset: Dataset) -> None:
        self.dataset = dataset
        trainer = make_trainer(
            self.experiment, dataset, [np.arange(0)], self.method, self.initial.layout.frozen
        )
        self._engine, self._evaluator = Serial(trainer), Evaluator(dataset, (), ())
        self.proxy = (
            prepare_server_images(self.experiment, dataset, trainer)
            if self.method.needs.server_images
            else None
        )

    def merge_site_counts(self, contents: list[RecordDict], _: str) -> MetricRecord:
        self.counted_by_sites = score_histograms.merged_histogram_metrics(contents, self.findings)
        return score_histograms.histogram_metrics_for_log(self.counted_by_sites)

    def evaluate(self, model: Model, *, final: bool) -> Evaluated:
        if self.dataset is None:
            nobody = {"validation": {"auc": {"macro": math.nan, "per_class": {}}}}
            counted, self.counted_by_sites = self.counted_by_sites, {}  # those of one round only
            return (counted or nobody) | {"clients": {}}, {}
        if final:
            return self._evaluator.at_the_end(self._engine, [model], personal=False)
        splits: tuple[Split, ...] = (
            ("validation", "test") if self.experiment.test_every_round else ("validation",)
        )
        return self._evaluator.after_a_round(self._engine, [model], splits), {}

    def evaluate_kept(self, model: Model) -> Evaluated:
        """Another model than that of the last round: the server's own images only, the sites are
        not asked again.
        """
        return ({}, {}) if self.dataset is None else self.evaluate(model, final=True)


def serve_flower_run(grid: Grid, run_config: Mapping[str, Any]) -> MethodStrategy:
    """Carry a run out; everything goes to its folder as it happens."""
    experiment, federation = settings.read_run_config(run_config, trust=settings.trusted_here())
    folder = RunFolder(Path(federation.out)) if federation.out else None
    table = experiment.table()
    how: dict[str, Any] = {"resume": federation.resume, "defaults": unnamed_defaults()}
    if folder is not None:
        folder.begin(table, **how)  # before the data are opened, which may take long
    evaluation = ServerEvaluation(experiment, federation.validation)
    with nullcontext() if folder is None else folder.locked():
        if folder is not None:
            folder.begin(table, **how)  # another process may have used the folder in the meantime
            numbers = _least_nodes(federation, evaluation) * len(evaluation.initial.params)
            layout = evaluation.initial.layout
            folder.write_settings(
                table, partition=evaluation.partition, parameters=numbers, layout=layout
            )
        return _run_strategy(grid, federation, evaluation, folder)


def _run_strategy(
    grid: Grid, federation: FlowerSettings, evaluation: ServerEvaluation, folder: RunFolder | None
) -> MethodStrategy:
    strategy, experiment = make_strategy(federation, evaluation, folder), evaluation.experiment
    keeper = ModelKeeper(experiment.keep, experiment.rounds, folder)
    if folder is not None and federation.resume:
        keeper.resume()
    strategy.logs_rounds = False  # a round's line has its evaluation

    def after_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        done = server_round - 1
        logged = [] if folder is None else [line["round"] for line in read_jsonl(folder.rounds)]
        if done < 0 or done in logged:  # before the first round, also the first one after a restart
            return None
        return _conclude_server_app_round(strategy, evaluation, folder, keeper, done)

    arrays, rounds = model_to_arrays(evaluation.initial), experiment.rounds
    strategy.start(grid, arrays, rounds, federation.timeout, evaluate_fn=after_round)
    if (
        folder is not None and not folder.metrics.is_file()
    ):  # killed after its last round, before its last file
        _conclude_server_app_round(strategy, evaluation, folder, keeper, rounds - 1)
    return strategy


def _least_nodes(federation: FlowerSettings, evaluation: ServerEvaluation) -> int:
    """How many nodes a round waits for."""
    fewest = FEWEST_SUMMED if evaluation.experiment.secure else 2
    return federation.nodes or len(evaluation.partition.shards) or fewest


def make_strategy(
    federation: FlowerSettings, evaluation: ServerEvaluation, folder: RunFolder | None
) -> MethodStrategy:
    experiment, method = evaluation.experiment, evaluation.method
    if not experiment.policy.limits_weights:
        why = why_no_policy(method) or "the run's settings turn it off"
        log.warning("no policy limits how much a site counts: %s", why)
    nodes = _least_nodes(federation, evaluation)
    if experiment.secure and nodes < FEWEST_SUMMED:
        raise UserError(
            f"secure sums need at least {FEWEST_SUMMED} clients, and nodes = {nodes} would begin"
            " with fewer"
        )
    counted = evaluation.dataset is None  # the sites evaluate, and send counts
    return MethodStrategy(
        method,
        fraction_train=federation.fraction,
        fraction_evaluate=1.0 if counted else 0.0,
        min_train_nodes=max(
            FEWEST_SUMMED if experiment.secure else 1, int(nodes * federation.fraction)
        ),
        min_evaluate_nodes=nodes if counted else 0,
        min_available_nodes=nodes,
        evaluate_metrics_aggr_fn=evaluation.merge_site_counts,
        classifier=evaluation.initial.layout.classifier,
        seed=experiment.seed,
        wait=federation.wait,
        size_cap=federation.size_cap,
        gate=experiment.gate,
        policy=experiment.policy,
        proxy=evaluation.proxy,
        folder=folder,
        resume=federation.resume,
        sites=read_roster(federation.sites),
        rebind=federation.rebind,
        findings=evaluation.findings,
        frozen=evaluation.initial.layout.frozen,
        secure=experiment.secure,
        site_keys=federation.site_keys or None,
        masked_counts=counted,
    )


def _conclude_server_app_round(
    strategy: MethodStrategy,
    evaluation: ServerEvaluation,
    folder: RunFolder | None,
    keeper: ModelKeeper,
    done: int,
) -> MetricRecord:
    """Evaluate the model after a round, and write the round's line and, after the last one, the
    last files.
    """
    assert strategy.model is not None
    assert strategy.state is not None
    final = done == strategy.rounds - 1
    shown = evaluation.method.shown(strategy.model, strategy.state)
    began = time.perf_counter()
    scores, predictions = evaluation.evaluate(shown, final=final)
    keeper.add(done, shown, scores)
    kept = keeper.models(shown) if final else {}
    evaluate_kept_models(evaluation.evaluate_kept, kept, scores, predictions)
    took = time.perf_counter() - began
    if folder is not None:
        last = strategy.history[-1] if strategy.history else RoundRecord(round=done, ledger=())
        if done not in [line["round"] for line in read_jsonl(folder.rounds)]:
            diverged, loss = replace(last, metrics=scores).diverged, last.loss
            seconds = {**(last.seconds or {"aggregation": 0.0}), "evaluation": took}
            folder.add_line(done, loss, scores, seconds, last.client_seconds, diverged=diverged)
        if final:
            models = {name: one.model for name, one in kept.items()}
            folder.finish(shown, {"round": done} | scores, predictions, evaluation.dataset, models)
    return MetricRecord(
        {f"{part}-auc": float(one["auc"]["macro"]) for part, one in scores.items() if "auc" in one}
    )


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    serve_flower_run(grid, context.run_config)
