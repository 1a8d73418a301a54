"""What makes the same seed give the same bits: one thread, seeded generators, and GPUs that always
compute alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CUBLAS_WORKSPACE = ":4096:8"  # cuBLAS: fixed buffers, or sums may be taken in another order


def compute_exactly(device: torch.device, tf32: bool) -> None:
    """From now on this process computes on its GPU the same way every time, in float32 unless TF32
    is allowed.
    """
    if device.type != "cuda":
        return
    # Read when cuBLAS is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    torch.cuda.set_device(device)  # or memory of the first GPU would be taken, too
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def generator_of_device(device: torch.device) -> torch.Generator | None:
    """The generator from which a device's own random numbers come, for dropout and the like; None:
    the processor's.
    """
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.mps._get_default_mps_generator() if device.type == "mps" else None


@contextmanager
def seeded_torch(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's own generators, for dropout and the like, with this seed, and afterwards as they
    were.

    `torch.manual_seed` would also write down where it was called from, for GPUs that may not be
    there.
    """
    generator = generator_of_device(device)
    before = None if generator is None else generator.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if generator is not None:
            generator.manual_seed(seed)
        try:
            yield
        finally:
            if generator is not None and before is not None:
                generator.set_state(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Bits depend on the number of threads, and many are slow under load: all training and testing
    is done with one.
    """
    before = torch.get_num_threads()
    if before == 1:  # setting it costs as much as a small layer
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
