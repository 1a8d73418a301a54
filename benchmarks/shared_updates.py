"""How much training a cache of client updates would save in a study, reckoned without training
anything.

A client's update follows from the model that it got, its images, the seed and its local rule. Runs
of one scenario and seed begin with the same model, so they share updates until their server rules
first give different models. Two bounds: `sure` counts runs with the plain local rule, `at most`
also rules whose first round is a plain one (SCAFFOLD's controls are zero, `alone` starts from the
common model), and takes FedNova and uniform weights for FedAvg's where all clients are equal.

    python benchmarks/shared_updates.py studies/nih-replication.toml studies/paper.toml
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from feddraw.core import Local, Method
from feddraw.data.scenarios.paper_scenarios import PAPER_TRAINING_IMAGES
from feddraw.data.scenarios.scenario_by_name import known_client_sizes
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.settings import Experiment, make_method
from feddraw.paper.published_tables import client_sizes
from feddraw.study.plan import read_study
from feddraw.training.loop import steps_per_epoch

FIRST_ROUND_PLAIN = (
    "scaffold",
    "alone",
)  # whose local rule changes nothing before the first answer of the server
MOON = 1.6  # images pass through two more networks, without gradients


def rounds_of(experiment: Experiment, *, generous: bool) -> Iterator[tuple[str, float]]:
    """For each round, by what its updates are known, and what they cost in images."""
    name = str(experiment.section("method")[0])
    scenario, options = experiment.section("scenario")
    sizes = known_client_sizes(scenario, options["scale"])[1]
    method = make_method(experiment)
    cost = sum(sizes) * (MOON if name == "moon" else 1.0)
    everything = (
        sum(client_sizes()[scenario]) in PAPER_TRAINING_IMAGES.values()
    )  # centralised runs have the same images then
    model = f"{'everything' if method.centralised and everything else scenario} {experiment.seed}"
    for round in range(experiment.rounds):
        local = rule(method, name, round, generous=generous)
        yield f"{model} {round} {local}", cost
        model = (
            f"{model} {round} {local}"
            f" {weights(name, method, sizes, round, experiment, generous=generous)}"
        )


def rule(method: Method, name: str, round: int, *, generous: bool) -> str:
    plain = (
        type(method.local) is Local or name == "fednova"
    ) and not method.centralised  # which only counts steps
    return "plain" if plain or (generous and round == 0 and name in FIRST_ROUND_PLAIN) else name


def weights(
    name: str,
    method: Method,
    sizes: tuple[int, ...],
    round: int,
    experiment: Experiment,
    *,
    generous: bool,
) -> str:
    """By what the server's step is known: two rules with the same name for it give the same
    model.
    """
    batch = experiment.training.batch_size
    equal = len(set(sizes)) == 1 or (
        generous and len({steps_per_epoch(size, batch) for size in sizes}) == 1
    )
    if name == "feddraw" and round == 0:
        return "sizes"
    if generous and equal and name in ("fednova", "uniform"):
        return "sizes"
    return "sizes" if name == "fedavg" else name


def reckon(path: Path) -> None:
    experiments = [complete_settings(planned.experiment) for planned in read_study(path)]
    print(f"{path}: {len(experiments)} runs")
    for words, generous in (("sure", False), ("at most", True)):
        seen: dict[str, float] = {}
        total = 0.0
        for experiment in experiments:
            for key, cost in rounds_of(experiment, generous=generous):
                seen[key] = cost
                total += cost
        print(f"  {words}: {1 - sum(seen.values()) / total:.1%} of the images trained on")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        reckon(Path(argument))
