"""The report's section on how much each number rests on: images of each finding by split, and an
interval per AUC.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from feddraw.analysis.bootstrap import Interval
from feddraw.data.dataset import SPLITS
from feddraw.data.finding_counts import (
    few_in_words,
    rarer_label_in_split,
    split_counts_in_words,
    too_few_for_auc,
)
from feddraw.report.blocks import Block, Cell, Heading, Paragraph, ReportTable
from feddraw.report.bootstrap_over_patients import auc_intervals_by_finding
from feddraw.report.report_statistics import Report
from feddraw.results.recorded_run import RecordedRun
from feddraw.results.run_collection import findings_of_runs
from feddraw.text import grouped, slug

METHODS_BESIDE_FOCUS = (
    "fedavg",
)  # methods whose intervals stand beside those of the method in focus


def images_by_finding_section(report: Report, scenario: str) -> Iterator[Block]:
    """One row per finding: its images in every split, and the AUC of the method in focus with its
    interval.
    """
    runs, replicates = report.collection.of(scenario), report.replicates_in(scenario)
    splits = images_by_split(runs)
    if not splits:
        return
    findings, marked = findings_of_runs(runs), findings_with_few_images(runs)
    methods = grouped((run.method, run) for run in runs)
    shown = [name for name in methods if name == report.focus or name in METHODS_BESIDE_FOCUS]
    areas = {
        name: dict(auc_intervals_by_finding(methods[name], findings, replicates)) for name in shown
    }
    rows = [
        [
            Cell(f"{name} †" if name in marked else name),
            *(
                Cell(split_counts_in_words(splits[s], place), splits[s]["positives"][place])
                for s in SPLITS
            ),
            *(
                _images_auc_cell(
                    areas[method].get(name), rarer_label_in_split(splits["test"], place)
                )
                for method in shown
            ),
        ]
        for place, name in enumerate(findings)
    ]
    header = ["finding", *SPLITS, *(f"AUC of {method} [95 % CI]" for method in shown)]
    yield Heading(f"Images and certainty by finding in {scenario}", 3)
    yield Paragraph(images_tested_in_words(runs))
    note = (
        "Positive / negative images; labels that are not known are left out of training and of"
        " metrics. "
    )
    note += (
        "95 % bootstrap CI over patients (images where patients are not known). †"
        f" {few_in_words()}."
    )
    yield ReportTable(
        f"Images of each finding in {scenario}", header, rows, (), note, f"splits-{slug(scenario)}"
    )


def images_tested_in_words(runs: Sequence[RecordedRun]) -> str:
    """Whom the test numbers are about."""
    test = images_by_split(runs).get("test")
    if not test:
        return ""
    patients = f" of {test['patients']:,} patients" if "patients" in test else ""
    sites = test.get("sites", {})
    where = ", ".join(f"{site} {count:,}" for site, count in list(sites.items())[:8]) + ", …" * (
        len(sites) > 8
    )
    from_sites = f" from all sites together ({where})" if sites else " that all clients share"
    tested = next(run for run in runs if run.finished)
    defined = [name for name in findings_of_runs(runs) if math.isfinite(tested.test("auc", name))]
    marked = [name for name in findings_with_few_images(runs) if name in defined]
    have = "has" if len(marked) == 1 else "have"
    few_of = f", of which {', '.join(marked)} {have} few test images (†)" if marked else ""
    said = (
        f"Test AUC and GM are computed on the common test split: {test['images']:,}"
        f" images{patients}{from_sites}"
    )
    plural = "" if len(defined) == 1 else "s"
    return f"{said}. The mean AUC is over {len(defined)} finding{plural}{few_of}."


def images_by_split(runs: Sequence[RecordedRun]) -> Mapping[str, Any]:
    """What each split holds, as the first run that says so wrote it."""
    for run in runs:
        splits = run.partition.get("splits")
        if (
            isinstance(splits, Mapping)
            and run.finished
            and all(_as_written(splits.get(one), run) for one in SPLITS)
        ):
            return splits
    return {}


def _as_written(split: Any, run: RecordedRun) -> bool:
    """Whether this is one split as a run writes it."""
    if not isinstance(split, Mapping) or not isinstance(split.get("images"), int):
        return False
    for column in (split.get("positives"), split.get("negatives")):
        if not isinstance(column, list) or len(column) != len(run.findings):
            return False
        if not all(isinstance(count, int) for count in column):
            return False
    return isinstance(split.get("sites", {}), Mapping) and isinstance(split.get("patients", 0), int)


def findings_with_few_images(runs: Sequence[RecordedRun]) -> list[str]:
    """Findings whose AUC rests on few test images."""
    test = images_by_split(runs).get("test")
    return (
        [name for place, name in enumerate(findings_of_runs(runs)) if too_few_for_auc(test, place)]
        if test
        else []
    )


def findings_with_enough_images(runs: Sequence[RecordedRun]) -> list[str]:
    """The other findings, where there are both kinds: a mean over them rests on enough test
    images.
    """
    marked = findings_with_few_images(runs)
    return [name for name in findings_of_runs(runs) if name not in marked] if marked else []


def _images_auc_cell(found: Interval | None, images: int) -> Cell:
    """Resampling cannot say how much a single image matters, so one positive or negative image has
    no interval.
    """
    if found is None or not math.isfinite(found.estimate):
        return Cell("undefined")
    span = f"[{found.low:.3f} to {found.high:.3f}]" if images > 1 else "[no CI: one image]"
    return Cell(f"{found.estimate:.3f} {span}", found.estimate)
