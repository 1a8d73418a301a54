"""The study of weights, work and similarity: its rule, its runs on a small table, and its analysis
on simulated tables whose truth is known.
"""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from scipy.stats import chi2_contingency
from torch import nn

from benchmarks import work_study, work_study_tables
from benchmarks.registration import registration_lines
from benchmarks.work_last_block import (
    L1,
    L2,
    L3,
    LAST_BLOCK,
    contrasts_of_last_block,
    tables_of_last_block,
)
from benchmarks.work_study import HEAD, Cell, FeatureTable, Outcome, Task, planned_cells
from benchmarks.work_study_figure import shown_differences, work_figure
from benchmarks.work_study_tables import (
    by_cell,
    contrasts,
    nadeau_bengio,
    similarity_verdict,
    variance_by_source,
    weights_and_work,
)
from feddraw.data.dataset import Labels
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import initial_model
from feddraw.methods.fedavg import fedavg
from feddraw.methods.uniform import uniform
from feddraw.system.progress import no_progress
from feddraw.training.network_by_name import build_network
from feddraw.training.partly_frozen_by_trial import build_partly_frozen
from feddraw.training.settings import Training
from studies.label_gate import label_gate, pearson_statistic
from tiny import cohort_of

# --------------------------------------------------------------------------------- the label gate

SIZES = (100, 50, 30)
ALIKE = np.array([[20, 50], [10, 25], [6, 15]], np.float32)
UNLIKE = np.array([[20, 50], [30, 25], [6, 15]], np.float32)


def labelled_sites(positives):
    extra = [{"labels": counts} for counts in positives]
    return cohort_of(np.zeros((3, 2)), SIZES, extra=extra)


def test_the_gates_statistic_is_pearsons_from_sums_alone():
    sizes = np.array(SIZES, float)
    positives = UNLIKE.astype(float)
    squares = (positives**2 / sizes[:, None]).sum(axis=0)
    statistic, freedom = pearson_statistic(sizes.sum(), positives.sum(axis=0), squares, sites=3)
    expected = [
        chi2_contingency(np.stack([column, sizes - column]), correction=False)
        for column in positives.T
    ]
    assert statistic == pytest.approx(sum(found.statistic for found in expected))
    assert freedom == sum(found.dof for found in expected)


def test_a_finding_that_all_or_none_have_says_nothing():
    statistic, freedom = pearson_statistic(10.0, np.array([0.0, 10.0]), np.array([0.0, 10.0]), 3)
    assert (statistic, freedom) == (0.0, 0)


@pytest.mark.parametrize(("positives", "same_as"), [(ALIKE, fedavg), (UNLIKE, uniform)])
def test_the_gate_is_fedavg_where_labels_are_alike_and_uniform_where_they_are_not(
    positives, same_as
):
    cohort = labelled_sites(positives)
    weights, _ = label_gate().aggregation.weighting.weigh(cohort, {})
    expected, _ = same_as().aggregation.weighting.weigh(cohort, {})
    assert weights.values == pytest.approx(expected.values)
    assert weights.parts["q_expected"] == 4


# ----------------------------------------------------------------------------------------- the runs


def small_table() -> FeatureTable:
    """Features in which a finding shows, of patients with three images each, at two large sites and
    one that is too small.
    """
    rng = np.random.default_rng(0)
    images = 900
    values = (rng.random((images, 5)) < 0.3).astype(np.uint8)
    features = rng.standard_normal((images, 8)).astype(np.float32)
    features[:, :5] += 2 * values
    patients = np.array([f"P{number // 3:03d}" for number in range(images)])
    sites = np.where(np.arange(images) % 30 < 9, "AP", "PA")
    sites[:6] = "rare"
    names = np.array([f"{number:04d}.png" for number in range(images)])
    labels = Labels(values, tuple("abcde"), names, patients=patients, sites=sites)
    return FeatureTable.of_head(features, labels)


@pytest.fixture(scope="module")
def table() -> FeatureTable:
    return small_table()


def cell(rule="fedavg", work="epochs", partition="natural", **changes) -> Cell:
    return replace(Cell(0, partition, work, rule, lr=0.05, head=0, order=0), **changes)


def test_no_patient_is_in_two_parts_and_every_image_is_in_one(table):
    parts = work_study.split_rows(table.labels, seed=3)
    assert sorted(np.concatenate(parts)) == list(range(900))
    patients = [patient for rows in parts for patient in set(table.labels.patients[rows])]
    assert len(patients) == len(set(patients))


@pytest.mark.filterwarnings("ignore:left out of the federation")
def test_natural_sites_are_those_of_the_table_and_the_others_are_four_to_one(table):
    training, *_ = work_study.split_rows(table.labels, seed=0)
    natural = work_study.client_rows(table.labels, training, "natural", seed=0)
    assert natural.keys() == {"AP", "PA"}
    assert all((table.labels.sites[rows] == site).all() for site, rows in natural.items())
    tilt = work_study.client_rows(table.labels, training, "random", seed=0)
    sizes = sorted(len(rows) for rows in tilt.values())
    assert sizes[0] == sizes[2]
    assert sizes[3] / sizes[0] == pytest.approx(49_968 / 9_500, rel=0.02)
    assert len(training) - 8 <= sum(sizes) <= len(training)


@pytest.mark.filterwarnings("ignore:left out of the federation")
def test_equal_epochs_give_the_large_site_more_steps_and_equal_steps_do_not(table):
    task = Task.of(replace(HEAD, rounds=2), table, split=0, partition="natural")
    epochs = task.run(cell())
    steps = task.run(cell(work="steps"))
    assert epochs.largest_steps > 0.6
    assert steps.largest_steps == pytest.approx(0.5)
    assert steps.steps == epochs.steps
    assert epochs.from_size == pytest.approx(0)
    assert epochs.largest_weight == pytest.approx(steps.largest_weight)
    assert epochs.test_auc > 0.6
    assert repr(task.run(cell())) == repr(epochs)  # to the last digit
    assert task.run(cell(order=5)).test_auc != epochs.test_auc
    assert task.run(cell(head=5)).test_auc != epochs.test_auc


@pytest.mark.filterwarnings("ignore:left out of the federation")
def test_what_similarity_moves_is_measured_beside_the_same_rule_without_it(table):
    task = Task.of(replace(HEAD, rounds=3), table, split=0, partition="natural")
    moved = {rule: task.run(cell(rule)).from_constant for rule in work_study.RULES}
    for rule in ("constant", "alone, constant"):
        assert moved[rule] == pytest.approx(0, abs=1e-12)
    for rule in ("fedavg", "uniform", "fednova", "random_effects", "label_gate"):
        assert math.isnan(moved[rule])
    assert 0 < moved["feddraw"] < moved["alone x 10"] < moved["alone x 50"]


def test_a_stopped_stage_goes_on_and_shards_are_read_together(table, tmp_path: Path):
    rules = ("fedavg", "uniform")
    small = replace(
        HEAD,
        rounds=1,
        rates=(1e-3, 1e-2),
        partitions=("random",),
        arms=tuple(product(work_study.WORKS, rules)),
        splits={"choose": range(1000, 1002)},
    )
    cells = planned_cells(small, "choose", {})
    assert len(cells) == 2 * 1 * 2 * 2 * 2
    first = work_study.shard_of_splits(cells, "1/2")
    file = work_study.table_file(small, "choose", "1/2", tmp_path)
    work_study.carry_out(small, table, first, file, set(), no_progress)
    with pytest.raises(UserError, match="8 runs of the choice of learning rates are missing"):
        work_study.rates_of_finished_choice(small, tmp_path)
    before = file.read_bytes()
    done = {done for done, _ in work_study.read_rows(small, "choose", tmp_path)}
    whole = work_study.table_file(small, "choose", folder=tmp_path)
    work_study.carry_out(small, table, cells, whole, done, no_progress)
    rows = work_study.read_rows(small, "choose", tmp_path)
    assert [one for one, _ in rows] == sorted(cells)
    assert file.read_bytes() == before
    rates = work_study.rates_of_finished_choice(small, tmp_path)
    assert rates.keys() == {
        ("random", work, rule) for work in ("epochs", "steps") for rule in rules
    }


def test_the_pilot_prints_the_time_of_every_stage_and_no_outcome(table):
    small = replace(HEAD, rounds=1, partitions=("random",), arms=(("epochs", "fedavg"),))
    cells = planned_cells(small, "pilot", {})
    assert len(cells) == 1
    text = work_study.cost_of(small, table, cells, no_progress)
    assert text.startswith("1 runs: ")
    assert "choose: 80 runs" in text  # 20 splits, four rates
    assert "run: 200 runs" in text
    assert "AUC" not in text


def test_the_rate_with_the_best_mean_validation_is_chosen_whatever_the_test_says():
    def outcome(validation, test):
        return replace(OUTCOME, validation_auc=validation, test_auc=test)

    rows = [
        (cell(lr=1e-3, split=0), outcome(0.80, 0.1)),
        (cell(lr=1e-3, split=1), outcome(0.70, 0.1)),
        (cell(lr=1e-2, split=0), outcome(0.60, 0.9)),
        (cell(lr=1e-2, split=1), outcome(0.85, 0.9)),
    ]
    assert work_study.chosen_rates(rows) == {("natural", "epochs", "fedavg"): 1e-3}


def test_rules_with_similarity_have_the_rate_of_the_rule_without_it():
    tried = {planned.rule for planned in planned_cells(HEAD, "choose", {})}
    assert tried == set(work_study.RULES) - set(work_study.RATE_OF)
    rates = {
        (partition, work, rule): 3e-3 if rule == "constant" else 1e-3
        for partition in work_study.PARTITIONS
        for work in work_study.WORKS
        for rule in tried
    }
    of_rule = {planned.rule: planned.lr for planned in planned_cells(HEAD, "run", rates)}
    assert of_rule["feddraw"] == of_rule["move"] == of_rule["constant"] == 3e-3
    assert of_rule["alone x 50"] == of_rule["fedavg"] == 1e-3


def test_no_split_serves_two_stages():
    seeds = [seed for splits in HEAD.splits.values() for seed in splits]
    assert len(seeds) == len(set(seeds))


def test_every_run_that_varies_its_seeds_has_an_order_of_its_own():
    rates = dict.fromkeys(
        [
            (partition, work, rule)
            for partition in work_study.PARTITIONS
            for work in work_study.WORKS
            for rule in work_study.RULES
        ],
        1e-3,
    )
    of_one = [
        (planned.head, planned.order)
        for planned in planned_cells(HEAD, "vary", rates)
        if (planned.split, planned.partition, planned.work, planned.rule)
        == (2000, "natural", "steps", "uniform")
    ]
    assert len({head for head, _ in of_one}) == 3
    assert len({order for _, order in of_one}) == len(of_one) == 9
    assert len(planned_cells(HEAD, "run", rates)) == 200 * 4 * 2 * len(work_study.RULES)


# ------------------------------------------------------------------------------------- the analysis

OUTCOME = Outcome(0.7, 0.7, 0.0, 0.3, math.nan, 0.6, 0.7, 0.7, 40)


def simulated_runs(gains, spread=0.01, splits=200, moved=0.2, steps_of_largest=0.25):
    """Runs whose mean test AUC is .7 plus what (work, rule) gains in every partition."""
    rng = np.random.default_rng(1)
    rows = []
    for split in range(splits):
        of_split = rng.normal(0, 0.05)
        for partition in work_study.PARTITIONS:
            for work in work_study.WORKS:
                for rule in work_study.RULES:
                    gain = gains.get((work, rule), 0.0)
                    value = 0.7 + of_split + gain + rng.normal(0, spread / math.sqrt(2))
                    outcome = replace(
                        OUTCOME,
                        test_auc=value,
                        from_constant=moved,
                        largest_weight=0.25 if rule == "uniform" else 0.6,
                        largest_steps=0.6 if work == "epochs" else steps_of_largest,
                    )
                    rows.append((cell(rule, work, partition, split=split), outcome))
    return rows


def section(text: str, name: str) -> str:
    """What stands below a heading of the tables."""
    return text.split(f"**{name}**")[1].split("**", maxsplit=1)[0]


def test_a_gain_that_is_work_alone_is_found_to_be_work():
    answers = weights_and_work(by_cell(simulated_runs({("epochs", "uniform"): 0.05})))
    by_epochs, by_steps, of_work, _ = answers.values()
    assert {estimate.verdict() for estimate in by_epochs.values()} == {"higher"}
    assert {estimate.verdict() for estimate in by_steps.values()} == {"not decided"}
    assert {estimate.verdict() for estimate in of_work.values()} == {"higher"}


def test_a_gain_that_is_weights_alone_is_found_to_be_weights():
    gains = {("epochs", "uniform"): 0.05, ("steps", "uniform"): 0.05}
    by_epochs, by_steps, of_work, _ = weights_and_work(by_cell(simulated_runs(gains))).values()
    assert {estimate.verdict() for estimate in by_epochs.values()} == {"higher"}
    assert {estimate.verdict() for estimate in by_steps.values()} == {"higher"}
    assert {estimate.verdict() for estimate in of_work.values()} == {"not decided"}


def test_work_that_was_not_made_equal_is_not_judged(tmp_path: Path):
    for steps_of_largest, verdict in ((0.25, "higher"), (0.4, "not judged")):
        rows = simulated_runs({("epochs", "uniform"): 0.05}, 0.01, 20, 0.2, steps_of_largest)
        folder = tmp_path / verdict
        folder.mkdir()
        work_study.append_rows(work_study.table_file(HEAD, "run", folder=folder), rows)
        of_work = section(work_study_tables.all_tables(folder), work_study_tables.W3)
        assert of_work.count(f"| {verdict} |") == 4


def test_similarity_is_judged_by_what_it_moved_before_what_it_gained():
    effect = contrasts(
        by_cell(simulated_runs({("epochs", "feddraw"): 0.004}, spread=0.0005)),
        work_study_tables.SIMILARITY,
    )
    found = {
        contrast: similarity_verdict(estimate, moved=0.2) for contrast, estimate in effect.items()
    }
    verdicts = {(c.first, c.second, c.work): verdict for c, verdict in found.items()}
    assert verdicts["feddraw", "constant", "epochs"] == "higher"
    assert verdicts["feddraw", "constant", "steps"] == "within 0.002"
    estimate = next(iter(effect.values()))
    assert similarity_verdict(estimate, moved=0.005) == "not administered"
    vague = next(iter(contrasts(by_cell(simulated_runs({})), work_study_tables.SIMILARITY).items()))
    assert similarity_verdict(vague[1], moved=0.2) == "not decided"


def test_more_splits_do_not_shorten_an_interval_below_its_floor():
    rng = np.random.default_rng(2)
    few, many = (nadeau_bengio(rng.normal(0, 0.02, count)) for count in (40, 4000))
    assert (many.high - many.low) / 2 == pytest.approx(many.floor, rel=0.001)
    assert many.floor == pytest.approx(1.96 * 0.02 * math.sqrt(0.25 / 0.65), rel=0.05)
    assert (few.high - few.low) / 2 > few.floor


def test_the_interval_covers_the_truth_over_splits_that_share_patients():
    """Each draw is a population of patients, a mean of its own, and splits of these."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        patients = rng.normal(0.01, 0.3, 400)
        splits = [rng.choice(patients, 100, replace=False).mean() for _ in range(50)]
        estimate = nadeau_bengio(np.array(splits))
        covered += estimate.low <= 0.01 <= estimate.high
    assert 0.93 <= covered / 400 <= 1


def test_sources_of_variance_are_told_apart():
    rng = np.random.default_rng(4)
    splits, heads, orders = 4000, 3, 3
    values = (
        rng.normal(0, 0.03, (splits, 1, 1))
        + rng.normal(0, 0.02, (splits, heads, 1))
        + rng.normal(0, 0.01, (splits, heads, orders))
    )
    sources = variance_by_source(values)
    assert math.sqrt(sources.split) == pytest.approx(0.03, rel=0.05)
    assert math.sqrt(sources.head) == pytest.approx(0.02, rel=0.05)
    assert math.sqrt(sources.order) == pytest.approx(0.01, rel=0.05)
    only_order = variance_by_source(rng.normal(0, 0.01, (splits, heads, orders)))
    assert abs(only_order.split) < 3e-6
    assert abs(only_order.head) < 3e-6


def test_the_tables_are_made_from_the_files_alone(tmp_path: Path):
    assert "not run" in work_study_tables.all_tables(tmp_path)
    rows = simulated_runs({("epochs", "uniform"): 0.05}, splits=20)
    work_study.append_rows(work_study.table_file(HEAD, "run", folder=tmp_path), rows)
    tried = [(cell(lr=rate), OUTCOME) for rate in HEAD.rates]
    work_study.append_rows(work_study.table_file(HEAD, "choose", folder=tmp_path), tried)
    text = work_study_tables.all_tables(tmp_path)
    first_line = next(line for line in text.splitlines() if line.startswith("| random |"))
    assert "higher" in first_line
    assert "+0.05" in first_line
    of_rates = section(text, "Chosen learning rates")
    assert "| natural, epochs, fedavg | 0.0003 (lowest tried) |" in of_rates
    assert text == work_study_tables.all_tables(tmp_path)


# --------------------------------------------------------------------------------------- the answer


def sentences(gains, **changes):
    return work_study_tables.three_sentences(by_cell(simulated_runs(gains, **changes)))


def test_the_answer_is_three_sentences_with_intervals():
    weights, steps, similarity = sentences({("epochs", "uniform"): 0.05})
    assert weights.startswith("Weights are not decided: ")
    assert steps.startswith("Steps: higher: equal epochs in place of equal steps")
    assert similarity.startswith("Similarity is not decided: of 10 contrasts 10 not decided;")
    assert "it moved at most 20.0% of the weight" in similarity
    estimate = weights_and_work(by_cell(simulated_runs({("epochs", "uniform"): 0.05})))
    of_work = estimate[work_study_tables.W3]["natural"]
    assert f" {of_work.mean:+.4f} [+0.0" in steps
    assert f", {of_work.high:+.4f}] (Holm's p" in steps
    assert " [−0.0" in weights
    assert f"floor ± {of_work.floor:.4f}; 200 splits" in steps


def test_the_answer_names_similarity_where_it_is_decided_and_weights_that_lose():
    gains = {
        ("steps", "uniform"): -0.05,
        ("epochs", "uniform"): -0.05,
        ("epochs", "alone x 50"): 0.06,
    }
    weights, steps, similarity = sentences(gains)
    assert weights.startswith("Weights: lower: with equal steps for all sites")
    assert steps.startswith("Steps are not decided: ")
    assert similarity.startswith(
        "Similarity: decided in 1 of 10 contrasts; the largest,"
        " alone x 50 − alone, constant; natural, epochs, is +0.0"
    )


def test_where_nothing_is_decided_the_answer_says_below_what_it_cannot_tell():
    *three, last = sentences({}, moved=0.001)
    assert len(three) == 3
    assert "of 10 contrasts 10 not administered" in three[2]
    assert last.startswith("So this data set cannot tell: ")
    floor = weights_and_work(by_cell(simulated_runs({})))[work_study_tables.W2]["natural"].floor
    assert f"± {floor:.4f} between weights" in last


def test_work_that_was_not_made_equal_is_no_answer():
    _, steps, *_ = sentences({("epochs", "uniform"): 0.05}, steps_of_largest=0.4)
    assert steps.startswith("Steps are not judged: ")


def test_a_rule_that_measures_is_good_only_where_it_is_lower_than_neither():
    gains = {
        ("steps", "uniform"): 0.05,
        ("steps", "label_gate"): 0.05,
        ("steps", "random_effects"): 0.0,
    }
    measuring = contrasts(by_cell(simulated_runs(gains)), work_study_tables.DIAGNOSTICS)
    table = work_study_tables._lower_than_neither_table(measuring)
    assert "| label_gate | natural, steps | higher | not decided | yes |" in table
    assert "| random_effects | natural, steps | not decided | lower | no |" in table


# --------------------------------------------------------------------------------------- the figure


@pytest.mark.parametrize("splits", [2, 40])
def test_the_figures_labels_do_not_overlap(splits):
    figure = work_figure(by_cell(simulated_runs({("epochs", "uniform"): 0.05}, splits=splits)))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [
        text
        for text in figure.findobj(Text)
        if text.get_text() and text.get_visible() and not _is_hidden_tick(text, figure)
    ]
    assert len(texts) >= 5 + 4 + 3
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    for (first, one), (second, other) in combinations(zip(texts, boxes, strict=True), 2):
        assert not one.overlaps(other), (first.get_text(), second.get_text())
    page = figure.bbox
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 for box in boxes)


def _is_hidden_tick(text, figure) -> bool:
    """A tick's text that is not drawn: of a shared axis, or beyond the limits."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for tick in axis.get_major_ticks():
                if text in (tick.label1, tick.label2):
                    low, high = sorted(axis.get_view_interval())
                    return not (low <= tick.get_loc() <= high)
    return False


def test_the_figure_shows_every_verdict_of_the_tables():
    results = by_cell(simulated_runs({("epochs", "uniform"): 0.05}, moved=0.001))
    shown = shown_differences(results)
    assert shown.keys() == set(work_study.PARTITIONS)
    verdicts = {name: verdict for name, (_, verdict) in shown["natural"].items()}
    assert list(verdicts.values()) == [
        "higher",
        "not decided",
        "higher",
        "not decided",
        "not administered",
    ]


# ----------------------------------------------------------------------------------- the last block


def last_block_runs(gains, moved=0.2, steps_of_largest=0.25):
    rows = simulated_runs(gains, 0.01, 20, moved, steps_of_largest)
    arms = LAST_BLOCK.arms
    return [
        (cell, outcome)
        for cell, outcome in rows
        if cell.partition == "natural" and (cell.work, cell.rule) in arms
    ]


def test_the_plan_of_the_main_study_is_the_registered_one():
    """Cell for cell that of the commit which registered it."""
    rates = {
        where: 1e-3 * (1 + number)
        for number, where in enumerate(
            product(work_study.PARTITIONS, work_study.WORKS, work_study.RULES)
        )
    }
    digests = {}
    for stage in HEAD.splits:
        cells = [tuple(vars(cell).values()) for cell in planned_cells(HEAD, stage, rates)]
        digests[stage] = len(cells), sha256(repr(cells).encode()).hexdigest()[:16]
    assert digests == {
        "pilot": (104, "0665c4d7ae70e5e4"),
        "choose": (5120, "e0da2a52f758c56c"),
        "run": (20800, "839795b011ea008f"),
        "vary": (720, "59191a5dfced274b"),
    }
    assert (HEAD.rounds, HEAD.frozen, HEAD.side) == (15, "body", 160)
    assert HEAD.training == Training(epochs=1, batch_size=64, lr=1e-3, clip=5.0)


def test_no_split_of_the_last_block_is_used_elsewhere():
    seeds = [
        seed
        for design in (HEAD, LAST_BLOCK)
        for splits in design.splits.values()
        for seed in splits
    ]
    assert len(seeds) == len(set(seeds))
    assert len(LAST_BLOCK.splits["run"]) == 20


def test_the_last_blocks_three_contrasts_have_their_runs_and_no_others():
    rates = dict.fromkeys(product(work_study.PARTITIONS, work_study.WORKS, work_study.RULES), 3e-4)
    planned = planned_cells(LAST_BLOCK, "run", rates)
    assert len(planned) == 20 * 6
    assert {cell.partition for cell in planned} == {"natural"}
    outcomes = [(cell, OUTCOME) for cell in planned]
    assert set(contrasts_of_last_block(by_cell(outcomes))) == {L1, L2, L3}
    tried = {(cell.work, cell.rule) for cell in planned_cells(LAST_BLOCK, "choose", {})}
    assert ("epochs", "constant") in tried
    assert ("epochs", "feddraw") not in tried  # it has the rate of the same rule without similarity


@pytest.mark.parametrize(
    ("gains", "moved", "steps_of_largest", "verdicts"),
    [
        ({("epochs", "uniform"): 0.05}, 0.2, 0.25, ("not decided", "higher", "not decided")),
        (
            {("epochs", "uniform"): -0.05, ("steps", "uniform"): -0.05, ("epochs", "feddraw"): 0.1},
            0.2,
            0.25,
            ("lower", "not decided", "higher"),
        ),
        (
            {("epochs", "uniform"): 0.05, ("epochs", "feddraw"): 0.1},
            0.005,
            0.4,
            ("not decided", "not judged", "not administered"),
        ),
    ],
)
def test_the_last_blocks_verdicts(tmp_path, gains, moved, steps_of_largest, verdicts):
    rows = last_block_runs(gains, moved, steps_of_largest)
    work_study.append_rows(work_study.table_file(LAST_BLOCK, "run", folder=tmp_path), rows)
    text = section(tables_of_last_block(tmp_path), "Natural sites")
    lines = {
        line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| L")
    }
    for name, verdict in zip((L1, L2, L3), verdicts, strict=True):
        assert lines[name].endswith(f"| {verdict} |")


class Block(nn.Module):
    """A network with a block before the classifier, which batch-normalises."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3)
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(4, classes)

    def forward(self, image):
        return self.classifier(self.pool(self.block(self.stem(image))))


@pytest.mark.filterwarnings("ignore:left out of the federation", "ignore:.*tensors are not used")
def test_a_block_before_the_classifier_is_trained_on_what_enters_it(table, tmp_path):
    """As `open_features` sets it up: on features in three dimensions, from the values of a file."""
    trained_before = Block(7)  # on other findings
    file = tmp_path / "weights.pt"
    torch.save(trained_before.state_dict(), file)
    whole = partial(build_network, f"{__name__}:Block", 5, {"weights": str(file)}, side=8)
    build = partial(build_partly_frozen, whole, "block", 8)
    build_initial = partial(build, pretrained=True)
    rng = np.random.default_rng(5)
    features = rng.standard_normal((900, 3, 6, 6)).astype(np.float32)
    features += table.labels.values[:, :3, None, None]
    blocks = FeatureTable(features, table.labels, build, build_initial)
    short = replace(LAST_BLOCK, rounds=2)
    run = partial(Task.run, cell=cell("feddraw", split=4000, lr=0.01))
    outcome = run(Task.of(short, blocks, split=4000, partition="natural"))
    assert outcome.test_auc > 0.55
    assert 0 <= outcome.from_constant < 0.5
    untrained = replace(blocks, build_initial=build)
    assert run(Task.of(short, untrained, 4000, "natural")).test_auc != outcome.test_auc
    first, second = (initial_model(build_initial, seed) for seed in (1, 2))
    convolution = first.layout.find("block.0")
    weights = trained_before.block[0].weight.detach().numpy()
    assert first.params[convolution][: weights.size] == pytest.approx(weights.ravel())
    head = first.layout.find("classifier")
    assert not np.allclose(first.params[head], second.params[head])  # drawn anew


# ----------------------------------------------------------------------------------- the registration


def git(folder, *words):
    settings = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", "-C", str(folder), *settings, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit_file(folder, name, text):
    (folder / name).write_text(text)
    git(folder, "add", name)
    git(folder, "commit", "-m", name)
    return git(folder, "rev-parse", "HEAD")


def test_the_results_name_the_commit_that_registered_them(tmp_path):
    git(tmp_path, "init", "-q")
    early = commit_file(tmp_path, "early.csv", "1")
    registered = commit_file(tmp_path, "study.md", "what is asked")
    late = commit_file(tmp_path, "late.csv", "2")
    text = registration_lines("study.md", ["early.csv", "late.csv", "none.csv"], tmp_path)
    first, second, third = text.splitlines()
    assert registered in first
    assert "unchanged since" in first
    assert early[:8] in second
    assert second.endswith("NOT after the registration")
    assert late[:8] in third
    assert third.endswith(", after the registration")
    (tmp_path / "study.md").write_text("what was found")
    assert "CHANGED since" in registration_lines("study.md", [], tmp_path)


def test_a_folder_without_history_says_that_the_commit_is_not_known(tmp_path):
    assert "not in the history" in registration_lines("study.md", [], tmp_path / "nowhere")
