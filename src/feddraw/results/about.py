"""What a run is about in its user's own words: recorded with it, shown by the report, quoted by the
model card. Nothing is computed from it.
"""

from __future__ import annotations

from dataclasses import dataclass

# Data sets whose kind of image is known; of one's own only its owner knows it.
RADIOGRAPHS = ("chestmnist", "chexpert", "nih", "phantom")


@dataclass(frozen=True)
class About:
    """In the user's words."""

    images: str = ""  # what kind of images, such as "photographs of skin lesions"
    use: str = ""  # what the model is meant for, by whom and for whom
    note: str = ""  # anything worth knowing about this run (`feddraw run --note`)
    tags: str = ""  # words to find it by, with commas between (`feddraw run --tag`)

    @property
    def tag_list(self) -> list[str]:
        """The tags one by one."""
        return [tag for part in self.tags.split(",") if (tag := part.strip())]


def images_in_words(about: About, data_name: str) -> str:
    """What kind of images a run is about; empty where nobody said so."""
    return about.images.strip() or ("chest radiographs" if data_name in RADIOGRAPHS else "")
