"""What a federation is compared with: each client alone, and all data in one place, for the same
number of steps.

The same number of steps and not of epochs, because epochs would give a client with four times the
images four times the training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feddraw.analysis import metrics
from feddraw.core import Job, Local
from feddraw.data.scenarios.paper_scenarios import PAPER_SCENARIOS
from feddraw.experiment.run_preparation import PreparedRun, pooled_rows, prepare
from feddraw.experiment.running import opened_engine
from feddraw.experiment.settings import Experiment
from feddraw.federation import OnUpdate, client_seed

ALL_TOGETHER = "all together"


@dataclass(frozen=True)
class TrainedAlone:
    """How a model does that one client trained without the others."""

    client: str
    size: int
    small: bool
    auc: float  # macro, on validation
    per_class: dict[str, float]


@dataclass(frozen=True)
class ScenarioCheck:
    """The paper's acceptance test of a scenario: do its small clients hold the better data?"""

    scenario: str
    steps: int
    clients: tuple[TrainedAlone, ...]
    together: TrainedAlone  # trained on all clients' images

    @property
    def margin(self) -> float:
        """The worst small client's AUC less the best large one's; not a number without both
        kinds.
        """
        small = [client.auc for client in self.clients if client.small]
        large = [client.auc for client in self.clients if not client.small]
        return min(small) - max(large) if small and large else float("nan")

    @property
    def accepted(self) -> bool:
        return self.margin > 0


def check_scenario(
    experiment: Experiment, steps: int, on_update: OnUpdate | None = None
) -> ScenarioCheck:
    """Train every client alone, and all together, for the same number of steps; test on validation
    data.
    """
    setup = _with_clients_apart(prepare(replace(experiment, stream=False)), steps)
    small = _small_clients(setup)
    names = (*setup.clients, ALL_TOGETHER)
    models: dict[int, Any] = {}
    validation = setup.dataset.rows["validation"]
    truth = setup.dataset.labels.truth(validation)
    with opened_engine(setup) as engine:
        seeds = [client_seed(experiment.seed, 0, client) for client in range(len(names))]
        jobs = [Job(0, 1, client, seed, setup.initial) for client, seed in enumerate(seeds)]
        for update in engine.train(jobs):
            models[update.client] = update.model
            if on_update is not None:
                on_update(0, update)
        trained = []
        for client, name in enumerate(names):
            scores = engine.predict(models[client], validation)
            areas = {
                finding: metrics.auc(scores[:, c], truth[:, c])
                for c, finding in enumerate(setup.dataset.findings)
            }
            size = len(setup.trainer.shards[client])
            trained.append(
                TrainedAlone(name, size, client in small, metrics.macro(areas.values()), areas)
            )
    return ScenarioCheck(setup.partition.scenario, steps, tuple(trained[:-1]), trained[-1])


def _with_clients_apart(setup: PreparedRun, steps: int) -> PreparedRun:
    """The same clients without a federation, and one more that has everybody's images."""
    shards = (*setup.training_rows, pooled_rows(setup.training_rows))
    training = replace(setup.experiment.training, steps=steps)
    return replace(
        setup, trainer=replace(setup.trainer, shards=shards, training=training, local=Local())
    )


def _small_clients(setup: PreparedRun) -> set[int]:
    """The clients that the paper calls small; elsewhere those below the mean size."""
    known = PAPER_SCENARIOS.get(setup.partition.scenario.lower())
    sizes = setup.partition.sizes
    return set(np.flatnonzero(sizes < sizes.mean()).tolist() if known is None else known.small)
