"""What makes the paper's small clients informative: which images they hold, never what is done to
an image.

Where the paper prints positives (CHX-5, CHX-6, CHM-4) each client has its quota of them. For the
others it gives sizes only, so there is a choice, which docs/data.md lists with what it does to the
outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import Labels
from feddraw.data.scenarios.client_sizes import apportion, rounded_half_up, scaled_count
from feddraw.data.scenarios.image_pool import ImagePool
from feddraw.data.scenarios.paper_scenarios import RARE_FINDINGS, PaperScenario
from feddraw.data.scenarios.partition import Rows
from feddraw.errors import UserError, not_negative

RARE_PREVALENCE = 0.5  # at CheXpert's small clients, which are far smaller than the data


@dataclass(frozen=True, eq=False)
class Stratum:
    """A property that images have or lack, with the words for it."""

    subject: str
    marked: NDArray[np.bool_]  # per image of the pool
    having: str = "positives"
    lacking: str = "negatives"


def at_random(pool: ImagePool, plan: PaperScenario) -> list[Rows]:
    """Every client a random sample."""
    return pool.split(plan.sizes)


def by_quota(pool: ImagePool, plan: PaperScenario, *, large_positives: int | None) -> list[Rows]:
    """The printed positives of the enriched class, `large_positives` (before scaling) at each large
    client.

    None stands for a natural draw: large clients get the prevalence of what the small client
    leaves.
    """
    stratum = _stratum_of_findings(pool, plan, (plan.enriched or "",))
    quotas = np.full(len(plan.sizes), scaled_count(plan.small_positives, plan.scale))
    if large_positives is None:
        return _with_natural_large(pool, plan, stratum, quotas)
    if not isinstance(large_positives, int) or large_positives < 0:
        raise UserError(
            f"large_positives must be a whole number of zero or more, not {large_positives!r}"
        )
    quotas[list(plan.large)] = scaled_count(large_positives, plan.scale)
    return _split_by_quotas(pool, plan, stratum, quotas)


def by_concentration(pool: ImagePool, plan: PaperScenario, *, share: float) -> list[Rows]:
    """Small clients hold `share` of the federation's images with a rare class.

    ChestMNIST's federations are the whole data, at its natural prevalence. CheXpert's are a part of
    it: half of a small client's images have a rare class, and large clients are depleted of them to
    keep the share.
    """
    if _fraction("share", share) == 0:
        raise UserError(
            "share must be above 0: with construction 'tilt' and tilt 0 small clients are a random"
            " sample"
        )
    stratum = _stratum_of_findings(pool, plan, RARE_FINDINGS[plan.dataset])
    if plan.dataset == "chexpert":
        scale = plan.scale * RARE_PREVALENCE
        at_small = [scaled_count(plan.printed[client], scale) for client in plan.small]
        at_large = rounded_half_up(sum(at_small) * (1 - share) / share)
    else:
        in_federation = rounded_half_up(stratum.marked.sum() * plan.total / len(pool))
        together = rounded_half_up(in_federation * share)
        at_small = apportion(together, [plan.sizes[client] for client in plan.small])
        at_large = in_federation - together
    quotas = np.zeros(len(plan.sizes), dtype=int)
    quotas[list(plan.small)] = at_small
    quotas[list(plan.large)] = apportion(at_large, [plan.sizes[client] for client in plan.large])
    return _split_by_quotas(pool, plan, stratum, quotas)


def enriched(pool: ImagePool, plan: PaperScenario, *, prevalence: float) -> list[Rows]:
    """So many of a small client's images have a rare class; large clients are a natural draw of
    what is left.
    """
    stratum = _stratum_of_findings(pool, plan, RARE_FINDINGS[plan.dataset])
    fraction = _fraction("prevalence", prevalence)
    quotas = np.array([scaled_count(size, plan.scale * fraction) for size in plan.printed])
    return _with_natural_large(pool, plan, stratum, quotas)


def with_findings(pool: ImagePool, plan: PaperScenario, *, with_finding: float = 1.0) -> list[Rows]:
    """All of a small client's images, or this fraction, have a finding; large clients are a natural
    draw.
    """
    has_finding = pool.labels.values[pool.rows].max(axis=1) > 0
    stratum = Stratum("findings", has_finding, "images with one", "images without one")
    fraction = _fraction("with_finding", with_finding)
    quotas = np.array([scaled_count(size, fraction) for size in plan.sizes])
    return _with_natural_large(pool, plan, stratum, quotas)


def _with_natural_large(
    pool: ImagePool, plan: PaperScenario, stratum: Stratum, quotas: NDArray[np.intp]
) -> list[Rows]:
    """The quotas of the small clients; each large one gets the prevalence of what they leave.

    Where the federation has all images, shares that are rounded one by one may not add up: then
    they are rounded together.
    """
    small = list(plan.small)
    small_images = sum(plan.sizes[client] for client in small)
    small_marked = int(quotas[small].sum())
    marked_left = int(stratum.marked.sum()) - small_marked
    images_left = len(pool) - small_images
    unmarked_left = images_left - marked_left
    prevalence = max(marked_left, 0) / max(images_left, 1)
    sizes = [plan.sizes[client] for client in plan.large]
    each = [rounded_half_up(size * prevalence) for size in sizes]
    if not sum(sizes) - unmarked_left <= sum(each) <= marked_left:
        each = apportion(rounded_half_up(sum(sizes) * prevalence), sizes)
    quotas[list(plan.large)] = each
    return _split_by_quotas(pool, plan, stratum, quotas)


def by_tilt(pool: ImagePool, plan: PaperScenario, *, tilt: float = 1.0) -> list[Rows]:
    """Of a random federation, small clients get images drawn with odds that grow with their
    self-information.

    An image's (or a patient's mean) information is that of its labels under the class frequencies;
    Gumbel noise is added to `tilt` times the standardised information, and the largest sums win.
    Tilt 0 is a random split.
    """
    not_negative("tilt", tilt)
    federation = pool.draw(plan.total)
    units = federation.units
    images = np.bincount(units)
    of_images = self_information(pool.labels)[federation.rows]
    information = np.bincount(units, of_images) / images
    standardised = np.zeros_like(information)
    if (spread := information.std()) > 0:
        standardised = (information - information.mean()) / spread
    gumbel = -np.log(-np.log(federation.uniform(len(images))))
    # rounded, so that the last bits of a machine's logarithm cannot change who is drawn
    keys = np.round(tilt * standardised + gumbel, 9)
    small_images = sum(plan.sizes[client] for client in plan.small)
    order = np.argsort(-keys, kind="stable")
    chosen = _first_units_that_fit(order, images, small_images)[units]
    at_small = federation.only(chosen).split([plan.sizes[client] for client in plan.small])
    at_large = federation.only(~chosen).split([plan.sizes[client] for client in plan.large])
    rows = dict(zip((*plan.small, *plan.large), (*at_small, *at_large), strict=True))
    return [rows[client] for client in sorted(rows)]


def certain(pool: ImagePool, plan: PaperScenario, *, uncertain_fraction: float = 0.6) -> list[Rows]:
    """Small clients hold only images without an uncertain label; of a large client's, this fraction
    has one.
    """
    fraction = _fraction("uncertain_fraction", uncertain_fraction)
    if pool.labels.uncertain is None:
        raise UserError(
            "construction 'certain' needs labels that say what was uncertain, as CheXpert's do: use"
            " construction concentration or tilt"
        )
    uncertain = pool.labels.uncertain[pool.rows] > 0
    quotas = np.array([scaled_count(size, fraction) for size in plan.sizes])
    quotas[list(plan.small)] = 0
    stratum = Stratum("uncertain labels", uncertain, "images with one", "images without one")
    return _split_by_quotas(pool, plan, stratum, quotas)


CONSTRUCTIONS: dict[str, Callable[..., list[Rows]]] = {
    "concentration": by_concentration,
    "enriched": enriched,
    "findings": with_findings,
    "tilt": by_tilt,
    "certain": certain,
    "random": at_random,
}


def self_information(labels: Labels) -> NDArray[np.float64]:
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


def _first_units_that_fit(
    order: NDArray[np.intp], images: NDArray[np.intp], wanted: int
) -> NDArray[np.bool_]:
    """Which units are taken, in this order, each if it still fits."""
    chosen = np.zeros(len(images), dtype=bool)
    for unit in order.tolist():
        if images[unit] <= wanted:
            wanted -= int(images[unit])
            chosen[unit] = True
    if wanted:
        raise UserError(
            f"whole patients do not add up to the small clients, {wanted:,} images are missing: use"
            " another seed"
        )
    return chosen


def _stratum_of_findings(pool: ImagePool, plan: PaperScenario, classes: tuple[str, ...]) -> Stratum:
    if missing := [name for name in classes if name not in pool.labels.findings]:
        lack = " and no ".join(missing)
        raise UserError(
            f"{plan.name} needs labels of {', '.join(classes)}, and this data has no {lack}:"
            " choose another scenario, such as scenario = iid (CHM-2 is the default)"
        )
    columns = [pool.labels.findings.index(name) for name in classes]
    present = pool.labels.values[pool.rows][:, columns].max(axis=1) > 0
    return Stratum(" or ".join(classes), present)


def _split_by_quotas(
    pool: ImagePool, plan: PaperScenario, stratum: Stratum, quotas: NDArray[np.intp]
) -> list[Rows]:
    """Each client with its quota of marked images, if there are enough of either kind."""
    for client, (size, quota) in enumerate(zip(plan.sizes, quotas, strict=True), start=1):
        if quota > size:
            raise UserError(
                f"{plan.name}, {stratum.subject} at C{client}: needs {quota:,} {stratum.having},"
                f" and the client has {size:,} images"
            )
    marked = int(stratum.marked.sum())
    others = np.subtract(plan.sizes, quotas)
    _require_enough(plan, stratum, stratum.having, quotas, marked)
    _require_enough(plan, stratum, stratum.lacking, others, len(pool) - marked)
    return pool.split_by_quota(plan.sizes, quotas.tolist(), stratum.marked)


def _require_enough(
    plan: PaperScenario,
    stratum: Stratum,
    kind: str,
    needed: NDArray[np.intp],
    left: int,
) -> None:
    """Small clients are served first, so that the message says what they leave."""
    for group in (plan.small, plan.large):
        needs = int(needed[list(group)].sum())
        if needs > left:
            where = f"{plan.name}, {stratum.subject} at {_client_range(group)}"
            raise UserError(f"{where}: needs {needs:,} {kind}, {left:,} are left")
        left -= needs


def _client_range(group: tuple[int, ...]) -> str:
    """C2, or C2–C4: the clients of a group stand side by side in every scenario."""
    first = group[0] + 1
    last = group[-1] + 1
    return f"C{first}" if first == last else f"C{first}–C{last}"


def _fraction(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise UserError(f"{name} must be between 0 and 1, not {value:g}")
    return value
