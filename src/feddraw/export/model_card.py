"""The model card: what the model was trained on, how good it is, for whom, and who counted how
much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from feddraw import __version__
from feddraw.analysis import metrics
from feddraw.experiment.run_preparation import PreparedData
from feddraw.experiment.trained_model import TrainedModel
from feddraw.results.predictions import Predictions
from feddraw.system.file_reading import number_or_nan
from feddraw.text import safe_line

CARD_REPLICATES = 500
KEPT_MODELS = {
    "last": "the model after the last round",
    "best": "the model of the round with the highest validation AUC",
    "tail": "the mean of the last rounds' models",
}
Floats = NDArray[np.float64]


def model_card(
    trained: TrainedModel,
    data: PreparedData | None,
    checks: Sequence[str],
    *,
    names: bool,
    licence: str,
) -> str:
    """The card as Markdown. Sites have numbers unless their names are asked for."""
    ledger = trained.run.ledger
    sites = {
        client: client if names else f"site {place + 1}"
        for place, client in enumerate(ledger.clients)
    }
    sections = [
        _card_head(trained),
        _intended_use(),
        _data_section(trained, data, sites),
        _findings_section(trained),
        _by_site_section(trained, data, sites),
        _weights_section(trained, sites),
        _input_section(trained),
        _checks_section(checks),
        ["## Licence", "", licence or "Not stated. State one before you pass the model on.", ""],
    ]
    return "\n".join(text for section in sections for text in section)


def _card_head(trained: TrainedModel) -> Iterator[str]:
    method, scenario = (trained.experiment.section(name)[0] for name in ("method", "scenario"))
    network = trained.experiment.section("model")[0]
    yield from [
        "# Model card",
        "",
        "> **Research, not a medical device.** Not for diagnosis or treatment.",
        "",
    ]
    sites, rounds = len(trained.run.ledger.clients), trained.experiment.rounds
    yield (
        f"A `{network}` network that scores chest radiographs for {len(trained.findings)} findings."
        " It was trained"
    )
    yield (
        f"by {sites} sites together: federated learning with `{method}`, scenario `{scenario}`,"
        f" {rounds} rounds, seed"
    )
    yield from [
        (
            f"{trained.experiment.seed}, feddraw {__version__}. This is"
            f" {KEPT_MODELS[trained.run.model]}."
        ),
        "",
    ]


def _intended_use() -> Iterator[str]:
    yield from ["## Intended use", ""]
    yield (
        "Research on federated learning and on the classification of chest radiographs. The model"
        " has not been"
    )
    yield (
        "validated for clinical use. Scores are not calibrated for other patients, and thresholds"
        " depend on how"
    )
    yield from [
        (
            "common a finding is. Validate the model on your own images before you draw conclusions"
            " from it."
        ),
        "",
    ]


def _data_section(
    trained: TrainedModel, data: PreparedData | None, sites: dict[str, str]
) -> Iterator[str]:
    yield from ["## Data", ""]
    name = trained.experiment.section("data")[0]
    said = "own images" if "/" in name or "." in name else f"`{name}`"
    kind = (
        "synthetic images, no patients" if data and data.dataset.synthetic else "chest radiographs"
    )
    yield f"Data set: {said} ({kind})."
    if data:
        counts = ", ".join(
            f"{len(rows):,} for {split}" for split, rows in data.dataset.rows.items()
        )
        yield f"Images: {counts}. Training images are split between the sites:"
    sizes, positives = (trained.run.partition.get(key, {}) for key in ("sizes", "positives"))
    if not sizes:
        yield from ["The sites did not report their numbers of images and findings.", ""]
        return
    yield ""
    rows = [
        [sites.get(c, "site"), f"{n:,}", *(f"{k:,}" for k in positives.get(c, []))]
        for c, n in sizes.items()
    ]
    yield from _card_table(["site", "images", *trained.findings], rows)
    yield ""
    yield (
        "Columns of findings: images in which the finding is present. Images that a site kept back"
        " are included."
    )
    yield ""


def _findings_section(trained: TrainedModel) -> Iterator[str]:
    yield from ["## Findings, thresholds and test results", ""]
    validation, test = (_kept_predictions(trained, split) for split in ("validation", "test"))
    tested = trained.run.metrics["test"]
    rows = []
    for place, name in enumerate(trained.findings):
        limit = trained.thresholds[place]
        cells = [_card_interval(limit, _card_replicates(validation, place, metrics.best_threshold))]
        measures = {
            "auc": metrics.auc,
            "sensitivity": _card_rate(limit, 0),
            "specificity": _card_rate(limit, 1),
        }
        for kind, measure in measures.items():
            found = tested.get(kind, {})
            value = (found.get("per_class", {}) if kind == "auc" else found).get(name)
            cells.append(
                _card_interval(number_or_nan(value), _card_replicates(test, place, measure))
            )
        rows.append([name, *cells])
    yield from _card_table(["finding", "threshold", "test AUC", "sensitivity", "specificity"], rows)
    auc, gm = (
        _card_number(number_or_nan(tested.get(kind, {}).get("macro"))) for kind in ("auc", "gm")
    )
    yield ""
    yield f"Mean over findings: AUC {auc}, GM {gm}. A finding is called if its score is"
    yield (
        "at least the threshold, which was chosen on validation images for the largest geometric"
        " mean (GM) of"
    )
    yield (
        "sensitivity and specificity. The test images chose nothing. In brackets: 95 % bootstrap CI"
        " over validation"
    )
    yield from [
        (
            "images (threshold) or test images (the others), resampled by patient where patients"
            " are known."
        ),
        "",
    ]


def _by_site_section(
    trained: TrainedModel, data: PreparedData | None, sites: dict[str, str]
) -> Iterator[str]:
    yield from ["## Results per site", ""]
    rows = []
    for site, images in _card_images_by_site(trained, data, sites):
        assert data is not None
        scored = _card_site_scores(trained, data, images)
        areas = []
        for place in range(len(trained.findings)):
            value = metrics.auc(scored.scores[:, place], scored.truth[:, place])
            areas.append(_card_interval(value, _card_replicates(scored, place, metrics.auc)))
        rows.append([site, f"{len(images):,}", *areas])
    if rows:
        yield from _card_table(
            ["site", "images", *(f"AUC {name}" for name in trained.findings)], rows
        )
        yield from [
            "",
            (
                "In brackets: 95 % bootstrap CI over the site's own images, on which nothing was"
                " trained."
            ),
            "",
        ]
    else:
        yield (
            "Not available: no images were kept back per site (`holdout = 0.2`), and test images"
            " have no site."
        )
        yield ""


def _card_images_by_site(
    trained: TrainedModel, data: PreparedData | None, sites: dict[str, str]
) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Each site with images of its own that were not trained on: those it kept back, or its test
    images.
    """
    if data is None:
        return
    held = dict(
        zip((shard.client for shard in data.partition.shards), data.holdout_rows, strict=True)
    )
    test = data.dataset.rows["test"]
    where = data.dataset.labels.sites
    for client, site in sites.items():
        rows = held.get(client, np.zeros(0, np.intp))
        if not len(rows) and where is not None:
            rows = test[where[test] == client]
        if len(rows):
            yield site, rows


def _weights_section(trained: TrainedModel, sites: dict[str, str]) -> Iterator[str]:
    yield from ["## Aggregation weights", ""]
    if not sites:
        yield from ["The run has no ledger of weights.", ""]
        return
    columns = np.nan_to_num(trained.run.ledger["weight"]).T
    shown = [
        [f"{value:.3f}" for value in (column[0], column.mean(), column[-1])] for column in columns
    ]
    rows = [[site, *cells] for site, cells in zip(sites.values(), shown, strict=True)]
    yield from _card_table(["site", "first round", "mean", "last round"], rows)
    yield from ["", "How much each site's update counted; 0 where it did not take part.", ""]


def _input_section(trained: TrainedModel) -> Iterator[str]:
    recipe = trained.recipe
    yield from ["## Input", ""]
    steps = [f"resized to {recipe.size} × {recipe.size} pixels (Pillow, antialiased bilinear)"]
    if recipe.clahe:
        steps.append(f"CLAHE (scikit-image, kernel {recipe.kernel}, clip {recipe.clip:g})")
    steps.append(f"grey level / 255 less {trained.mean:.6g}, divided by {trained.std:.6g}")
    yield f"One grey image: {'; then '.join(steps)}."
    yield ""


def _checks_section(checks: Sequence[str]) -> Iterator[str]:
    yield from ["## Check of the exported files", ""]
    yield from (f"- {words}" for words in checks)
    yield ""


def _card_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(_card_cell(cell) for cell in cells)} |"


def _card_cell(text: str) -> str:
    """A name is only text: it cannot end a cell or begin markup."""
    return "".join(
        f"\\{letter}" if letter in "|\\`*_<>[]" and text != "---" else letter
        for letter in safe_line(text)
    )


def _kept_predictions(trained: TrainedModel, split: str) -> Predictions | None:
    """The scores that the run kept of a split."""
    found = trained.run.predictions(split)
    return (
        found
        if found is not None and found.scores.shape == (len(found.truth), len(trained.findings))
        else None
    )


def _card_site_scores(
    trained: TrainedModel, data: PreparedData, rows: NDArray[np.intp]
) -> Predictions:
    labels = data.dataset.labels
    blocks = [
        trained.scores(data.dataset.images[rows[start : start + 256]])
        for start in range(0, len(rows), 256)
    ]
    patients = (
        None
        if labels.patients is None
        else np.unique(labels.patients[rows], return_inverse=True)[1]
    )
    return Predictions(np.concatenate(blocks), labels.truth(rows), patients, trained.findings, "")


CardMeasure = Callable[[metrics.Scores, metrics.Truth], float]


def _card_rate(threshold: float, which: int) -> CardMeasure:
    return lambda scores, truth: metrics.rates(scores, truth, threshold)[which]


def _card_replicates(images: Predictions | None, place: int, measure: CardMeasure) -> list[float]:
    """A measure of one finding over images of resampled patients; none without images."""
    if images is None:
        return []
    scores, truth = images.scores[:, place], images.truth[:, place]
    owners = (
        np.arange(len(truth))
        if images.patients is None
        else np.unique(images.patients, return_inverse=True)[1]
    )
    order = np.argsort(owners, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(owners))[:-1])
    rng = np.random.default_rng(place)
    draws = (rng.integers(0, len(groups), len(groups)) for _ in range(CARD_REPLICATES))
    drawn = (np.concatenate([groups[unit] for unit in units]) for units in draws)
    return [value for rows in drawn if math.isfinite(value := measure(scores[rows], truth[rows]))]


def _card_interval(value: float, replicates: Sequence[float]) -> str:
    if not replicates or not math.isfinite(value):
        return _card_number(value)
    low, high = np.percentile(replicates, [2.5, 97.5])
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _card_number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.3f}"
