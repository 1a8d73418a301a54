"""From a file to grey pixels: decode, make grey, resize, then CLAHE, in the paper's order.

CLAHE is scikit-image's, because other libraries' differ from it by up to 76 grey levels. Resizing
is Pillow's antialiased bilinear one to a square, whatever the shape of the film.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError, first_line
from feddraw.system.machine import installed

Grey = NDArray[np.uint8]  # (height, width)

MAX_PIXELS = 64_000_000  # four times what the largest detectors give
MAX_FILE = 512 * 2**20  # bytes of a DICOM file, which is read whole


class BadImage(Exception):
    """A file that is no usable image; the text says why, the caller knows which."""


@dataclass(frozen=True)
class Recipe:
    """What is done to every image, once; part of the cache's key."""

    size: int
    clahe: bool = False
    kernel: int = 28
    clip: float = 0.02

    def apply(self, image: Grey) -> Grey:
        """(size, size) pixels, ready for training."""
        square = resize(image, self.size)
        return clahe(square, self.kernel, self.clip) if self.clahe else square


def decode(path: Path) -> Grey:
    """The grey pixels of a PNG, JPEG or DICOM file, told apart by their content."""
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise BadImage("not a regular file")
        dicom = _has_dicom_mark(path)
        if path.stat().st_size == 0:
            raise BadImage("the file is empty")
        with warnings.catch_warnings():
            # Decoders' own remarks; what cannot be read is told by us.
            warnings.simplefilter("ignore")
            return decode_dicom(path) if dicom else decode_picture(path)
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
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def decode_picture(path: Path) -> Grey:
    """PNG or JPEG; colour becomes luminance, 16 bits are stretched from darkest to brightest."""
    from PIL import Image

    with Image.open(path, formats=("PNG", "JPEG")) as picture:
        check_pixel_count(picture.width, picture.height)
        if picture.mode.startswith(("I", "F")):
            return stretch_grey(np.asarray(picture, dtype=np.float64))
        return np.asarray(picture.convert("L"))


def decode_dicom(path: Path) -> Grey:
    """One grey frame, after its own modality table and first window; inverted where white means
    air.
    """
    import pydicom
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

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
    pixels = (
        file.pixel_array if photometric in ("MONOCHROME1", "MONOCHROME2") and frames == 1 else None
    )
    if pixels is None or pixels.ndim != 2:
        shown = photometric if photometric.isprintable() and len(photometric) < 20 else "damaged"
        counted = "1 frame" if frames == 1 else f"{frames} frames"
        raise BadImage(f"not a single grey frame ({shown}, {counted})")
    windowed = apply_voi_lut(apply_modality_lut(pixels, file), file, index=0)
    grey = stretch_grey(windowed.astype(np.float64))
    return 255 - grey if photometric == "MONOCHROME1" else grey


def check_pixel_count(width: int, height: int) -> None:
    """Before anything is decoded: a small file can unpack to more than the memory holds."""
    if width * height > MAX_PIXELS:
        raise BadImage(f"{width:,} × {height:,} pixels, more than the limit of {MAX_PIXELS:,}")


def stretch_grey(values: NDArray[np.float64]) -> Grey:
    """The darkest becomes 0 and the brightest 255; nothing to stretch in a flat image."""
    low = values.min()
    high = values.max()
    return np.asarray(
        np.rint((values - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)
    )


def resize(image: Grey, size: int) -> Grey:
    """To a square, antialiased."""
    from PIL import Image

    if image.shape == (size, size):
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))


def clahe(image: Grey, kernel: int = 28, clip: float = 0.02) -> Grey:
    """Contrast-limited adaptive histogram equalisation; a flat image, which would come out as
    noise, stays as it is.
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
    text = first_line(error)
    if "cannot identify image file" in text:
        return "not a PNG, JPEG or DICOM image"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if "Truncated File Read" in text:  # Pillow's words, also for a file of noise
        return "the file is damaged or not complete"
    return text if len(text) < 120 else f"{text[:117]}..."


def require_pydicom_for(paths: Iterable[Path]) -> None:
    """Refuse DICOM files where pydicom, which reads them, is not installed; archives also write
    them without an ending, so that only their content tells.
    """
    if installed("pydicom"):
        return
    strange = (path for path in paths if path.suffix.lower() not in (".png", ".jpg", ".jpeg"))
    if any(path.suffix.lower() in (".dcm", ".dicom") or is_dicom(path) for path in strange):
        raise UserError("DICOM files need pydicom: pip install 'feddraw[dicom]'")
