"""How much each number rests on: images of each finding by split, and an interval per AUC."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from feddraw.analysis.diagnostic_measures import Measured
from feddraw.data.dataset import SPLITS
from feddraw.data.finding_counts import (
    dealt_in_words,
    few_in_words,
    rarer_label_in_split,
    split_counts_in_words,
    too_few_for_auc,
)
from feddraw.report.blocks import Block, Cell, Heading, Paragraph, ReportTable
from feddraw.report.patients import auc_intervals_by_finding
from feddraw.report.runs import (
    RecordedRun,
    findings_of_runs,
    image_counts_by_split,
    images_dealt_to_clients,
    number_of_folds,
)
from feddraw.report.statistics import Report
from feddraw.tasks import task_of_runs
from feddraw.text import join_names, slug

METHODS_BESIDE_FOCUS = ("fedavg",)  # whose intervals stand beside those of the method in focus
MOST_SITES = 8  # that are named in a sentence


def section(report: Report, scenario: str) -> Iterator[Block]:
    """One row per finding: its images in every split, and the AUC of the method in focus with its
    interval.
    """
    runs = report.runs(scenario)
    splits = image_counts_by_split(runs)
    if not splits:
        return
    findings = findings_of_runs(runs)
    few = findings_with_few_images(runs)
    words = report.task.words.labels
    methods = [
        method
        for method in dict.fromkeys(run.method for run in runs)
        if method == report.focus or method in METHODS_BESIDE_FOCUS
    ]
    areas = {
        method: dict(auc_intervals_by_finding(report.paired_runs(scenario, method), findings))
        for method in methods
    }
    rows = []
    for place, finding in enumerate(findings):
        row = [Cell(f"{finding} †" if finding in few else finding)]
        for split in SPLITS:
            counts = splits[split]
            row.append(
                Cell(split_counts_in_words(counts, place, words), counts["positives"][place])
            )
        rarer = rarer_label_in_split(splits["test"], place)
        row += [_auc_cell(areas[method].get(finding), rarer) for method in methods]
        rows.append(row)
    note = (
        f"{words.counts_note}; labels that are not known are left out of training and of"
        " metrics. 95 % CI over patients (images where patients are not known)."
    )
    dealt = dealt_in_words(splits["train"]["images"], images_dealt_to_clients(runs))
    if dealt:
        note += f" {dealt}."
    if few:
        note += f" † {few_in_words(words)}."
    one = words.one
    yield Heading(f"Images and certainty by {one} in {scenario}", 3)
    yield Paragraph(tested_images_in_words(runs))
    yield ReportTable(
        caption=f"Images of each {one} in {scenario}",
        header=[one, *SPLITS, *(f"AUC of {method} [95 % CI]" for method in methods)],
        rows=rows,
        note=note,
        label=f"splits-{slug(scenario)}",
    )


def _auc_cell(area: Measured | None, images: int) -> Cell:
    """Nothing says how much a single image matters, so one positive or negative image has no
    interval.
    """
    if area is None or not area.defined:
        return Cell("undefined")
    span = f"[{area.low:.3f} to {area.high:.3f}]"
    if images == 1:
        span = "[no CI: one image]"
    elif not math.isfinite(area.low):
        span = "[no CI: one patient]"
    return Cell(f"{area.value:.3f} {span}", area.value)


def tested_images_in_words(runs: Sequence[RecordedRun]) -> str:
    """Whom the test numbers are about."""
    test = image_counts_by_split(runs).get("test")
    if not test:
        return ""
    patients = f" of {test['patients']:,} patients" if "patients" in test else ""
    sites = [f"{site} {count:,}" for site, count in test.get("sites", {}).items()]
    if len(sites) > MOST_SITES:
        sites = [*sites[:MOST_SITES], "…"]
    origin = " that all clients share"
    if sites:
        origin = f" from all sites together ({', '.join(sites)})"
    tested = next(run for run in runs if run.finished)
    defined = [name for name in findings_of_runs(runs) if math.isfinite(tested.test("auc", name))]
    few = [name for name in findings_with_few_images(runs) if name in defined]
    caution = ""
    if few:
        have = "has" if len(few) == 1 else "have"
        caution = f", of which {', '.join(few)} {have} few test images (†)"
    task = task_of_runs(runs)
    words = task.words.labels
    counted = words.one if len(defined) == 1 else words.many
    metrics = join_names(list(task.labels.values()))
    where = "on the common test split"
    if folds := number_of_folds(runs):
        where = f"on the fold that each run leaves out, one of {folds}; the first run's"
    return (
        f"Test {metrics} are computed {where}: {test['images']:,}"
        f" images{patients}{origin}. The mean AUC is over {len(defined)} {counted}{caution}."
    )


def findings_with_few_images(runs: Sequence[RecordedRun]) -> list[str]:
    """Findings whose AUC rests on few test images."""
    test = image_counts_by_split(runs).get("test")
    if not test:
        return []
    findings = findings_of_runs(runs)
    return [finding for place, finding in enumerate(findings) if too_few_for_auc(test, place)]


def findings_with_enough_images(runs: Sequence[RecordedRun]) -> list[str]:
    """The other findings, where there are both kinds: a mean over them rests on enough test
    images.
    """
    few = findings_with_few_images(runs)
    if not few:
        return []
    return [finding for finding in findings_of_runs(runs) if finding not in few]
