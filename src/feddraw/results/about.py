"""What a run is about in its user's own words: recorded with it, shown by the report, quoted by the
model card. Nothing is computed from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from feddraw import catalog


@dataclass(frozen=True)
class About:
    """In the user's words."""

    images: str = ""  # what kind of images, such as "photographs of skin lesions"
    use: str = ""  # what the model is meant for, by whom and for whom
    note: str = ""  # anything worth knowing about this run (`feddraw run --note`)
    tags: str = ""  # words to find it by, with commas between (`feddraw run --tag`)


def images_in_words(about: About, data_name: str) -> str:
    """What kind of images a run is about, by its user or by the data set's file; empty where nobody
    said so.
    """
    of_chests = catalog.declared("datasets", data_name, "CHEST_RADIOGRAPHS")
    return about.images.strip() or ("chest radiographs" if of_chests else "")
