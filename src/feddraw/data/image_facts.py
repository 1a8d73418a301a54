"""What image files are, beside their pixels: format, bit depth, size, colour, and what a DICOM file
says of its modality.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from feddraw.data.imaging import decode, has_colours, header_of, is_dicom

PNG_MARK = b"\x89PNG\r\n\x1a\n"
BITS_IN_PNG = 24  # where its first chunk has them, and behind them its kind of colours
GREY_IN_PNG = (0, 4)  # without and with transparency
DARK = 64  # of 255: 16-bit PNGs that stay below it hold values of fewer bits
SHOWN_VALUES = 3  # of a site, before they are abbreviated

FactsBySite = Mapping[str, Sequence["ImageFacts"]]


@dataclass(frozen=True)
class ImageFacts:
    """What one file is."""

    format: str  # PNG, JPEG or DICOM
    bits: int  # of a pixel in one channel
    height: int
    width: int
    in_colour: bool
    modality: str = ""  # as DICOM says it: DX, CT, …
    brightest: int = 255  # level, once it is brought to 8 bits

    @property
    def file_in_words(self) -> str:
        return f"{self.format} {self.modality} {self.bits} bits".replace("  ", " ")

    @property
    def size_in_words(self) -> str:
        return f"{self.width} × {self.height}"

    @property
    def colour_in_words(self) -> str:
        return "colour" if self.in_colour else "grey"


def look_at(path: Path) -> ImageFacts:
    """A file's facts; raises `BadImage` if it cannot be decoded."""
    pixels = decode(path, channels=3)
    height, width, _ = pixels.shape
    kind, bits, modality = _kind_of_file(path)
    return ImageFacts(
        format=kind,
        bits=bits,
        height=height,
        width=width,
        in_colour=has_colours(pixels),
        modality=modality,
        brightest=int(pixels.max()),
    )


def _kind_of_file(path: Path) -> tuple[str, int, str]:
    """Format, bit depth and modality."""
    header = header_of(path)
    if header.startswith(PNG_MARK):
        return "PNG", max(8, header[BITS_IN_PNG]), ""
    if not is_dicom(path):
        return "JPEG", 8, ""
    import pydicom

    file = pydicom.dcmread(path, stop_before_pixels=True)
    return "DICOM", int(file.get("BitsStored") or 0), modality_of(file.get("Modality"))


def modality_of(written: object) -> str:
    """DICOM's code, or nothing where it is absent or is none."""
    code = str(written or "").strip().upper()
    return code if code.isalnum() and code.isascii() and len(code) <= 16 else ""


def dicom_modality(path: Path) -> str:
    """What a DICOM file says it was taken with; empty for other files, and where it does not."""
    if not is_dicom(path):
        return ""
    import pydicom

    try:
        file = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=["Modality"])
        return modality_of(file.get("Modality"))
    except Exception:  # the file is damaged: decoding it will say so
        return ""


def is_in_colour(path: Path) -> bool:
    """Whether the pixels of a file that can be decoded have colours."""
    header = header_of(path)
    if header.startswith(PNG_MARK) and header[BITS_IN_PNG + 1] in GREY_IN_PNG:
        return False  # most radiographs: they need not be decoded again
    return has_colours(decode(path, channels=3))


# ------------------------------------------------------------------------------------- of all sites


def fitting_channels(facts: Iterable[ImageFacts]) -> int:
    """1 if all are grey."""
    return 3 if any(image.in_colour for image in facts) else 1


def fitting_shape(facts: Iterable[ImageFacts]) -> str:
    """How images become squares: as they are if they are square, else in their own proportions."""
    return "squash" if all(image.height == image.width for image in facts) else "pad"


def facts_table(by_site: FactsBySite) -> list[list[str]]:
    """For each site: its name, how many files were opened, and what they are."""
    asked = (_file, _size, _colour)
    return [
        [site, f"{len(facts):,}", *(_counted(map(ask, facts)) for ask in asked)]
        for site, facts in by_site.items()
        if facts
    ]


def _file(image: ImageFacts) -> str:
    return image.file_in_words


def _size(image: ImageFacts) -> str:
    return image.size_in_words


def _colour(image: ImageFacts) -> str:
    return image.colour_in_words


def _counted(values: Iterable[str]) -> str:
    """The most common values, with their numbers where there are several."""
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    shown = [f"{value} ({count:,})" for value, count in counts.most_common(SHOWN_VALUES)]
    more = len(counts) - len(shown)
    return ", ".join([*shown, f"{more} others"] if more else shown)


def differences_in_words(by_site: FactsBySite) -> Iterator[str]:
    """A sentence for each way in which sites' files differ, and for files that are nearly black."""
    asked: dict[str, Callable[[ImageFacts], str]] = {
        "format or bit depth": _file,
        "colour": _colour,
        "size": _size,
    }
    looked_at = {site: facts for site, facts in by_site.items() if facts}
    for what, ask in asked.items():
        kinds = {site: _counted(map(ask, facts)) for site, facts in looked_at.items()}
        if len(set(kinds.values())) > 1:
            each = "; ".join(f"{site}: {kind}" for site, kind in kinds.items())
            yield f"the sites' images differ in {what} ({each})"
    for site, facts in looked_at.items():
        deep = [image.brightest for image in facts if image.format == "PNG" and image.bits == 16]
        if deep and max(deep) < DARK:
            yield (
                f"the 16-bit PNGs of {site} reach {100 * max(deep) / 255:.0f} % of white: if they"
                " hold fewer bits, say by data.levels what is black and what is white, such as"
                " [0, 4095] for 12"
            )
