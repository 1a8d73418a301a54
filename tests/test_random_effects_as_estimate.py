"""Random effects as an estimate: beside statsmodels' meta-analysis, the bias of the cut at zero in
closed form, and the optimal weights of Donahue and Kleinberg (arXiv 2010.00753).
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from statsmodels.stats.meta_analysis import combine_effects

from benchmarks.random_effects import (
    NATURAL,
    Measured,
    bias_of_cut,
    draw_sites,
    effective_parameters,
    excess_error,
    measured_images,
    other_labels,
    other_patients,
    power_row,
)
from benchmarks.random_effects import weights_by_rho as weights_of_many
from feddraw.methods.random_effects import EffectSums, estimate_effects, weights_by_rho

IMAGES = np.array([256.0, 128, 64, 32, 16])
SIZES = np.array([1000.0, 400, 250, 100, 50])


def one_number_a_site(seed: int, apart: float) -> Measured:
    """Sites with one variance of 2, as meta-analysis has it."""
    rng = np.random.default_rng(seed)
    spread = np.sqrt(apart + 2 / IMAGES)
    means = spread[:, None] * rng.standard_normal((1, len(IMAGES), 1))
    return Measured(means, np.full((1, len(IMAGES)), 2.0), IMAGES)


@pytest.mark.filterwarnings("ignore:invalid value encountered in sqrt")
@pytest.mark.parametrize("seed", range(6))
def test_for_one_number_rho_is_that_of_dersimonian_and_laird(seed):
    measured = one_number_a_site(seed, apart=0.02)
    effects = measured.means[0, :, 0]
    theirs = combine_effects(effects, 2 / IMAGES, method_re="chi2", use_t=False)
    gradients = measured.means[0]
    sums = EffectSums.of(IMAGES, gradients @ gradients.T, measured.variances[0])
    ours = estimate_effects(sums)
    assert ours.q == pytest.approx(theirs.q)
    assert ours.rho * ours.variance == pytest.approx(max(0.0, theirs.tau2), abs=1e-12)
    assert measured.excess()[0] == pytest.approx(ours.excess)


@pytest.mark.filterwarnings("ignore:invalid value encountered in sqrt")
@pytest.mark.parametrize("seed", range(6))
def test_paule_and_mandel_is_that_of_statsmodels(seed):
    measured = one_number_a_site(seed, apart=0.2)
    effects = measured.means[0, :, 0]
    theirs = combine_effects(
        effects, 2 / IMAGES, method_re="iterated", use_t=False, atol=1e-6, maxiter=500
    )
    assert 2 * measured.paule_mandel()[0] == pytest.approx(max(0.0, theirs.tau2), rel=1e-4)


def test_the_simulated_estimates_are_those_of_the_rule():
    measured = draw_sites(NATURAL, 0.003, 7, 5, np.random.default_rng(0))
    for number, excess in enumerate(measured.excess()):
        gradients = measured.means[number]
        sums = EffectSums.of(measured.images, gradients @ gradients.T, measured.variances[number])
        assert excess == pytest.approx(estimate_effects(sums).excess)
    several = weights_of_many(NATURAL, np.array([0.003]))
    assert several[0] == pytest.approx(weights_by_rho(NATURAL, 0.003))


@pytest.mark.parametrize("scaled", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(("sites", "parameters"), [(4, 1), (8, 5)])
def test_the_bias_of_the_cut_has_a_closed_form(sites, parameters, scaled):
    """For equal numbers of measured images and a variance that is known."""
    images = np.full(sites, 256.0)
    rho = scaled / 256
    rng = np.random.default_rng(1)
    spread = np.sqrt((rho + 1 / images) / parameters)
    means = spread[:, None] * rng.standard_normal((40_000, sites, parameters))
    excess = Measured(means, np.ones((40_000, sites)), images).excess()
    error = excess.std() / np.sqrt(len(excess))
    assert excess.mean() == pytest.approx(rho, abs=4 * error)
    expected = bias_of_cut(256, parameters * (sites - 1), rho)
    assert np.maximum(0, excess).mean() - rho == pytest.approx(expected, abs=4 * error)


def test_between_alike_sites_the_bias_is_about_one_by_the_root_of_pi_and_the_freedom():
    for freedom in (3, 35, 210):
        about = 1 / np.sqrt(np.pi * freedom) / 256
        assert bias_of_cut(256, freedom, rho=0.0) == pytest.approx(about, rel=0.1)


def test_measuring_costs_less_than_the_worse_of_the_two_rules_it_is_between():
    """On sites as large as the natural ones, whether they are alike or far apart."""
    rng = np.random.default_rng(2)
    for scaled in (0.0, 16.0):
        rho = scaled / NATURAL.mean()
        rhos = np.maximum(0, draw_sites(NATURAL, rho, 10, 2000, rng).excess())
        measured = excess_error(weights_of_many(NATURAL, rhos), NATURAL, rho)
        by_size = excess_error(weights_of_many(NATURAL, np.zeros(1)), NATURAL, rho)
        equal = excess_error(np.full((1, 8), 1 / 8), NATURAL, rho)
        assert measured < max(by_size, equal) / 10
        assert measured < 0.03


def test_no_more_is_measured_than_whole_batches():
    assert measured_images(np.array([1109.0, 114, 31])).tolist() == [256, 112, 16]


def test_counts_detect_prevalence_and_gradients_at_the_fit_do_not_see_what_says_nothing():
    counts, _, _, at_fit, _ = power_row(other_labels, 1.2, 5, np.random.default_rng(3))
    assert (counts, at_fit) == ("100%", "100%")
    counts, before, scaled_before, _, scaled_at_fit = power_row(
        other_patients, 1.2, 5, np.random.default_rng(4)
    )
    assert before == "100%"
    assert counts in ("0%", "20%")
    assert float(scaled_before) > 50
    assert float(scaled_at_fit) < 1


def test_effective_parameters_are_those_of_the_covariance_of_gradients():
    rng = np.random.default_rng(6)
    residuals = rng.standard_normal((3000, 2)) * [1.0, 0.5]
    inputs = np.column_stack([rng.standard_normal((3000, 3)), np.ones(3000)])
    gradients = (residuals[:, :, None] * inputs[:, None]).reshape(3000, -1)
    values = np.linalg.eigvalsh(np.cov(gradients.T))
    expected = values.sum() ** 2 / (values**2).sum()
    assert effective_parameters(residuals, inputs) == pytest.approx(expected, rel=0.01)


# -------------------------------------------------------------------------- Donahue and Kleinberg

NOISE = 1.7  # mu_e: the variance of one image, the mean over sites
SPREAD = 0.004  # sigma²: the variance of the sites' means
RHO = SPREAD / NOISE


def error_of_site(site: int, shares, sizes=SIZES) -> float:
    """Expected squared error of a weighted mean of all sites' means, about that of one site."""
    shares = np.asarray(shares)
    others = np.delete(shares, site)
    from_noise = NOISE * (shares**2 / sizes).sum()
    return float(from_noise + SPREAD * ((others**2).sum() + others.sum() ** 2))


def best_shares_of_site(site: int, sizes=SIZES):
    """Their optimal fine-grained federation."""
    variances = SPREAD + NOISE / sizes
    of_others = np.delete(1 / variances, site).sum()
    shares = (variances[site] - SPREAD) / variances / (1 + variances[site] * of_others)
    shares[site] = (1 + SPREAD * of_others) / (1 + variances[site] * of_others)
    return shares


def minimised(error) -> np.ndarray:
    """Shares that sum to one and have the least error, by a general method."""
    start = np.full(len(SIZES), 1 / len(SIZES))
    one = {"type": "eq", "fun": lambda shares: shares.sum() - 1}
    found = minimize(
        lambda shares: 1e4 * error(shares),
        start,
        method="SLSQP",
        constraints=one,
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return np.asarray(found.x)


def test_their_error_is_that_of_simulated_sites():
    rng = np.random.default_rng(5)
    truth = np.sqrt(SPREAD) * rng.standard_normal((200_000, len(SIZES)))
    local = truth + np.sqrt(NOISE / SIZES) * rng.standard_normal(truth.shape)
    for shares in (SIZES / SIZES.sum(), best_shares_of_site(3)):
        squared = (local @ shares - truth[:, 3]) ** 2
        error = squared.std() / np.sqrt(len(squared))
        assert error_of_site(3, shares) == pytest.approx(squared.mean(), abs=4 * error)


@pytest.mark.parametrize("site", range(len(SIZES)))
def test_their_best_shares_are_the_sites_own_part_and_our_weights_for_the_rest(site):
    theirs = best_shares_of_site(site)
    assert theirs == pytest.approx(minimised(lambda shares: error_of_site(site, shares)), abs=1e-3)
    own = SPREAD / (SPREAD + NOISE / SIZES[site])
    ours = weights_by_rho(SIZES, RHO)
    assert theirs == pytest.approx(own * np.eye(len(SIZES))[site] + (1 - own) * ours)


def test_for_a_site_without_images_their_best_shares_are_our_weights():
    sizes = np.append(SIZES, 1e-9)
    theirs = best_shares_of_site(len(SIZES), sizes)
    assert theirs[:-1] == pytest.approx(weights_by_rho(SIZES, RHO))
    assert theirs[-1] == pytest.approx(0, abs=1e-9)


def test_one_model_for_all_has_the_least_mean_error_over_sites_with_our_weights():
    def error_over_sites(shares):
        return np.mean([error_of_site(site, shares) for site in range(len(SIZES))])

    ours = weights_by_rho(SIZES, RHO)
    assert minimised(error_over_sites) == pytest.approx(ours, abs=1e-3)
    for other in (SIZES / SIZES.sum(), np.full(len(SIZES), 1 / len(SIZES))):
        assert error_over_sites(ours) < error_over_sites(other)


def test_one_model_for_all_has_the_least_mean_error_over_images_with_weights_by_size():
    """However much the sites differ: which weights are best depends on who is asked."""

    def error_over_images(shares):
        errors = [error_of_site(site, shares) for site in range(len(SIZES))]
        return SIZES @ errors / SIZES.sum()

    by_size = SIZES / SIZES.sum()
    assert minimised(error_over_images) == pytest.approx(by_size, abs=1e-3)
    assert error_over_images(by_size) < error_over_images(weights_by_rho(SIZES, RHO))
