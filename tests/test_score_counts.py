"""Measures from counts of scores: as near to the exact ones as is promised, and nothing of a small
subgroup leaves a site.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

import recomputed_measures
from benchmarks.counts_error import largest_errors
from feddraw.data.subgroups import NOT_STATED, Subgrouping
from feddraw.errors import UserError
from feddraw.experiment.recalibration import recalibrate
from feddraw.experiment.settings import Experiment
from feddraw.flower import score_histograms
from feddraw.flower.evaluation_record import evaluations_in_clear
from feddraw.flower.reply_intake import Reply
from feddraw.flower.score_histograms import LEAST_PATIENTS, count_by_score, subgroup_counts
from feddraw.flower.server_app import ServerEvaluation
from feddraw.report import markdown
from feddraw.report.section_order import compose_report
from feddraw.report.settings import ReportSettings
from feddraw.report.statistics import compute_report
from feddraw.results.run_collection import collect_runs
from feddraw.results.score_counts import BIN_EDGES, BINS, ScoreCounts, bin_scores, read_score_counts
from feddraw.tasks.findings import Findings
from run_folders import FINDINGS, make_run


@pytest.mark.parametrize("images", [300, 2_000])
@pytest.mark.parametrize("prevalence", [0.05, 0.3])
def test_measures_from_counts_are_within_a_thousandth_of_the_exact_ones(
    images: int, prevalence: float
) -> None:
    error = largest_errors(images, prevalence, samples=20, seed=5)
    print(images, prevalence, error)
    assert error.auc <= 1e-3
    assert error.brier <= 1e-3
    assert error.calibration_error <= 1e-3


def test_the_calibration_error_of_many_images_does_not_depend_on_where_counts_have_borders() -> (
    None
):
    assert largest_errors(20_000, 0.3, samples=5, seed=5).calibration_error_of_scores <= 1e-3


def test_the_middle_of_a_bin_lies_in_it() -> None:
    centres = bin_scores()
    assert np.array_equal(np.digitize(np.log(centres / (1 - centres)), BIN_EDGES), range(BINS))


# ------------------------------------------------------------------------------- what leaves a site


def _counted(sizes: dict[int, int], unknown: int = 0) -> list[int]:
    """Images that are counted of each value, of one finding, by patients that each value has; two
    images a patient, the first `unknown` patients of value 0 without a label.
    """
    of_image = np.repeat(list(sizes), [2 * size for size in sizes.values()]).astype(np.int16)
    patients = np.repeat(np.arange(len(of_image) // 2), 2)
    truth = np.zeros((len(of_image), 1))
    truth[: 2 * unknown] = np.nan
    values = tuple(str(value) for value in range(1 + max(sizes)))
    grouping = Subgrouping("sex", values, of_image)
    scores = np.full((len(of_image), 1), 0.3)
    return subgroup_counts(scores, truth, (grouping,), patients).sum(axis=(1, 2, 3)).tolist()


def test_a_finding_of_a_subgroup_with_few_patients_is_left_out_whole() -> None:
    few = LEAST_PATIENTS - 1
    assert _counted({0: 30, 1: 20, 2: 15}) == [60, 40, 30]
    # What is left out of all would be the difference: the next smallest goes with it.
    assert _counted({0: 30, 1: 20, 2: few}) == [60, 0, 0]
    assert _counted({0: 30, 1: few, 2: few}) == [60, 0, 0]
    # Patients without a label do not count.
    assert _counted({0: LEAST_PATIENTS, 1: 30, 2: 40}, unknown=1) == [0, 0, 80]
    # Few patients whose sex is not stated are hidden by those of the smallest subgroup.
    assert _counted({0: 30, 1: 20, NOT_STATED: 3}) == [60, 0]
    assert _counted({0: 30, 1: 20, NOT_STATED: LEAST_PATIENTS}) == [60, 40]


def test_counts_added_up_as_words_are_those_of_all_sites_without_subgroups() -> None:
    rng = np.random.default_rng(0)
    scores = rng.uniform(size=(240, 3))
    truth = rng.integers(0, 2, (240, 3)).astype(np.float64)
    sex = Subgrouping("sex", ("F", "M"), rng.integers(0, 2, 240).astype(np.int16))
    sites = []
    for rows in np.split(np.arange(240), 3):
        counts = subgroup_counts(scores[rows], truth[rows], (sex.take(rows),), rows)
        assert counts.any()
        metrics = score_histograms.histograms_to_metrics(
            "test", count_by_score(scores[rows], truth[rows])
        )
        metrics |= score_histograms.subgroups_to_metrics("test", counts)
        sites.append(RecordDict({"metrics": MetricRecord(metrics)}))
    words = sum(
        (score_histograms.histograms_to_words(site, 3) for site in sites),
        np.zeros(score_histograms.words_of(3), np.uint64),
    )
    summed = [RecordDict({"metrics": score_histograms.histograms_from_words(words, 3)})]
    of_all = score_histograms.add_up_histograms(summed, "test", 3)
    assert np.array_equal(of_all, count_by_score(scores, truth))
    assert not score_histograms.add_up_subgroups(summed, "test", 3, 2).any()


# ---------------------------------------------------------------------------- what a server takes


def reply_of(node: int, name: str, size: int, **metrics: list[int]) -> Reply:
    numbers = {key.replace("_", "-"): value for key, value in metrics.items()}
    content = {
        "client": ConfigRecord({"name": name}),
        "metrics": MetricRecord({"num-examples": size, **numbers}),
    }
    return Reply(node, name, (1, 0, name), RecordDict(content))


@pytest.mark.parametrize(
    ("said", "metrics"),
    [
        ("", {"test_places": [3, BINS], "test_counts": [1, 2]}),
        ("counts 10,000,002 images, and says", {"test_places": [3], "test_counts": [10**7]}),
        ("counts 8 images", {"test_places": [3, 4, 3], "test_counts": [2, 2, 2]}),
        # of both splits together
        ("counts 6 images", {"test_places": [3], "test_counts": [4]}),
        (
            "more test images of a subgroup than of all",
            {"test_subgroup_places": [3], "test_subgroup_counts": [1]},
        ),
        (
            "more validation images of a class than it counts",
            {"validation_called_places": [0], "validation_called_counts": [3]},
        ),
    ],
)
def test_a_site_counts_no_more_images_than_it_says_that_it_has(
    said: str, metrics: dict[str, list[int]]
) -> None:
    of_validation = {"validation_places": [2 * BINS], "validation_counts": [2]}
    counted = reply_of(1, "North", 5, **of_validation, **metrics)
    taken = evaluations_in_clear(
        [counted], "num-examples", ["a", "b"], task=Findings(), hidden=False, subgroups=1
    )
    if not said:
        assert taken.contents
        assert not taken.refused
    else:
        assert not taken.contents
        assert said in taken.refused["North"]


def test_a_site_under_anothers_name_does_not_take_its_place() -> None:
    """A node counts under the name that its key has, whatever its reply says."""
    honest = reply_of(1, "North", 5, validation_places=[3], validation_counts=[5])
    liar = reply_of(2, "North", 1, validation_places=[9], validation_counts=[1])
    taken = evaluations_in_clear(
        [honest, replace(liar, name="node 2")],
        "num-examples",
        ["a"],
        task=Findings(),
        hidden=False,
    )
    evaluation = object.__new__(ServerEvaluation)
    evaluation.findings = ("a",)
    evaluation.subgroups = ()
    evaluation.experiment = Experiment()
    counts = evaluation._score_counts(taken.contents)
    assert {name: of["validation"].sum() for name, of in counts.by_site.items()} == {
        "North": 5,
        "node 2": 1,
    }


# ------------------------------------------------------------------------------------- the report


def counted_run(folder: Path, *, secure: bool) -> Path:
    """A run whose sites North and South sent counts, by sex as well."""
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 2, (160, len(FINDINGS))).astype(np.float64)
    scores = 1 / (1 + np.exp(1 - 1.5 * truth - rng.standard_normal(truth.shape)))
    sex = Subgrouping("sex", ("F", "M"), rng.integers(0, 2, 160).astype(np.int16))
    north = np.arange(160) < 100
    counts = ScoreCounts(
        findings=FINDINGS,
        by_split={"test": count_by_score(scores, truth)},
        groupings={} if secure else {"sex": sex.values},
        subgroups_by_split={}
        if secure
        else {"test": subgroup_counts(scores, truth, (sex,), np.arange(160))},
        by_site={}
        if secure
        else {
            "North": {"test": count_by_score(scores[north], truth[north])},
            "South": {"test": count_by_score(scores[~north], truth[~north])},
        },
        least_patients=LEAST_PATIENTS,
        secure=secure,
    )
    run = make_run(folder)
    (run / "counts.safetensors").write_bytes(counts.content())
    return run


def told(folder: Path) -> str:
    report = compute_report(
        collect_runs([folder]), settings=ReportSettings(replicates=0), command=""
    )
    text = markdown.render_markdown(compose_report(report, "A title"), "figures")
    return re.sub(r"\\(.)", r"\1", text)


def test_every_number_of_a_report_is_recomputed_from_the_counts(tmp_path: Path) -> None:
    run = counted_run(tmp_path / "a", secure=False)
    text = told(tmp_path)
    counts = read_score_counts(run)
    assert counts is not None
    every = [("", "", counts.by_split["test"]), *counts.subgroups("test")]
    every += [("site", site, of_site["test"]) for site, of_site in counts.by_site.items()]
    for grouping, value, histograms in every:
        for place, finding in enumerate(FINDINGS):
            negatives, positives = histograms[:, place]
            labels = np.repeat([0, 1], [negatives.sum(), positives.sum()])
            scores = np.concatenate(
                [bin_scores().repeat(negatives), bin_scores().repeat(positives)]
            )
            images = recomputed_measures.Images(scores, labels, np.arange(len(labels)), 0.5)
            numbers = recomputed_measures.measures(images)
            names = f"{finding}, {value} |" if grouping else f"{finding} |"
            start = f"| {names} {positives.sum()} / {negatives.sum()} |"
            at_threshold, of_scores = [
                line for line in text.splitlines() if line.startswith(start)
            ][:2]
            columns = ("sensitivity", "specificity", "PPV", "NPV")
            _same_numbers(at_threshold, start, [numbers[name] for name in columns])
            columns = (
                "AUC",
                "PR-AUC",
                "Brier score",
                "calibration slope",
                "calibration intercept",
                "calibration error",
            )
            _same_numbers(of_scores, start, [numbers[name] for name in columns])


def _same_numbers(row: str, start: str, numbers: list[recomputed_measures.Number]) -> None:
    cells = row.removeprefix(start).strip("| ").split(" | ")[1:]
    for cell, number in zip(cells, numbers, strict=True):
        shown = [float(part) for part in re.findall(r"-?\d+\.\d+", cell)]
        assert shown == pytest.approx(list(number), abs=6e-4), row


def test_under_secure_sums_the_page_has_pooled_numbers_only_and_says_so(tmp_path: Path) -> None:
    counted_run(tmp_path / "secure", secure=True)
    text = told(tmp_path)
    assert "no site's counts, so there are pooled numbers only" in text
    assert "neither by site nor by subgroup" in text
    assert "| finding, site |" not in text
    assert "| finding, sex |" not in text


def test_a_site_leaves_out_few_patients_and_the_page_says_so(tmp_path: Path) -> None:
    counted_run(tmp_path / "clear", secure=False)
    text = told(tmp_path)
    assert "| finding, sex |" in text
    assert f"a subgroup with fewer than {LEAST_PATIENTS} patients" in text


@pytest.mark.parametrize("damage", ["short", "negative", "notes"])
def test_counts_that_a_server_does_not_write_are_as_good_as_none(
    damage: str, tmp_path: Path
) -> None:
    run = counted_run(tmp_path / "a", secure=False)
    counts = read_score_counts(run)
    assert counts is not None
    other = dict(counts.by_split)
    if damage == "short":
        other["test"] = other["test"][:, :, 1:]
    elif damage == "negative":
        other["test"] = -other["test"]
    content = ScoreCounts(FINDINGS, other).content()
    if damage == "notes":
        content = content.replace(json.dumps("findings").encode()[1:-1], b"findingz", 1)
    (run / "counts.safetensors").write_bytes(content)
    assert read_score_counts(run) is None
    assert "As a diagnostic test" not in told(tmp_path)


def test_counts_of_more_images_than_a_report_has_room_for_are_named_and_not_measured(
    tmp_path: Path,
) -> None:
    """A row for each image that a site says it has would fill the memory."""
    run = counted_run(tmp_path / "a", secure=False)
    counts = read_score_counts(run)
    assert counts is not None
    many = {"test": counts.by_split["test"] * 10**6, "validation": counts.by_split["test"] * 10**6}
    (run / "counts.safetensors").write_bytes(ScoreCounts(FINDINGS, many).content())
    said = "the sites counted 480,000,000 scores of test images, and measures are made of at most"
    text = told(tmp_path)
    assert said in text
    assert "As a diagnostic test" not in text
    with pytest.raises(UserError, match="480,000,000 scores of validation images"):
        recalibrate(run, "platt")
