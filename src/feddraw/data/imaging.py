"""From a file to pixels: decode, bring to one scale of grey levels, make square, then CLAHE, in the
paper's order.

One rule for grey levels, whatever a file's bit depth: black and white are the ends of the range
that the file itself states. Of 8 bits that is 0 to 255, of a 16-bit PNG 0 to 65535, of a DICOM file
its window (VOI), or without one all values that it can store, rescaled. No image is stretched by
its own darkest and brightest pixel. `levels` overrules the files of more than 8 bits.

CLAHE is scikit-image's, because other libraries' differ from it by up to 76 grey levels. Resizing
is Pillow's antialiased bilinear one. An exported bundle has a copy of this file, so it imports
nothing of ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # (height, width) grey, or (height, width, 3) in colour
Levels = Sequence[float]  # the values that become black and white; empty: the file's own

MAX_PIXELS = 64_000_000  # four times what the largest detectors give
MAX_FILE = 512 * 2**20  # bytes of a DICOM file, which is read whole
HEADER = 132  # bytes at the beginning of a file that tell what it is
FITS = {
    "squash": "the whole image, stretched to a square",
    "pad": "the whole image in its own proportions, with black beside it",
    "crop": "the middle square of the image",
}
MOST_TINT = 16  # levels by which the channels of an image that is grey may differ
GREY_DICOM = ("MONOCHROME1", "MONOCHROME2")
COLOUR_DICOM = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")


class BadImage(Exception):
    """A file that is no usable image; the text says why, the caller knows which."""


@dataclass(frozen=True)
class Recipe:
    """What is done to every image, once; part of the cache's key."""

    size: int
    clahe: bool = False
    kernel: int = 28
    clip: float = 0.02
    channels: int = 1  # 3: red, green and blue
    fit: str = "squash"
    levels: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a prepared image."""
        square = (self.size, self.size)
        return square if self.channels == 1 else (*square, self.channels)

    def key(self) -> dict[str, Any]:
        """What tells prepared images from others; a setting that changes no pixel at its default
        stands there only where it has another value.
        """
        defaults = {"channels": 1, "fit": "squash", "levels": ()}
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in defaults or value != defaults[name]
        }

    def of_file(self, path: Path) -> Pixels:
        """An image file, ready for training."""
        return self.apply(decode(path, self.channels, self.levels))

    def apply(self, image: Pixels) -> Pixels:
        """An image that is decoded, ready for training."""
        image = in_channels(image, self.channels)
        if self.fit == "crop":
            image = middle_square(image)
        height, width = self._size_within_square(image)
        image = resize(image, height, width)
        if self.clahe:
            image = clahe(image, self.kernel, self.clip)
        return image if height == width else self._amid_black(image)

    def _size_within_square(self, image: Pixels) -> tuple[int, int]:
        height, width = image.shape[:2]
        if self.fit != "pad":
            return self.size, self.size
        longer = max(height, width)
        return max(1, round(self.size * height / longer)), max(1, round(self.size * width / longer))

    def _amid_black(self, image: Pixels) -> Pixels:
        height, width = image.shape[:2]
        top = (self.size - height) // 2
        left = (self.size - width) // 2
        square = np.zeros(self.shape, np.uint8)
        square[top : top + height, left : left + width] = image
        return square


# ---------------------------------------------------------------------------------------- decoding


def decode(path: Path, channels: int = 1, levels: Levels = ()) -> Pixels:
    """The pixels of a PNG, JPEG or DICOM file, told apart by their content, with 1 channel (grey,
    colours as their luminance) or 3.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise BadImage("not a regular file")
        dicom = _has_dicom_mark(path)
        if path.stat().st_size == 0:
            raise BadImage("the file is empty")
        with warnings.catch_warnings():
            # Decoders' own remarks; what cannot be read is told by us.
            warnings.simplefilter("ignore")
            read = decode_dicom if dicom else decode_picture
            return read(path, channels, levels)
    except BadImage:
        raise
    except (
        Exception
    ) as error:  # decoders raise anything on damaged or hostile files: it is the file's fault
        raise BadImage(why_not_decoded(error)) from error


def is_dicom(path: Path) -> bool:
    """Whether a file can be opened and begins like DICOM."""
    try:
        return path.is_file() and _has_dicom_mark(path)
    except OSError:
        return False


def _has_dicom_mark(path: Path) -> bool:
    return header_of(path)[128:] == b"DICM"


def header_of(path: Path) -> bytes:
    """The first bytes of a file."""
    with path.open("rb") as file:
        return file.read(HEADER)


def has_levels_of_its_own(header: bytes) -> bool:
    """Whether the first bytes are of a file whose grey levels have to be brought to 8 bits: DICOM,
    or a grey PNG of 16 bits.
    """
    bits_and_colours = header[24:26]  # of PNG's first chunk, which has its place
    return header[128:] == b"DICM" or (
        header.startswith(b"\x89PNG\r\n\x1a\n") and bits_and_colours == b"\x10\x00"
    )


def decode_picture(path: Path, channels: int = 1, levels: Levels = ()) -> Pixels:
    """PNG or JPEG; transparency is left out."""
    from PIL import Image

    with Image.open(path, formats=("PNG", "JPEG")) as picture:
        check_pixel_count(picture.width, picture.height)
        if picture.mode.startswith("I"):  # grey of 16 bits
            low, high = levels or (0, 2**16 - 1)
            return in_channels(grey_levels(np.asarray(picture, np.float64), low, high), channels)
        return np.asarray(picture.convert("L" if channels == 1 else "RGB"))


def decode_dicom(path: Path, channels: int = 1, levels: Levels = ()) -> Pixels:
    """One frame, grey or in colour; grey is inverted where white means air."""
    import pydicom
    from pydicom.pixels.utils import pixel_array

    if path.stat().st_size > MAX_FILE:
        raise BadImage(f"a DICOM file of more than {MAX_FILE >> 20} MB")
    if pydicom.filereader.read_file_meta_info(path).TransferSyntaxUID.is_deflated:
        raise BadImage("deflated DICOM, which can unpack to any size, is not read")
    file = pydicom.dcmread(path)
    for tag in ("Rows", "Columns", "PhotometricInterpretation"):
        if file.get(tag) is None:
            raise BadImage(f"a DICOM file without {tag}")
    if not any(tag in file for tag in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise BadImage("a DICOM file without pixels")
    check_pixel_count(int(file.Columns), int(file.Rows))
    photometric = str(file.PhotometricInterpretation)
    frames = int(file.get("NumberOfFrames") or 1)
    grey = photometric in GREY_DICOM
    pixels = None
    if frames == 1 and (grey or photometric in COLOUR_DICOM):
        pixels = pixel_array(file)  # as red, green and blue, where it has colours
    if pixels is None or pixels.ndim != (2 if grey else 3):
        shown = photometric if photometric.isprintable() and len(photometric) < 20 else "damaged"
        counted = "1 frame" if frames == 1 else f"{frames} frames"
        raise BadImage(f"not a single frame in grey or in colours ({shown}, {counted})")
    if grey:
        return in_channels(_grey_of_dicom(file, pixels, levels), channels)
    low, high = _stored_range(file)
    return in_channels(grey_levels(pixels.astype(np.float64), low, high), channels)


def _grey_of_dicom(file: Any, pixels: NDArray[Any], levels: Levels) -> Pixels:
    """Black and white as the levels say; or else the file's own table (VOI LUT), its first window,
    or the range of what it can store.
    """
    from pydicom.pixels.processing import apply_modality_lut, apply_voi

    values = apply_modality_lut(pixels, file)
    centre = _first_number(file.get("WindowCenter"))
    width = _first_number(file.get("WindowWidth"))
    if levels:
        grey = grey_levels(values.astype(np.float64), *levels)
    elif file.get("VOILUTSequence"):
        bits = int(file.VOILUTSequence[0].LUTDescriptor[2])
        grey = grey_levels(apply_voi(values, file).astype(np.float64), 0, 2**bits - 1)
    elif centre is not None and width is not None:
        kind = str(file.get("VOILUTFunction") or "LINEAR")
        grey = _as_bytes(share_of_window(values.astype(np.float64), centre, width, kind))
    else:
        low, high = _rescaled_range(file)
        grey = grey_levels(values.astype(np.float64), low, high)
    inverted: Pixels = 255 - grey
    return inverted if file.PhotometricInterpretation == "MONOCHROME1" else grey


def _first_number(value: Any) -> float | None:
    """Of a tag that may be absent, empty or a list."""
    if value is None or value == "":
        return None
    listed = [value] if isinstance(value, int | float | str) else list(value)
    return float(listed[0]) if listed else None


def _stored_range(file: Any) -> tuple[float, float]:
    """The lowest and the highest value that the file's pixels can have."""
    if "PixelData" not in file:
        raise BadImage("floating pixels without a window: give data.levels")
    bits = int(file.BitsStored)
    if file.get("PixelRepresentation"):  # signed
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


def _rescaled_range(file: Any) -> tuple[float, float]:
    """The same after the modality's table, or its rescaling."""
    if file.get("ModalityLUTSequence"):
        return 0, 2 ** int(file.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    low, high = _stored_range(file)
    if "RescaleSlope" not in file or "RescaleIntercept" not in file:
        return low, high
    ends = [float(file.RescaleSlope) * end + float(file.RescaleIntercept) for end in (low, high)]
    return min(ends), max(ends)


def share_of_window(
    values: NDArray[np.float64], centre: float, width: float, kind: str = "LINEAR"
) -> NDArray[np.float64]:
    """Where values lie between black (0) and white (1) of a window (DICOM PS3.3 C.11.2.1.2 and
    C.11.2.1.3).
    """
    kind = kind.upper()
    if kind not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        raise BadImage("a window of an unknown kind (VOI LUT Function)")
    if width <= 0 or (kind == "LINEAR" and width < 1):
        raise BadImage("a window without a width")
    if kind == "SIGMOID":
        exponent = np.clip(-4 * (values - centre) / width, -700, 700)
        return np.asarray(1 / (1 + np.exp(exponent)))
    if kind == "LINEAR":
        centre -= 0.5
        width -= 1
    if width == 0:
        return (values > centre).astype(np.float64)
    return np.asarray(np.clip((values - centre) / width + 0.5, 0, 1))


def grey_levels(values: NDArray[np.float64], low: float, high: float) -> Pixels:
    """Bytes of which 0 is the low value or less, and 255 the high one or more."""
    if not high > low:
        raise BadImage("all its values are rescaled to one")
    return _as_bytes(np.clip((values - low) / (high - low), 0, 1))


def _as_bytes(shares: NDArray[np.float64]) -> Pixels:
    return np.asarray(np.rint(255 * shares).astype(np.uint8))


def check_pixel_count(width: int, height: int) -> None:
    """Before anything is decoded: a small file can unpack to more than the memory holds."""
    if width * height > MAX_PIXELS:
        raise BadImage(f"{width:,} × {height:,} pixels, more than the limit of {MAX_PIXELS:,}")


# ---------------------------------------------------------------------------------------- preparing


def in_channels(image: Pixels, channels: int) -> Pixels:
    """Grey as three equal channels, or colours as their luminance, where that is wanted."""
    from PIL import Image

    if image.ndim == 2:
        return image if channels == 1 else np.repeat(image[..., None], channels, axis=2)
    return np.asarray(Image.fromarray(image).convert("L")) if channels == 1 else image


def has_colours(image: Pixels) -> bool:
    """Whether the channels of an image differ by more than what JPEG makes of grey."""
    return image.ndim == 3 and int(np.ptp(image, axis=2).max()) > MOST_TINT


def middle_square(image: Pixels) -> Pixels:
    height, width = image.shape[:2]
    side = min(height, width)
    top = (height - side) // 2
    left = (width - side) // 2
    return image[top : top + side, left : left + side]


def resize(image: Pixels, height: int, width: int) -> Pixels:
    """To this height and width, antialiased."""
    from PIL import Image

    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def clahe(image: Pixels, kernel: int = 28, clip: float = 0.02) -> Pixels:
    """Contrast-limited adaptive histogram equalisation, of colours in their brightness; a flat
    image, which would come out as noise, stays as it is.
    """
    from skimage.exposure import equalize_adapthist

    if image.min() == image.max():
        return image
    return np.asarray(
        np.rint(255 * equalize_adapthist(image, kernel_size=kernel, clip_limit=clip)).astype(
            np.uint8
        )
    )


def why_not_decoded(error: Exception) -> str:
    """Why a decoder gave up, in few words and without the path, which the caller names."""
    text = next(iter(str(error).splitlines()), type(error).__name__)
    if "cannot identify image file" in text:
        return "not a PNG, JPEG or DICOM image"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if "Truncated File Read" in text:  # Pillow's words, also for a file of noise
        return "the file is damaged or not complete"
    return text if len(text) < 120 else f"{text[:117]}..."
