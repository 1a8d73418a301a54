"""An experiment file for a user's own data as they were inspected, with a first run that fits the
machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from feddraw.core.schedules import ROUNDS
from feddraw.data.image_facts import ImageFacts, fitting_channels, fitting_shape
from feddraw.data.label_cells import ABSENT, BLANK, PRESENT, UNCERTAIN
from feddraw.data.scenarios.by_site import MIN_SITE_IMAGES
from feddraw.experiment.inspect_own_data import UNCLEAR_CELLS, InspectedData
from feddraw.system.machine import cores

# Seconds of one training step of `compact` on 64 images, one core of an AMD EPYC, by height and
# width in pixels.
STEP_SECONDS = {224: 0.83, 128: 0.30, 64: 0.08, 32: 0.03}
FIRST_RUN_SECONDS = 20 * 60  # seconds that a first run may take
FIRST_RUN_EPOCHS = 2  # the paper's
ENOUGH_TO_HOLD_BACK = 100  # training images of the smallest client


@dataclass(frozen=True)
class FirstRun:
    """What to begin with."""

    scenario: str
    clients: int
    size: int  # pixels
    batch_size: int
    holdout: float
    minutes: float


def plan_first_run(inspected: InspectedData, processors: int | None = None) -> FirstRun:
    """Settings for a first run of some minutes."""
    sites = inspected.large_sites
    natural = len(sites) > 1
    images = inspected.sizes()[0]
    clients = len(sites) if natural else 4
    smallest = min(sites.values()) if natural else images // 8
    batch = next((size for size in (64, 32, 16) if smallest >= 4 * size), 8)
    busy = min(processors or cores(), clients)
    seconds = {
        px: ROUNDS * FIRST_RUN_EPOCHS * images / 64 * step / busy
        for px, step in STEP_SECONDS.items()
    }
    fitting = [
        px for px in STEP_SECONDS if px <= inspected.pixels and seconds[px] <= FIRST_RUN_SECONDS
    ]
    size = max(fitting, default=min(STEP_SECONDS))
    holdout = 0.2 if smallest >= ENOUGH_TO_HOLD_BACK else 0.0
    return FirstRun(
        "by_site" if natural else "quantity", clients, size, batch, holdout, seconds[size] / 60
    )


def experiment_file_text(
    inspected: InspectedData, chosen: FirstRun, command: str, run_it: str
) -> str:
    """The experiment file, with a comment for everything that one may want to change.

    `command` is what was typed to write it, `run_it` what to type to run it.
    """
    lines = [
        f"# Written by `{comment_text(command)}`. To run it, from the folder where that was typed:",
        f"#     {comment_text(run_it)}",
        (
            f"# About {max(1, round(chosen.minutes))} min on this machine. All other settings have"
            " their defaults. Change"
        ),
        "# a setting here, or for one run with --set, as in --set method.beta_max=2.",
        "",
        toml_line(
            "rounds", ROUNDS, "rounds of training, T; FedDRAW's schedules run over all of them"
        ),
        toml_line(
            "seed", 0, "initial model, batches and partition; give several runs several seeds"
        ),
        toml_line(
            "holdout",
            chosen.holdout,
            "share of each client's images kept back to test the model on that client",
        ),
        "",
        "[data]",
        *data_section(inspected, chosen),
        "",
        "[scenario]",
        *init_scenario_section(inspected, chosen),
        "",
        "[model]",
        toml_line(
            "name",
            "compact",
            "small DenseNet; densenet121 is the paper's (pip install 'feddraw[densenet]')",
        ),
        "",
        "[method]",
        toml_line(
            "name", "feddraw", "compare with fedavg and uniform; all methods: feddraw list methods"
        ),
        "",
        "[training]",
        toml_line("epochs", FIRST_RUN_EPOCHS, "local epochs per round"),
        toml_line(
            "batch_size", chosen.batch_size, "the smallest client should fill several batches"
        ),
        toml_line("lr", 1e-3, "Adam's; 1e-5 for densenet121, as in the paper"),
        toml_line("augment", False, "turn, shift and scale each batch a little"),
    ]
    return "\n".join(lines) + "\n"


def data_section(inspected: InspectedData, chosen: FirstRun) -> Iterator[str]:
    names = {
        "split": "training, validation, test",
        "site": "hospital of the image",
        "patient": "kept in one split",
        "group": "groups of patients, for rules that compare them (fairfed)",
    }
    yield toml_line("name", "folder", "a table and image files")
    tables = [path_in_toml(sheet) for sheet in inspected.sheets]
    one_table = "the table; relative paths start where the command is typed"
    several_tables = "one table per site; a finding that a table lacks is unknown there"
    yield toml_line(
        "path", tables if tables[1:] else tables[0], several_tables if tables[1:] else one_table
    )
    if inspected.images is not None:
        yield toml_line(
            "images", path_in_toml(inspected.images), "the folder that its paths start from"
        )
    yield toml_line("path_column", inspected.columns["path"], "PNG, JPEG or DICOM files")
    for kind, meaning in names.items():
        if inspected.columns[kind]:
            yield toml_line(f"{kind}_column", inspected.columns[kind], meaning)
    if not inspected.columns["split"]:
        yield toml_line(
            "shares",
            [0.7, 0.1, 0.2],
            f"training, validation, test: by patient, each {inspected.words.one} in proportion",
        )
    settings = _class_settings if inspected.class_column else _finding_settings
    yield from settings(inspected)
    if bad := len(inspected.unusable_rows):
        rows = "the row" if bad == 1 else f"the {bad:,} rows"
        yield toml_line("skip_bad", False, f"true leaves out {rows} that cannot be used")
    yield toml_line("size", chosen.size, "height and width in pixels")
    yield from _pixel_settings([image for facts in inspected.facts.values() for image in facts])
    yield toml_line("clahe", False, "equalise contrast, as the paper does")
    yield toml_line(
        "normalize",
        "measured",
        "mean and spread of the training images; or paper, for the paper's values",
    )


def _class_settings(inspected: InspectedData) -> Iterator[str]:
    """The column that names the class of each image, and the classes."""
    yield toml_line(
        "class_column", inspected.class_column, "names the one class of each image; blank: unknown"
    )
    yield toml_line(
        "task", "classes", "the network chooses one; findings: each may be there or not"
    )
    yield "classes = ["
    for name, counts in inspected.marks().items():
        quoted = f"  {json.dumps(name, ensure_ascii=False)},".ljust(31)
        yield f"{quoted} # {counts[PRESENT]:,} images"
    yield "]"


def _finding_settings(inspected: InspectedData) -> Iterator[str]:
    """The findings, and what blank and uncertain cells mean."""
    yield "findings = ["
    for name, counts in inspected.marks().items():
        counted = f"{counts[PRESENT]:,} positive, {counts[ABSENT]:,} negative"
        unclear = [
            f"{counts[code]:,} {word}" for code, word in UNCLEAR_CELLS.items() if counts[code]
        ]
        yield (
            f"  {json.dumps(name, ensure_ascii=False)},".ljust(31)
            + f" # {', '.join([counted, *unclear])}"
        )
    yield "]"
    first = json.dumps(next(iter(inspected.marks())), ensure_ascii=False)
    choices = f'unknown, negative, positive, or {{ {first} = "negative" }}'
    totals = {
        code: sum(counts[code] for counts in inspected.marks().values()) for code in UNCLEAR_CELLS
    }
    yield toml_line("blank", "unknown", f"{totals[BLANK]:,} blank or NA cells: {choices}")
    yield toml_line(
        "uncertain", "unknown", f"{totals[UNCERTAIN]:,} cells of -1 or uncertain: as above"
    )


def _pixel_settings(facts: Sequence[ImageFacts]) -> Iterator[str]:
    """Channels, shape and grey levels, as fits the files that were opened."""
    channels = fitting_channels(facts)
    kinds = {1: "1: grey, 3: colour", 3: "3: colour, 1: grey (luminance)"}
    yield toml_line("channels", channels, f"{kinds[channels]}; networks must take as many")
    fit = fitting_shape(facts)
    square = "images are square" if fit == "squash" else "images are not all square"
    yield toml_line("fit", fit, f"{square}; squash stretches, pad adds black, crop cuts")
    rule = "16-bit PNG by its full range, DICOM by its window or else by all it can store"
    yield toml_line("levels", [], f"{rule}; or [black, white]")


def init_scenario_section(inspected: InspectedData, chosen: FirstRun) -> Iterator[str]:
    yield toml_line("name", chosen.scenario, clients_in_words(inspected, chosen))
    if chosen.scenario == "by_site":
        yield toml_line(
            "minimum", MIN_SITE_IMAGES, "training images below which a site is left out"
        )
        return
    yield toml_line(
        "clients", chosen.clients, "other scenarios are iid and dirichlet: feddraw list scenarios"
    )
    if inspected.columns["patient"]:
        yield toml_line("patient_disjoint", True, "all images of a patient at one client")


def clients_in_words(inspected: InspectedData, chosen: FirstRun) -> str:
    """Who the clients are, who is left out, and why the table's sites are not the clients where
    they are not.
    """
    if chosen.scenario == "by_site":
        sites = f"each site is a client: {sites_in_words(inspected.large_sites)}"
        small = {
            site: count
            for site, count in inspected.sites.items()
            if site not in inspected.large_sites
        }
        return sites + (
            f"; left out, under {MIN_SITE_IMAGES} training images: {sites_in_words(small)}"
            if small
            else ""
        )
    few = (
        f"fewer than two sites have {MIN_SITE_IMAGES} training images"
        f" ({sites_in_words(inspected.sites)})"
    )
    none = "no column with sites was found"
    if not inspected.written:
        none += ' (if there is one, name it: data.site_column, and scenario.name = "by_site")'
    why = few if inspected.sites else none
    return f"{why}, so the images are split into {chosen.clients} simulated clients of unequal size"


def sites_in_words(sites: Mapping[str, int]) -> str:
    some = ", ".join(f"{site} {count:,}" for site, count in islice(sites.items(), 8))
    return some + (", …" if len(sites) > 8 else "")


def toml_line(name: str, value: object, comment: str) -> str:
    """A line of TOML; JSON writes these values as TOML does."""
    return (
        f"{name} = {json.dumps(value, ensure_ascii=False)}".ljust(31)
        + f" # {comment_text(comment)}"
    )


def comment_text(text: str) -> str:
    """A comment that stays one, whatever a table's sites are called."""
    return "".join(character if character.isprintable() else " " for character in text)


def path_in_toml(path: Path) -> str:
    return Path(os.path.relpath(path)).as_posix() if not path.is_absolute() else path.as_posix()
