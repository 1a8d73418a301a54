"""What a training step frees is there for the next one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from feddraw.experiment.running import run
from feddraw.training.allocator import keep_freed_memory
from small import small

FAULTS = """
import resource
import torch
from feddraw.training.allocator import keep_freed_memory
print(keep_freed_memory())
torch.set_num_threads(1)
def pages(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step(): return [torch.ones(2_000_000) for _ in range(3)]
step(), step()
def asked():
    before = pages()
    step()
    return pages() - before
print(min(asked() for _ in range(5)))  # the system may take pages back at any moment
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


def told(**environment: str) -> tuple[bool, int]:
    """Whether the allocator was told, and the pages that a step then asks the system for."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    answer, pages = done.stdout.split()
    return answer == "True", int(pages)


def test_a_second_step_asks_the_system_for_no_memory() -> None:
    answer, pages = told()
    assert answer
    assert pages < 1000  # of 5,860 that three tensors have


def test_training_tells_the_allocator() -> None:
    keep_freed_memory.cache_clear()
    list(run(small(rounds=1)))
    assert keep_freed_memory.cache_info().misses == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_ARENA_MAX", "4"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=4")],
)
def test_limits_that_somebody_set_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    told: list[int] = []

    def mallopt_that_tells(option: int, _: int) -> int:
        told.append(option)
        return 1

    mallopt = SimpleNamespace(mallopt=mallopt_that_tells)
    monkeypatch.setattr("feddraw.training.allocator.ctypes.CDLL", lambda _: mallopt)
    for variable in [each for each in os.environ if each.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(variable)
    assert keep_freed_memory.__wrapped__()
    assert told
    told.clear()
    monkeypatch.setenv(name, value)
    assert not keep_freed_memory.__wrapped__()
    assert not told
