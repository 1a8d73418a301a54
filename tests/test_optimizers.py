"""Our steps are torch's, without what its classes load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from feddraw.training.optimizers import SGD, Adam


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [None, 0.0, 0.9])
def test_steps_have_the_bits_of_torchs_optimizers(momentum: float | None, decay: float) -> None:
    start = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    theirs, ours = nn.Parameter(start.clone()), start.clone()
    theirs.grad = torch.zeros_like(theirs)
    if momentum is None:
        reference: torch.optim.Optimizer = torch.optim.Adam(
            [theirs], 0.1, weight_decay=decay, fused=True
        )
        optimizer: Adam | SGD = Adam(ours, theirs.grad, 0.1, decay)
    else:
        reference = torch.optim.SGD([theirs], 0.1, momentum, weight_decay=decay, fused=True)
        optimizer = SGD(ours, theirs.grad, 0.1, decay, momentum=momentum)
    for step in range(4):
        theirs.grad.copy_(torch.sin(start * step))
        reference.step()
        optimizer.step()
    assert torch.equal(ours, theirs.detach())
    kept = {name: value for name, value in reference.state[theirs].items() if value is not None}
    assert kept.keys() == optimizer.state.keys()
    assert all(torch.equal(value, optimizer.state[name]) for name, value in kept.items())


def test_a_run_does_not_load_torchs_compiler() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from feddraw.experiment.running import run; from small import small\n"
        "list(run(small(rounds=1))); print('torch._dynamo' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
        == "False"
    )
