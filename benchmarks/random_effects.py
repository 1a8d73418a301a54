"""What random effects measure and miss, by simulation: the cut at zero and what it costs, and what
gradients and label counts detect.

    python -m benchmarks.random_effects cut   --samples 20000 --seed 1
    python -m benchmarks.random_effects power --samples 300   --seed 1
    python -m benchmarks.random_effects sites LABELS.csv      --seed 1

`cut`: sites whose true mean gradients vary by rho (in units of the variance of one image's
gradient) are measured, rho is estimated, and sites are weighted by the estimate. Prints, for each
true rho n̄, the mean of the estimate, how often it is cut, how far weights are from those by the
true rho, and by how much the mean squared error of the weighted mean is above the least.

`power`: images with one finding and ten features at sites that differ in one of four ways. Prints
how often the sites are found to differ, by Pearson's test of their label counts
(studies/label_gate.py) and by a permutation test of Q, before training and at the model that fits
all sites together.

`sites`: of the natural sites of benchmarks/work_study.py, whose LABELS.csv it takes: Pearson's
statistic of their label counts, and the effective number of parameters of the classifier's
gradient on frozen features, before training and after 300 steps on all images.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from feddraw.system.markdown import markdown_table
from studies.label_gate import pearson_statistic

Floats = NDArray[np.float64]

# Training images of the eight natural sites of studies/work-weights-similarity.md: 65 % of each.
NATURAL = np.array([1109, 708, 449, 348, 265, 135, 118, 114], float)
ONE_LARGE = np.array([1857, 464, 464, 464], float)  # as many images, 4:1:1:1
BATCH, BATCHES = 16, 16  # as the method measures unless told otherwise


def measured_images(sizes: Floats) -> Floats:
    """Of each site: whole batches, at most sixteen."""
    return np.minimum(sizes // BATCH, BATCHES) * BATCH


# ------------------------------------------------------------------------------------ the estimates


@dataclass(frozen=True, eq=False)
class Measured:
    """What the sites of many federations send; federations × sites × parameters, and × sites."""

    means: Floats  # of gradients
    variances: Floats  # of one image's gradient
    images: Floats  # by site

    @property
    def variance(self) -> Floats:
        """S², of each federation."""
        return np.asarray(self.variances @ self.images / self.images.sum())

    def q(self) -> Floats:
        centre = np.einsum("k,rkd->rd", self.images, self.means) / self.images.sum()
        squares = ((self.means - centre[:, None]) ** 2).sum(axis=2)
        return np.asarray(squares @ self.images / self.variance)

    def excess(self) -> Floats:
        """rho by DerSimonian and Laird before the cut at zero, as `estimate_effects` has it."""
        expected = self.variances.sum(axis=1) / self.variance - 1
        total = self.images.sum()
        beside_one = total - self.images @ self.images / total
        return np.asarray((self.q() - expected) / beside_one)

    def paule_mandel(self, steps: int = 60) -> Floats:
        """The rho at which the weighted sum of squares is its expectation, K - 1, where all sites
        have one variance; zero where it is smaller at zero already.
        """
        differences = self.means[:, :, None] - self.means[:, None]
        apart = (differences**2).sum(axis=3) / self.variance[:, None, None]

        def weighted_squares(rho: Floats) -> Floats:
            weights = 1 / (rho[:, None] + 1 / self.images)
            pairs = np.einsum("ri,rj,rij->r", weights, weights, apart) / 2
            return np.asarray(pairs / weights.sum(axis=1))

        freedom = len(self.images) - 1
        low = np.zeros(len(self.means))
        high = np.full(len(self.means), 1.0)
        while (weighted_squares(high) > freedom).any():
            high *= 4
        above_zero = weighted_squares(low) > freedom
        for _ in range(steps):
            middle = (low + high) / 2
            too_small = weighted_squares(middle) > freedom
            low = np.where(too_small, middle, low)
            high = np.where(too_small, high, middle)
        return np.where(above_zero, (low + high) / 2, 0.0)


def bias_of_cut(images: float, freedom: float, rho: float) -> float:
    """Mean of the cut estimate minus rho, for sites of which equally many images are measured.

    `freedom` is the number of sites minus one times the effective number of parameters. Q by its
    expectation is then X (1 + rho N) with `freedom` X chi-square distributed, so that the estimate
    is max(0, X (1 + rho N) - 1) / N.
    """
    cut_below = 1 / (1 + rho * images)
    below = stats.chi2.cdf(freedom * cut_below, freedom)
    part_of_mean = stats.chi2.cdf(freedom * cut_below, freedom + 2)
    return float((1 + rho * images) * (cut_below * below - part_of_mean) / images)


# ------------------------------------------------------------------------------- the cut at zero


def draw_sites(
    sizes: Floats, rho: float, parameters: int, samples: int, rng: np.random.Generator
) -> Measured:
    """Gradients whose parameters are independent and vary equally; one image's have variance 1 in
    all.
    """
    images = measured_images(sizes)
    spread = np.sqrt((rho + 1 / images) / parameters)
    means = spread[:, None] * rng.standard_normal((samples, len(sizes), parameters))
    freedom = parameters * (images / BATCH - 1)
    variances = rng.chisquare(freedom, (samples, len(sizes))) / freedom
    return Measured(means, variances, images)


def weights_by_rho(sizes: Floats, rho: Floats) -> Floats:
    """Of each federation, by its rho."""
    weights = 1 / (rho[:, None] + 1 / sizes)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def excess_error(weights: Floats, sizes: Floats, rho: float) -> float:
    """Mean squared error of the weighted mean of the sites' gradients about that of all sites there
    could be, by the least that any weights have, minus one.
    """
    variance = rho + 1 / sizes
    least = 1 / (1 / variance).sum()
    return max(0.0, float((weights**2 @ variance).mean() / least - 1))  # not -0 by rounding


def cut_table(
    sizes: Floats, parameters: int, samples: int, rng: np.random.Generator
) -> list[list[str]]:
    rows = []
    mean_size = sizes.mean()
    for scaled in (0.0, 0.25, 1.0, 4.0, 16.0):
        rho = scaled / mean_size
        measured = draw_sites(sizes, rho, parameters, samples, rng)
        excess = measured.excess()
        cut = np.maximum(0, excess)
        by_cut = weights_by_rho(sizes, cut)
        best = weights_by_rho(sizes, np.array([rho]))
        errors = {
            "by size": weights_by_rho(sizes, np.zeros(1)),
            "equal": np.full((1, len(sizes)), 1 / len(sizes)),
            "measured": by_cut,
            "Paule–Mandel": weights_by_rho(sizes, measured.paule_mandel()),
        }
        moved = np.abs(by_cut - best).sum(axis=1) / 2
        rows.append(
            [
                f"{scaled:g}",
                f"{excess.mean() * mean_size:+.2f}",
                f"{cut.mean() * mean_size:.2f}",
                f"{(excess <= 0).mean():.0%}",
                f"{moved.mean():.1%}",
                *(f"{100 * excess_error(weights, sizes, rho):.1f}" for weights in errors.values()),
            ]
        )
    return rows


CUT_COLUMNS = (
    "true ρ n̄",
    "mean, uncut",
    "mean, cut",
    "cut",
    "weight misplaced",
    "error: by size",
    "equal",
    "measured",
    "Paule–Mandel",
)


def cut_at_zero(samples: int, seed: int) -> str:
    parts = []
    named = {"eight natural sites": NATURAL, "one large site, three small": ONE_LARGE}
    for number, (name, sizes) in enumerate(named.items()):
        for parameters in (1, 10, 30):
            rng = np.random.default_rng([seed, number, parameters])
            rows = cut_table(sizes, parameters, samples, rng)
            table = "\n".join(markdown_table(CUT_COLUMNS, rows))
            parts.append(f"{name}, {parameters} effective parameters\n\n{table}")
    return "\n\n".join(parts)


# ---------------------------------------------------------------------------- power of two measures

FEATURES = 10
PREVALENCE = 0.1
SEPARATION = 1.5  # of the first feature's means with and without the finding
PERMUTATIONS = 199
LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class Images:
    """Of one federation, site after site."""

    features: Floats
    labels: Floats
    sites: NDArray[np.intp]


def draw_images(prevalences: Floats, rng: np.random.Generator) -> Images:
    """At the natural sites, each with its prevalence."""
    sites = np.repeat(np.arange(len(NATURAL)), NATURAL.astype(int))
    labels = (rng.random(len(sites)) < prevalences[sites]).astype(float)
    features = rng.standard_normal((len(sites), FEATURES))
    features[:, 0] += SEPARATION * labels
    return Images(features, labels, sites)


def other_labels(strength: float, rng: np.random.Generator) -> Images:
    """The prevalence differs, images with and without the finding look alike everywhere."""
    logits = special.logit(PREVALENCE) + strength * rng.standard_normal(len(NATURAL))
    return draw_images(special.expit(logits), rng)


def other_scanners(strength: float, rng: np.random.Generator) -> Images:
    """All features are shifted, with the finding as without."""
    images = draw_images(np.full(len(NATURAL), PREVALENCE), rng)
    shift = strength * rng.standard_normal((len(NATURAL), FEATURES))
    return Images(images.features + shift[images.sites], images.labels, images.sites)


def other_patients(strength: float, rng: np.random.Generator) -> Images:
    """Features that say nothing of the finding are shifted, as age may be."""
    images = draw_images(np.full(len(NATURAL), PREVALENCE), rng)
    shift = strength * rng.standard_normal((len(NATURAL), FEATURES))
    shift[:, 0] = 0
    return Images(images.features + shift[images.sites], images.labels, images.sites)


def wrong_labels(strength: float, rng: np.random.Generator) -> Images:
    """Up to this share of a site's labels is drawn anew, as often positive as before."""
    images = draw_images(np.full(len(NATURAL), PREVALENCE), rng)
    share = strength * rng.random(len(NATURAL))
    redrawn = rng.random(len(images.labels)) < share[images.sites]
    drawn = (rng.random(len(images.labels)) < PREVALENCE).astype(float)
    return Images(images.features, np.where(redrawn, drawn, images.labels), images.sites)


Differing = Callable[[float, np.random.Generator], Images]
DIFFERENCES: Mapping[str, tuple[Differing, tuple[float, ...]]] = {
    "none": (other_labels, (0.0,)),
    "prevalence (SD of its logit)": (other_labels, (0.15, 0.3, 0.6, 1.2)),
    "scanner (SD of the shift of features)": (other_scanners, (0.15, 0.3, 0.6, 1.2)),
    "patients (the same, of what says nothing)": (other_patients, (0.15, 0.3, 0.6, 1.2)),
    "wrong labels (largest share)": (wrong_labels, (0.25, 0.5, 0.75, 1.0)),
}


def label_counts_differ(images: Images) -> bool:
    """By Pearson's test, of all images."""
    positives = np.bincount(images.sites, images.labels)
    squares = (positives**2 / NATURAL).sum(keepdims=True)
    total = positives.sum(keepdims=True)
    statistic, freedom = pearson_statistic(NATURAL.sum(), total, squares, len(NATURAL))
    return bool(stats.chi2.sf(statistic, freedom) < LEVEL)


def batch_gradients(images: Images, probabilities: Floats) -> tuple[Floats, Floats]:
    """Mean gradients of the batches that are measured, and the images of each site's."""
    residuals = probabilities - images.labels
    inputs = np.column_stack([images.features, np.ones(len(residuals))])
    gradients = residuals[:, None] * inputs
    measured = measured_images(NATURAL)
    starts = np.cumsum(NATURAL.astype(int)) - NATURAL.astype(int)
    rows = np.concatenate(
        [
            start + np.arange(count)
            for start, count in zip(starts, measured.astype(int), strict=True)
        ]
    )
    return gradients[rows].reshape(-1, BATCH, inputs.shape[1]).mean(axis=1), measured


def measured_of(batches: Floats, images: Floats) -> Measured:
    """From batches of many federations, site after site: federations × batches × parameters."""
    counts = (images / BATCH).astype(int)
    starts = np.cumsum(counts) - counts
    means = np.add.reduceat(batches, starts, axis=1) / counts[:, None]
    squares = np.add.reduceat((batches**2).sum(axis=2), starts, axis=1)
    within = squares - counts * (means**2).sum(axis=2)
    return Measured(means, BATCH * within / (counts - 1), images)


def gradients_differ(
    images: Images, probabilities: Floats, rng: np.random.Generator
) -> tuple[bool, float]:
    """By a permutation of the batches, and rho n̄."""
    batches, measured = batch_gradients(images, probabilities)
    orders = np.argsort(rng.random((PERMUTATIONS, len(batches))), axis=1)
    all_batches = np.concatenate([batches[None], batches[orders]])
    effects = measured_of(all_batches, measured)
    q = effects.q()
    p = float((q >= q[0]).mean())
    return p <= LEVEL, max(0.0, float(effects.excess()[0])) * float(NATURAL.mean())


def power_row(
    differing: Differing, strength: float, samples: int, rng: np.random.Generator
) -> list[str]:
    by_counts = 0
    before = []
    fitted = []
    for _ in range(samples):
        images = differing(strength, rng)
        by_counts += label_counts_differ(images)
        before.append(gradients_differ(images, np.full(len(images.labels), 0.5), rng))
        fit = special.expit(
            special.logit(PREVALENCE) + SEPARATION * images.features[:, 0] - SEPARATION**2 / 2
        )
        fitted.append(gradients_differ(images, fit, rng))
    cells = [f"{by_counts / samples:.0%}"]
    for found in (before, fitted):
        differs, scaled = np.array(found, float).T
        cells += [f"{differs.mean():.0%}", f"{np.median(scaled):.2f}"]
    return cells


def power(samples: int, seed: int) -> str:
    rows = []
    for number, (name, (differing, strengths)) in enumerate(DIFFERENCES.items()):
        for strength in strengths:
            rng = np.random.default_rng([seed, number, round(100 * strength)])
            rows.append([name, f"{strength:g}", *power_row(differing, strength, samples, rng)])
    columns = ("what differs", "by", "label counts", "Q before", "ρ n̄", "Q at the fit", "ρ n̄")
    lines = "\n".join(markdown_table(columns, rows))
    error = math.sqrt(0.25 / samples)
    return f"{lines}\n\nStandard error of a share at most {error:.1%}; ρ n̄ is the median."


# ------------------------------------------------------------------------------- the natural sites


def effective_parameters(residuals: Floats, inputs: Floats) -> float:
    """(sum of λ)² / sum of λ² of the covariance λ of the images' gradients, each the product of an
    image's residuals and inputs.
    """
    products = (residuals @ residuals.T) * (inputs @ inputs.T)
    means = products.mean(axis=0)
    centred = products - means - means[:, None] + means.mean()
    count = len(centred)
    trace = np.trace(centred) / (count - 1)
    of_pairs = (centred**2).sum() - (np.diag(centred) ** 2).sum()
    return float(trace**2 * count * (count - 1) / of_pairs)


def natural_sites(file: Path, seed: int) -> str:
    import torch

    from benchmarks.work_study import HEAD, LEAST_SITE, open_features

    table = open_features(HEAD, file)
    labels = table.labels
    assert labels.sites is not None
    names, counts = np.unique(labels.sites, return_counts=True)
    values = labels.values.astype(float)
    named = [name for name, count in zip(names, counts, strict=True) if count >= LEAST_SITE]
    rows = [np.flatnonzero(labels.sites == name) for name in named]
    sizes = np.array([len(of_site) for of_site in rows], float)
    positives = np.stack([values[of_site].sum(axis=0) for of_site in rows])
    squares = (positives**2 / sizes[:, None]).sum(axis=0)
    statistic, freedom = pearson_statistic(sizes.sum(), positives.sum(axis=0), squares, len(sizes))
    torch.manual_seed(seed)
    head = torch.nn.Linear(table.features.shape[1], values.shape[1])
    features = torch.from_numpy(table.features)
    targets = torch.from_numpy(values.astype(np.float32))
    loss = torch.nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(head.parameters(), 1e-3)
    chosen = torch.randperm(len(targets))[:1500]
    inputs = np.column_stack([table.features[chosen], np.ones(len(chosen))]).astype(float)
    found = []
    for steps in (0, 300):
        for _ in range(steps):
            batch = torch.randint(0, len(targets), (64,))
            optimizer.zero_grad()
            loss(head(features[batch]), targets[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            residuals = torch.sigmoid(head(features[chosen])) - targets[chosen]
        found.append(effective_parameters(residuals.numpy().astype(float), inputs))
    return (
        f"label counts: Pearson's statistic {statistic:.0f} with {freedom} degrees of freedom\n"
        f"effective parameters: {found[0]:.0f} before training, {found[1]:.0f} after 300 steps"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["cut", "power", "sites"])
    parser.add_argument("labels", nargs="?", type=Path, help="labels.csv of the sample, for sites")
    parser.add_argument("--samples", type=int, default=0, help="20,000 and 300 unless told")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.what == "cut":
        print(cut_at_zero(options.samples or 20_000, options.seed))
    elif options.what == "sites":
        if options.labels is None:
            parser.error("give labels.csv of the unpacked sample")
        print(natural_sites(options.labels, options.seed))
    else:
        print(power(options.samples or 300, options.seed))


if __name__ == "__main__":
    main()
