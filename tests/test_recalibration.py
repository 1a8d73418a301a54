"""Recalibration: fitted on validation images, judged on test images of other patients, and applied
wherever the model is.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss
from typer.testing import CliRunner

from feddraw.analysis.recalibration import NotFitted, Scored, fit_line
from feddraw.cli import app
from feddraw.data.datasets.phantom import phantom
from feddraw.errors import UserError
from feddraw.experiment import prediction
from feddraw.experiment.prediction import find_images_to_predict, predict_images
from feddraw.experiment.recalibration import recalibrate, scored_findings
from feddraw.experiment.running import run as carry_out
from feddraw.experiment.trained_model import TrainedModel, load_trained
from feddraw.export.exported_graph import from_pixels, model_description, scorer_of_graph
from feddraw.export.model_card import model_card
from feddraw.flower.score_histograms import count_by_score
from feddraw.report import markdown
from feddraw.report.section_order import compose_report
from feddraw.report.settings import ReportSettings
from feddraw.report.statistics import compute_report
from feddraw.results.recalibration import LogitLine, read_recalibration
from feddraw.results.recorded_run import read_run
from feddraw.results.run_collection import collect_runs
from feddraw.results.score_counts import ScoreCounts
from run_folders import FINDINGS, make_run
from small import small


def drawn(images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are too extreme and too high, with their labels."""
    rng = np.random.default_rng(seed)
    truth = (rng.random((images, len(FINDINGS))) < 0.4).astype(np.int8)
    logits = 1.5 + 2.0 * (1.4 * truth - 0.7 + rng.standard_normal(truth.shape))
    return (1 / (1 + np.exp(-logits))).astype(np.float32), truth


def made_run(folder: Path) -> Path:
    """With 300 validation and 400 test images; the first 50 patients are in both."""
    tensors = {}
    for seed, (split, images, first) in enumerate((("validation", 300, 0), ("test", 400, 250))):
        scores, truth = drawn(images, seed)
        tensors |= {f"{split}.scores": scores, f"{split}.truth": truth}
        tensors[f"{split}.patients"] = np.arange(first, first + images)
    run = make_run(folder)
    notes = {"classes": list(FINDINGS), "test": "images"}
    save_file(tensors, run / "predictions.safetensors", {"feddraw": json.dumps(notes)})
    return run


def logit(scores: np.ndarray) -> np.ndarray:
    return np.log(scores.astype(np.float64) / (1 - scores.astype(np.float64)))


def results_in_card(trained: TrainedModel) -> list[list[str]]:
    """By finding: AUC, sensitivity, specificity, PPV and NPV, with their intervals."""
    card = model_card(trained, None, [], names=False, licence="")
    starts = tuple(f"| {finding} |" for finding in trained.findings)
    rows = [line.split("|") for line in card.splitlines() if line.startswith(starts)]
    assert len(rows) == len(trained.findings)
    return [[name, *measures] for _, name, _, *measures in rows]


@pytest.mark.parametrize("kind", ["platt", "temperature"])
def test_a_line_is_that_of_scikit_learns_logistic_regression(kind: str, tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    recalibration, _ = recalibrate(run, kind)
    scores, truth = drawn(300, 0)
    for column, finding in enumerate(FINDINGS):
        referee = LogisticRegression(C=np.inf, fit_intercept=kind == "platt", tol=1e-10)
        referee.fit(logit(scores[:, column])[:, None], truth[:, column])
        line = recalibration.line(finding)
        assert line.slope == pytest.approx(referee.coef_[0, 0], rel=1e-4)
        assert line.intercept == pytest.approx(float(np.ravel(referee.intercept_)[0]), abs=1e-4)
    assert read_recalibration(run) == recalibration


def test_it_is_judged_on_test_images_of_patients_it_was_not_fitted_on(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    recalibration, judged = recalibrate(run, "platt")
    scores, truth = drawn(400, 1)
    scores, truth = scores[50:], truth[50:]
    for column, finding in enumerate(FINDINGS):
        before, after = judged[finding].before, judged[finding].after
        assert before.positives == truth[:, column].sum()
        line = recalibration.line(finding)
        changed = 1 / (1 + np.exp(-line.slope * logit(scores[:, column]) - line.intercept))
        for test, values in ((before, scores[:, column]), (after, changed)):
            expected = brier_score_loss(truth[:, column], values)
            assert test.brier_score().value == pytest.approx(expected, abs=1e-6)
        assert after.brier_score().value < before.brier_score().value
        assert after.auc().value == pytest.approx(before.auc().value)


def test_the_report_has_the_numbers_before_and_after(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    _, judged = recalibrate(run, "platt")
    report = compute_report(
        collect_runs([tmp_path]), settings=ReportSettings(replicates=0), command=""
    )
    text = markdown.render_markdown(compose_report(report, "A title"), "figures")
    section = re.sub(r"\\(.)", r"\1", text).partition("Recalibrated scores in")[2]
    for finding in FINDINGS:
        rows = [line for line in section.splitlines() if line.startswith(f"| {finding}, ")]
        for row, test in zip(rows, (judged[finding].before, judged[finding].after), strict=True):
            assert f"| {test.brier_score().value:.3f} [" in row
            assert f"| {test.calibration_error().value:.3f} [" in row
    assert "as trained" in section


def test_lines_from_counts_are_nearly_those_from_scores(tmp_path: Path) -> None:
    exact, _ = recalibrate(made_run(tmp_path / "scores"), "platt")
    run = make_run(tmp_path / "counts")
    counts = {}
    for seed, (split, images) in enumerate((("validation", 300), ("test", 400))):
        scores, truth = drawn(images, seed)
        counts[split] = count_by_score(scores, truth.astype(np.float64))
    (run / "counts.safetensors").write_bytes(ScoreCounts(FINDINGS, counts).content())
    from_counts, judged = recalibrate(run, "platt")
    for finding in FINDINGS:
        assert from_counts.line(finding).slope == pytest.approx(exact.line(finding).slope, rel=1e-3)
        change = from_counts.line(finding).intercept - exact.line(finding).intercept
        assert abs(change) < 2e-3
        assert (
            judged[finding].after.brier_score().value < judged[finding].before.brier_score().value
        )


@pytest.mark.parametrize(
    ("positives", "sign", "said"),
    [
        (9, 1, "9 positive and 191 negative"),
        (60, -1, "not likelier positive"),
        (60, -9e9, "not likelier positive"),
        (60, 9e9, "separate"),
    ],
)
def test_what_cannot_be_recalibrated_says_why(positives: int, sign: float, said: str) -> None:
    labels = (np.arange(200) < positives).astype(np.int64)
    evidence = np.random.default_rng(0).standard_normal(200) + sign * labels
    scores = 1 / (1 + np.exp(-np.clip(evidence, -5, 5)))
    with pytest.raises(NotFitted, match=said):
        fit_line(Scored(scores, labels, np.arange(200)), "platt")


@pytest.mark.parametrize("width", [1e-1, 1e-4, 1e-6])
def test_narrow_scores_of_a_young_model_get_their_line(width: float) -> None:
    """The same evidence on a narrow scale has the same probabilities after the line."""
    rng = np.random.default_rng(0)
    labels = (rng.random(600) < 0.3).astype(np.int64)
    evidence = rng.standard_normal(600) + 0.8 * labels
    scores = 1 / (1 + np.exp(6 - width * evidence))  # about 0.002
    line = fit_line(Scored(scores, labels, np.arange(600)), "platt")
    referee = LogisticRegression(C=np.inf, tol=1e-10).fit(evidence[:, None], labels)
    assert line.slope * width == pytest.approx(referee.coef_[0, 0], rel=1e-4)
    expected = referee.predict_proba(evidence[:, None])[:, 1]
    assert line.apply(scores) == pytest.approx(expected, abs=1e-4)


def test_scores_that_are_all_alike_say_so() -> None:
    labels = np.arange(200) % 2
    with pytest.raises(NotFitted, match="all scores are alike"):
        fit_line(Scored(np.full(200, 0.3), labels, np.arange(200)), "platt")


def test_a_run_of_few_images_is_refused_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", images=12)
    done = CliRunner().invoke(app, ["recalibrate", str(run)])
    assert isinstance(done.exception, UserError)
    assert "no finding can be recalibrated" in str(done.exception)
    assert not (run / "recalibration.json").exists()


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    recalibrate(run, "platt")
    path = run / "recalibration.json"
    path.write_text(path.read_text().replace('"slope": 0', '"slope": -0'))
    with pytest.raises(UserError, match="delete it, or write it again"):
        read_recalibration(run)


def test_predictions_and_exports_of_a_run_use_its_line_and_calls_stay(tmp_path: Path) -> None:
    carry_out(small(**{"method.name": "fedavg", "rounds": 1}), tmp_path / "run")
    plain = load_trained(tmp_path / "run")
    images = phantom(size=plain.recipe.size, train=0, validation=0, test=60, seed=7).images
    document = {
        "kind": "platt",
        "lines": {name: {"slope": 0.7, "intercept": -0.4} for name in plain.findings},
        "unfitted": {},
    }
    (tmp_path / "run" / "recalibration.json").write_text(json.dumps(document))
    trained = load_trained(tmp_path / "run")
    scores = trained.scores(images)
    expected = LogitLine(0.7, -0.4).apply(plain.scores(images))
    assert np.array_equal(scores, expected)
    assert not np.allclose(scores, plain.scores(images))
    calls = trained.calls(trained.network_scores(images))
    assert np.array_equal(calls, plain.calls(plain.scores(images)), equal_nan=True)
    exported = scorer_of_graph(from_pixels(trained.module, trained))(images)
    assert exported == pytest.approx(scores, abs=1e-5)
    assert model_description(trained)["recalibration"] == document["lines"]
    assert model_description(plain)["recalibration"] is None
    assert results_in_card(trained) == results_in_card(plain)
    shutil.rmtree(tmp_path / "run")


def test_a_line_so_steep_that_scores_become_equal_changes_no_call(tmp_path: Path) -> None:
    carry_out(small(**{"method.name": "fedavg", "rounds": 1}), tmp_path / "run")
    plain = load_trained(tmp_path / "run")
    images = phantom(size=plain.recipe.size, train=0, validation=0, test=40, seed=7).images
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:02d}.png")
    line = {"slope": 900.0, "intercept": 900.0 * 6}
    document = {
        "kind": "platt",
        "lines": dict.fromkeys(plain.findings, line),
        "unfitted": {},
    }
    found = find_images_to_predict([folder])
    before = predict_images(tmp_path / "run", found, workers=1)
    (tmp_path / "run" / "recalibration.json").write_text(json.dumps(document))
    prediction._loaded_model.cache_clear()
    after = predict_images(tmp_path / "run", found, workers=1)
    assert len(np.unique(after.scores)) < len(np.unique(before.scores))
    assert np.array_equal(after.calls, before.calls, equal_nan=True)


def test_scored_findings_are_of_one_common_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", images=40, alone=(0.7, 0.7, 0.7, 0.7))
    assert not list(scored_findings(read_run(run), "validation"))
