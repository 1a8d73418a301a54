"""Where and how precisely a network is trained: `training.device`, `training.amp`, `training.compile`."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from feddraw.errors import UserError
from feddraw.experiment.running import iterate, run
from feddraw.training.loop import Examples
from small import small


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_in_a_line(tmp_path):
    with pytest.raises(UserError, match=r"training\.device is cuda, but torch finds no such device here: use cpu"):
        next(iterate(small().with_settings({"training.device": "cuda"}), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["meta", "gpu", "cuda:x", "CPU"])
def test_other_devices_are_refused(device):
    with pytest.raises(UserError, match=r"training\.device must be cpu, cuda"):
        next(iterate(small().with_settings({"training.device": device})))


@pytest.mark.parametrize("amp", ["bf16", "fp16"])  # the second through a gradient scaler
def test_half_precision_learns_as_whole_precision_does(amp):
    whole = [result.loss for result in run(small())]
    half = [result.loss for result in run(small().with_settings({"training.amp": amp}))]
    assert half != whole
    assert half == pytest.approx(whole, abs=0.03)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_float16_on_a_gpu_learns_as_whole_precision_does():
    settings = {"training.amp": "fp16", "training.device": "cuda"}
    whole, half = ([result.loss for result in run(small().with_settings(s))] for s in ({}, settings))
    assert half == pytest.approx(whole, abs=0.03)


@pytest.mark.skipif("FEDDRAW_COMPILE" not in os.environ, reason="a minute and a C++ compiler: set FEDDRAW_COMPILE")
def test_a_compiled_network_learns_the_same():
    plain, fast = ([r.loss for r in run(small(rounds=1).with_settings({"training.compile": c}))] for c in (False, True))
    assert fast == pytest.approx(plain, abs=1e-3)


def test_images_that_lie_on_the_device_give_the_same_batches(monkeypatch):
    rng = np.random.default_rng(0)
    examples = Examples(rng.integers(0, 256, (9, 8, 8), dtype=np.uint8), rng.random((9, 2), dtype=np.float32))
    rows = np.array([7, 0, 3])
    images, targets = examples.batch(rows)
    monkeypatch.setattr("feddraw.training.loop.CPU", torch.device("meta"))  # so that this device counts as another
    for found, expected in zip(examples.batch(rows, torch.device("cpu")), (images, targets), strict=True):
        assert torch.equal(found, expected)
    assert len(examples._kept[torch.device("cpu")]) == 2
