"""Reporting guidelines as checklists: where this report answers an item, and what its author must
add.

TRIPOD+AI is for studies that develop or evaluate a prediction model (Collins et al., BMJ
2024;385:e078378): 27 items, 52 with their parts. Items are named by their number and topic, in our
words; the checklist itself is at https://www.tripod-statement.org.

An item names the sections that answer it. A report has a section only
where its runs have the numbers, so an item is answered only where they are on the page. What nobody
but the author can know is never taken for reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from feddraw.errors import unknown
from feddraw.report.blocks import Block, Bullets, Cell, Heading, Paragraph, ReportTable
from feddraw.report.runs import words_about
from feddraw.report.statistics import Report

REPORTED = "reported"
IN_PART = "in part"
NOT_REPORTED = "not reported"

USE = "Intended use"  # of the user's words, which stand above the table
IMAGES = "Kind of images"
RUN = "What was run"
CERTAINTY = "Images and certainty by finding"
PARTICIPANTS = "Participants"
TESTS = "As a diagnostic test"
SITES = "By site"
SUBGROUPS = "By subgroup"
CLIENTS = "Each client's view"
RECALIBRATED = "Recalibrated scores"
PARTS = re.compile(r"By (.+) in ")  # the heading of a section about sites, subgroups or both
OF_SITES = {"site", "client"}


@dataclass(frozen=True)
class Item:
    """One item: its number and topic, the sections that answer it, and what is left to add."""

    number: str
    topic: str
    where: tuple[str, ...] = ()  # any of them answers
    add: str = ""  # what the report cannot know; empty: the sections are the whole answer
    unless: str = ""  # a section with which nothing is left to add

    def answered_in(self, headings: Sequence[str]) -> list[str]:
        """Those of its sections that this report has."""
        return [
            section
            for section in self.where
            if any(_is_heading_of(section, heading) for heading in headings)
        ]

    def status(self, headings: Sequence[str]) -> str:
        if not self.answered_in(headings):
            return NOT_REPORTED
        return IN_PART if self.left_to_add(headings) else REPORTED

    def left_to_add(self, headings: Sequence[str]) -> str:
        """What the author must add to a report with these headings."""
        complete = any(_is_heading_of(self.unless, heading) for heading in headings)
        return "" if self.unless and complete else self.add


def _is_heading_of(section: str, heading: str) -> bool:
    """Whether a section has this heading: it begins with its name, or names sites or subgroups."""
    parts = PARTS.match(heading)
    if parts is None or section not in (SITES, SUBGROUPS):
        return heading.startswith(section)
    groupings = set(re.split(", | and ", parts[1]))
    return bool(groupings & OF_SITES if section == SITES else groupings - OF_SITES)


TRIPOD_AI = (
    Item("1", "Title", add="a title that says whether a model is developed or evaluated, for which"
         " patients and which outcome"),
    Item("2", "Abstract", add="an abstract by TRIPOD+AI for Abstracts"),
    Item("3a", "Background: context and reason, models there are already", add="all of it"),
    Item("3b", "Background: whom the model is for, purpose and users", (USE,),
         "users, patients and place in their care (about.use begins it)"),
    Item("3c", "Background: known inequalities of health between groups", add="all of it"),
    Item("4", "Objectives: development, evaluation or both", add="all of it"),
    Item("5a", "Data: sources of training and test data, and why these", (RUN,),
         "where the images come from, why these, and whom they represent"),
    Item("5b", "Data: dates of collection", add="all of it"),
    Item("6a", "Participants: setting, number and place of centres", (PARTICIPANTS, SITES),
         "kind and place of each centre"),
    Item("6b", "Participants: who was eligible", add="all of it"),
    Item("6c", "Participants: treatments, and how they were dealt with",
         add="all of it, or that there were none"),
    Item("7", "Data preparation, checks of quality, alike in all groups", (RUN,),
         "what was checked or left out before, and whether alike in all groups"),
    Item("8a", "Outcome: what is predicted, how and when it is assessed",
         add="what each finding means, and how labels were made"),
    Item("8b", "Outcome: who judged it, where judgement is needed", add="all of it"),
    Item("8c", "Outcome: whether those who judged were blind", add="all of it"),
    Item("9a", "Predictors: which were considered, and why", (IMAGES,),
         "why these images and nothing else (about.images says which)"),
    Item("9b", "Predictors: definition, how and when measured", add="how images were acquired"),
    Item("9c", "Predictors: who judged them, where judgement is needed",
         add="all of it, or that none is needed"),
    Item("10", "Sample size: how it came about, and whether it suffices",
         add="the reason for the size; the numbers themselves are under item 21"),
    Item("11", "Missing data: how they were dealt with", (PARTICIPANTS, CERTAINTY),
         "why labels are missing; images without a label of a finding do not count for it"),
    Item("12a", "Analysis: how data were used, and split", (PARTICIPANTS, CERTAINTY, RUN)),
    Item("12b", "Analysis: how predictors were transformed", (RUN,),
         "reasons for size and preparation of the images"),
    Item("12c", "Analysis: kind of model, all steps of building it, tuning", (RUN,),
         "why this network and method, and how settings were chosen"),
    Item("12d", "Analysis: differences between clusters, such as sites", (SITES, CLIENTS)),
    Item("12e", "Analysis: measures of performance, and comparisons", (TESTS,)),
    Item("12f", "Analysis: updating of the model, such as recalibration", (RECALIBRATED,),
         "whether and why the model was recalibrated, and on which patients"),
    Item("12g", "Analysis: how predictions were made in the evaluation", (RUN,),
         "where the model can be had"),
    Item("13", "Class imbalance: whether and how it was dealt with", (TESTS, CERTAINTY),
         "whether anything was done against it, and why"),
    Item("14", "Fairness: what was done for it, and why", (SUBGROUPS,),
         "what was done, beside measuring by subgroup"),
    Item("15", "Model output: probabilities or calls, thresholds and why", (TESTS,),
         "why the threshold of the largest GM suits the intended use"),
    Item("16", "Differences between training and test data", (PARTICIPANTS, CERTAINTY),
         "differences in setting, eligibility, outcome and acquisition"),
    Item("17", "Ethical approval and consent", add="all of it"),
    Item("18a", "Funding", add="all of it"),
    Item("18b", "Conflicts of interest", add="all of it"),
    Item("18c", "Protocol", add="all of it"),
    Item("18d", "Registration", add="all of it"),
    Item("18e", "Sharing of data", add="all of it"),
    Item("18f", "Sharing of code", (RUN,), "where the code can be had; commands and versions are"
         " there"),
    Item("19", "Patients and public: how they were involved", add="all of it, or that they were"
         " not"),
    Item("20a", "Results: flow of participants, with and without outcome", (PARTICIPANTS,),
         "who was left out before the table of images was made"),
    Item("20b", "Results: characteristics, by site and group, missing data", (PARTICIPANTS,),
         "age, sex and what else describes them"),
    Item("20c", "Results: important variables in training and test data", (PARTICIPANTS, CERTAINTY),
         "distributions beside those of findings"),
    Item("21", "Results: participants and outcomes in each analysis", (CERTAINTY, TESTS)),
    Item("22", "Results: the whole model, so that others can use it", (RUN,),
         "the model itself: feddraw export"),
    Item("23a", "Results: performance with intervals, in key subgroups, plots", (TESTS,),
         "performance in key subgroups: name them in data.subgroups", SUBGROUPS),
    Item("23b", "Results: differences of performance between clusters", (SITES, CLIENTS)),
    Item("24", "Results: the updated model, if there is one", (RECALIBRATED,),
         "the results of the recalibrated model, or that there is none", RECALIBRATED),
    Item("25", "Discussion: interpretation, fairness in it", add="all of it"),
    Item("26", "Discussion: limitations", add="all of it"),
    Item("27a", "Use: poor or missing input, how to tell and what to do", add="all of it"),
    Item("27b", "Use: what users must do and know", add="all of it"),
    Item("27c", "Use: next steps, applicability elsewhere", add="all of it"),
)  # fmt: skip

CHECKLISTS = {"tripod-ai": ("TRIPOD+AI", TRIPOD_AI)}


def check_checklist(name: str) -> None:
    """Refuse a checklist that there is not."""
    if name and name not in CHECKLISTS:
        raise unknown("checklists", name, CHECKLISTS)


def checklist_blocks(name: str, report: Report, headings: Sequence[str]) -> Iterator[Block]:
    """The checklist of this name over a report with these headings."""
    title, items = CHECKLISTS[name]
    words = words_about(report.collection.runs)
    present = [*headings, *words]
    statuses = [item.status(present) for item in items]
    counts = ", ".join(
        f"{statuses.count(status)} {status}" for status in (REPORTED, IN_PART, NOT_REPORTED)
    )
    yield Heading(f"Checklist: {title}", anchor="checklist")
    yield Paragraph(
        f"{len(items)} items: {counts}. “{REPORTED}” means that the numbers are in the named"
        " sections of this page. All else is for the author to add. Items are in short, in our"
        " words: fill in the checklist of the guideline itself."
    )
    if words:
        yield Bullets([f"{what}: {said}" for what, said in words.items()])
    yield ReportTable(
        caption=f"{title}, item by item",
        header=["item", "topic", "status", "where", "to add"],
        rows=[_row(item, present) for item in items],
    )


def _row(item: Item, headings: Sequence[str]) -> list[Cell]:
    where = "; ".join(item.answered_in(headings))
    add = item.left_to_add(headings)
    if not where and not add:
        add = "all of it, or that it does not apply"
    return list(map(Cell, (item.number, item.topic, item.status(headings), where, add)))
