"""Who took part: images and patients by site and split, and labels that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from feddraw.data.dataset import SPLITS
from feddraw.report.blocks import Block, Cell, Fold, Heading, ReportTable
from feddraw.report.runs import findings_of_runs, image_counts_by_split
from feddraw.report.statistics import Report
from feddraw.text import slug

ALL_SITES = "all"
SHOWN_ROWS = 40  # a table with more is folded


def section(report: Report, scenario: str) -> Iterator[Block]:
    """One row per site and split."""
    runs = report.runs(scenario)
    splits = image_counts_by_split(runs)
    if not splits:
        return
    one = report.task.words.labels.one
    table = _table(splits, findings_of_runs(runs), scenario, one)
    yield Heading(f"Participants in {scenario}", 3)
    if len(table.rows) > SHOWN_ROWS:
        yield Fold(f"{len(table.rows)} rows by site and split", [table])
    else:
        yield table


def _table(
    splits: Mapping[str, Mapping[str, Any]], findings: Sequence[str], scenario: str, one: str
) -> ReportTable:
    sites = list(
        dict.fromkeys(site for split in splits.values() for site in split.get("by_site", {}))
    )
    rows = []
    for site in (*sorted(sites), ALL_SITES):
        for split in SPLITS:
            counts = splits[split] if site == ALL_SITES else splits[split]["by_site"].get(site)
            if counts is not None:
                rows.append([Cell(site), Cell(split), *_cells(counts, findings)])
    note = f"Positive / negative images of each {one}; “missing” are images without its label."
    if not any("patients" in splits[split] for split in SPLITS):
        note += " Patients are not known."
    if not sites:
        note += " The site of an image is not known, or all come from one."
    return ReportTable(
        caption=f"Participants by site and split in {scenario}",
        header=["site", "split", "images", "patients", *findings],
        rows=rows,
        note=note,
        label=f"participants-{slug(scenario)}",
    )


def _cells(counts: Mapping[str, Any], findings: Sequence[str]) -> Iterator[Cell]:
    images = int(counts["images"])
    yield Cell(f"{images:,}", images)
    patients = counts.get("patients")
    yield Cell("not known") if patients is None else Cell(f"{patients:,}", patients)
    for place, _ in enumerate(findings):
        positives = int(counts["positives"][place])
        negatives = int(counts["negatives"][place])
        missing = images - positives - negatives
        words = f", {missing:,} missing" if missing else ""
        yield Cell(f"{positives:,} / {negatives:,}{words}", positives)
