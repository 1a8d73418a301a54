"""What the paper's published numbers show and do not show, each computed from its own tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feddraw.analysis.statistics import holm, rank
from feddraw.data.scenarios.skew_measures import measure_sizes
from feddraw.paper.published_tables import (
    METRICS,
    OURS,
    PAPER_ALPHA,
    Comparisons,
    client_sizes,
    published_comparisons,
    published_results,
)
from feddraw.paper.readings_in_words import (
    EXTREME_ROUND,
    FOLLOWED_CLIENT,
    printed_extreme_weight,
    similarity_gap_needed,
)
from feddraw.paper.weight_claims import BOTH_SCENARIOS, Quantity, published_claims
from feddraw.text import join_names

QUANTITY_SKEWED = ("CHX-1", "CHX-2", "CHX-3", "CHX-4")
EQUAL_SIZES = ("CHX-7", "CHM-5")  # clients of equal size
# With clients of equal size one algorithm, but for small differences of similarity.
SAME_ALGORITHM = ("FedAvg", "FedNova", "FedDRAW")


@dataclass(frozen=True)
class Conclusion:
    """A sentence about the published numbers, and the numbers it stands on."""

    topic: str
    shows: bool  # what the numbers show, or what they leave open
    text: str
    numbers: Mapping[str, Any]


def conclusions(comparisons: Comparisons) -> list[Conclusion]:
    """What the published numbers show and what they leave open."""
    return [
        _methods_differ(comparisons),
        _significant_pairs(comparisons),
        _signed_ranks(comparisons),
        _against_fedavg(comparisons),
        _at_stricter_alpha(),
        _noise_floor(),
        _near_uniform(),
        _fednova(),
        _where_it_helps(),
        _gm_and_auc(),
        _severity(),
        _similarity_gaps(),
        _same_size(),
    ]


def _methods_differ(comparisons: Comparisons) -> Conclusion:
    friedman = {metric: comparisons[metric].friedman for metric in METRICS}
    first = {metric: comparisons[metric].first_places[OURS] for metric in METRICS}
    average = {metric: comparisons[metric].average_ranks[OURS] for metric in METRICS}
    text = (
        f"The eight methods differ: chi-square {friedman['auc'].statistic:.2f} (AUC, p ="
        f" {friedman['auc'].p:.1e}) and {friedman['gm'].statistic:.2f} (GM, p ="
        f" {friedman['gm'].p:.1e}). {OURS} has the best average rank on both, {average['auc']:.2f}"
        f" and {average['gm']:.2f}, and is first in {first['auc']} and {first['gm']} of"
        f" {len(comparisons['auc'].ranks)} scenarios."
    )
    numbers = {
        "chi_square": {metric: test.statistic for metric, test in friedman.items()},
        "p": {metric: test.p for metric, test in friedman.items()},
        "first_places": first,
        "average_rank": average,
    }
    return Conclusion("overall", True, text, numbers)


def _significant_pairs(comparisons: Comparisons) -> Conclusion:
    beaten = {metric: comparisons[metric].beaten_by(OURS) for metric in METRICS}
    difference = comparisons["auc"].difference
    text = (
        f"At the paper's alpha of {PAPER_ALPHA:.2f} {OURS} is significantly better than"
        f" {join_names(beaten['auc'])} on AUC, and than {join_names(beaten['gm'])} on GM (Nemenyi,"
        f" critical difference {difference:.2f})."
    )
    numbers = {"beaten": beaten, "critical_difference": difference}
    return Conclusion("significant pairs", True, text, numbers)


def _signed_ranks(comparisons: Comparisons) -> Conclusion:
    largest = {}
    for metric, comparison in comparisons.items():
        p_values = [
            comparison.pair(OURS, method).wilcoxon_p
            for method in comparison.table.methods
            if method != OURS
        ]
        largest[metric] = float(holm(p_values).max())
    of_all_pairs = comparisons["auc"].pair(OURS, "FedAvg").holm_p
    scenarios = comparisons["auc"].table.scenarios
    of_first_data_set = sum(name.startswith("CHX") for name in scenarios)
    text = (
        f"Wilcoxon's signed-rank test of {OURS} against each baseline, Holm-corrected for the"
        f" seven, gives p of at most {largest['auc']:.3f} (AUC) and {largest['gm']:.3f} (GM),"
        f" FedAvg included; corrected for all {len(comparisons['auc'].pairs)} pairs, FedAvg on AUC"
        f" is at {of_all_pairs:.3f}. The test takes the scenarios as independent:"
        f" {of_first_data_set} of them share one data set and"
        f" {len(scenarios) - of_first_data_set} the other, so the evidence is weaker than these"
        " p-values suggest."
    )
    numbers = {"largest_holm_p": largest, "fedavg_auc_of_all_pairs": of_all_pairs}
    return Conclusion("signed ranks", True, text, numbers)


def _against_fedavg(comparisons: Comparisons) -> Conclusion:
    gaps = {metric: comparisons[metric].pair(OURS, "FedAvg").rank_gap for metric in METRICS}
    p = {metric: comparisons[metric].pair(OURS, "FedAvg").nemenyi_p for metric in METRICS}
    undecided = {}
    for metric in METRICS:
        beaten = comparisons[metric].beaten_by(OURS)
        others = [method for method in comparisons[metric].average_ranks if method != OURS]
        undecided[metric] = [method for method in others if method not in beaten]
    text = (
        f"{OURS} against FedAvg is not significant at the paper's own threshold: average ranks"
        f" differ by {gaps['auc']:.2f} (AUC, p = {p['auc']:.2f}) and {gaps['gm']:.2f} (GM, p ="
        f" {p['gm']:.2f}), less than {comparisons['auc'].difference:.2f}. Not significantly"
        f" different from {OURS}: {join_names(undecided['auc'])} on AUC,"
        f" {join_names(undecided['gm'])} on GM."
    )
    numbers = {"rank_gap": gaps, "nemenyi_p": p, "not_told_apart": undecided}
    return Conclusion("against FedAvg", False, text, numbers)


def _at_stricter_alpha() -> Conclusion:
    strict = published_comparisons(alpha=0.05)
    beaten = {metric: strict[metric].beaten_by(OURS) for metric in METRICS}
    difference = strict["auc"].difference
    metrics = "both metrics"
    if beaten["auc"] != beaten["gm"]:
        metrics = f"AUC, and {join_names(beaten['gm'])} on GM"
    text = (
        f"At the more usual alpha of 0.05 the critical difference is {difference:.2f}, and {OURS}"
        f" is significantly better than {join_names(beaten['auc'])} only, on {metrics}. The paper"
        f" says openly that it uses {PAPER_ALPHA:.2f}."
    )
    numbers = {"critical_difference": difference, "beaten": beaten}
    return Conclusion("alpha 0.05", False, text, numbers)


def _noise_floor() -> Conclusion:
    spans = {
        metric: [_spread_of_same_algorithm(metric, scenario) for scenario in EQUAL_SIZES]
        for metric in METRICS
    }
    gains = {metric: np.abs(_published_gains(metric)) for metric in METRICS}
    within = {metric: int((gains[metric] <= max(spans[metric])).sum()) for metric in METRICS}
    text = (
        f"With clients of equal size FedAvg and FedNova are one algorithm and {OURS} nearly the"
        f" same, yet their means differ by up to {spans['auc'][0]:.2f} AUC and {spans['gm'][0]:.2f}"
        f" GM in {EQUAL_SIZES[0]}, and {spans['auc'][1]:.2f} and {spans['gm'][1]:.2f} in"
        f" {EQUAL_SIZES[1]}. Differences of this size can be run-to-run noise: {within['auc']}"
        f" (AUC) and {within['gm']} (GM) of the {len(gains['auc'])} differences between {OURS} and"
        " FedAvg are no larger, and the order of these three in the two scenarios says nothing"
        " about them."
    )
    return Conclusion("noise floor", False, text, {"spans": spans, "differences_within": within})


def _spread_of_same_algorithm(metric: str, scenario: str) -> float:
    values = published_results(metric).rows()[scenario]
    return float(np.ptp([values[name] for name in SAME_ALGORITHM]))


def _published_gains(metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """FedDRAW minus FedAvg, one number per scenario; to the tables' two digits."""
    table = published_results(metric)
    ours = table.values[:, table.methods.index(OURS)]
    fedavg = table.values[:, table.methods.index("FedAvg")]
    return np.round(ours - fedavg, 2)


def _near_uniform() -> Conclusion:
    sizes = client_sizes()
    weights = {name: printed_extreme_weight(name) for name in FOLLOWED_CLIENT}
    deviation = {name: abs(weight * len(sizes[name]) - 1) for name, weight in weights.items()}
    text = (
        f"The printed extremes of the weights, {weights['CHX-4']:.4f} in CHX-4 and"
        f" {weights['CHX-1']:.4f} in CHX-1, are {deviation['CHX-4']:.1%} and"
        f" {deviation['CHX-1']:.1%} away from equal weights. Plain uniform averaging is not among"
        " the baselines, so the tables cannot say how much of the gain comes from FedDRAW's signals"
        " and how much from not weighting by size."
    )
    numbers = {"extreme_weight": weights, "deviation_from_equal": deviation}
    return Conclusion("uniform averaging", False, text, numbers)


def _fednova() -> Conclusion:
    large, small = fednova_coefficients(client_sizes()["CHX-4"])[[0, -1]].tolist()
    printed = printed_extreme_weight("CHX-4")
    means = published_results("auc").rows()["CHX-4"]
    ours = means[OURS]
    theirs = means["FedNova"]
    std = published_results("auc", "std").rows()["CHX-4"]["FedNova"]
    text = (
        "With equal epochs FedNova is itself nearly uniform averaging: in CHX-4 its coefficients"
        f" are {large:.3f} (large client) and {small:.3f} (small), beside {(1 - printed) / 9:.4f}"
        f" and {printed:.4f} for {OURS} in round 6. Their AUC there is {theirs:.2f} ± {std:.2f} and"
        f" {ours:.2f}: run-to-run noise, or a FedNova of another kind."
    )
    numbers = {"coefficients": [large, small], "auc": [theirs, ours], "std": std}
    return Conclusion("FedNova", False, text, numbers)


def fednova_coefficients(sizes: Sequence[int], epochs: int = 2, batch: int = 64) -> Any:
    """What FedNova multiplies each client's move by: tau_eff p_i / tau_i."""
    share = np.array(sizes) / np.sum(sizes)
    steps = epochs * np.ceil(np.array(sizes) / batch)
    return (share @ steps) * share / steps


def _where_it_helps() -> Conclusion:
    rows = [published_results("gm").scenarios.index(name) for name in QUANTITY_SKEWED]
    gains = {metric: _published_gains(metric)[rows].tolist() for metric in METRICS}
    text = (
        "From CHX-1 to CHX-4, as small clients become fewer, the gain over FedAvg falls on AUC "
        f"({_decimals(gains['auc'])}), as the paper says; on GM it does not fall all the way "
        f"({_decimals(gains['gm'])})."
    )
    return Conclusion("where it helps", False, text, {"gains": gains})


def _gm_and_auc() -> Conclusion:
    table = published_results("auc")
    auc_gains = dict(zip(table.scenarios, _published_gains("auc"), strict=True))
    gm_gains = dict(zip(table.scenarios, _published_gains("gm"), strict=True))
    unlike = [name for name in table.scenarios if name not in EQUAL_SIZES]
    not_larger = []
    pairs = []
    for name in unlike:
        if gm_gains[name] <= auc_gains[name]:
            not_larger.append(name)
            pairs.append(f"{name} ({gm_gains[name]:.2f} GM, {auc_gains[name]:.2f} AUC)")
    chm3 = table.rows()["CHM-3"]
    ours = chm3[OURS]
    best = max(chm3.values())
    gm_ranks = rank(published_results("gm").values)[:, table.methods.index(OURS)]
    first = sum(bool(gm_ranks[table.scenarios.index(name)] == 1) for name in unlike)
    text = (
        "Gains in GM exceed those in AUC in CHX-1 to CHX-4, as the paper says, but not in"
        f" {join_names(pairs)}. {OURS} has the highest GM in {first} of the {len(unlike)} scenarios"
        f" with unlike clients, but not the highest AUC in CHM-3 ({ours:.2f}, the best {best:.2f})."
    )
    numbers = {"gm_gain_not_larger": not_larger, "gm_first": first, "chm3_auc": [ours, best]}
    return Conclusion("GM and AUC", False, text, numbers)


def _severity() -> Conclusion:
    sizes = {name: measure_sizes(clients) for name, clients in client_sizes().items()}
    ratios = [sizes[f"CHM-{i}"].size_ratio for i in (1, 2, 3)]
    ginis = [sizes[name].gini for name in QUANTITY_SKEWED]
    smallest = [sizes[name].smallest_share for name in QUANTITY_SKEWED]
    text = (
        "CHX-1 to CHX-4 are increasingly asymmetric in the smallest client's share"
        f" ({_decimals(smallest, 3)}), while the inequality of sizes falls (Gini"
        f" {_decimals(ginis, 3)}); CHM-3, called the most severe, has the smallest share but also"
        f" the smallest size ratio (CHM-1 to CHM-3: {_decimals(ratios)})."
    )
    numbers = {"gini": ginis, "smallest_share": smallest, "size_ratio_chm": ratios}
    return Conclusion("severity", False, text, numbers)


def _similarity_gaps() -> Conclusion:
    """A coordinate moves about the learning rate a step under Adam: how far can a head turn, and
    how far must it?
    """
    possible = {"CHX-4": _largest_turn(10_000), "CHX-1": _largest_turn(20_000)}
    needed = {}
    for scenario in FOLLOWED_CLIENT:
        weight = printed_extreme_weight(scenario)
        needed[scenario] = abs(similarity_gap_needed(scenario, EXTREME_ROUND, weight, "reported"))
    text = (
        f"The printed weights of round 6 need similarities that differ by {needed['CHX-4']:.4f}"
        f" (CHX-4) and {needed['CHX-1']:.4f} (CHX-1). With Adam at 1e-5 and a classifier"
        f" initialised as usual, one round can turn it by about {possible['CHX-4']:.4f} and"
        f" {possible['CHX-1']:.4f} at most (1 - cosine, every step in one direction): the stated"
        " training and the printed weights do not fit together without a setting that is not"
        " reported."
    )
    return Conclusion("similarity gaps", False, text, {"needed": needed, "possible": possible})


def _largest_turn(images: int, epochs: int = 2, batch: int = 64, rate: float = 1e-5) -> float:
    """The largest 1 - cosine of a 1024 → 5 head in one round, if every coordinate moves by the rate
    in every step.
    """
    parameters = 5 * 1024 + 5
    inputs = 1024
    moved = epochs * math.ceil(images / batch) * rate * math.sqrt(parameters)
    norm = math.sqrt(parameters / (3 * inputs))  # of uniform numbers within ± 1 / sqrt(inputs)
    return 1 - math.sqrt(1 - (moved / norm) ** 2)


def _same_size() -> Conclusion:
    spread = {
        claim.scenario: claim.number
        for claim in published_claims()
        if claim.quantity is Quantity.SPREAD and claim.scenario != BOTH_SCENARIOS
    }
    text = (
        f"Clients of equal size are separated by {spread['CHX-4']:.6f} (CHX-4) and"
        f" {spread['CHX-1']:.6f} (CHX-1) at most: of the order of 1e-3 in the first, where the text"
        " says 1e-4."
    )
    return Conclusion("same-size clients", False, text, {"spread": spread})


def _decimals(values: Sequence[float], digits: int = 2) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)
