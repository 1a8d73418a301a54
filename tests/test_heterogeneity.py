"""`feddraw heterogeneity`: Q, distances, p and weights of sites that are alike and of sites that
are not.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from feddraw.analysis.explain_weights import explain_run_weights
from feddraw.analysis.forest_plot import forest_figure
from feddraw.analysis.site_heterogeneity import (
    BatchProducts,
    GroupHeterogeneity,
    Heterogeneity,
    SiteDistance,
    compare_sites,
    compare_sites_by_group,
    distance_intervals,
    rho_interval,
    share_of_equal_divisions,
    site_distances_in_ledger,
    site_weights_by_rule,
    verdict_on,
)
from feddraw.analysis.weights_document import explanation_document
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.cli import app
from feddraw.core import Measurement
from feddraw.errors import UserError
from feddraw.experiment.heterogeneity import (
    HeterogeneityOptions,
    measure_heterogeneity,
    parameter_groups,
)
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import run
from feddraw.methods.random_effects import (
    EffectSums,
    distances_by_variance,
    estimate_effects,
    random_effects,
)
from feddraw.report import ReportSettings, write_report
from feddraw.results.recorded_run import read_run
from small import small
from tiny import initial, same, train

QUICK = HeterogeneityOptions(Measurement(8, 8), permutations=99, replicates=100)
SKEW = {"scenario": "dirichlet", "scenario.clients": 3, "scenario.alpha": 0.2}


def batches_of(counts, means, d=20, m=8, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.concatenate(
        [
            mean + rng.normal(size=(count, d)) / np.sqrt(m * d)
            for count, mean in zip(counts, means, strict=True)
        ]
    )
    return rows, BatchProducts(tuple(counts), m, {"all": rows @ rows.T})


# ------------------------------------------------------------------------------------------ numbers


def test_scalar_products_give_what_the_gradients_give():
    counts = (5, 3, 9)
    rows, batches = batches_of(counts, (0, 0.1, 0))
    parts = np.split(rows, np.cumsum(counts)[:-1])
    means = np.stack([part.mean(axis=0) for part in parts])
    variances = [8 * ((part - part.mean(axis=0)) ** 2).sum() / (len(part) - 1) for part in parts]
    images, products, spreads = batches.numbers("all")
    assert images.tolist() == [40, 24, 72]
    assert np.allclose(products, means @ means.T)
    assert spreads == pytest.approx(variances)
    found = estimate_effects(EffectSums.of(images, means @ means.T, np.array(variances)))
    assert compare_sites(batches, "all", 0, 0).q == pytest.approx(found.q)
    assert distance_intervals(batches, "all", 0, 0)[:, 0] == pytest.approx(
        distances_by_variance(images, products, spreads)
    )


def test_p_is_even_where_sites_are_alike_and_small_where_they_are_not():
    alike = [
        compare_sites(batches_of((8, 8, 8), (0, 0, 0), seed=s)[1], "all", 39, s).p
        for s in range(40)
    ]
    assert 0.3 < np.mean(alike) < 0.7
    assert compare_sites(batches_of((8, 8, 8), (0, 0, 0.2))[1], "all", 99, 0).p == 0.01


def test_the_p_of_several_groups_are_corrected_for_their_number():
    """Two groups that differ as much as 99 permutations can show, and one that does not."""
    _, differing = batches_of((8, 8, 8), (0, 0, 0.2))
    _, alike = batches_of((8, 8, 8), (0, 0, 0), seed=1)
    products = {
        "first": differing.products["all"],
        "second": differing.products["all"],
        "third": alike.products["all"],
    }
    batches = replace(differing, products=products)
    first, second, third = compare_sites_by_group(batches, products, 99, 0)
    assert (first.p, second.p) == (0.01, 0.01)
    assert first.holm_p == second.holm_p == pytest.approx(0.03)  # 3 × 0.01
    assert third.holm_p == third.p > 0.05
    assert [group.holm_p for group in compare_sites_by_group(batches, products, 0, 0)] == [None] * 3


def test_intervals_cover_the_distance():
    """Nominally 95 %; near zero they are too wide, because a squared distance is not normal
    there.
    """
    covered = []
    for seed in range(40):
        _, batches = batches_of((16, 16, 16), (0, 0, 0.1), seed=seed)
        low, high = distance_intervals(batches, "all", 100, seed)[2, 1:]
        covered.append(low <= 20 * 0.1**2 <= high)
    assert np.mean(covered) >= 0.85


def test_the_interval_of_rho_covers_it():
    """Means 0, 0 and 0.1 in each of 20 components, variance 1: rho is (2/3) 0.2 / 2."""
    covered = []
    for seed in range(40):
        _, batches = batches_of((16, 16, 16), (0, 0, 0.1), seed=seed)
        low, high = rho_interval(batches, "all", 100, seed)
        covered.append(low <= 1 / 15 <= high)
        assert high - low < 1 / 15
    assert np.mean(covered) >= 0.85
    assert rho_interval(batches, "all", 0, 0) is None


def measured_with(rho, interval, p=None, images=(100, 300)):
    sites = tuple(SiteDistance(f"C{i}", n, min(n, 64)) for i, n in enumerate(images, 1))
    overall = GroupHeterogeneity("classifier", 9.0, 1.0, 0.9, rho, p)
    low, high = interval
    return Heterogeneity(0, overall, sites, rho_low=low, rho_high=high)


@pytest.mark.parametrize(
    ("rho", "interval", "p", "difference", "choose"),
    [
        (0.1, (0.05, 0.2), 0.01, "sites differ", "uniform"),  # ρ n̄ = 20, from 10 to 40
        (0.01, (0.001, 0.02), 0.01, "sites differ", "random_effects"),  # from 0.2 to 4
        (0.0, (0.0, 0.004), 0.4, "no difference shown", "either, or fedavg"),  # up to 0.8
        (0.01, (0.0, 0.1), 0.2, "no difference shown", "random_effects"),  # up to 20
        (0.1, (0.05, 0.2), None, "sites differ", "uniform"),
        (0.1, (None, None), None, "not tested", "random_effects"),
    ],
)
def test_a_verdict_names_a_row_of_the_page(rho, interval, p, difference, choose):
    verdict = verdict_on(measured_with(rho, interval, p), 16)
    assert verdict.rho_n == pytest.approx(200 * rho)
    assert verdict.difference == difference
    assert verdict.choose.startswith(choose)
    page = (Path(__file__).parents[1] / "docs" / "which-weights.md").read_text()
    assert f"\n| {verdict.row}" in page


def test_a_verdict_says_that_p_decides_whatever_the_interval():
    """An interval that reaches down to zero beside a small p is no contradiction."""
    sentences = verdict_on(measured_with(0.01, (0.0, 0.035), 0.02), 16).in_sentences()
    assert sentences[0] == "Sites differ: p = 0.02 by permutation, at most 0.05, and this decides."
    assert sentences[1].endswith("95 % interval of its size 0 to 7.")


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ((2, 2), 1 / 3),  # 6 divisions of four batches, two of them the same pairs
        ((2, 3), 1 / 10),
        ((2, 2, 2), 1 / 15),
        ((3, 3, 2), 1 / 280),  # 560 divisions, and two sites to exchange
    ],
)
def test_with_few_batches_p_cannot_be_small(counts, share):
    assert share_of_equal_divisions(counts) == pytest.approx(share)
    _, batches = batches_of(counts, range(len(counts)))
    found = compare_sites(batches, "all", 199, 0)
    assert found.least_p == pytest.approx(max(share, 1 / 200))
    measured = replace(measured_with(0.1, (0.05, 0.2)), overall=found)
    verdict = verdict_on(measured, 16)
    if share > 0.05:
        assert (verdict.difference, verdict.choose) == ("too few batches", "random_effects")
        assert "nothing can be shown" in verdict.in_sentences()[0]
    else:
        assert verdict.difference == "sites differ"


def test_two_batches_of_a_site_give_no_interval_of_its_distance():
    _, batches = batches_of((2, 8, 8), (0, 0, 0.1))
    intervals = distance_intervals(batches, "all", 50, 0)
    assert np.isnan(intervals[:, 1:]).all(axis=1).tolist() == [True, False, False]
    assert np.isfinite(intervals[:, 0]).all()


def test_a_finding_is_compared_among_the_sites_that_label_it():
    """The second of three sites has no gradient there: the numbers are those of the other two."""
    rows, _ = batches_of((4, 3, 5), (0, 0, 0.1))
    of_two = rows[[0, 1, 2, 3, 7, 8, 9, 10, 11]]
    products = {"all": rows @ rows.T, "Mass": of_two @ of_two.T}
    batches = BatchProducts((4, 3, 5), 8, products, {"Mass": (4, 5)})
    alone = BatchProducts((4, 5), 8, {"Mass": of_two @ of_two.T})
    assert compare_sites(batches, "Mass", 39, 0) == compare_sites(alone, "Mass", 39, 0)
    assert compare_sites(batches, "Mass", 0, 0).sites == 2
    assert compare_sites(batches, "all", 0, 0).sites == 3


def test_a_verdict_says_why_a_site_was_not_measured():
    measured = measured_with(0.1, (0.05, 0.2), 0.01, images=(20, 300))
    sites = (replace(measured.sites[0], measured=0), measured.sites[1])
    words = " ".join(verdict_on(replace(measured, sites=sites), 16).in_sentences())
    assert "C1 was not measured: two batches need 32 images, and it has 20" in words
    assert "C2 was not measured" not in words


def test_weights_of_each_rule():
    found = site_weights_by_rule([100, 300], 1 / 100, rounds=5)
    assert found["fedavg"] == [0.25, 0.75]
    assert found["random_effects"] == pytest.approx([0.4, 0.6])
    assert found["uniform"] == [0.5, 0.5]
    assert 0.25 < found["feddraw"][0] < 0.5


def test_groups_cover_all_parameters_once():
    layers, findings = parameter_groups(initial().layout, ("a", "b"))
    assert list(layers) == ["all", "first third", "middle third", "last third", "classifier"]
    parts = np.concatenate([places for name, places in layers.items() if name != "all"])
    assert sorted(parts.tolist()) == layers["all"].tolist() == list(range(len(initial().params)))
    assert sorted(np.concatenate(list(findings.values())).tolist()) == layers["classifier"].tolist()


# -------------------------------------------------------------------------------------- experiments


@pytest.fixture(scope="module")
def found():
    """Sites dealt at random, and sites with label skew."""
    return {
        name: list(measure_heterogeneity(small(**changes), QUICK))
        for name, changes in (("alike", {}), ("skewed", SKEW))
    }


def test_sites_dealt_at_random_are_alike_and_label_skew_is_seen(found):
    (alike,), (skewed,) = found["alike"], found["skewed"]
    assert alike.overall.q < 3 * alike.overall.expected
    assert alike.overall.p > 0.05
    assert skewed.overall.q > 3 * skewed.overall.expected
    assert skewed.overall.p == 0.01
    assert {group.name for group in skewed.layers} >= {"all", "classifier"}
    assert len(skewed.findings) == 5
    assert all(site.low < site.distance < site.high for site in skewed.sites if site.measured)


def with_unlabelled(experiment, findings_of_clients):
    """The data of an experiment, with the labels that some of its clients do not have."""
    prepared = prepare(experiment)
    labels = prepared.dataset.labels
    known = np.ones(labels.values.shape, bool)
    for client, findings in findings_of_clients.items():
        known[np.ix_(prepared.trainer.shards[client], findings)] = False
    values = np.where(known, labels.values, 0).astype(labels.values.dtype)
    return replace(prepared.dataset, labels=replace(labels, values=values, known=known))


def test_sites_that_label_different_findings_are_alike_if_they_are(
    found, monkeypatch: pytest.MonkeyPatch
):
    """Dealt at random: before, the classifier's Q of sites that do not label a finding was some ten
    times what is expected.
    """
    dataset = with_unlabelled(small(), {0: [0, 1], 2: [2]})
    monkeypatch.setattr(
        "feddraw.experiment.heterogeneity.prepare",
        lambda experiment, **options: prepare(experiment, dataset=dataset),
    )
    (masked,) = measure_heterogeneity(small(), QUICK)
    assert masked.overall.q < 3 * masked.overall.expected
    assert masked.overall.p > 0.05
    assert all(finding.q < 4 * finding.expected for finding in masked.findings)
    assert [finding.sites for finding in masked.findings] == [2, 2, 2, 3, 3]
    assert [layer.name for layer in masked.layers] == ["classifier"]
    with pytest.raises(UserError, match="layer classifier"):
        list(measure_heterogeneity(small(), replace(QUICK, layer="all")))


def test_a_warm_up_measures_again_and_is_fedavg():
    first, second = measure_heterogeneity(
        small(), HeterogeneityOptions(Measurement(4, 8), rounds=1, permutations=0, replicates=0)
    )
    assert (first.round, second.round) == (0, 1)
    assert first.overall.q != second.overall.q
    assert second.overall.p is None


def test_too_few_images_are_named():
    with pytest.raises(UserError, match="lower --batch-size"):
        list(measure_heterogeneity(small(), HeterogeneityOptions(Measurement(4, 200))))
    with pytest.raises(UserError, match="layer must be"):
        list(measure_heterogeneity(small(), HeterogeneityOptions(Measurement(), layer="body")))


def test_the_forest_plot_is_drawn(found):
    figure = forest_figure([*found["alike"], *found["skewed"]])
    assert len(figure.axes) == 3
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["C1", "C2", "C3"]


# -------------------------------------------------------------------------------------- the command


def invoke(*words):
    return CliRunner().invoke(app, ["heterogeneity", *map(str, words)])


def test_the_command_writes_a_document_and_a_figure_over_no_earlier_one_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = [
        "data.train=160",
        "data.validation=40",
        "data.test=40",
        "model.growth=8",
        "scenario.clients=3",
    ]
    words = ["--scenario", "iid", "--size", 28, *(w for s in settings for w in ("--set", s))]
    words += ["--batch-size", 8, "--permutations", 19, "--replicates", 20]
    monkeypatch.chdir(tmp_path)
    result = invoke(*words)
    folder = tmp_path / "runs" / "heterogeneity-iid-0"
    assert result.exit_code == 0, result.output
    assert "is expected if the sites are alike" in result.output
    assert "No difference shown: p = " in result.output
    assert "docs/which-weights.md, row" in result.output
    said = " ".join(result.output.split())
    assert "p (Holm): corrected for the 10 tests of its table" in said
    assert "The verdict rests on one test alone: classifier, initial model." in said
    document = json.loads((folder / "heterogeneity.json").read_text())
    assert [site["site"] for site in document["measured"][0]["sites"]] == ["C1", "C2", "C3"]
    assert (folder / "heterogeneity.png").stat().st_size > 10_000
    assert "<svg" in (folder / "heterogeneity.svg").read_text()
    assert "in place of" not in result.output
    second = invoke(*words)
    assert "in place of" not in second.output
    assert (tmp_path / "runs" / "heterogeneity-iid-0-2" / "heterogeneity.json").is_file()
    again = invoke(*words, "--out", folder)
    assert "in place of an earlier measurement" in again.output


def test_of_a_run_that_measured_the_ledger_tells(tmp_path: Path):
    list(
        run(
            small(**{"method": "random_effects", "method.batch_size": 8, "rounds": 3}),
            tmp_path / "run",
        )
    )
    result = invoke(tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert [one["round"] for one in document["measured"]] == [0, 1, 2]
    read = read_run(tmp_path / "run")
    measured = site_distances_in_ledger(read.ledger, 3)
    weights = [site.weights["random_effects"] for site in measured[0].sites]
    assert weights == pytest.approx(read.ledger["weight"][0].tolist())
    words = list(weights_in_sentences(explain_run_weights(read)))
    assert any("is expected if the sites are alike" in sentence for sentence in words)
    assert (
        explanation_document(explain_run_weights(read))["by_round"][0]["q"] == measured[0].overall.q
    )
    written = write_report(
        [tmp_path / "run"], tmp_path / "report", settings=ReportSettings(replicates=0)
    )
    page = written.page.read_text()
    assert "Cochran" in page
    assert "Squared distance of each client" in page


def test_a_run_that_has_not_measured_is_named(tmp_path: Path):
    list(run(small(rounds=1), tmp_path / "run"))
    assert "run it with the method random_effects" in str(invoke(tmp_path / "run").exception)


def test_a_flower_federation_is_read_from_the_strategys_history_and_folder(tmp_path: Path):
    from test_flower import trained  # needs Flower

    method = random_effects(batch_size=4, batches=3, every=2, rho=0.0)
    strategy = trained(method, tmp_path / "memory", rounds=3, folder=tmp_path / "run")
    *_, last = train(method, 3)
    assert same(strategy.model, last.next_model)
    assert [repr(entry) for entry in strategy.history[-1].ledger] == [
        repr(entry) for entry in last.ledger
    ]
    assert [np.isfinite(done.ledger[0].q) for done in strategy.history] == [True, False, True]
    result = invoke(tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "North" in result.output
