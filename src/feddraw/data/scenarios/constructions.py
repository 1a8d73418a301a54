"""What makes the paper's small clients informative: which images they hold, never what is done to
an image.

Where the paper prints positives (CHX-5, CHX-6, CHM-4) they are dealt by quota. For the others it
gives sizes only, so there is a choice, which docs/data.md lists with what it does to the outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import Labels
from feddraw.data.scenarios.client_sizes import apportion, rounded_half_up, scaled_count
from feddraw.data.scenarios.image_deck import Deck
from feddraw.data.scenarios.paper_scenarios import RARE_FINDINGS, PaperScenario
from feddraw.data.scenarios.partition import Rows
from feddraw.errors import UserError, not_negative

RARE_PREVALENCE = 0.5  # at CheXpert's small clients, which are far smaller than the data


@dataclass(frozen=True, eq=False)
class ConstructionStratum:
    """A property that images have or lack, with the words for it."""

    subject: str
    marked: NDArray[np.bool_]  # per image of the deck
    having: str = "positives"
    lacking: str = "negatives"


def construct_at_random(deck: Deck, plan: PaperScenario) -> list[Rows]:
    """Every client a random sample."""
    return deck.deal(plan.sizes)


def construct_by_quota(
    deck: Deck, plan: PaperScenario, *, large_positives: int | None
) -> list[Rows]:
    """The printed positives of the enriched class, `large_positives` (before scaling) at each large
    client.

    None stands for a natural draw: large clients get the prevalence of what the small client
    leaves.
    """
    stratum = _stratum_of_findings(deck, plan, (plan.enriched or "",))
    quotas = np.full(len(plan.sizes), scaled_count(plan.small_positives, plan.scale))
    if large_positives is None:
        return _with_natural_large(deck, plan, stratum, quotas)
    if not isinstance(large_positives, int) or large_positives < 0:
        raise UserError(
            f"large_positives must be a whole number of zero or more, not {large_positives!r}"
        )
    quotas[list(plan.large)] = scaled_count(large_positives, plan.scale)
    return _construction_quotas(deck, plan, stratum, quotas)


def construct_by_concentration(deck: Deck, plan: PaperScenario, *, share: float) -> list[Rows]:
    """Small clients hold `share` of the federation's images with a rare class.

    ChestMNIST's federations are the whole data, at its natural prevalence. CheXpert's are a part of
    it: half of a small client's images have a rare class, and large clients are depleted of them to
    keep the share.
    """
    if _construction_fraction("share", share) == 0:
        raise UserError(
            "share must be above 0: with construction 'tilt' and tilt 0 small clients are a random"
            " sample"
        )
    stratum = _stratum_of_findings(deck, plan, RARE_FINDINGS[plan.dataset])
    small, large = ([plan.sizes[client] for client in group] for group in (plan.small, plan.large))
    quotas = np.zeros(len(plan.sizes), dtype=int)
    if plan.dataset == "chexpert":
        few = [
            scaled_count(plan.printed[client], plan.scale * RARE_PREVALENCE)
            for client in plan.small
        ]
        many = rounded_half_up(sum(few) * (1 - share) / share)
    else:
        everything = rounded_half_up(stratum.marked.sum() * plan.total / len(deck))
        here = rounded_half_up(everything * share)
        few, many = apportion(here, small), everything - here
    quotas[list(plan.small)] = few
    quotas[list(plan.large)] = apportion(many, large)
    return _construction_quotas(deck, plan, stratum, quotas)


def construct_enriched(deck: Deck, plan: PaperScenario, *, prevalence: float) -> list[Rows]:
    """So many of a small client's images have a rare class; large clients are a natural draw of
    what is left.
    """
    stratum = _stratum_of_findings(deck, plan, RARE_FINDINGS[plan.dataset])
    fraction = _construction_fraction("prevalence", prevalence)
    quotas = np.array([scaled_count(size, plan.scale * fraction) for size in plan.printed])
    return _with_natural_large(deck, plan, stratum, quotas)


def construct_with_findings(
    deck: Deck, plan: PaperScenario, *, with_finding: float = 1.0
) -> list[Rows]:
    """All of a small client's images, or this fraction, have a finding; large clients are a natural
    draw.
    """
    found = deck.labels.values[deck.rows].max(axis=1) > 0
    stratum = ConstructionStratum("findings", found, "images with one", "images without one")
    fraction = _construction_fraction("with_finding", with_finding)
    return _with_natural_large(
        deck, plan, stratum, np.array([scaled_count(size, fraction) for size in plan.sizes])
    )


def _with_natural_large(
    deck: Deck, plan: PaperScenario, stratum: ConstructionStratum, quotas: NDArray[np.intp]
) -> list[Rows]:
    """The quotas of the small clients; each large one gets the prevalence of what they leave.

    Where all images are dealt, shares that are rounded one by one may not add up: then they are
    rounded together.
    """
    small = list(plan.small)
    left = int(stratum.marked.sum() - quotas[small].sum())
    prevalence = max(left, 0) / max(len(deck) - sum(plan.sizes[client] for client in small), 1)
    sizes = [plan.sizes[client] for client in plan.large]
    each = [rounded_half_up(size * prevalence) for size in sizes]
    unmarked = (
        len(deck)
        - int(stratum.marked.sum())
        - sum(plan.sizes[client] - int(quotas[client]) for client in small)
    )
    if not sum(sizes) - unmarked <= sum(each) <= left:
        each = apportion(rounded_half_up(sum(sizes) * prevalence), sizes)
    quotas[list(plan.large)] = each
    return _construction_quotas(deck, plan, stratum, quotas)


def construct_by_tilt(deck: Deck, plan: PaperScenario, *, tilt: float = 1.0) -> list[Rows]:
    """Of a random federation, small clients get images drawn with odds that grow with their
    self-information.

    An image's (or a patient's mean) information is that of its labels under the class frequencies;
    Gumbel noise is added to `tilt` times the standardised information, and the largest sums win.
    Tilt 0 is a random split.
    """
    not_negative("tilt", tilt)
    federation = deck.draw(plan.total)
    units = federation.units
    images = np.bincount(units)
    information = (
        np.bincount(units, construction_information(deck.labels)[federation.rows]) / images
    )
    spread = information.std()
    standardised = (
        (information - information.mean()) / spread if spread > 0 else np.zeros_like(information)
    )
    gumbel = -np.log(-np.log(federation.uniform(len(images))))
    # rounded, so that the last bits of a machine's logarithm cannot change who is drawn
    keys = np.round(tilt * standardised + gumbel, 9)
    small = sum(plan.sizes[client] for client in plan.small)
    chosen = _construction_units(np.argsort(-keys, kind="stable"), images, small)[units]
    hands: dict[int, Rows] = {}
    for group, part in (
        (plan.small, federation.only(chosen)),
        (plan.large, federation.only(~chosen)),
    ):
        hands |= zip(group, part.deal([plan.sizes[client] for client in group]), strict=True)
    return [hands[client] for client in sorted(hands)]


def construct_certain(
    deck: Deck, plan: PaperScenario, *, uncertain_fraction: float = 0.6
) -> list[Rows]:
    """Small clients hold only images without an uncertain label; of a large client's, this fraction
    has one.
    """
    fraction = _construction_fraction("uncertain_fraction", uncertain_fraction)
    if deck.labels.uncertain is None:
        need = "labels that say what was uncertain, as CheXpert's do"
        raise UserError(
            f"construction 'certain' needs {need}: use construction concentration or tilt"
        )
    uncertain = deck.labels.uncertain[deck.rows] > 0
    quotas = np.array([scaled_count(size, fraction) for size in plan.sizes])
    quotas[list(plan.small)] = 0
    stratum = ConstructionStratum(
        "uncertain labels", uncertain, "images with one", "images without one"
    )
    return _construction_quotas(deck, plan, stratum, quotas)


CONSTRUCTIONS: dict[str, Callable[..., list[Rows]]] = {
    "concentration": construct_by_concentration,
    "enriched": construct_enriched,
    "findings": construct_with_findings,
    "tilt": construct_by_tilt,
    "certain": construct_certain,
    "random": construct_at_random,
}


def construction_information(labels: Labels) -> NDArray[np.float64]:
    """−Σ log P(label) of each image in nats, classes taken as independent with the frequencies they
    have here.

    Labels that are not known add nothing.
    """
    truth = labels.truth(np.arange(len(labels)))
    information = np.zeros(len(labels))
    for values in truth.T:
        known = values >= 0
        p = values[known].mean() if known.any() else 0.0
        if 0 < p < 1:
            information += np.where(known, np.where(values == 1, -np.log(p), -np.log1p(-p)), 0.0)
    return information


def _construction_units(
    order: NDArray[np.intp], images: NDArray[np.intp], wanted: int
) -> NDArray[np.bool_]:
    """Which units are taken, in this order, each if it still fits."""
    chosen = np.zeros(len(images), dtype=bool)
    for unit in order.tolist():
        if images[unit] <= wanted:
            wanted -= int(images[unit])
            chosen[unit] = True
    if wanted:
        lack = f"{wanted:,} images are missing"
        raise UserError(
            f"whole patients do not add up to the small clients, {lack}: use another seed"
        )
    return chosen


def _stratum_of_findings(
    deck: Deck, plan: PaperScenario, classes: tuple[str, ...]
) -> ConstructionStratum:
    if missing := [name for name in classes if name not in deck.labels.findings]:
        lack = " and no ".join(missing)
        raise UserError(
            f"{plan.name} needs labels of {', '.join(classes)}, and this data has no {lack}"
        )
    columns = [deck.labels.findings.index(name) for name in classes]
    return ConstructionStratum(
        " or ".join(classes), deck.labels.values[deck.rows][:, columns].max(axis=1) > 0
    )


def _construction_quotas(
    deck: Deck, plan: PaperScenario, stratum: ConstructionStratum, quotas: NDArray[np.intp]
) -> list[Rows]:
    for client, (size, positives) in enumerate(zip(plan.sizes, quotas, strict=True), start=1):
        if positives > size:
            need = (
                f"{plan.name}, {stratum.subject} at C{client}: needs {positives:,} {stratum.having}"
            )
            raise UserError(f"{need}, and the client has {size:,} images")
    available = int(stratum.marked.sum())
    _require_enough(plan, stratum, stratum.having, quotas, available)
    _require_enough(
        plan, stratum, stratum.lacking, np.subtract(plan.sizes, quotas), len(deck) - available
    )
    return deck.deal_quotas(plan.sizes, quotas.tolist(), stratum.marked)


def _require_enough(
    plan: PaperScenario,
    stratum: ConstructionStratum,
    kind: str,
    needed: NDArray[np.intp],
    left: int,
) -> None:
    """Small clients are served first, so that the message says what they leave."""
    for group in (plan.small, plan.large):
        needs = int(needed[list(group)].sum())
        if needs > left:
            where = f"{plan.name}, {stratum.subject} at {_construction_clients(group)}"
            raise UserError(f"{where}: needs {needs:,} {kind}, {left:,} are left")
        left -= needs


def _construction_clients(group: tuple[int, ...]) -> str:
    """C2, or C2–C4: the clients of a group stand side by side in every scenario."""
    first, last = group[0] + 1, group[-1] + 1
    return f"C{first}" if first == last else f"C{first}–C{last}"


def _construction_fraction(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise UserError(f"{name} must be between 0 and 1, not {value:g}")
    return value
