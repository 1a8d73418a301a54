"""The validation AUC of each site by round: in the log, in the report and in watch."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment
from feddraw.report.blocks import Gallery
from feddraw.report.sections import sites_over_rounds
from feddraw.report.settings import ReportSettings
from feddraw.report.statistics import compute_report
from feddraw.results.predictions import read_predictions
from feddraw.results.recorded_run import read_run
from feddraw.results.run_collection import collect_runs
from feddraw.watch.followed_folder import FollowedFolder
from feddraw.watch.run_documents import run_detail
from run_folders import log_line, make_run

SITES = ("Basel", "Bern", "Chur")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table with three sites, of which Chur has no positive validation image."""
    place = tmp_path_factory.mktemp("sites")
    draw = np.random.default_rng(0)
    rows = ["image,split,site,Nodule"]
    for number in range(180):
        site = SITES[number % 3]
        split = ("train", "train", "validation", "test")[number % 4]
        positive = int(draw.random() < 0.4)
        if (site, split) == ("Chur", "validation"):
            positive = 0
        pixels = draw.normal(110 + 20 * positive, 30, (28, 28)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
        rows.append(f"{number}.png,{split},{site},{positive}")
    (place / "table.csv").write_text("\n".join(rows) + "\n")
    experiment = Experiment().with_settings(
        {
            "data": str(place / "table.csv"),
            "data.size": 28,
            "scenario": "by_site",
            "model.growth": 8,
            "rounds": 3,
            "training.epochs": 1,
            "engine": "serial",
            "test_every_round": True,
        }
    )
    run(experiment, place / "runs" / "a")
    return place


def test_the_last_rounds_are_those_of_scikit_learn_and_undefined_is_left_out(folder: Path) -> None:
    place = folder / "runs" / "a"
    last = read_run(place).rounds[-1]
    assert set(last.validation.by_site) == {"Basel", "Bern"}
    table = [line.split(",") for line in (folder / "table.csv").read_text().splitlines()[1:]]
    for split, areas in (("validation", last.validation.by_site), ("test", last.test.by_site)):
        scored = read_predictions(place, split, "last")
        assert scored is not None
        sites = np.array([site for _, of_split, site, _ in table if of_split == split])
        for site, area in areas.items():
            here = sites == site
            expected = roc_auc_score(scored.truth[here, 0], scored.scores[here, 0])
            assert area == pytest.approx(expected, abs=1e-9)


def test_every_round_has_them_and_the_report_draws_them(folder: Path) -> None:
    recorded = read_run(folder / "runs" / "a")
    curves = recorded.site_curves()
    assert set(curves) == {"Basel", "Bern"}
    assert all(len(curve) == 3 and np.isfinite(curve).all() for curve in curves.values())
    report = compute_report(
        collect_runs([folder / "runs"]), settings=ReportSettings(replicates=0), command=""
    )
    [gallery] = [
        block
        for block in sites_over_rounds.section(report, "by_site")
        if isinstance(block, Gallery)
    ]
    [picture] = gallery.pictures
    assert f"Basel {curves['Basel'][-1]:.3f}" in picture.words
    assert picture.figure.axes[0].get_lines()[0].get_ydata().tolist() == curves["Basel"]
    assert gallery.note.startswith("On validation images")


def test_watch_shows_them_in_the_order_of_its_clients(folder: Path) -> None:
    followed = FollowedFolder(folder / "runs" / "a")
    followed.look()
    (one,) = followed.runs.values()
    detail = run_detail(one)
    curves = read_run(folder / "runs" / "a").site_curves()
    for client, row in zip(detail["clients"], detail["site_auc"], strict=True):
        assert row == curves.get(client, [None, None, None])


def with_evaluations(path: Path, *, secure: bool) -> Path:
    """A federation whose sites evaluate; under secure sums they say nothing of their own."""
    make_run(path, rounds=2)
    lines = []
    for round in range(2):
        said = [
            {"client": client, "status": "evaluated"}
            | ({} if secure else {"metrics": {"validation-auc": 0.7 + 0.1 * round}})
            for client in ("C1", "C2")
        ]
        lines.append(json.dumps(log_line(round, evaluations=said)))
    (path / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    return path


def test_what_the_sites_of_a_federation_say_is_drawn(tmp_path: Path) -> None:
    recorded = read_run(with_evaluations(tmp_path / "a", secure=False))
    assert recorded.site_curves() == {
        site: [pytest.approx(0.7), pytest.approx(0.8)] for site in ("C1", "C2")
    }
    assert list(sites_over_rounds.site_pictures([recorded], "fedavg", "x"))


def test_under_secure_sums_nothing_is_known_of_a_site(tmp_path: Path) -> None:
    recorded = read_run(with_evaluations(tmp_path / "a", secure=True))
    assert recorded.site_curves() == {}
    assert not list(sites_over_rounds.site_pictures([recorded], "fedavg", "x"))


def test_an_impossible_area_that_a_site_sends_is_not_drawn(tmp_path: Path) -> None:
    path = with_evaluations(tmp_path / "a", secure=False)
    log = (path / "rounds.jsonl").read_text()
    (path / "rounds.jsonl").write_text(log.replace("0.7,", "7.0,").replace("0.7}", "7.0}"))
    first = [curve[0] for curve in read_run(path).site_curves().values()]
    assert all(map(math.isnan, first))
