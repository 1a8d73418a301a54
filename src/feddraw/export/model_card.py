"""The model card: what the model was trained on, how good it is, for whom, and how much each site
contributed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from feddraw import __version__
from feddraw.analysis import metrics
from feddraw.analysis.bootstrap import bootstrap_by_copies, interval
from feddraw.analysis.diagnostic_measures import DiagnosticTest, Measured, ModelScores
from feddraw.experiment.run_preparation import PreparedData
from feddraw.experiment.trained_model import TrainedModel
from feddraw.results.about import images_in_words
from feddraw.results.predictions import Predictions
from feddraw.results.recalibration import UNCHANGED
from feddraw.system.markdown import escape_markdown, markdown_table
from feddraw.system.progress import Progress, no_progress

REPLICATES = 500  # of the bootstrap
IMAGES_AT_A_TIME = 256
PROPORTIONS = {
    "sensitivity": DiagnosticTest.sensitivity,
    "specificity": DiagnosticTest.specificity,
    "PPV": DiagnosticTest.positive_predictive_value,
    "NPV": DiagnosticTest.negative_predictive_value,
}
KEPT_MODELS = {
    "last": "the model after the last round",
    "best": "the model of the round with the highest validation AUC",
    "tail": "the mean of the last rounds' models",
}
Sites = Mapping[str, str]  # client to the name that the card calls it by


def model_card(
    trained: TrainedModel,
    data: PreparedData | None,
    checks: Sequence[str],
    *,
    names: bool,
    licence: str,
    progress: Progress = no_progress,
) -> str:
    """The card as Markdown.

    `data` are the run's images, where they are here; `checks` says how the exported files were
    checked, a sentence each. Sites have numbers unless their names are asked for.
    """
    sites = {
        client: client if names else f"site {number}"
        for number, client in enumerate(trained.run.ledger.clients, start=1)
    }
    sections = {
        "# Model card": _introduction(trained),
        "## Intended use": _intended_use(trained),
        "## Data": _data(trained, data, sites),
        f"## {trained.task.words.results}": _findings(trained, progress),
        "## Results per site": _results_by_site(trained, data, sites, names, progress),
        "## Aggregation weights": _weights(trained, sites),
        "## Input": _input(trained),
        "## Check of the exported files": ["\n".join(f"- {sentence}" for sentence in checks)],
        "## Licence": [licence or "Not stated. State one before you pass the model on."],
    }
    blocks = [block for title, contents in sections.items() for block in (title, *contents)]
    return "\n\n".join(blocks) + "\n"


# Each section gives its paragraphs and tables.


def _introduction(trained: TrainedModel) -> Iterator[str]:
    experiment = trained.experiment
    method, scenario, network = (
        escape_markdown(experiment.section(name)[0]) for name in ("method", "scenario", "model")
    )
    outputs = len(trained.findings)
    yield "> **Research, not a medical device.** Not for diagnosis or treatment."
    yield (
        f"A network ({network}) that"
        f" {trained.task.words.network.format(images=_images(trained), count=outputs)}."
        f" It was trained by {len(trained.run.ledger.clients)} sites together: federated learning"
        f" with {method}, scenario {scenario}, {experiment.rounds} rounds, seed"
        f" {experiment.seed}, feddraw {__version__}. This is {KEPT_MODELS[trained.run.model]}."
    )


def _images(trained: TrainedModel) -> str:
    """What kind of images the model is for, as far as it is known."""
    name, _ = trained.experiment.section("data")
    words = images_in_words(trained.experiment.about, name)
    return escape_markdown(words) or "images of a kind that is not stated"


def _intended_use(trained: TrainedModel) -> Iterator[str]:
    about = trained.experiment.about
    if not images_in_words(about, trained.experiment.section("data")[0]):
        yield "**Not stated:** what kind of images these are. Set `about.images` of the run."
    use = escape_markdown(about.use.strip())
    yield (
        use
        or "**Not stated:** what the model is meant for, and for whom. Set `about.use` of the run."
    )
    yield (
        "The model was made for research, and has not been validated for clinical use. Scores are"
        " not calibrated for other patients, and"
        f" {trained.task.words.limits}. Validate the model on your own images before you draw"
        " conclusions from it."
    )


def _data(trained: TrainedModel, data: PreparedData | None, sites: Sites) -> Iterator[str]:
    name, _ = trained.experiment.section("data")
    words = trained.task.words
    source = "own images" if "/" in name or "." in name else escape_markdown(name)
    synthetic = data is not None and data.dataset.synthetic
    kind = "synthetic images, no patients" if synthetic else _images(trained)
    sentences = [f"Data set: {source} ({kind})."]
    sizes = trained.run.partition.get("sizes", {})
    if data is not None:
        splits = data.dataset.rows
        counts = ", ".join(f"{len(rows):,} for {split}" for split, rows in splits.items())
        dealt = sum(sizes.values())
        part = f"{dealt:,} of the training" if 0 < dealt < len(splits["train"]) else "Training"
        sentences.append(f"Images: {counts}. {part} images are split between the sites:")
    positives = trained.run.partition.get("positives", {})
    if not sizes:
        sentences.append(
            f"The sites did not report their numbers of images and {words.labels.many}."
        )
    yield "\n".join(sentences)
    if not sizes:
        return
    rows = []
    for client, images in sizes.items():
        with_finding = [f"{count:,}" for count in positives.get(client, [])]
        rows.append([sites.get(client, "site"), f"{images:,}", *with_finding])
    yield _table(["site", "images", *trained.findings], rows)
    yield f"{words.counts} Images that a site kept back are included."


def _findings(trained: TrainedModel, progress: Progress) -> Iterator[str]:
    task = trained.task
    one = task.words.labels.one
    many = task.words.labels.many
    validation = _predictions(trained, "validation")
    test = _predictions(trained, "test")
    tested = trained.run.metrics.test
    rows = []
    for place, finding in enumerate(trained.findings):
        progress(f"model card: intervals of the {many}", place, len(trained.findings))
        if test is None:
            area = Measured(tested.auc.per_class.get(finding, math.nan))
        else:
            area = _diagnostic(trained, test, place).auc()
        limits = []
        if task.has_thresholds:
            limits = [_threshold(trained, validation, place)]
        rows.append([finding, *limits, _measured(area), *_proportions(trained, test, place)])
    limit = ["threshold"] if task.has_thresholds else []
    yield _table([one, *limit, "test AUC", *PROPORTIONS], rows)
    by_bootstrap = "by the bootstrap for the threshold, " if task.has_thresholds else ""
    yield (
        f"Mean over {many}: {task.means_in_words(tested)}. {task.words.calls} Test images were not"
        " used to choose"
        " anything. PPV and NPV: positive and negative predictive value, at the share of positives"
        " among the test images. In brackets: 95 % CI over patients where patients are known, else"
        f" over images; {by_bootstrap}from each image's influence for the AUC,"
        " by Clopper and Pearson for the others (Korn and Graubard where patients have several"
        " images)."
    )
    if tested.confusion:
        yield from _confusion({"": np.array(tested.confusion)}, trained.findings)


def _confusion(by_site: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> Iterator[str]:
    """Images by class and by the class that they are called, of all together or of each site."""
    sites = [""] if list(by_site) == [""] else ["site"]
    rows = []
    for site, counts in by_site.items():
        for name, row in zip(names, counts.tolist(), strict=True):
            rows.append([*([site] if sites[0] else []), name, *map(str, row)])
    yield _table([*filter(None, sites), "class", *(f"called {name}" for name in names)], rows)
    yield "Confusion matrix: images of the class of the row that are called that of the column."


def _proportions(trained: TrainedModel, test: Predictions | None, place: int) -> list[str]:
    """Sensitivity, specificity, PPV and NPV of one finding; where the run kept no test scores, only
    what its metrics say.
    """
    if test is None:
        tested = trained.run.metrics.test
        finding = trained.findings[place]
        known = (tested.sensitivity, tested.specificity)
        return [*(_number(table.get(finding, math.nan)) for table in known), "", ""]
    diagnostic = _diagnostic(trained, test, place)
    return [_measured(measure(diagnostic)) for measure in PROPORTIONS.values()]


def _diagnostic(trained: TrainedModel, scored: Predictions, place: int) -> DiagnosticTest:
    """One finding as the report measures it, by patient where patients are known."""
    images = np.arange(len(scored.truth))
    calls = trained.task.calls_of_scores(scored.scores)
    model = ModelScores.of_known(
        scores=scored.scores[:, place],
        truth=scored.truth[:, place],
        patients=images if scored.patients is None else scored.patients,
        threshold=trained.thresholds[place],
        called=None if calls is None else calls[:, place],
    )
    return DiagnosticTest([model])


def _results_by_site(
    trained: TrainedModel,
    data: PreparedData | None,
    clients: Sites,
    names: bool,
    progress: Progress,
) -> Iterator[str]:
    rows: list[list[str]] = []
    calls = {}
    if data is not None:
        sites = {**clients, **_sites_without_training(data, clients, names)}
        for site, images in _untrained_images(data, sites):
            progress("model card: results per site", len(rows), len(sites))
            scored = _scored(trained, data, images)
            areas = []
            for place in range(len(trained.findings)):
                areas.append(_measured(_diagnostic(trained, scored, place).auc()))
            rows.append([site, f"{len(images):,}", *areas])
            calls[site] = trained.task.count_calls(scored.scores, scored.truth)
    if rows:
        yield _table(["site", "images", *(f"AUC {name}" for name in trained.findings)], rows)
        yield (
            "In brackets: 95 % CI over the site's own images, on which nothing was trained; by"
            f" patient where patients are known. {trained.task.words.labels.one_image}"
        )
        if any(counts.any() for counts in calls.values()):
            yield from _confusion(calls, trained.findings)
    else:
        yield (
            "Not available: no images were kept back per site (`holdout = 0.2`), and test images"
            " have no site."
        )


def _weights(trained: TrainedModel, sites: Sites) -> Iterator[str]:
    if not sites:
        yield "The run has no ledger of weights."
        return
    rows = []
    ledger = trained.run.ledger
    weights = np.nan_to_num(ledger["weight"])  # rounds × clients
    weights[ledger.hidden("weight")] = np.nan
    for site, by_round in zip(sites.values(), weights.T, strict=True):
        shown = (by_round[0], by_round.mean(), by_round[-1])
        cells = ["hidden" if np.isnan(weight) else f"{weight:.3f}" for weight in shown]
        rows.append([site, *cells])
    yield _table(["site", "first round", "mean", "last round"], rows)
    hidden = " Secure sums hide the others." if np.isnan(weights).any() else ""
    yield f"How much each site's update counted; 0 where it did not take part.{hidden}"


def _input(trained: TrainedModel) -> Iterator[str]:
    recipe = trained.recipe
    square = f"{recipe.size} × {recipe.size} pixels"
    fits = {
        "squash": f"resized to {square}",
        "pad": f"resized in its own proportions, with black beside it, to {square}",
        "crop": f"its middle square resized to {square}",
    }
    steps = [f"{fits[recipe.fit]} (Pillow, antialiased bilinear)"]
    if recipe.clahe:
        steps.append(f"CLAHE (scikit-image, kernel {recipe.kernel}, clip {recipe.clip:g})")
    steps.append(f"each level / 255 less {trained.mean:.6g}, divided by {trained.std:.6g}")
    kind = "grey image" if recipe.channels == 1 else "image in colour (red, green, blue)"
    yield f"One {kind}: {'; then '.join(steps)}."
    own = "by its window (VOI), or without one by all values that it can store, rescaled"
    rule = f"a 16-bit PNG by its full range, DICOM {own}"
    if recipe.levels:
        low, high = recipe.levels
        rule = f"files of more than 8 bits from {low:g} (black) to {high:g} (white)"
    yield f"Black and white: 8 bits as they are, {rule}. No image is stretched by its own values."


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    escaped_rows = [list(map(escape_markdown, row)) for row in rows]
    return "\n".join(markdown_table(list(map(escape_markdown, header)), escaped_rows))


def _predictions(trained: TrainedModel, split: str) -> Predictions | None:
    """The scores that the run kept of a split."""
    kept = trained.run.predictions(split)
    if kept is None or kept.scores.shape != (len(kept.truth), len(trained.findings)):
        return None
    return kept


def _untrained_images(data: PreparedData, sites: Sites) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Each site that has images of its own on which nothing was trained, with their rows: those it
    kept back, or its test images.
    """
    clients = [shard.client for shard in data.partition.shards]
    kept_back = dict(zip(clients, data.holdout_rows, strict=True))
    test = data.dataset.rows["test"]
    site_of_image = data.dataset.labels.sites
    for client, site in sites.items():  # a site that was no client keeps nothing back
        rows = kept_back.get(client, np.zeros(0, np.intp))
        if not len(rows) and site_of_image is not None:
            rows = test[site_of_image[test] == client]
        if len(rows):
            yield site, rows


def _sites_without_training(data: PreparedData, clients: Sites, names: bool) -> dict[str, str]:
    """What the card calls the sites of test images that were no clients, such as those with too few
    training images; they are numbered after the clients.
    """
    site_of_image = data.dataset.labels.sites
    if site_of_image is None:
        return {}
    sites = np.unique(site_of_image[data.dataset.rows["test"]]).tolist()
    others = [site for site in sites if site not in clients]
    return {
        site: f"{site if names else f'site {number}'} (no client)"
        for number, site in enumerate(others, start=1 + len(clients))
    }


def _scored(trained: TrainedModel, data: PreparedData, rows: NDArray[np.intp]) -> Predictions:
    """What the network says about some images of the data set."""
    labels = data.dataset.labels
    blocks = []
    for start in range(0, len(rows), IMAGES_AT_A_TIME):
        images = data.dataset.images[rows[start : start + IMAGES_AT_A_TIME]]
        blocks.append(trained.network_scores(images))
    patients = None
    if labels.patients is not None:
        patients = np.unique(labels.patients[rows], return_inverse=True)[1]
    return Predictions(np.concatenate(blocks), labels.truth(rows), patients, trained.findings, "")


def _threshold(trained: TrainedModel, validation: Predictions | None, place: int) -> str:
    """A finding's threshold, and in brackets its bootstrap interval over the patients of these
    images; of scores as the exported model gives them.
    """
    value = trained.recalibrated_thresholds[place]
    if validation is None or not math.isfinite(value):
        return _number(value)
    scores = validation.scores[:, place]
    line = trained.lines[place]
    if line != UNCHANGED:
        scores = line.apply(scores).astype(np.float64)
    replicates = bootstrap_by_copies(
        metrics.best_threshold,
        scores,
        validation.truth[:, place],
        np.random.default_rng(place),
        patients=validation.patients,
        replicates=REPLICATES,
    )
    finite = replicates[np.isfinite(replicates)]
    if not len(finite):
        return _number(value)
    bounds = interval(np.array([value, *finite]))
    return _measured(Measured(value, bounds.low, bounds.high))


def _measured(measured: Measured) -> str:
    """A number with its interval in brackets, where it has one."""
    if not math.isfinite(measured.low):
        return _number(measured.value)
    return f"{measured.value:.3f} ({measured.low:.3f} to {measured.high:.3f})"


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.3f}"
