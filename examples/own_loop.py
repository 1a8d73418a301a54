"""FedDRAW in a training loop of your own: plain PyTorch, no framework, one call per round.

python examples/own_loop.py
"""

from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

import feddraw

ROUNDS, SIZES = 5, {"north": 400, "south": 100, "west": 60}


def images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of a hospital's images: two findings that depend on sixteen numbers."""
    numbers = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return numbers, (numbers[:, :2] + numbers[:, 2:4] > 0).float()


def trained(network: nn.Module, seed: int, count: int) -> dict[str, torch.Tensor]:
    """What a client does: here ten steps of SGD on all of its images."""
    own, (inputs, labels) = deepcopy(network), images(count, seed)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(own(inputs), labels).backward()
        optimizer.step()
    return own.state_dict()


def main() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    with TemporaryDirectory() as folder:
        state = None
        for round in range(ROUNDS):
            updates = [
                feddraw.ClientUpdate(trained(network, seed, size), size, client)
                for seed, (client, size) in enumerate(SIZES.items())
            ]
            result = feddraw.aggregate(
                network.state_dict(), updates, round=round, rounds=ROUNDS, state=state
            )
            network.load_state_dict(result.next_model)
            print(round, {client: round_to(weight) for client, weight in result.weights.items()})
            result.state.save(
                Path(folder) / "state.safetensors"
            )  # a server that is restarted loads it
            state = feddraw.AggregationState.load(Path(folder) / "state.safetensors")
    inputs, labels = images(500, seed=9)
    print("right:", round_to(((network(inputs) > 0) == labels.bool()).float().mean().item()))


def round_to(number: float) -> float:
    return float(f"{number:.3f}")


if __name__ == "__main__":
    main()
