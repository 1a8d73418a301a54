"""Reports: the numbers are those of the runs, nothing is claimed that is not shown, and no folder
is too broken.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from xml.etree import ElementTree

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import load_file, save_file
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score
from typer.testing import CliRunner

from feddraw.analysis import metrics
from feddraw.analysis.bootstrap import Interval, bootstrap, interval
from feddraw.analysis.metrics import ROC_GRID, roc_curve
from feddraw.cli import app
from feddraw.errors import UserError
from feddraw.experiment.settings import Experiment
from feddraw.report import (
    ReportSettings,
    WrittenReport,
    markdown,
    write_report,
)
from feddraw.report.blocks import Bullets, Fold, Gallery, Paragraph, blocks_and_inner
from feddraw.report.cells import column_cells
from feddraw.report.patients import PatientBootstrap, bootstrap_methods
from feddraw.report.section_order import compose_report
from feddraw.report.sections import (
    aggregation_weights,
    caveats,
    client_sizes,
    client_views,
    first_screen,
    over_rounds,
)
from feddraw.report.sections.first_screen import results_table
from feddraw.report.sections.summary import summary_sentences
from feddraw.report.statistics import MeanOverRepeats, Report, compute_report
from feddraw.report.trainings import differences_over_trainings
from feddraw.results.ledger_table import LEDGER_COLUMNS
from feddraw.results.recorded_run import read_run
from feddraw.results.run_collection import collect_runs
from feddraw.system.file_reading import read_json, read_toml
from feddraw.tasks.findings import findings
from run_folders import FINDINGS, make_run, write_predictions

NASTY = "<script>alert(1)</script>"


def study(root: Path, scenarios: int = 3, seeds: int = 2, images: int = 0) -> Path:
    """A few methods and both references."""
    rng = np.random.default_rng(0)
    for place in range(scenarios):
        for seed in range(seeds):
            common = {"scenario": f"CHM-{place + 1}", "seed": seed, "images": images, "rounds": 3}
            for method, level in (("feddraw", 0.82), ("fedavg", 0.80), ("uniform", 0.81)):
                auc = level + 0.002 * rng.standard_normal()
                make_run(root / f"{place}-{method}-{seed}", method=method, auc=auc, **common)
            alone = [0.7, 0.72, 0.71, 0.9]
            make_run(
                root / f"{place}-alone-{seed}",
                method="alone",
                auc=fmean(alone),
                alone=alone,
                **common,
            )
            one = {"sizes": [800], "clients": ["all"], "auc": 0.85}
            make_run(root / f"{place}-centralised-{seed}", method="centralised", **one, **common)
    return root


def written(folder: Path, replicates: int = 0) -> WrittenReport:
    return write_report([folder], settings=ReportSettings(replicates=replicates))


def told(folder: Path, replicates: int = 0) -> tuple[Report, str]:
    """What a report says, without drawing its figures."""
    report = compute_report(
        collect_runs([folder]), settings=ReportSettings(replicates=replicates), command=""
    )
    return report, plain(markdown.render_markdown(compose_report(report, "A title"), "figures"))


def plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> WrittenReport:
    return written(study(tmp_path_factory.mktemp("study"), scenarios=2))


# ------------------------------------------------------------------------------------------ numbers


def test_means_and_spreads_are_those_of_the_runs(tmp_path: Path) -> None:
    for seed, auc in enumerate((0.80, 0.83, 0.81)):
        make_run(tmp_path / f"a{seed}", method="fedavg", auc=auc, seed=seed)
        make_run(tmp_path / f"b{seed}", method="uniform", auc=auc - 0.01, seed=seed)
    report, text = told(tmp_path)
    values = (0.80, 0.83, 0.81)
    assert f"| fedavg | **{fmean(values):.4f} ± {stdev(values):.4f}** * |" in text
    assert f"| uniform | {fmean(values) - 0.01:.4f} ± {stdev(values):.4f} |" in text
    assert [run.test("auc") for run in report.collection.of("CHM-2", "fedavg")] == pytest.approx(
        values
    )


def test_of_methods_with_the_same_mean_none_is_called_highest(tmp_path: Path) -> None:
    make_run(tmp_path / "a", method="fedavg", auc=0.8, seed=0)
    make_run(tmp_path / "b", method="uniform", auc=0.8, seed=0)
    report, _ = told(tmp_path)
    said = " ".join(summary_sentences(report))
    assert "fedavg and uniform have the same mean to four digits: 0.8000." in said
    assert "highest" not in said


def test_references_stand_apart_from_ranks_and_tests(tmp_path: Path) -> None:
    report, text = told(study(tmp_path))
    comparison = report.rankings["auc"].comparison
    assert comparison is not None
    assert set(comparison.table.methods) == {"feddraw", "fedavg", "uniform"}
    assert report.collection.references == ["alone", "centralised"]
    said = " ".join(summary_sentences(report))
    assert said.startswith(
        "Test AUC over 3 scenarios, 2 paired seeds in each: No difference between methods is shown"
    )
    assert "feddraw has the best average rank" in said
    assert "ignificant" not in said
    assert (
        "9 of 12 clients (of all scenarios) have a higher test AUC" in said
    )  # the one with 0.9 alone loses, in each scenario
    assert "| *centralised* (reference) | 0.8500 ± 0.0000 |" in text
    assert "cannot give a p below 0.25 with 3 scenarios" in text
    assert "With fewer than 5 scenarios no difference is called significant" in text


def test_the_tidy_table_is_read_by_stats(whole: WrittenReport) -> None:
    found = CliRunner().invoke(app, ["stats", str(whole.results), "--over", "seed", "--json"])
    assert json.loads(found.output)["values"]["auc"]["average_ranks"]["centralised"] == 1.0


def test_paired_differences_are_those_of_the_statistics(tmp_path: Path) -> None:
    for method, auc in (("feddraw", 0.8), ("fedavg", 0.75)):
        make_run(tmp_path / method, method=method, auc=auc, images=120)
    collection = collect_runs([tmp_path])
    draws = bootstrap_methods(collection.runs, 300)
    assert not draws.why_none
    first, second = (run.predictions() for run in collection.runs)
    assert first is not None
    assert second is not None
    scores, rng = [first.scores, second.scores], np.random.default_rng(0)
    direct = bootstrap(scores, first.truth, rng, patients=first.patients, replicates=300)
    assert draws.difference("auc", "feddraw", "fedavg") == interval(direct[0] - direct[1])
    assert (draws.unit, draws.units) == ("patients", 60)


def test_paired_gm_is_that_of_the_thresholds(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "a", images=200))
    found = run.predictions()
    assert found is not None
    draws = bootstrap_methods([run], 10)
    assert not draws.why_none
    expected = findings().evaluate(found.scores, found.truth, FINDINGS, [0.5] * 3).gm.macro
    assert draws.by_metric["gm"].by_method[""].common[0] == pytest.approx(expected)


def test_accuracy_and_calibration_are_recomputed_from_the_predictions(tmp_path: Path) -> None:
    """Scikit-learn's numbers, from the runs' own scores and thresholds, over two seeds."""
    for seed in (0, 1):
        for method, auc in (("feddraw", 0.8), ("fedavg", 0.75)):
            folder = tmp_path / f"{method}-{seed}"
            make_run(folder, method=method, auc=auc, images=200, seed=seed)
    _, text = told(tmp_path)
    kept = [read_run(tmp_path / f"feddraw-{seed}").predictions() for seed in (0, 1)]
    for column, finding in enumerate(FINDINGS):
        scores = [part.scores[:, column] for part in kept if part is not None]
        truth = [part.truth[:, column] for part in kept if part is not None]
        pairs = list(zip(truth, scores, strict=True))
        precision = fmean(average_precision_score(labels, values) for labels, values in pairs)
        brier = fmean(float(((values - labels) ** 2).mean()) for labels, values in pairs)
        found = sum(int((values[labels == 1] >= 0.5).sum()) for labels, values in pairs)
        positives = [int(labels.sum()) for labels, _ in pairs]
        counts = f"| {finding} | {positives[0]} / {200 - positives[0]} |"
        rows = [line for line in text.splitlines() if line.startswith(counts)]
        assert f" {found / sum(positives):.3f} [" in rows[0]
        assert f" {precision:.3f} [" in rows[1]
        assert f" {brier:.3f} [" in rows[1]
    assert "fedavg in CHM-2: discrimination and calibration of the scores" in text


def test_an_auc_has_one_interval_on_the_page(tmp_path: Path) -> None:
    for seed in (0, 1):
        for method, auc in (("feddraw", 0.8), ("fedavg", 0.75), ("uniform", 0.7)):
            folder = tmp_path / f"{method}-{seed}"
            make_run(folder, method=method, auc=auc, images=120, seed=seed, few="Edema")
    _, text = told(tmp_path, replicates=20)
    sections = re.split(r"\n#+ ", text)
    (images,) = (part for part in sections if part.startswith("Images and certainty"))
    (tests,) = (part for part in sections if part.startswith("As a diagnostic test"))
    rows = [line.split(" | ") for line in images.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 3
    of_feddraw, of_fedavg = ([row[place].rstrip(" |") for row in rows] for place in (4, 5))
    for area in (*of_feddraw, *of_fedavg):
        assert f"| {area.replace(' to ', ', ')} |" in tests
    assert "Not corrected for the 3 pairs of methods." in text  # feddraw's two, and the other


def test_findings_with_few_positives_are_marked_and_not_drawn(tmp_path: Path) -> None:
    make_run(tmp_path / "a", auc=0.8, images=24)
    _, text = told(tmp_path, replicates=20)
    assert re.search(r"0\.\d{3} \[[^\]]*\], too few", text)
    assert "“too few” marks numbers of fewer than 10" in text
    assert "Reliability:" not in text


def test_images_stand_in_for_patients_and_an_image_of_several_seeds_is_one_unit(
    tmp_path: Path,
) -> None:
    for seed in (0, 1):
        folder = make_run(tmp_path / str(seed), seed=seed)
        write_predictions(folder, 0.8, 7, 50, patients=False)  # both seeds tested the same images
    draws = bootstrap_methods(collect_runs([tmp_path]).runs, 10)
    assert not draws.why_none
    assert (draws.unit, draws.units, draws.repeats) == ("images", 50, ("0", "1"))


def test_a_client_gains_what_the_common_model_has_over_its_own(tmp_path: Path) -> None:
    make_run(tmp_path / "a", method="feddraw", auc=0.8, images=150)
    make_run(tmp_path / "b", method="alone", auc=0.7, alone=(0.6, 0.7, 0.75, 0.9), images=150)
    _, text = told(tmp_path, replicates=50)
    assert "Does a client gain?" in text
    assert "| C1 | 0.6000 | +0.2000 [" in text
    assert "| C4 | 0.9000 | -0.1000 [" in text
    assert (
        "3 of 4 clients have a higher test AUC than with the model they train alone (95 % CI of the"
        " share: 19 to 99 %): from -0.1000 (C4, 95 % CI -0." in text
    )
    assert re.search(r"The 95 % CI over patients lies above 0 for [0-3] of 4; noise", text)


def test_a_client_gains_in_the_findings_that_it_labels_and_none_without_both_classes_is_counted(
    tmp_path: Path,
) -> None:
    """C1 labels the first finding only; C2 has no positive of the third, which stays; C3 has no
    positive at all, so it is not in the count.
    """
    common = make_run(tmp_path / "a", method="feddraw", auc=0.8, images=150)
    alone = make_run(tmp_path / "b", method="alone", alone=(0.6, 0.7, 0.75, 0.9), images=150)
    for folder in (common, alone):
        settings = folder / "experiment.toml"
        table = read_toml(settings)
        table["partition"]["known"] = {
            "C1": [100, 0, 0],
            "C2": [100, 100, 100],
            "C3": [100, 100, 100],
            "C4": [500, 500, 500],
        }
        table["partition"]["positives"]["C1"] = [40, 0, 0]
        table["partition"]["positives"]["C2"] = [40, 30, 0]
        table["partition"]["positives"]["C3"] = [0, 0, 0]
        settings.write_text(tomli_w.dumps(table))
    metrics = read_json(common / "metrics.json")
    metrics["test"]["auc"]["per_class"]["Atelectasis"] = 0.5  # the mean of all stays .8
    (common / "metrics.json").write_text(json.dumps(metrics))
    report, text = told(tmp_path, replicates=50)
    assert "| C1 | 0.5700 | -0.0700 [" in text  # .5 - (.6 - .03), of the first finding
    assert "| C2 | 0.7000 | +0.1000 [" in text
    assert "Over the findings that the client labels, where not all: C1: Atelectasis." in text
    assert "1 of 3 clients have a higher test AUC" in text
    assert "Not among them: C3, without positive and negative images of any finding." in text

    (draws,) = report.draws.values()
    truth = load_file(alone / "predictions.safetensors")["test.truth"][:, 0]
    areas = [
        roc_auc_score(truth, load_file(folder / "predictions.safetensors")["test.scores"][pick])
        for folder, pick in ((common, np.s_[:, 0]), (alone, np.s_[0, :, 0]))
    ]
    assert draws.gain("auc", "feddraw", "C1").estimate == pytest.approx(areas[0] - areas[1])
    everything = draws.by_metric["auc"].by_method
    kept = load_file(alone / "predictions.safetensors")
    means = [
        np.mean([roc_auc_score(kept["test.truth"][:, f], kept["test.scores"][m, :, f]) for m in of])
        for f, of in enumerate([(0, 1, 2, 3), (1, 2, 3), (1, 2, 3)])
    ]
    assert everything["alone"].common[0] == pytest.approx(np.mean(means))
    assert "alone: of each finding the mean over the models of the clients that label it." in text
    assert np.array_equal(draws.used_by("auc", "feddraw", "C2"), everything["feddraw"].common)
    on_all = client_views.differences_on_all_patients(draws, "feddraw", "C1")
    assert on_all["alone"] == draws.gain("auc", "feddraw", "C1")


def test_a_client_is_compared_with_its_model_of_alone_and_no_other_of_its_own(
    tmp_path: Path,
) -> None:
    make_run(tmp_path / "a", method="feddraw", auc=0.8, images=80)
    make_run(tmp_path / "b", method="alone", auc=0.7, alone=(0.6, 0.7, 0.75, 0.9), images=80)
    before = bootstrap_methods(collect_runs([tmp_path]).runs, 10)
    make_run(tmp_path / "c", method="ditto", auc=0.9, alone=(0.9, 0.9, 0.9, 0.9), images=80)
    after = bootstrap_methods(collect_runs([tmp_path]).runs, 10)
    assert not before.why_none
    assert not after.why_none
    assert list(after.by_metric["auc"].alone) == ["C1", "C2", "C3", "C4"]
    for client, values in before.by_metric["auc"].alone.items():
        assert np.array_equal(after.by_metric["auc"].alone[client], values)
        own = after.used_by(
            "auc", "ditto", client
        )  # of its own personal model, not of the mean over clients
        assert (
            client_views.differences_on_all_patients(after, "ditto", client)["alone"].estimate
            == own[0] - values[0]
        )
        assert np.array_equal(
            after.used_by("auc", "feddraw", client),
            after.by_metric["auc"].by_method["feddraw"].common,
        )
    every = [after.used_by("auc", "ditto", client)[0] for client in after.by_metric["auc"].alone]
    assert len(set(every)) == 4
    assert after.by_metric["auc"].by_method["ditto"].common[0] == pytest.approx(np.mean(every))


def test_a_client_with_a_personal_model_gains_what_that_one_has_over_its_own(
    tmp_path: Path,
) -> None:
    make_run(tmp_path / "a", method="ditto", auc=0.85, alone=(0.95, 0.95, 0.75, 0.75), images=80)
    make_run(tmp_path / "b", method="alone", auc=0.8, alone=(0.8, 0.8, 0.8, 0.8), images=80)
    report, text = told(tmp_path, replicates=20)
    assert "| C1 | 0.8000 | +0.1500 [" in text
    assert "| C4 | 0.8000 | -0.0500 [" in text
    assert "2 of 4 clients have a higher test AUC" in text
    (draws,) = report.draws.values()
    for client, values in draws.by_metric["auc"].alone.items():
        own = draws.used_by("auc", "ditto", client)
        assert draws.gain("auc", "ditto", client) == interval(own - values)
    assert len({draws.gain("auc", "ditto", client) for client in draws.by_metric["auc"].alone}) == 4


def test_the_view_of_a_client_is_that_of_its_own_patients(tmp_path: Path) -> None:
    """Two clients; by hand for the first one, with unknown labels and a finding that it does not
    label.
    """
    truth = np.array([[1, 1, -1], [1, 0, -1], [0, -1, -1], [0, -1, -1], [1, 1, 1]], np.int8)
    # areas of the first finding: all of 2 × 2 pairs, half, three quarters; of the second one: 1, 0,
    # 1
    first = {
        "feddraw": [[0.9, 0.6], [0.8, 0.4], [0.2, 0.5], [0.1, 0.5]],
        "alone": [[0.9, 0.4], [0.1, 0.6], [0.2, 0.5], [0.8, 0.5]],
        "fedavg": [[0.9, 0.6], [0.15, 0.4], [0.2, 0.5], [0.1, 0.5]],
    }
    scores = {
        name: np.array([[*row, 0.5] for row in rows] + [[0.5] * 3], np.float32)
        for name, rows in first.items()
    }
    tensors = {
        "holdout.truth": truth,
        "holdout.client": np.array([0, 0, 0, 0, 1]),
        "holdout.rows": np.arange(5) + 30,
    }
    tensors["holdout.patients"] = np.array([7, 7, 8, 9, 5])
    for name, own in scores.items():
        folder = make_run(
            tmp_path / name,
            method=name,
            sizes=(50, 60),
            alone=(0.6, 0.6) if name == "alone" else (),
        )
        save_file(tensors | {"holdout.scores": own}, folder / "predictions.safetensors")
    found = {
        (view.client, view.method): view
        for view in client_views.client_views(
            collect_runs([tmp_path]).runs, PatientBootstrap.none_because("none"), 40
        )
    }
    assert set(found) == {
        (client, method) for client in ("C1", "C2") for method in ("feddraw", "fedavg")
    }
    view = found["C1", "feddraw"]
    assert (view.images, view.area, dict(view.common)) == (4, 1.0, {})
    assert {name: one.estimate for name, one in view.own.items()} == {
        "alone": 0.75,
        "fedavg": 0.125,
    }
    assert found["C1", "fedavg"].own["alone"].estimate == 0.625
    assert found["C2", "feddraw"].images == 1
    shown = replace(view, own={"alone": Interval(0.75, 0.5, 0.9, 40)})
    assert "no gain or loss claimed from one training vs" in client_views._in_words(shown)
    assert ": a gain vs training alone" in client_views._in_words(replace(shown, trainings=2))
    assert np.isnan(found["C2", "feddraw"].area)  # one image has no AUC

    images = {0: [0, 1], 1: [2], 2: [3]}  # of each patient
    differences = []
    for chosen in np.random.default_rng(0).integers(
        3, size=(40, 3)
    ):  # the same patients for both models
        rows = [image for patient in chosen for image in images[patient]]
        areas = [
            [metrics.auc(scores[m][rows, c], truth[rows, c]) for c in (0, 1)]
            for m in ("feddraw", "alone")
        ]
        differences.append(metrics.macro(areas[0]) - metrics.macro(areas[1]))
    low, high = np.nanquantile(differences, [0.025, 0.975])
    assert (view.own["alone"].low, view.own["alone"].high) == pytest.approx((low, high))


def test_a_finding_without_gm_only_and_the_mean_without_findings_of_few_images_are_told(
    tmp_path: Path,
) -> None:
    for method, auc in (("feddraw", 0.8), ("fedavg", 0.7)):
        make_run(
            tmp_path / method, method=method, auc=auc, without_gm="Effusion", few="Atelectasis"
        )
    _, text = told(tmp_path, replicates=20)
    assert (
        "Effusion has no GM in CHM-2: only positives or only negatives in the validation data, so"
        " there is no threshold" in text
    )
    assert "Effusion has no AUC" not in text
    assert (
        "| method | mean of 3 | mean of 2, without † | Atelectasis † | Cardiomegaly | Effusion |"
        in text
    )
    assert "| feddraw | **0.8000** * | **0.8150** * |" in text  # (0.80 + 0.83) / 2
    assert "| method | mean of 2 | mean of 1, without † |" in text  # of GM


def test_a_win_needs_patients_and_trainings_and_one_seed_has_none(tmp_path: Path) -> None:
    for scenario, gap in (("CHM-1", 0.3), ("CHM-2", 0.0), ("CHM-3", -0.3)):
        for seed in (0, 1):
            for method, auc in (("feddraw", 0.7 + gap / 2), ("fedavg", 0.7 - gap / 2)):
                folder = tmp_path / str(seed) / f"{scenario}-{method}"
                make_run(
                    folder,
                    scenario=scenario,
                    method=method,
                    auc=auc + 0.001 * seed,
                    images=300,
                    seed=seed,
                )
    report, text = told(tmp_path, replicates=50)
    assert "vs fedavg: 1 win, 1 loss, 1 undecided." in " ".join(summary_sentences(report))
    assert "CI over trainings: Student's t over paired seeds." in text
    report, text = told(tmp_path / "0", replicates=50)
    assert "win" not in " ".join(summary_sentences(report))
    assert "over trainings" not in text


def test_the_headline_is_over_the_seeds_that_all_methods_have(tmp_path: Path) -> None:
    for method, areas in (("feddraw", (0.7, 0.9, 0.9)), ("fedavg", (0.8,))):
        for seed, auc in enumerate(areas):
            make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, auc=auc)
    first, *_ = summary_sentences(told(tmp_path)[0])
    assert first == (
        "No difference between methods is shown in test AUC: one training. The highest mean in"
        " CHM-2 is that of fedavg: 0.8000, +0.1000 vs feddraw."
    )


def test_a_seed_that_one_method_lacks_is_in_no_mean_star_difference_or_sentence(
    tmp_path: Path,
) -> None:
    """As a budget left it: seed 1 of two of three methods, where the third would have won."""
    for seed, aucs in enumerate(((0.58, 0.60, 0.59), (0.72, 0.50))):
        for method, auc in zip(("feddraw", "fedavg", "uniform"), aucs, strict=False):
            make_run(tmp_path / f"{method}-{seed}", method=method, seed=seed, auc=auc, images=200)
    make_run(tmp_path / "alone", method="alone", auc=0.5, alone=(0.5,) * 4)
    report, text = told(tmp_path, replicates=20)
    assert "| fedavg | **0.6000** * |" in text
    assert "| feddraw | 0.5800 |" in text
    assert "| uniform | 0.5900 |" in text
    said = list(summary_sentences(report))
    assert said[0].startswith("No difference between methods is shown in test AUC: 100 test")
    assert "one training. The highest mean in CHM-2 is that of fedavg: 0.6000, +0.0100" in said[0]
    assert any("one paired seed" in sentence and "2 runs are not" in sentence for sentence in said)
    assert "feddraw of 0.5800" in " ".join(said)
    assert report.draws["CHM-2"].repeats == ("0",)
    left_out = "feddraw and fedavg, seed 1: not counted, because uniform has no result there"
    assert left_out in text
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "--replicates", "0"]).output
    assert left_out in " ".join(shown.split())


def test_without_a_seed_that_all_methods_have_nothing_is_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "a", method="feddraw", seed=0, images=100)
    make_run(tmp_path / "b", method="fedavg", seed=1, images=100)
    report, text = told(tmp_path, replicates=20)
    first, *_ = summary_sentences(report)
    assert first == (
        "Test AUC in CHM-2: the methods are not compared, there is no seed that all of feddraw and"
        " fedavg have."
    )
    assert "| feddraw | not paired |" in text
    assert "** *" not in text
    assert "best mean of the column" not in text  # nothing is starred
    assert "may be noise between trainings" not in text  # no difference is shown


def test_a_reference_with_fewer_seeds_takes_none_from_the_methods(tmp_path: Path) -> None:
    for seed in range(3):
        for method in ("feddraw", "fedavg"):
            make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, auc=0.7 + seed / 10)
    make_run(tmp_path / "all", method="centralised", sizes=[800], clients=["all"], auc=0.75, seed=1)
    report, text = told(tmp_path)
    assert report.mean("CHM-2", "feddraw", "auc").count == 3
    assert "| *centralised* (reference) | 0.7500 (n = 1) |" in text
    assert "has a mean AUC of 0.7500, feddraw of 0.8000." in text  # both of seed 1


def test_a_seed_without_a_value_counts_for_no_method(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / f"a{seed}", method="feddraw", seed=seed, auc=(0.6, 0.7, 0.9)[seed])
        auc = (0.6, 0.7, float("nan"))[seed]
        make_run(tmp_path / f"b{seed}", method="fedavg", seed=seed, auc=auc)
    report, _ = told(tmp_path)
    assert report.pairing("CHM-2", "auc").repeats == ("0", "1")
    assert report.mean("CHM-2", "feddraw", "auc").value == pytest.approx(0.65)


def test_the_headline_claims_a_difference_only_over_several_trainings_and_patients(
    tmp_path: Path,
) -> None:
    noise = (0.0, 0.004, -0.003, 0.002)
    for seed in range(4):
        for method, level, times in (("feddraw", 0.9, 2), ("fedavg", 0.6, 1), ("uniform", 0.6, -1)):
            auc = level + noise[seed] * times
            folder = tmp_path / f"{method}-{seed}"
            make_run(folder, method=method, seed=seed, auc=auc, images=300)
    first, *_ = summary_sentences(told(tmp_path, replicates=50)[0])
    assert first.startswith("feddraw has the highest test AUC in CHM-2: 0.9")
    assert "is shown to be higher than that of fedavg and uniform" in first or (
        "is shown to be higher than that of uniform and fedavg" in first
    )
    assert first.endswith("(alpha 0.05, Holm over all pairs; 150 test patients, 4 paired seeds).")


def test_with_folds_the_test_images_are_those_that_each_run_leaves_out(tmp_path: Path) -> None:
    make_run(tmp_path / "only", few="Effusion", settings={"folds": 3})
    _, text = told(tmp_path)
    assert "are computed on the fold that each run leaves out, one of 3; the first run's: " in text
    assert "common test split" not in text


def test_differences_over_trainings_are_those_of_stats_and_folds_widen_them(tmp_path: Path) -> None:
    rng, values = np.random.default_rng(0), {}
    for seed in range(4):
        for method in ("feddraw", "fedavg", "uniform"):
            values[method, seed] = auc = round(float(rng.uniform(0.7, 0.8)), 4)
            folder = tmp_path / f"{method}-{seed}"
            make_run(folder, method=method, seed=seed, auc=auc, rounds=8, settings={"folds": 4})
    report, text = told(tmp_path, replicates=0)
    found = report.trainings["auc"]
    one = found.differences["CHM-2", "uniform"]
    paired = np.array([values["feddraw", seed] - values["uniform", seed] for seed in range(4)])
    assert (found.folds, found.split, one.mean) == (4, "validation", pytest.approx(paired.mean()))
    reach = stats.t.ppf(0.975, 3) * paired.std(ddof=1) * np.sqrt(1 / 4 + 1 / 3)
    assert (one.low, one.high) == pytest.approx((paired.mean() - reach, paired.mean() + reach))
    assert f"[{one.low:+.4f}, {one.high:+.4f}]" in text
    assert "widened because 4 folds share training images" in text
    runs = {run.method: run for run in report.collection.runs if run.repeat == "0"}
    late = [np.mean(run.curve("validation")[-5:]) for run in (runs["feddraw"], runs["uniform"])]
    single = differences_over_trainings(list(runs.values()), "auc", "feddraw").last_five[
        "CHM-2", "uniform"
    ]
    assert single.mean == pytest.approx(late[0] - late[1])
    assert "last five (validation)" in text


@pytest.mark.parametrize("folds", ["many", 1, -3, [5]])
def test_folds_that_are_none_widen_nothing(tmp_path: Path, folds: object) -> None:
    for method in ("feddraw", "fedavg"):
        for seed in (0, 1):
            make_run(
                tmp_path / f"{method}-{seed}", method=method, seed=seed, settings={"folds": folds}
            )
    found = differences_over_trainings(collect_runs([tmp_path]).runs, "auc", "feddraw")
    assert (found.folds, found.repeats) == (0, 2)


def test_means_that_are_printed_alike_share_a_rank(tmp_path: Path) -> None:
    for scenario in ("CHM-1", "CHM-2"):
        for method, auc in (("feddraw", 0.75001), ("fedavg", 0.75003), ("uniform", 0.7)):
            make_run(tmp_path / f"{scenario}-{method}", scenario=scenario, method=method, auc=auc)
    report, _ = told(tmp_path, replicates=0)
    comparison = report.rankings["auc"].comparison
    assert comparison is not None
    assert comparison.average_ranks == {"feddraw": 1.5, "fedavg": 1.5, "uniform": 3.0}


def test_a_margin_tells_no_worse_from_not_shown(tmp_path: Path) -> None:
    for method, auc in (("feddraw", 0.8), ("fedavg", 0.795), ("uniform", 0.95)):
        make_run(tmp_path / method, method=method, auc=auc, images=300)
    report = compute_report(
        collect_runs([tmp_path]), settings=ReportSettings(replicates=50, margin=0.1), command=""
    )
    assert results_table(report, "CHM-2", "auc").rows[1][-1].text == "one training"
    for method, auc in (("feddraw", 0.8), ("fedavg", 0.795), ("uniform", 0.95)):
        make_run(tmp_path / f"{method}-1", method=method, auc=auc + 0.001, images=300, seed=1)
    found = write_report([tmp_path], settings=ReportSettings(replicates=50, margin=0.1))
    text = found.markdown.read_text()
    lines = [
        line.strip("| ").split(" | ") for line in text[text.index("| method |") :].splitlines()
    ]
    rows = {cells[0]: cells[-1] for cells in reversed(lines) if len(cells) == 6}
    assert rows["fedavg"] == "yes"
    assert rows["uniform"] == "not shown"
    assert (
        "feddraw is shown to be no worse than fedavg in 1 of 1 and uniform in 0 of 1 scenarios."
        in text
    )
    assert "--replicates 50 --margin 0.1" in text
    assert "no worse" not in told(tmp_path, replicates=50)[1]


def test_the_first_screen_has_the_headline_the_weights_and_the_table_with_intervals(
    tmp_path: Path,
) -> None:
    for method, auc in (("feddraw", 0.80), ("fedavg", 0.79), ("uniform", 0.795)):
        make_run(tmp_path / method, method=method, auc=auc, images=300)
    _, text = told(tmp_path, replicates=50)
    first = text[: text.index("## Summary")]
    headline = first.splitlines()[2]
    assert headline.startswith(
        "No difference between methods is shown in test AUC: 150 test patients, one training. The"
        " highest mean in CHM-2 is that of feddraw: 0.8000, +0.0050 vs uniform (95 % bootstrap"
    )
    assert (
        first.index(headline)
        < first.index("chm-2-feddraw-weights.svg")
        < first.index("| method | AUC |")
    )
    assert re.search(
        r"\| uniform \| 0\.7950 \| [+-]0\.\d{4} \| \[[+-]0\.\d{4}, [+-]0\.\d{4}\] \|", first
    )


def test_influence_stands_beside_the_weights_of_every_method(tmp_path: Path) -> None:
    for method in ("feddraw", "fedavg"):
        make_run(tmp_path / method, method=method)
    _, text = told(tmp_path, replicates=20)
    for method in ("feddraw", "fedavg"):
        assert f"chm-2-{method}-influence.svg" in text
    assert "equal weights do not give equal influence" in text


def test_a_section_without_content_is_absent_also_from_the_menu(tmp_path: Path) -> None:
    make_run(tmp_path / "a", scenario="CHM-1")
    make_run(tmp_path / "b", scenario="CHM-1", method="fedavg")
    report, text = told(tmp_path)
    assert "Ranks over scenarios" not in text
    assert "All scenarios" not in text
    menu = compose_report(report, "A title").menu
    assert [heading.text for heading, _ in menu] == ["Summary", "Scenario CHM-1", "What was run"]
    several = compute_report(
        collect_runs([study(tmp_path / "more")]), settings=ReportSettings(replicates=0), command=""
    )
    named = [heading.text for heading, _ in compose_report(several, "A title").menu]
    assert named[:3] == ["Summary", "All scenarios", "Ranks over scenarios"]


def test_without_scores_of_images_the_page_says_so(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", method="fedavg")
    (tmp_path / "b" / "predictions.safetensors").write_bytes(b"\x80\x04pickle")
    _, text = told(tmp_path, replicates=20)
    assert "kept no scores of single images" in text


def test_the_roc_curve_has_the_area_of_the_metric() -> None:
    rng = np.random.default_rng(1)
    truth = (rng.random(4000) < 0.3).astype(np.uint8)
    scores = np.round(truth + rng.standard_normal(4000), 1)  # with ties
    curve = roc_curve(scores, truth)
    assert curve is not None
    assert np.trapezoid(curve, ROC_GRID) == pytest.approx(metrics.auc(scores, truth), abs=2e-3)
    assert roc_curve(scores, np.ones(4000, dtype=np.uint8)) is None


# ---------------------------------------------------------------------------------------- bad input


def test_broken_and_unfinished_runs_are_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    good = make_run(tmp_path / "good")
    make_run(tmp_path / "half", method="fedavg", finished=False)
    metrics = read_json(good / "metrics.json")
    metrics["test"]["confusion"] = [[1, 0], [0, 1]]
    calls_of_fewer_classes = json.dumps(metrics)
    for name, file, content in (
        ("toml", "experiment.toml", "rounds = ["),
        ("empty", "experiment.toml", ""),
        ("json", "metrics.json", '{"test": '),
        ("shape", "metrics.json", '{"test": {"auc": 3}}'),
        ("calls", "metrics.json", calls_of_fewer_classes),
        ("ledger", "weights.csv", "round,client,status\n0,C1,weighted\n"),
        ("rounds", "rounds.jsonl", '{"round": 0, "validation": {"macro": "high"}}\n'),
        ("pieces", "pieces.csv", "round,client,piece,weight\n0,nobody,Effusion,1\n"),
    ):
        folder = make_run(tmp_path / name, method="fedavg")
        (folder / file).write_text(content)
    found = collect_runs([tmp_path])
    assert [run.path.name for run in found.runs] == ["good"]
    reasons = {problem.path.name: problem.reason for problem in found.problems}
    assert reasons["half"].startswith("not finished: 6 of 6 rounds, validation AUC 0.")
    assert "not valid TOML" in reasons["toml"]
    assert "not valid JSON" in reasons["json"]
    assert all(
        "is not as a run writes it" in reasons[name]
        for name in ("empty", "shape", "calls", "ledger", "rounds", "pieces")
    )
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "--replicates", "0"])
    assert shown.exit_code == 0
    assert shown.output.count("left out: ") == 9
    assert "half: not finished" in plain((tmp_path / "report.md").read_text())


def test_a_run_called_by_a_digit_changes_no_number_of_what_is_left_out(in_tmp: Path) -> None:
    make_run(Path("0"))
    make_run(Path("1"), seed=1, rounds=10, finished=False)
    found, here = collect_runs([Path()]), {"folders": [Path()]}
    report = compute_report(found, settings=ReportSettings(replicates=0), command="", **here)
    _, left_out, *_ = caveats.section(report)
    assert left_out == Bullets([f"{in_tmp.name}/1: {found.problems[0].reason}"])
    assert "10 of 10 rounds" in found.problems[0].reason


def test_a_first_seed_in_which_nobody_ever_counted_is_reported(tmp_path: Path) -> None:
    for method in ("feddraw", "fedavg"):
        for seed in (0, 1):
            make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, rounds=2)
    with (tmp_path / "feddraw0" / "weights.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, LEDGER_COLUMNS, restval="")
        writer.writeheader()
        for place in range(8):
            row = {"round": place // 4, "client": f"C{1 + place % 4}", "size": 0, "steps": 0}
            writer.writerow(row | {"weight": 0, "influence": 0, "status": "missing"})
    report, _ = told(tmp_path)
    folds = [
        block.title
        for block in blocks_and_inner(list(aggregation_weights.section(report, "CHM-2")))
        if isinstance(block, Fold)
    ]
    assert "The weights of feddraw in words (seed 1)" in folds


def test_methods_with_different_scenarios_seeds_and_undefined_values_are_still_reported(
    tmp_path: Path,
) -> None:
    study(tmp_path)
    make_run(tmp_path / "rare", method="fedprox", scenario="CHM-1")
    make_run(
        tmp_path / "nan", method="moon", scenario="CHM-1", auc=float("nan"), undefined="Effusion"
    )
    make_run(tmp_path / "own", method="feddraw", scenario="CHM-9")
    report, text = told(tmp_path)
    ranking = report.rankings["auc"]
    assert ranking.comparison is not None
    assert ranking.comparison.table.scenarios == ("CHM-1", "CHM-2", "CHM-3")
    assert "fedprox: it has results in at most half of the scenarios" in ranking.left_out
    assert "CHM-9: no seed in which all methods have a result" in ranking.left_out
    assert "| moon | undefined | not run | not run | not run | not ranked |" in text
    assert "Effusion has no AUC or GM in CHM-1" in text
    assert "fedprox has no finished run in CHM-1 for seed 1." in text


def test_commands_to_run_again_work_where_the_report_was_typed(in_tmp: Path) -> None:
    for folder in (Path("runs/demo"), in_tmp / "elsewhere"):
        make_run(folder / "only")
        report = compute_report(
            collect_runs([folder]),
            settings=ReportSettings(replicates=0),
            command="",
            folders=[folder],
        )
        text = plain(markdown.render_markdown(compose_report(report, "A title"), "figures"))
        assert "from 1 run." in text
        if folder.is_absolute():  # a page tells nothing of what is above
            assert "feddraw run elsewhere/only/experiment.toml" in text
            assert "Type these commands in the folder that holds elsewhere:" in text
        else:
            assert "feddraw run runs/demo/only/experiment.toml" in text
            assert "Type these commands in the folder in which the command above" in text


def test_a_note_explains_only_what_is_on_the_page(tmp_path: Path) -> None:
    make_run(tmp_path / "enough" / "only")
    _, text = told(tmp_path / "enough")
    assert "†" not in text
    for scenario in ("CHM-1", "CHM-2"):
        make_run(tmp_path / "few" / scenario, scenario=scenario, few="Effusion")
    report, text = told(tmp_path / "few")
    assert "† fewer than" in text
    paragraphs = [block for block in first_screen.section(report) if isinstance(block, Paragraph)]
    assert sum("common test split" in block.text for block in paragraphs) == 1


def test_methods_that_share_no_scenario_are_said_to_allow_no_claim(tmp_path: Path) -> None:
    for method, holdout in (("feddraw", 0.1), ("fedavg", 0.2)):
        make_run(tmp_path / method, method=method, settings={"holdout": holdout})
    report, _ = told(tmp_path)
    first, *_ = summary_sentences(report)
    assert first.startswith(
        "Nothing can be claimed about which method has the higher test AUC: no two methods have"
        " results in the same scenario"
    )
    make_run(tmp_path / "third", method="fedavg", settings={"holdout": 0.1})
    report, _ = told(tmp_path)
    first, *_ = summary_sentences(report)
    assert first.startswith("No difference between methods is shown in test AUC")
    assert "Nothing can be claimed over several scenarios." in first


def test_sizes_with_images_held_back_are_told_from_those_that_the_ledger_weighs(
    tmp_path: Path,
) -> None:
    make_run(tmp_path / "r", sizes=(100, 500), settings={"holdout": 0.2})
    assert "Images held back are included: each client keeps back 20 %" in told(tmp_path)[1]
    make_run(tmp_path / "none" / "r", sizes=(100, 500))
    assert "held back" not in told(tmp_path / "none")[1]


def test_training_images_that_no_client_gets_are_told(tmp_path: Path) -> None:
    make_run(tmp_path / "whole" / "r", sizes=(40, 60), few="Effusion")
    assert "of its 100 images" not in told(tmp_path / "whole")[1]
    make_run(tmp_path / "part" / "r", sizes=(10, 20), few="Effusion")
    assert "clients get 30 of its 100 images" in told(tmp_path / "part")[1]


def test_a_table_of_one_method_explains_no_interval(tmp_path: Path) -> None:
    words = "test patients, paired, of seed 0"
    make_run(tmp_path / "r", images=60)
    assert words not in told(tmp_path, replicates=20)[1]
    make_run(tmp_path / "s", method="fedavg", images=60)
    assert words in told(tmp_path, replicates=20)[1]


def test_one_method_in_one_run_is_reported(tmp_path: Path) -> None:
    make_run(tmp_path / "only", method="alone", alone=(0.6, 0.7, 0.7, 0.7))
    report, _ = told(tmp_path)
    assert "one seed only" in " ".join(summary_sentences(report))
    assert report.rankings["auc"].reason.endswith("there are 0 methods in 0 scenarios.")


def test_other_settings_under_one_name_are_told_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "a", settings={"method.eta": 0.4})
    make_run(tmp_path / "b", settings={"method.eta": 0.2})
    make_run(tmp_path / "c", method="fedavg", settings={"training.lr": 0.01})
    make_run(tmp_path / "d", method="fedavg", scenario="CHM-3", settings={"scenario.tilt": 0.0})
    make_run(
        tmp_path / "e",
        method="fedavg",
        scenario="CHM-3",
        settings={"scenario.tilt": 1.0, "engine": "processes"},
    )
    found = collect_runs([tmp_path])
    assert found.methods == ["feddraw (eta=0.4)", "feddraw (eta=0.2)", "fedavg"]
    assert found.scenarios == ["CHM-2", "CHM-3 (tilt=0)", "CHM-3 (tilt=1)"]
    assert [note for note in found.notes if "training.lr" in note] == [
        "Not all methods were run with the same training.lr (0.001: feddraw (eta=0.2), feddraw"
        " (eta=0.4); 0.01: fedavg) in CHM-2."
    ]


def test_a_setting_that_an_older_version_did_not_have_tells_no_runs_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "old", seed=0)
    make_run(tmp_path / "new", seed=1, settings={"stream": False})
    found = collect_runs([tmp_path])
    assert found.methods == ["feddraw"]
    assert found.notes == (
        "Some runs do not record stream, as others do: they were made by another version.",
    )


def test_settings_that_all_methods_share_are_conditions(tmp_path: Path) -> None:
    for steps in (0, 20):
        for method in ("feddraw", "fedavg"):
            make_run(
                tmp_path / f"{method}{steps}", method=method, settings={"training.steps": steps}
            )
    found = collect_runs([tmp_path])
    assert found.methods == ["feddraw", "fedavg"]
    assert found.scenarios == ["CHM-2 (steps=0)", "CHM-2 (steps=20)"]


def test_several_folders_are_one_report_and_a_run_counts_once(tmp_path: Path) -> None:
    make_run(tmp_path / "shard1" / "a", seed=0)
    make_run(tmp_path / "shard2" / "b", seed=1)
    make_run(tmp_path / "shard2" / "again", seed=0)
    make_run(tmp_path / "shard2" / "other", seed=1, auc=0.7)
    found = collect_runs([tmp_path / "shard1", tmp_path / "shard2", tmp_path / "shard1" / "a"])
    assert sorted(run.path.name for run in found.runs) == ["a", "b"]
    reasons = {problem.path.name: problem.reason for problem in found.problems}
    assert reasons["again"].startswith("left out: the same run as")
    assert reasons["other"].startswith("left out: the settings, but not the results, of")


def test_own_data_of_one_name_in_two_folders_are_two_scenarios_and_a_copied_run_is_one(
    tmp_path: Path,
) -> None:
    for place, few, seed in (
        ("north", "Edema", 0),
        ("elsewhere", "Edema", 0),
        ("south", "Effusion", 1),
    ):
        make_run(
            tmp_path / place,
            scenario="iid",
            few=few,
            seed=seed,
            settings={"data.name": f"{place}/x.npz"},
        )
    found = collect_runs([tmp_path])
    assert found.scenarios == ["iid (elsewhere/x.npz)", "iid (south/x.npz)"]
    assert [one.path.name for one in found.problems] == ["north"]
    shutil.rmtree(tmp_path / "south")
    found = collect_runs([tmp_path])
    assert (found.scenarios, len(found.runs)) == (["iid"], 1)


def test_an_archive_is_one_wherever_it_lies(tmp_path: Path) -> None:
    for seed, (place, few) in enumerate((("north", "Edema"), ("south", "Effusion"))):
        settings = {"data.name": "chexpert", "data.path": f"{place}/archive"}
        make_run(tmp_path / place, scenario="iid", few=few, seed=seed, settings=settings)
    assert collect_runs([tmp_path]).scenarios == ["iid"]


def test_methods_that_had_other_images_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    folder = make_run(tmp_path / "b", method="fedavg")
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(text.replace('sha256 = "', 'sha256 = "f'))
    assert any(
        "did not have the same images at the same clients" in note
        for note in collect_runs([tmp_path]).notes
    )


def test_older_folders_without_the_newer_files_are_reported(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "old")
    table = tomllib.loads((folder / "experiment.toml").read_text())
    lines = (folder / "experiment.toml").read_text().split("[partition]")
    (folder / "experiment.toml").write_text(
        f'{lines[0]}[partition]\nsha256 = "{table["partition"]["sha256"]}"\n'
    )
    (folder / "environment.json").unlink()
    (folder / "weights.csv").unlink()
    (folder / "rounds.jsonl").unlink()
    assert "kept no scores" in told(tmp_path, replicates=10)[1]


def test_nothing_to_report_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    make_run(tmp_path / "half" / "run", finished=False)
    for arguments, expected in (
        (["none"], "no run in"),
        (["half"], "no finished run in"),
        (["gone"], "no folder"),
        (["half", "--replicates", "-1"], "replicates must be zero or more"),
        (["half", "--alpha", "2"], "alpha must be between 0 and 1"),
        (["half", "--margin", "-1"], "margin must be from 0 to below 1"),
    ):
        found = CliRunner().invoke(app, ["report", str(tmp_path / arguments[0]), *arguments[1:]])
        assert isinstance(found.exception, UserError)
        assert expected in str(found.exception)
    assert not list(tmp_path.rglob("report*"))


# ---------------------------------------------------------------------------------------- safe text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes += [name for name, _ in attrs]


def test_names_are_only_names_in_every_file(tmp_path: Path) -> None:
    names = [NASTY, '"><img src=x onerror=alert(1)>', "$\\frac{", "_hidden|`x`"]
    for method in ("a&b_%{<b>", "fedavg"):
        run = make_run(
            tmp_path / method[:1], method=method, scenario=NASTY, clients=names, images=40
        )
        for file in ("metrics.json", "experiment.toml", "predictions.safetensors"):
            content = (run / file).read_bytes().replace(b"Effusion", b"<i>sion>")
            (run / file).write_bytes(content)
    make_run(
        tmp_path / "c", method="alone", scenario=NASTY, clients=names, alone=(0.5, 0.6, 0.7, 0.8)
    )
    written(tmp_path, replicates=10)
    page = (tmp_path / "report.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.found.count("script") == 1
    assert not {"img", "i", "b", "iframe"} & set(tags.found)
    assert not [name for name in tags.attributes if name.startswith("on")]
    assert "<script" not in (tmp_path / "report.md").read_text()
    assert r"a\&b\_\%\{\textless{}b\textgreater{}" in (tmp_path / "tables.tex").read_text()
    for drawing in (tmp_path / "figures").glob("*.svg"):
        ElementTree.parse(drawing)
        assert "<script" not in drawing.read_text()


def test_code_that_a_file_names_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    make_run(
        tmp_path / "run",
        method="evil:method",
        scenario="evil:deal",
        settings={"data.name": "evil:data"},
    )
    sys.path.insert(0, str(tmp_path))
    try:
        found = CliRunner().invoke(
            app, ["report", str(tmp_path / "run"), "--out", str(tmp_path / "there")]
        )
    finally:
        sys.path.remove(str(tmp_path))
    assert found.exit_code == 0
    assert "evil" not in sys.modules
    assert (tmp_path / "there" / "report.html").is_file()


def test_the_page_is_one_file_that_asks_nothing_of_a_network(tmp_path: Path) -> None:
    for method in ("feddraw", "fedavg", "uniform"):
        make_run(tmp_path / method, method=method, images=60, rounds=4)
    page = written(tmp_path, replicates=20).page.read_text()
    assert len(page.encode()) < 3_000_000
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"|http-equiv', "", page)
    assert "default-src 'none'" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "<path" in page
    assert not re.search(
        r"<path[^>]*\.\d{3}|<text[^>]*font-family", page
    )  # nothing that a reader cannot see
    for name in re.findall(r"figures/([^)]+)\.svg", (tmp_path / "report.md").read_text()):
        assert (tmp_path / "figures" / f"{name}.svg").is_file()
        assert (tmp_path / "figures" / f"{name}.png").is_file()


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    make_run(tmp_path / "run", rounds=2)
    once = written(tmp_path).page.read_bytes()
    assert written(tmp_path).page.read_bytes() == once


def test_latex_marks_the_best_and_has_whole_tables(whole: WrittenReport) -> None:
    text = whole.tables.read_text()
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") > 3
    assert re.search(r"feddraw & \\textbf\{0\.82", text)


def test_a_star_needs_a_method_that_is_above_another() -> None:
    def starred(**values: float) -> list[str]:
        means = {method: MeanOverRepeats.of([value]) for method, value in values.items()}
        return [name for name, cell in column_cells(means, list(means)).items() if cell.best]

    assert starred(feddraw=0.8) == []
    assert starred(feddraw=0.8, fedavg=0.8) == []
    assert starred(feddraw=0.80001, fedavg=0.8, uniform=0.7) == []  # both are printed as 0.8000
    assert starred(feddraw=0.81, fedavg=0.8, uniform=float("nan")) == ["feddraw"]


def test_the_demo_ends_with_a_table_and_the_whole_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits_shown = []

    def carry_out(experiment: Experiment, folder: Path, *, show_splits: bool, **_: object) -> None:
        splits_shown.append(show_splits)
        method = str(experiment.section("method")[0])
        make_run(
            folder,
            method=method,
            auc={"feddraw": 0.8, "fedavg": 0.7, "uniform": 0.75}[method],
            rounds=2,
        )

    monkeypatch.setattr("feddraw.cli.run.run_and_show", carry_out)
    monkeypatch.setattr("feddraw.experiment.run_preparation.open_experiment_data", lambda *_: None)
    shown = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert shown.exit_code == 0, shown.exception
    assert re.search(r"feddraw +0\.8000\* +0\.7300\*", shown.output)
    assert re.search(r"uniform +0\.7500 +0\.6800", shown.output)
    assert (tmp_path / "demo" / "report.html").is_file()
    assert splits_shown == [True, False, False]  # the same images for all three


def test_notes_and_tags_of_runs_are_shown_and_make_no_other_method(tmp_path: Path) -> None:
    words = {"about.note": "lower rate after the <b>first</b> try", "about.tags": "pilot, skin"}
    make_run(tmp_path / "a", settings=words)
    make_run(tmp_path / "b", seed=1)
    report, page = told(tmp_path)
    assert report.methods == ["feddraw"]
    assert "lower rate after the &lt;b&gt;first&lt;/b&gt; try" in page
    assert "| pilot, skin |" in page


def test_validation_and_test_curves_are_apart_and_say_what_was_chosen_on_them(
    tmp_path: Path,
) -> None:
    for method in ("feddraw", "fedavg"):
        make_run(tmp_path / method, method=method)
    report, _ = told(tmp_path)
    galleries = [
        block for block in over_rounds.section(report, "CHM-2") if isinstance(block, Gallery)
    ]
    for gallery in galleries:
        splits = {"validation" in picture.words for picture in gallery.pictures}
        assert splits == {gallery.note.startswith("On validation images, on which thresholds")}


def test_one_finding_gets_a_table_and_no_heat_map_of_one_column(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a")
    settings = tomllib.loads((path / "experiment.toml").read_text())
    partition = settings["partition"]
    partition["findings"] = partition["findings"][:1]
    partition["positives"] = {c: counts[:1] for c, counts in partition["positives"].items()}
    (path / "experiment.toml").write_bytes(tomli_w.dumps(settings).encode())
    report, _ = told(tmp_path)
    gallery, table = client_sizes.section(report, "CHM-2")
    assert [picture.name for picture in gallery.pictures] == ["chm-2-sizes"]
    counts = partition["positives"]["C1"][0], partition["sizes"]["C1"]
    assert table.rows[0][2].text == f"{counts[0] / counts[1]:.1%}"
