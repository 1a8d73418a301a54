"""Carry out an experiment: `run` to its end, `iterate` round by round."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from feddraw import catalog
from feddraw.core import Model, Update
from feddraw.core.capabilities import why_not_averaged
from feddraw.data.dataset import Dataset, Split
from feddraw.engines import Engine
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.device_placement import devices_record
from feddraw.experiment.evaluation import has_personal_models, models_to_evaluate
from feddraw.experiment.run_preparation import PreparedRun, prepare
from feddraw.experiment.run_progress import RunProgress
from feddraw.experiment.settings import Experiment
from feddraw.federation import Federation, OnUpdate, federate
from feddraw.results.checkpoint import Checkpoint
from feddraw.results.kept_models import Keep, KeptModel, ModelKeeper
from feddraw.results.kept_updates import KeepingUpdates, check_room_for_updates
from feddraw.results.metrics import ModelMetrics, RunMetrics
from feddraw.results.round_log import EvaluatedRound
from feddraw.results.run_facts import RunFacts
from feddraw.results.run_folder import FinalScores, RunFolder
from feddraw.results.run_reader import read_metrics
from feddraw.server.collectors import Streaming, Together
from feddraw.server.ledger import pieces_by_finding
from feddraw.server.policy import Policy
from feddraw.server.round import Collector
from feddraw.system.progress import Progress
from feddraw.training.device_memory import memory_shortage_told

# The metrics of a model, and the scores of every image that they come from, by name.
Evaluated = tuple[RunMetrics, dict[str, NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class RunResult:
    """A run that has been carried out: its rounds in order, and what came of it."""

    rounds: tuple[EvaluatedRound, ...]  # carried out now; a resumed run did the others before
    metrics: RunMetrics  # of the model after the last round: validation, test, each client's own
    folder: Path | None  # where everything was written, if anywhere

    @property
    def last(self) -> EvaluatedRound:
        """The last round, with the model."""
        if not self.rounds:
            raise UserError(
                f"{self.folder} was finished before: its model and metrics are in that folder"
            )
        return self.rounds[-1]

    def __iter__(self) -> Iterator[EvaluatedRound]:
        return iter(self.rounds)

    def __len__(self) -> int:
        return len(self.rounds)


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    dataset: Dataset | None = None,
    progress: Progress | None = None,
    on_update: OnUpdate | None = None,
) -> RunResult:
    """Carry out an experiment to its end; gives its rounds, the last one with the test metrics.

    With `out`, everything is written to that folder as it happens, and a killed run continues with
    `resume`. The result holds every round's model: for many rounds of a large network, or to see
    each round when it is done, use `iterate`.
    """
    rounds = tuple(
        iterate(
            experiment, out, resume=resume, dataset=dataset, progress=progress, on_update=on_update
        )
    )
    folder = None if out is None else Path(out)
    if folder is not None and not rounds:  # it was finished before
        return RunResult(rounds, read_metrics(folder), folder)
    return RunResult(rounds, rounds[-1].metrics, folder)


def iterate(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    dataset: Dataset | None = None,
    progress: Progress | None = None,
    on_update: OnUpdate | None = None,
    on_setup: Callable[[PreparedRun], None] | None = None,
) -> Iterator[EvaluatedRound]:
    """Carry out an experiment round by round: each is trained when it is asked for, and nothing
    happens before.

    Takes what `run` takes; `on_setup` is called with the data and the clients before the first
    round. To stop before the end, stop asking; with `out` and `resume` it continues later.
    """
    experiment = complete_settings(experiment)
    folder = None if out is None else RunFolder(Path(out))
    if folder is not None:
        folder.track(experiment.track, experiment.table())
    elif experiment.track:
        warnings.warn(f"{experiment.track} is shown nothing: the run has no folder", stacklevel=2)
    if _is_finished(folder, experiment, resume):  # before the data are opened, which may take long
        return
    setup = prepare(experiment, dataset=dataset, progress=progress)
    if experiment.keep.updates:
        asked = [len(setup.efforts(round)) for round in range(experiment.rounds)]
        check_room_for_updates(setup.method, setup.initial, asked, experiment.keep.gb)
    with nullcontext() if folder is None else folder.locked():
        # another process may have used the folder in the meantime
        if _is_finished(folder, experiment, resume):
            return
        checkpoint = None
        if folder is not None:
            folder.write_settings(experiment.table(), _run_facts(setup))
            checkpoint = _checkpoint_to_resume(folder, setup) if resume else None
        if on_setup is not None:
            on_setup(setup)
        yield from _shown_rounds(setup, folder, checkpoint, progress, on_update)


def _is_finished(folder: RunFolder | None, experiment: Experiment, resume: bool) -> bool:
    """Whether there is nothing left to do; refuses a folder that is not free for this run."""
    return folder is not None and not folder.begin(experiment.table(), resume=resume)


def _shown_rounds(
    setup: PreparedRun,
    folder: RunFolder | None,
    checkpoint: Checkpoint | None,
    progress: Progress | None,
    on_update: OnUpdate | None,
) -> Iterator[EvaluatedRound]:
    """The rounds on the experiment's engine, told to `progress` as they come."""
    start = 0 if checkpoint is None else checkpoint.next_round
    with (
        memory_shortage_told(setup.trainer),
        opened_engine(setup) as engine,
    ):
        meter = RunProgress(setup, engine, start, progress)
        meter.tell()

        def count_update(round: int, update: Update) -> None:
            meter.came(update.client)
            if on_update is not None:
                on_update(round, update)

        results = _carry_out_rounds(setup, engine, folder, checkpoint, count_update)
        for result in meter.over(results):
            meter.finished(result.round)
            yield result


def _run_facts(setup: PreparedRun) -> RunFacts:
    return RunFacts(
        partition=setup.partition,
        parameters=setup.summed_parameters,
        layout=setup.initial.layout,
        method=setup.method,
        dataset=setup.dataset,
        devices=devices_record(setup.experiment, setup.places),
        images=setup.summary,
    )


def _checkpoint_to_resume(folder: RunFolder, setup: PreparedRun) -> Checkpoint | None:
    checkpoint = folder.load_checkpoint(setup.initial.layout)
    if checkpoint is not None and checkpoint.next_round > setup.experiment.rounds:
        raise UserError(
            f"{folder.checkpoint} is of a longer run than {folder.settings}: choose another folder"
        )
    return checkpoint


def _carry_out_rounds(
    setup: PreparedRun,
    engine: Engine,
    folder: RunFolder | None,
    checkpoint: Checkpoint | None,
    on_update: OnUpdate,
) -> Iterator[EvaluatedRound]:
    """Train, evaluate and write down round after round, from the checkpoint if there is one."""
    rounds = setup.experiment.rounds
    keeper = _model_keeper(setup, folder)
    begin = checkpoint or Checkpoint(
        model=setup.initial,
        state=setup.method.init(setup.initial),
        next_round=0,
        memory=engine.memory,
    )
    engine.memory = begin.memory
    if folder is not None:
        folder.forget_from(begin.next_round)
    if checkpoint is not None:
        keeper.resume()

    federation = _federation(setup, engine, folder, on_update)
    for aggregated in federate(federation, begin.model, start=begin.next_round, state=begin.state):
        began = time.perf_counter()
        final = None
        if aggregated.round == rounds - 1:
            final = _final_scores(setup, engine, keeper, aggregated.round, aggregated.model)
            metrics = final.metrics
        else:
            evaluated, _ = evaluate_round(setup, engine, aggregated.model, final=False)
            metrics = evaluated.after(aggregated.round)
            keeper.add(aggregated.round, aggregated.model, metrics)
        evaluation_seconds = time.perf_counter() - began
        result = EvaluatedRound.of(
            aggregated,
            metrics=metrics,
            seconds={**aggregated.seconds, "evaluation": evaluation_seconds},
            pieces=pieces_by_finding(aggregated.pieces, setup.dataset.findings),
            kept={} if final is None else final.kept,
        )
        if folder is not None:
            folder.add_round(result)
            folder.save_checkpoint(
                Checkpoint(result.next_model, result.state, result.round + 1, engine.memory)
            )
            if final is not None:
                folder.finish(result.model, final, setup.dataset)
        yield result

    if folder is not None and begin.next_round == rounds:
        # It was killed after its last round, before its last file.
        model = setup.method.shown(begin.model, begin.state)
        final = _final_scores(setup, engine, keeper, rounds - 1, model)
        folder.finish(model, final, setup.dataset)


def _federation(
    setup: PreparedRun, engine: Engine, folder: RunFolder | None, on_update: OnUpdate
) -> Federation:
    collect = collector_of(setup)
    if folder is not None and setup.experiment.keep.updates:
        collect = KeepingUpdates(collect, folder.updates)
    return Federation(
        method=setup.method,
        engine=engine,
        clients=setup.clients,
        rounds=setup.experiment.rounds,
        seed=setup.experiment.seed,
        collect=collect,
        efforts=setup.efforts,
        on_update=on_update,
    )


def _final_scores(
    setup: PreparedRun, engine: Engine, keeper: ModelKeeper, round: int, model: Model
) -> FinalScores:
    """The model after the last round, and the others that were kept, evaluated."""
    evaluated, predictions = evaluate_round(setup, engine, model, final=True)
    metrics = evaluated.after(round)
    keeper.add(round, model, metrics)
    kept = keeper.models(model)

    def evaluate_common(model: Model) -> Evaluated:
        return setup.evaluator.at_the_end(engine, [model], personal=False)

    return FinalScores(
        metrics=evaluate_kept_models(evaluate_common, kept, metrics, predictions),
        kept={name: model.model for name, model in kept.items()},
        predictions=predictions,
    )


def collector_of(setup: PreparedRun) -> Collector:
    """How the server takes updates in: under masks, one by one, or all together."""
    experiment = setup.experiment
    sizes = [len(rows) for rows in setup.training_rows]
    policy = Policy() if setup.method.centralised else experiment.policy
    if why_not_averaged(setup.method):
        policy = replace(policy, min_sites=0)
    if experiment.secure:
        from feddraw.secure.rounds.in_process import Secure

        name, settings = experiment.section("method")
        return Secure(
            clients=setup.clients,
            sizes=sizes,
            section={"name": name} | settings,
            labelled=setup.trainer.labelled,
            gate=experiment.gate,
            policy=policy,
            clear_weights=experiment.clear_weights,
        )
    if experiment.stream:
        return Streaming(sizes=sizes, gate=experiment.gate, policy=policy)
    return Together(gate=experiment.gate, policy=policy, proxy=setup.proxy)


def _model_keeper(setup: PreparedRun, folder: RunFolder | None) -> ModelKeeper:
    """What keeps other models than the last; nothing where each client has a model of its own."""
    keep = setup.experiment.keep
    if keep.models and has_personal_models(setup.method):
        name = setup.experiment.section("method")[0]
        warnings.warn(
            f"{name} has one model per client: only those of the last round are kept", stacklevel=2
        )
        keep = Keep()
    return ModelKeeper(keep, setup.experiment.rounds, folder)


def evaluate_kept_models(
    evaluate_model: Callable[[Model], Evaluated],
    kept: Mapping[str, KeptModel],
    metrics: RunMetrics,
    predictions: dict[str, NDArray[Any]],
) -> RunMetrics:
    """The metrics of the last model, with those of the kept ones, each with thresholds of its own;
    their scores are added to `predictions`.
    """
    models = {}
    for name, model in kept.items():
        evaluated, scores = evaluate_model(model.model)
        models[name] = ModelMetrics(
            rounds=model.rounds,
            chosen_by=model.chosen_by,
            validation=evaluated.validation,
            test=evaluated.test,
            clients=evaluated.clients,
        )
        for key, array in scores.items():
            if key.endswith(".scores"):
                predictions[f"{name}.{key}"] = array
    return replace(metrics, models=models)


def evaluate_round(setup: PreparedRun, engine: Engine, model: Model, *, final: bool) -> Evaluated:
    """Validation AUC after every round; after the last one thresholds, test metrics, each client's
    own, and scores.
    """
    models, personal = models_to_evaluate(setup.method, engine, model, len(setup.clients))
    if final:
        return setup.evaluator.at_the_end(engine, models, personal=personal)
    splits: tuple[Split, ...] = (
        ("validation", "test") if setup.experiment.test_every_round else ("validation",)
    )
    return setup.evaluator.after_a_round(engine, models, splits), {}


def opened_engine(setup: PreparedRun) -> closing[Engine]:
    """The engine that an experiment asks for, closed whatever happens."""
    return closing(catalog.find("engines", setup.experiment.engine)(setup, len(setup.places)))
