"""The paper's twelve scenarios: CHX-1 to CHX-7 on CheXpert (Table 2), CHM-1 to CHM-5 on ChestMNIST
(Table 3).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from feddraw import catalog
from feddraw.data.scenarios.client_sizes import scaled_count
from feddraw.errors import UserError, positive

PaperDataset = Literal["chexpert", "chestmnist"]

# Its Table 1.
PAPER_TRAINING_IMAGES: dict[PaperDataset, int] = {
    "chexpert": 191_027,
    "chestmnist": 78_468,
}
PAPER_DATASET_TITLES: dict[PaperDataset, str] = {"chexpert": "CheXpert", "chestmnist": "ChestMNIST"}
# The classes that small clients hold most of where the paper does not say what makes them
# informative.
RARE_FINDINGS: dict[PaperDataset, tuple[str, ...]] = {
    "chexpert": ("Cardiomegaly", "Consolidation"),
    "chestmnist": ("Edema", "Cardiomegaly", "Consolidation"),
}


@dataclass(frozen=True)
class PaperScenario:
    """One row of the paper's tables, or the same at another scale."""

    name: str
    dataset: PaperDataset
    composition: str
    printed: tuple[int, ...]  # images per client
    small: tuple[int, ...] = ()  # which clients, counted from 0
    enriched: str | None = None  # the class of which the paper gives the positives
    small_positives: int = 0
    large_positives: int | None = None  # per large client; None: as many as a natural draw brings
    # Of rare positives at the small clients: what the paper prints for CHX-5 and CHX-6.
    share: float = 0.65
    scale: float = 1.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Images per client at this scale, each rounded half up."""
        return tuple(scaled_count(size, self.scale) for size in self.printed)

    @property
    def large(self) -> tuple[int, ...]:
        return tuple(client for client in range(len(self.printed)) if client not in self.small)

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def description(self) -> str:
        sizes = ", ".join(f"{count} × {size:,}" for size, count in Counter(self.printed).items())
        return f"{PAPER_DATASET_TITLES[self.dataset]}, {self.composition}: {sizes}"

    @property
    def prevalence(self) -> float:
        """Of rare classes at enriched small clients, where the paper says none: as many as either
        data set can give.
        """
        return 0.5 if self.dataset == "chexpert" else 0.15

    def at(self, scale: float) -> PaperScenario:
        return replace(self, scale=scale)

    @property
    def wanted(self) -> int:
        """Images that the data should have, see `paper_scenario_images`."""
        return max(scaled_count(PAPER_TRAINING_IMAGES[self.dataset], self.scale), self.total)

    def require(self, available: int) -> None:
        """Refuse data or a scale that is too small, and say which scale would fit."""
        what = f"{self.name} at scale {self.scale:g}"
        if min(self.sizes) < 2:
            raise UserError(f"{what} leaves a client {min(self.sizes)} images: use a larger scale")
        if self.total > available:
            fits = self._largest_scale(available)
            hint = f"use a scale of {fits:g} or less" if fits else "use more data"
            raise UserError(
                f"{what} needs {self.total:,} images, the data has {available:,}: {hint}"
            )

    def _largest_scale(self, available: int) -> float:
        """To four digits; 0 if there is none."""
        steps = available * 10_000 // sum(self.printed)
        return next(
            (n / 10_000 for n in range(steps, 0, -1) if self.at(n / 10_000).total <= available), 0.0
        )


_PAPER_TABLES = (
    PaperScenario(
        "CHX-1", "chexpert", "1 large + 3 small", (20_000, *[5_000] * 3), (1, 2, 3), share=0.85
    ),
    PaperScenario("CHX-2", "chexpert", "2 large + 2 small", (20_000, 20_000, 5_000, 5_000), (2, 3)),
    PaperScenario("CHX-3", "chexpert", "3 large + 1 small", (*[10_000] * 3, 2_500), (3,)),
    PaperScenario("CHX-4", "chexpert", "9 large + 1 small", (*[10_000] * 9, 2_500), (9,)),
    PaperScenario(
        "CHX-5",
        "chexpert",
        "Atelectasis-enriched small client",
        (5_000, 10_000, 10_000),
        (0,),
        enriched="Atelectasis",
        small_positives=3_500,
        large_positives=950,
    ),
    PaperScenario(
        "CHX-6",
        "chexpert",
        "Edema-enriched small client",
        (5_000, 10_000, 10_000),
        (0,),
        enriched="Edema",
        small_positives=3_500,
        large_positives=950,
    ),
    PaperScenario("CHX-7", "chexpert", "4 equal, random split", (47_756, *[47_757] * 3)),
    PaperScenario("CHM-1", "chestmnist", "1 large + 1 small", (18_000, 60_468), (0,)),
    PaperScenario("CHM-2", "chestmnist", "1 large + 3 small", (*[9_500] * 3, 49_968), (0, 1, 2)),
    PaperScenario("CHM-3", "chestmnist", "5 large + 1 small", (*[14_000] * 5, 8_468), (5,)),
    PaperScenario(
        "CHM-4",
        "chestmnist",
        "Atelectasis-enriched small client",
        (7_000, *[15_000] * 3),
        (0,),
        enriched="Atelectasis",
        small_positives=4_000,
    ),
    PaperScenario("CHM-5", "chestmnist", "4 equal, random split", (19_617,) * 4),
)
PAPER_SCENARIOS: dict[str, PaperScenario] = {
    scenario.name.lower(): scenario for scenario in _PAPER_TABLES
}


def paper_scenario(name: str, scale: float = 1.0) -> PaperScenario | None:
    """The paper's scenario of this name, at this scale; None of any other name."""
    scenario = PAPER_SCENARIOS.get(name.lower())
    return scenario.at(positive("scale", scale)) if scenario else None


def paper_scenario_images(name: str, scale: float) -> int | None:
    """How many training images the data should have: the paper's number × scale, or None where any
    number will do.

    A few more where the clients' sizes, each rounded half up, add up to more (CHM-2 at 0.045:
    3,533, not 3,531).
    """
    catalog.check_setting_types({"scale": scale}, {"scale": 1.0}, "scenario")
    scenario = paper_scenario(name, scale)
    return scenario.wanted if scenario else None


def paper_dataset_of(name: str) -> PaperDataset | None:
    """The data set that the paper uses for a scenario."""
    scenario = paper_scenario(name)
    return scenario.dataset if scenario else None
