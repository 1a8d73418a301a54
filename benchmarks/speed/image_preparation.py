"""How many images per second are decoded, resized and equalised: phantoms, saved as JPEG files
larger than wanted.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from benchmarks.speed.timing import TimingSession, ratio_of_times, seconds_of
from feddraw.data.datasets.phantom import phantom
from feddraw.data.image_cache import FilesToCache, file_stamp, prepare_images
from feddraw.data.imaging import Recipe

PIXELS = 224
PHANTOMS = 48  # different images among the files


def measure_image_preparation(session: TimingSession) -> dict[str, Any]:
    """Images a second with one worker and with two, starting the workers included, and the
    ratio.
    """
    images = 240 if session.quick else 1600
    with tempfile.TemporaryDirectory() as folder:
        files = _save_jpegs(Path(folder), images)
        works = {
            "one": partial(_seconds_of_preparation, files, 1),
            "two": partial(_seconds_of_preparation, files, 2),
        }
        what = f"preparation: {images:,} images at {PIXELS} px with CLAHE"
        samples = session.interleave(what, works, max(1, session.blocks // 3))
    return {
        "title": what.partition(": ")[2],
        "images_per_second": {
            name: images / float(np.median(seconds)) for name, seconds in samples.items()
        },
        "speedup_two_workers": ratio_of_times(samples["one"], samples["two"]),
    }


def _save_jpegs(folder: Path, images: int) -> FilesToCache:
    drawn = phantom(PIXELS, train=PHANTOMS, validation=0, test=0).images
    names = tuple(f"{number}.jpg" for number in range(images))
    for number, name in enumerate(names):
        Image.fromarray(drawn[number % PHANTOMS]).resize((390, 320)).save(folder / name, quality=90)
    stamps = [file_stamp(folder / name) for name in names]
    return FilesToCache(folder, names, tuple(stamp for stamp in stamps if stamp))


def _seconds_of_preparation(files: FilesToCache, workers: int) -> float:
    """Into a cache that is thrown away."""
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, FEDDRAW_CACHE=cache):
        return seconds_of(
            lambda: prepare_images(files, Recipe(PIXELS, clahe=True), "bench", workers)
        )
