"""What training costs on this machine, and what that makes of a run.

A `StepCost` is measured by timing a client's work (`timed_client.py`): on a run's own data
(`timing_on_own_data.py`, for `feddraw compare`), or before any data are prepared on made-up images
(`timing_on_made_up_images.py`, for `feddraw study --dry-run` and `feddraw doctor`). `RunWork`
counts what a run has to do. Their product is the time of a run; `system/time_left.py` makes that
of a study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from feddraw.data.scenarios.paper_scenarios import paper_scenario
from feddraw.data.synthetic import is_synthetic
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.run_preparation import PreparedTask
from feddraw.experiment.run_progress import images_to_evaluate
from feddraw.experiment.settings import Experiment
from feddraw.training.loop import steps_in_round

# Validation images of a round and test images of a run, where the data's settings do not say.
EVALUATED_IMAGES = {"chestmnist": (11_219, 22_433), "chexpert": (202, 518)}


@dataclass(frozen=True)
class StepCost:
    """What one worker's work costs on a device, while others work there as they will."""

    step: float  # seconds of a training step of a whole batch
    batch: int  # images in the batches that were timed; 0: a step was estimated from another method
    client: float  # seconds of a client's work beside its steps
    evaluated_image: float  # seconds
    memory: int  # bytes of the process, or of a GPU, at its highest with a whole batch
    timed_memory: int  # the same with the batches that were timed


def mean_cost(costs: Sequence[StepCost]) -> StepCost:
    """Over workers that were timed at once: mean times, the smallest batch and the most memory."""
    return StepCost(
        step=fmean(cost.step for cost in costs),
        batch=min(cost.batch for cost in costs),
        client=fmean(cost.client for cost in costs),
        evaluated_image=fmean(cost.evaluated_image for cost in costs),
        memory=max(cost.memory for cost in costs),
        timed_memory=max(cost.timed_memory for cost in costs),
    )


@dataclass(frozen=True)
class RunWork:
    """How much a run has to do."""

    steps: float  # of training; a batch that is not full counts by its share
    jobs: int  # clients that train, in all rounds together
    evaluated: int  # images

    def seconds(self, cost: StepCost) -> float:
        """Of one worker that does all of it."""
        return (
            cost.step * self.steps + cost.client * self.jobs + cost.evaluated_image * self.evaluated
        )

    @staticmethod
    def of_task(task: PreparedTask, rounds: int = 0) -> RunWork:
        """Counted from who trains on what in which round; of so many rounds, or (0) of all."""
        rounds = rounds or task.experiment.rounds
        training = task.training
        sizes = [len(rows) for rows in task.training_rows]
        steps = 0.0
        jobs = 0
        evaluated = 0
        for round in range(rounds):
            for client, effort in task.efforts(round).items():
                size = sizes[client]
                full = min(1.0, size / training.batch_size)
                steps += steps_in_round(size, training, effort) * full
                jobs += 1
            evaluated += images_to_evaluate(task, final=round == rounds - 1)
        return RunWork(steps, jobs, evaluated)

    @staticmethod
    def of_settings(experiment: Experiment) -> RunWork | None:
        """Counted from an experiment's settings alone, without what clients do beside their steps;
        None where only the data tell.
        """
        try:
            experiment = complete_settings(experiment)
        except UserError:  # its data are not here
            return None
        data, data_settings = experiment.section("data")
        scenario, scenario_settings = experiment.section("scenario")
        from_paper = paper_scenario(scenario, scenario_settings.pop("scale", 1.0))
        trained: int | None = None
        evaluated = EVALUATED_IMAGES.get(data)
        if is_synthetic(data) and {"validation", "test"} <= data_settings.keys():
            trained = data_settings.get("train")
            evaluated = (data_settings["validation"], data_settings["test"])
        if from_paper is not None and from_paper.total:
            trained = from_paper.total
        if trained is None or evaluated is None or experiment.training.work == "steps":
            return None
        training = experiment.training
        rounds = experiment.rounds
        validation, test = evaluated
        return RunWork(
            steps=trained * training.epochs * rounds / training.batch_size,
            jobs=0,
            evaluated=validation * rounds + test,
        )


@dataclass(frozen=True)
class RunEstimate:
    """What a run will take, from its own timed steps."""

    cost: StepCost
    opening: float  # seconds before its first step
    work: RunWork
    first_round: RunWork  # of the same run if it had one round
    rounds: int
    notes: tuple[str, ...] = ()  # what users should know of its clients before they train

    @property
    def seconds(self) -> float:
        """Of the whole run, with what comes before its first step."""
        return self.opening + self.work.seconds(self.cost)

    def seconds_with(self, rounds: int) -> float:
        """The same with fewer rounds."""
        whole = self.work.seconds(self.cost)
        single = self.first_round.seconds(self.cost)
        more_rounds = (rounds - 1) / max(1, self.rounds - 1)
        return self.opening + single + (whole - single) * more_rounds

    def seconds_at(self, size_ratio: float) -> float:
        """The same with images so many times as wide: steps take as long as they have pixels."""
        return self.opening + self.work.seconds(self.cost) * size_ratio**2
