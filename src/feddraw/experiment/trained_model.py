"""A finished run's model, ready to use: the network, its findings and thresholds, and how images
are prepared.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from feddraw.core import Heads
from feddraw.data.image_settings import PAPER_MEAN, PAPER_STD
from feddraw.data.image_summary import ImageSummary
from feddraw.data.imaging import Recipe
from feddraw.errors import UserError, is_list_of_numbers, one_of
from feddraw.experiment.evaluation import has_personal_models
from feddraw.experiment.run_preparation import network_builder, open_experiment_data
from feddraw.experiment.settings import Experiment, make_method
from feddraw.results.metrics import KEPT_MODELS, ModelMetrics
from feddraw.results.recalibration import (
    UNCHANGED,
    LogitLine,
    Recalibration,
    read_recalibration,
)
from feddraw.results.recorded_run import RecordedRun, finished_run
from feddraw.results.run_folder import RunFolder
from feddraw.results.run_reader import damage_told
from feddraw.tasks import Task, task_of_run
from feddraw.training.loop import Examples, predict
from feddraw.training.network import Network
from feddraw.training.reproducibility import one_thread

TRAINED_MODELS = ("last", *KEPT_MODELS)
MAX_MODEL_BYTES = 1 << 34


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """One of a run's models, with all that is needed to apply it to new images."""

    run: RecordedRun  # with this model's metrics
    experiment: Experiment
    task: Task
    module: nn.Module
    classifier: Heads
    findings: tuple[str, ...]
    # of scores as the network gives them; not a number where the run could choose none
    thresholds: tuple[float, ...]
    recipe: Recipe
    mean: float  # of pixel / 255
    std: float
    trained_on: ImageSummary | None = None  # its training images, where the run's folder says
    recalibration: Recalibration | None = None  # of its scores; calls are made without it

    def scores(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(images, findings): probabilities for prepared images, recalibrated where the run is."""
        return self.recalibrated(self.network_scores(images))

    def network_scores(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The same as the network gives them, on one thread as in training."""
        nothing = np.zeros((len(images), len(self.findings)), np.float32)
        with one_thread():
            return predict(
                self._network,
                Examples(images, nothing, self.mean, self.std),
                np.arange(len(images)),
                self.task.objective,
            )

    def recalibrated(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """What becomes of scores as the network gives them."""
        if self.recalibration is None:
            return scores
        columns = zip(self.lines, scores.T, strict=True)
        return np.stack([line.apply(of_finding) for line, of_finding in columns], axis=1)

    @property
    def lines(self) -> list[LogitLine]:
        """What becomes of each finding's logit."""
        if self.recalibration is None:
            return [UNCHANGED] * len(self.findings)
        return [self.recalibration.line(finding) for finding in self.findings]

    @cached_property
    def _network(self) -> Network:
        return Network(copy.deepcopy(self.module), self.classifier)

    @property
    def recalibrated_thresholds(self) -> tuple[float, ...]:
        """Those of recalibrated scores, for who has no others."""
        pairs = zip(self.thresholds, self.lines, strict=True)
        return tuple(_changed_threshold(limit, line) for limit, line in pairs)

    def calls(self, network_scores: NDArray[np.float32]) -> NDArray[np.float64]:
        """1 for what is called, 0 for what is not, not a number where that cannot be said, as
        without a threshold; of scores before the recalibration, which may round two of them to one.
        """
        return self.task.call(network_scores, np.array(self.thresholds))


def load_trained(path: Path, model: str = "last", *, trust: bool = False) -> TrainedModel:
    """A model of a finished run; code that the run's settings name is refused unless trusted."""
    run = finished_run(path)
    one_of("--model", model, TRAINED_MODELS)
    if model != "last":
        run = _with_kept_model(run, model)
    experiment = Experiment.read(RunFolder(path).settings, trust=trust)
    name = experiment.section("method")[0]
    if has_personal_models(make_method(experiment)):
        raise UserError(
            f"{name} has one model per client, and a run's folder keeps none of them: choose"
            " another run"
        )
    with damage_told(RunFolder(path).metrics):
        findings, thresholds = _findings_and_thresholds(run.metrics)
    task = experiment.task if experiment.task_section()[0] else task_of_run(run)
    recalibration = None
    if model == "last" and task.can_be_recalibrated:
        recalibration = read_recalibration(path)
    module, classifier = network_builder(experiment, len(findings))()
    _load_model_file(module, RunFolder(path).model_file(model))
    mean, std = _normalisation(run, experiment)
    return TrainedModel(
        run=run,
        experiment=experiment,
        task=task,
        module=module.eval(),
        classifier=classifier,
        findings=findings,
        thresholds=thresholds,
        recipe=_recipe(experiment),
        mean=mean,
        std=std,
        trained_on=ImageSummary.of_record(run.environment.get("images")),
        recalibration=recalibration,
    )


def _changed_threshold(limit: float, line: LogitLine) -> float:
    """What scores reach after the line that reached the threshold before it: those in single
    precision from the next one on, changed and rounded as they are.
    """
    if line == UNCHANGED:
        return limit
    least = np.array([limit], np.float32)
    if least[0] < limit:
        least = np.nextafter(least, np.float32(np.inf))
    return float(line.apply(least)[0])


def _with_kept_model(run: RecordedRun, model: str) -> RecordedRun:
    """The run with the metrics of a model that it kept beside that of the last round."""
    if model not in run.models:
        command = f"feddraw run --set keep.{'best=true' if model == 'best' else 'tail=5'}"
        raise UserError(
            f"{run.path} kept no model '{model}': train with `{command}`, or use --model last"
        )
    kept = run.models[model]
    if not kept.metrics.validation.evaluated:  # a Flower server without images of its own
        raise UserError(
            f"the model '{model}' of {run.path} was not evaluated, so it has no thresholds: use"
            " --model last"
        )
    return kept


def _findings_and_thresholds(
    metrics: ModelMetrics,
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    tested = metrics.test if metrics.test.evaluated else metrics.validation
    if not tested.evaluated:
        raise ValueError("no findings")
    limits = tested.thresholds
    return tested.findings, tuple(limits.get(name, math.nan) for name in tested.findings)


def _load_model_file(module: nn.Module, path: Path) -> None:
    """Give a network the numbers of a file; the file of another network is refused."""
    try:
        if path.stat().st_size > MAX_MODEL_BYTES:
            raise UserError(f"{path} is larger than {MAX_MODEL_BYTES >> 30} GB: not a model")
        state = load_file(path)
        expected = module.state_dict()
        shaped = {
            name: tensor.reshape(expected[name].shape)
            for name, tensor in state.items()
            if name in expected
        }
        module.load_state_dict(shaped if len(shaped) == len(state) else state)
    except (SafetensorError, OSError) as error:
        raise UserError(f"cannot read {path}: {str(error)[:100]}") from None
    except RuntimeError:
        raise UserError(
            f"{path} is not a model of the network that experiment.toml names"
        ) from None
    if not all(bool(torch.isfinite(tensor).all()) for tensor in state.values()):
        raise UserError(
            f"{path} holds numbers that are not finite: the run diverged, its model is of no use"
        )


def _recipe(experiment: Experiment) -> Recipe:
    """What the run did to its images."""
    name, settings = experiment.section("data")
    if ":" in name:
        raise UserError(
            f"the images of this run come from code ({name}), which alone knows how they were"
            " prepared"
        )
    return Recipe(
        int(settings["size"]),
        bool(settings.get("clahe", False)),
        channels=experiment.channels,
        fit=str(settings.get("fit", "squash")),
        levels=tuple(settings.get("levels", ())),
    )


def _normalisation(run: RecordedRun, experiment: Experiment) -> tuple[float, float]:
    """Mean and standard deviation of pixel / 255 in training."""
    recorded = run.partition.get("normalization")
    if recorded is None:  # a Flower server, whose sites have the images
        recorded = experiment.section("data")[1].get("normalize", "paper")
        if recorded == "measured":
            dataset = open_experiment_data(experiment)
            return dataset.mean, dataset.std
        if recorded == "paper":
            return PAPER_MEAN, PAPER_STD
    if not is_list_of_numbers(recorded, 2) or float(recorded[1]) <= 0:
        raise UserError(
            "experiment.toml has a [partition] normalization that is no mean and standard deviation"
        )
    return float(recorded[0]), float(recorded[1])
