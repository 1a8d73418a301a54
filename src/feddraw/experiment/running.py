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
from feddraw.analysis.evaluation import has_personal_models, models_to_evaluate
from feddraw.core import Model, Update
from feddraw.data.dataset import Dataset, Split
from feddraw.data.image_cache import Progress
from feddraw.engines import Engine
from feddraw.errors import UserError
from feddraw.experiment.device_placement import devices_record
from feddraw.experiment.run_preparation import PreparedRun, prepare
from feddraw.experiment.run_progress import RunProgress
from feddraw.experiment.settings import Experiment, complete, unnamed_defaults
from feddraw.federation import Federation, OnUpdate, federate
from feddraw.results.checkpoint import Checkpoint
from feddraw.results.kept_models import Keep, KeptModel, ModelKeeper
from feddraw.results.run_folder import RunFolder
from feddraw.results.tensorboard import check_tensorboard, tensorboard_log
from feddraw.server.collectors import Streaming, Together
from feddraw.server.ledger import pieces_by_finding
from feddraw.server.policy import Policy
from feddraw.server.round import Collector, RoundResult
from feddraw.system.file_reading import read_json
from feddraw.training.device_memory import memory_shortage_told

Evaluated = tuple[
    dict[str, Any], dict[str, NDArray[Any]]
]  # as in metrics.json, and the scores of every image


@dataclass(frozen=True, eq=False)
class RunResult:
    """A run that has been carried out: its rounds in order, and what came of it."""

    rounds: tuple[
        RoundResult, ...
    ]  # that were carried out now; a resumed run did the others before
    metrics: Mapping[
        str, Any
    ]  # of the model after the last round: validation, test, each client's own
    folder: Path | None  # where everything was written, if anywhere

    @property
    def last(self) -> RoundResult:
        """The last round, with the model."""
        if not self.rounds:
            raise UserError(
                f"{self.folder} was finished before: its model and metrics are in that folder"
            )
        return self.rounds[-1]

    def __iter__(self) -> Iterator[RoundResult]:
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
    metrics = (
        rounds[-1].metrics if rounds or folder is None else read_json(RunFolder(folder).metrics)
    )
    return RunResult(rounds, metrics, folder)


def iterate(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    dataset: Dataset | None = None,
    progress: Progress | None = None,
    on_update: OnUpdate | None = None,
    on_setup: Callable[[PreparedRun], None] | None = None,
) -> Iterator[RoundResult]:
    """Carry out an experiment round by round: each is trained when it is asked for, and nothing
    happens before.

    Takes what `run` takes; `on_setup` is called with the data and the clients before the first
    round. To stop before the end, stop asking; with `out` and `resume` it continues later.
    """
    folder = None if out is None else RunFolder(Path(out))
    experiment = complete(experiment)
    wanted = experiment.table()
    if experiment.tensorboard:
        check_tensorboard()

    def finished() -> bool:
        """Whether there is nothing left to do; refuses a folder that is not free for this run."""
        return folder is not None and not folder.begin(
            wanted, resume=resume, defaults=unnamed_defaults()
        )

    if finished():  # before the data are opened, which may take long
        return
    setup = prepare(experiment, dataset=dataset, progress=progress)
    with nullcontext() if folder is None else folder.locked():
        if finished():  # another process may have used the folder in the meantime
            return
        checkpoint = None
        if folder is not None:
            folder.write_settings(
                wanted,
                partition=setup.partition,
                parameters=setup.summed_parameters,
                layout=setup.initial.layout,
                dataset=setup.dataset,
                devices=devices_record(experiment, setup.places),
            )
            checkpoint = folder.load_checkpoint(setup.initial.layout) if resume else None
            if checkpoint is not None and checkpoint.next_round > setup.experiment.rounds:
                raise UserError(
                    f"{folder.checkpoint} is of a longer run than {folder.settings}: choose another"
                    " folder"
                )
        if on_setup is not None:
            on_setup(setup)
        start = 0 if checkpoint is None else checkpoint.next_round
        shown = folder.path if folder is not None and experiment.tensorboard else None
        with (
            memory_shortage_told(setup.trainer),
            opened_engine(setup) as engine,
            tensorboard_log(shown, start) as show,
        ):
            meter = RunProgress(setup, engine, start, progress)
            meter.tell()

            def count_update(round: int, update: Update) -> None:
                meter.came(update.client)
                if on_update is not None:
                    on_update(round, update)

            for result in meter.over(
                _carry_out_rounds(setup, engine, folder, checkpoint, count_update)
            ):
                meter.finished(result.round)
                show(result)
                yield result


def _carry_out_rounds(
    setup: PreparedRun,
    engine: Engine,
    folder: RunFolder | None,
    checkpoint: Checkpoint | None,
    on_update: OnUpdate,
) -> Iterator[RoundResult]:
    experiment, method = setup.experiment, setup.method
    model, state, start = setup.initial, None, 0
    if checkpoint is not None:
        model, state, start = checkpoint.model, checkpoint.state, checkpoint.next_round
        engine.memory = checkpoint.memory
    keeper = _model_keeper(setup, folder)

    def evaluate_common(model: Model) -> Evaluated:
        return setup.evaluator.at_the_end(engine, [model], personal=False)

    if folder is not None:
        folder.forget_from(start)
        if checkpoint is not None:
            keeper.resume()
    sizes = [len(rows) for rows in setup.training_rows]
    federation = Federation(
        method=method,
        engine=engine,
        clients=setup.clients,
        rounds=experiment.rounds,
        seed=experiment.seed,
        collect=_collector(setup, sizes),
        efforts=setup.efforts,
        on_update=on_update,
    )
    for plain in federate(federation, model, start=start, state=state):
        last = plain.round == experiment.rounds - 1
        began = time.perf_counter()
        scored, predictions = evaluate_round(setup, engine, plain.model, final=last)
        keeper.add(plain.round, plain.model, scored)
        kept = (
            evaluate_kept_models(evaluate_common, keeper.models(plain.model), scored, predictions)
            if last
            else {}
        )
        seconds = {**plain.seconds, "evaluation": time.perf_counter() - began}
        pieces = pieces_by_finding(plain.pieces, setup.dataset.findings)
        result = replace(plain, metrics=scored, seconds=seconds, pieces=pieces, kept=kept)
        if folder is not None:
            folder.add_round(result)
            folder.save_checkpoint(
                Checkpoint(result.next_model, result.state, result.round + 1, engine.memory)
            )
            if last:
                folder.finish(
                    result.model, {"round": result.round} | scored, predictions, setup.dataset, kept
                )
        yield result
    if (
        folder is not None and start == experiment.rounds
    ):  # killed after its last round, before its last file
        shown = method.shown(model, state or {})
        scored, predictions = evaluate_round(setup, engine, shown, final=True)
        kept = evaluate_kept_models(evaluate_common, keeper.models(shown), scored, predictions)
        folder.finish(shown, {"round": start - 1} | scored, predictions, setup.dataset, kept)


def _collector(setup: PreparedRun, sizes: list[int]) -> Collector:
    """How the server takes updates in: under masks, one by one, or all together."""
    experiment = setup.experiment
    policy = Policy() if setup.method.centralised else experiment.policy
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
        )
    if experiment.stream:
        return Streaming(sizes=sizes, gate=experiment.gate, policy=policy)
    return Together(gate=experiment.gate, policy=policy, proxy=setup.proxy)


def _model_keeper(setup: PreparedRun, folder: RunFolder | None) -> ModelKeeper:
    """What keeps other models than the last; nothing where each client has a model of its own."""
    keep = setup.experiment.keep
    if keep != Keep() and has_personal_models(setup.method):
        name = setup.experiment.section("method")[0]
        warnings.warn(
            f"{name} has one model per client: only those of the last round are kept", stacklevel=2
        )
        keep = Keep()
    return ModelKeeper(keep, setup.experiment.rounds, folder)


def evaluate_kept_models(
    evaluate_one: Callable[[Model], Evaluated],
    kept: Mapping[str, KeptModel],
    scored: dict[str, Any],
    predictions: dict[str, NDArray[Any]],
) -> dict[str, Model]:
    """Add the metrics and scores of the kept models to those of the last, each with thresholds of
    its own.
    """
    for name, one in kept.items():
        found, scores = evaluate_one(one.model)
        scored.setdefault("models", {})[name] = one.described() | found
        wanted = {key: array for key, array in scores.items() if key.endswith(".scores")}
        predictions.update({f"{name}.{key}": array for key, array in wanted.items()})
    return {name: one.model for name, one in kept.items()}


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
