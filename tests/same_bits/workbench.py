"""What all cases share: one small data set, the tree's methods, and how a case is carried out."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from artefacts import Document, decode_run, write_document
from renames import Renames

Cases = Iterator[tuple[str, Callable[[], Document]]]  # a case's name, and what gives its document
Settings = Mapping[str, Any]

SITES = {"Coast": 12, "East": 40, "Hill": 28, "North": 72, "West": 20}  # training images
FIRST_SITE, ROUNDS, FEWER_IMAGES = "Coast", 3, 48
# slow at the server; too few images for the usual batches
METHOD_SETTINGS = {
    "fedlaw": {"epochs": 2},
    "random_effects": {"batch_size": 4},
    "effects_then_uniform": {"batch_size": 4},
}
SCAFFOLD_BY_GRADIENTS = {"method.option": "I", "method.space": "gradient"}
# for --quick: every kind of local, weighting and server rule with a way of its own through the code
QUICK_METHODS = (
    "alone",
    "centralised",
    "ditto",
    "fairfed",
    "fedavg",
    "fedbn",
    "feddraw",
    "feddraw_by_class",
)
QUICK_METHODS += ("feddyn", "fedlaw", "feddisco", "krum", "qfedavg", "random_effects", "scaffold")


@dataclass(frozen=True)
class Workbench:
    """The tree at hand, and where its artefacts go."""

    out: Path
    scratch: Path
    names: Renames
    quick: bool = False

    def find(self, former: str) -> Any:
        """An object of the tree, by its former `module:name`."""
        return self.names.find(former)

    # ------------------------------------------------------------ methods

    @cached_property
    def catalogue(self) -> list[dict[str, Any]]:
        """`feddraw list methods`."""
        rows: list[dict[str, Any]] = json.loads(self.command("list", "methods", "--json"))
        return rows

    @cached_property
    def methods(self) -> list[str]:
        """Every method of the tree; with --quick, some."""
        names = [row["name"] for row in self.catalogue]
        return [name for name in names if not self.quick or name in QUICK_METHODS]

    @cached_property
    def all_mixtures(self) -> list[str]:
        """Every A+B that the tree accepts."""
        pairs = [f"{a}+{b}" for a in self.methods for b in self.methods if a != b]
        return [pair for pair in pairs if not self.refusal({"method": pair})]

    def some_mixtures(self, changes: Settings | None = None) -> list[str]:
        """So many that each possible half is there; which ones depends on no method beside them."""
        chosen: dict[str, str] = {}
        fit = [
            one for one in self.all_mixtures if not self.refusal({**(changes or {}), "method": one})
        ]
        for pair in sorted(fit, key=_shuffled):
            first, _, second = pair.partition("+")
            chosen.setdefault(f"{first}+", pair)
            chosen.setdefault(f"+{second}", pair)
        return sorted(set(chosen.values()))

    def several(self, changes: Settings | None = None) -> dict[str, Settings]:
        """By name: each method, mixtures with each half, and the SCAFFOLD that can be secure."""
        names = [
            *self.methods,
            *self.some_mixtures(changes),
        ]  # of mixtures, those that are not refused
        found: dict[str, Settings] = {name: {"method": name} for name in names}
        found["scaffold option I"] = {"method": "scaffold", **SCAFFOLD_BY_GRADIENTS}
        return found

    @cached_property
    def kinds_of_client(self) -> list[str]:
        """A method for every local rule, and for all that clients are asked beside the model."""
        make = self.find("feddraw.experiment.settings:make_method")
        staying = sorted(self.methods, key=self.names.names_moved_out)  # those that left come last
        kinds: dict[Any, str] = {}
        for name in staying:
            method = make(self.experiment({"method": name}))
            kinds.setdefault((type(method.local).__name__, tuple(method.sends)), name)
        return sorted(kinds.values())

    # ------------------------------------------------------------ data

    @cached_property
    def dataset(self) -> Any:
        """Phantoms of five sites of unequal size, with patients and two groups of them."""
        kept = {"validation": FEWER_IMAGES, "test": FEWER_IMAGES}
        made = self.find("feddraw.datasets.phantom:phantom")(
            size=28, train=sum(SITES.values()), **kept
        )
        count = len(made.labels)
        sites = np.array([list(SITES)[number % len(SITES)] for number in range(count)])
        sites[made.rows["train"]] = np.repeat(list(SITES), list(SITES.values()))
        patients = np.array([f"P{number // 2}" for number in range(count)])
        groups = np.array(["F" if number % 4 < 2 else "M" for number in range(count)])
        labels = replace(made.labels, sites=sites, patients=patients, groups=groups)
        return replace(made, labels=labels)

    @cached_property
    def partly_labelled(self) -> Any:
        """The same, but most sites leave a finding unlabelled, and some labels are unknown."""
        labels = self.dataset.labels
        known = np.random.default_rng(1).random(labels.values.shape) > 0.05
        for number, site in enumerate(SITES):
            at_site = np.isin(np.arange(len(labels)), self.dataset.rows["train"]) & (
                labels.sites == site
            )
            known[at_site, number % len(labels.findings)] &= site == FIRST_SITE
        values = np.where(known, labels.values, 0).astype(np.uint8)
        return replace(self.dataset, labels=replace(labels, values=values, known=known))

    # ------------------------------------------------------------ experiments

    def experiment(self, changes: Settings) -> Any:
        """Five sites, three rounds of one epoch, three convolutions."""
        import feddraw

        usual: dict[str, Any] = {"scenario": "by_site", "model": "plain", "model.width": 4}
        usual |= {
            "engine": "serial",
            "rounds": ROUNDS,
            "holdout": 0.2,
            "proxy": 16,
            "data.size": 28,
        }
        usual |= {"training.batch_size": 8, "training.epochs": 1, "method": "feddraw"}
        if "model" in changes:
            del usual["model.width"]
        if "training.steps" in changes and hasattr(feddraw.Experiment().training, "work"):
            usual["training.work"] = "steps"  # trees before this setting took it as said
        method = str(changes.get("method", "feddraw")).partition("+")[0]
        own = {f"method.{key}": value for key, value in METHOD_SETTINGS.get(method, {}).items()}
        return feddraw.Experiment().with_settings(usual | own | dict(changes))

    def refusal(self, changes: Settings) -> str:
        """Why the tree refuses an experiment before it begins; empty where it does not."""
        import feddraw

        try:
            self.find("feddraw.experiment.settings:complete")(self.experiment(changes))
        except feddraw.UserError as refusal:
            return str(refusal)
        return ""

    def run(self, changes: Settings, dataset: Any = None) -> Document:
        """Carry out an experiment, and decode what it wrote."""
        import feddraw

        folder = self.new_folder()
        feddraw.run(self.experiment(changes), folder, dataset=dataset or self.dataset)
        return decode_run(folder, self.names)

    def new_folder(self) -> Path:
        """A folder that nobody has used."""
        taken = sum(1 for _ in self.scratch.iterdir())
        (folder := self.scratch / f"{taken:05}").mkdir()
        return folder

    def command(self, *words: str) -> str:
        """What `python -m feddraw …` prints."""
        environment = os.environ | {"COLUMNS": "200", "PYTHONWARNINGS": "ignore"}
        given: dict[str, Any] = {
            "capture_output": True,
            "text": True,
            "cwd": self.scratch,
        }
        done = subprocess.run(
            [sys.executable, "-m", "feddraw", *words], check=False, env=environment, **given
        )
        if done.returncode:
            raise RuntimeError(f"feddraw {' '.join(words)}: {done.stderr.strip()[-400:]}")
        return done.stdout

    # ------------------------------------------------------------ cases

    def carry_out(self, case: str, produce: Callable[[], Document]) -> str:
        """Keep what a case gives: its document, a refusal, or an error, which is returned."""
        import feddraw

        error = ""
        try:
            document = produce()
        except (feddraw.UserError, feddraw.RunFailed) as refusal:
            document = {"refused": True, "words": {"refused": str(refusal)}}
        except Exception as trouble:
            error = f"{type(trouble).__name__}: {trouble}"
            document = {"error": error, "words": {"traceback": traceback.format_exc()}}
        write_document(self.out, case, document)
        return error


def _shuffled(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
