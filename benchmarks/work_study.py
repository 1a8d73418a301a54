"""Weights, steps or similarity? The runs of studies/work-weights-similarity.md.

    python -m benchmarks.work_study pilot  LABELS.csv              what a run costs here
    python -m benchmarks.work_study choose LABELS.csv [--shard i/n]  four rates, 20 splits
    python -m benchmarks.work_study run    LABELS.csv [--shard i/n]  the chosen ones, 200 splits
    python -m benchmarks.work_study vary   LABELS.csv [--shard i/n]  10 splits, heads and orders
    python -m benchmarks.work_study tables                         what came of it

LABELS.csv is that of the unpacked sample of 224 px. Runs are added to tables in docs/data, split by
split, and those that are there are not repeated: a command can be stopped and typed again. Shards
are processes, each with a table of its own.

A run is a federation of the package: its rules, its training loop, its server. Only the classifier
is trained, on features of EfficientNet-Lite0 (benchmarks/pretrained.py says how to install it),
which are computed once and never leave the cache.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from feddraw.analysis.metrics import auc
from feddraw.catalog import own_function
from feddraw.cli.progress_bars import counting_bar
from feddraw.cli.terminal import console
from feddraw.core import Method
from feddraw.core.schedules import size_prior, weights_and_parts
from feddraw.data.corruption import Alteration
from feddraw.data.dataset import Labels
from feddraw.data.finding_names import PAPER_FINDINGS
from feddraw.data.scenarios.paper_scenarios import paper_scenario
from feddraw.data.scenarios.scenario_by_name import make_partition
from feddraw.data.splits import stratified_split
from feddraw.engines.serial import Serial
from feddraw.errors import UserError
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.run_preparation import (
    initial_model,
    open_experiment_data,
    prepare,
    trained_builder,
)
from feddraw.experiment.settings import Experiment
from feddraw.federation import Federation, federate
from feddraw.server.ledger import LedgerEntry
from feddraw.system.file_reading import read_csv
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples, with_number_of_steps
from feddraw.training.network import Build
from feddraw.training.network_cut import BODY
from feddraw.training.settings import Training

DATA = Path(__file__).parents[1] / "docs" / "data"
Rows = NDArray[np.intp]
Floats = NDArray[np.float64]

# ------------------------------------------------------------------------------------- the design

SHARES = (0.65, 0.10, 0.25)  # of the images to train, validate and test on; no patient in two
WORKS = ("epochs", "steps")

# How the training images are divided. The first three have one large site and three small ones in
# the proportions of the paper's CHM-2; the last are the groups in which the images were taken.
LEAST_SITE = 32  # images: fewer are no site
PARTITIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("CHM-2", {"construction": "tilt", "tilt": 0.0}),
    "concentration": ("CHM-2", {"construction": "concentration"}),
    "tilt": ("CHM-2", {"construction": "tilt", "tilt": 1.0}),
    "natural": ("by_site", {"minimum": LEAST_SITE}),
}

# FedDRAW's formula without its size prior: in the first round the weights are by size, as its
# reading says, then softmax(beta_max · similarity) until the end.
ALONE = {"inner": "similarity", "outer": "constant"}
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "uniform": ("uniform", {}),
    "fednova": ("fednova", {}),
    "feddraw": ("feddraw", {}),
    "constant": ("feddraw_variant", {"signal": "constant"}),
    "shuffled": ("feddraw_variant", {"signal": "shuffled"}),
    "move": ("feddraw_variant", {"signal": "move"}),
    "alone x 10": ("feddraw_variant", {**ALONE, "beta_max": 30.0}),
    "alone x 50": ("feddraw_variant", {**ALONE, "beta_max": 150.0}),
    "alone, constant": ("feddraw_variant", {**ALONE, "signal": "constant"}),
    "random_effects": ("random_effects", {}),
    "random_effects+fednova": ("random_effects+fednova", {}),
    "label_gate": ("studies.label_gate:label_gate", {}),
}

# A rule with similarity has the learning rate of the same rule without it: what they differ in is
# then similarity alone.
RATE_OF = {
    "feddraw": "constant",
    "shuffled": "constant",
    "move": "constant",
    "alone x 10": "alone, constant",
    "alone x 50": "alone, constant",
}

Arm = tuple[str, str]  # work and rule


@dataclass(frozen=True)
class Design:
    """What is trained, for how long, and what is compared."""

    name: str  # its tables are docs/data/NAME-STAGE.csv
    frozen: str  # the part of the network that is not trained, as `model.frozen` has it
    side: int  # of the images, in pixels
    rounds: int
    training: Training
    rates: tuple[float, ...]
    pilot_rate: float
    partitions: tuple[str, ...]
    arms: tuple[Arm, ...]
    splits: Mapping[str, range]  # by stage; no seed is used twice

    def arms_of(self, stage: str) -> list[Arm]:
        """The arms that a stage runs."""
        if stage == "choose":
            return [(work, rule) for work, rule in self.arms if rule not in RATE_OF]
        if stage == "vary":
            return [(work, rule) for work, rule in self.arms if rule in VARIED_RULES]
        return list(self.arms)


HEAD = Design(
    name="work",
    frozen="body",
    side=160,
    rounds=15,
    training=Training(epochs=1, batch_size=64, lr=1e-3, clip=5.0),
    rates=(3e-4, 1e-3, 3e-3, 1e-2),
    pilot_rate=1e-3,
    partitions=tuple(PARTITIONS),
    arms=tuple(product(WORKS, RULES)),
    splits={
        "pilot": range(9000, 9001),
        "choose": range(1000, 1020),
        "run": range(200),
        "vary": range(2000, 2010),
    },
)
# Where the sources of variance are told apart, and how many heads of a split, and orders of a head.
VARIED_RULES = ("fedavg", "uniform")
VARIED_PARTITIONS = ("random", "natural")
VARIED_TIMES = 3

Where = tuple[str, str, str]  # partition, work and rule


@dataclass(frozen=True, order=True)
class Cell:
    """What a run is: its row of the table is found by these."""

    split: int
    partition: str
    work: str
    rule: str
    lr: float
    head: int  # seed of the classifier that training starts from
    order: int  # seed of the order of images


@dataclass(frozen=True)
class Outcome:
    """What came of a run; the shares are means over its rounds."""

    validation_auc: float
    test_auc: float
    # Half the sum of absolute differences of the weights to those ...
    from_size: float  # ... by size
    from_equal: float  # ... that are equal
    from_constant: float  # ... of the same rule if all similarities were the same; else no number
    largest_weight: float  # of the site with most images
    largest_influence: float  # its share of the weighted lengths of moves
    largest_steps: float  # its share of the optimiser steps
    steps: int  # of all sites in a round


COLUMNS = [field.name for field in (*fields(Cell), *fields(Outcome))]


def planned_cells(design: Design, stage: str, rates: Mapping[Where, float]) -> list[Cell]:
    """All runs of a stage, split by split; `rates` are the chosen ones, for the stages after."""
    varied = stage == "vary"
    partitions = VARIED_PARTITIONS if varied else design.partitions
    arms = design.arms_of(stage)
    times = VARIED_TIMES if varied else 1
    cells = []
    for split, partition, (work, rule) in product(design.splits[stage], partitions, arms):
        tried = _rates_tried(design, stage, rates, (partition, work, rule))
        for lr, head, order in product(tried, range(times), range(times)):
            # every head has orders of its own
            seed_of_head = split + 10_000 * head
            seed_of_order = split + 10_000 * (times * head + order)
            cells.append(Cell(split, partition, work, rule, lr, seed_of_head, seed_of_order))
    return cells


def _rates_tried(
    design: Design, stage: str, rates: Mapping[Where, float], where: Where
) -> Sequence[float]:
    if stage == "choose":
        return design.rates
    if stage == "pilot":
        return (design.pilot_rate,)
    partition, work, rule = where
    return (rates[partition, work, RATE_OF.get(rule, rule)],)


# --------------------------------------------------------------------------------------- the runs


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Features of all images, with what is known of them, and the network that they enter."""

    features: NDArray[np.float32]
    labels: Labels
    build: Build
    # The same with the values that training starts from, but for the classifier's: they are drawn.
    build_initial: Build

    @staticmethod
    def of_head(features: NDArray[np.float32], labels: Labels) -> FeatureTable:
        """The classifier alone is trained."""
        flat = features.reshape(len(features), -1)
        build = partial(linear_head, flat.shape[1], len(labels.findings))
        return FeatureTable(flat, labels, build, build)

    @cached_property
    def examples(self) -> Examples:
        return Examples(
            self.features, self.labels.targets(), patients=self.labels.patient_numbers()
        )


def linear_head(width: int, classes: int) -> tuple[nn.Module, str]:
    """The classifier alone, as a network, and its name."""
    return nn.Sequential(nn.Flatten(), nn.Linear(width, classes)), "1"


def open_features(
    design: Design, labels: Path, progress: Any = None, *, blur: float = 0.0
) -> FeatureTable:
    """The features of the sample's images, computed where the cache does not have them; of images
    that are blurred first, by a Gaussian of so many pixels, where that is asked for.
    """
    from benchmarks.pretrained import weights_file

    experiment = Experiment(
        data={
            "name": str(labels),
            "size": design.side,
            "findings": list(PAPER_FINDINGS),
            "normalize": "measured",
        },
        scenario={"name": "iid", "clients": 2},
        model={
            "name": "benchmarks.pretrained:lite0",
            "weights": str(weights_file()),
            "frozen": design.frozen,
        },
        method="fedavg",
        engine="serial",
    )
    dataset = None
    if blur:
        sharp = open_experiment_data(experiment, progress)
        images = Alteration(blur=blur).altered_images(sharp.images, np.random.default_rng(0))
        dataset = replace(sharp, images=images)
    prepared = prepare(experiment, dataset=dataset, progress=progress)
    labels_of_all = prepared.dataset.labels
    features = np.array(prepared.dataset.images, np.float32)
    if design.frozen == BODY:
        return FeatureTable.of_head(features, labels_of_all)
    build = trained_builder(prepared.experiment, len(labels_of_all.findings))
    return FeatureTable(features, labels_of_all, build, partial(build, pretrained=True))


def split_rows(labels: Labels, seed: int) -> list[Rows]:
    """Rows to train, validate and test on; all images of a patient are on one side."""
    split = stratified_split(labels, np.arange(len(labels)), SHARES, seed)
    return [np.flatnonzero(split == part) for part in range(len(SHARES))]


def client_rows(labels: Labels, training: Rows, partition: str, seed: int) -> dict[str, Rows]:
    """The training rows of each site."""
    scenario, options = PARTITIONS[partition]
    scale = 1.0
    whole = paper_scenario(scenario, 1.0)
    if whole is not None:
        scale = (len(training) - len(whole.sizes)) / sum(whole.sizes)  # each size is rounded
    dealt = make_partition(scenario, labels.take(training), seed=seed, scale=scale, options=options)
    return {shard.client: training[shard.rows] for shard in dealt.shards}


def make_rule(name: str) -> Method:
    method, settings = RULES[name]
    return own_function(method)() if ":" in method else combined_method(method, settings)


@dataclass(frozen=True, eq=False)
class Task:
    """A split of the images and their division among sites."""

    design: Design
    table: FeatureTable
    training: Mapping[str, Rows]  # by site
    validation: Rows
    test: Rows

    @staticmethod
    def of(design: Design, table: FeatureTable, split: int, partition: str) -> Task:
        training, validation, test = split_rows(table.labels, split)
        sites = client_rows(table.labels, training, partition, split)
        return Task(design, table, sites, validation, test)

    def run(self, cell: Cell) -> Outcome:
        """One federation, evaluated after its last round."""
        rows = list(self.training.values())
        sizes = [len(of_site) for of_site in rows]
        training = replace(self.design.training, work=_work(cell.work), lr=cell.lr)
        training = with_number_of_steps(training, sizes)
        method = make_rule(cell.rule)
        trainer = Trainer(
            self.table.build, self.table.examples, rows, training, method.local, asks=method.asks
        )
        engine = Serial(trainer)
        federation = Federation(
            method, engine, list(self.training), self.design.rounds, seed=cell.order
        )
        initial = initial_model(self.table.build_initial, cell.head)
        checks = []
        for result in federate(federation, initial):
            checks.append(manipulation(result.ledger))
        validation, test = (
            self._auc(engine.predict(result.model, part), part)
            for part in (self.validation, self.test)
        )
        shares = dict(zip(SHARE_NAMES, np.mean(checks, axis=0).tolist(), strict=True))
        steps = sum(entry.steps or 0 for entry in result.ledger)
        return Outcome(validation, test, **shares, steps=steps)

    def _auc(self, scores: NDArray[np.float32], rows: Rows) -> float:
        """The mean over the findings; no number where one of them has a class only."""
        truth = self.table.labels.values[rows]
        by_finding = [auc(scores[:, c], truth[:, c]) for c in range(truth.shape[1])]
        return float(np.mean(by_finding))


def _work(name: str) -> Literal["epochs", "steps"]:
    return "epochs" if name == "epochs" else "steps"


SHARE_NAMES = (
    "from_size",
    "from_equal",
    "from_constant",
    "largest_weight",
    "largest_influence",
    "largest_steps",
)


def manipulation(ledger: Sequence[LedgerEntry]) -> Floats:
    """What was done to the weights in a round: the shares named in `SHARE_NAMES`."""
    sizes = np.array([entry.size for entry in ledger], np.float64)
    weights = np.array([entry.weight for entry in ledger], np.float64)
    weights = weights / weights.sum()  # coefficients of FedNova need not sum to one
    steps = np.array([entry.steps or 0 for entry in ledger], np.float64)
    largest = int(sizes.argmax())
    prior = size_prior(sizes)
    return np.array(
        [
            total_variation(weights, prior),
            total_variation(weights, np.full(len(sizes), 1 / len(sizes))),
            total_variation(weights, weights_of_constant_similarity(ledger, sizes)),
            weights[largest],
            ledger[largest].influence,
            steps[largest] / steps.sum(),
        ]
    )


def total_variation(first: Floats, second: Floats) -> float:
    return float(np.abs(first - second).sum() / 2)


def weights_of_constant_similarity(ledger: Sequence[LedgerEntry], sizes: Floats) -> Floats:
    """What the weights of this round would be if all sites were equally similar; no number for a
    rule without similarity.
    """
    gamma = ledger[0].gamma
    beta = ledger[0].beta
    if np.isnan(gamma):
        return np.full(len(sizes), np.nan)
    alike = np.ones(len(sizes))
    return weights_and_parts(sizes, alike, gamma, None if np.isnan(beta) else beta).weight


# ------------------------------------------------------------------------------------- the tables


def table_file(design: Design, stage: str, shard: str = "", folder: Path = DATA) -> Path:
    """The table of a stage; a shard has one of its own."""
    part = f"-{shard.replace('/', '-of-')}" if shard else ""
    return folder / f"{design.name}-{stage}{part}.csv"


def read_rows(design: Design, stage: str, folder: Path = DATA) -> list[tuple[Cell, Outcome]]:
    """All runs of a stage that are there, also those of shards; a run that is there twice counts
    once.
    """
    rows: dict[Cell, Outcome] = {}
    of_shards = sorted(folder.glob(f"{design.name}-{stage}-*-of-*.csv"))
    for file in (table_file(design, stage, folder=folder), *of_shards):
        for row in read_csv(file) if file.is_file() else ():
            rows[_parsed(Cell, row)] = _parsed(Outcome, row)
    return sorted(rows.items(), key=lambda item: item[0])


def _parsed(kind: type[Any], row: Mapping[str, str]) -> Any:
    readers = {"str": str, "int": int, "float": float}
    return kind(**{field.name: readers[str(field.type)](row[field.name]) for field in fields(kind)})


def chosen_rates(rows: Sequence[tuple[Cell, Outcome]]) -> dict[Where, float]:
    """By partition, work and rule, the rate with the best mean validation AUC; of equal ones the
    smallest.
    """
    found: dict[Where, dict[float, list[float]]] = {}
    for cell, outcome in rows:
        where = (cell.partition, cell.work, cell.rule)
        found.setdefault(where, {}).setdefault(cell.lr, []).append(outcome.validation_auc)
    means = {
        where: {rate: float(np.mean(values)) for rate, values in sorted(by_rate.items())}
        for where, by_rate in found.items()
    }
    return {where: max(by_rate, key=lambda rate: by_rate[rate]) for where, by_rate in means.items()}


def rates_of_finished_choice(design: Design, folder: Path = DATA) -> dict[Where, float]:
    """Refused before all runs of the choice are there."""
    rows = read_rows(design, "choose", folder)
    missing = set(planned_cells(design, "choose", {})) - {cell for cell, _ in rows}
    if missing:
        raise UserError(
            f"{len(missing):,} runs of the choice of learning rates are missing: finish the stage"
            " `choose` first"
        )
    return chosen_rates(rows)


def carry_out(
    design: Design,
    table: FeatureTable,
    cells: Sequence[Cell],
    file: Path,
    done: set[Cell],
    progress: Any,
) -> None:
    """Run what is not done, and add the rows of a split and partition together, so that what is cut
    off leaves whole rows.
    """
    left = [cell for cell in cells if cell not in done]
    ready = 0
    for (split, partition), own in _blocks(left):
        task = Task.of(design, table, split, partition)
        rows = []
        for cell in own:
            rows.append((cell, task.run(cell)))
            ready += 1
            progress("runs", ready, len(left))
        append_rows(file, rows)


def _blocks(cells: Sequence[Cell]) -> Iterator[tuple[tuple[int, str], list[Cell]]]:
    blocks: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        blocks.setdefault((cell.split, cell.partition), []).append(cell)
    yield from blocks.items()


def append_rows(file: Path, rows: Sequence[tuple[Cell, Outcome]]) -> None:
    is_new = not file.is_file()
    with file.open("a", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        for cell, outcome in rows:
            values = [*asdict(cell).values(), *asdict(outcome).values()]
            writer.writerow([_cell_text(value) for value in values])


def _cell_text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def shard_of_splits(cells: Sequence[Cell], shard: str) -> list[Cell]:
    """`i/n`: every n-th split, beginning with the i-th; all where there is none."""
    if not shard:
        return list(cells)
    first, _, number = shard.partition("/")
    if not (first.isdigit() and number.isdigit() and 1 <= int(first) <= int(number)):
        raise UserError(f"--shard takes i/n with i from 1 to n, not '{shard}'")
    splits = sorted({cell.split for cell in cells})[int(first) - 1 :: int(number)]
    return [cell for cell in cells if cell.split in splits]


# -------------------------------------------------------------------------------- the command line


def main(words: Sequence[str] | None = None) -> None:
    from benchmarks.work_study_tables import all_tables

    carry_out_command("benchmarks.work_study", __doc__ or "", HEAD, all_tables, words)


def carry_out_command(
    program: str,
    description: str,
    design: Design,
    tables: Callable[[Path], str],
    words: Sequence[str] | None,
) -> None:
    """The command line of a design: its stages, or `tables` of what came of them."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stage", choices=[*design.splits, "tables"])
    parser.add_argument("labels", nargs="?", type=Path, help="labels.csv of the sample")
    parser.add_argument("--shard", default="", help="i/n: every n-th split, from the i-th")
    options = parser.parse_args(words)
    if options.stage == "tables":
        print(tables(DATA))
        return
    if options.labels is None:
        parser.error("give labels.csv of the unpacked sample")
    torch.set_num_threads(1)
    with counting_bar(console(stderr=True), "") as progress:
        carry_out_stage(design, options.stage, options.labels, options.shard, progress)


def carry_out_stage(design: Design, stage: str, labels: Path, shard: str, progress: Any) -> None:
    """A stage, or the part of it that is a shard's; the pilot writes nothing."""
    rates = rates_of_finished_choice(design) if stage in ("run", "vary") else {}
    cells = shard_of_splits(planned_cells(design, stage, rates), shard)
    table = open_features(design, labels, progress)
    if stage == "pilot":
        print(cost_of(design, table, cells, progress))
        return
    done = {cell for cell, _ in read_rows(design, stage)}
    carry_out(design, table, cells, table_file(design, stage, shard), done, progress)


def cost_of(design: Design, table: FeatureTable, cells: Sequence[Cell], progress: Any) -> str:
    """Processor-seconds of a run, the mean over these, and what the stages cost at that."""
    task = Task.of(design, table, cells[0].split, cells[0].partition)
    task.run(cells[0])  # the first chooses algorithms
    began = time.process_time()
    for ready, (where, own) in enumerate(_blocks(cells)):
        task = Task.of(design, table, *where)
        for cell in own:
            task.run(cell)
        progress("splits and partitions", ready + 1, len(list(_blocks(cells))))
    each = (time.process_time() - began) / len(cells)
    everywhere = dict.fromkeys(product(PARTITIONS, WORKS, RULES), design.pilot_rate)
    stages = {
        stage: len(planned_cells(design, stage, everywhere))
        for stage in design.splits
        if stage != "pilot"
    }
    lines = [f"{len(cells)} runs: {each:.3f} processor-seconds each"]
    lines += [f"{name}: {runs:,} runs, {runs * each / 3600:.2f} h" for name, runs in stages.items()]
    return "\n".join([*lines, f"together: {sum(stages.values()) * each / 3600:.2f} h"])


if __name__ == "__main__":
    main()
