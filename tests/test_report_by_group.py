"""The measures of a report by site and subgroup: every number is computed a second time."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import recomputed_measures
from feddraw.data.datasets.phantom import phantom
from feddraw.data.finding_counts import findings_per_split
from feddraw.data.own_tables import TableSettings, read_own_tables
from feddraw.data.subgroups import (
    NOT_STATED,
    SubgroupColumn,
    Subgrouping,
    read_subgroup_columns,
)
from feddraw.errors import UserError
from feddraw.report import markdown
from feddraw.report.section_order import compose_report
from feddraw.report.settings import ReportSettings
from feddraw.report.statistics import compute_report
from feddraw.results.run_collection import collect_runs
from run_folders import FINDINGS, make_run

GROUPS = {"site": ["East", "North"], "sex": ["F", "M"], "scanner": ["Acme"]}
IMAGES = 150


def told(folder: Path) -> str:
    report = compute_report(
        collect_runs([folder]),
        settings=ReportSettings(replicates=0, decision_range=(0.1, 0.4)),
        command="",
    )
    text = markdown.render_markdown(compose_report(report, "A title"), "figures")
    return re.sub(r"\\(.)", r"\1", text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Patients with one to three images; East has no positive image of the first finding, and some
    labels and sexes are not known.
    """
    rng = np.random.default_rng(3)
    truth = (rng.random((IMAGES, len(FINDINGS))) < (0.3, 0.4, 0.1)).astype(np.int8)
    site = rng.integers(0, 2, IMAGES)
    truth[(site == 0), 0] = 0
    truth[rng.random(truth.shape) < 0.05] = -1
    scores = 1 / (1 + np.exp(1 - 1.3 * truth - rng.standard_normal(truth.shape)))
    places = (site, rng.integers(-1, 2, IMAGES), np.zeros(IMAGES))
    tensors = {
        "test.scores": scores.astype(np.float32),
        "test.truth": truth,
        "test.patients": rng.integers(0, 70, IMAGES),
    } | {f"test.group.{number}": np.int16(of) for number, of in enumerate(places)}
    groups = [{"name": name, "values": values} for name, values in GROUPS.items()]
    notes = {"classes": list(FINDINGS), "test": "images", "groups": groups}
    folder = make_run(tmp_path_factory.mktemp("runs") / "a")
    save_file(tensors, folder / "predictions.safetensors", {"feddraw": json.dumps(notes)})
    return folder


def test_every_number_by_site_and_subgroup_is_recomputed_from_the_predictions(run: Path) -> None:
    text = told(run.parent)
    for grouping, value, finding, images in recomputed_measures.parts_of_run(run):
        if grouping == "scanner":
            continue
        numbers = recomputed_measures.measures(images)
        positives = int(images.labels.sum())
        counts = f"{positives:,} / {len(images.labels) - positives:,}"
        for columns in (
            ("sensitivity", "specificity", "PPV", "NPV"),
            (
                "AUC",
                "PR-AUC",
                "Brier score",
                "calibration slope",
                "calibration intercept",
                "calibration error",
            ),
        ):
            row = _row(text, f"{finding} | {grouping} | ", columns, value)
            assert row[:2] == [counts, f"{positives / len(images.labels):.1%}"]
            for name, cell in zip(columns, row[2:], strict=True):
                _check_cell(cell, numbers[name], positives, len(images.labels))
        limits = np.linspace(0.1, 0.4, 4)
        row = _row(text, f"{finding} | {grouping} | ", [f"at {t:.1%}" for t in limits], value)
        for limit, cell in zip(limits, row[2:], strict=True):
            number = recomputed_measures.net_benefit(images, limit)
            _check_cell(cell, number, positives, len(images.labels))


def _row(text: str, names: str, columns: object, value: str) -> list[str]:
    """The cells of a row behind its names, in the table that has these columns."""
    finding, grouping, _ = names.split(" | ")
    joined = " | ".join(columns)  # type: ignore[arg-type]
    header = f"| finding, {grouping} | positive / negative | prevalence | {joined} |"
    assert text.count(header) == 1, header
    table = text.partition(header)[2].partition("\n\n")[0]
    (row,) = (line for line in table.splitlines() if line.startswith(f"| {finding}, {value} |"))
    return [cell.strip() for cell in row.strip("| ").split(" | ")][1:]


def _check_cell(cell: str, number: recomputed_measures.Number, positives: int, images: int) -> None:
    if math.isnan(number[0]):
        assert cell.startswith("undefined ("), cell
        return
    shown = [float(part) for part in re.findall(r"-?\d+\.\d+", cell)]
    expected = [each for each in number if math.isfinite(each)]
    assert shown == pytest.approx(expected, abs=6e-4), cell
    assert ("too few" in cell) == (min(positives, images - positives) < 10)


def test_parts_that_cannot_be_judged_have_a_line_each_and_the_report_is_written(run: Path) -> None:
    text = told(run.parent)
    assert "- site East has no positive image of Atelectasis: what needs one is undefined." in text
    assert "- scanner: all test images are Acme, so there is nothing to compare." in text
    assert re.search(r"\| Atelectasis, East \| 0 / \d+ \| 0\.0% \| undefined \(0 positive", text)
    assert "| finding, scanner |" not in text
    assert "### By site and sex in" in text


def test_a_file_whose_subgroups_do_not_fit_is_as_good_as_none(run: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    scores = np.full((4, len(FINDINGS)), 0.5, np.float32)
    truth = np.array([[0, 1, 0], [1, 0, 1]] * 2, np.int8)
    tensors = {"test.scores": scores, "test.truth": truth, "test.group.0": np.int16([0, 1, 2, 0])}
    notes = {
        "classes": list(FINDINGS),
        "test": "x",
        "groups": [{"name": "sex", "values": ["F", "M"]}],
    }
    save_file(tensors, folder / "predictions.safetensors", {"feddraw": json.dumps(notes)})
    assert "| finding, sex |" not in told(tmp_path)


# --------------------------------------------------------------------------------- reading a table


def test_a_table_tells_subgroups_by_value_by_band_and_by_usual_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "path,Patient Gender,Patient Age,View,Edema\n"
        "a.png,F,058Y,PA,1\nb.png,m,017Y,lat,0\nc.png,,006M,AP,1\nd.png,M,unknown,pa,0\n"
    )
    columns = read_subgroup_columns("sex; age; View: PA, AP")
    table = read_own_tables([tmp_path / "t.csv"], TableSettings(subgroups=columns))
    sex, age, view = table.labels.subgroups
    assert table.labels.findings == ("Edema",)
    assert (sex.values, sex.of_image.tolist()) == (("F", "M"), [0, 1, NOT_STATED, 1])
    assert age.values == ("under 18", "18 to under 40", "40 to under 65", "65 and over")
    assert age.of_image.tolist() == [2, 0, 0, NOT_STATED]
    assert (view.values, view.of_image.tolist()) == (("PA", "AP", "other"), [0, 2, 1, 0])


def test_a_column_of_labels_that_tells_subgroups_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,male,Edema\na.png,1,1\nb.png,0,0\n")
    settings = TableSettings(subgroups=read_subgroup_columns("male"))
    assert read_own_tables([tmp_path / "t.csv"], settings).labels.findings == ("Edema",)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("sex; sex", "names sex twice"),
        ("age: 40; Age: 41", "names age twice, also as Age"),
        ("age: 40; PatientAge: 41", "names age twice, also as PatientAge"),
        ("Patient Age: 41; age: 40", "names Patient Age twice, also as age"),
        ("age: 65, 40", "must begin at ascending numbers"),
        (": F", "names no column"),
        ("sex: F, Other", "leave out 'other' among the values of sex"),
        ("site", "cannot name site"),
        ("Client", "cannot name Client"),
        (3, "names columns, such as"),
        ("weight", "has no column weight"),
        ("path", "21 different entries, too many for subgroups"),
    ],
)
def test_a_setting_that_cannot_be_read_is_one_line(setting: str, said: str, tmp_path: Path) -> None:
    rows = "".join(f"{number}.png,{number % 2}\n" for number in range(21))
    (tmp_path / "t.csv").write_text(f"path,Edema\n{rows}")

    def read() -> None:
        columns = read_subgroup_columns(setting)
        read_own_tables([tmp_path / "t.csv"], TableSettings(subgroups=columns))

    with pytest.raises(UserError, match=re.escape(said)) as error:
        read()
    assert "\n" not in str(error.value)


def test_agreed_subgroups_are_known_without_a_table() -> None:
    assert SubgroupColumn("sex", values=("F", "M")).labels == ("F", "M", "other")
    assert read_subgroup_columns("age: 40, 65")[0].labels == (
        "under 40",
        "40 to under 65",
        "65 and over",
    )
    assert not read_subgroup_columns("sex")[0].agreed


def test_participants_are_counted_by_site_and_split() -> None:
    data = phantom(size=28, train=12, validation=4, test=6, seed=0)
    sites = np.array(["North", "South"])[np.arange(22) % 2]
    patients = np.array([f"P{number // 4}" for number in range(22)])
    object.__setattr__(data.labels, "sites", sites)
    object.__setattr__(data.labels, "patients", patients)
    train = findings_per_split(data)["train"]["by_site"]
    assert {site: (part["images"], part["patients"]) for site, part in train.items()} == {
        "North": (6, 3),
        "South": (6, 3),
    }
    expected = data.labels.values[:12:2].sum(axis=0)
    assert train["North"]["positives"] == expected.tolist()
    assert train["North"]["negatives"] == (6 - expected).tolist()


def test_sites_and_subgroups_travel_with_some_of_the_images() -> None:
    labels = phantom(size=28, train=4, validation=1, test=1, seed=0).labels
    sex = Subgrouping("sex", ("F", "M"), np.array([0, 1, 1, 0, -1, 0], np.int16))
    object.__setattr__(labels, "subgroups", (sex,))
    taken = labels.take(np.array([1, 4]))
    assert taken.subgroups[0].of_image.tolist() == [1, -1]
