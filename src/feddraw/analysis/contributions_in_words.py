"""Contributions over trainings, as tables, sentences and a JSON document say them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from feddraw.analysis.contributions import (
    Estimate,
    SiteContributions,
    TrainedContributions,
    alike_in_words,
    combine_trainings,
)
from feddraw.analysis.utility import POOLED
from feddraw.results.contribution_file import ESTIMATORS, RunContributions
from feddraw.system.file_writing import finite_or_none

Measured = Mapping[str, Sequence[RunContributions]]  # by estimator, one per training
# The estimator that a report and a page show where there are several: the first that there is.
IN_FOCUS = ("retrained", "shapley", "rounds")


def over_trainings(
    trainings: Sequence[RunContributions], group: str = POOLED
) -> SiteContributions | None:
    """One estimator's contributions on a group of patients, over the trainings that have it."""
    having = [each for each in trainings if group in each.groups]
    if not having:
        return None
    values = [
        TrainedContributions(
            values=each.of_group(group),
            pairs=None if each.pairs is None else each.pairs[:, :, each.groups.index(group)],
            tested=each.tested,
        )
        for each in having
    ]
    return combine_trainings(having[0].sites, values)


def estimator_in_focus(measured: Collection[str]) -> str:
    """Of the estimators that there are."""
    return next(name for name in IN_FOCUS if name in measured)


def utility_name(one: RunContributions) -> str:
    """AUC, or AUC of Edema."""
    return f"{one.label} of {one.finding}" if one.finding else one.label


def interval_text(estimate: Estimate) -> str:
    """+0.0123 (+0.0040 to +0.0206)"""
    if math.isnan(estimate.value):
        return "undefined"
    if math.isnan(estimate.low):
        return f"{estimate.value:+.4f}"
    return f"{estimate.value:+.4f} ({estimate.low:+.4f} to {estimate.high:+.4f})"


def ranks_text(contributions: SiteContributions, site: int) -> str:
    """The rank in every training: one, or from which to which."""
    ranks = contributions.ranks[:, site]
    lowest, highest = int(ranks.min()), int(ranks.max())
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"


def sentence_of_site(contributions: SiteContributions, site: int, metric: str) -> str:
    """What one site's contribution is, and whether chance explains it."""
    name = contributions.sites[site]
    estimate = contributions.estimates[site]
    if math.isnan(estimate.value):
        return f"{name}: {metric} is undefined."
    if math.isnan(estimate.low):
        return f"{name}: {estimate.value:+.4f} in {metric}; nothing says how uncertain it is."
    if estimate.low > 0:
        verdict = "the model is better with it"
    elif estimate.high < 0:
        verdict = "the model is better without it"
    else:
        verdict = "not distinguishable from nothing"
    return f"{name}: {interval_text(estimate)} in {metric}, {verdict}."


def sentences_on_certainty(contributions: SiteContributions) -> list[str]:
    """Which sites cannot be told apart, and how stable the ranks are."""
    sentences = alike_in_words(contributions)
    if contributions.trainings == 1:
        sentences.append(
            "One training: the intervals are over patients only, and nothing says how stable the"
            " ranks are: more trainings would."
        )
    else:
        sentences.append(
            f"{contributions.trainings} trainings: Kendall's W of the ranks is"
            f" {contributions.agreement:.2f} (1: the same in all)."
        )
    return sentences


def undefined_groups(trainings: Sequence[RunContributions]) -> list[str]:
    """Sites on whose own patients the metric has no value."""
    sites = []
    for group in trainings[0].groups:
        contributions = over_trainings(trainings, group)
        if contributions is None or all(math.isnan(e.value) for e in contributions.estimates):
            sites.append(group)
    return sites


def contributions_document(measured: Measured) -> dict[str, Any]:
    """All numbers, for a program."""
    first = next(iter(measured.values()))[0]
    return {
        "metric": first.metric,
        "finding": first.finding or None,
        "sites": list(first.sites),
        "estimators": {
            name: {
                "words": ESTIMATORS[name],
                "trainings": len(trainings),
                "models": sum(each.models for each in trainings),
                "seconds": sum(each.seconds for each in trainings),
                "groups": {
                    group: _group_document(contributions)
                    for group in trainings[0].groups
                    if (contributions := over_trainings(trainings, group)) is not None
                },
            }
            for name, trainings in measured.items()
        },
    }


def _group_document(contributions: SiteContributions) -> dict[str, Any]:
    sites = contributions.sites
    return {
        "kendall_w": finite_or_none(contributions.agreement),
        "sites": {
            site: {
                "contribution": finite_or_none(estimate.value),
                "low": finite_or_none(estimate.low),
                "high": finite_or_none(estimate.high),
                "error_patients": finite_or_none(estimate.over_patients),
                "error_trainings": finite_or_none(estimate.over_trainings),
                "error_permutations": finite_or_none(estimate.over_permutations),
                "ranks": contributions.ranks[:, number].tolist(),
            }
            for number, (site, estimate) in enumerate(
                zip(sites, contributions.estimates, strict=True)
            )
        },
        "not_distinguishable": [
            [sites[first], sites[second]]
            for first, second in contributions.holm_p
            if contributions.alike(first, second)
        ],
    }
