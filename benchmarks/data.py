"""What reading and preparing images costs: two workers beside one, augmentation and batches beside a training step.

    python benchmarks/data.py [--blocks 20]

The images are phantoms saved as JPEG files in a temporary folder. torch is imported late: workers import this file too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from feddraw.data.cache import Files, prepare
from feddraw.data.imaging import Recipe
from feddraw.data.phantom import phantom
from feddraw.data.preparation import stamp
from interleaved import heading, ratio, show, timed

FILES, PIXELS, BATCH = 4800, 224, 64


def jpegs(folder: Path) -> Files:
    """Radiographs larger than they are wanted, as archives have them."""
    drawn = phantom(PIXELS, train=96, validation=0, test=0).images
    names = tuple(f"{number}.jpg" for number in range(FILES))
    for number, name in enumerate(names):
        Image.fromarray(drawn[number % len(drawn)]).resize((390, 320)).save(folder / name, quality=90)
    return Files(folder, names, tuple(found for name in names if (found := stamp(folder / name))))


def preparing(files: Files, workers: int) -> float:
    """Decode, resize and equalise all files into a cache that is thrown away."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FEDDRAW_CACHE"] = cache
        return timed(lambda: prepare(files, Recipe(PIXELS, clahe=True), "benchmark", workers))


def shares(size: int, blocks: int) -> None:
    """Augmentation, and reading a batch from a memory-mapped file, as shares of a training step."""
    import torch

    from feddraw import models
    from feddraw.data.augment import augment
    from feddraw.training import Examples, Network, Training, gradient, make_optimizer

    torch.set_num_threads(1)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    network = Network(*models.build("compact", 5, {}))
    optimizer = make_optimizer(network, Training())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npy"
        np.save(path, rng.integers(0, 256, (20_000, size, size), dtype=np.uint8))
        targets = rng.integers(0, 2, (20_000, 5)).astype(np.float32)
        examples = Examples(np.load(path, mmap_mode="r"), targets)
        images, labels = examples.batch(np.arange(BATCH))

        def step() -> None:
            gradient(network, images, labels, torch.nn.functional.binary_cross_entropy_with_logits)
            optimizer.step()

        def several(work: object) -> float:
            return timed(lambda: [work() for _ in range(4)])  # type: ignore[operator]

        augmenting = ratio(partial(several, lambda: augment(images, generator)), partial(several, step), blocks)
        show(f"augmentation ÷ a training step, {size} px", augmenting, "bar: under 0.15")
        reading = partial(several, lambda: examples.images[rng.choice(20_000, BATCH, replace=False)])
        show(
            f"reading a batch from the cache ÷ a training step, {size} px",
            ratio(reading, partial(several, step), blocks),
            "bar: under 0.02",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20)
    blocks = parser.parse_args().blocks
    print(heading(blocks))
    for size in (32, 64):
        shares(size, blocks)
    with tempfile.TemporaryDirectory() as folder:
        files = jpegs(Path(folder))
        speedup = ratio(partial(preparing, files, 1), partial(preparing, files, 2), max(1, blocks // 4))
        show(f"preparing {FILES:,} images, one worker ÷ two workers", speedup, "bar: at least 1.7")


if __name__ == "__main__":
    main()
